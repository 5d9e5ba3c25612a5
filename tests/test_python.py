"""The Python side: words (keywords, specs, messages) and door (arrays in and out, no copies)."""

import array
import contextlib
import gc
import pickle
import subprocess
import sys
import threading
import time
import tracemalloc
import warnings
import weakref

import numpy as np
import openbnns
import pytest
from openbnns import (
    Activation,
    ActivationLayer,
    ArrayError,
    ArraySpec,
    BinaryArithmeticLayer,
    CopyWarning,
    DTypeError,
    LayerApplyError,
    LayerCreationError,
    NormalizationLayer,
    Pooling,
    PoolingLayer,
)

DOCUMENTED = (
    "", ".activation", ".arithmetic", ".blocks", ".checking", ".clip", ".convolution",
    ".fully_connected", ".fused", ".loss", ".matmul", ".network", ".normalization", ".optim",
    ".pooling", ".quantization", ".random", ".training", "._activations", "._config", "._paths",
    "._spec",
)  # fmt: skip
NUMPY = tuple(int(part) for part in np.__version__.split(".")[:2])


def pool(**options):
    return PoolingLayer("max", **{"input": (1, 4, 4), "kernel_size": 2} | options)


def images(n=2, dtype=np.float32):
    return np.arange(n * 16).reshape(n, 1, 4, 4).astype(dtype)


