"""openbnns.c: pointers from Python objects, lifetimes, and a program in the style of C."""

import ctypes
import doctest
import gc
import subprocess
import sys
import weakref

import numpy as np
import pytest
from openbnns import c

f32 = np.float32


def image(width, height, channels, data=None):
    return c.BNNSNDArrayDescriptor(
        layout=c.BNNSDataLayoutImageCHW,
        size=[width, height, channels],
        data_type=c.BNNSDataTypeFloat32,
        data=data,
    )


def vector(data):
    return c.BNNSNDArrayDescriptor(
        layout=c.BNNSDataLayoutVector, size=[data.size], data_type=c.BNNSDataTypeFloat32, data=data
    )


@pytest.fixture
def relu():
    """An activation filter on four floats."""
    four = vector(np.zeros(4, f32))
    layer = c.BNNSLayerParametersActivation(
        i_desc=four,
        o_desc=four,
        activation=c.BNNSActivation(function=c.BNNSActivationFunctionRectifiedLinear),
    )
    handle = c.BNNSFilterCreateLayerActivation(layer, None)
    assert handle, c.last_error()
    yield handle
    c.BNNSFilterDestroy(handle)


@pytest.fixture
def max_pool():
    """Windows of 2x2 on one image of 4x4."""
    layer = c.BNNSLayerParametersPooling(
        i_desc=image(4, 4, 1),
        o_desc=image(2, 2, 1),
        pooling_function=c.BNNSPoolingFunctionMax,
        k_width=2,
        k_height=2,
        x_stride=2,
        y_stride=2,
    )
    handle = c.BNNSFilterCreateLayerPooling(ctypes.byref(layer), None)
    assert handle, c.last_error()
    yield handle
    c.BNNSFilterDestroy(handle)


# ---- pointers ----


def test_arrays_are_passed_by_address(relu):
    x, y = np.array([-1, 2, -3, 4], f32), np.full(4, 9, f32)
    assert c.BNNSFilterApply(relu, x, y) == 0
    np.testing.assert_array_equal(y, [0, 2, 0, 4])


@pytest.mark.parametrize("kind", ["address", "ctypes array", "byref", "pointer", "memoryview"])
def test_other_ways_to_say_the_same(relu, kind):
    x = np.array([-1, 2, -3, 4], f32)
    y = (ctypes.c_float * 4)(9, 9, 9, 9)
    out = {
        "address": ctypes.addressof(y),
        "ctypes array": y,
        "byref": ctypes.byref(y),
        "pointer": ctypes.pointer(y),
        "memoryview": memoryview(y).cast("B"),
    }[kind]
    assert c.BNNSFilterApply(relu, x.ctypes.data, out) == 0
    assert list(y) == [0, 2, 0, 4]


def test_bytes_can_be_read(relu):
    x, y = np.array([-1, 2, -3, 4], f32).tobytes(), bytearray(16)
    assert c.BNNSFilterApply(relu, x, y) == 0
    np.testing.assert_array_equal(np.frombuffer(y, f32), [0, 2, 0, 4])


def test_a_strided_array_is_its_base_address(relu):
    x = np.array([[-1, 8], [2, 8], [-3, 8], [4, 8]], f32)[:, 0]
    y = np.zeros(4, f32)
    assert c.BNNSFilterApply(relu, x, y) == 0
    np.testing.assert_array_equal(y, [0, 8, 2, 8])


def test_read_only_input_is_accepted_and_output_refused(relu):
    x, y = np.array([-1, 2, -3, 4], f32), np.zeros(4, f32)
    x.flags.writeable = False
    assert c.BNNSFilterApply(relu, x, y) == 0
    with pytest.raises(ctypes.ArgumentError, match=r"out: void \* is written to"):
        c.BNNSFilterApply(relu, y, x)
    with pytest.raises(ctypes.ArgumentError, match="read-only"):
        c.BNNSFilterApply(relu, y, bytes(16))


def test_read_only_array_in_a_field_follows_const():
    x = np.zeros(4, f32)
    x.flags.writeable = False
    assert c.BNNSLayerData(data=x).data == x.ctypes.data
    with pytest.raises(TypeError, match="read-only"):
        c.BNNSNDArrayDescriptor(data=x)


