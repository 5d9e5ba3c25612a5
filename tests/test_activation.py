"""Activation layers: right values, right gradients, right refusals."""

import numpy as np
import openbnns
import pytest
from cases import activation as cases
from cases import (
    assert_refused,
    gaps_untouched,
    generator,
    has_bfloat16,
    is_sentinel,
    sentinel_array,
)
from cases.activation import PARAMETERS, SOFTMAX, ActivationCase, activation_of
from cases.descriptors import activation_layer, first_major, image, misaligned, vector
from cases.marks import marked
from hypothesis import given
from hypothesis import strategies as st
from openbnns import c
from oracles import activation as oracle
from oracles.differences import assert_gradient_matches, away_from
from oracles.tolerance import assert_close, assert_same_bits

CASES = [marked(case) for case in cases.CASES]
SMALL = [marked(case) for case in cases.CASES if not case.tags & {"large", "split"}]
SMALL_FLOAT32 = [
    marked(case)
    for case in cases.CASES
    if case.dtype == case.stored == "float32" and not case.tags & {"large", "split"}
]
IN_PLACE = [p for p in SMALL if p.values[0].dtype == p.values[0].stored and not p.values[0].x_gaps]


# ---- the case list ----


@pytest.mark.parametrize("case", CASES)
def test_forward_matches_closed_form(case):
    x = case.input()
    before = x.copy()
    y, owner = case.empty_output()
    result = case.layer().apply(x, out=y)
    assert result is y
    assert_close(y, case.expected(x), case.stored)
    assert gaps_untouched(y, owner)
    assert_same_bits(x, before)


@pytest.mark.parametrize("case", CASES)
def test_backward_from_input_matches_closed_form(case):
    x, dy = case.input(), case.output_gradient()
    dx = case.layer().apply_backward(x, None, dy, alpha_gradient=None).input
    assert_close(dx, case.expected_from_x(x, dy), case.dtype, terms=case.gradient_terms(x, dy))


@pytest.mark.parametrize("case", [p for p in CASES if p.values[0].function in oracle.FROM_Y])
def test_backward_from_output_matches_closed_form(case):
    y, _ = case.empty_output()
    x, dy = case.input(), case.output_gradient()
    y[...] = case.expected(x).astype(y.dtype)
    dx = case.layer().apply_backward(None, y, dy, alpha_gradient=None).input
    assert_close(dx, case.expected_from_y(y, dy), case.dtype, terms=case.gradient_terms(x, dy))


@pytest.mark.parametrize("case", SMALL_FLOAT32)
def test_backward_with_both_tensors_matches_closed_form(case):
    x, dy = case.input(), case.output_gradient()
    x[...] = away_from(x, case.kinks)
    layer = case.layer()
    y, _ = case.empty_output()
    layer.apply(x, out=y)
    dx = layer.apply_backward(x, y, dy, alpha_gradient=None).input
    assert_close(dx, case.expected_from_x(x, dy), terms=case.gradient_terms(x, dy))


@pytest.mark.parametrize("case", SMALL)
def test_backward_accumulates(case):
    x, dy = case.input(), case.output_gradient()
    dx, owner = sentinel_array(case.shape, case.dtype, case.x_gaps, case.step)
    dx[...] = generator(case, 9).standard_normal(case.shape).astype(dx.dtype)
    expected = dx.astype(np.float64) + case.expected_from_x(x, dy)
    case.layer().apply_backward(
        x, None, dy, input_gradient=dx, alpha_gradient=None, accumulate=True
    )
    assert_close(dx, expected, case.dtype, terms=case.gradient_terms(x, dy))
    assert gaps_untouched(dx, owner)


@pytest.mark.parametrize("case", SMALL_FLOAT32)
def test_gradient_matches_central_differences(case):
    layer = case.layer()
    x = away_from(2.0 * generator(case, 5).standard_normal(case.shape), case.kinks)
    spaced, spaced_dy = case.input(), case.output_gradient()  # memory with the case's gaps

    def forward(values):
        spaced[...] = values
        return layer.apply(spaced)

    def gradient(values, dy):
        spaced[...], spaced_dy[...] = values, dy
        return layer.apply_backward(spaced, None, spaced_dy, alpha_gradient=None).input

    assert_gradient_matches(forward, gradient, x.astype(np.float32), generator(case, 6))


@pytest.mark.parametrize("case", SMALL_FLOAT32)
def test_values_and_gradients_match_torch(case):
    torch_judge = pytest.importorskip("oracles.torch_judge", exc_type=ImportError)
    x, dy = case.input(), case.output_gradient()
    x[...] = away_from(x, case.kinks)
    if case.softmax:
        y, dx = torch_judge.softmax(x, dy, case.axes, log=case.function == "log_softmax")
    else:
        y, dx = torch_judge.activation(case.function, x, dy, case.alpha, case.beta)
    layer = case.layer()
    assert_close(layer.apply(x), y)
    found = layer.apply_backward(x, None, dy, alpha_gradient=None).input
    assert_close(found, dx, terms=case.gradient_terms(x, dy))


