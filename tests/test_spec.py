"""Specs, and what layers are made from: shapes, values, examples."""

import gc
import pickle

import numpy as np
import openbnns
import pytest
from cases.samples import images, pool
from openbnns import (
    Activation,
    ActivationLayer,
    ArrayError,
    ArraySpec,
    DTypeError,
    LayerApplyError,
    LayerCreationError,
    Pooling,
    PoolingLayer,
)

# ---- specs ----


def test_spec_is_packed_by_default():
    spec = ArraySpec((3, 4, 5), "float16")
    assert spec.strides == (40, 10, 2)
    assert spec.dtype == np.float16
    assert spec.data_type == "float16"


def test_spec_is_a_frozen_value():
    spec = ArraySpec((3, 4), "int8", scale=0.5)
    assert spec == ArraySpec((3, 4), "int8", scale=0.5)
    assert hash(spec) == hash(ArraySpec((3, 4), "int8", scale=0.5))
    assert spec != ArraySpec((3, 4), "int8")
    with pytest.raises(AttributeError):
        spec.shape = (1,)
    with pytest.raises(AttributeError):
        del spec.shape


@pytest.mark.parametrize(
    "spec",
    [
        ArraySpec((3, 4)),
        ArraySpec((2, 3), "float16", (16, 4)),
        ArraySpec((5,), "int8", scale=0.25, offset=3),
        ArraySpec((6,), "int8", bits=4),
        ArraySpec((6,), "uint8", bits=3),
        ArraySpec((4,), "uint8", bits=2, table=np.float32([1, 2, 3, 4])),
        ArraySpec((4,), "bfloat16"),
        ArraySpec((4, 3), "float16", layout="column_major"),
        ArraySpec((4, 3), strides=(4, 32), layout="column_major"),
        ArraySpec((40, 3, 2, 2), "int8", scale=0.5, layout="OIHW_Pack32"),
    ],
    ids=repr,
)
def test_spec_survives_pickling(spec):
    assert pickle.loads(pickle.dumps(spec)) == spec


def test_spec_layouts():
    assert ArraySpec((2, 3), layout="column_major").strides == (4, 8)
    assert ArraySpec((2, 3), layout="column_major") != ArraySpec((2, 3))
    assert ArraySpec((2, 3), layout="column_major").packed.layout == "column_major"
    packed = ArraySpec((40, 3, 2, 2), layout="OIHW_Pack32")
    assert packed._array_shape == (2, 3, 2, 2, 32)
    assert ArraySpec((2, 3), "int8", scale=2).with_layout("column_major").scale == 2


@pytest.mark.parametrize(
    ("shape", "options", "sentence"),
    [
        ((2, 3), {"layout": "OIHW"}, "layout: expected column_major for 2 axes; got 'OIHW'"),
        ((2,), {"layout": "column_major"}, "layout: expected None for 1 axes"),
        ((2, 3), {"layout": "column_major", "strides": (16, 4)}, "strides: expected 2"),
        (
            (2, 3, 1, 1),
            {"layout": "OIHW_Pack32", "strides": (4, 4, 4, 4)},
            "strides: expected None for OIHW_Pack32",
        ),
    ],
)
def test_impossible_layouts_are_refused(shape, options, sentence):
    with pytest.raises(ArrayError, match=sentence):
        ArraySpec(shape, **options)


