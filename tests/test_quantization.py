"""Quantization: right values for all types, axes and factors, right refusals."""

import numpy as np
import openbnns
import pytest
from cases import gaps_untouched, is_sentinel, sentinel_array
from cases import quantization as cases
from cases.descriptors import image, matrix, misaligned, vector
from cases.marks import marked
from cases.quantization import INTEGERS, REALS, QuantizationCase
from hypothesis import given
from hypothesis import strategies as st
from openbnns import ArrayError, DTypeError, LayerApplyError, LayerCreationError, c
from oracles.tolerance import assert_close

CASES = [marked(case) for case in cases.CASES]


def check(case):
    """Integers exactly, floats rounded once; gaps and input left alone."""
    x, (y, owner) = case.input(), case.empty_output()
    before = x.copy()
    assert case.run(x, out=y) is y
    made = case.run(x)
    assert made.dtype == y.dtype
    np.testing.assert_array_equal(made, y)
    expected = case.expected(x)
    if "float" in case.stored:
        assert_close(y, expected, case.stored)
    else:
        np.testing.assert_array_equal(y, expected)
    assert gaps_untouched(y, owner)
    np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize("case", CASES)
def test_matches_closed_form(case):
    check(case)


# ---- numbers from the specification ----


def test_vector_per_axis():
    """Row-major (4, 2) of the C interface is (2, 4) here, its axis 0 the last one."""
    x, scale = np.arange(1, 9, dtype=np.float32).reshape(2, 4), np.int16([1, 10, 100, 1000])
    y = openbnns.quantize(x, scale=scale, axis=1, dtype="int16")
    np.testing.assert_array_equal(y, [[1, 20, 300, 4000], [5, 60, 700, 8000]])
    x = np.arange(1000, 9000, 1000, dtype=np.int16).reshape(2, 4)
    y = openbnns.dequantize(x, scale=scale, axis=-1)
    np.testing.assert_array_equal(y, [[1000, 200, 30, 4], [5000, 600, 70, 8]])


def test_vector_there_and_back():
    y = openbnns.quantize(np.float32([0, 2, 4, 6]), scale=0.5, bias=1)
    np.testing.assert_array_equal(y, [1, 2, 3, 4])
    assert y.dtype == np.int8
    back = openbnns.dequantize(y, scale=0.5, bias=1)
    np.testing.assert_array_equal(back, [0, 2, 4, 6])
    assert back.dtype == np.float32


# ---- values ----


@pytest.mark.parametrize("dtype", INTEGERS)
def test_saturation_and_ties(dtype):
    limits = np.iinfo(dtype)
    x = np.float32([-np.inf, -1e20, 0.5, 1.5, 2.5, np.nan, 1e20, np.inf])
    expected = [limits.min, limits.min, 0, 2, 2, 0, limits.max, limits.max]
    np.testing.assert_array_equal(openbnns.quantize(x, dtype=dtype), np.array(expected, dtype))


def test_large_integers_are_exact():
    x = np.int32([2**31 - 1, -(2**31), 2**24 + 1])
    np.testing.assert_array_equal(openbnns.quantize(x, dtype="int32"), x)
    np.testing.assert_array_equal(openbnns.dequantize(x, dtype="int32"), x)


def test_dequantize_to_integers_rounds():
    y = openbnns.dequantize(np.int8([1, 3, 5, -1]), scale=2, dtype="int32")
    np.testing.assert_array_equal(y, [0, 2, 2, 0])


def test_scale_zero_divides_as_floats_do():
    y = openbnns.dequantize(np.int8([1, 0, -1]), scale=0.0)
    np.testing.assert_array_equal(y, [np.inf, np.nan, -np.inf])


@pytest.mark.parametrize("scale", [0.5, np.float32(0.5), np.float32([0.5]), np.array(0.5, "f4")])
def test_scale_as_a_number_or_an_array(scale):
    np.testing.assert_array_equal(openbnns.quantize(np.float32([4, 6]), scale=scale), [2, 3])


