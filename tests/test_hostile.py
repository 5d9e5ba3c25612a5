"""Arguments that nobody means: memory that overlaps, strides and sizes that no machine has, gaps
where none are expected. A call computes what it says or refuses, and then nothing has changed."""

import ctypes
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import openbnns
import pytest
from cases import arithmetic as arithmetic_cases
from cases import attention as attention_cases
from cases import convolution as convolution_cases
from cases import fully_connected as fully_connected_cases
from cases import fused as fused_cases
from cases import is_sentinel, sentinel_array
from cases import loss as loss_cases
from cases import matmul as matmul_cases
from cases import normalization as normalization_cases
from cases import pooling as pooling_cases
from cases.descriptors import (
    convolution_parameters,
    first_major,
    image,
    matrix,
    pooling_parameters,
    vector,
    weights,
)
from openbnns import c
from oracles.tolerance import assert_same_bits

f32 = np.float32


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(f32)


# ---- gaps ----

SAMPLES = (2, 6, 6)  # what goes into the three layers below


def pooled_layer(outputs, output, moving=None, **options):
    """A convolution, a batch norm and maxima of 2x2, the last two one after the other."""
    statistics = (
        {} if moving is None else dict(zip(("moving_mean", "moving_variance"), moving, strict=True))
    )
    return openbnns.FusedParametersLayer(
        openbnns.FusedConvolutionParameters(numbers(outputs, 2, 3, 3), padding=1),
        openbnns.FusedNormalizationParameters(
            "batch", numbers(outputs, seed=1), numbers(outputs, seed=2), **statistics
        ),
        openbnns.FusedPoolingParameters("max", 2, 2, 0),
        input=SAMPLES,
        output=output,
        **options,
    )


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(
    "memory", [(1, 3, 100000), (1, 3, 5), (1, 100, 3), (2, 3, 7), (2, 1000, 5)], ids=str
)
def test_gaps_of_a_pooled_output_change_nothing(memory, batch):
    """What is kept, results, gradients and running statistics are those of an output without."""
    outputs = memory[0]
    out = np.full((batch, *memory), 9, f32)[:, :, :3, :3]
    spec = openbnns.ArraySpec(out.shape[1:], "float32", out.strides[1:])
    x, dy = numbers(batch, *SAMPLES), numbers(batch, outputs, 3, 3, seed=3)
    moving, expected_moving = ((np.zeros(outputs, f32), np.ones(outputs, f32)) for _ in range(2))
    layer = pooled_layer(outputs, spec, moving)
    packed = pooled_layer(outputs, None, expected_moving)
    assert layer.kept_bytes(batch) == packed.kept_bytes(batch)
    assert_same_bits(layer(x, training=True, out=out), packed(x, training=True))
    assert (out.base[:, :, 3:] == 9).all()
    assert (out.base[:, :, :, 3:] == 9).all()
    for array, expected in zip(moving, expected_moving, strict=True):
        assert_same_bits(array, expected)
    out[:] = dy
    ours = layer.apply_backward(x, y=None, grad_output=out)
    theirs = packed.apply_backward(x, y=None, grad_output=dy)
    for array, expected in zip(ours, theirs, strict=True):
        if expected is not None:
            assert_same_bits(array, expected)


# ---- sizes ----

HUGE = [2**k - d for k in range(1, 65) for d in (1, 0)][:-1]
FAMILIES = (
    arithmetic_cases,
    attention_cases,
    convolution_cases,
    fully_connected_cases,
    fused_cases,
    loss_cases,
    matmul_cases,
    normalization_cases,
    pooling_cases,
)
QUERIED = [
    pytest.param(case, id=f"{family.__name__}-{case}")
    for family in FAMILIES
    for case in family.CASES[::4]
    if "large" not in case.tags
]


