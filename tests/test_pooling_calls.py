"""Pooling through the C interface: the generic calls, the first interface, and what is refused."""

import numpy as np
import pytest
from cases import assert_refused, gaps_untouched, is_sentinel, sentinel_array
from cases.descriptors import activation_layer, image, misaligned, pooling_parameters, vector
from openbnns import c
from oracles import pooling as oracle
from oracles.activation import gelu_approximation_sigmoid_slope_from_y

MAX, AVERAGE, EXCLUDE, UNMAX, L2 = range(5)


def create(function, source, target, kernel=(2, 2), stride=(2, 2), **fields):
    """A filter handle through the C interface; shapes are (channels, height, width)."""
    parameters = pooling_parameters(
        function, image(source), image(target), kernel, stride, **fields
    )
    return c.BNNSFilterCreateLayerPooling(parameters, None)


# ---- calls ----


def test_generic_calls_work_for_pooling():
    x = np.random.default_rng(0).standard_normal((3, 2, 4, 4)).astype(np.float32)
    y, dx = np.zeros((3, 2, 2, 2), np.float32), np.zeros_like(x)
    dy = np.ones_like(y)
    f = create(MAX, (2, 4, 4), (2, 2, 2))
    assert f, c.last_error()
    assert c.BNNSFilterApplyBatch(f, 3, x, 0, y, 0) == 0, c.last_error()
    status = c.BNNSFilterApplyBackwardBatch(
        f, 3, x, 0, image((2, 4, 4), data=dx), 0, y, 0, image((2, 2, 2), data=dy), 0, None, None
    )
    assert status == 0, c.last_error()
    c.BNNSFilterDestroy(f)
    geometry = oracle.Geometry((4, 4), (2, 2), (2, 2), (2, 2), (1, 1), (0, 0))
    expected, indices = oracle.max_pool(x.astype(np.float64), geometry)
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(dx, oracle.max_pool_backward(dy, indices, geometry))


def test_zero_strides_and_dilations_mean_one():
    x, y = np.arange(1, 10, dtype=np.float32), np.zeros(4, np.float32)
    f = create(MAX, (1, 3, 3), (1, 2, 2), stride=(0, 0))
    assert f, c.last_error()
    assert c.BNNSFilterApply(f, x, y) == 0
    c.BNNSFilterDestroy(f)
    np.testing.assert_array_equal(y, [5, 6, 8, 9])


def test_asymmetric_padding_counts_only_without_symmetric():
    x, y = np.ones(4, np.float32), np.zeros(9, np.float32)
    both = create(AVERAGE, (1, 2, 2), (1, 3, 3), stride=(1, 1), padding=(1, 1), pad=[7, 7, 7, 7])
    assert c.BNNSFilterApply(both, x, y) == 0
    c.BNNSFilterDestroy(both)
    np.testing.assert_array_equal(y, np.float32([1, 2, 1, 2, 4, 2, 1, 2, 1]) / 4)
    left = create(AVERAGE, (1, 2, 2), (1, 1, 2), stride=(1, 1), pad=[1, 0, 0, 0])
    assert c.BNNSFilterApply(left, x, y) == 0
    c.BNNSFilterDestroy(left)
    np.testing.assert_array_equal(y[:2], [0.5, 1.0])


def test_empty_batch_succeeds_and_writes_nothing():
    x = np.ones(16, np.float32)
    y, _ = sentinel_array((4,), "float32")
    f = create(MAX, (1, 4, 4), (1, 2, 2))
    assert c.BNNSPoolingFilterApplyBatch(f, 0, x, 0, y, 0, None, 0) == 0
    c.BNNSFilterDestroy(f)
    assert is_sentinel(y)