@pytest.mark.parametrize("case", IN_PLACE)
def test_in_place_gives_the_same_bits(case):
    layer, x = case.layer(), case.input()
    expected = layer.apply(x)
    assert_same_bits(layer.apply(x, out=x), expected)


# ---- one function at a time ----


def layer_for(name, shape=(8,), alpha=None, beta=None, **options):
    a, b = PARAMETERS.get(name, (0.0, 0.0))
    a, b = a if alpha is None else alpha, b if beta is None else beta
    return openbnns.ActivationLayer(activation_of(name, a, b), input=shape, **options)


FINITE = np.float32([0.0, 1e-40, 1e-20, 20.0, 88.0, 90.0, 104.0, 1000.0, 1e20, 3e38])
SPECIALS = np.concatenate([np.float32([np.nan, np.inf, -np.inf]), FINITE, -FINITE])


@pytest.mark.parametrize("name", [name for name in PARAMETERS if name != "prelu_per_channel"])
def test_forward_of_special_values(name):
    y = layer_for(name, SPECIALS.shape).apply(SPECIALS[None])[0]
    a, b = PARAMETERS[name]
    with np.errstate(all="ignore"):
        expected = oracle.FUNCTIONS[name].forward(SPECIALS.astype(np.float64), a, b)
        expected = expected.astype(np.float32)
    # where the formula says 0 times infinity, its limit is as good as NaN
    limits = {(name, "-"): 0.0 for name in ("silu", "gelu", "gelu_approximation", "hard_swish")}
    limits |= {(name, "-"): 0.0 for name in ("gelu_approximation_sigmoid", "gelu_approximation_2")}
    limits |= {("softsign", "-"): -1.0, ("softsign", "+"): 1.0}
    for i, sign in ((1, "+"), (2, "-")):
        if np.isnan(expected[i]) and not np.isnan(y[i]):
            assert y[i] == limits[name, sign]
            expected[i] = y[i]
    assert_close(y, expected)


@pytest.mark.parametrize("name", [name for name in PARAMETERS if name != "prelu_per_channel"])
def test_backward_of_special_values(name):
    x = np.concatenate([FINITE, -FINITE])
    dy = np.ones_like(x)
    dx = layer_for(name, x.shape).apply_backward(x[None], None, dy[None], alpha_gradient=None)
    a, b = PARAMETERS[name]
    with np.errstate(all="ignore"):
        expected = oracle.FUNCTIONS[name].slope(x.astype(np.float64), a, b)
    assert_close(dx.input[0], expected)


@pytest.mark.parametrize("name", [name for name in PARAMETERS if name != "prelu_per_channel"])
def test_not_a_number_passes_through(name):
    x = np.float32([1.0, np.nan, 2.0, np.nan, -1.0, 0.5, 0.0, np.nan])
    y = layer_for(name).apply(x[None])[0]
    np.testing.assert_array_equal(np.isnan(y), np.isnan(x))


CURVES_THROUGH_ZERO = ["tanh", "scaled_tanh", "erf", "elu", "selu", "celu", "softsign"]
GATES = ["gelu", "gelu_approximation", "gelu_approximation_sigmoid", "silu", "hard_swish"]


@pytest.mark.parametrize("name", CURVES_THROUGH_ZERO + GATES)
def test_small_inputs_keep_their_relative_accuracy(name):
    x = np.geomspace(1e-30, 1e-2, 64).astype(np.float32)
    x = np.concatenate([x, -x])
    y = layer_for(name, x.shape).apply(x[None])[0]
    a, b = PARAMETERS[name]
    expected = oracle.FUNCTIONS[name].forward(x.astype(np.float64), a, b)
    np.testing.assert_allclose(y, expected, rtol=2e-6, atol=0.0)


@pytest.mark.parametrize("name", ["sigmoid", "log_sigmoid", "softplus", "elu", "selu", "celu"])
def test_left_tails_keep_their_relative_accuracy(name):
    x = np.linspace(-80.0, -5.0, 151).astype(np.float32)
    y = layer_for(name, x.shape).apply(x[None])[0]
    a, b = PARAMETERS[name]
    expected = oracle.FUNCTIONS[name].forward(x.astype(np.float64), a, b)
    np.testing.assert_allclose(y, expected, rtol=3e-6, atol=0.0)


@pytest.mark.parametrize("name", SOFTMAX)
def test_softmax_of_extreme_values(name):
    x = np.float32([[1000.0, 0.0, -1000.0], [-3e38, 3e38, 0.0], [-np.inf, 5.0, -np.inf]])
    y = layer_for(name, (3,), axes=-1).apply(x)
    with np.errstate(all="ignore"):
        expected = getattr(oracle, name)(x.astype(np.float64), (1,)).astype(np.float32)
    assert_close(y, expected)


@pytest.mark.parametrize("name", SOFTMAX)
def test_softmax_keeps_a_not_a_number_in_its_row(name):
    x = np.ones((3, 40), np.float32)
    x[1, 17] = np.nan
    y = layer_for(name, (40,), axes=-1).apply(x)
    # the sum of the logarithm leaves it out (docs/compatibility.md)
    np.testing.assert_array_equal(np.isnan(y).sum(axis=1), [0, 40 if name == "softmax" else 1, 0])