def test_type_of_the_result():
    x = np.float32([1, 2])
    assert openbnns.quantize(x).dtype == np.int8
    assert openbnns.quantize(x, dtype=np.uint16).dtype == np.uint16
    out = np.zeros(2, np.int16)
    assert openbnns.quantize(x, out=out) is out
    np.testing.assert_array_equal(out, [1, 2])
    half = np.zeros(2, np.float16)
    assert openbnns.dequantize(out, out=half) is half
    np.testing.assert_array_equal(half, [1, 2])


def test_in_place_of_the_same_width():
    memory = np.float32([1.4, -2.6, 3e9])
    y = openbnns.quantize(memory, out=memory.view(np.int32))
    np.testing.assert_array_equal(y, [1, -3, 2**31 - 1])


def test_arrays_without_axes_and_without_values():
    assert openbnns.quantize(np.array(3.4, np.float32)) == 3
    with pytest.raises(LayerApplyError, match="input: expected"):
        openbnns.quantize(np.zeros((0, 3), np.float32))


def test_transposed_arrays_are_copied_with_a_warning():
    x = np.arange(6, dtype=np.float32).reshape(2, 3).T
    with pytest.warns(openbnns.CopyWarning):
        y = openbnns.quantize(x, scale=np.float32([1, 2, 3]), axis=0)
    np.testing.assert_array_equal(y, x * [[1], [2], [3]])


# ---- refusals ----


@pytest.mark.parametrize(
    ("call", "error", "sentence"),
    [
        (
            lambda x: openbnns.quantize(x, axis=2),
            LayerCreationError,
            r"\[quantize\] axis: expected None or an axis of \(2, 3\); got 2",
        ),
        (
            lambda x: openbnns.quantize(x, scale=np.zeros(2, "f4"), axis=1),
            ArrayError,
            r"\[quantize\] scale: expected \(3,\); got \(2,\)",
        ),
        (
            lambda x: openbnns.quantize(x, bias=np.zeros(3, "f4")),
            ArrayError,
            r"\[quantize\] bias: expected \(1,\); got \(3,\)",
        ),
        (
            lambda x: openbnns.quantize(x, scale=2.0, axis=1),
            DTypeError,
            r"\[quantize\] scale: expected an array .* got float",
        ),
        (
            lambda x: openbnns.quantize(x, scale=[1.0]),
            DTypeError,
            r"\[quantize\] scale: expected an array",
        ),
        (
            lambda x: openbnns.quantize(x, scale=np.zeros(1)),
            DTypeError,
            r"\[quantize\] scale: expected float16, .* got float64",
        ),
        (
            lambda x: openbnns.quantize(x, out=np.zeros((3, 2), "i1")),
            ArrayError,
            r"\[quantize\] out: expected \(2, 3\); got \(3, 2\)",
        ),
        (
            lambda x: openbnns.quantize(x, dtype="int16", out=np.zeros((2, 3), "i1")),
            DTypeError,
            r"\[quantize\] out: expected int16; got int8",
        ),
        (
            lambda x: openbnns.quantize(x, dtype="float32"),
            LayerApplyError,
            r"\[quantize\] output: expected an integer type of 8, 16 or 32 bits; got float32",
        ),
        (
            lambda x: openbnns.dequantize(x),
            LayerApplyError,
            r"\[dequantize\] input: expected an integer type of 8, 16 or 32 bits; got float32",
        ),
        (
            lambda x: openbnns.dequantize(x.astype("i1"), dtype="int8"),
            LayerApplyError,
            r"\[dequantize\] output: expected int32, float16 or float32; got int8",
        ),
        (
            lambda x: openbnns.quantize(x.astype("i8")),
            LayerApplyError,
            r"\[quantize\] input: expected int32, float16 or float32; got int64",
        ),
    ],
)
def test_refusals_have_a_sentence(call, error, sentence):
    with pytest.raises(error, match=rf"^{sentence}"):
        call(np.zeros((2, 3), np.float32))