class Producer:
    """An array that speaks nothing but DLPack."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


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


# ---- arrays in ----


def test_numpy_inputs_are_not_copied():
    x = images()
    x.flags.writeable = False
    assert pool()(x).shape == (2, 1, 2, 2)  # read-only is fine, and a copy would warn
    assert pool()(x[::-1][::-1]).shape == (2, 1, 2, 2)


def test_batch_stride_is_taken_from_the_array():
    x = np.zeros((4, 1, 4, 4), np.float32)[::2]
    x[...] = images()
    out = np.full((4, 1, 2, 2), -1, np.float32)
    pool().apply(x, out=out[::2])
    np.testing.assert_array_equal(out[::2], pool()(images()))
    assert (out[1::2] == -1).all()


def test_axes_of_one_have_any_stride():
    x = np.lib.stride_tricks.as_strided(images(1), (1, 1, 4, 4), (0, 0, 16, 4))
    np.testing.assert_array_equal(pool()(x), pool()(images(1)))


def test_batch_of_nothing():
    assert pool()(images()[:0]).shape == (0, 1, 2, 2)
    y, indices = pool().apply(images()[:0], return_indices=True)
    assert y.shape == indices.shape == (0, 1, 2, 2)


def test_buffers_are_accepted():
    layer = ActivationLayer("relu", input=(2,))
    raw = array.array("f", [-1, 2, 3, -4])
    view = memoryview(raw).cast("B").cast("f", (2, 2))
    out = memoryview(bytearray(16)).cast("f", (2, 2))
    assert layer.apply(view, out=out) is out
    assert out.tolist() == [[0, 2], [3, 0]]
    flat = ActivationLayer("relu", input=())
    np.testing.assert_array_equal(flat(raw), [0, 2, 3, 0])


def test_dlpack_inputs_are_shared():
    np.testing.assert_array_equal(pool()(Producer(images())), pool()(images()))
    assert pool(input=Producer(images())).input_spec.shape == (1, 4, 4)


@pytest.mark.skipif(NUMPY < (2, 1), reason="this NumPy shares DLPack memory read-only")
def test_dlpack_outputs_are_shared():
    y = Producer(np.zeros((2, 1, 2, 2), np.float32))
    assert pool().apply(images(), out=y) is y
    np.testing.assert_array_equal(y.array, pool()(images()))


def test_dlpack_refusals_keep_their_reason():
    class Refuses(Producer):
        def __dlpack__(self, **options):
            raise BufferError("the memory is on the moon")

    with pytest.raises(
        ArrayError, match=r"x: expected an array whose memory .* on the moon"
    ) as info:
        pool()(Refuses(images()))
    assert isinstance(info.value.__cause__, BufferError)


@pytest.mark.skipif(NUMPY < (2, 1), reason="this NumPy shares DLPack memory read-only")
def test_torch_tensors():
    torch = pytest.importorskip("torch")
    x = torch.arange(32, dtype=torch.float32).reshape(2, 1, 4, 4)
    out = torch.zeros(2, 1, 2, 2)
    indices = torch.zeros(2, 1, 2, 2, dtype=torch.int64)
    assert pool().apply(x, out=out, indices=indices) is out
    expected, positions = torch.nn.functional.max_pool2d(x, 2, return_indices=True)
    assert torch.equal(out, expected)
    assert torch.equal(indices, positions)
    with pytest.raises(ArrayError, match="detach"):
        pool()(x.clone().requires_grad_())


def test_inexpressible_strides_are_copied_with_a_warning(monkeypatch):
    x = np.asfortranarray(images())
    with pytest.warns(CopyWarning, match=r"\[PoolingLayer\] x: strides .* copied") as caught:
        y = pool()(x)
    assert caught[0].filename == __file__
    np.testing.assert_array_equal(y, pool()(images()))
    monkeypatch.setattr(openbnns.config, "warn_on_copy", False)
    np.testing.assert_array_equal(pool()(x), y)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda x: x[::-1],
        lambda x: x[..., ::-1],
        lambda x: np.broadcast_to(x[:1], x.shape),
        lambda x: (
            np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(np.float32).reshape(x.shape)
        ),
    ],
    ids=["negative batch", "negative", "broadcast", "misaligned"],
)
def test_awkward_inputs_are_copied(spoil):
    x = spoil(images())
    with pytest.warns(CopyWarning):
        y = pool()(x)
    np.testing.assert_array_equal(y, pool()(np.array(x, order="C")))


def test_copies_take_the_strides_of_the_layer():
    layer = pool(input=ArraySpec((1, 4, 4), strides=(200, 40, 8)))
    with pytest.warns(CopyWarning):
        y = layer(images())
    np.testing.assert_array_equal(y, pool()(images()))


# ---- arrays that do not fit: one test per message kind ----


ARRAY_REFUSALS = [
    (
        lambda: pool()(images(dtype=np.float64)),
        DTypeError,
        r"\[PoolingLayer\] x: expected float32; got float64",
    ),
    (lambda: pool()(images(dtype=">f4")), DTypeError, "x: expected float32; got >f4"),
    (lambda: pool()([[1, 2]]), DTypeError, "x: expected an array .*; got list"),
    (lambda: pool()(None), DTypeError, "x: expected an array .*; got NoneType"),
    (lambda: pool()(images()[0]), ArrayError, r"x: expected \(N, 1, 4, 4\); got \(1, 4, 4\)"),
    (
        lambda: pool()(images()[:, :, :3]),
        ArrayError,
        r"x: expected \(N, 1, 4, 4\); got \(2, 1, 3, 4\)",
    ),
    (
        lambda: ActivationLayer("relu", input=())(np.float32(1).reshape(())),
        ArrayError,
        r"x: expected \(N,\); got \(\)",
    ),
    (
        lambda: pool().apply(images(), out=np.zeros((3, 1, 2, 2), "f4")),
        ArrayError,
        r"out: expected \(2, 1, 2, 2\); got \(3, 1, 2, 2\)",
    ),
    (
        lambda: pool().apply(images(), out=np.zeros((2, 1, 2, 2))),
        DTypeError,
        "out: expected float32; got float64",
    ),
    (
        lambda: pool().apply(images(), out=np.zeros((2, 1, 2, 4), "f4")[..., ::2]),
        ArrayError,
        r"out: expected aligned memory and sample strides \(16, 8, 4\); got strides",
    ),
    (
        lambda: pool().apply(images(), out=np.broadcast_to(np.float32(0), (2, 1, 2, 2))),
        ArrayError,
        "out: expected a writable array; got a read-only one",
    ),
    (
        lambda: pool().apply(images(), indices=np.zeros((2, 1, 2, 2), "u2")),
        DTypeError,
        "indices: expected uint32; got uint16",
    ),
    (
        lambda: pool().apply(images(), indices=np.zeros((2, 1, 2, 2), "f8")),
        DTypeError,
        "indices: expected uint64; got float64",
    ),
    (
        lambda: pool().apply_backward(images(), None, np.zeros((3, 1, 2, 2), "f4")),
        ArrayError,
        r"grad_output: expected \(2, 1, 2, 2\); got \(3, 1, 2, 2\)",
    ),
    (
        lambda: pool().apply_backward(
            images(), None, np.zeros((2, 1, 2, 2), "f4"), input_gradient=images()[..., ::-1]
        ),
        ArrayError,
        "input_gradient: expected aligned memory and strides that do not increase",
    ),
    (
        lambda: pool(bias=np.zeros((2,), "f4")),
        ArrayError,
        r"\[PoolingLayer\] bias: expected \(1,\); got \(2,\)",
    ),
    (
        lambda: PoolingLayer("max", input=(2, 4, 4), kernel_size=2, bias=np.zeros(2, "f4")[::-1]),
        ArrayError,
        "bias: .* this argument is never copied",
    ),
    (
        lambda: openbnns.activation([1, 2], "relu"),
        DTypeError,
        r"\[activation\] x: expected an array",
    ),
    (
        lambda: openbnns.activation(np.zeros(3, "f4"), "relu", out=np.zeros(4, "f4")),
        ArrayError,
        r"\[activation\] out: expected \(3,\); got \(4,\)",
    ),
]


@pytest.mark.parametrize(("call", "error", "sentence"), ARRAY_REFUSALS)
def test_arrays_that_do_not_fit_are_refused(call, error, sentence):
    with pytest.raises(error, match=sentence) as info:
        call()
    assert type(info.value) is error


def test_outputs_that_overlap_their_input_are_refused():
    memory = np.zeros(32, np.float32)
    x, out = memory[:16].reshape(1, 1, 4, 4), memory[14:18].reshape(1, 1, 2, 2)
    with pytest.raises(LayerApplyError, match=r"\[PoolingLayer\] .*: expected memory apart from"):
        pool().apply(x, out=out)


def test_element_wise_in_place():
    x = np.float32([[-1, 2, -3]])
    assert ActivationLayer("relu", input=(3,)).apply(x, out=x) is x
    np.testing.assert_array_equal(x, [[0, 2, 0]])


# ---- arrays out ----


def test_out_is_filled_and_returned():
    out = np.full((2, 1, 2, 2), -1, np.float32)
    assert pool().apply(images(), out=out) is out
    np.testing.assert_array_equal(out, pool()(images()))
    x = np.float32([-1, 2])
    assert openbnns.activation(x, "relu", out=x) is x
    half = np.zeros(2, np.float16)
    assert openbnns.convert(x, "float16", out=half) is half
    np.testing.assert_array_equal(half, [0, 2])


def test_results_are_new_arrays_of_the_output_type():
    layer = ActivationLayer("relu", input=(3,), output=ArraySpec((3,), "float16"))
    y = layer(np.float32([[-1, 2, 3]]))
    assert type(y) is np.ndarray
    assert y.dtype == np.float16
    assert y.flags.c_contiguous
    assert y.flags.writeable


def test_results_have_the_strides_of_the_output_spec():
    layer = pool(output=ArraySpec((1, 2, 2), strides=(64, 16, 8)))
    y, indices = layer.apply(images(), return_indices=True)
    assert y.strides[1:] == (64, 16, 8)
    np.testing.assert_array_equal(y, pool()(images()))
    np.testing.assert_array_equal(indices, pool().apply(images(), return_indices=True)[1])


@pytest.mark.parametrize("dtype", ["uint32", "uint64", "int32", "int64"])
def test_indices_go_in_and_out(dtype):
    indices = np.zeros((2, 1, 2, 2), dtype)
    y, same = pool().apply(images(), indices=indices, return_indices=True)
    assert same is indices
    assert indices[1].tolist() == [[[5, 7], [13, 15]]]
    back = PoolingLayer("unmax", input=(1, 2, 2), kernel_size=2).apply(y, indices=indices)
    assert back.sum() == y.sum()
    np.testing.assert_array_equal(np.flatnonzero(back[1]), [5, 7, 13, 15])
    given = pool().apply_backward(None, None, y, indices=indices).input
    np.testing.assert_array_equal(given, pool().apply_backward(images(), None, y).input)


def test_indices_where_there_are_none():
    layer = PoolingLayer("average", input=(1, 4, 4), kernel_size=2)
    indices = np.zeros((2, 1, 2, 2), np.uint32)
    with pytest.raises(LayerApplyError, match="return_indices: expected max pooling"):
        layer.apply(images(), return_indices=True)
    with pytest.raises(LayerApplyError, match="indices: expected max or unmax pooling"):
        layer.apply(images(), indices=indices)
    with pytest.raises(LayerApplyError, match="indices: expected max or unmax pooling"):
        layer.apply_backward(None, None, np.ones((2, 1, 2, 2), "f4"), indices=indices)
    unmax = PoolingLayer("unmax", input=(1, 2, 2), kernel_size=2)
    with pytest.raises(LayerApplyError, match="return_indices: expected max pooling"):
        unmax.apply(np.ones((2, 1, 2, 2), "f4"), return_indices=True)
    with pytest.raises(LayerApplyError, match=r"\[PoolingLayer\] indices"):
        unmax.apply(np.ones((2, 1, 2, 2), "f4"))


# ---- element types beyond NumPy's ----


def test_bfloat16_of_ml_dtypes():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = np.array([[-1, 2, 3]], ml_dtypes.bfloat16)
    layer = ActivationLayer("relu", input=x)
    y = layer(x)
    assert y.dtype == ml_dtypes.bfloat16
    assert y.tolist() == [[0, 2, 3]]
    out = np.zeros_like(x)
    assert layer.apply(x, out=out) is out
    assert out.tolist() == [[0, 2, 3]]
    assert layer.apply_backward(x, y, y).input.dtype == ml_dtypes.bfloat16
    assert openbnns.convert(np.float32([1.5]), "bfloat16").dtype == ml_dtypes.bfloat16
    with pytest.raises(DTypeError, match="x: expected float32; got bfloat16"):
        ActivationLayer("relu", input=(3,))(x)
    with pytest.raises(DTypeError, match="x: expected bfloat16; got float16"):
        layer(x.astype(np.float16))


def test_bfloat16_as_uint16_without_ml_dtypes():
    code = """
