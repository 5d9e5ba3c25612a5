"""Convolution layers: right values, right gradients, right refusals."""

from dataclasses import replace

import numpy as np
import openbnns
import pytest
from cases import assert_refused, dtype_of, has_bfloat16, is_sentinel, sentinel_array
from cases import convolution as cases
from cases.convolution import ConvolutionCase
from cases.descriptors import convolution_parameters, image, misaligned, vector, weights
from cases.marks import marked, small
from cases.weighted import (
    check_accumulation,
    check_backward,
    check_differences,
    check_forward,
    check_torch,
    has_smooth_slope,
)
from hypothesis import given
from hypothesis import strategies as st
from openbnns import ArraySpec, ConvolutionLayer, LayerCreationError, c
from oracles import convolution as oracle
from oracles.tolerance import assert_close, assert_same_bits

CASES = [marked(case) for case in cases.CASES]


# ---- the case list ----


@pytest.mark.parametrize("case", CASES)
def test_forward_matches_closed_form(case):
    check_forward(case)


@pytest.mark.parametrize("case", CASES)
def test_backward_matches_closed_form(case):
    check_backward(case)


@pytest.mark.parametrize("case", small(cases.CASES))
def test_backward_accumulates(case):
    check_accumulation(case)


@pytest.mark.parametrize("case", small(cases.CASES, has_smooth_slope))
def test_gradients_match_central_differences(case):
    check_differences(case)


@pytest.mark.parametrize("case", small(cases.CASES, lambda case: case.dtype == "float32"))
def test_values_and_gradients_match_torch(case):
    check_torch(case, "convolution")


# ---- numbers from the specification ----


def run(x, w, **options):
    """One image as nested lists through a layer; the output without its batch."""
    x = np.float32(x)[None]
    return ConvolutionLayer(np.float32(w), input=x.shape[1:], **options).apply(x)[0]


def test_vector_ones():
    y = run(np.arange(1, 10).reshape(1, 3, 3), np.ones((1, 1, 2, 2)))
    np.testing.assert_array_equal(y, [[[12, 16], [24, 28]]])


def test_vector_with_bias():
    rows = [[0, 43, 3, 30], [0, 98, 0, 0], [7, 38, 0, 0], [19, 20, 175, 50]]
    kernel = [[[[-2, 0, 1], [0, 1, 0], [-1, -2, 0]]]]
    y = run([rows], kernel, bias=np.float32([0.5]))
    np.testing.assert_array_equal(y, [[[18.5, -93.5], [-20.5, -565.5]]])


def test_vector_three_channels():
    x = np.add.outer([10, 20, 30], np.arange(4)).reshape(3, 2, 2)
    y = run(x, np.full((1, 3, 2, 2), 1 / 12), bias=np.zeros(1, np.float32))
    np.testing.assert_allclose(y, [[[21.5]]], rtol=1e-6)


def test_vector_transposed():
    y = run(np.ones((1, 2, 2)), np.ones((1, 1, 3, 3)), transposed=True)
    np.testing.assert_array_equal(y, [[[1, 2, 2, 1], [2, 4, 4, 2], [2, 4, 4, 2], [1, 2, 2, 1]]])


def test_vector_transposed_doubles():
    layer = openbnns.TransposedConvolutionLayer(np.full((1, 1, 1, 1), 2, "f4"), input=(1, 2, 3))
    x = np.arange(6, dtype=np.float32).reshape(1, 1, 2, 3)
    np.testing.assert_array_equal(layer(x), 2 * x)


def test_kernel_is_not_flipped():
    kernel = np.float32([[[[1, 2], [3, 4]]]])
    x = np.zeros((1, 3, 3))
    x[0, 1, 1] = 1
    np.testing.assert_array_equal(run(x, kernel), [[[4, 3], [2, 1]]])
    one = np.ones((1, 1, 1))
    np.testing.assert_array_equal(run(one, kernel, transposed=True), kernel[0])


# ---- shapes and keywords ----


def test_output_shape_is_inferred():
    w = np.zeros((4, 3, 3, 5), np.float32)
    sizes = {"input": (3, 10, 12)}
    assert ConvolutionLayer(w, **sizes).output_spec.shape == (4, 8, 8)
    assert ConvolutionLayer(w, **sizes, padding="same").output_spec.shape == (4, 10, 12)
    assert ConvolutionLayer(w, **sizes, padding="same", stride=3).output_spec.shape == (4, 4, 4)
    assert ConvolutionLayer(w, **sizes, padding=((1, 0), (2, 3))).output_spec.shape == (4, 9, 13)
    assert ConvolutionLayer(w, **sizes, dilation=(2, 1)).output_spec.shape == (4, 6, 8)
    assert ConvolutionLayer(w, **sizes, stride=(2, 3)).output_spec.shape == (4, 4, 3)
    grouped = ConvolutionLayer(np.zeros((4, 1, 3, 3), np.float32), input=(2, 5, 5), groups=2)
    assert grouped.output_spec.shape == (4, 3, 3)


