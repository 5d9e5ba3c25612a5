"""Clipping and norms: vectors of the specification, float64, strides, gradients, failures."""

import itertools

import numpy as np
import openbnns
import pytest
from cases import dtype_of, gaps_untouched, has_bfloat16, sentinel_array
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from openbnns import ArrayError, DTypeError, LayerApplyError
from oracles.tolerance import assert_close, assert_same_bits

TYPES = ["float32", "float16"] + (["bfloat16"] if has_bfloat16() else [])
SHAPES = [(1,), (7,), (3, 4), (2, 3, 5), (4, 1, 3, 2), (2, 3, 1, 2, 3), (300, 400)]


def axes_of(rank):
    """Every choice of axes, and None."""
    yield None
    for n in range(1, rank + 1):
        yield from itertools.combinations(range(rank), n)


CHOICES = [(shape, axes) for shape in SHAPES for axes in axes_of(len(shape))]


def values(shape, dtype="float32", seed=0):
    rng = np.random.default_rng([seed, *shape])
    return rng.standard_normal(shape).astype(dtype_of(dtype))


def norms_of(x, axes, keepdims=False):
    return np.sqrt((x.astype(np.float64) ** 2).sum(axis=axes, keepdims=keepdims))


# ---- vectors of the specification ----


def test_published_examples():
    np.testing.assert_array_equal(
        openbnns.clip(np.arange(1, 9, dtype=np.float32), 3, 6), [3, 3, 3, 4, 5, 6, 6, 6]
    )
    x = np.arange(1, 10, dtype=np.float32).reshape(3, 3)
    y = openbnns.clip_by_norm(x, 10, axes=1)
    np.testing.assert_array_equal(y[:2], x[:2])
    np.testing.assert_allclose(y[2], [5.0257072, 5.743665, 6.461623], rtol=1e-7)
    xs = [np.float32([3, 4]), np.float32([12])]
    for known, want in ((None, 0.5), (26, 0.25)):
        for y, x in zip(openbnns.clip_by_global_norm(xs, 6.5, global_norm=known), xs, strict=True):
            np.testing.assert_array_equal(y, want * x)
    x = np.float32([[3, 4], [12, 5]])
    np.testing.assert_allclose(openbnns.norm(x, axes=0), [12.369317, 6.4031243], rtol=1e-7)
    np.testing.assert_array_equal(openbnns.norm(x, axes=1), [5, 13])
    x = np.float32([3, 4])
    np.testing.assert_allclose(
        openbnns.norm_backward(x, np.float32(5), np.float32(2)), [1.2, 1.6], rtol=1e-7
    )


# ---- float64 ----


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("shape", "axes"), CHOICES)
def test_norm_and_clip_by_norm(shape, axes, dtype):
    x = values(shape, dtype)
    y = openbnns.norm(x, axes=axes)
    assert y.dtype == x.dtype
    assert_close(y, norms_of(x, axes), dtype)
    norms = norms_of(x, axes, keepdims=True)
    threshold = float(np.float32(np.median(norms)))
    factor = np.where(norms > threshold, threshold / norms, 1)
    assert_close(
        openbnns.clip_by_norm(x, threshold, axes=axes), x.astype(np.float64) * factor, dtype
    )


@pytest.mark.parametrize(("shape", "axes"), CHOICES)
def test_norm_backward(shape, axes):
    x = values(shape)
    y = openbnns.norm(x, axes=axes)
    dy = values(y.shape or (1,), seed=1).reshape(y.shape)
    chosen = axes if axes is not None else tuple(range(len(shape)))
    spread = np.expand_dims(dy.astype(np.float64), chosen) if chosen else dy
    want = spread * x.astype(np.float64) / norms_of(x, axes, keepdims=True)
    dx = openbnns.norm_backward(x, y, dy, axes=axes)
    assert_close(dx, want)
    added = np.ones_like(x)
    result = openbnns.norm_backward(x, y, dy, axes=axes, input_gradient=added, accumulate=True)
    assert result is added
    assert_close(added, want + 1)


def test_norm_backward_is_the_limit_of_differences():
    x, direction = values((4, 5)).astype(np.float64), values((4, 5), seed=2).astype(np.float64)
    dy = values((5,), seed=3)
    step = 1e-6
    change = norms_of(x + step * direction, 0) - norms_of(x - step * direction, 0)
    single = x.astype(np.float32)
    dx = openbnns.norm_backward(single, openbnns.norm(single, axes=0), dy, axes=0)
    np.testing.assert_allclose((dx * direction).sum(), (dy * change).sum() / (2 * step), rtol=1e-5)


def test_norm_of_zeros_has_no_gradient():
    x = np.zeros((2, 3), np.float32)
    dx = openbnns.norm_backward(x, openbnns.norm(x, axes=1), np.ones(2, np.float32), axes=1)
    np.testing.assert_array_equal(dx, x)