@pytest.mark.parametrize("name", oracle.FROM_X_ONLY)
def test_backward_without_needed_input_is_refused(name):
    layer = layer_for(name)
    y = dy = np.ones((1, 8), np.float32)
    dx, _ = sentinel_array((1, 8), "float32")
    with pytest.raises(openbnns.LayerApplyError):
        layer.apply_backward(None, y, dy, input_gradient=dx)
    assert is_sentinel(dx)


def test_sigmoid_gelu_from_output_needs_the_rising_branch():
    layer, dy = layer_for("gelu_approximation_sigmoid", (64,)), np.ones((1, 64), np.float32)
    y = np.linspace(0.0, 6.0, 64, dtype=np.float32)[None]
    dx = layer.apply_backward(None, y, dy).input
    expected = oracle.gelu_approximation_sigmoid_slope_from_y(y.astype(np.float64), 0, 0)
    np.testing.assert_allclose(dx, expected, atol=1e-5)
    dx, _ = sentinel_array((1, 64), "float32")
    y[0, 63] = -0.01
    with pytest.raises(openbnns.LayerApplyError):
        layer.apply_backward(None, y, dy, input_gradient=dx)
    assert is_sentinel(dx)


@pytest.mark.parametrize(
    ("name", "alpha", "beta"),
    [
        ("threshold", 0.5, 1.0),
        ("leaky_rectified_linear", -0.5, 0.0),
        ("elu", -1.0, 0.0),
        ("celu", -1.0, 0.0),
        ("clamped_leaky_rectified_linear", -0.5, 2.0),
    ],
)
def test_backward_from_ambiguous_output_is_refused(name, alpha, beta):
    layer = layer_for(name, alpha=alpha, beta=beta)
    y = dy = np.ones((1, 8), np.float32)
    with pytest.raises(openbnns.LayerApplyError):
        layer.apply_backward(None, y, dy, alpha_gradient=None)
    dx = layer.apply_backward(y, None, dy, alpha_gradient=None).input  # from x it works
    expected = oracle.FUNCTIONS[name].slope(y.astype(np.float64), alpha, beta)
    assert_close(dx, expected)


def test_leaky_with_zero_slope_works_from_output():
    layer = layer_for("leaky_rectified_linear", (4,), alpha=0.0)
    y = np.float32([[0.0, 0.0, 1.0, 2.0]])
    dx = layer.apply_backward(None, y, np.ones_like(y), alpha_gradient=None).input
    np.testing.assert_array_equal(dx, [[0.0, 0.0, 1.0, 1.0]])


def test_gradients_at_kinks():
    expected = {
        ("rectified_linear", 0.0): 0.0,
        ("leaky_rectified_linear", 0.0): 0.125,
        ("abs", 0.0): 0.0,
        ("clamp", -0.75): 1.0,
        ("clamp", 1.25): 1.0,
        ("hard_shrink", 0.5): 1.0,
        ("soft_shrink", -0.5): 1.0,
        ("threshold", 0.25): 0.0,
        ("relu6", 0.0): 0.0,
        ("relu6", 6.0): 0.0,
        ("hard_swish", -3.0): 0.0,
        ("hard_swish", 3.0): 1.0,
    }
    for (name, x), slope in expected.items():
        one = np.ones((1, 1), np.float32)
        dx = layer_for(name, (1,)).apply_backward(x * one, None, one, alpha_gradient=None).input
        assert dx[0, 0] == slope, name


def test_clamp_uses_input_when_both_are_given_and_output_alone_is_cautious():
    layer, x = layer_for("clamp", (2,)), np.float32([[-0.75, 1.25]])
    one = np.ones_like(x)
    np.testing.assert_array_equal(layer.apply_backward(x, x, one).input, [[1.0, 1.0]])
    np.testing.assert_array_equal(layer.apply_backward(None, x, one).input, [[0.0, 0.0]])


def test_clamp_with_crossed_bounds_gives_the_upper():
    y = layer_for("clamp", (3,), alpha=2.0, beta=-1.0).apply(np.float32([[-5.0, 0.0, 5.0]]))
    np.testing.assert_array_equal(y, [[-1.0, -1.0, -1.0]])


def test_soft_shrink_ignores_the_sign_of_alpha():
    x = np.linspace(-2.0, 2.0, 41, dtype=np.float32)[None]
    y = layer_for("soft_shrink", (41,), alpha=-0.5).apply(x)
    assert_same_bits(y, layer_for("soft_shrink", (41,), alpha=0.5).apply(x))


def test_alpha_gradient_of_leaky_is_summed_over_everything():
    case = ActivationCase("leaky_rectified_linear", (3, 2, 5, 7), 0.125)
    x, dy = case.input(), case.output_gradient()
    grads = case.layer().apply_backward(x, None, dy, alpha_gradient=True)
    expected = oracle.leaky_alpha_gradient(x.astype(np.float64), dy, None)
    assert_close(np.asarray(grads.alpha).reshape(()), expected, terms=np.abs(x * dy).sum())
    assert_close(grads.input, case.expected_from_x(x, dy))


