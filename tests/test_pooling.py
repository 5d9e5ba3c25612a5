"""Pooling layers: right values, right indices, right gradients, right refusals."""

from dataclasses import replace

import numpy as np
import openbnns
import pytest
from cases import (
    assert_refused,
    dtype_of,
    gaps_untouched,
    generator,
    has_bfloat16,
    is_sentinel,
    sentinel_array,
)
from cases import pooling as cases
from cases.descriptors import activation_layer, image, misaligned, pooling_parameters, vector
from cases.marks import marked, small
from cases.pooling import PoolingCase
from hypothesis import given
from hypothesis import strategies as st
from openbnns import c
from oracles import pooling as oracle
from oracles.activation import gelu_approximation_sigmoid_slope_from_y
from oracles.differences import assert_gradient_matches, well_separated
from oracles.tolerance import assert_close, assert_same_bits

MAX, AVERAGE, EXCLUDE, UNMAX, L2 = range(5)


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


def legacy_stack(width, height, channels=1, **fields):
    fields = {"row_stride": width, "image_stride": width * height, **fields}
    return c.BNNSImageStackDescriptor(
        width=width,
        height=height,
        channels=channels,
        data_type=c.BNNSDataTypeFloat32,
        **fields,
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
    geometry = layer_geometry(x, 2, 2, 0)
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


def test_fused_softmax_normalises_rows():
    layer, x = run("max", np.arange(16).reshape(4, 4), 2, 2, activation="softmax")
    y = layer.apply(x)
    larger = np.exp(2.0) / (1.0 + np.exp(2.0))  # the maxima of a row lie 2 apart
    np.testing.assert_allclose(y[0, 0], [[1 - larger, larger]] * 2, rtol=1e-6)


def test_fused_prelu_is_leaky():
    activation = openbnns.Activation.prelu_per_channel(0.5)
    layer, x = run("max", [[-4, -6], [-8, -5]], 2, 2, activation=activation)
    assert layer.apply(x)[0, 0, 0, 0] == -2.0


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


def test_two_input_calls_refuse_pooling(max_pool):
    y, _ = outputs()
    assert_refused(c.BNNSFilterApplyTwoInput(max_pool, X, X, y), y)
    assert_refused(c.BNNSFilterApplyTwoInputBatch(max_pool, 1, X, 0, X, 0, y, 0), y)


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


# ---- refusals ----


def create(function, source, target, kernel=(2, 2), stride=(2, 2), **fields):
    """A filter handle through the C interface; shapes are (channels, height, width)."""
    parameters = pooling_parameters(
        function, image(source), image(target), kernel, stride, **fields
    )
    return c.BNNSFilterCreateLayerPooling(parameters, None)


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


def test_half_gradients_round_once():
    case = PoolingCase("average", (1, 1, 9, 9), (3, 3), (1, 1), dtype="float16")
    dy = np.full(case.output_shape, 1.0, dtype_of("float16"))
    dx = case.layer().apply_backward(None, None, dy).input
    expected = case.expected_gradients(case.input(), dy, dy).dx
    assert_same_bits(dx, expected.astype(np.float32).astype(np.float16))