def test_spec_like_keeps_strides_that_can_be_expressed():
    base = np.zeros((4, 8), np.float32)
    assert ArraySpec.like(base[:, ::2]).strides == (32, 8)
    assert ArraySpec.like(base.T).strides == (16, 4)  # decreasing strides: packed instead
    assert ArraySpec.like(np.broadcast_to(base[:1], (4, 8))).strides == (32, 4)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "sentence"),
    [
        (
            ((2,), "float64"),
            {},
            DTypeError,
            r"\[ArraySpec\] dtype: expected float16, .* got float64",
        ),
        (((2,), ">f4"), {}, DTypeError, "byte order of this machine; got >f4"),
        (((2,), "nonsense"), {}, DTypeError, "expected a data type; got 'nonsense'"),
        (((2, -1),), {}, ArrayError, "shape: expected whole numbers"),
        (((1,) * 9,), {}, ArrayError, "shape: expected at most 8 axes"),
        (((2**40, 2**40),), {}, ArrayError, "shape: expected a size that fits in memory"),
        (
            ((2, 2), "float32", (4, 8)),
            {},
            ArrayError,
            "strides: expected 2 positive multiples of 4",
        ),
        (
            ((2, 2), "float32", (6, 2)),
            {},
            ArrayError,
            "strides: expected 2 positive multiples of 4",
        ),
        (((2, 2), "float32", (4,)), {}, ArrayError, "strides: expected 2 positive multiples of 4"),
        (((4,), "uint8", (1,)), {"bits": 4}, ArrayError, "strides: expected None for uint4"),
        (((4,), "uint8"), {"bits": 5}, ArrayError, "bits: expected 1, 2, 4 or 8"),
        (
            ((4,), "float32"),
            {"bits": 4},
            ArrayError,
            "with dtype int8 or uint8; got 4 with float32",
        ),
        (((4,), "uint8"), {"table": np.zeros(3, "f4")}, ArrayError, r"table: expected \(256,\)"),
        (((4,), "uint8"), {"table": [1, 2]}, DTypeError, "table: expected an array .* got list"),
    ],
)
def test_spec_refuses(arguments, options, error, sentence):
    with pytest.raises(error, match=sentence):
        ArraySpec(*arguments, **options)


def test_dtype_names():
    assert openbnns.dtype(np.int16) == "int16"
    assert openbnns.dtype("bfloat16") == "bfloat16"
    assert openbnns.dtype(np.zeros(2, bool)) == "bool"
    assert openbnns.dtype(ArraySpec((2,), "uint8", bits=4)) == "uint4"
    with pytest.raises(DTypeError, match=r"\[dtype\] value: expected float16"):
        openbnns.dtype(np.complex64)


# ---- making layers ----


@pytest.mark.parametrize("spec", [(1, 4, 4), [1, 4, 4], ArraySpec((1, 4, 4)), images(3)], ids=repr)
def test_input_as_shape_spec_or_example(spec):
    layer = pool(input=spec)
    assert layer.input_spec == ArraySpec((1, 4, 4))
    assert layer.output_spec == ArraySpec((1, 2, 2))
    assert layer(images()).shape == (2, 1, 2, 2)


def test_example_gives_its_strides_and_is_not_copied():
    x = np.zeros((2, 1, 4, 8), np.float32)[..., ::2]
    x[...] = images()
    layer = pool(input=x)
    assert layer.input_spec.strides == (128, 32, 8)
    np.testing.assert_array_equal(layer(x), pool()(images()))  # a copy would warn, so fail


def test_example_needs_a_batch_axis():
    with pytest.raises(ArrayError, match=r"\[ActivationLayer\] input: expected an example with"):
        ActivationLayer("relu", input=np.float32(1).reshape(()))


def test_sample_without_axes():
    layer = ActivationLayer("relu", input=())
    np.testing.assert_array_equal(layer(np.float32([-1, 2])), [0, 2])


@pytest.mark.parametrize(
    ("options", "output"),
    [
        ({"kernel_size": 3}, (1, 2, 3)),
        ({"kernel_size": (2, 3)}, (1, 4, 3)),
        ({"kernel_size": 3, "stride": 1}, (1, 6, 8)),
        ({"kernel_size": 3, "stride": (1, 2)}, (1, 6, 4)),
        ({"kernel_size": 3, "stride": 1, "padding": 1}, (1, 8, 10)),
        ({"kernel_size": 3, "stride": 1, "padding": (1, 0)}, (1, 8, 8)),
        ({"kernel_size": 3, "stride": 1, "padding": ((1, 0), (0, 2))}, (1, 7, 10)),
        ({"kernel_size": 3, "stride": 2, "padding": "same"}, (1, 4, 5)),
        ({"kernel_size": 3, "stride": 1, "padding": "valid"}, (1, 6, 8)),
        ({"kernel_size": 3, "stride": 1, "dilation": (2, 1)}, (1, 4, 8)),
    ],
)
def test_pooling_infers_its_output(options, output):
    assert PoolingLayer("max", input=(1, 8, 10), **options).output_spec.shape == output