def test_alpha_gradient_of_prelu_is_one_per_channel():
    case = ActivationCase("prelu_per_channel", (3, 4, 5, 7), 0.25)
    x, dy = case.input(), case.output_gradient()
    layer = case.layer()
    alphas = np.float32([0.25, -0.5, 0.0, 2.0])
    layer.alpha[...] = alphas
    wide = alphas.astype(np.float64)[:, None, None]
    assert_close(layer.apply(x), oracle.leaky_rectified_linear(x.astype(np.float64), wide, 0))
    grads = layer.apply_backward(x, None, dy, alpha_gradient=True)
    assert_close(grads.input, dy * oracle.leaky_rectified_linear_slope(x, wide, 0))
    expected = oracle.leaky_alpha_gradient(x.astype(np.float64), dy, (0, 2, 3))
    assert_close(grads.alpha, expected, terms=np.abs(x * dy).sum(axis=(0, 2, 3)))


def test_alpha_gradient_accumulates():
    case = ActivationCase("prelu_per_channel", (3, 4, 5, 7), 0.25)
    x, dy = case.input(), case.output_gradient()
    alpha = np.float32([1.0, 2.0, 3.0, 4.0])
    case.layer().apply_backward(
        x, None, dy, input_gradient=None, alpha_gradient=alpha, accumulate=True
    )
    added = oracle.leaky_alpha_gradient(x.astype(np.float64), dy, (0, 2, 3))
    assert_close(alpha, np.arange(1, 5) + added, terms=np.abs(x * dy).sum(axis=(0, 2, 3)))


def test_alpha_gradient_matches_central_differences():
    case = ActivationCase("prelu_per_channel", (3, 4, 5, 7), 0.25)
    x, dy = case.input(), case.output_gradient()
    layer = case.layer()
    grads = layer.apply_backward(x, None, dy, alpha_gradient=True)
    for channel in range(4):
        sums = []
        for step in (0.125, -0.125):
            layer.alpha[channel] = 0.25 + step
            sums.append((layer.apply(x).astype(np.float64) * dy).sum())
        layer.alpha[channel] = 0.25
        np.testing.assert_allclose(grads.alpha[channel], (sums[0] - sums[1]) / 0.25, rtol=1e-4)


# ---- random functions ----


def draw(name, shape, seed, **options):
    openbnns.set_seed(seed)
    layer = openbnns.ActivationLayer(
        getattr(openbnns.Activation, name)(1.0 - 2e-7, 1e-7), input=shape[1:], **options
    )
    return layer.apply(np.zeros(shape, np.float32))


def test_gumbel_has_the_mean_and_variance_of_its_distribution():
    y = draw("gumbel", (4, 50000), 1).astype(np.float64)
    assert abs(y.mean() - 0.5772157) < 0.02
    assert abs(y.var() - np.pi**2 / 6.0) < 0.05
    assert abs(np.corrcoef(y[:, :-1].ravel(), y[:, 1:].ravel())[0, 1]) < 0.01


def test_gumbel_max_fills_its_axis_with_the_maximum():
    y = draw("gumbel_max", (5000, 8), 2, axes=-1).astype(np.float64)
    assert (y == y[:, :1]).all()
    # the largest of k such numbers is distributed like one of them plus log k
    assert abs(y[:, 0].mean() - 0.5772157 - np.log(8.0)) < 0.06


@pytest.mark.parametrize("name", ["gumbel", "gumbel_max"])
def test_gumbel_repeats_with_the_seed(name):
    first, again, other = (draw(name, (3, 100), seed) for seed in (7, 7, 8))
    assert_same_bits(first, again)
    assert (first != other).any()


@pytest.mark.parametrize("name", ["gumbel", "gumbel_max"])
def test_gumbel_has_no_gradient(name):
    layer = openbnns.ActivationLayer(getattr(openbnns.Activation, name)(1.0, 1e-7), input=(4,))
    one = np.ones((1, 4), np.float32)
    with pytest.raises(openbnns.LayerApplyError):
        layer.apply_backward(one, one, one)


# ---- numbers from the specification ----


def test_vector_softmax():
    y = layer_for("softmax", (7,), axes=-1).apply(np.float32([[3, 5, 1, 6, 2, 1, 4]]))
    expected = [0.031415492, 0.23213086, 0.004251625, 0.63099706, 0.011557114, 0.004251625]
    np.testing.assert_allclose(y[0, :6], expected, rtol=1e-6)
    np.testing.assert_allclose(y[0, 6], 0.08539616, rtol=1e-6)


def test_vector_clamp():
    y = layer_for("clamp", (5,), alpha=-1.0, beta=2.0).apply(np.float32([[-5, -1, 0.5, 2, 7]]))
    np.testing.assert_array_equal(y, [[-1, -1, 0.5, 2, 2]])


def test_vector_leaky():
    y = layer_for("leaky_rectified_linear", (4,), alpha=0.25).apply(np.float32([[-4, -1, 0, 3]]))
    np.testing.assert_array_equal(y, [[-1, -0.25, 0, 3]])