def test_transposed_output_shape_is_inferred():
    w = np.zeros((3, 4, 3, 3), np.float32)
    sizes = {"input": (3, 5, 6), "transposed": True}
    assert ConvolutionLayer(w, **sizes).output_spec.shape == (4, 7, 8)
    assert ConvolutionLayer(w, **sizes, stride=2, padding=1).output_spec.shape == (4, 9, 11)
    padded = ConvolutionLayer(w, **sizes, stride=2, padding=1, output_padding=(1, 0))
    assert padded.output_spec.shape == (4, 10, 11)
    grouped = openbnns.TransposedConvolutionLayer(
        np.zeros((4, 3, 1, 1), np.float32), input=(4, 2, 2), groups=2
    )
    assert grouped.output_spec.shape == (6, 2, 2)


def test_weights_and_bias_are_the_callers():
    w, b = np.zeros((1, 1, 1, 1), np.float32), np.zeros(1, np.float32)
    layer = ConvolutionLayer(w, input=(1, 2, 2), bias=b)
    assert layer.weights is w
    assert layer.bias is b
    assert ConvolutionLayer(w, input=(1, 2, 2)).bias is None


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_shared_parameters_are_read_at_every_call(transposed, dtype):
    w, b = np.ones((1, 1, 1, 1), dtype), np.zeros(1, dtype)
    layer = ConvolutionLayer(w, input=ArraySpec((1, 1, 1), dtype), bias=b, transposed=transposed)
    x = np.ones((1, 1, 1, 1), dtype)
    assert layer(x).item() == 1.0
    w[...], b[...] = 3.0, 0.5
    assert layer(x).item() == 3.5
    assert layer.apply_backward(x, None, x).input.item() == 3.0


def test_copied_parameters_stay():
    w, b = np.ones((1, 1, 1, 1), np.float32), np.zeros(1, np.float32)
    layer = ConvolutionLayer(w, input=(1, 1, 1), bias=b, copy_parameters=True)
    w[...], b[...] = 3.0, 0.5
    assert layer(np.ones((1, 1, 1, 1), np.float32)).item() == 1.0


@pytest.mark.parametrize(
    ("shape", "options", "sentence"),
    [
        ((1, 1, 3), {}, r"\[ConvolutionLayer\] weights: expected four axes, .* got \(1, 1, 3\)"),
        ((1, 2, 3, 3), {}, "weights: .* got 1 and 2"),
        ((1, 1, 9, 9), {}, "weights: expected a kernel that fits into the padded image; got one"),
        ((1, 1, 3, 3), {"input": (1, 8)}, r"input: expected samples \(channels, height, width\)"),
        ((1, 1, 3, 3), {"groups": 0}, "groups: expected at least 1; got 0"),
        ((2, 1, 3, 3), {"groups": 2}, "groups: expected a divisor"),
        ((1, 1, 3, 3), {"stride": 0}, "stride: expected an int or"),
        ((1, 1, 3, 3), {"padding": "some"}, "padding: expected"),
        ((1, 1, 3, 3), {"output_padding": 1}, "output_padding: expected 0 unless"),
        ((1, 1, 3, 3), {"output": (1, 9, 9)}, "output: expected"),
        ((1, 1, 3, 3), {"output": (2, 6, 6)}, "weights: expected 2 output"),
        ((1, 1, 3, 3), {"transposed": True, "padding": "same"}, "padding: expected numbers"),
        ((1, 1, 3, 3), {"activation": "nothing"}, "activation: expected one of"),
    ],
)
def test_impossible_layers_are_refused_with_a_sentence(shape, options, sentence):
    with pytest.raises(LayerCreationError, match=sentence):
        ConvolutionLayer(np.zeros(shape, np.float32), **{"input": (1, 8, 8)} | options)


def test_wrong_arrays_are_refused_with_a_sentence():
    layer = ConvolutionLayer(np.zeros((2, 1, 3, 3), np.float32), input=(1, 4, 4))
    x, dy = np.zeros((5, 1, 4, 4), np.float32), np.zeros((5, 2, 2, 2), np.float32)
    for call, sentence in [
        (lambda: layer(x[0]), r"x: expected \(N, 1, 4, 4\); got \(1, 4, 4\)"),
        (lambda: layer(x.astype("f8")), "x: expected float32; got float64"),
        (lambda: layer(x, out=dy[:4]), r"out: expected \(5, 2, 2, 2\); got \(4, 2, 2, 2\)"),
        (lambda: layer.apply_backward(x, None, dy[:4]), "grad_output: expected"),
        (
            lambda: layer.apply_backward(x, None, dy, weights_gradient=dy),
            r"weights_gradient: expected \(2, 1, 3, 3\); got \(5, 2, 2, 2\)",
        ),
        (
            lambda: layer.apply_backward(x, None, dy, accumulate={"weights"}),
            "accumulate: expected an array to add to as weights_gradient; got True",
        ),
    ]:
        with pytest.raises(openbnns.ArrayError, match=rf"^\[ConvolutionLayer\] {sentence}"):
            call()
    with pytest.raises(openbnns.LayerApplyError, match=r"^\[ConvolutionLayer\] in"):
        layer.apply_backward(None, None, dy)  # the weights gradient needs x