@pytest.mark.parametrize("case", QUERIED)
def test_sizes_are_said_up_to_some_batch(case):
    """From there on SIZE_MAX, with a sentence. What is the same for all batches may stay so."""
    layer = case.layer()
    for question in (c.obn_filter_work_bytes, c.obn_filter_kept_bytes):
        answers = [question(layer.handle, batch) for batch in HUGE]
        if len({question(layer.handle, 0), *answers}) <= 2 and c.SIZE_MAX not in answers:
            continue
        first = answers.index(c.SIZE_MAX)
        assert HUGE[first] > 2**20
        assert set(answers[first:]) == {c.SIZE_MAX}
        c.obn_clear_error()
        assert question(layer.handle, 2**62) == c.SIZE_MAX
        assert c.last_error().startswith("batch")


@pytest.mark.parametrize("batch", [2**47, 2**58, 2**62, 2**63, 2**64 - 1])
def test_python_raises_where_a_size_cannot_be_said(batch):
    kinds = "batch", "instance", "layer", openbnns.Normalization.group(2)
    questions = [openbnns.NormalizationLayer(kind, input=(4, 2, 2)).kept_bytes for kind in kinds]
    for layer in (pooled_layer(1, None), *(case.layer() for case in fused_cases.PAIRS[:3])):
        questions += [layer.kept_bytes, layer.work_bytes]
    for case in (convolution_cases.ODD, fully_connected_cases.ODD):
        questions.append(case.layer().work_bytes)
    for question in questions:
        with pytest.raises(openbnns.LayerApplyError, match="batch"):
            question(batch)


@pytest.mark.parametrize("batch", [2**58, 2**62, 2**64 - 1])
def test_attention_refuses_to_say_what_it_cannot(batch):
    layer = attention_cases.CASES[0].layer()
    cache, work = (ctypes.c_size_t(7) for _ in range(2))
    status = c.BNNSApplyMultiheadAttention(
        layer.handle, batch, *5 * (None, 0), None, cache, None, work, None
    )
    assert status == -1
    assert (cache.value, work.value) == (7, 7)
    assert c.last_error().startswith("batch")


@pytest.mark.parametrize("side", [2**20, 2**22])
def test_workspace_of_a_huge_product(side):
    a, b, out = (matrix((side, side)) for _ in range(3))
    assert c.BNNSMatMulWorkspaceSize(False, True, 1.0, a, b, out, None) >= 0
    a, b, out = (first_major((2**40, side, side)) for _ in range(3))
    assert c.BNNSMatMulWorkspaceSize(False, True, 1.0, a, b, out, None) == -1


# ---- creation ----

CREATE = """
from openbnns import c
from cases.descriptors import convolution_parameters, image, pooling_parameters, weights
import numpy as np

far = 2 ** {power}
w = np.ones((1, 1, 2, 2), "f4")
for across in (False, True):
    def plane(long, short=3):
        return image((1, short, long) if across else (1, long, short))
    def pair(long, short):
        return (short, long) if across else (long, short)
    def axis(**values):
        return {{("x_" if across else "y_") + name: value for name, value in values.items()}}
    long, two, three = plane(far + 2), plane(2, 2), plane(3, 3)
    blocks = [  # input, output, stride, padding, more
        (long, two, pair(far, 1), (0, 0), {{}}),
        (two, two, pair(far, 1), pair(far // 2, 0), {{}}),
        (three, plane(1, 2), (1, 1), pair(far // 2, 0), axis(dilation_stride=far)),
        (three, plane(far + 1, 2), (1, 1), pair(far // 2, 0), {{}}),
        (long, plane(2, 2), (1, 1), (0, 0), axis(dilation_stride=far)),
    ]
    handles = []
    for before, after, stride, padding, more in blocks:
        # Twice: as it is, and as the other one's gradient.
        handles.append(c.BNNSFilterCreateLayerConvolution(convolution_parameters(
            before, weights(w.shape, data=w), after, stride, padding, **more), None))
        handles.append(c.BNNSFilterCreateLayerTransposedConvolution(convolution_parameters(
            after, weights(w.shape, data=w), before, stride, padding, **more), None))
        for function in range(5):
            turned = function == c.BNNSPoolingFunctionUnMax
            handles.append(c.BNNSFilterCreateLayerPooling(pooling_parameters(
                function, after if turned else before, before if turned else after, (2, 2), stride,
                padding, **more), None))
    for handle in handles:
        if handle:
            c.obn_filter_work_bytes(handle, 1)
            c.BNNSFilterDestroy(handle)
    print(sum(handle is not None for handle in handles))
"""


