"""Pooling layers: right values, right indices, right gradients."""

from dataclasses import replace

import numpy as np
import openbnns
import pytest
from cases import dtype_of, gaps_untouched, generator, has_bfloat16, sentinel_array
from cases import pooling as cases
from cases.marks import marked, small
from cases.pooling import PoolingCase
from hypothesis import given
from hypothesis import strategies as st
from oracles import pooling as oracle
from oracles.differences import assert_gradient_matches, well_separated
from oracles.tolerance import assert_close, assert_same_bits


def has_smooth_values(case):
    """float32 without ties and infinities, so that gradients are derivatives."""
    return case.dtype == "float32" and case.values in ("normal", "negative")


def is_differentiable(case):
    """Also no kink in the activation, and for unmax no two windows that share a position: there
    it overwrites, and its gradient is a convention."""
    if case.activation not in ("identity", "sigmoid", "tanh") or not has_smooth_values(case):
        return False
    return case.function != "unmax" or not case.windows_overlap


CASES = [marked(case) for case in cases.CASES]
SMALL = small(cases.CASES)
MAX_CASES = small(cases.CASES, lambda case: case.function == "max")


# ---- the case list ----


@pytest.mark.parametrize("case", CASES)
def test_forward_matches_closed_form(case):
    x = case.input()
    before = x.copy()
    y, owner = case.empty_output()
    _, indices = case.apply(case.layer(), x, y)
    expected, expected_indices = case.expected(x, indices)
    assert_close(y, expected, case.dtype, terms=forward_terms(case, x))
    if case.function == "max":
        np.testing.assert_array_equal(indices, expected_indices)
    assert gaps_untouched(y, owner)
    assert_same_bits(x, before)


def forward_terms(case, x):
    """Sum of the sizes of what an average adds up; other functions add nothing or only squares."""
    if not case.function.startswith("average"):
        return None
    sizes = np.abs(x.astype(np.float64))
    return oracle.average_pool(sizes, case.geometry, case.function == "average")


@pytest.mark.parametrize("case", MAX_CASES)
def test_max_without_indices_gives_the_same_values(case):
    layer, x = case.layer(), case.input()
    with_indices, _ = case.apply(layer, x)
    assert_same_bits(layer.apply(x), with_indices)


@pytest.mark.parametrize("case", CASES)
def test_backward_matches_closed_form(case):
    layer, x, dy = case.layer(), case.input(), case.output_gradient()
    y, indices = case.apply(layer, x)
    dx, owner = sentinel_array(case.input_shape, case.dtype, case.x_gaps, case.step)
    grads = layer.apply_backward(
        x, y, dy, indices=indices, input_gradient=dx, bias_gradient=True if case.bias else None
    )
    expected = case.expected_gradients(x, y, dy, indices)
    assert_close(dx, expected.dx, case.dtype, terms=expected.dx_terms)
    assert gaps_untouched(dx, owner)
    if case.bias:
        assert_close(grads.bias, expected.dbias, case.dtype, terms=expected.dbias_terms)


@pytest.mark.parametrize("case", MAX_CASES)
def test_max_backward_finds_its_indices_again(case):
    layer, x, dy = case.layer(), case.input(), case.output_gradient()
    y, indices = case.apply(layer, x)
    given = layer.apply_backward(x, y, dy, indices=indices, bias_gradient=None).input
    found = layer.apply_backward(x, y, dy, bias_gradient=None).input
    assert_close(found, given.astype(np.float64), case.dtype)


@pytest.mark.parametrize("case", SMALL)
def test_backward_accumulates(case):
    layer, x, dy = case.layer(), case.input(), case.output_gradient()
    y, indices = case.apply(layer, x)
    dx, owner = sentinel_array(case.input_shape, case.dtype, case.x_gaps, case.step)
    dx[...] = generator(case, 7).standard_normal(case.input_shape).astype(dx.dtype)
    before = dx.astype(np.float64)
    layer.apply_backward(
        x, y, dy, indices=indices, input_gradient=dx, bias_gradient=None, accumulate=True
    )
    expected = case.expected_gradients(x, y, dy, indices)
    assert_close(dx, before + expected.dx, case.dtype, terms=expected.dx_terms)
    assert gaps_untouched(dx, owner)