def test_none_is_null(relu):
    assert c.BNNSFilterApply(relu, None, np.zeros(4, f32)) == -1
    assert c.BNNSFilterApply(None, np.zeros(4, f32), np.zeros(4, f32)) == -1
    c.BNNSFilterDestroy(None)


def test_a_scalar_is_no_buffer(relu):
    with pytest.raises(ctypes.ArgumentError, match=r"in: expected const void \*; got float32"):
        c.BNNSFilterApply(relu, f32(1), np.zeros(4, f32))
    with pytest.raises(ctypes.ArgumentError):
        c.BNNSFilterApply(relu, 1.0, np.zeros(4, f32))


def test_wrong_struct_is_refused():
    with pytest.raises(ctypes.ArgumentError, match=r"array: expected const BNNSNDArrayDescriptor"):
        c.BNNSNDArrayGetDataSize(c.BNNSTensor())
    with pytest.raises(ctypes.ArgumentError):
        c.BNNSNDArrayGetDataSize(ctypes.byref(c.BNNSTensor()))
    with pytest.raises(ctypes.ArgumentError):
        c.BNNSNDArrayGetDataSize(np.zeros(200, np.uint8))


def test_struct_by_reference_in_all_forms():
    four = vector(np.zeros(4, f32))
    array = (c.BNNSNDArrayDescriptor * 1)(four)
    for form in (four, ctypes.byref(four), ctypes.pointer(four), ctypes.addressof(four), array):
        assert c.BNNSNDArrayGetDataSize(form) == 16


def test_typed_pointer_checks_the_item_size(max_pool):
    x, y = np.zeros(16, f32), np.zeros(4, f32)
    with pytest.raises(ctypes.ArgumentError, match="indices: expected items of 8 bytes"):
        c.BNNSPoolingFilterApplyBatch(max_pool, 1, x, 16, y, 4, np.zeros(4, np.uint32), 4)


def test_any_loss_struct_is_a_void_pointer():
    for name in ("Base", "SoftmaxCrossEntropy", "SigmoidCrossEntropy", "Huber", "Yolo"):
        c.obn_clear_error()
        c.BNNSFilterCreateLayerLoss(getattr(c, f"BNNSLayerParametersLoss{name}")(), None)


def test_lists_of_pointers():
    """What C receives from a list, seen through the parameter itself."""
    in_ = c.BNNSArithmeticFilterApplyBatch.argtypes[3]
    x, buffer = np.zeros(4, f32), bytes(8)
    received = in_.from_param([x, None, 123, buffer])
    assert received[0] == x.ctypes.data
    assert received[1] is None
    assert received[2] == 123
    assert ctypes.string_at(received[3], 8) == buffer

    in_delta = c.BNNSArithmeticFilterApplyBackwardBatch.argtypes[5]
    first, second = c.BNNSNDArrayDescriptor(), c.BNNSNDArrayDescriptor()
    received = in_delta.from_param((first, ctypes.pointer(second), None))
    assert list(received) == [ctypes.addressof(first), ctypes.addressof(second), None]
    with pytest.raises(TypeError):
        in_delta.from_param([x])

    in_stride = c.BNNSArithmeticFilterApplyBatch.argtypes[4]
    assert list(in_stride.from_param([4, 0])) == [4, 0]


def test_list_is_refused_where_results_would_be_lost(max_pool):
    x, y = np.zeros(16, f32), np.zeros(4, f32)
    with pytest.raises(ctypes.ArgumentError):
        c.BNNSPoolingFilterApplyBatch(max_pool, 1, x, 16, y, 4, [0, 0, 0, 0], 4)


def test_strings():
    assert c.obn_is_implemented("BNNSFilterApply") == 1
    assert c.obn_is_implemented(b"BNNSFilterApply") == 1
    assert isinstance(c.obn_version(), str)
    layer = c.BNNSLayerParametersTensorContraction(operation="a_ij -> o_ji")
    assert layer.operation == b"a_ij -> o_ji"


# ---- structs ----


class Array(np.ndarray):
    """An array that can be watched."""


def watched():
    array = np.arange(4, dtype=f32).view(Array)
    return array, weakref.ref(array)


@pytest.fixture
def no_collector():
    """Objects have to go when the last reference goes, without help from the collector."""
    gc.disable()
    yield
    gc.enable()


def test_struct_keeps_an_array_alive(no_collector):
    array, watch = watched()
    descriptor = c.BNNSNDArrayDescriptor(data=array)
    assert descriptor.data == array.ctypes.data
    del array
    assert watch() is not None
    del descriptor
    assert watch() is None