@given(
    hnp.arrays(
        np.float32, hnp.array_shapes(max_dims=5, max_side=6), elements=st.floats(-9, 9, width=32)
    ),
    st.floats(0, 20, width=32),
)
def test_global_norm_of_pieces_is_that_of_the_whole(x, threshold):
    pieces = openbnns.clip_by_global_norm(list(x), threshold)
    whole = openbnns.clip_by_norm(x, threshold)
    np.testing.assert_allclose(np.stack(pieces), whole, rtol=1e-6)


@given(
    hnp.arrays(np.float32, hnp.array_shapes(max_dims=4, max_side=20)),
    st.floats(-5, 5, width=32),
    st.floats(0, 5, width=32),
)
def test_clip_is_that_of_numpy(x, low, width):
    high = float(np.float32(low + width))
    np.testing.assert_array_equal(openbnns.clip(x, low, high), np.clip(x, low, high))


# ---- memory ----


@pytest.mark.parametrize("dtype", TYPES)
def test_strides_are_respected(dtype):
    x = values((3, 4, 6), dtype)
    wide, _ = sentinel_array((3, 4, 6), dtype, gaps=(0, 1, 3), step=2)
    wide[...] = x
    for function in (
        lambda x, out=None: openbnns.clip(x, -0.5, 0.5, out=out),
        lambda x, out=None: openbnns.clip_by_norm(x, 1, axes=(0, 2), out=out),
        lambda x, out=None: openbnns.clip_by_global_norm([x], 1, out=[out])[0],
    ):
        view, owner = sentinel_array((3, 4, 6), dtype, gaps=(0, 2, 1), step=3)
        assert function(wide, out=view) is view
        assert gaps_untouched(view, owner)
        assert_same_bits(np.ascontiguousarray(view), function(x))
        place = x.copy()
        assert_same_bits(function(place, out=place), function(x))


@pytest.mark.parametrize("axes", [None, 0, 1])
def test_same_bits_for_any_number_of_threads(axes):
    x, before, results = values((700, 300)), openbnns.get_num_threads(), []
    try:
        for threads in (1, 2, 7):
            openbnns.set_num_threads(threads)
            results.append((openbnns.norm(x, axes=axes), openbnns.clip_by_norm(x, 1, axes=axes)))
    finally:
        openbnns.set_num_threads(before)
    for result in results[1:]:
        for a, b in zip(result, results[0], strict=True):
            assert_same_bits(a, b)


def test_strange_values():
    x = np.float32([1, np.nan, -np.inf, np.inf])
    np.testing.assert_array_equal(openbnns.clip(x, -2, 2), np.float32([1, np.nan, -2, 2]))
    np.testing.assert_array_equal(openbnns.clip_by_norm(x, 1), x)
    large = np.full(4, 1e30, np.float32)  # its square is no float32
    np.testing.assert_allclose(openbnns.clip_by_norm(large, 1), [0.5] * 4, rtol=1e-6)
    assert np.isfinite(openbnns.norm(large))


# ---- failures ----


def test_wrong_arguments():
    x, y = values((3, 4)), np.full((3, 4), 7, np.float32)
    for call, sentence in (
        (lambda: openbnns.clip(x, 1, 0, out=y), "[clip] bounds: expected low <= high; got 1 and 0"),
        (
            lambda: openbnns.clip_by_norm(x, -1, out=y),
            "[clip_by_norm] threshold: expected at least 0; got -1",
        ),
        (lambda: openbnns.norm(x, axes=2), "[norm] axes: expected axes of an array with 2; got 2"),
        (lambda: openbnns.norm(x, axes=(0, -2)), "[norm] axes: expected each axis once"),
        (lambda: openbnns.norm(x, axes=()), "[norm] axes: expected at least one axis; got ()"),
        (
            lambda: openbnns.clip_by_global_norm([x], 1, global_norm=-1, out=[y]),
            "[clip_by_global_norm] global_norm: expected at least 0; got -1",
        ),
        (
            lambda: openbnns.clip(np.ones(3, np.int32), 0, 1),
            "[clip] x: expected a float type; got int32",
        ),
    ):
        with pytest.raises(LayerApplyError) as error:
            call()
        assert str(error.value).startswith(sentence)
    with pytest.raises(ArrayError, match=r"\[clip\] out: expected \(3, 4\); got \(4, 3\)"):
        openbnns.clip(x, 0, 1, out=np.empty((4, 3), np.float32))
    with pytest.raises(DTypeError, match=r"\[norm\] out: expected float32; got float16"):
        openbnns.norm(x, axes=0, out=np.empty(4, np.float16))
    with pytest.raises(ArrayError, match="out: expected 1 arrays; got 2"):
        openbnns.clip_by_global_norm([x], 1, out=[y, y])
    with pytest.raises(ArrayError, match="accumulate: expected an array to add to"):
        openbnns.norm_backward(x, openbnns.norm(x), np.float32(1), accumulate=True)
    assert (y == 7).all()