@pytest.mark.parametrize("case", small(cases.CASES, is_differentiable))
def test_gradient_matches_central_differences(case):
    layer, rng = case.layer(), generator(case, 4)
    spaced, spaced_dy = case.input(), case.output_gradient()  # memory with the case's gaps
    indices = case.unmax_indices() if case.function == "unmax" else None

    def forward(values):
        spaced[...] = values
        return layer.apply(spaced, indices=indices) if indices is not None else layer.apply(spaced)

    def gradient(values, dy):
        y = forward(values)
        spaced_dy[...] = dy
        return layer.apply_backward(spaced, y, spaced_dy, indices=indices, bias_gradient=None).input

    # no maximum changes hands, and no root of a sum of squares comes near zero
    x = well_separated(case.input_shape, rng)
    if case.function != "max":
        x = (x / np.abs(x).max() + np.where(x < 0, -0.5, 0.5)).astype(np.float32)
    assert_gradient_matches(forward, gradient, x, rng)


@pytest.mark.parametrize("case", small(cases.CASES, has_smooth_values))
def test_values_and_gradients_match_torch(case):
    torch_judge = pytest.importorskip("oracles.torch_judge", exc_type=ImportError)
    layer, x, dy = case.layer(), case.input(), case.output_gradient()
    y, indices = case.apply(layer, x)
    if case.function == "l2_norm":  # torch has no slope for the root of zero
        z = oracle.l2_norm_pool(x.astype(np.float64), case.geometry)
        dy[z == 0] = 0
    grads = layer.apply_backward(x, y, dy, indices=indices)
    expected, dx, dbias = torch_judge.pooling(
        case.function,
        x,
        dy,
        case.geometry,
        indices,
        case.bias_values(),
        (case.activation, case.alpha, case.beta),
    )
    assert_close(y, expected)
    terms = case.expected_gradients(x, y, dy, indices).dx_terms
    assert_close(grads.input, np.nan_to_num(dx), terms=terms)
    if case.bias:
        assert_close(grads.bias, dbias, terms=np.abs(dy).sum(axis=(0, 2, 3)))


# ---- numbers from the specification ----


def run(function, x, kernel, stride, padding=0, **options):
    """One image as nested lists through a layer."""
    x = np.float32(x)[None, None]
    layer = openbnns.PoolingLayer(
        cases.pooling_of(function),
        input=x.shape[1:],
        kernel_size=kernel,
        stride=stride,
        padding=padding,
        **options,
    )
    return layer, x


def test_vector_max():
    layer, x = run("max", np.arange(1, 10).reshape(3, 3), 2, 1)
    np.testing.assert_array_equal(layer.apply(x)[0, 0], [[5, 6], [8, 9]])


def test_vector_average_with_padding():
    layer, x = run("average", [[1, 2], [3, 4]], 2, 2, 1)
    np.testing.assert_array_equal(layer.apply(x)[0, 0], [[0.25, 0.5], [0.75, 1]])


def test_vector_max_with_padding():
    layer, x = run("max", [[1, 2], [3, 4]], 2, 1, 1)
    np.testing.assert_array_equal(layer.apply(x)[0, 0], [[1, 2, 2], [3, 4, 4], [3, 4, 4]])


def test_vector_max_then_unmax():
    image_ = [[1, 1, 1, 9], [1, 9, 9, 1], [1, 1, 1, 1], [1, 9, 1, 9]]
    layer, x = run("max", image_, 2, 1)
    y, indices = layer.apply(x, return_indices=True)
    back = openbnns.PoolingLayer(
        "unmax", input=(1, 3, 3), output=(1, 4, 4), kernel_size=2, stride=1
    ).apply(y, indices=indices)
    expected = [[0, 0, 0, 9], [0, 9, 9, 0], [0, 0, 0, 0], [0, 9, 0, 9]]
    np.testing.assert_array_equal(back[0, 0], expected)


@pytest.mark.parametrize("index_dtype", ["uint32", "uint64"])
def test_vector_indices_and_gradient(index_dtype):
    layer, x = run("max", np.arange(1, 17).reshape(4, 4), 2, 2)
    indices = np.zeros((1, 1, 2, 2), index_dtype)
    layer.apply(x, indices=indices)
    np.testing.assert_array_equal(indices[0, 0], [[5, 7], [13, 15]])
    dy = np.float32([[[[1, 2], [3, 4]]]])
    dx = layer.apply_backward(None, None, dy, indices=indices).input
    expected = np.zeros(16)
    expected[[5, 7, 13, 15]] = [1, 2, 3, 4]
    np.testing.assert_array_equal(dx.reshape(-1), expected)


def test_vector_indices_of_negated_image():
    layer, x = run("max", -np.arange(1, 17).reshape(4, 4), 2, 2)
    _, indices = layer.apply(x, return_indices=True)
    np.testing.assert_array_equal(indices[0, 0], [[0, 2], [8, 10]])


# ---- rules ----