def test_pooling_output_may_hang_over_the_edge():
    layer = PoolingLayer("max", input=(1, 5, 5), output=(1, 3, 3), kernel_size=2)
    x = np.arange(25, dtype=np.float32).reshape(1, 1, 5, 5)
    assert layer(x)[0, 0, 2, 2] == 24


def test_unmax_infers_the_input_of_max():
    assert PoolingLayer("unmax", input=(3, 4, 5), kernel_size=2).output_spec.shape == (3, 8, 10)


@pytest.mark.parametrize("axes", [0, -3, (0,), (-3,)])
def test_softmax_over_channels(axes):
    layer = ActivationLayer("softmax", input=(3, 2, 2), axes=axes)
    y = layer(np.random.default_rng(0).standard_normal((2, 3, 2, 2), dtype=np.float32))
    np.testing.assert_allclose(y.sum(axis=1), 1, rtol=1e-6)


@pytest.mark.parametrize("shape", [(5,), (4, 5), (3, 4, 5), (2, 3, 4, 5), (2, 2, 3, 4, 5)])
def test_softmax_axis_by_axis_and_over_the_batch(shape):
    x = np.random.default_rng(0).standard_normal((2, *shape), dtype=np.float32)
    np.testing.assert_allclose(
        ActivationLayer("softmax", input=shape)(x).sum(axis=-1), 1, rtol=1e-6
    )
    for axis in range(len(shape)):
        y = ActivationLayer("softmax", input=shape, axes=axis)(x)
        np.testing.assert_allclose(y.sum(axis=axis + 1), 1, rtol=1e-6)
    y = ActivationLayer("softmax", input=shape, axes="batch")(x)
    np.testing.assert_allclose(y.sum(axis=0), 1, rtol=1e-6)
    y = ActivationLayer("softmax", input=shape, axes=("batch", -1))(x)
    np.testing.assert_allclose(y.sum(axis=(0, -1)), 1, rtol=1e-6)


CREATION_REFUSALS = [
    (
        lambda: pool(output=(1, 3, 3)),
        r"\[PoolingLayer\] output: expected .*\(1, 2, 2\) .*got \(1, 3, 3\)",
    ),
    (lambda: pool(input=(4, 4)), r"\[PoolingLayer\] input: expected samples .* got \(4, 4\)"),
    (
        lambda: pool(kernel_size=0),
        r"kernel_size: expected an int or \(height, width\), each at least 1",
    ),
    (lambda: pool(kernel_size=5), "kernel_size: expected a window that fits into the padded image"),
    (lambda: pool(stride=(1, 2, 3)), r"stride: expected an int .* got \(1, 2, 3\)"),
    (lambda: pool(dilation="x"), "dilation: expected an int .* got 'x'"),
    (
        lambda: pool(padding=(1, 2, 3)),
        r"padding: expected an int, \(height, width\), .*got \(1, 2, 3\)",
    ),
    (lambda: pool(padding=-1), r"padding: expected an int, .*got \(-1, -1\)"),
    (lambda: pool(num_threads=-1), "num_threads: expected a whole number, not negative; got -1"),
    (lambda: pool(activation="nonsense"), "activation: expected one of .*; got 'nonsense'"),
    (lambda: pool(activation="clamp"), r"activation: expected parameters, Activation.clamp\(…\)"),
    (
        lambda: PoolingLayer("median", input=(1, 4, 4), kernel_size=2),
        "pooling: expected one of average, l2_norm, max, unmax; got 'median'",
    ),
    (lambda: pool(input=ArraySpec((1, 4, 4), "int32")), r"\[PoolingLayer\] "),
    (lambda: ActivationLayer("relu", input=(0,)), r"\[ActivationLayer\] input: expected extents"),
    (
        lambda: ActivationLayer("relu", input=(4,), output=(5,)),
        r"\[ActivationLayer\] output: expected",
    ),
    (
        lambda: ActivationLayer("relu", input=(4,), axes=0),
        "axes: expected None for rectified_linear",
    ),
    (lambda: ActivationLayer("softmax", input=(4,), axes=1), r"axes: expected axes of .*; got 1"),
    (
        lambda: ActivationLayer("softmax", input=(4,), axes="b"),
        "axes: expected axes of .*; got 'b'",
    ),
    (lambda: ActivationLayer("softmax", input=(4,), axes=()), "axes: expected at least one axis"),
    (lambda: ActivationLayer("softmax", input=(4,), axes=(0, -1)), "axes: expected each axis once"),
    (
        lambda: ActivationLayer(
            Activation.integer_linear_saturate_per_channel([1], [0], [0]),
            input=ArraySpec((2,), "int32"),
            output=ArraySpec((2,), "int8"),
        ),
        r"activation: expected 2 scales, one per channel of \(2,\); got 1",
    ),
    (
        lambda: Activation.integer_linear_saturate_per_channel([1, 2], [0], [0]),
        "expected as many offsets and shifts as scales; got 2, 1, 1",
    ),
    (
        lambda: openbnns.convert(np.zeros(2, "f4"), "float16", scale=2.0),
        "scale: expected 1 and offset 0 from float32 to float16",
    ),
]


