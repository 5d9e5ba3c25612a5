"""Conversions between types, which are the identity, and the functions of integers: through the C
interface."""

import numpy as np
import pytest
from cases import assert_refused, dtype_of, has_bfloat16, sentinel_array
from cases.descriptors import TYPES, activation_layer, image, type_code, vector
from openbnns import c
from oracles import activation as oracle
from oracles.tolerance import assert_same_bits

PACKED = {"int1": 1, "int2": 2, "int4": 4}
PACKED |= {"uint1": 1, "uint2": 2, "uint3": 3, "uint4": 4, "uint6": 6}
INTEGERS = [name for name in TYPES if name.startswith(("int", "uint"))]
READABLE = [name for name in TYPES if name != "bfloat16" or has_bfloat16()]
WRITABLE = [name for name in READABLE if not name.startswith("indexed")]
COUNT = 40  # a whole number of bytes for every packed width


# ---- the identity ----


def limits(name):
    bits = int(name.lstrip("uint"))
    return (0, 2**bits - 1) if name.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def stored(name, rng):
    """(memory, real values in float64, further descriptor fields) of COUNT values of a type."""
    if name.startswith("indexed"):
        bits = int(name.removeprefix("indexed"))
        table = rng.standard_normal(2**bits).astype(np.float32)
        codes = rng.integers(0, 2**bits, COUNT)
        fields = {"table_data": table, "table_data_type": type_code("float32")}
        return oracle.pack(codes, bits), table[codes].astype(np.float64), fields
    if name == "bool":
        values = rng.integers(0, 2, COUNT)
        return values.astype(np.uint8), values.astype(np.float64), {}
    if name in INTEGERS:
        low, high = limits(name)
        codes = rng.integers(max(low, -3000), min(high, 3000) + 1, COUNT)
        memory = oracle.pack(codes, PACKED[name]) if name in PACKED else codes.astype(name)
        fields = {"data_scale": 0.25, "data_bias": 1.5}
        return memory, oracle.real_of_integer(codes, 0.25, 1.5), fields
    values = (100.0 * rng.standard_normal(COUNT)).astype(dtype_of(name))
    return values, values.astype(np.float64), {}


def check_converted(name, memory, real):
    """The memory holds the real values, converted to a type with scale 0.5 and bias 2."""
    if name == "bool":
        np.testing.assert_array_equal(memory, real != 0)
    elif name in INTEGERS:
        expected = oracle.integer_of_real(real, 0.5, 2.0, *limits(name))
        bits = PACKED.get(name)
        signed = name.startswith("i")
        codes = oracle.unpack(memory, bits, COUNT, signed) if bits else memory
        np.testing.assert_array_equal(codes.astype(np.float64), expected)
    else:
        assert_same_bits(memory, real.astype(np.float32).astype(dtype_of(name)))


@pytest.mark.parametrize("target", WRITABLE)
@pytest.mark.parametrize("source", READABLE)
def test_identity_converts_between_types(source, target):
    rng = np.random.default_rng([len(source), len(target)])
    x, real, fields = stored(source, rng)
    size = COUNT * PACKED[target] // 8 if target in PACKED else COUNT
    kind = np.uint8 if target in PACKED or target == "bool" else dtype_of(target)
    y = np.zeros(size, kind)
    converted = {"data_scale": 0.5, "data_bias": 2.0} if target in INTEGERS else {}
    f = activation_layer(0, vector(COUNT, source, **fields), vector(COUNT, target, **converted))
    assert f, c.last_error()
    assert c.BNNSFilterApply(f, x, y) == 0, c.last_error()
    c.BNNSFilterDestroy(f)
    check_converted(target, y, real)


def convert(x, target, **fields):
    y = np.zeros(len(x), target)
    f = activation_layer(0, vector(len(x), x.dtype.name), vector(len(x), target, **fields))
    assert f, c.last_error()
    assert c.BNNSFilterApply(f, x, y) == 0, c.last_error()
    c.BNNSFilterDestroy(f)
    return y


def test_conversion_rounds_ties_to_even():
    x = np.float32([1.5, -2.5, 0.5, -0.5, 2.5, 3.5])
    np.testing.assert_array_equal(convert(x, "int32"), [2, -2, 0, 0, 2, 4])


@pytest.mark.parametrize("target", [n for n in INTEGERS if n not in PACKED])
def test_conversion_saturates(target):
    x = np.float32([1e30, -1e30, np.inf, -np.inf, np.nan])
    low, high = limits(target)
    np.testing.assert_array_equal(convert(x, target), [high, low, high, low, 0])


def test_conversion_to_half_overflows_to_infinity():
    x = np.float32([65504.0, 65519.0, 65520.0, -1e6, 1e-8, 6e-8])
    np.testing.assert_array_equal(
        convert(x, "float16").astype(np.float64), [65504.0, 65504.0, np.inf, -np.inf, 0.0, 2.0**-24]
    )