def test_ties_go_to_the_first():
    layer, x = run("max", np.ones((4, 6)), 3, 1, 1)
    _, indices = layer.apply(x, return_indices=True)
    flat, inside = layer_geometry(x, 3, 1, 1).positions()
    np.testing.assert_array_equal(indices[0, 0], np.where(inside, flat, 1000).min(axis=-1))


def layer_geometry(x, kernel, stride, before):
    h, w = x.shape[2:]
    count = tuple((extent + 2 * before - kernel) // stride + 1 for extent in (h, w))
    return oracle.Geometry((h, w), count, (kernel,) * 2, (stride,) * 2, (1, 1), (before,) * 2)


def test_not_a_number_wins_a_maximum():
    layer, x = run("max", [[1, np.nan, np.inf, 3], [np.nan, 5, 6, 7]], 2, 2)
    y, indices = layer.apply(x, return_indices=True)
    np.testing.assert_array_equal(y[0, 0], [[np.nan, np.inf]])
    np.testing.assert_array_equal(indices[0, 0], [[1, 2]])


def test_padding_never_wins_a_maximum():
    layer, x = run("max", [[-1, -2], [-3, -4]], 3, 1, 1)
    np.testing.assert_array_equal(layer.apply(x)[0, 0], [[-1, -1], [-1, -1]])


def test_infinite_lows_have_an_index_inside():
    layer, x = run("max", np.full((2, 2), -np.inf), 2, 1, 1)
    y, indices = layer.apply(x, return_indices=True)
    np.testing.assert_array_equal(y[0, 0], np.full((3, 3), -np.inf))
    np.testing.assert_array_equal(indices[0, 0], [[0, 0, 1], [0, 0, 1], [2, 2, 3]])


def test_indices_restart_in_every_channel():
    x = np.zeros((2, 3, 4, 4), np.float32)
    x[:, :, 1, 1] = 1.0
    layer = openbnns.PoolingLayer("max", input=(3, 4, 4), kernel_size=4)
    _, indices = layer.apply(x, return_indices=True)
    np.testing.assert_array_equal(indices, np.full((2, 3, 1, 1), 5))


def test_unmax_last_of_equal_indices_wins():
    layer = openbnns.PoolingLayer(
        "unmax", input=(1, 2, 2), output=(1, 3, 3), kernel_size=2, stride=1
    )
    x = np.float32([[[[1, 2], [3, 4]]]])
    y = layer.apply(x, indices=np.full((1, 1, 2, 2), 4, np.uint32))
    expected = np.zeros(9)
    expected[4] = 4
    np.testing.assert_array_equal(y.reshape(-1), expected)


def test_unmax_applies_bias_and_activation_to_its_zeros():
    layer = openbnns.PoolingLayer(
        "unmax",
        input=(1, 1, 1),
        output=(1, 2, 2),
        kernel_size=2,
        bias=np.float32([-1.0]),
        activation="abs",
    )
    y = layer.apply(np.float32([[[[3]]]]), indices=np.full((1, 1, 1, 1), 2, np.uint32))
    np.testing.assert_array_equal(y.reshape(-1), [1, 1, 2, 1])


def test_l2_norm_of_zeros_passes_no_gradient():
    layer, x = run("l2_norm", np.zeros((2, 2)), 2, 2)
    dx = layer.apply_backward(x, layer.apply(x), np.ones((1, 1, 1, 1), np.float32)).input
    np.testing.assert_array_equal(dx, np.zeros((1, 1, 2, 2)))


def test_average_backward_needs_neither_input_nor_output():
    layer, _ = run("average", np.zeros((2, 2)), 2, 2)
    dx = layer.apply_backward(None, None, np.ones((1, 1, 1, 1), np.float32)).input
    np.testing.assert_array_equal(dx, np.full((1, 1, 2, 2), 0.25))


def test_bias_gradient_accumulates():
    case = replace(cases.ODD, function="average", bias=True)
    x, dy = case.input(), case.output_gradient()
    bias = np.float32([1.0, 2.0, 3.0])
    case.layer().apply_backward(
        x, None, dy, input_gradient=None, bias_gradient=bias, accumulate=True
    )
    terms = np.abs(dy).sum(axis=(0, 2, 3))
    added = dy.astype(np.float64).sum(axis=(0, 2, 3))
    assert_close(bias, np.arange(1, 4) + added, terms=terms)


def test_bias_gradient_matches_central_differences():
    case = replace(cases.ODD, function="average", bias=True, activation="tanh")
    x, dy, bias = case.input(), case.output_gradient(), case.bias_values()
    layer = case.layer()
    grads = layer.apply_backward(x, layer.apply(x), dy)
    step = np.float32(2.0**-7)
    for channel in range(3):
        sums = []
        for sign in (1, -1):
            moved = bias.copy()
            moved[channel] += sign * step
            sums.append((case.layer(bias=moved).apply(x).astype(np.float64) * dy).sum())
        change = (sums[0] - sums[1]) / (2 * step)
        np.testing.assert_allclose(grads.bias[channel], change, rtol=2e-3, atol=2e-3)


def test_shared_bias_is_read_at_every_call():
    bias = np.zeros(1, np.float32)
    layer, x = run("max", np.zeros((2, 2)), 2, 2, bias=bias)
    assert layer.apply(x)[0, 0, 0, 0] == 0.0
    bias[0] = 5.0
    assert layer.apply(x)[0, 0, 0, 0] == 5.0


def test_copied_bias_stays():
    bias = np.zeros(1, np.float32)
    layer, x = run("max", np.zeros((2, 2)), 2, 2, bias=bias, copy_parameters=True)
    bias[0] = 5.0
    assert layer.apply(x)[0, 0, 0, 0] == 0.0


def test_fused_softmax_normalises_rows():
    layer, x = run("max", np.arange(16).reshape(4, 4), 2, 2, activation="softmax")
    y = layer.apply(x)
    larger = np.exp(2.0) / (1.0 + np.exp(2.0))  # the maxima of a row lie 2 apart
    np.testing.assert_allclose(y[0, 0], [[1 - larger, larger]] * 2, rtol=1e-6)


def test_fused_prelu_is_leaky():
    activation = openbnns.Activation.prelu_per_channel(0.5)
    layer, x = run("max", [[-4, -6], [-8, -5]], 2, 2, activation=activation)
    assert layer.apply(x)[0, 0, 0, 0] == -2.0


def test_half_gradients_round_once():
    case = PoolingCase("average", (1, 1, 9, 9), (3, 3), (1, 1), dtype="float16")
    dy = np.full(case.output_shape, 1.0, dtype_of("float16"))
    dx = case.layer().apply_backward(None, None, dy).input
    expected = case.expected_gradients(case.input(), dy, dy).dx
    assert_same_bits(dx, expected.astype(np.float32).astype(np.float16))


# ---- properties ----


@st.composite
def pooling_cases(draw):
    """Any geometry at small sizes, windows overhanging as far as the rule allows."""
    image_ = tuple(draw(st.integers(1, 3)) for _ in range(2))
    image_ += tuple(draw(st.integers(1, 20)) for _ in range(2))
    kernel, stride, dilation = (
        tuple(draw(st.integers(1, limit)) for _ in range(2)) for limit in (5, 4, 3)
    )
    padding = tuple(tuple(draw(st.integers(0, 4)) for _ in range(2)) for _ in range(2))
    most = [(image_[2 + k] + sum(padding[k]) - 1) // stride[k] + 1 for k in range(2)]
    gaps = st.tuples(st.just(0), *[st.integers(0, 2)] * 3)
    types = ["float32", "float16"] + (["bfloat16"] if has_bfloat16() else [])
    return PoolingCase(
        draw(st.sampled_from(cases.FUNCTIONS)),
        image_,
        kernel,
        stride,
        padding,
        dilation,
        tuple(draw(st.integers(1, limit)) for limit in most),
        dtype=draw(st.sampled_from(types)),
        index_dtype=draw(st.sampled_from(["uint32", "uint64"])),
        bias=draw(st.booleans()),
        activation=draw(st.sampled_from(["identity", "rectified_linear", "tanh"])),
        values=draw(st.sampled_from(["normal", "ties"])),
        x_gaps=draw(gaps),
        y_gaps=draw(gaps),
        step=draw(st.integers(1, 2)),
    )


@given(pooling_cases())
def test_any_geometry_matches_closed_form(case):
    layer, x, dy = case.layer(), case.input(), case.output_gradient()
    y, owner = case.empty_output()
    _, indices = case.apply(layer, x, y)
    expected, expected_indices = case.expected(x, indices)
    assert_close(y, expected, case.dtype, terms=forward_terms(case, x))
    assert gaps_untouched(y, owner)
    if case.function == "max":
        np.testing.assert_array_equal(indices, expected_indices)
    dx, owner = sentinel_array(case.input_shape, case.dtype, case.x_gaps, case.step)
    grads = layer.apply_backward(
        x, y, dy, indices=indices, input_gradient=dx, bias_gradient=True if case.bias else None
    )
    expected = case.expected_gradients(x, y, dy, indices)
    assert_close(dx, expected.dx, case.dtype, terms=expected.dx_terms)
    assert gaps_untouched(dx, owner)
    if case.bias:
        assert_close(grads.bias, expected.dbias, case.dtype, terms=expected.dbias_terms)