@pytest.mark.parametrize(("make", "sentence"), CREATION_REFUSALS, ids=lambda value: str(value)[:40])
def test_creation_refuses(make, sentence):
    with pytest.raises(LayerCreationError, match=sentence):
        make()


def test_errors_have_their_family():
    assert issubclass(LayerCreationError, ValueError)
    assert issubclass(LayerApplyError, RuntimeError)
    assert issubclass(ArrayError, ValueError)
    assert issubclass(DTypeError, (ArrayError, TypeError))
    for error in (LayerCreationError, LayerApplyError, ArrayError):
        assert issubclass(error, openbnns.BNNSError)
        assert error.__module__ == "openbnns"


# ---- activations and poolings as values ----


def test_activation_names_aliases_and_defaults():
    assert Activation.of("relu") is Activation.rectified_linear is Activation.relu
    assert Activation.of("swish") == Activation.silu
    assert Activation.of(None) == Activation.identity
    assert Activation.of("leaky_relu") == Activation.leaky_rectified_linear(0.01)
    assert Activation.of("gelu_tanh").alpha == pytest.approx(0.7978845608)
    assert Activation.of("prelu") == Activation.prelu_per_channel(0.25)
    assert Activation.elu(2.0).alpha == 2.0
    assert repr(Activation.clamp(-1, 2)) == "Activation.clamp(-1, 2)"


@pytest.mark.parametrize(
    "value",
    [
        Activation.tanh,
        Activation.clamp(-1, 2),
        Activation.integer_linear_saturate(3, 1, 2),
        Activation.integer_linear_saturate_per_channel([1, 2], [3, 4], [5, 6]),
        Pooling.max,
        Pooling.average(count_include_padding=False),
    ],
    ids=repr,
)
def test_values_are_frozen_and_survive_pickling(value):
    copy = pickle.loads(pickle.dumps(value))
    assert copy == value
    assert hash(copy) == hash(value)
    with pytest.raises(AttributeError):
        value.name = "other"
    with pytest.raises(AttributeError):
        del value.name


def test_averages_differ_in_what_they_divide_by():
    x = np.ones((1, 1, 2, 2), np.float32)
    make = {"input": (1, 2, 2), "kernel_size": 2, "padding": 1}
    assert PoolingLayer("average", **make)(x)[0, 0, 0, 0] == 0.25
    assert PoolingLayer(Pooling.average(), **make)(x)[0, 0, 0, 0] == 0.25
    exclude = Pooling.average(count_include_padding=False)
    assert PoolingLayer(exclude, **make)(x)[0, 0, 0, 0] == 1.0


def test_integer_activations():
    x = np.int32([[100, -7, 3]])
    spec, narrow = ArraySpec((3,), "int32"), ArraySpec((3,), "int8")
    scaled = ActivationLayer(Activation.integer_linear_saturate(3, 1, 1), input=spec, output=narrow)
    np.testing.assert_array_equal(scaled(x), [[127, -10, 5]])
    each = Activation.integer_linear_saturate_per_channel([1, 2, 3], [0, 1, 2], [0, 0, 1])
    channels = ActivationLayer(each, input=spec, output=narrow)
    gc.collect()  # the layer keeps what it reads
    np.testing.assert_array_equal(channels(x), [[100, -13, 5]])