def test_scale_of_zero_is_read_as_one():
    np.testing.assert_array_equal(
        convert(np.float32([3.0, -4.0]), "int8", data_scale=0.0, data_bias=1.0), [2, -5]
    )


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_every_half_value_survives_a_round_trip(name):
    if name == "bfloat16" and not has_bfloat16():
        pytest.skip("needs ml_dtypes")
    x = np.arange(65536, dtype=np.uint16).view(dtype_of(name))
    wide = np.zeros(65536, np.float32)
    back = np.zeros_like(x)
    f = activation_layer(0, vector(65536, name), vector(65536))
    assert c.BNNSFilterApply(f, x, wide) == 0
    c.BNNSFilterDestroy(f)
    f = activation_layer(0, vector(65536), vector(65536, name))
    assert c.BNNSFilterApply(f, wide, back) == 0
    c.BNNSFilterDestroy(f)
    numbers = ~np.isnan(x.astype(np.float32))
    assert_same_bits(wide[numbers], x.astype(np.float32)[numbers])
    assert_same_bits(back.view(np.uint16)[numbers], x.view(np.uint16)[numbers])
    assert np.isnan(wide[~numbers]).all()
    assert np.isnan(back[~numbers].astype(np.float32)).all()


def test_legacy_vector_converts_integers():
    x, y = np.int8([-4, 0, 5]), np.zeros(3, np.float32)
    source = c.BNNSVectorDescriptor(
        size=3, data_type=c.BNNSDataTypeInt8, data_scale=0.5, data_bias=1.0
    )
    target = c.BNNSVectorDescriptor(size=3, data_type=c.BNNSDataTypeFloat32)
    f = c.BNNSFilterCreateVectorActivationLayer(source, target, c.BNNSActivation(function=0), None)
    assert f, c.last_error()
    assert c.BNNSFilterApply(f, x, y) == 0
    c.BNNSFilterDestroy(f)
    np.testing.assert_array_equal(y, [-1.0, 1.0, 3.5])


# ---- integer functions ----


@pytest.mark.parametrize("target", ["int8", "uint8", "int16", "int32"])
@pytest.mark.parametrize("source", ["int8", "uint8", "int16", "int32"])
def test_integer_linear_saturate(source, target):
    rng = np.random.default_rng(3)
    info = np.iinfo(source)
    x = rng.integers(info.min, info.max, 100, dtype=source, endpoint=True)
    y = np.zeros(100, target)
    parameters = {"iscale": 77, "ioffset": -1000, "ishift": 3}
    f = activation_layer(9, vector(100, source), vector(100, target), **parameters)
    assert f, c.last_error()
    assert c.BNNSFilterApply(f, x, y) == 0, c.last_error()
    c.BNNSFilterDestroy(f)
    np.testing.assert_array_equal(y, oracle.integer_linear_saturate(x, 77, -1000, 3, target))


def test_integer_linear_saturate_per_channel():
    x = np.arange(-30, 30, dtype=np.int16).reshape(3, 4, 5)
    y = np.zeros_like(x, dtype=np.int8)
    scale, offset, shift = np.int32([1, -7, 100]), np.int32([0, 5, -50]), np.int32([0, 1, 4])
    f = activation_layer(
        10,
        image((3, 4, 5), "int16"),
        image((3, 4, 5), "int8"),
        iscale_per_channel=scale,
        ioffset_per_channel=offset,
        ishift_per_channel=shift,
    )
    assert f, c.last_error()
    assert c.BNNSFilterApply(f, x, y) == 0, c.last_error()
    c.BNNSFilterDestroy(f)
    per = [v.astype(np.int64)[:, None, None] for v in (scale, offset, shift)]
    np.testing.assert_array_equal(y, oracle.integer_linear_saturate(x, *per, np.int8))


@pytest.mark.parametrize("number", [9, 10])
def test_integer_functions_have_no_gradient(number):
    triples = (
        {}
        if number == 9
        else dict.fromkeys(
            ("iscale_per_channel", "ioffset_per_channel", "ishift_per_channel"),
            np.ones(1, np.int32),
        )
    )
    f = activation_layer(number, image((1, 2, 2), "int8"), image((1, 2, 2), "int8"), **triples)
    assert f, c.last_error()
    x = np.ones((1, 2, 2), np.int8)
    dx, _ = sentinel_array((1, 2, 2), "int8")
    delta, target = image((1, 2, 2), "int8", data=x), image((1, 2, 2), "int8", data=dx)
    status = c.BNNSFilterApplyBackwardBatch(f, 1, x, 0, target, 0, x, 0, delta, 0, None, None)
    assert_refused(status, dx)
    c.BNNSFilterDestroy(f)