def test_failing_calls_leave_outputs_alone():
    y, _ = sentinel_array((2, 3), "int8")
    x = np.zeros((2, 3), np.float32)
    for bad in ({"axis": 5}, {"scale": np.zeros(4, "f4")}, {"dtype": "int16"}):
        with pytest.raises(openbnns.BNNSError):
            openbnns.quantize(x, out=y, **bad)
    with pytest.raises(openbnns.BNNSError):
        openbnns.dequantize(x, out=y)
    assert is_sentinel(y)


# ---- any shape ----


@st.composite
def quantization_cases(draw):
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=5)))
    real, whole = draw(st.sampled_from(REALS)), draw(st.sampled_from(INTEGERS))
    back = draw(st.booleans())
    factor = st.sampled_from([None, "float32", "float16", "int8"])
    return QuantizationCase(
        "dequantize" if back else "quantize",
        shape,
        *((whole, real) if back else (real, whole)),
        axis=draw(st.none() | st.integers(-len(shape), len(shape) - 1)),
        scale=draw(factor),
        bias=draw(factor),
        gap=draw(st.integers(0, 2)),
        step=draw(st.integers(1, 2)),
    )


@given(quantization_cases())
def test_any_array_matches_closed_form(case):
    check(case)


# ---- the C interface ----


def quantizer(**fields):
    """A parameter block of three floats to three int8, with their arrays."""
    x, (y, _) = np.float32([1, 2, 3]), sentinel_array((3,), "int8")
    good = {"i_desc": vector(3, data=x), "o_desc": vector(3, "int8", data=y)}
    return c.BNNSLayerParametersQuantization(**good | fields), y


def test_c_per_sample_of_a_batch():
    x, y = np.float32([[1, 2, 3], [4, 5, 6]]), np.zeros((2, 3), np.int8)
    parameters, _ = quantizer(
        i_desc=vector(3, data=x),
        o_desc=vector(3, "int8", data=y),
        axis_mask=2,
        scale=vector(2, data=np.float32([1, 10])),
    )
    assert c.BNNSDirectApplyQuantizer(parameters, None, 2, 3, 3) == 0, c.last_error()
    np.testing.assert_array_equal(y, [[1, 2, 3], [40, 50, 60]])


CORRUPTIONS = {
    "function": {"function": 2},
    "two axes": {"i_desc": matrix((1, 3), data=np.zeros(3, np.float32)), "axis_mask": 3},
    "axis behind the batch": {"axis_mask": 4},
    "no input": {"i_desc": vector(3)},
    "no output": {"o_desc": vector(3, "int8")},
    "another output": {"o_desc": vector(4, "int8", data=np.zeros(4, np.int8))},
    "another layout": {"i_desc": image((3, 1, 1), data=np.zeros(3, np.float32))},
    "floats to floats": {"o_desc": vector(3, data=np.zeros(3, np.float32))},
    "short scale": {"axis_mask": 1, "scale": vector(2, data=np.zeros(2, np.float32))},
    "scale without axis": {"scale": vector(3, data=np.zeros(3, np.float32))},
    "matrix of scales": {"scale": matrix((1, 1), data=np.zeros(1, np.float32))},
    "misaligned": {"i_desc": vector(3, data=misaligned((3,), np.float32))},
}


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_c_corrupted_parameters_are_refused(kind):
    parameters, y = quantizer(**CORRUPTIONS[kind])
    c.obn_clear_error()
    assert c.BNNSDirectApplyQuantizer(parameters, None, 1, 0, 0) != 0
    assert c.last_error()
    assert is_sentinel(y)


def test_c_random_parameter_blocks_never_crash():
    rng = np.random.default_rng(12)
    size = c.ctypes.sizeof(c.BNNSLayerParametersQuantization)
    for _ in range(1000):
        block = c.BNNSLayerParametersQuantization.from_buffer_copy(rng.bytes(size))
        for name in ("i_desc", "o_desc", "scale", "bias"):
            getattr(block, name).data = None
        c.obn_clear_error()
        assert c.BNNSDirectApplyQuantizer(block, None, 1, 0, 0) != 0
        assert c.last_error()
    assert c.BNNSDirectApplyQuantizer(None, None, 1, 0, 0) != 0