def test_attribute_keeps_an_array_alive_inside_a_struct(no_collector):
    array, watch = watched()
    layer = c.BNNSLayerParametersPooling()
    layer.bias.data = array
    del array
    assert watch() is not None
    assert layer.bias.data == watch().ctypes.data
    del layer
    assert watch() is None


def test_copies_keep_what_they_point_to(no_collector):
    array, watch = watched()
    descriptor = c.BNNSNDArrayDescriptor(data=array)
    layer = c.BNNSLayerParametersPooling(i_desc=descriptor)
    descriptor.data = np.zeros(4, f32)  # the copy still points to the first array
    other = c.BNNSLayerParametersPooling()
    other.o_desc = layer.i_desc
    gate = c.BNNSLSTMGateDescriptor()
    gate.iw_desc[1] = other.o_desc
    address = array.ctypes.data
    del array, descriptor, layer, other
    assert watch() is not None
    assert gate.iw_desc[1].data == address
    del gate
    assert watch() is None


def test_struct_keeps_a_struct_alive():
    layer = c.BNNSLayerParametersArithmetic(
        arithmetic_function_fields=c.BNNSArithmeticBinary(in1_type=c.BNNSParameter)
    )
    gc.collect()
    fields = c.BNNSArithmeticBinary.from_address(layer.arithmetic_function_fields)
    assert fields.in1_type == c.BNNSParameter


def test_lists_fill_array_fields():
    descriptor = c.BNNSNDArrayDescriptor(size=[2, 3], stride=(1, 2))
    assert list(descriptor.size) == [2, 3, 0, 0, 0, 0, 0, 0]
    descriptor.size = np.array([5, 6, 7])
    assert list(descriptor.size) == [5, 6, 7, 0, 0, 0, 0, 0]
    padding = c.BNNSLayerParametersPadding(padding_size=[[1, 2], [3, 4]])
    assert [tuple(pair) for pair in padding.padding_size][:3] == [(1, 2), (3, 4), (0, 0)]


def test_pointer_fields_can_be_cleared():
    descriptor = vector(np.zeros(4, f32))
    descriptor.data = None
    assert descriptor.data is None
    activation = c.BNNSActivation(iscale_per_channel=np.array([1, 2], np.int32))
    assert activation.iscale_per_channel[1] == 2
    activation.iscale_per_channel = None
    assert not activation.iscale_per_channel


def test_union_members_share_their_place():
    tensor = c.BNNSTensor(rank=2)
    argument = c.bnns_graph_argument_t(tensor=tensor, data_ptr_size=7)
    assert argument.tensor.contents.rank == 2
    assert argument.data_ptr == ctypes.addressof(tensor)
    assert argument.data_ptr_size == 7


def test_struct_returned_by_value(relu):
    assert c.BNNSGetPointer(None, c.BNNSPointerSpecifierAlpha).data is None
    alpha = c.BNNSGetPointer(relu, c.BNNSPointerSpecifierAlpha)
    assert isinstance(alpha, c.BNNSNDArrayDescriptor)


# ---- callbacks ----


def test_log_callback_hears_failures():
    heard = []
    callback = c.obn_log_callback(lambda message, user: heard.append((message.decode(), user)))
    c.obn_set_log_callback(callback, 42)
    try:
        assert c.BNNSFilterApply(None, None, None) == -1
    finally:
        c.obn_set_log_callback(None, None)
    assert heard == [(c.last_error(), 42)]
    c.BNNSFilterApply(None, None, None)
    assert len(heard) == 1


def test_plain_function_is_no_callback():
    with pytest.raises(ctypes.ArgumentError, match="obn_log_callback"):
        c.obn_set_log_callback(print, None)


def test_callback_fields_are_kept_and_cleared(no_collector):
    def allocate(pointer, alignment, size):
        return 1

    watch = weakref.ref(allocate)
    options = c.BNNSFilterParameters(alloc_memory=c.BNNSAlloc(allocate))
    del allocate
    assert watch() is not None
    assert options.alloc_memory(None, 64, 64) == 1
    options.alloc_memory = None
    assert not options.alloc_memory


# ---- the module ----


