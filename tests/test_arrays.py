"""Arrays in and out of layers: what is shared, copied, refused, written."""

import array
import subprocess
import sys
import warnings

import numpy as np
import openbnns
import pytest
from cases.samples import images, pool
from openbnns import (
    ActivationLayer,
    ArrayError,
    ArraySpec,
    CopyWarning,
    DTypeError,
    LayerApplyError,
    PoolingLayer,
)

NUMPY = tuple(int(part) for part in np.__version__.split(".")[:2])


class Producer:
    """An array that speaks nothing but DLPack."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


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


def test_bfloat16_arrays_are_shared_or_refused_like_any():
    bfloat16 = np.dtype(pytest.importorskip("ml_dtypes").bfloat16)
    x = np.array([[-1, 2, 3], [4, -5, 6]], bfloat16)
    relu = [[0, 2, 3], [4, 0, 6]]
    layer = ActivationLayer("relu", input=x)
    out = np.full((4, 3), -1, bfloat16)
    part = out[::2]
    references = sys.getrefcount(x), sys.getrefcount(part)
    assert layer.apply(x, out=part) is part
    assert out.tolist() == [relu[0], [-1] * 3, relu[1], [-1] * 3]
    assert (sys.getrefcount(x), sys.getrefcount(part)) == references
    x.flags.writeable = False
    assert layer(x).tolist() == relu

    with pytest.raises(ArrayError, match=r"out: expected a writable array; got a read-only one"):
        layer.apply(x, out=x)
    with pytest.raises(ArrayError, match=r"out: expected \(2, 3\); got \(3, 3\)"):
        layer.apply(x, out=out[:3])
    with pytest.raises(ArrayError, match=r"out: .* sample strides \(2,\); got strides \(12, 4\)"):
        layer.apply(x, out=np.zeros((2, 6), bfloat16)[:, ::2])
    odd = np.zeros(14, np.uint8)[1:13].view(bfloat16).reshape(2, 3)
    with pytest.raises(ArrayError, match="out: expected aligned memory"):
        layer.apply(x, out=odd)
    with pytest.raises(DTypeError, match=r"x: expected bfloat16; got [<>]V2"):
        layer(x.view(bfloat16.newbyteorder()))
    with pytest.warns(CopyWarning, match=r"x: strides \(2, 4\) cannot be used here"):
        assert layer(np.array(x.T, order="C").T).tolist() == relu


def test_bfloat16_in_a_subclass():
    bfloat16 = np.dtype(pytest.importorskip("ml_dtypes").bfloat16)

    class Named(np.ndarray):
        pass

    x = np.array([[-1, 2, 3]], bfloat16)
    layer = ActivationLayer("relu", input=x)
    out = np.zeros_like(x).view(Named)
    assert layer.apply(x.view(Named), out=out) is out
    assert out.tolist() == [[0, 2, 3]]


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


def test_warnings_are_errors_in_this_file():
    """The tests above rely on it: a silent copy would pass them."""
    with pytest.raises(CopyWarning):
        warnings.warn("copied", CopyWarning, stacklevel=1)