def test_batch_strides_of_all_operands():
    x = np.arange(40, dtype=np.float32).reshape(2, 20)  # 16 values, 20 apart
    y, _ = sentinel_array((2, 7), "float32")
    indices, _ = sentinel_array((2, 9), "uint64")
    f = create(MAX, (1, 4, 4), (1, 2, 2))
    assert c.BNNSPoolingFilterApplyBatch(f, 2, x, 20, y, 7, indices, 9) == 0
    c.BNNSFilterDestroy(f)
    np.testing.assert_array_equal(y[:, :4], [[5, 7, 13, 15], [25, 27, 33, 35]])
    np.testing.assert_array_equal(indices[:, :4], [[5, 7, 13, 15]] * 2)
    assert is_sentinel(y[:, 4:])
    assert is_sentinel(indices[:, 4:])


def test_gradients_may_have_strides_of_their_own():
    x = np.arange(32, dtype=np.float32).reshape(2, 4, 4)
    dx, owner = sentinel_array((2, 4, 4), "float32", gaps=(0, 1, 3))
    dy, _ = sentinel_array((2, 2, 2), "float32", gaps=(0, 2, 1), step=2)
    dy[...] = np.arange(1, 9).reshape(2, 2, 2)
    target = image((2, 4, 4), data=dx, strides=[step // 4 for step in dx.strides])
    delta = image((2, 2, 2), data=dy, strides=[step // 4 for step in dy.strides])
    f = create(MAX, (2, 4, 4), (2, 2, 2))
    assert backward(f, x, target, None, delta) == 0, c.last_error()
    c.BNNSFilterDestroy(f)
    expected = np.zeros((2, 4, 4))
    expected[:, 1::2, 1::2] = dy
    np.testing.assert_array_equal(dx, expected)
    assert gaps_untouched(dx, owner)


def test_fused_sigmoid_gelu_is_refused_where_its_output_is_ambiguous():
    f = create(AVERAGE, (1, 4, 4), (1, 2, 2), activation=c.BNNSActivation(function=35))
    dx, target, delta = gradients()
    rising, mixed = np.float32([0, 1, 2, 3]), np.float32([0, 1, 2, -0.1])
    assert_refused(backward(f, X, target, mixed, delta), dx)
    assert backward(f, X, target, rising, delta) == 0, c.last_error()
    c.BNNSFilterDestroy(f)
    slope = gelu_approximation_sigmoid_slope_from_y(rising.astype(np.float64), 0, 0)
    first_of_windows = dx.reshape(4, 4)[::2, ::2].reshape(-1)
    np.testing.assert_allclose(first_of_windows, slope / 4, rtol=1e-5)


# ---- the first interface ----


def legacy_stack(width, height, channels=1, **fields):
    fields = {"row_stride": width, "image_stride": width * height, **fields}
    return c.BNNSImageStackDescriptor(
        width=width, height=height, channels=channels, data_type=c.BNNSDataTypeFloat32, **fields
    )


def legacy_layer(source, target, **fields):
    parameters = c.BNNSPoolingLayerParameters(
        **{
            "x_stride": 1,
            "y_stride": 1,
            "k_width": 2,
            "k_height": 2,
            "in_channels": 1,
            "out_channels": 1,
            **fields,
        }
    )
    return c.BNNSFilterCreatePoolingLayer(source, target, parameters, None)


def test_vector_legacy_max():
    x, y = np.arange(1, 10, dtype=np.float32), np.zeros(4, np.float32)
    f = legacy_layer(legacy_stack(3, 3), legacy_stack(2, 2))
    assert f, c.last_error()
    assert c.BNNSFilterApply(f, x, y) == 0
    c.BNNSFilterDestroy(f)
    np.testing.assert_array_equal(y, [5, 6, 8, 9])


def test_legacy_average_with_bias_strides_and_activation():
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)  # rows of 3 values, 4 apart
    y = np.full((2, 2, 3), -1.0, np.float32)  # rows of 2 values, 3 apart
    f = legacy_layer(
        legacy_stack(3, 3, 2, row_stride=4, image_stride=12),
        legacy_stack(2, 2, 2, row_stride=3, image_stride=6),
        in_channels=2,
        out_channels=2,
        pooling_function=AVERAGE,
        bias=c.BNNSLayerData(data=np.float32([-5.0, 1.0]), data_type=c.BNNSDataTypeFloat32),
        activation=c.BNNSActivation(function=1),
    )
    assert f, c.last_error()
    assert c.BNNSFilterApply(f, x, y) == 0
    c.BNNSFilterDestroy(f)
    sums = x[:, :2, :2] + x[:, :2, 1:3] + x[:, 1:, :2] + x[:, 1:, 1:3]
    expected = np.maximum(sums / 4 + np.float32([-5.0, 1.0])[:, None, None], 0)
    np.testing.assert_array_equal(y[:, :, :2], expected)
    np.testing.assert_array_equal(y[:, :, 2], -1.0)


def test_legacy_bias_of_integers_and_tables():
    x, y = np.zeros(4, np.float32), np.zeros(1, np.float32)
    table = np.zeros(256, np.float32)
    table[200] = 3.5
    integer = c.BNNSLayerData(
        data=np.int8([10]), data_type=c.BNNSDataTypeInt8, data_scale=0.5, data_bias=1.0
    )
    indexed = c.BNNSLayerData(
        data=np.uint8([200]), data_type=c.BNNSDataTypeIndexed8, data_table=table
    )
    for bias, expected in ((integer, 6.0), (indexed, 3.5)):
        f = legacy_layer(legacy_stack(2, 2), legacy_stack(1, 1), bias=bias)
        assert f, c.last_error()
        assert c.BNNSFilterApply(f, x, y) == 0
        c.BNNSFilterDestroy(f)
        assert y[0] == expected


@pytest.mark.parametrize(
    ("source", "target", "fields"),
    [
        ((3, 3), (5, 5), {}),
        ((3, 3), (2, 2), {"k_width": 0}),
        ((3, 3), (2, 2), {"in_channels": 2}),
        ((3, 3), (2, 2), {"out_channels": 2}),
        ((3, 3), (2, 2), {"pooling_function": 17}),
        ((0, 3), (2, 2), {}),
    ],
)
def test_legacy_layer_refuses(source, target, fields):
    assert legacy_layer(legacy_stack(*source), legacy_stack(*target), **fields) is None
    assert c.last_error()


def test_legacy_layer_refuses_rows_closer_than_their_width():
    assert legacy_layer(legacy_stack(3, 3, row_stride=2), legacy_stack(2, 2)) is None
    channels = {"in_channels": 2, "out_channels": 2}
    close = legacy_stack(3, 3, 2, image_stride=8)
    assert legacy_layer(close, legacy_stack(2, 2, 2), **channels) is None


# ---- refusals ----


def _image_field(name, value):
    def corrupt(parameters, rng):
        side = getattr(parameters, "i_desc" if rng.integers(2) else "o_desc")
        setattr(side, name, value(rng))

    return corrupt


def _one_size(value):
    def corrupt(parameters, rng):
        side = parameters.i_desc if rng.integers(2) else parameters.o_desc
        sizes = list(side.size)
        sizes[int(rng.integers(3))] = value(rng)
        side.size = sizes

    return corrupt


def _parameter(name, value):
    def corrupt(parameters, rng):
        setattr(parameters, name, value(rng))

    return corrupt


def _many(rng):
    return int(rng.integers(4, 2**40))


def _power(low, high):
    return lambda rng: 2 ** int(rng.integers(low, high))


CORRUPTIONS = {
    "unknown layout": _image_field("layout", lambda rng: int(rng.integers(0, 0xFFFF))),
    "layout of another rank": _image_field("layout", lambda rng: 0x48000),
    "unknown type": _image_field("data_type", lambda rng: int(rng.integers(1, 0xFFFF))),
    "integer type": _image_field("data_type", lambda rng: 0x20000 + 2 ** int(rng.integers(3, 7))),
    "bare class bit": _image_field("data_type", lambda rng: 1 << int(rng.integers(16, 21))),
    "types that differ": _image_field("data_type", lambda rng: c.BNNSDataTypeFloat16),
    "zero extent": _one_size(lambda rng: 0),
    "huge extent": _one_size(_power(61, 64)),
    "decreasing stride": _image_field("stride", lambda rng: [6, int(rng.integers(1, 6)), 1]),
    "huge stride": _image_field("stride", lambda rng: [1, 4, 2 ** int(rng.integers(62, 64))]),
    "unknown function": _parameter("pooling_function", lambda rng: int(rng.integers(5, 2**32))),
    "zero kernel width": _parameter("k_width", lambda rng: 0),
    "zero kernel height": _parameter("k_height", lambda rng: 0),
    "channels that differ": lambda p, rng: setattr(p.o_desc, "size", [2, 2, _many(rng)]),
    "output too wide": lambda p, rng: setattr(p.o_desc, "size", [_many(rng), 2, 2]),
    "output too high": lambda p, rng: setattr(p.o_desc, "size", [2, _many(rng), 2]),
    "huge stride of windows": _parameter("x_stride", _power(40, 64)),
    "unknown activation": lambda p, rng: setattr(
        p, "activation", c.BNNSActivation(function=int(rng.integers(36, 2**32)))
    ),
    "integer activation": lambda p, rng: setattr(p, "activation", c.BNNSActivation(function=9)),
    "bias of another size": lambda p, rng: setattr(
        p, "bias", vector(int(rng.integers(3, 9)), data=np.zeros(9, np.float32))
    ),
    "bias of an unknown type": lambda p, rng: setattr(
        p,
        "bias",
        c.BNNSNDArrayDescriptor(
            layout=c.BNNSDataLayoutVector, size=[2], data=np.zeros(9, np.float32), data_type=3
        ),
    ),
}


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_corrupted_parameters_are_refused(kind):
    rng = np.random.default_rng(len(kind))
    for _ in range(60):
        parameters = pooling_parameters(
            int(rng.integers(0, 3)), image((2, 5, 5)), image((2, 2, 2)), (2, 2), (2, 2)
        )
        CORRUPTIONS[kind](parameters, rng)
        c.obn_clear_error()
        f = c.BNNSFilterCreateLayerPooling(parameters, None)
        c.BNNSFilterDestroy(f)
        assert f is None
        assert c.last_error()


def test_random_parameter_blocks_never_crash():
    rng = np.random.default_rng(12)
    size = c.ctypes.sizeof(c.BNNSLayerParametersPooling)
    for _ in range(1000):
        parameters = c.BNNSLayerParametersPooling.from_buffer_copy(rng.bytes(size))
        parameters.bias.data = None
        c.obn_clear_error()
        assert c.BNNSFilterCreateLayerPooling(parameters, None) is None
        assert c.last_error()


def test_random_geometries_never_crash():
    """Window parameters of every magnitude behind legal descriptors: created or refused."""
    rng = np.random.default_rng(13)
    x = np.ones((2, 5, 5), np.float32)
    made = 0
    for _ in range(1000):
        words = ("k_width", "k_height", "x_stride", "y_stride", "x_dilation_stride")
        words += ("y_dilation_stride", "x_padding", "y_padding")
        fields = {word: int(rng.integers(0, 2 ** int(rng.integers(1, 64)))) for word in words}
        parameters = c.BNNSLayerParametersPooling(
            i_desc=image((2, 5, 5)),
            o_desc=image((2, 2, 2)),
            pooling_function=int(rng.choice([MAX, AVERAGE, EXCLUDE, L2])),
            **fields,
        )
        c.obn_clear_error()
        f = c.BNNSFilterCreateLayerPooling(parameters, None)
        if f is None:
            assert c.last_error()
            continue
        made += 1
        y = np.full((2, 2, 2), np.nan, np.float32)
        assert c.BNNSFilterApply(f, x, y) == 0
        assert np.isfinite(y).all()
        c.BNNSFilterDestroy(f)
    assert made > 10


def test_missing_parameter_block_is_refused():
    assert c.BNNSFilterCreateLayerPooling(None, None) is None
    assert c.last_error()


def test_vector_impossible_geometry_is_refused():
    assert create(MAX, (1, 1, 1), (1, 4, 4), stride=(1, 1)) is None
    assert c.last_error()


def test_misaligned_bias_is_refused():
    bias = vector(1, data=misaligned((1,), np.float32))
    assert create(MAX, (1, 4, 4), (1, 2, 2), bias=bias) is None
    assert c.last_error()


@pytest.fixture
def max_pool():
    f = create(MAX, (1, 4, 4), (1, 2, 2))
    yield f
    c.BNNSFilterDestroy(f)


@pytest.fixture
def unmax():
    f = create(UNMAX, (1, 2, 2), (1, 4, 4))
    yield f
    c.BNNSFilterDestroy(f)


def outputs():
    """(y, indices) of the max pooling above, all sentinel."""
    return sentinel_array((4,), "float32")[0], sentinel_array((4,), "uint64")[0]


X = np.arange(16, dtype=np.float32)


def test_null_pointers_are_refused(max_pool):
    y, indices = outputs()
    call = c.BNNSPoolingFilterApplyBatch
    assert_refused(call(max_pool, 1, None, 0, y, 0, indices, 0), y, indices)
    assert_refused(call(max_pool, 1, X, 0, None, 0, indices, 0), indices)


def test_misaligned_pointers_are_refused(max_pool):
    y, indices = outputs()
    off = misaligned((16,), np.float32)
    call = c.BNNSPoolingFilterApplyBatch
    assert_refused(call(max_pool, 1, off, 0, y, 0, indices, 0), y, indices)
    assert_refused(call(max_pool, 1, X, 0, off, 0, indices, 0), indices)
    assert_refused(call(max_pool, 1, X, 0, y, 0, misaligned((4,), np.uint64), 0), y)


def test_overlapping_buffers_are_refused(max_pool):
    memory = np.arange(24, dtype=np.float32)
    before = memory.copy()
    y, indices = outputs()
    call = c.BNNSPoolingFilterApplyBatch
    assert_refused(call(max_pool, 1, memory[:16], 0, memory[12:16], 0, indices, 0), indices)
    assert_refused(call(max_pool, 1, memory[:16], 0, memory[:4], 0, indices, 0), indices)
    assert_refused(call(max_pool, 1, memory[:16], 0, y, 0, memory[:8].view(np.uint64), 0), y)
    np.testing.assert_array_equal(memory, before)


def test_overflowing_batches_are_refused(max_pool):
    y, indices = outputs()
    call = c.BNNSPoolingFilterApplyBatch
    for batch, stride in ((2**63, 0), (2**60, 0), (2, 2**63), (2, 2**62)):
        assert_refused(call(max_pool, batch, X, stride, y, stride, indices, stride), y, indices)


def test_batch_strides_that_overlap_outputs_are_refused(max_pool):
    x = np.ones(64, np.float32)
    y, _ = sentinel_array((16,), "float32")
    indices, _ = sentinel_array((16,), "uint64")
    call = c.BNNSPoolingFilterApplyBatch
    assert_refused(call(max_pool, 3, x, 16, y, 3, indices, 4), y, indices)
    assert_refused(call(max_pool, 3, x, 16, y, 4, indices, 3), y, indices)


@pytest.mark.parametrize("name", ["Int32", "Int64", "UInt8", "UInt16", "Float32", "Boolean"])
def test_other_index_types_are_refused(max_pool, name):
    y, indices = outputs()
    kind = getattr(c, "BNNSDataType" + name)
    call = c.BNNSPoolingFilterApplyBatchEx
    assert_refused(call(max_pool, 1, X, 0, y, 0, kind, indices, 0), y, indices)


def test_dead_and_stray_handles_are_refused():
    y, indices = outputs()
    f = create(MAX, (1, 4, 4), (1, 2, 2))
    c.BNNSFilterDestroy(f)
    call = c.BNNSPoolingFilterApplyBatch
    for handle in (f, None, 1, 0xDEADBEEF, f ^ 1, f + (1 << 32), 2**64 - 1):
        assert_refused(call(handle, 1, X, 0, y, 0, indices, 0), y, indices)
        c.BNNSFilterDestroy(handle)


def test_handle_of_another_kind_is_refused():
    f = activation_layer(3, vector(4), vector(4))
    dx, dy = sentinel_array((16,), "float32")[0], np.ones(4, np.float32)
    target, delta = image((1, 4, 4), data=dx), image((1, 2, 2), data=dy)
    status = c.BNNSPoolingFilterApplyBackwardBatch(
        f, 1, X, 0, target, 0, None, 0, delta, 0, None, None, 0
    )
    assert_refused(status, dx)
    c.BNNSFilterDestroy(f)


def test_unmax_without_indices_is_refused(unmax):
    x = np.ones(4, np.float32)
    y, _ = sentinel_array((16,), "float32")
    assert_refused(c.BNNSPoolingFilterApplyBatch(unmax, 1, x, 0, y, 0, None, 0), y)
    assert_refused(c.BNNSFilterApply(unmax, x, y), y)


@pytest.mark.parametrize("index", [16, 17, 2**31, 2**32, 2**63, 2**64 - 1])
def test_unmax_index_out_of_range_is_refused(unmax, index):
    x = np.ones(4, np.float32)
    y, _ = sentinel_array((16,), "float32")
    indices = np.array([0, 1, 2, index], np.uint64)
    assert_refused(c.BNNSPoolingFilterApplyBatch(unmax, 1, x, 0, y, 0, indices, 0), y)


def backward(f, x, dx, y, dy, bias=None, indices=None):
    """One sample through the pooling backward call; dx, dy, bias are descriptors or None."""
    return c.BNNSPoolingFilterApplyBackwardBatch(f, 1, x, 0, dx, 0, y, 0, dy, 0, bias, indices, 0)


def gradients():
    """(dx array, its descriptor, descriptor of dy) of the max pooling above."""
    dx, _ = sentinel_array((16,), "float32")
    return dx, image((1, 4, 4), data=dx), image((1, 2, 2), data=np.ones(4, np.float32))


@pytest.mark.parametrize("index", [16, 2**32, 2**64 - 1])
def test_max_backward_index_out_of_range_is_refused(max_pool, index):
    dx, target, delta = gradients()
    indices = np.array([0, 2, 8, index], np.uint64)
    assert_refused(backward(max_pool, X, target, None, delta, indices=indices), dx)


def test_max_backward_with_indices_outside_their_windows_scatters(max_pool):
    dx, target, delta = gradients()
    assert backward(max_pool, None, target, None, delta, indices=np.uint64([15, 15, 0, 3])) == 0
    expected = np.zeros(16)
    expected[[15, 0, 3]] = [2, 1, 1]
    np.testing.assert_array_equal(dx, expected)


def test_max_backward_without_input_and_indices_is_refused(max_pool):
    dx, target, delta = gradients()
    assert_refused(backward(max_pool, None, target, X[:4], delta), dx)


def test_l2_norm_backward_without_input_is_refused():
    f = create(L2, (1, 4, 4), (1, 2, 2))
    dx, target, delta = gradients()
    assert_refused(backward(f, None, target, X[:4], delta), dx)
    c.BNNSFilterDestroy(f)


def test_unmax_backward_without_indices_is_refused(unmax):
    dx, _ = sentinel_array((4,), "float32")
    target, delta = image((1, 2, 2), data=dx), image((1, 4, 4), data=np.ones(16, np.float32))
    assert_refused(backward(unmax, X[:4], target, None, delta), dx)


def test_backward_without_output_of_a_fused_activation_is_refused():
    f = create(AVERAGE, (1, 4, 4), (1, 2, 2), activation=c.BNNSActivation(function=3))
    dx, target, delta = gradients()
    assert_refused(backward(f, X, target, None, delta), dx)
    c.BNNSFilterDestroy(f)


@pytest.mark.parametrize("function", [6, 12, 30, 31, 33, 34])
def test_backward_of_an_activation_that_needs_its_input_is_refused(function):
    activation = c.BNNSActivation(function=function, alpha=0.8, beta=0.04)
    f = create(AVERAGE, (1, 4, 4), (1, 2, 2), activation=activation)
    y = np.zeros(4, np.float32)
    assert c.BNNSFilterApply(f, X, y) == 0  # inference is fine
    dx, target, delta = gradients()
    assert_refused(backward(f, X, target, y, delta), dx)
    c.BNNSFilterDestroy(f)


def test_backward_without_output_gradient_is_refused(max_pool):
    dx, target, _ = gradients()
    assert_refused(backward(max_pool, X, target, None, None), dx)
    assert_refused(backward(max_pool, X, target, None, image((1, 2, 2))), dx)


def test_backward_with_wrong_gradient_shapes_and_types_is_refused(max_pool):
    dx, target, delta = gradients()
    ones = np.ones(64, np.float32)
    for bad in (image((1, 2, 3), data=ones), image((2, 2, 2), data=ones), vector(4, data=ones)):
        assert_refused(backward(max_pool, X, target, None, bad), dx)
    half = image((1, 2, 2), "float16", data=ones)
    assert_refused(backward(max_pool, X, target, None, half), dx)
    for bad in (image((1, 4, 3), data=dx), image((1, 4, 4)), image((1, 4, 4), "float16", data=dx)):
        assert_refused(backward(max_pool, X, bad, None, delta), dx)


def test_backward_with_overlapping_gradients_is_refused(max_pool):
    memory, _ = sentinel_array((20,), "float32")
    target, delta = image((1, 4, 4), data=memory[:16]), image((1, 2, 2), data=memory[12:16])
    assert_refused(backward(max_pool, X, target, None, delta), memory)


def test_backward_with_overlapping_gradient_strides_is_refused(max_pool):
    dx, _ = sentinel_array((16,), "float32")
    target = image((1, 4, 4), data=dx, strides=(16, 2, 1))
    assert_refused(backward(max_pool, X, target, None, gradients()[2]), dx)


def test_bias_gradient_of_another_size_is_refused(max_pool):
    dx, target, delta = gradients()
    bias, _ = sentinel_array((4,), "float32")
    status = backward(max_pool, X, target, None, delta, vector(2, data=bias))
    assert_refused(status, dx, bias)


def test_weights_gradient_of_pooling_is_refused(max_pool):
    dx, target, delta = gradients()
    weights, _ = sentinel_array((4,), "float32")
    status = c.BNNSFilterApplyBackwardBatch(
        max_pool, 1, X, 0, target, 0, None, 0, delta, 0, vector(4, data=weights), None
    )
    assert_refused(status, dx, weights)


def test_backward_with_nothing_wanted_succeeds(max_pool):
    _, _, delta = gradients()
    assert backward(max_pool, None, None, None, delta) == 0


def test_backward_leaves_the_output_gradient_alone(max_pool):
    dy = np.float32([1, 2, 3, 4])
    dx, target, _ = gradients()
    assert backward(max_pool, X, target, None, image((1, 2, 2), data=dy)) == 0
    np.testing.assert_array_equal(dy, [1, 2, 3, 4])
    assert dx[5] == 1.0


def test_two_input_calls_refuse_pooling(max_pool):
    y, _ = outputs()
    assert_refused(c.BNNSFilterApplyTwoInput(max_pool, X, X, y), y)
    assert_refused(c.BNNSFilterApplyTwoInputBatch(max_pool, 1, X, 0, X, 0, y, 0), y)