def test_bias_of_another_size_is_refused():
    with pytest.raises(openbnns.ArrayError, match=r"bias: expected \(2,\); got \(3,\)"):
        ConvolutionLayer(
            np.zeros((2, 1, 3, 3), np.float32), input=(1, 4, 4), bias=np.zeros(3, np.float32)
        )


def test_weights_that_cannot_be_shared_are_refused():
    w = np.zeros((3, 3, 1, 2), np.float32).transpose(3, 2, 0, 1)
    with pytest.raises(openbnns.ArrayError, match=r"weights: .* never copied"):
        ConvolutionLayer(w, input=(1, 4, 4))
    with pytest.warns(openbnns.CopyWarning):
        ConvolutionLayer(w, input=(1, 4, 4), copy_parameters=True)


# ---- layouts and types of the weights ----


def rotated(w):
    return w[:, :, ::-1, ::-1]


def pack32(w):
    """(o, i, kh, kw) as (ceil(o / 32), i, kh, kw, 32) at an address as the layout wants it."""
    o, i, kh, kw = w.shape
    memory = np.zeros((-(-o // 32)) * i * kh * kw * 128 + 128, np.uint8)
    start = -memory.ctypes.data % 128
    packed = memory[start : start - 128 or None].view(np.float32).reshape(-1, i, kh, kw, 32)
    for output in range(o):
        packed[output // 32, ..., output % 32] = w[output]
    return packed


LAYOUTS = {
    "OIHW": lambda w: w.copy(),
    "OIHrWr": lambda w: rotated(w).copy(),
    "IOHrWr": lambda w: rotated(w).transpose(1, 0, 2, 3).copy(),
    "OIHW_Pack32": pack32,
}


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_of_weights(layout, transposed):
    """Every layout holds the same W(kx, ky, in, out), and its gradient comes in the same way."""
    case = ConvolutionCase((2, 5, 7, 6), 37, (3, 2), (2, 1), ((1, 1), (0, 1)))
    case = replace(case, transposed=transposed)
    x, w, dy = case.input(), case.weights(), case.output_gradient()
    logical = w.transpose(1, 0, 2, 3) if transposed else w  # (o, i, kh, kw)
    stored = LAYOUTS[layout](logical)
    shape = stored.shape if layout != "OIHW_Pack32" else logical.shape
    layer = ConvolutionLayer(
        stored,
        input=case.image[1:],
        output=case.output_shape[1:],
        bias=case.bias_values(),
        stride=case.stride,
        padding=case.padding,
        transposed=transposed,
        weights_spec=ArraySpec(shape, layout=layout),
    )
    assert_close(layer(x), case.expected(x, w), terms=case.forward_terms(x, w))
    grads = layer.apply_backward(x, None, dy)
    expected = case.expected_gradients(x, w, dy, dy)
    assert_close(grads.input, expected.dx, terms=expected.dx_terms)
    swap = (1, 0, 2, 3) if transposed else (0, 1, 2, 3)
    dw, terms = (LAYOUTS[layout](g.transpose(swap)) for g in (expected.dw, expected.dw_terms))
    assert grads.weights.shape == stored.shape
    assert_close(grads.weights, dw, terms=terms)
    if layout == "OIHW_Pack32":
        assert not grads.weights[-1, ..., 37 % 32 :].any()  # lanes without a channel


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_integers_with_scales(dtype):
    rng = np.random.default_rng(3)
    low = -20 if dtype == "int8" else 0
    x = rng.integers(low, 100, (2, 3, 6, 7)).astype(dtype)
    w = rng.integers(-90, 90, (4, 3, 3, 3)).astype("int8")
    bias = rng.standard_normal(4).astype(np.float32)
    layer = ConvolutionLayer(
        w,
        input=ArraySpec((3, 6, 7), dtype, scale=0.5),
        bias=bias,
        weights_spec=ArraySpec(w.shape, "int8", scale=0.25),
    )
    y = layer(x)
    assert y.dtype == np.float32
    geometry = oracle.Geometry((6, 7), (4, 5), (3, 3), (1, 1), (1, 1), (0, 0), 1)
    expected = oracle.convolution(0.5 * x.astype(float), 0.25 * w.astype(float), geometry)
    np.testing.assert_allclose(y, expected + bias[:, None, None], rtol=1e-6)


def test_indexed_weights():
    table = np.linspace(-1, 1, 256).astype(np.float32)
    rng = np.random.default_rng(4)
    codes = rng.integers(0, 256, (4, 3, 2, 2)).astype(np.uint8)
    x = rng.standard_normal((2, 3, 5, 5)).astype(np.float32)
    indexed = ConvolutionLayer(
        codes, input=(3, 5, 5), weights_spec=ArraySpec(codes.shape, "uint8", table=table)
    )
    assert_same_bits(indexed(x), ConvolutionLayer(table[codes], input=(3, 5, 5))(x))


def test_half_gradients_round_once():
    case = replace(cases.SAME, dtype="float16", bias=False)
    x, w, dy = case.input(), case.weights(), case.output_gradient()
    wide = replace(case, dtype="float32", winograd=False)
    wide = wide.layer(weights=w.astype(np.float32))
    exact = wide.apply_backward(x.astype(np.float32), None, dy.astype(np.float32))
    ours = replace(case, winograd=False).layer(weights=w).apply_backward(x, None, dy)
    for name in ("input", "weights"):
        found, single = getattr(ours, name), getattr(exact, name).astype(np.float16)
        step = np.spacing(np.abs(single))
        assert (np.abs(found.astype(np.float32) - single.astype(np.float32)) <= step).all()
        assert (found == single).mean() > 0.99


# ---- Winograd ----


@pytest.fixture
def winograd():
    """Restores the setting after a test has changed it."""
    before = openbnns.get_winograd()
    yield openbnns.set_winograd
    openbnns.set_winograd(before)


def test_winograd_setting_holds_for_layers_that_say_nothing(winograd):
    case = ConvolutionCase((1, 32, 20, 20), 32, padding=((1, 1), (1, 1)))
    x, w = case.input(), case.weights()

    def layer(wanted):
        return ConvolutionLayer(w, input=case.image[1:], padding=1, winograd=wanted)

    silent, own = layer(None), {wanted: layer(wanted)(x) for wanted in (True, False)}
    for wanted in (True, False, True):
        winograd(wanted)
        assert openbnns.get_winograd() is wanted
        assert_same_bits(silent(x), own[wanted])
        assert_same_bits(layer(not wanted)(x), own[not wanted])


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("value", [np.inf, np.nan, 1e30, -3e38])
@pytest.mark.parametrize("wanted", [True, False])
def test_wild_values_stay_where_they_belong(wanted, value, transposed):
    """Without Winograd a value reaches the outputs that read it and nothing else. With it a value
    that overflows may reach the tiles around it: no output more than 5 places away."""
    case = ConvolutionCase((1, 24, 33, 30), 40, padding=((1, 1), (1, 1)), winograd=wanted)
    case = replace(case, transposed=transposed)
    layer, x = case.layer(), case.input()
    clean = layer(x)
    spoilt = x.copy()
    spoilt[0, 7, 16, 14] = value
    y = layer(spoilt)
    reach = 5 if wanted else 1
    near = np.zeros(clean.shape[2:], bool)
    near[16 - reach : 17 + reach, 14 - reach : 15 + reach] = True
    np.testing.assert_array_equal(y[:, :, ~near], clean[:, :, ~near])
    touched = y[:, :, 15:18, 13:16]
    assert not np.isfinite(touched).any() if not np.isfinite(value) else (touched > 1e20).any()

    dy = case.output_gradient()
    clean_dx = layer.apply_backward(x, None, dy, weights_gradient=None).input
    dy[0, 3, 16, 14] = value
    dx = layer.apply_backward(x, None, dy, weights_gradient=None).input
    np.testing.assert_array_equal(dx[:, :, ~near], clean_dx[:, :, ~near])


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("kernel", [3, 4])
def test_wild_values_with_steps_of_2_stay_where_they_belong(kernel, transposed):
    """A value reaches the windows that hold it, and nothing else."""
    case = ConvolutionCase((1, 24, 40, 44), 40, (kernel, kernel), (2, 2), ((1, 1), (1, 1)))
    case = replace(case, transposed=transposed)
    layer, x, dy = case.layer(), case.input(), case.output_gradient()

    def results():
        return layer(x), layer.apply_backward(x, None, dy, weights_gradient=None).input

    def near(at, is_wider):
        if is_wider:
            return slice(2 * at - 1, 2 * at + kernel - 1)
        return slice((at + 3 - kernel) // 2, (at + 1) // 2 + 1)

    clean = results()
    x[0, 7, 16, 14] = dy[0, 3, 11, 10] = np.nan
    for before, after, at, is_wider in zip(
        clean, results(), ((16, 14), (11, 10)), (transposed, not transposed), strict=True
    ):
        outside = np.ones(before.shape[2:], bool)
        outside[near(at[0], is_wider), near(at[1], is_wider)] = False
        np.testing.assert_array_equal(after[:, :, outside], before[:, :, outside])
        assert np.isnan(after[:, :, ~outside]).any()


def plain_loops(case, x, w, dy):
    """The three passes as float32 loops add them up, one product after the other."""
    geometry = case.geometry
    padded = geometry.padded(x)
    y = np.zeros(case.output_shape, np.float32)
    grown = np.zeros(padded.shape, np.float32)
    dw = np.zeros(w.shape, np.float32)
    for channel in range(x.shape[1]):
        for (ky, kx), part in geometry.taps():
            seen = padded[(slice(None), channel, None, *part)]
            y += seen * w[None, :, channel, ky, kx, None, None]
    for output in range(w.shape[0]):
        for (ky, kx), part in geometry.taps():
            share = dy[:, output, None] * w[None, output, :, ky, kx, None, None]
            grown[(slice(None), slice(None), *part)] += share
    for n in range(x.shape[0]):
        for p in range(y.shape[2]):
            for q in range(y.shape[3]):
                window = padded[n, :, p : p + 3, q : q + 3]
                dw += dy[n, :, p, q, None, None, None] * window
    return y, geometry.inside(grown), dw


@pytest.mark.parametrize("channels", [16, 96])
@pytest.mark.parametrize("wanted", [True, False])
def test_errors_are_no_more_than_four_times_those_of_plain_loops(wanted, channels):
    case = ConvolutionCase(
        (2, channels, 14, 14), channels, padding=((1, 1), (1, 1)), bias=False, winograd=wanted
    )
    x, w, dy = case.input(), case.weights(), case.output_gradient()
    layer = case.layer()
    y = layer(x)
    grads = layer.apply_backward(x, y, dy)
    exact = case.expected_gradients(x, w, y, dy)
    exact = (case.expected(x, w), exact.dx, exact.dw)
    for ours, plain, true in zip(
        (y, grads.input, grads.weights), plain_loops(case, x, w, dy), exact, strict=True
    ):
        mine, theirs = np.abs(ours - true), np.abs(plain - true)
        assert np.sqrt((mine**2).mean()) <= 4 * np.sqrt((theirs**2).mean())
        assert mine.max() <= 4 * theirs.max()


# ---- properties ----


@st.composite
def convolution_cases(draw):
    """Any geometry at small sizes, plain and transposed."""
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    channels, outputs = (groups * draw(st.integers(1, 6)) for _ in range(2))
    kernel, stride, dilation = (
        tuple(draw(st.integers(1, limit)) for _ in range(2)) for limit in (4, 3, 3)
    )
    padding = tuple(tuple(draw(st.integers(0, 3)) for _ in range(2)) for _ in range(2))
    transposed = draw(st.booleans())
    extents = []
    for k in range(2):
        reach = dilation[k] * (kernel[k] - 1) + 1
        least = max(reach - sum(padding[k]), 1)
        if transposed:
            least = -(-max(sum(padding[k]) + 1 - reach, 0) // stride[k]) + 1
        extents.append(draw(st.integers(least, least + 12)))
    gaps = st.tuples(st.just(0), *[st.integers(0, 2)] * 3)
    types = ["float32", "float16"] + (["bfloat16"] if has_bfloat16() else [])
    return ConvolutionCase(
        (draw(st.integers(1, 3)), channels, *extents),
        outputs,
        kernel,
        stride,
        padding,
        dilation,
        groups,
        transposed,
        dtype=draw(st.sampled_from(types)),
        bias=draw(st.booleans()),
        activation=draw(st.sampled_from(["identity", "rectified_linear", "tanh"])),
        winograd=draw(st.sampled_from([None, True, False])),
        x_gaps=draw(gaps),
        y_gaps=draw(gaps),
        w_gaps=draw(gaps),
        step=draw(st.integers(1, 2)),
    )


@given(convolution_cases())
def test_any_geometry_matches_closed_form(case):
    check_forward(case)
    check_backward(case)


@given(convolution_cases(), st.integers(0, 2), st.integers(0, 2))
def test_other_output_sizes_are_taken(case, rows, columns):
    """Smaller outputs leave input unread; larger ones of a transposed layer hold the bias."""
    sign = 1 if case.transposed else -1
    extents = tuple(
        max(extent + sign * more, 1)
        for extent, more in zip(case.output_shape[2:], (rows, columns), strict=True)
    )
    case = replace(case, extents=extents)
    check_forward(case)
    check_backward(case)


# ---- the C interface ----


def create(source, target, shape, maker=c.BNNSFilterCreateLayerConvolution, w=None, **fields):
    """A filter handle; shapes are those of NumPy."""
    w = np.ones(shape, np.float32) if w is None else w
    parameters = convolution_parameters(
        image(source), weights(shape, data=w), image(target), **fields
    )
    return maker(parameters, None)


@pytest.fixture
def ones():
    """2x2 ones over one image of 3x3."""
    f = create((1, 3, 3), (1, 2, 2), (1, 1, 2, 2))
    assert f, c.last_error()
    yield f
    c.BNNSFilterDestroy(f)


X = np.arange(1, 10, dtype=np.float32)


def test_c_forward_and_backward(ones):
    y, dx = np.zeros(4, np.float32), np.zeros(9, np.float32)
    dw, db = np.zeros(4, np.float32), np.zeros(1, np.float32)
    assert c.BNNSFilterApply(ones, X, y) == 0, c.last_error()
    np.testing.assert_array_equal(y, [12, 16, 24, 28])
    delta = image((1, 2, 2), data=np.ones(4, np.float32))
    status = c.BNNSFilterApplyBackwardBatch(
        ones,
        1,
        X,
        0,
        image((1, 3, 3), data=dx),
        0,
        None,
        0,
        delta,
        0,
        weights((1, 1, 2, 2), data=dw),
        vector(1, data=db),
    )
    assert status == 0, c.last_error()
    np.testing.assert_array_equal(dx, [1, 2, 1, 2, 4, 2, 1, 2, 1])
    np.testing.assert_array_equal(dw, [12, 16, 24, 28])
    assert db[0] == 4


def test_c_zero_strides_dilations_and_groups_mean_one():
    y = np.zeros(4, np.float32)
    f = create((1, 3, 3), (1, 2, 2), (1, 1, 2, 2), stride=(0, 0), groups=0)
    assert c.BNNSFilterApply(f, X, y) == 0, c.last_error()
    c.BNNSFilterDestroy(f)
    np.testing.assert_array_equal(y, [12, 16, 24, 28])


def test_c_asymmetric_padding_counts_only_without_symmetric():
    x, y = np.ones(4, np.float32), np.zeros(9, np.float32)
    both = create((1, 2, 2), (1, 3, 3), (1, 1, 2, 2), padding=(1, 1), pad=[7, 7, 7, 7])
    assert c.BNNSFilterApply(both, x, y) == 0, c.last_error()
    c.BNNSFilterDestroy(both)
    np.testing.assert_array_equal(y, [1, 2, 1, 2, 4, 2, 1, 2, 1])
    left = create((1, 2, 2), (1, 1, 2), (1, 1, 2, 2), pad=[1, 0, 0, 0])
    assert c.BNNSFilterApply(left, x, y) == 0, c.last_error()
    c.BNNSFilterDestroy(left)
    np.testing.assert_array_equal(y[:2], [2, 4])


def test_c_transposed_weights_are_out_in():
    """size[2] counts this layer's inputs, size[3] its outputs."""
    w = np.arange(6, dtype=np.float32).reshape(3, 2, 1, 1)
    f = create((2, 1, 1), (3, 1, 1), w.shape, c.BNNSFilterCreateLayerTransposedConvolution, w=w)
    assert f, c.last_error()
    y = np.zeros(3, np.float32)
    assert c.BNNSFilterApply(f, np.float32([1, 10]), y) == 0, c.last_error()
    c.BNNSFilterDestroy(f)
    np.testing.assert_array_equal(y, [10, 32, 54])


def test_c_empty_batch_succeeds_and_writes_nothing(ones):
    y, _ = sentinel_array((4,), "float32")
    assert c.BNNSFilterApplyBatch(ones, 0, X, 0, y, 0) == 0
    assert is_sentinel(y)


def test_c_batch_strides(ones):
    x, y = np.tile(np.append(X, 99), 2).astype(np.float32), sentinel_array((2, 6), "float32")[0]
    assert c.BNNSFilterApplyBatch(ones, 2, x, 10, y, 6) == 0, c.last_error()
    np.testing.assert_array_equal(y[:, :4], [[12, 16, 24, 28]] * 2)
    assert is_sentinel(y[:, 4:])


def legacy_stack(width, height, channels=1, **fields):
    fields = {"row_stride": width, "image_stride": width * height, **fields}
    return c.BNNSImageStackDescriptor(
        width=width, height=height, channels=channels, data_type=c.BNNSDataTypeFloat32, **fields
    )


def legacy_layer(source, target, w, bias=None, **fields):
    outputs, inputs, height, width = w.shape
    data = {"data_type": c.BNNSDataTypeFloat32}
    parameters = c.BNNSConvolutionLayerParameters(
        **{
            "x_stride": 1,
            "y_stride": 1,
            "k_width": width,
            "k_height": height,
            "in_channels": inputs,
            "out_channels": outputs,
            "weights": c.BNNSLayerData(data=w, **data),
            "bias": c.BNNSLayerData(data=bias, **data),
            **fields,
        }
    )
    return c.BNNSFilterCreateConvolutionLayer(source, target, parameters, None)


def test_legacy_layer():
    case = ConvolutionCase((2, 3, 6, 7), 4, (3, 2), (1, 1), ((1, 1), (1, 1)))
    x, w, bias = case.input(), case.weights(), case.bias_values()
    height, width = case.output_shape[2:]
    f = legacy_layer(
        legacy_stack(7, 6, 3), legacy_stack(width, height, 4), w, bias, x_padding=1, y_padding=1
    )
    assert f, c.last_error()
    y = np.zeros(case.output_shape, np.float32)
    step = x[0].size, y[0].size
    assert c.BNNSFilterApplyBatch(f, 2, x, step[0], y, step[1]) == 0, c.last_error()
    c.BNNSFilterDestroy(f)
    assert_close(y, case.expected(x, w), terms=case.forward_terms(x, w))


@pytest.mark.parametrize(
    ("target", "fields"),
    [
        ((5, 5), {}),
        ((2, 2), {"in_channels": 2}),
        ((2, 2), {"out_channels": 2}),
        ((2, 2), {"k_width": 0}),
        ((2, 2), {"weights": c.BNNSLayerData()}),
    ],
)
def test_legacy_layer_refuses(target, fields):
    w = np.ones((1, 1, 2, 2), np.float32)
    assert legacy_layer(legacy_stack(3, 3), legacy_stack(*target), w, **fields) is None
    assert c.last_error()


# ---- refusals ----


def _field(side, name, value):
    def corrupt(parameters, rng):
        setattr(getattr(parameters, side), name, value(rng))

    return corrupt


def _size(side, index, value):
    def corrupt(parameters, rng):
        descriptor = getattr(parameters, side)
        sizes = list(descriptor.size)
        sizes[index] = value(rng)
        descriptor.size = sizes

    return corrupt


def _parameter(name, value):
    return lambda parameters, rng: setattr(parameters, name, value(rng))


def _many(rng):
    return int(rng.integers(5, 2**40))


def _huge(rng):
    return 2 ** int(rng.integers(61, 64))


CORRUPTIONS = {
    "unknown layout": _field("i_desc", "layout", lambda rng: int(rng.integers(0, 0xFFFF))),
    "layout of another rank": _field("o_desc", "layout", lambda rng: 0x48000),
    "weights like an image": _field("w_desc", "layout", lambda rng: 0x30000),
    "weights in no special order": _field("w_desc", "layout", lambda rng: 0x48001),
    "unknown type": _field("i_desc", "data_type", lambda rng: int(rng.integers(1, 0xFFFF))),
    "unknown type of weights": _field("w_desc", "data_type", lambda rng: 3),
    "no weights": _field("w_desc", "data", lambda rng: None),
    "zero extent": _size("i_desc", 0, lambda rng: 0),
    "zero kernel": _size("w_desc", 1, lambda rng: 0),
    "huge extent": _size("i_desc", 1, _huge),
    "huge kernel": _size("w_desc", 0, _huge),
    "input channels": _size("i_desc", 2, _many),
    "output channels": _size("o_desc", 2, _many),
    "weights inputs": _size("w_desc", 2, _many),
    "weights outputs": _size("w_desc", 3, _many),
    "output too wide": _size("o_desc", 0, _many),
    "output too high": _size("o_desc", 1, _many),
    "kernel too wide": _size("w_desc", 0, lambda rng: 6),
    "decreasing strides": _field("i_desc", "stride", lambda rng: [6, 2, 1]),
    "decreasing strides of weights": _field("w_desc", "stride", lambda rng: [4, 2, 1, 1]),
    "groups that do not divide": _parameter("groups", _many),
    "huge steps": _parameter("x_stride", _huge),
    "huge dilation": _parameter("y_dilation_stride", _huge),
    "unknown activation": lambda p, rng: setattr(
        p, "activation", c.BNNSActivation(function=int(rng.integers(36, 2**32)))
    ),
    "bias of another size": lambda p, rng: setattr(
        p, "bias", vector(int(rng.integers(4, 9)), data=np.zeros(9, np.float32))
    ),
}


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_corrupted_parameters_are_refused(kind):
    rng = np.random.default_rng(len(kind))
    w = np.ones((3, 2, 2, 2), np.float32)
    for _ in range(30):
        parameters = convolution_parameters(
            image((2, 5, 5)), weights(w.shape, data=w), image((3, 4, 4))
        )
        CORRUPTIONS[kind](parameters, rng)
        c.obn_clear_error()
        f = c.BNNSFilterCreateLayerConvolution(parameters, None)
        c.BNNSFilterDestroy(f)
        assert f is None
        assert c.last_error()


@pytest.mark.parametrize(
    "maker",
    [c.BNNSFilterCreateLayerConvolution, c.BNNSFilterCreateLayerTransposedConvolution],
    ids=["plain", "transposed"],
)
def test_random_parameter_blocks_never_crash(maker):
    rng = np.random.default_rng(12)
    size = c.ctypes.sizeof(c.BNNSLayerParametersConvolution)
    for _ in range(1000):
        parameters = c.BNNSLayerParametersConvolution.from_buffer_copy(rng.bytes(size))
        parameters.bias.data = parameters.w_desc.data = None
        c.obn_clear_error()
        assert maker(parameters, None) is None
        assert c.last_error()
    assert maker(None, None) is None


def test_random_geometries_never_crash():
    """Steps and paddings of every magnitude behind legal descriptors: created or refused."""
    rng = np.random.default_rng(13)
    x, made = np.ones((2, 5, 5), np.float32), 0
    w = np.ones((2, 2, 2, 2), np.float32)
    names = ("x_stride", "y_stride", "x_dilation_stride", "y_dilation_stride", "x_padding")
    for _ in range(1000):
        bits = rng.choice([1, 1, 1, 2, 30, 63], len(names))
        fields = {n: int(rng.integers(0, 2 ** int(b))) for n, b in zip(names, bits, strict=True)}
        parameters = c.BNNSLayerParametersConvolution(
            i_desc=image((2, 5, 5)),
            w_desc=weights(w.shape, data=w),
            o_desc=image((2, 2, 2)),
            **fields,
        )
        c.obn_clear_error()
        f = c.BNNSFilterCreateLayerConvolution(parameters, None)
        if f is None:
            assert c.last_error()
            continue
        made += 1
        y = np.full((2, 2, 2), np.nan, np.float32)
        assert c.BNNSFilterApply(f, x, y) == 0
        assert np.isfinite(y).all()
        c.BNNSFilterDestroy(f)
    assert made > 10


def test_bad_pointers_are_refused(ones):
    y, _ = sentinel_array((4,), "float32")
    assert_refused(c.BNNSFilterApply(ones, None, y), y)
    assert_refused(c.BNNSFilterApply(ones, X, None))
    assert_refused(c.BNNSFilterApply(ones, misaligned((9,), np.float32), y), y)
    assert_refused(c.BNNSFilterApply(ones, X, misaligned((4,), np.float32)))
    memory = np.arange(12, dtype=np.float32)
    assert_refused(c.BNNSFilterApply(ones, memory[:9], memory[6:10]))
    np.testing.assert_array_equal(memory, np.arange(12))
    for batch, stride in ((2**63, 0), (2**60, 0), (2, 2**63), (2, 2**62), (2, 3)):
        assert_refused(c.BNNSFilterApplyBatch(ones, batch, X, stride, y, stride), y)


def gradients():
    """(dx, dw, db) as sentinel arrays, with the descriptors that go with them."""
    arrays = [sentinel_array((size,), "float32")[0] for size in (9, 4, 1)]
    dx, dw, db = arrays
    return arrays, (image((1, 3, 3), data=dx), weights((1, 1, 2, 2), data=dw), vector(1, data=db))


def backward(f, x, y, dy, dx, dw, db):
    return c.BNNSFilterApplyBackwardBatch(f, 1, x, 0, dx, 0, y, 0, dy, 0, dw, db)


def test_backward_refuses_what_does_not_fit(ones):
    delta = image((1, 2, 2), data=np.ones(4, np.float32))
    arrays, (dx, dw, db) = gradients()
    sixteen = sentinel_array((16,), "float32")[0]
    assert_refused(backward(ones, None, None, delta, dx, dw, db), *arrays)  # dw needs x
    assert_refused(backward(ones, X, None, None, dx, dw, db), *arrays)
    for bad in (image((1, 2, 3), data=sixteen), image((1, 2, 2)), vector(4, data=sixteen)):
        assert_refused(backward(ones, X, None, bad, dx, dw, db), *arrays)
    for bad in (image((1, 3, 2), data=sixteen), image((1, 3, 3), "float16", data=sixteen)):
        assert_refused(backward(ones, X, None, delta, bad, dw, db), sixteen, *arrays)
    for bad in (
        weights((1, 1, 2, 3), data=sixteen),
        weights((1, 1, 2, 2), data=sixteen, layout="OIHrWr"),
        vector(4, data=sixteen),
    ):
        assert_refused(backward(ones, X, None, delta, dx, bad, db), sixteen, *arrays)
    bad = vector(2, data=sixteen)
    assert_refused(backward(ones, X, None, delta, dx, dw, bad), sixteen, *arrays)
    overlapping = image((1, 3, 3), data=sixteen[:9]), weights((1, 1, 2, 2), data=sixteen[8:12])
    assert_refused(backward(ones, X, None, delta, *overlapping, db), sixteen, *arrays)


def test_backward_of_an_activation_needs_its_output():
    f = create((1, 3, 3), (1, 2, 2), (1, 1, 2, 2), activation=c.BNNSActivation(function=3))
    delta = image((1, 2, 2), data=np.ones(4, np.float32))
    arrays, targets = gradients()
    assert_refused(backward(f, X, None, delta, *targets), *arrays)
    c.BNNSFilterDestroy(f)


@pytest.mark.parametrize("function", [6, 12, 30, 31, 33, 34])
def test_backward_of_an_activation_that_needs_its_input_is_refused(function):
    activation = c.BNNSActivation(function=function, alpha=0.8, beta=0.04)
    f = create((1, 3, 3), (1, 2, 2), (1, 1, 2, 2), activation=activation)
    y = np.zeros(4, np.float32)
    assert c.BNNSFilterApply(f, X, y) == 0, c.last_error()
    delta = image((1, 2, 2), data=np.ones(4, np.float32))
    arrays, targets = gradients()
    assert_refused(backward(f, X, y, delta, *targets), *arrays)
    c.BNNSFilterDestroy(f)


def test_backward_with_nothing_wanted_succeeds(ones):
    delta = image((1, 2, 2), data=np.ones(4, np.float32))
    assert backward(ones, None, None, delta, None, None, None) == 0, c.last_error()


def test_winograd_setting_of_a_filter_refuses_others(ones):
    assert c.obn_filter_set_winograd(ones, 1) == 0
    assert c.obn_filter_set_winograd(ones, -1) == 0
    assert c.obn_filter_set_winograd(ones, 2) == -1
    assert c.obn_filter_set_winograd(None, 1) == -1
    assert c.obn_set_winograd(7) == -1
    sums = openbnns.BinaryArithmeticLayer("add", input_a=(4,), input_b=(4,))
    assert c.obn_filter_set_winograd(sums.handle, 1) == -1
    assert c.last_error().endswith("got an arithmetic filter")
    pool = openbnns.PoolingLayer("max", input=(1, 4, 4), kernel_size=2)
    assert c.obn_filter_set_winograd(pool.handle, 1) == -1
    assert c.last_error().endswith("got a pooling filter")


def test_dtype_of_gradients_is_that_of_the_arrays():
    case = replace(cases.ODD, dtype="float16")
    x, dy = case.input(), case.output_gradient()
    layer = case.layer()
    grads = layer.apply_backward(x, layer(x), dy)
    assert {array.dtype for array in grads} == {dtype_of("float16")}