@pytest.mark.parametrize("power", [20, 26, 31, 40])
def test_creation_does_not_walk_along_strides(power):
    """Who does takes hours for 2**40."""
    done = subprocess.run(
        [sys.executable, "-c", CREATE.format(power=power)],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split() == ["33", "33"]


# ---- memory that overlaps ----

CLIENT = c.BNNSFilterParameters(flags=c.BNNSFlagsUseClientPtr)


def assert_refused(status, *words):
    """The call failed, or there is no filter, because of two arguments that overlap."""
    assert status in (None, -1)
    sentence = c.last_error()
    assert "overlap" in sentence
    for word in words:
        assert word in sentence


def norm_parameters(shape, **arrays):
    descriptors = {f"{name}_desc": vector(shape[0], data=data) for name, data in arrays.items()}
    return c.BNNSLayerParametersNormalization(
        i_desc=image(shape), o_desc=image(shape), momentum=0.9, epsilon=1e-3, **descriptors
    )


@pytest.fixture(params=[None, CLIENT], ids=["copied", "client pointers"])
def options(request):
    return request.param


@pytest.mark.parametrize("kind", [c.BNNSBatchNorm, c.BNNSInstanceNorm])
@pytest.mark.parametrize("shift", [0, 2, -2])
@pytest.mark.parametrize(
    "pair",
    [
        ("moving_mean", "moving_variance"),
        ("moving_mean", "gamma"),
        ("moving_mean", "beta"),
        ("moving_variance", "gamma"),
        ("moving_variance", "beta"),
    ],
)
def test_running_statistics_lie_apart_from_other_parameters(kind, pair, shift, options):
    memory = np.zeros((6, 8), f32)
    names = ("moving_mean", "moving_variance", "gamma", "beta")
    arrays = {name: memory[k, 2:5] for k, name in enumerate(names)}
    parameters = norm_parameters((3, 2, 2), **arrays)
    handle = c.BNNSFilterCreateLayerNormalization(kind, parameters, options)
    assert handle, c.last_error()
    c.BNNSFilterDestroy(handle)
    arrays[pair[0]] = memory[names.index(pair[1]), 2 + shift : 5 + shift]
    parameters = norm_parameters((3, 2, 2), **arrays)
    assert_refused(c.BNNSFilterCreateLayerNormalization(kind, parameters, options), *pair)


def test_gamma_and_beta_may_be_one_array(options):
    one = np.ones(3, f32)
    parameters = norm_parameters((3, 2, 2), gamma=one, beta=one)
    handle = c.BNNSFilterCreateLayerNormalization(c.BNNSBatchNorm, parameters, options)
    assert handle, c.last_error()
    c.BNNSFilterDestroy(handle)


def first_layer(kind, w):
    """Type and parameters of a layer from (3, 2, 2) to (3, 2, 2), or of vectors."""
    shape = (3, 2, 2)
    if kind == "convolution":
        block = convolution_parameters(image(shape), weights((3, 3, 1, 1), data=w), image(shape))
        return c.BNNSConvolution, block
    if kind == "fully connected":
        return c.BNNSFullyConnected, c.BNNSLayerParametersFullyConnected(
            i_desc=vector(3), w_desc=matrix((3, 3), data=w), o_desc=vector(3)
        )
    fields = c.BNNSArithmeticBinary(
        in1=image(shape),
        in1_type=c.BNNSSample,
        in2=image(shape),
        in2_type=c.BNNSSample,
        out=image(shape),
        out_type=c.BNNSSample,
    )
    block = c.BNNSLayerParametersArithmetic(
        arithmetic_function=c.BNNSArithmeticAdd,
        arithmetic_function_fields=ctypes.cast(ctypes.pointer(fields), ctypes.c_void_p),
    )
    return c.BNNSArithmetic, block, fields


def fused_filter(kind, w, mean, variance, options=None):
    type_, block, *kept = first_layer(kind, w)
    norm = norm_parameters((3, 2, 2), moving_mean=mean, moving_variance=variance)
    if kind == "fully connected":
        norm.i_desc = norm.o_desc = vector(3)
    types = (c.BNNSFilterType * 2)(type_, c.BNNSBatchNorm)
    blocks = (ctypes.c_void_p * 2)(ctypes.addressof(block), ctypes.addressof(norm))
    handle = c.BNNSFilterCreateFusedLayer(2, types, blocks, options)
    del kept
    return handle


@pytest.mark.parametrize("at", [0, 11, 23])
def test_running_statistics_lie_apart_from_the_input(at):
    """In training, which writes them. Inference reads both."""
    x, y = numbers(24), np.full(24, 9, f32)
    before, other = x.copy(), np.ones(3, f32)
    for mean, variance in ((x[at : at + 1], other[:1]), (other[:1], x[at : at + 1])):
        parameters = norm_parameters((1, 3, 4), moving_mean=mean, moving_variance=variance)
        handle = c.BNNSFilterCreateLayerNormalization(c.BNNSBatchNorm, parameters, None)
        assert_refused(c.BNNSNormalizationFilterApplyBatch(handle, 2, x, 0, y, 0, True), "input")
        assert (y == 9).all()
        assert_same_bits(x, before)
        assert_same_bits(other, np.ones(3, f32))
        assert c.BNNSNormalizationFilterApplyBatch(handle, 2, x, 0, y, 0, False) == 0
        y[:] = 9
        c.BNNSFilterDestroy(handle)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("kind", ["convolution", "fully connected", "arithmetic"])
def test_running_statistics_of_a_pair_lie_apart_from_its_inputs(kind, batch):
    w, y = numbers(9), np.full((batch, 12), 9, f32)
    size = 3 if kind == "fully connected" else 12
    x, second, other = numbers(batch, size), numbers(batch, size, seed=1), np.ones(3, f32)
    before = x.copy()
    handle = fused_filter(kind, w, other, x.reshape(-1)[-3:])
    assert handle, c.last_error()
    if kind == "arithmetic":
        status = c.BNNSFusedFilterApplyMultiInputBatch(
            handle, batch, 2, [second, x], None, y, 0, True
        )
    else:
        status = c.BNNSFusedFilterApplyBatch(handle, batch, x, 0, y, 0, True)
    assert_refused(status, "moving_variance", "input")
    assert (y == 9).all()
    assert_same_bits(x, before)
    assert_same_bits(other, np.ones(3, f32))
    c.BNNSFilterDestroy(handle)


@pytest.mark.parametrize("kind", ["convolution", "fully connected"])
def test_running_statistics_of_a_pair_lie_apart_from_its_weights(kind):
    w, other = numbers(9), np.ones(3, f32)
    assert_refused(fused_filter(kind, w, w[6:], other, CLIENT), "moving_mean", "weights")


def test_what_a_pooling_writes_lies_apart_from_its_bias():
    memory, x, y = np.zeros(40, f32), numbers(1, 2, 4, 4), np.zeros(8, f32)
    bias, indices = memory[31:33], np.zeros(8, np.uint32)
    parameters = pooling_parameters(
        c.BNNSPoolingFunctionMax,
        image((2, 4, 4)),
        image((2, 2, 2)),
        (2, 2),
        (2, 2),
        bias=vector(2, data=bias),
    )
    handle = c.BNNSFilterCreateLayerPooling(parameters, CLIENT)
    type_ = c.BNNSDataTypeUInt32

    def apply(out, found):
        return c.BNNSPoolingFilterApplyBatchEx(handle, 1, x, 0, out, 0, type_, found, 0)

    def gradients(dx, db):
        return c.BNNSPoolingFilterApplyBackwardBatchEx(
            handle,
            1,
            x,
            0,
            image((2, 4, 4), data=dx),
            0,
            y,
            0,
            image((2, 2, 2), data=numbers(8)),
            0,
            vector(2, data=db),
            type_,
            indices,
            0,
        )

    assert apply(y, indices) == 0
    assert gradients(np.zeros(32, f32), np.zeros(2, f32)) == 0
    assert_refused(apply(memory[32:], indices), "output", "bias")
    assert_refused(apply(y, memory[32:]), "indices", "bias")
    assert_refused(gradients(memory, np.zeros(2, f32)), "input_gradient", "bias")
    assert_refused(gradients(np.zeros(32, f32), memory[32:]), "bias_gradient", "bias")
    assert (memory == 0).all()
    c.BNNSFilterDestroy(handle)


def test_gradients_of_a_convolution_lie_apart_from_its_bias():
    w, bias, x, dy = numbers(9), np.zeros(3, f32), numbers(12), numbers(12)
    _, parameters = first_layer("convolution", w)
    parameters.bias = vector(3, data=bias)
    handle = c.BNNSFilterCreateLayerConvolution(parameters, CLIENT)
    status = c.BNNSFilterApplyBackwardBatch(
        handle, 1, x, 0, None, 0, None, 0, image((3, 2, 2), data=dy), 0, None, vector(3, data=bias)
    )
    assert_refused(status, "bias_gradient", "bias")
    assert (bias == 0).all()
    c.BNNSFilterDestroy(handle)


@pytest.mark.parametrize("argument", ["query", "key", "value", "output"])
@pytest.mark.parametrize("room", ["cache", "workspace"])
def test_memory_of_attention_lies_apart_from_its_arrays(argument, room):
    case = attention_cases.AttentionCase(1, 2, 2, 1, 4, bias=False)
    layer = case.layer()
    sizes = {name: ctypes.c_size_t() for name in ("cache", "workspace")}
    nothing = (None, 0, None, 0, None, 0, None, 0, None, 0, None)
    rooms = ctypes.byref(sizes["cache"]), None, ctypes.byref(sizes["workspace"]), None
    assert c.BNNSApplyMultiheadAttention(layer.handle, 1, *nothing, *rooms) == 0
    memory = {name: np.zeros(size.value // 4 + 16, f32) for name, size in sizes.items()}
    p = case.parameters()
    arrays = {"query": p.q, "key": p.k, "value": p.v, "output": np.zeros_like(p.q)}

    def call():
        q, k, v, y = arrays.values()
        return c.BNNSApplyMultiheadAttention(
            layer.handle,
            1,
            q,
            0,
            k,
            0,
            None,
            0,
            v,
            0,
            y,
            0,
            None,
            ctypes.byref(sizes["cache"]),
            memory["cache"],
            ctypes.byref(sizes["workspace"]),
            memory["workspace"],
        )

    assert call() == 0, c.last_error()
    at = sizes[room].value // 4 - 8
    memory[room][:] = 0
    arrays[argument] = memory[room][at : at + 8]
    assert_refused(call(), room, argument)
    assert (memory[room] == 0).all()


@pytest.mark.parametrize("argument", [0, 1, 2])
def test_workspace_of_a_product_lies_apart_from_its_arrays(argument):
    arrays = [numbers(96, 96, seed=k).astype(np.float16) for k in range(3)]

    def descriptors():
        return [matrix((96, 96), "float16", data=array) for array in arrays]

    bytes_ = c.BNNSMatMulWorkspaceSize(False, False, 1.0, *descriptors(), None)
    assert bytes_ > 0
    workspace = np.zeros(bytes_, np.uint8)
    assert c.BNNSMatMul(False, False, 1.0, *descriptors(), workspace, None) == 0
    workspace[:] = 0
    arrays[argument] = workspace[: 96 * 96 * 2].view(np.float16).reshape(96, 96)
    words = "workspace", ("a", "b", "out")[argument]
    assert_refused(c.BNNSMatMul(False, False, 1.0, *descriptors(), workspace, None), *words)
    assert (workspace == 0).all()


@pytest.mark.parametrize("argument", ["scale", "bias"])
def test_quantized_values_lie_apart_from_their_factors(argument):
    x, y = numbers(8), np.zeros(16, np.int8)
    factors = {"scale": np.ones(1, f32), "bias": np.ones(1, f32)}
    y.view(f32)[1] = 1
    factors[argument] = y.view(f32)[1:2]
    before = y.copy()
    parameters = c.BNNSLayerParametersQuantization(
        i_desc=vector(8, data=x),
        o_desc=vector(8, "int8", data=y),
        **{name: vector(1, data=data) for name, data in factors.items()},
    )
    assert_refused(c.BNNSDirectApplyQuantizer(parameters, None, 1, 0, 0), "output", argument)
    assert_same_bits(y, before)


def clip(outs, xs):
    def describe(arrays):
        return [
            matrix(a.shape, data=a, strides=tuple(step // 4 for step in a.strides)) for a in arrays
        ]

    return c.BNNSClipByGlobalNorm(describe(outs), describe(xs), len(xs), 1.0, 0.0)


def test_arrays_that_are_clipped_together_lie_apart():
    memory = numbers(12, 4)
    before, spare = memory.copy(), np.zeros((2, 4), f32)
    first, second, across = memory[0:2], memory[2:4], memory[1:3]
    for outs, xs in (
        ([second, spare], [first, second]),  # read after it was written
        ([spare, first], [first, second]),
        ([first, first], [first, first]),  # would be done twice
        ([spare, spare], [first, second]),
        ([first, across], [first, across]),
    ):
        assert_refused(clip(outs, xs), "out")
        assert_same_bits(memory, before)
        assert (spare == 0).all()
    # One input twice, and columns of one array, are no overlap.
    assert clip([spare, memory[4:6]], [first, first]) == 0
    assert clip([memory[:, :1], memory[:, 1:]], [memory[:, :1], memory[:, 1:]]) == 0
    np.testing.assert_allclose(np.sqrt((memory.astype(float) ** 2).sum()), 1, rtol=1e-6)


def test_sums_of_arithmetic_do_not_take_the_place_of_each_others_sources():
    """da = sum of dy·b would be written over a before db = sum of dy·a is made."""
    a, b, dy = numbers(4), numbers(4, seed=1), numbers(3, 4, seed=2)
    fields = c.BNNSArithmeticBinary(
        in1=vector(4),
        in1_type=c.BNNSParameter,
        in2=vector(4),
        in2_type=c.BNNSParameter,
        out=vector(4),
        out_type=c.BNNSSample,
    )
    layer = c.BNNSLayerParametersArithmetic(
        arithmetic_function=c.BNNSArithmeticMultiply,
        arithmetic_function_fields=ctypes.cast(ctypes.pointer(fields), ctypes.c_void_p),
    )
    handle = c.BNNSFilterCreateLayerArithmetic(layer, None)
    assert handle, c.last_error()

    def gradients(da, db):
        return c.BNNSArithmeticFilterApplyBackwardBatch(
            handle,
            3,
            2,
            [a, b],
            None,
            [vector(4, data=da), vector(4, data=db)],
            None,
            None,
            0,
            vector(4, data=dy),
            0,
        )

    before, da, db = (a.copy(), b.copy()), np.zeros(4, f32), np.zeros(4, f32)
    assert gradients(da, db) == 0, c.last_error()
    np.testing.assert_allclose(db, dy.sum(0) * a, rtol=1e-5)
    for targets in ((a, db), (da, b), (b, db), (da, a)):
        assert_refused(gradients(*targets), "input_gradient")
    assert_same_bits(a, before[0])
    assert_same_bits(b, before[1])
    c.BNNSFilterDestroy(handle)


# ---- no samples ----


def ones(*shape):
    return np.ones(shape, f32)


def none(*shape):
    """A batch without samples of that shape."""
    return np.empty((0, *shape), f32)


def batch_sums():
    """Backward calls without samples: name, call, shapes of the sums over the batch by keyword."""
    wb = {"weights_gradient": (4, 3), "bias_gradient": (4,)}
    layer = openbnns.FullyConnectedLayer(ones(4, 3), bias=ones(4), activation="tanh")
    call = partial(layer.apply_backward, none(3), none(4), none(4), input_gradient=None)
    yield "fully connected", call, wb
    w = ones(4, 3, 3, 3)
    layer = openbnns.ConvolutionLayer(w, input=(3, 5, 5), bias=ones(4))
    y = none(4, 3, 3)
    call = partial(layer.apply_backward, none(3, 5, 5), y, y, input_gradient=None)
    yield "convolution", call, wb | {"weights_gradient": w.shape}
    layer = openbnns.PoolingLayer("max", input=(3, 4, 4), kernel_size=2, bias=ones(3))
    y = none(3, 2, 2)
    call = partial(layer.apply_backward, none(3, 4, 4), y, y, input_gradient=None)
    yield "pooling", call, {"bias_gradient": (3,)}
    layer = openbnns.ActivationLayer(openbnns.Activation.leaky_rectified_linear(0.5), input=(3,))
    call = partial(layer.apply_backward, none(3), none(3), none(3), input_gradient=None)
    yield "activation", call, {"alpha_gradient": (1,)}
    layer = openbnns.NormalizationLayer("batch", input=(6,), gamma=ones(6), beta=ones(6))
    call = partial(layer.apply_backward, none(6), none(6), none(6), input_gradient=None)
    yield "normalization", call, {"beta_gradient": (6,), "gamma_gradient": (6,)}
    layer = openbnns.BroadcastMatrixMultiplyLayer(
        input_a=(2, 3), input_b=ones(3, 4), b_is_weights=True
    )
    call = partial(layer.apply_backward, none(2, 3), None, None, none(2, 4), a_gradient=None)
    yield "matmul", call, {"b_gradient": (3, 4)}
    layer = openbnns.BinaryArithmeticLayer(
        "multiply", input_a=(4, 2), input_b=(4, 1), b_kind="parameter"
    )
    call = partial(layer.apply_backward, none(4, 2), ones(4, 1), None, none(4, 2), a_gradient=None)
    yield "arithmetic", call, {"b_gradient": (4, 1)}

    layer = openbnns.FusedFullyConnectedNormalizationLayer(
        ones(4, 3), bias=ones(4), normalization="batch", gamma=ones(4), beta=ones(4)
    )
    call = partial(layer.apply_backward, none(3), none(4), none(4), input_gradient=None)
    yield "fused", call, wb | {"beta_gradient": (4,), "gamma_gradient": (4,)}

    part = openbnns.Projection(ones(2, 3, 4), ones(2, 3))
    output = openbnns.Projection(ones(5, 6), ones(5))
    heads = openbnns.MultiheadAttention(part, part, part, output, 7)
    x = none(7, 4)
    call = partial(heads.apply_backward, x, x, x, None, none(7, 5))
    call = partial(call, query_gradient=None, key_gradient=None, value_gradient=None)
    shapes = {f"{name}_weights_gradient": (2, 3, 4) for name in ("query", "key", "value")}
    shapes |= {"key_bias_gradient": (2, 3), "output_weights_gradient": (5, 6)}
    yield "attention", call, shapes | {"output_bias_gradient": (5,)}


BATCH_SUMS = {name: (call, shapes) for name, call, shapes in batch_sums()}


@pytest.mark.parametrize("name", BATCH_SUMS)
def test_gradients_of_no_samples_are_zero(name):
    """Where they are added to they stay, and so do gaps."""
    call, shapes = BATCH_SUMS[name]
    arrays = {k: sentinel_array(s, "float32", (1,) * len(s)) for k, s in shapes.items()}
    old = next(iter(arrays.values()))[1].flat[0]
    views = {k: view for k, (view, _) in arrays.items()}
    call(**views, accumulate=True)
    assert all(is_sentinel(owner) for _, owner in arrays.values())
    call(**views)
    for view, owner in arrays.values():
        assert not np.any(view)
        view[...] = old
        assert is_sentinel(owner)


def test_new_gradients_of_no_samples_are_zero():
    """And never what the memory held before."""
    layers = [
        openbnns.FullyConnectedLayer(ones(4, 3), bias=ones(4)),
        openbnns.ConvolutionLayer(ones(4, 3, 3, 3), input=(3, 5, 5), bias=ones(4)),
    ]
    for layer in layers:
        x = np.empty((0, *layer.input_spec.shape), f32)
        y = layer.apply(x)
        for _ in range(20):
            dirt = [np.full(n, 7, f32) for n in (4, 12, 108)]
            del dirt
            gradients = layer.apply_backward(x, y, y)
            assert sum(gradient is not None for gradient in gradients) >= 3
            assert not any(np.any(gradient) for gradient in gradients if gradient is not None)