def test_names_are_read_on_first_use():
    program = (
        "import sys, openbnns.c as c\n"
        "assert c._headers is None and c._library is None\n"
        "assert c.BNNSPoolingFunctionMax == 0\n"
        "assert c._headers is not None and c._library is None\n"
        "assert c.last_error() == ''\n"
        "assert c._library is not None\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="BNNSNoSuchThing"):
        c.BNNSNoSuchThing  # noqa: B018
    assert not hasattr(c, "__path__")


def test_dir_lists_everything():
    names = dir(c)
    assert {"BNNSFilterApply", "BNNSNDArrayDescriptor", "BNNSAlloc", "last_error"} <= set(names)
    assert len(names) == len(set(names)) > 500


def test_function_shows_its_declaration():
    declared = "int BNNSFilterApply(BNNSFilter filter, const void *in, void *out);"
    assert c.BNNSFilterApply.__doc__ == declared


def test_the_example_of_the_module():
    assert doctest.testmod(c).failed == 0


# ---- a program ported line by line ----

X = np.arange(1, 17, dtype=f32)
DY = np.array([1, 2, 3, 4], f32)
DX = np.zeros(16, f32)
DX[[5, 7, 13, 15]] = DY  # recorded from the original library


def test_max_pooling_with_size_t_indices(max_pool):
    y, indices, dx = np.zeros(4, f32), np.zeros(4, np.uintp), np.full(16, 7, f32)
    assert c.BNNSPoolingFilterApplyBatch(max_pool, 1, X, 16, y, 4, indices, 4) == 0
    np.testing.assert_array_equal(y, [6, 8, 14, 16])
    np.testing.assert_array_equal(indices, [5, 7, 13, 15])
    in_delta, out_delta = image(4, 4, 1, dx), image(2, 2, 1, DY)
    status = c.BNNSPoolingFilterApplyBackwardBatch(
        max_pool, 1, X, 16, in_delta, 16, y, 4, out_delta, 4, None, indices, 4
    )
    assert status == 0, c.last_error()
    np.testing.assert_array_equal(dx, DX)


def test_max_pooling_with_uint32_indices(max_pool):
    y, indices, dx = np.zeros(4, f32), np.zeros(4, np.uint32), np.full(16, 7, f32)
    kind = c.BNNSDataTypeUInt32
    assert c.BNNSPoolingFilterApplyBatchEx(max_pool, 1, X, 16, y, 4, kind, indices, 4) == 0
    np.testing.assert_array_equal(indices, [5, 7, 13, 15])
    in_delta, out_delta = image(4, 4, 1, dx), image(2, 2, 1, DY)
    status = c.BNNSPoolingFilterApplyBackwardBatchEx(
        max_pool, 1, X, 16, in_delta, 16, y, 4, out_delta, 4, None, kind, indices, 4
    )
    assert status == 0, c.last_error()
    np.testing.assert_array_equal(dx, DX)


def test_max_pooling_finds_its_indices_again(max_pool):
    dx = np.full(16, 7, f32)
    in_delta, out_delta = image(4, 4, 1, dx), image(2, 2, 1, DY)
    status = c.BNNSPoolingFilterApplyBackwardBatch(
        max_pool, 1, X, 16, in_delta, 16, None, 0, out_delta, 4, None, None, 0
    )
    assert status == 0, c.last_error()
    np.testing.assert_array_equal(dx, DX)


def test_gradient_accumulates_when_asked(max_pool):
    dx = np.ones(16, f32)
    in_delta, out_delta = image(4, 4, 1, dx), image(2, 2, 1, DY)
    in_delta.flags = c.BNNSNDArrayFlagBackpropAccumulate
    status = c.BNNSPoolingFilterApplyBackwardBatch(
        max_pool, 1, X, 16, in_delta, 16, None, 0, out_delta, 4, None, None, 0
    )
    assert status == 0, c.last_error()
    np.testing.assert_array_equal(dx, DX + 1)


def test_failure_leaves_outputs_and_a_sentence(max_pool):
    c.obn_clear_error()
    dx = np.full(16, 7, f32)
    in_delta, out_delta = image(4, 4, 1, dx), image(3, 2, 1, np.zeros(6, f32))
    status = c.BNNSPoolingFilterApplyBackwardBatch(
        max_pool, 1, X, 16, in_delta, 16, None, 0, out_delta, 6, None, None, 0
    )
    assert status == -1
    assert c.last_error() != ""
    np.testing.assert_array_equal(dx, 7)
