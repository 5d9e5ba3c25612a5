"""The judges judged: closed forms against finite differences in float64 and against PyTorch."""

import numpy as np
import pytest
from cases import activation as activation_cases
from cases import arithmetic as arithmetic_cases
from cases import attention as attention_cases
from cases import convolution as convolution_cases
from cases import fully_connected as fully_connected_cases
from cases import fused as fused_cases
from cases import generator
from cases import loss as loss_cases
from cases import normalization as normalization_cases
from cases import pooling as pooling_cases
from oracles import activation, attention, loss, normalization, pooling
from oracles.differences import away_from

STEP = 1e-6


def geometries():
    return [g for g in pooling_cases.GEOMETRIES if "split" not in g.tags]


def inputs_for(name):
    """Values over the interesting range that keep away from jumps of the slope."""
    alpha, beta = activation_cases.PARAMETERS[name]
    kinks = activation_cases.KINKS.get(name, lambda a, b: ())(alpha, beta)
    return away_from(np.linspace(-7.0, 7.0, 1001), kinks, 0.01), alpha, beta


@pytest.mark.parametrize("name", activation_cases.PARAMETERS)
def test_activation_slope_is_the_limit_of_differences(name):
    x, a, b = inputs_for(name)
    function = activation.FUNCTIONS[name]
    difference = (function.forward(x + STEP, a, b) - function.forward(x - STEP, a, b)) / (2 * STEP)
    np.testing.assert_allclose(function.slope(x, a, b), difference, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    "name", [name for name, f in activation.FUNCTIONS.items() if f.slope_from_y is not None]
)
def test_activation_slope_from_output_is_the_slope(name):
    x, a, b = inputs_for(name)
    if name == "gelu_approximation_sigmoid":
        x = x[x >= 0]  # below zero an output does not tell its input
    function = activation.FUNCTIONS[name]
    y = function.forward(x, a, b)
    np.testing.assert_allclose(
        function.slope_from_y(y, a, b), function.slope(x, a, b), rtol=1e-7, atol=1e-9
    )