def test_vector_legacy_rectified_linear():
    x, y = np.float32([-1, 2, -3, 4]), np.zeros(4, np.float32)
    side = c.BNNSVectorDescriptor(size=4, data_type=c.BNNSDataTypeFloat32)
    f = c.BNNSFilterCreateVectorActivationLayer(side, side, c.BNNSActivation(function=1), None)
    assert f, c.last_error()
    assert c.BNNSFilterApply(f, x, y) == 0
    c.BNNSFilterDestroy(f)
    np.testing.assert_array_equal(y, [0, 2, 0, 4])


def test_legacy_vector_refuses_unequal_sizes_and_indexed_types():
    four = c.BNNSVectorDescriptor(size=4, data_type=c.BNNSDataTypeFloat32)
    five = c.BNNSVectorDescriptor(size=5, data_type=c.BNNSDataTypeFloat32)
    indexed = c.BNNSVectorDescriptor(size=4, data_type=c.BNNSDataTypeIndexed8)
    identity = c.BNNSActivation(function=0)
    for a, b in ((four, five), (five, four), (indexed, four), (four, indexed)):
        assert c.BNNSFilterCreateVectorActivationLayer(a, b, identity, None) is None
        assert c.last_error()


# ---- layouts, axis masks, batches, through the C interface ----


def test_elements_correspond_in_memory_order_when_shapes_differ():
    x, y = np.arange(24, dtype=np.float32), np.zeros(24, np.float32)
    f = activation_layer(7, image((2, 3, 4)), vector(24), alpha=2.0)
    assert f, c.last_error()
    assert c.BNNSFilterApply(f, x, y) == 0
    c.BNNSFilterDestroy(f)
    np.testing.assert_array_equal(y, 2.0 * x)


def test_first_major_with_zero_strides_is_c_order():
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    y = np.zeros_like(x)
    f = activation_layer(11, first_major((2, 3, 4)), first_major((2, 3, 4)), axis_flags=1)
    assert f, c.last_error()
    assert c.BNNSFilterApply(f, x, y) == 0
    c.BNNSFilterDestroy(f)
    assert_close(y, oracle.softmax(x.astype(np.float64), (0,)))  # bit 0 is size[0], outermost here


@pytest.mark.parametrize("number", [11, 21])
@pytest.mark.parametrize("mask", range(16))
def test_axis_mask_of_an_image(mask, number):
    x = np.random.default_rng(mask).standard_normal((3, 4, 5, 6)).astype(np.float32)
    y = np.zeros_like(x)
    f = activation_layer(number, image((4, 5, 6)), image((4, 5, 6)), axis_flags=mask)
    assert f, c.last_error()
    assert c.BNNSFilterApplyBatch(f, 3, x, 0, y, 0) == 0, c.last_error()
    c.BNNSFilterDestroy(f)
    # size[] is width, height, channels, then comes the batch: axis 3 - bit
    axes = tuple(3 - bit for bit in range(4) if (mask or 1) >> bit & 1)
    forward = oracle.softmax if number == 11 else oracle.log_softmax
    assert_close(y, forward(x.astype(np.float64), axes))


@pytest.mark.parametrize("layout", ["RowMajorMatrix", "ColumnMajorMatrix", "2DLastMajor"])
def test_axis_bit_zero_is_the_first_size(layout):
    x = np.random.default_rng(1).standard_normal((5, 7)).astype(np.float32)
    y = np.zeros_like(x)
    side = c.BNNSNDArrayDescriptor(
        layout=getattr(c, "BNNSDataLayout" + layout), size=[7, 5], data_type=c.BNNSDataTypeFloat32
    )
    f = activation_layer(11, side, side, axis_flags=1)
    assert f, c.last_error()
    assert c.BNNSFilterApply(f, x, y) == 0
    c.BNNSFilterDestroy(f)
    assert_close(y, oracle.softmax(x.astype(np.float64), (1,)))  # size[0] is fastest in all three


def test_batch_strides_skip_values():
    x = np.arange(30, dtype=np.float32).reshape(3, 10)
    y = np.full((3, 12), -1.0, np.float32)
    f = activation_layer(7, vector(8), vector(8), alpha=3.0)
    assert c.BNNSFilterApplyBatch(f, 3, x, 10, y, 12) == 0
    c.BNNSFilterDestroy(f)
    np.testing.assert_array_equal(y[:, :8], 3.0 * x[:, :8])
    np.testing.assert_array_equal(y[:, 8:], -1.0)


def test_empty_batch_succeeds_and_writes_nothing():
    x = np.ones(8, np.float32)
    y, _ = sentinel_array((8,), "float32")
    f = activation_layer(1, vector(8), vector(8))
    assert c.BNNSFilterApplyBatch(f, 0, x, 0, y, 0) == 0
    c.BNNSFilterDestroy(f)
    assert is_sentinel(y)


def test_direct_call_takes_data_from_descriptors():
    x = np.float32([[-1, 2, -3], [4, -5, 6]])
    y = np.zeros_like(x)
    layer = c.BNNSLayerParametersActivation(
        i_desc=vector(3, data=x), o_desc=vector(3, data=y), activation=c.BNNSActivation(function=1)
    )
    assert c.BNNSDirectApplyActivationBatch(layer, None, 2, 3, 3) == 0, c.last_error()
    np.testing.assert_array_equal(y, np.maximum(x, 0))