import sys
sys.modules["ml_dtypes"] = None
import numpy as np, openbnns
spec = openbnns.ArraySpec((2,), "bfloat16")
bits = (np.float32([[-1, 2]]).view(np.uint32) >> 16).astype(np.uint16)
y = openbnns.ActivationLayer("relu", input=spec)(bits)
print(y.dtype, (y.astype(np.uint32) << 16).view(np.float32).tolist())
"""
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert printed.stdout.strip() == "uint16 [[0.0, 2.0]]"


@pytest.mark.parametrize(("dtype", "bits"), [("uint8", 4), ("int8", 4), ("uint8", 1), ("uint8", 6)])
def test_packed_integers(dtype, bits):
    low = -(1 << bits - 1) if dtype == "int8" else 0
    values = np.arange(8) % (1 << bits) + low
    narrow = ArraySpec((8,), dtype, bits=bits, scale=0.5)
    pack = ActivationLayer("identity", input=(8,), output=narrow)
    packed = pack(np.float32([values * 0.5] * 3))
    assert packed.dtype == np.uint8
    assert packed.shape == (3, bits)
    number = sum(int(value) % (1 << bits) << k * bits for k, value in enumerate(values))
    assert packed[0].tobytes() == number.to_bytes(bits, "little")
    unpack = ActivationLayer("identity", input=narrow, output=(8,))
    np.testing.assert_array_equal(unpack(packed), [values * 0.5] * 3)
    with pytest.raises(DTypeError, match=rf"x: expected u?int{bits} \(packed uint8\); got float32"):
        unpack(packed.astype(np.float32))


def test_lookup_tables():
    table = np.float32([10, 20, 30, 40])
    spec = ArraySpec((4,), "uint8", bits=2, table=table)
    layer = ActivationLayer("identity", input=spec, output=(4,))
    table[:] = 0  # the spec has its own copy
    np.testing.assert_array_equal(layer(np.uint8([[0b11100100]])), [[10, 20, 30, 40]])
    wide = ArraySpec((2,), "uint8", table=np.arange(256, dtype=np.float32) ** 2)
    decode = ActivationLayer("identity", input=wide, output=(2,))
    np.testing.assert_array_equal(decode(np.uint8([[3, 255]])), [[9, 65025]])


def test_scale_and_offset():
    x = np.int8([[-4, 0, 4]])
    layer = ActivationLayer(
        "identity", input=ArraySpec((3,), "int8", scale=0.5, offset=1.0), output=(3,)
    )
    np.testing.assert_array_equal(layer(x), [[-1, 1, 3]])
    np.testing.assert_array_equal(openbnns.convert(x, "float32", scale=0.5, offset=1.0), layer(x))
    stored = openbnns.convert(np.float32([1, 2]), "uint8", scale=0.25, offset=-3)
    np.testing.assert_array_equal(stored, [7, 11])


# ---- gradients ----


def test_gradient_targets():
    layer, x = pool(bias=np.zeros(1, "f4")), images()
    gy = np.ones((2, 1, 2, 2), np.float32)
    both = layer.apply_backward(x, None, gy)
    assert both.input.shape == x.shape
    assert both.bias.tolist() == [8]
    assert list(both) == [both.input, both.bias]
    for skipped in (None, False):
        grads = layer.apply_backward(x, None, gy, input_gradient=skipped)
        assert grads.input is None
        assert grads.bias is not None
    dx, db = np.full_like(x, 7), np.full(1, 7, np.float32)
    given = layer.apply_backward(x, None, gy, input_gradient=dx, bias_gradient=db)
    assert given.input is dx
    assert given.bias is db
    np.testing.assert_array_equal(dx, both.input)
    assert db[0] == 8


def test_gradients_accumulate_where_asked():
    layer, x = pool(bias=np.zeros(1, "f4")), images()
    gy = np.ones((2, 1, 2, 2), np.float32)
    fresh = layer.apply_backward(x, None, gy).input
    dx, db = np.full_like(x, 10), np.full(1, 10, np.float32)
    layer.apply_backward(x, None, gy, input_gradient=dx, bias_gradient=db, accumulate=True)
    np.testing.assert_array_equal(dx, fresh + 10)
    assert db[0] == 18
    layer.apply_backward(x, None, gy, input_gradient=dx, bias_gradient=db, accumulate={"bias"})
    np.testing.assert_array_equal(dx, fresh)
    assert db[0] == 26
    grads = layer.apply_backward(x, None, gy, input_gradient=dx, accumulate=True)
    np.testing.assert_array_equal(dx, fresh * 2)
    assert grads.bias[0] == 8  # a new array has nothing to add to
    layer.apply_backward(x, None, gy, bias_gradient=db, input_gradient=None, accumulate="bias")
    assert db[0] == 34


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"accumulate": True},
            "expected an array to add to as input_gradient or bias_gradient; got none",
        ),
        ({"accumulate": {"input"}}, "expected an array to add to as input_gradient; got True"),
        ({"accumulate": {"weights"}}, "expected names out of input, bias; got 'weights'"),
    ],
)
def test_accumulate_needs_an_array(options, sentence):
    with pytest.raises(ArrayError, match=rf"\[PoolingLayer\] accumulate: {sentence}"):
        pool().apply_backward(images(), None, np.ones((2, 1, 2, 2), "f4"), **options)


def test_gradient_arrays_may_have_other_strides():
    layer, x = pool(), images()
    gy = np.zeros((2, 1, 2, 4), np.float32)[..., ::2]
    gy[...] = np.arange(8).reshape(2, 1, 2, 2)
    dx = np.full((2, 1, 4, 12), -1, np.float32)
    layer.apply_backward(x, None, gy, input_gradient=dx[..., ::3])
    expected = layer.apply_backward(x, None, np.ascontiguousarray(gy)).input
    np.testing.assert_array_equal(dx[..., ::3], expected)
    assert (dx[..., 1::3] == -1).all()


def test_backward_without_the_tensor_it_needs():
    gy = np.ones((1, 3), np.float32)
    with pytest.raises(LayerApplyError, match=r"\[ActivationLayer\] "):
        ActivationLayer("silu", input=(3,)).apply_backward(None, gy, gy)


# ---- parameters ----


def test_alpha_is_live():
    layer = ActivationLayer("leaky_relu", input=(2,))
    x = np.float32([[-2, 2]])
    assert layer.alpha.dtype == np.float32
    assert layer.alpha.tolist() == [np.float32(0.01)]
    layer.alpha[:] = 0.5
    np.testing.assert_array_equal(layer(x), [[-1, 2]])
    grads = layer.apply_backward(x, None, np.ones_like(x))
    assert grads.alpha.tolist() == [-2]
    assert np.shares_memory(layer.alpha, layer.alpha)


def test_alpha_of_prelu_has_one_value_per_channel():
    layer = ActivationLayer("prelu", input=(3, 2, 2))
    assert layer.alpha.tolist() == [0.25] * 3
    layer.alpha[1] = 2
    y = layer(np.full((1, 3, 2, 2), -1, np.float32))
    np.testing.assert_array_equal(y[0, :, 0, 0], [-0.25, -2, -0.25])
    grads = layer.apply_backward(-np.ones_like(y), None, np.ones_like(y))
    assert grads.alpha.tolist() == [-4, -4, -4]


def test_beta_is_live():
    layer = ActivationLayer(Activation.clamp(-1, 1), input=(2,))
    layer.beta[:] = 3
    np.testing.assert_array_equal(layer(np.float32([[-5, 5]])), [[-1, 3]])


def test_alpha_outlives_its_layer():
    layer = ActivationLayer("leaky_relu", input=(2,))
    alpha = layer.alpha
    layer.close()
    del layer
    gc.collect()
    alpha[:] = 7
    assert alpha.tolist() == [7]


def test_bias_is_shared_unless_copied():
    bias = np.zeros(1, np.float32)
    shared, copied = pool(bias=bias), pool(bias=bias, copy_parameters=True)
    bias[0] = 100
    np.testing.assert_array_equal(shared(images()), pool()(images()) + 100)
    np.testing.assert_array_equal(copied(images()), pool()(images()))


def test_layers_keep_their_bias_alive_and_let_it_go():
    class Owned(np.ndarray):
        pass

    bias = np.full(1, 5, np.float32).view(Owned)
    watch = weakref.ref(bias)
    layer = pool(bias=bias)
    del bias
    gc.collect()
    assert watch() is not None
    np.testing.assert_array_equal(layer(images()), pool()(images()) + 5)
    layer.close()
    gc.collect()
    assert watch() is None


def test_layers_keep_their_statistics_alive_and_let_them_go():
    class Array(np.ndarray):
        pass

    arrays = [np.ones(2, "f4").view(Array) for _ in range(4)]
    watches = [weakref.ref(array) for array in arrays]
    names = ("beta", "gamma", "moving_mean", "moving_variance")
    layer = NormalizationLayer("batch", input=(2,), **dict(zip(names, arrays, strict=True)))
    del arrays
    gc.collect()
    assert all(watch() is not None for watch in watches)
    layer(np.zeros((3, 2), "f4"), training=True)
    assert watches[2]()[0] == 0
    layer.close()
    gc.collect()
    assert all(watch() is None for watch in watches)


def test_strided_bias_is_shared():
    bias = np.zeros(6, np.float32)
    layer = PoolingLayer("max", input=(3, 4, 4), kernel_size=2, bias=bias[::2])
    bias[2] = 9
    y = layer(np.zeros((1, 3, 4, 4), np.float32))
    np.testing.assert_array_equal(y[0, :, 0, 0], [0, 9, 0])


# ---- life of a layer ----


def test_close_twice_and_use_afterwards():
    layer = pool()
    assert layer.handle != 0
    assert not layer.closed
    layer.close()
    layer.close()
    assert layer.closed
    assert layer.handle == 0
    for call in (
        lambda: layer(images()),
        lambda: layer.apply_backward(images(), None, np.ones((2, 1, 2, 2), "f4")),
    ):
        with pytest.raises(
            LayerApplyError, match=r"\[PoolingLayer\] layer: expected an open layer"
        ):
            call()
    activation = ActivationLayer("relu", input=(2,))
    with activation as entered:
        assert entered is activation
    with pytest.raises(LayerApplyError, match=r"\[ActivationLayer\] layer: expected an open layer"):
        activation.alpha  # noqa: B018


def test_handle_belongs_to_the_c_interface():
    from openbnns import c

    layer, x, y = pool(), images(1), np.zeros((1, 1, 2, 2), np.float32)
    assert c.BNNSFilterApply(layer.handle, x, y) == 0
    np.testing.assert_array_equal(y, layer(x))


def test_filter_destroyed_behind_the_layers_back_is_noticed():
    from openbnns import c

    layer = pool()
    c.BNNSFilterDestroy(layer.handle)
    with pytest.raises(LayerApplyError, match=r"\[PoolingLayer\] filter: expected a live handle"):
        layer(images())


def test_native_side_refuses_strangers():
    from openbnns import _core

    with pytest.raises(TypeError, match="expected a filter of this family"):
        _core.pooling_apply(ActivationLayer("relu", input=(2,))._filter, None, None, None, False)
    with pytest.raises(TypeError, match="expected a filter of this family"):
        _core.pooling_apply(object(), None, None, None, False)
    with pytest.raises(TypeError, match="pooling_apply takes 5 arguments; got 1"):
        _core.pooling_apply(None)
    for function in (_core.arithmetic_apply, _core.arithmetic_backward):
        with pytest.raises(TypeError, match="takes a filter; got nothing"):
            function()
    binary = BinaryArithmeticLayer("add", input_a=(2,), input_b=(2,))._filter
    with pytest.raises(TypeError, match="arithmetic_apply takes 4 arguments; got 3"):
        _core.arithmetic_apply(binary, None, None)
    with pytest.raises(TypeError, match="expected a filter of this family"):
        _core.normalization_apply(binary, None, None, False)
    with pytest.raises(TypeError, match="fused_apply takes at least 3 arguments; got 0"):
        _core.fused_apply()
    with pytest.raises(TypeError, match="fused_backward takes at least 4 arguments; got 1"):
        _core.fused_backward(binary)
    with pytest.raises(TypeError, match="expected a filter of this family"):
        _core.fused_apply(binary, None, False)
    with pytest.raises(TypeError):
        _core.Filter()


def test_layers_close_while_other_threads_use_them():
    x = np.random.default_rng(0).standard_normal((8, 4, 64, 64), dtype=np.float32)
    expected = PoolingLayer("max", input=x, kernel_size=3)(x)
    failures = []

    def work(layer):
        try:
            while True:
                np.testing.assert_array_equal(layer(x), expected)
        except LayerApplyError:
            pass
        except BaseException as error:
            failures.append(error)

    for _ in range(10):
        layer = PoolingLayer("max", input=x, kernel_size=3)
        workers = [threading.Thread(target=work, args=(layer,)) for _ in range(4)]
        for worker in workers:
            worker.start()
        layer(x)
        layer.close()
        for worker in workers:
            worker.join()
    assert failures == []


def test_many_python_threads_share_a_layer():
    x = np.random.default_rng(0).standard_normal((4, 2, 32, 32), dtype=np.float32)
    layer = PoolingLayer("average", input=x, kernel_size=2)
    expected, failures = layer(x), []

    def work():
        out = np.empty_like(expected)
        for _ in range(100):
            if not np.array_equal(layer.apply(x, out=out), expected):
                failures.append("another result")
            try:
                layer(x[:, :1])
            except ArrayError as error:
                if "x: expected (N, 2, 32, 32)" not in str(error):
                    failures.append(str(error))

    workers = [threading.Thread(target=work) for _ in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert failures == []


def test_other_threads_run_during_a_call():
    x = np.zeros((1, 1 << 23), np.float32)
    out = np.zeros_like(x)
    layer = ActivationLayer("gelu", input=x, num_threads=1)

    def ran_meanwhile():
        span, ticks = [], []

        def work():
            span.append(time.perf_counter())
            layer.apply(x, out=out)
            span.append(time.perf_counter())

        worker = threading.Thread(target=work)
        worker.start()
        while worker.is_alive():
            ticks.append(time.perf_counter())
            time.sleep(0)
        start, end = span
        quarter = (end - start) / 4
        return any(start + quarter < tick < end - quarter for tick in ticks)

    # Holding the GIL would keep this thread out every time; a busy machine only now and then.
    assert any(ran_meanwhile() for _ in range(100))


def test_layers_cannot_be_pickled():
    with pytest.raises(TypeError, match="Filter"):
        pickle.dumps(pool())


def test_nothing_grows_over_many_calls():
    layer, x = pool(bias=np.zeros(1, "f4")), images()
    y, indices = layer.apply(x, return_indices=True)
    dx, db = np.zeros_like(x), np.zeros(1, np.float32)
    watched = (x, y, indices, dx, db, layer)

    def step():
        layer.apply(x, out=y, indices=indices)
        layer.apply(x)
        layer.apply_backward(
            x, y, y, indices=indices, input_gradient=dx, bias_gradient=db, accumulate=True
        )
        with contextlib.suppress(ArrayError):
            layer.apply(x[0])
        with contextlib.suppress(LayerCreationError):
            pool(output=(1, 9, 9))
        ActivationLayer("leaky_relu", input=x).alpha[:] = 1

    assert_nothing_grows(step, watched)


def assert_nothing_grows(step, watched):
    """Neither memory nor the references to what is watched, over many steps."""
    counts = [sys.getrefcount(value) for value in watched]
    tracemalloc.start()
    try:
        for _ in range(1200):  # the interpreter itself has caches to fill
            step()
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(1000):
            step()
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 1000 * 8  # less than one pointer per step: nothing is left behind
    assert [sys.getrefcount(value) for value in watched] == counts


def test_nothing_grows_over_many_normalizations():
    x, gamma, beta, mean, variance = np.ones((2, 4), "f4"), *np.ones((4, 4), "f4")
    options = {"gamma": gamma, "beta": beta, "moving_mean": mean, "moving_variance": variance}
    layer, dx, dgamma = NormalizationLayer("batch", input=(4,), **options), x.copy(), gamma.copy()

    def step():
        y = layer(x, training=True)
        layer.apply_backward(x, y, y, input_gradient=dx, gamma_gradient=dgamma, accumulate=True)
        with contextlib.suppress(ArrayError):
            layer(x[0], training=True)
        with contextlib.suppress(LayerCreationError):
            NormalizationLayer("batch", input=(4,), momentum=2.0, **options)
        with contextlib.suppress(ArrayError):
            NormalizationLayer("batch", input=(3,), **options)
        NormalizationLayer("layer", input=(4,), gamma=gamma)(x, training=False)

    assert_nothing_grows(step, (x, gamma, beta, mean, variance, dx, dgamma, layer))


def test_nothing_grows_over_many_calculations():
    a, b = np.ones((2, 4), "f4"), np.ones(4, "f4")
    da, db, q, scale = a.copy(), b.copy(), np.ones((2, 4), "i1"), np.ones(4, "f4")
    layer = BinaryArithmeticLayer("multiply", input_a=a, input_b=b, b_kind="parameter")

    def step():
        y = layer(a, b)
        layer.apply_backward(a, b, None, y, a_gradient=da, b_gradient=db)
        layer.apply_backward(a, b, y, y, a_gradient=None)
        with contextlib.suppress(LayerApplyError):
            layer.apply_backward(None, None, None, y)
        with contextlib.suppress(LayerCreationError):
            BinaryArithmeticLayer("multiply", input_a=a, input_b=b)
        openbnns.quantize(a, scale=scale, axis=1, out=q)
        openbnns.dequantize(q, scale=2.0)
        with contextlib.suppress(ArrayError):
            openbnns.quantize(a, scale=scale, out=q)

    assert_nothing_grows(step, (a, b, da, db, q, scale, layer))


def test_nothing_grows_over_many_fused_calls():
    x, w = np.ones((2, 3), "f4"), np.ones((4, 3), "f4")
    b, gamma, beta, mean, variance = np.ones((5, 4), "f4")
    options = {"gamma": gamma, "beta": beta, "moving_mean": mean, "moving_variance": variance}
    options |= {"bias": b, "normalization": "batch", "activation": "relu"}
    make = openbnns.FusedFullyConnectedNormalizationLayer
    layer, dx, dw = make(w, **options), x.copy(), w.copy()
    add = openbnns.FusedBinaryArithmeticParameters("add")
    norm = openbnns.FusedNormalizationParameters("batch", beta)
    two = openbnns.FusedParametersLayer(add, norm, inputs=[(4,), (4,)])
    eight = openbnns.FusedQuantizationParameters(scale=gamma, axis=0)
    dense = openbnns.FusedFullyConnectedParameters(w, b)

    def step():
        y = layer(x, training=True)
        targets = (dw, None, True, False)
        layer.apply_backward(
            x, y, y, input_gradient=dx, parameter_gradients=targets, accumulate={"weights"}
        )
        with contextlib.suppress(LayerApplyError):
            layer.apply_backward(None, y, y)
        with contextlib.suppress(LayerApplyError):
            layer.apply_backward(x[:1], y[:1], y[:1])
        with contextlib.suppress(LayerCreationError):
            make(w, **options, momentum=2.0)
        with contextlib.suppress(ArrayError):
            make(w[:3], **options)
        z = two(y, y, training=True)
        two.apply_backward(y, y, y=None, grad_output=z, input_gradients=(True, None))
        output = ArraySpec((4,), "int8")
        openbnns.FusedParametersLayer(dense, eight, output=output)(x, training=False)

    watched = (x, w, b, gamma, beta, mean, variance, dx, dw, layer, two, add, norm, eight, dense)
    assert_nothing_grows(step, watched)


# ---- one-shot functions ----


def test_activation_of_any_shape():
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 5), dtype=np.float32)
    np.testing.assert_allclose(openbnns.activation(x, "softmax").sum(axis=-1), 1, rtol=1e-6)
    np.testing.assert_allclose(openbnns.activation(x, "softmax", axes=0).sum(axis=0), 1, rtol=1e-6)
    both = openbnns.activation(x, "softmax", axes=(1, -1)).sum(axis=(1, 3))
    np.testing.assert_allclose(both, 1, rtol=1e-6)
    assert openbnns.activation(np.float32(-3).reshape(()), "abs") == 3
    np.testing.assert_array_equal(openbnns.activation(x[..., ::2], "abs"), np.abs(x[..., ::2]))
    with pytest.warns(CopyWarning, match=r"\[activation\] x"):
        turned = openbnns.activation(x.T, "abs")
    np.testing.assert_array_equal(turned, np.abs(x.T))


def test_activation_needs_floats():
    with pytest.raises(LayerApplyError, match=r"\[activation\] "):
        openbnns.activation(np.arange(3), "tanh")


# ---- the module ----


def test_threads_and_seed():
    before = openbnns.get_num_threads()
    openbnns.set_num_threads(3)
    assert openbnns.get_num_threads() == 3
    with pytest.raises(ValueError, match="n: expected None or at least 0; got -1"):
        openbnns.set_num_threads(-1)
    openbnns.set_num_threads(before)
    noise = ActivationLayer(Activation.gumbel(1 - 2e-7, 1e-7), input=(100,))
    draws = []
    for seed in (1, 2, 1):
        openbnns.set_seed(seed)
        draws.append(noise(np.zeros((1, 100), np.float32)))
    np.testing.assert_array_equal(draws[0], draws[2])
    assert (draws[0] != draws[1]).any()


def test_last_error_is_the_sentence_of_the_exception():
    with pytest.raises(LayerCreationError) as info:
        pool(output=(1, 9, 9))
    assert str(info.value) == f"[PoolingLayer] {openbnns.last_error()}"


def test_status_is_printed():
    printed = subprocess.run(
        [sys.executable, "-m", "openbnns"], capture_output=True, text=True, check=True
    ).stdout
    for word in (openbnns.version(), openbnns.isa(), str(openbnns.library_path()), "C functions"):
        assert word in printed


def test_what_layers_do_without_is_loaded_on_first_use():
    code = """
import sys, openbnns
assert not {"openbnns.c", "openbnns.network", "openbnns.training", "json"} & sys.modules.keys()
assert openbnns.Network.__module__ == "openbnns.network"
print(openbnns.c.BNNSDataLayoutGetRank(openbnns.c.BNNSDataLayoutVector))
"""
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert printed.stdout.strip() == "1", printed.stderr
    with pytest.raises(AttributeError, match="module 'openbnns' has no attribute 'nonsense'"):
        openbnns.nonsense  # noqa: B018


def test_public_names_exist_and_are_documented():
    for name in openbnns.__all__:
        value = getattr(openbnns, name)
        assert value.__doc__, name


def test_examples_in_docstrings():
    import doctest
    import importlib

    for name in DOCUMENTED:
        result = doctest.testmod(importlib.import_module(f"openbnns{name}"))
        assert result.attempted > 0
        assert result.failed == 0


def test_warnings_are_errors_in_this_file():
    """The tests above rely on it: a silent copy would pass them."""
    with pytest.raises(CopyWarning):
        warnings.warn("copied", CopyWarning, stacklevel=1)