@pytest.mark.parametrize("name", activation_cases.PARAMETERS)
def test_activation_agrees_with_torch(name):
    torch_judge = pytest.importorskip("oracles.torch_judge", exc_type=ImportError)
    x, a, b = inputs_for(name)
    dy = np.cos(np.arange(x.size))
    y, dx = torch_judge.activation(name, x, dy, a, b)
    function = activation.FUNCTIONS[name]
    np.testing.assert_allclose(function.forward(x, a, b), y, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(dy * function.slope(x, a, b), dx, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("axes", [(1,), (0,), (1, 3), (0, 1, 2, 3)])
def test_softmax_agrees_with_torch(axes, log):
    torch_judge = pytest.importorskip("oracles.torch_judge", exc_type=ImportError)
    rng = np.random.default_rng(0)
    x, dy = rng.standard_normal((2, 3, 4, 5, 6))[0], rng.standard_normal((3, 4, 5, 6))
    y, dx = torch_judge.softmax(x, dy, axes, log)
    ours = activation.log_softmax(x, axes) if log else activation.softmax(x, axes)
    back = activation.log_softmax_backward if log else activation.softmax_backward
    np.testing.assert_allclose(ours, y, rtol=1e-12)
    np.testing.assert_allclose(back(ours, dy, axes), dx, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("function", ["max", "average", "average_exclude_padding", "l2_norm"])
@pytest.mark.parametrize("case", geometries(), ids=str)
def test_pooling_gradient_is_the_limit_of_differences(case, function):
    rng = generator(case)
    x, dy = rng.standard_normal(case.image), rng.standard_normal(case.pooled)
    dx = pooling.backward(function, x, dy, case.geometry)
    direction = rng.standard_normal(case.image)
    ahead, _ = pooling.forward(function, x + STEP * direction, case.geometry)
    behind, _ = pooling.forward(function, x - STEP * direction, case.geometry)
    change = (dy * (ahead - behind)).sum() / (2 * STEP)
    np.testing.assert_allclose((dx * direction).sum(), change, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("function", pooling_cases.FUNCTIONS)
@pytest.mark.parametrize("case", geometries(), ids=str)
def test_pooling_agrees_with_torch(case, function):
    torch_judge = pytest.importorskip("oracles.torch_judge", exc_type=ImportError)
    rng = generator(case)
    image = rng.standard_normal(case.image)
    largest, indices = pooling.max_pool(image, case.geometry)
    x = largest if function == "unmax" else image
    dy = rng.standard_normal(case.image if function == "unmax" else case.pooled)
    # torch has no slope for the root of an empty window's zero: give it no weight
    if function == "l2_norm":
        dy = np.where(pooling.l2_norm_pool(x, case.geometry) == 0, 0.0, dy)
    y, dx, dbias = torch_judge.pooling(function, x, dy, case.geometry, indices)
    ours, _ = pooling.forward(function, x, case.geometry, indices)
    np.testing.assert_allclose(ours, y, rtol=1e-12, atol=1e-14)
    dx = np.nan_to_num(dx)
    np.testing.assert_allclose(
        pooling.backward(function, x, dy, case.geometry, indices), dx, rtol=1e-9, atol=1e-12
    )
    np.testing.assert_allclose(dy.sum(axis=(0, 2, 3)), dbias, rtol=1e-9, atol=1e-12)


def weighted():
    """Cases of layers with weights, one per shape."""
    cases = convolution_cases.PLAIN + convolution_cases.TRANSPOSED
    cases += fully_connected_cases.DENSE[:10] + fully_connected_cases.FUSED[:10]
    return [case for case in cases if case.dtype == "float32"]


@pytest.mark.parametrize("case", weighted(), ids=str)
def test_weighted_gradients_are_the_limit_of_differences(case):
    rng = generator(case)
    x, w = case.input().astype(float), case.weights().astype(float)
    y = case.expected(x, w)
    dy = rng.standard_normal(y.shape)
    grads = case.expected_gradients(x, w, y, dy)
    for which, gradient in enumerate((grads.dx, grads.dw)):
        direction = rng.standard_normal(gradient.shape)
        moves = [STEP * direction if k == which else 0.0 for k in range(2)]
        ahead = case.expected(x + moves[0], w + moves[1])
        behind = case.expected(x - moves[0], w - moves[1])
        change = (dy * (ahead - behind)).sum() / (2 * STEP)
        np.testing.assert_allclose((gradient * direction).sum(), change, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", weighted(), ids=str)
def test_weighted_layers_agree_with_torch(case):
    torch_judge = pytest.importorskip("oracles.torch_judge", exc_type=ImportError)
    is_convolution = isinstance(case, convolution_cases.ConvolutionCase)
    judge = torch_judge.convolution if is_convolution else torch_judge.fully_connected
    x, w, dy = case.input(), case.weights(), case.output_gradient()
    y = case.expected(x, w)
    grads = case.expected_gradients(x, w, y, dy)
    theirs = judge(x, w, dy, case, case.bias_values())
    for ours, expected in zip((y, grads.dx, grads.dw, grads.db), theirs, strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-9, atol=1e-11)


def normalizations():
    """One per shape and kind, without groups so flat that their slope has a pole."""
    cases = normalization_cases.IMAGES + normalization_cases.VECTORS
    smooth = [case for case in cases if case.activation == "identity"]
    return [case for case in smooth if least_variance(case) > 0.05]


def least_variance(case):
    return normalization.statistics(case.input().astype(float), case.split)[1].min()


@pytest.mark.parametrize("case", normalizations(), ids=str)
def test_normalization_gradient_is_the_limit_of_differences(case):
    rng = generator(case)
    x, dy = case.input().astype(float), rng.standard_normal(case.shape)
    direction = rng.standard_normal(case.shape)
    dx = case.expected_gradients(x, case.expected(x), dy).dx
    ahead, behind = case.expected(x + STEP * direction), case.expected(x - STEP * direction)
    change = (dy * (ahead - behind)).sum() / (2 * STEP)
    np.testing.assert_allclose((dx * direction).sum(), change, rtol=1e-5, atol=1e-5)


JUMPS = ("ceil", "floor", "round", "sign", "abs", "minimum", "maximum", "select")
JUMPS += ("floor_divide", "trunc_divide", "trunc_remainder")


def smooth_arithmetic():
    cases = arithmetic_cases.EVERY + arithmetic_cases.BROADCAST + arithmetic_cases.KINDS
    return [case for case in cases if case.function not in JUMPS]


@pytest.mark.parametrize("case", smooth_arithmetic(), ids=str)
def test_arithmetic_gradients_are_the_limit_of_differences(case):
    rng = generator(case)
    inputs = [array.astype(float) for array in case.inputs()]
    y = case.expected(inputs)
    dy = rng.standard_normal(y.shape)
    for k, gradient in enumerate(case.expected_gradients(inputs, y, dy)):
        if gradient is None:
            continue
        direction = rng.standard_normal(inputs[k].shape)

        def moved(step, k=k, direction=direction):
            others = list(inputs)
            others[k] = inputs[k] + step * direction
            return case.expected(others)

        change = (dy * (moved(STEP) - moved(-STEP))).sum() / (2 * STEP)
        np.testing.assert_allclose((gradient[0] * direction).sum(), change, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", fused_cases.PAIRS + fused_cases.OPTIONS, ids=str)
def test_fused_layers_agree_with_torch(case):
    torch_judge = pytest.importorskip("oracles.torch_judge", exc_type=ImportError)
    if case.full or case.activation == "rectified_linear":
        pytest.skip("PyTorch has no such gamma, or rounding decides about a slope")
    inputs = [array.astype(float) for array in case.inputs()]
    w, dy = case.weights(), case.output_gradient()
    y, error = case.expected(inputs, w)
    theirs = torch_judge.fused(inputs, w, dy, case)
    np.testing.assert_allclose(y, theirs["y"], rtol=1e-9, atol=1e-11)
    expected = case.expected_gradients(inputs, w, y, dy)
    assert (error > 0).all()
    for name, values in expected.values.items():
        np.testing.assert_allclose(values, theirs[name], rtol=1e-8, atol=1e-10, err_msg=name)
        assert (expected.errors[name] >= 0).all()


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 6, 8])
def test_unpack_is_the_inverse_of_pack(bits):
    codes = np.arange(37) % (1 << bits)
    packed = activation.pack(codes, bits)
    assert packed.size == (37 * bits + 7) // 8
    np.testing.assert_array_equal(activation.unpack(packed, bits, 37, signed=False), codes)


@pytest.mark.parametrize("function", loss_cases.FUNCTIONS)
def test_loss_gradient_is_the_limit_of_differences(function):
    """Also of the three whose documented gradient is a derivative in a special case only: cosine
    distance on the unit sphere, categorical cross entropy for 0 and 1 without weights, log up to
    its epsilon."""
    rng = generator(function)
    x, labels = rng.standard_normal((4, 6)), rng.integers(0, 2, (4, 6)).astype(np.float64)
    labels[:, 0] = 1
    weights, direction = rng.random((4, 6)), rng.standard_normal((4, 6))
    rtol = 1e-6
    if function == "log":
        x, rtol = 0.1 + 0.8 * rng.random((4, 6)), 1e-4
    if function == "categorical_cross_entropy":
        weights = np.ones((4, 6))
    project = loss_cases.unit if function == "cosine_distance" else np.asarray
    if function == "cosine_distance":
        x, labels, weights = project(x), project(labels), np.ones((4, 6))
        direction -= (direction * x).sum(axis=1, keepdims=True) * x  # along the sphere
    result = loss.forward(function, x, labels, weights, 0.1, 0.7)
    ahead = loss.forward(function, project(x + STEP * direction), labels, weights, 0.1, 0.7).y
    behind = loss.forward(function, project(x - STEP * direction), labels, weights, 0.1, 0.7).y
    change = (ahead - behind).sum() / (2 * STEP)
    np.testing.assert_allclose((result.slopes * direction).sum(), change, rtol=rtol, atol=1e-6)


@pytest.mark.parametrize("case", [attention_cases.ODD[3], attention_cases.OPTIONS[11]], ids=str)
def test_attention_gradients_are_limits_of_differences(case):
    p, masks, dy = case.parameters(), case.masks(), case.output_gradient()
    fields = dict(
        zip(
            attention_cases.NAMES,
            (
                "q",
                "k",
                "v",
                "wq",
                "bq",
                "wk",
                "bk",
                "wv",
                "bv",
                "wo",
                "bo",
                "key_bias",
                "value_bias",
            ),
            strict=True,
        )
    )

    def total(**moved):
        at = type(p)(**{**vars(p), **moved})
        mask, added = masks.get("key_mask"), masks.get("attention_bias")
        return (attention.forward(case, at, mask, added).y * dy).sum()

    for name, gradient in case.expected_gradients(dy, p).items():
        x = getattr(p, fields[name]).astype(np.float64)
        direction = generator(case, 5).standard_normal(x.shape)
        ahead, behind = (total(**{fields[name]: x + step * direction}) for step in (STEP, -STEP))
        expected = (gradient * direction).sum()
        assert abs((ahead - behind) / (2 * STEP) - expected) <= 1e-6 * (1 + abs(expected))