def test_get_pointer_is_live():
    x, y = np.float32([-4.0, 4.0]), np.zeros(2, np.float32)
    f = activation_layer(2, vector(2), vector(2), alpha=0.25)
    found = c.BNNSGetPointer(f, c.BNNSPointerSpecifierAlpha)
    assert found.size[0] == 1
    assert found.data_type == c.BNNSDataTypeFloat32
    alpha = np.ctypeslib.as_array((c.ctypes.c_float * 1).from_address(found.data))
    assert alpha[0] == 0.25
    alpha[0] = 0.5
    assert c.BNNSFilterApply(f, x, y) == 0
    np.testing.assert_array_equal(y, [-2.0, 4.0])
    c.BNNSFilterDestroy(f)


def test_get_pointer_of_prelu_has_one_value_per_channel():
    f = activation_layer(29, image((3, 2, 2)), image((3, 2, 2)), alpha=0.25)
    found = c.BNNSGetPointer(f, c.BNNSPointerSpecifierAlpha)
    alpha = np.ctypeslib.as_array((c.ctypes.c_float * 3).from_address(found.data))
    assert found.size[0] == 3
    np.testing.assert_array_equal(alpha, [0.25, 0.25, 0.25])
    c.BNNSFilterDestroy(f)


def test_get_pointer_of_nothing_has_no_data():
    assert c.BNNSGetPointer(None, c.BNNSPointerSpecifierAlpha).data is None
    f = activation_layer(2, vector(2), vector(2), alpha=0.25)
    assert c.BNNSGetPointer(f, 17).data is None
    c.BNNSFilterDestroy(f)
    assert c.BNNSGetPointer(f, c.BNNSPointerSpecifierAlpha).data is None


def test_gradients_may_have_strides_of_their_own():
    x = np.float32([[-1, 2, -3], [4, -5, 6]])
    dx, owner = sentinel_array((2, 3), "float32", gaps=(0, 2))
    dy, _ = sentinel_array((2, 3), "float32", gaps=(0, 1), step=2)
    dy[...] = [[1, 2, 3], [4, 5, 6]]
    f = activation_layer(1, first_major((2, 3)), first_major((2, 3)))
    target = first_major((2, 3), data=dx, strides=(5, 1))
    delta = first_major((2, 3), data=dy, strides=(8, 2))
    assert backward(f, x, target, None, delta) == 0, c.last_error()
    c.BNNSFilterDestroy(f)
    np.testing.assert_array_equal(dx, [[0, 2, 0], [4, 0, 6]])
    assert gaps_untouched(dx, owner)


def test_two_input_calls_refuse_activations(sigmoid):
    x = np.ones(8, np.float32)
    y, _ = sentinel_array((8,), "float32")
    assert_refused(c.BNNSFilterApplyTwoInput(sigmoid, x, x, y), y)
    assert_refused(c.BNNSFilterApplyTwoInputBatch(sigmoid, 1, x, 0, x, 0, y, 0), y)


# ---- properties ----


@st.composite
def activation_cases(draw):
    """Any function at any small shape, with gaps, in any pair of types."""
    name = draw(st.sampled_from(list(PARAMETERS) + list(SOFTMAX)))
    rank = 4 if name == "prelu_per_channel" else draw(st.integers(2, 5))
    shape = tuple(draw(st.integers(1, 9)) for _ in range(rank))
    types = ["float32", "float16"] + (["bfloat16"] if has_bfloat16() else [])
    gaps = st.tuples(st.just(0), *[st.integers(0, 3)] * (rank - 1))
    axes = ()
    if name in SOFTMAX:
        axes = tuple(sorted(draw(st.sets(st.integers(0, rank - 1), min_size=1))))
    return ActivationCase(
        name,
        shape,
        *PARAMETERS.get(name, (0.0, 0.0)),
        axes=axes,
        dtype=draw(st.sampled_from(types)),
        out_dtype=draw(st.sampled_from(types)),
        x_gaps=draw(gaps),
        y_gaps=draw(gaps),
        step=draw(st.integers(1, 2)),
    )


@given(activation_cases())
def test_any_case_matches_closed_form(case):
    x, dy = case.input(), case.output_gradient()
    y, owner = case.empty_output()
    layer = case.layer()
    layer.apply(x, out=y)
    assert_close(y, case.expected(x), case.stored)
    assert gaps_untouched(y, owner)
    dx, owner = sentinel_array(case.shape, case.dtype, case.x_gaps, case.step)
    layer.apply_backward(x, None, dy, input_gradient=dx, alpha_gradient=None)
    assert_close(dx, case.expected_from_x(x, dy), case.dtype, terms=case.gradient_terms(x, dy))
    assert gaps_untouched(dx, owner)


@given(st.integers(1, 300), st.sampled_from(list(PARAMETERS)), st.integers(0, 2**32 - 1))
def test_position_does_not_change_bits(size, name, seed):
    if name == "prelu_per_channel":
        return
    x = np.random.default_rng(seed).standard_normal(size).astype(np.float32)
    together = layer_for(name, (size,)).apply(x[None])[0]
    one_by_one = layer_for(name, (1,)).apply(x[:, None])[:, 0]
    assert_same_bits(together, one_by_one)


# ---- refusals ----


def refused_layer(**changes):
    """A valid softmax layer of a (2, 3, 4) image with one thing changed."""
    parts = {"function": 11, "i_desc": image((2, 3, 4)), "o_desc": image((2, 3, 4))}
    f = activation_layer(**{**parts, **changes})
    c.BNNSFilterDestroy(f)
    return f is None and bool(c.last_error())


CORRUPTIONS = {
    "unknown layout": lambda d, rng: setattr(d, "layout", int(rng.integers(0, 0xFFFF))),
    "unknown type": lambda d, rng: setattr(d, "data_type", int(rng.integers(1, 0xFFFF))),
    "bare class bit": lambda d, rng: setattr(d, "data_type", 1 << int(rng.integers(16, 21))),
    "zero extent": lambda d, rng: _set(d, "size", rng, 0),
    "overflowing extent": lambda d, rng: _set(d, "size", rng, 2 ** int(rng.integers(61, 64))),
    "decreasing stride": lambda d, rng: setattr(d, "stride", [5, int(rng.integers(1, 5)), 1]),
    "overflowing stride": lambda d, rng: setattr(
        d, "stride", [1, 4, 2 ** int(rng.integers(62, 64))]
    ),
    "other count": lambda d, rng: _set(d, "size", rng, int(rng.integers(5, 1000))),
    "indexed without table": lambda d, rng: setattr(d, "data_type", c.BNNSDataTypeIndexed4),
    "integer data": lambda d, rng: setattr(d, "data_type", c.BNNSDataTypeInt8),
}


def _set(descriptor, field, rng, value):
    values = list(getattr(descriptor, field))
    values[int(rng.integers(0, 3))] = value
    setattr(descriptor, field, values)


@pytest.mark.parametrize("side", ["i_desc", "o_desc"])
@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_corrupted_descriptors_are_refused(kind, side):
    rng = np.random.default_rng(len(kind))
    for _ in range(50):
        c.obn_clear_error()
        descriptor = image((2, 3, 4))
        CORRUPTIONS[kind](descriptor, rng)
        assert refused_layer(**{side: descriptor}), list(descriptor.size)


def test_overlapping_output_strides_are_refused():
    assert refused_layer(o_desc=image((2, 3, 4), strides=(4, 2, 1)))


@pytest.mark.parametrize("number", [36, 37, 1000, 2**31, 2**32 - 1])
def test_unknown_functions_are_refused(number):
    assert refused_layer(function=number)


def test_axis_bits_beyond_the_batch_are_refused():
    for bit in range(4, 32):
        assert refused_layer(axis_flags=1 << bit)


def test_prelu_needs_an_image():
    assert refused_layer(function=29, i_desc=vector(24), o_desc=vector(24))


def test_missing_parameter_block_is_refused():
    assert c.BNNSFilterCreateLayerActivation(None, None) is None
    assert c.last_error()
    assert c.BNNSDirectApplyActivationBatch(None, None, 1, 0, 0) == -1


def test_per_channel_function_without_arrays_is_refused():
    small = image((2, 3, 4), "int8")
    assert refused_layer(function=10, i_desc=small, o_desc=small)


def test_random_parameter_blocks_never_crash():
    rng = np.random.default_rng(11)
    size = c.ctypes.sizeof(c.BNNSLayerParametersActivation)
    for _ in range(1000):
        layer = c.BNNSLayerParametersActivation.from_buffer_copy(rng.bytes(size))
        layer.activation.iscale_per_channel = None
        layer.activation.ioffset_per_channel = None
        layer.activation.ishift_per_channel = None
        layer.i_desc.table_data = layer.o_desc.table_data = None
        c.obn_clear_error()
        assert c.BNNSFilterCreateLayerActivation(layer, None) is None
        assert c.last_error()


# Failing applies: each leaves the output alone and says why.


@pytest.fixture
def sigmoid():
    f = activation_layer(3, vector(8), vector(8))
    yield f
    c.BNNSFilterDestroy(f)


def test_null_pointers_are_refused(sigmoid):
    x = np.ones(8, np.float32)
    y, _ = sentinel_array((8,), "float32")
    assert_refused(c.BNNSFilterApply(sigmoid, None, y), y)
    assert_refused(c.BNNSFilterApply(sigmoid, x, None))


def test_misaligned_pointers_are_refused(sigmoid):
    x = np.ones(8, np.float32)
    y, _ = sentinel_array((8,), "float32")
    assert_refused(c.BNNSFilterApply(sigmoid, misaligned((8,), np.float32), y), y)
    assert_refused(c.BNNSFilterApply(sigmoid, x, misaligned((8,), np.float32)))


def test_partly_overlapping_buffers_are_refused(sigmoid):
    memory = np.ones(16, np.float32)
    assert_refused(c.BNNSFilterApply(sigmoid, memory[:8], memory[3:11]))
    np.testing.assert_array_equal(memory, 1.0)


def test_overflowing_batches_are_refused(sigmoid):
    x = np.ones(8, np.float32)
    y, _ = sentinel_array((8,), "float32")
    for batch, stride in ((2**63, 0), (2**61, 0), (2, 2**63), (2, 2**62)):
        assert_refused(c.BNNSFilterApplyBatch(sigmoid, batch, x, stride, y, stride), y)


def test_overlapping_samples_are_refused(sigmoid):
    x = np.ones(24, np.float32)
    y, _ = sentinel_array((24,), "float32")
    assert_refused(c.BNNSFilterApplyBatch(sigmoid, 3, x, 8, y, 7), y)


def test_dead_and_stray_handles_are_refused():
    x = np.ones(8, np.float32)
    y, _ = sentinel_array((8,), "float32")
    f = activation_layer(3, vector(8), vector(8))
    c.BNNSFilterDestroy(f)
    assert_refused(c.BNNSFilterApply(f, x, y), y)
    c.BNNSFilterDestroy(f)  # twice: ignored
    for handle in (None, 1, 8, 0xDEADBEEF, f ^ 1, f + (1 << 32), 2**63, 2**64 - 1):
        assert_refused(c.BNNSFilterApply(handle, x, y), y)
        c.BNNSFilterDestroy(handle)


def test_random_handles_are_refused():
    x = np.ones(8, np.float32)
    y, _ = sentinel_array((8,), "float32")
    for handle in np.random.default_rng(5).integers(0, 2**64, 1000, dtype=np.uint64):
        assert_refused(c.BNNSFilterApply(int(handle), x, y), y)


def test_activation_filter_is_no_pooling_filter(sigmoid):
    x = np.ones(8, np.float32)
    y, _ = sentinel_array((8,), "float32")
    assert_refused(c.BNNSPoolingFilterApplyBatch(sigmoid, 1, x, 0, y, 0, None, 0), y)


def backward(f, x, dx, y, dy, weights=None, bias=None, batch=1):
    return c.BNNSFilterApplyBackwardBatch(f, batch, x, 0, dx, 0, y, 0, dy, 0, weights, bias)


def test_backward_without_output_gradient_is_refused(sigmoid):
    x = np.ones(8, np.float32)
    dx, _ = sentinel_array((8,), "float32")
    assert_refused(backward(sigmoid, x, vector(8, data=dx), x, None), dx)
    assert_refused(backward(sigmoid, x, vector(8, data=dx), x, vector(8)), dx)


def test_backward_without_input_and_output_is_refused(sigmoid):
    dy = np.ones(8, np.float32)
    dx, _ = sentinel_array((8,), "float32")
    target = vector(8, data=dx)
    assert_refused(backward(sigmoid, None, target, None, vector(8, data=dy)), dx)


def test_backward_with_wrong_gradient_shapes_and_types_is_refused(sigmoid):
    x = dy = np.ones(16, np.float32)
    dx, _ = sentinel_array((16,), "float32")
    good = vector(8, data=dx)
    for bad in (vector(7, data=dy), vector(9, data=dy), vector(8, "float16", data=dy)):
        assert_refused(backward(sigmoid, x, good, x, bad), dx)
    for bad in (vector(7, data=dx), vector(9, data=dx), vector(8, "float16", data=dx), vector(8)):
        assert_refused(backward(sigmoid, x, bad, x, vector(8, data=dy)), dx)


def test_backward_with_misaligned_gradients_is_refused(sigmoid):
    x = np.ones(8, np.float32)
    dx, _ = sentinel_array((8,), "float32")
    off = misaligned((8,), np.float32)
    assert_refused(backward(sigmoid, x, vector(8, data=dx), x, vector(8, data=off)), dx)
    assert_refused(backward(sigmoid, x, vector(8, data=off), x, vector(8, data=x)))


def test_backward_with_unwanted_parameter_gradients_is_refused(sigmoid):
    x = np.ones(8, np.float32)
    dx, _ = sentinel_array((8,), "float32")
    extra, _ = sentinel_array((8,), "float32")
    for name in ("weights", "bias"):
        target = {name: vector(8, data=extra)}
        assert_refused(
            backward(sigmoid, x, vector(8, data=dx), x, vector(8, data=x), **target), dx, extra
        )


def test_alpha_gradient_without_input_is_refused():
    f = activation_layer(2, vector(8), vector(8), alpha=0.5)
    y = np.ones(8, np.float32)
    dx, _ = sentinel_array((8,), "float32")
    dalpha, _ = sentinel_array((1,), "float32")
    targets = vector(8, data=dx), vector(1, data=dalpha)
    status = backward(f, None, targets[0], y, vector(8, data=y), weights=targets[1])
    assert_refused(status, dx, dalpha)
    c.BNNSFilterDestroy(f)


def test_backward_into_its_own_output_gradient_is_allowed(sigmoid):
    x = np.linspace(-2, 2, 8, dtype=np.float32)
    shared = np.ones(8, np.float32)
    both = vector(8, data=shared)
    assert backward(sigmoid, x, both, None, both) == 0, c.last_error()
    assert_close(shared, oracle.sigmoid_slope(x.astype(np.float64), 0, 0))


def test_backward_with_nothing_wanted_succeeds(sigmoid):
    x = np.ones(8, np.float32)
    assert backward(sigmoid, x, None, x, vector(8, data=x)) == 0
