"""Values at the ends of what a number can be: squares that overflow, infinities, NaN. Expected
values are closed forms in float64, and PyTorch's where it is installed and gives a number."""

import numpy as np
import openbnns as bnns
import pytest

INF, NAN = np.inf, np.nan
A = bnns.Activation


def uniform(*shape, seed=0):
    return np.random.default_rng(seed).uniform(-1.0, 1.0, shape).astype(np.float32)


def float32(*values):
    return np.array(values, np.float32)


# ---- normalization: values whose squares are no float32 ----

# kind, shape of the input, how samples are cut into groups: (shape, axes of a group)
NORMS = {
    "batch": ("batch", (6, 4, 9, 9), (6, 4, 81), (0, 2)),
    "batch, long runs": ("batch", (3, 2, 70, 70), (3, 2, 4900), (0, 2)),
    "batch of vectors": ("batch", (40, 21), (40, 21), (0,)),
    "instance": ("instance", (3, 4, 13, 13), (3, 4, 169), (2,)),
    "layer": (bnns.Normalization.layer(0), (3, 4, 9, 9), (3, 324), (1,)),
    "layer of short rows": (bnns.Normalization.layer(0), (7, 33), (7, 33), (1,)),
    "group": (bnns.Normalization.group(2), (3, 4, 9, 9), (3, 2, 162), (2,)),
}


@pytest.mark.parametrize("scale", [1.0, 1e18, 1e19, 3e37, 1.5e38])
@pytest.mark.parametrize("name", NORMS)
def test_normalization_of_huge_values(name, scale):
    kind, shape, groups, axes = NORMS[name]
    x, dy = uniform(*shape) * np.float32(scale), uniform(*shape, seed=1)
    layer = bnns.NormalizationLayer(kind, input=shape[1:], epsilon=1e-5)
    y = layer.apply(x, training=True)
    dx = layer.apply_backward(None, y, dy).input
    v, g = (array.astype(np.float64).reshape(groups) for array in (x, dy))
    r = 1.0 / np.sqrt(v.var(axes, keepdims=True) + 1e-5)
    xhat = (v - v.mean(axes, keepdims=True)) * r
    slope = r * (g - g.mean(axes, keepdims=True) - xhat * (g * xhat).mean(axes, keepdims=True))
    np.testing.assert_allclose(y.reshape(groups), xhat, atol=2e-6)
    np.testing.assert_allclose(dx.reshape(groups), slope, atol=3e-6 * np.abs(slope).max() + 1e-44)


def test_running_statistics_of_huge_values():
    mean, variance = np.zeros(3, np.float32), np.ones(3, np.float32)
    layer = bnns.NormalizationLayer(
        "batch", input=(3, 5, 5), moving_mean=mean, moving_variance=variance, momentum=0.5
    )
    x = uniform(4, 3, 5, 5) + float32(0, 2, 4)[:, None, None]
    x *= float32(1, 1e18, 3e37)[:, None, None]
    layer.apply(x, training=True)
    by_channel = x.astype(np.float64).transpose(1, 0, 2, 3).reshape(3, -1)
    np.testing.assert_allclose(mean, 0.5 * by_channel.mean(1), rtol=1e-6)
    expected = 0.5 + 0.5 * by_channel.var(1, ddof=1)
    np.testing.assert_allclose(variance[:2], expected[:2], rtol=1e-6)
    assert variance[2] == INF  # 1e74 is no float32, as PyTorch has it


@pytest.mark.parametrize("special", [NAN, -NAN, INF, -INF])
@pytest.mark.parametrize("name", NORMS)
def test_special_values_stay_in_their_group(name, special):
    kind, shape, groups, axes = NORMS[name]
    layer = bnns.NormalizationLayer(kind, input=shape[1:])
    x, dy = uniform(*shape), uniform(*shape, seed=1)
    plain = layer.apply(x, training=True)
    plain_dx = layer.apply_backward(None, plain, dy).input
    x.reshape(-1)[shape[-1] + 2] = special
    y = layer.apply(x, training=True)
    dx = layer.apply_backward(None, y, dy).input
    hit = ~np.isfinite(x.reshape(groups)).all(axes, keepdims=True) | np.zeros(groups, bool)
    for array, before in ((y, plain), (dx, plain_dx)):
        assert np.isnan(array.reshape(groups)[hit]).all()
        np.testing.assert_array_equal(array.reshape(groups)[~hit], before.reshape(groups)[~hit])


# ---- losses ----


def cross_entropy(x, label):
    """Of a sigmoid, with its limits at infinity."""
    apart = np.where(x < 0, label, 1.0 - label)
    with np.errstate(invalid="ignore"):
        far = np.where(apart == 0.0, 0.0, apart * np.abs(x))
    return np.where(np.isnan(x), x, far + np.log1p(np.exp(-np.abs(x))))


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("label", [0.0, 0.25, 1.0])
def test_sigmoid_cross_entropy_at_infinity(label, in_place):
    """Every special value among 5000 others, which have the losses that they have without it."""
    plain = 3 * uniform(1, 5000)
    labels = np.full_like(plain, label)
    each = bnns.LossLayer("sigmoid_cross_entropy", input=(5000,), reduction="none")
    total = bnns.LossLayer("sigmoid_cross_entropy", input=(5000,), reduction="sum")
    without = each.apply(plain, labels)
    for place, special in enumerate((INF, -INF, 3e38, -3e38, NAN)):
        x = plain.copy()
        x[0, 1000 * place + 7] = special
        with np.errstate(over="ignore"):
            slope = 1.0 / (1.0 + np.exp(-x.astype(np.float64))) - label
        expected = cross_entropy(x.astype(np.float64), label)
        target = x.copy() if in_place else np.empty_like(x)
        y, dx = each.apply(target if in_place else x, labels, input_gradient=target)
        np.testing.assert_allclose(y, expected, rtol=1e-6)
        np.testing.assert_allclose(dx, slope, atol=1e-6)
        same = np.arange(5000) != 1000 * place + 7
        np.testing.assert_array_equal(y[:, same], without[:, same])
        target = x.copy() if in_place else np.empty_like(x)
        y, dx = total.apply(target if in_place else x, labels, input_gradient=target)
        np.testing.assert_allclose(y, expected.sum(), rtol=1e-6)
        np.testing.assert_allclose(dx, slope, atol=1e-6)


def test_softmax_cross_entropy_at_infinity():
    rows = float32([-INF, 0, 1], [0, -INF, 1], [3e38, -3e38, 0], [-3e38, 3e38, 0], [INF, 0, 1])
    layer = bnns.LossLayer("softmax_cross_entropy", input=(3,), reduction="none")
    y, dx = layer.apply(rows, np.zeros(5, np.int64), input_gradient=True)
    e = np.exp(1.0)
    np.testing.assert_allclose(y, [INF, np.log1p(e), 0, INF, NAN], rtol=1e-6)
    p = 1 / (1 + e)
    expected = [[-1, p, 1 - p], [p - 1, 0, 1 - p], [0, 0, 0], [-1, 1, 0], [NAN] * 3]
    np.testing.assert_allclose(dx, expected, atol=1e-6)


# x, label, loss and slope for delta 1; labels of hinge are 0 or 1
LOSSES = [
    ("mean_square_error", 1e20, 0, INF, 2e20),
    ("mean_square_error", -INF, 0, INF, -INF),
    ("mean_square_error", INF, INF, NAN, NAN),
    ("huber", 1e20, 0, 1e20, 1),
    ("huber", -3e38, 3e38, INF, -1),
    ("huber", -INF, 0, INF, -1),
    ("huber", NAN, 0, NAN, NAN),
    ("mean_absolute_error", -3e38, 0, 3e38, -1),
    ("mean_absolute_error", INF, 0, INF, 1),
    ("mean_absolute_error", NAN, 0, NAN, -1),
    ("hinge", INF, 1, 0, 0),
    ("hinge", INF, 0, INF, 1),
    ("hinge", -3e38, 1, 3e38, -1),
    ("hinge", NAN, 1, NAN, 0),
    ("log", 0, 0, 0, None),
    ("log", 1, 0, 16.118095, None),
    ("log", NAN, 1, NAN, NAN),
    ("log", 1.5, 1, NAN, None),
]


@pytest.mark.parametrize(("function", "x", "label", "loss", "slope"), LOSSES)
def test_losses_at_the_ends(function, x, label, loss, slope):
    layer = bnns.LossLayer(function, input=(1,), reduction="none")
    y, dx = layer.apply(float32([x]), float32([label]), input_gradient=True)
    np.testing.assert_allclose(y, [[loss]], rtol=2e-2 if function == "log" else 1e-6, atol=1e-6)
    if slope is not None:
        np.testing.assert_allclose(dx, [[slope]], rtol=1e-6)


# ---- optimizers ----

STEPS = {
    "adam": bnns.AdamOptimizer(0.1),
    "amsgrad": bnns.AdamOptimizer(0.1, amsgrad=True),
    "adamw": bnns.AdamWOptimizer(0.1, weight_decay=0.0),
}


@pytest.mark.parametrize("g", [1e-6, 1.0, 1e18, 2e19, 5e20])
@pytest.mark.parametrize("name", STEPS)
def test_adam_of_huge_gradients(name, g):
    """Squares beyond 1.8e19 overflow, their share of the mean does not: the first step is whole."""
    w = np.ones(37, np.float32)
    bound = STEPS[name].bind([w])
    bound.step([np.full(37, g, np.float32)])
    step = 0.1 * g / (g + 1e-8 / np.sqrt(0.001))
    np.testing.assert_allclose(w, 1 - step, rtol=1e-5)
    square = 0.001 * float(np.float32(g)) ** 2
    np.testing.assert_allclose(bound.accumulators[1], square, rtol=1e-4)


@pytest.mark.parametrize("g", [1e-3, 1e18, 2e19, 1.5e20])
@pytest.mark.parametrize("centered", [False, True])
def test_rmsprop_of_huge_gradients(centered, g):
    w = np.ones(37, np.float32)
    bnns.RMSPropOptimizer(0.1, alpha=0.99, epsilon=0.0, centered=centered).bind([w]).step(
        [np.full(37, g, np.float32)]
    )
    spread = 0.01 - 0.01**2 if centered else 0.01
    np.testing.assert_allclose(w, 1 - 0.1 / np.sqrt(spread), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("optimizer", [bnns.AdamOptimizer(0.1), bnns.RMSPropOptimizer(0.1)])
def test_infinite_mean_squares_stand_still(optimizer):
    """As PyTorch has it: a step of 0, and of NaN where the gradient itself is infinite."""
    w = np.ones(3, np.float32)
    optimizer.bind([w]).step([float32(1e25, -1e25, INF)])
    np.testing.assert_array_equal(w, [1, 1, NAN])


@pytest.mark.parametrize("size", [1e18, 1e25, 3e37, 3e38])
@pytest.mark.parametrize("count", [4, 100_000])
@pytest.mark.parametrize("clipping", [bnns.ClipByNorm(2.0), bnns.ClipByGlobalNorm(2.0)])
def test_clipping_of_huge_gradients(clipping, count, size):
    """The norm is a float64, and so is what it divides; PyTorch's is infinite and gives 0."""
    w, g = np.zeros(count, np.float32), np.float32(size) * uniform(count)
    bnns.SGDMomentumOptimizer(1.0, gradient_clipping=clipping).bind([w]).step([g])
    exact = g.astype(np.float64)
    np.testing.assert_allclose(w, -2.0 * exact / np.linalg.norm(exact), rtol=1e-6)
    np.testing.assert_allclose(bnns.clip_by_norm(g, 2.0), -w, rtol=1e-6)
    np.testing.assert_allclose(bnns.clip_by_global_norm([g], 2.0)[0], -w, rtol=1e-6)


# ---- attention ----


@pytest.mark.parametrize("scale", [1.0, 1e9, 1e18])
def test_attention_of_huge_scores(scale):
    """Scores of 1 up to 1e36: the largest takes all, without a NaN on the way."""
    eye = np.eye(8, dtype=np.float32)[None]
    plain, out = bnns.Projection(eye), bnns.Projection(np.eye(8, dtype=np.float32))
    layer = bnns.MultiheadAttention(plain, plain, plain, out, (5, 6))
    q, k, v = (uniform(2, n, 8, seed=n + 1) for n in (5, 6, 6))
    q *= np.float32(scale)
    k *= np.float32(scale)
    scores = q.astype(np.float64) @ k.astype(np.float64).transpose(0, 2, 1) / np.sqrt(8)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    expected = p / p.sum(-1, keepdims=True) @ v.astype(np.float64)
    np.testing.assert_allclose(layer.apply(q, k, v), expected, atol=2e-6)


# ---- activations ----

# slopes at NaN; NaN for all that are not listed
AT_NAN = {
    "rectified_linear": 1,
    "leaky_rectified_linear": 0.01,
    "elu": 1,
    "celu": 1,
    "identity": 1,
    "selu": 1.0507009873554805,
    "relu6": 0,
    "hard_sigmoid": 0,
    "clamp": 0,
    "hard_shrink": 1,
    "soft_shrink": 1,
    "threshold": 1,
    "clamped_leaky_rectified_linear": 0,
}
PLAIN = (
    "identity",
    "rectified_linear",
    "sigmoid",
    "tanh",
    "abs",
    "softsign",
    "selu",
    "log_sigmoid",
    "tanh_shrink",
    "silu",
    "relu6",
    "erf",
    "gelu",
    "gelu_approximation_sigmoid",
)
FUNCTIONS = {
    **{name: name for name in PLAIN},
    "leaky_rectified_linear": A.leaky_rectified_linear(0.01),
    "clamp": A.clamp(-1, 1),
    "clamped_leaky_rectified_linear": A.clamped_leaky_rectified_linear(0.1, 2.0),
    "elu": A.elu(),
    "celu": A.celu(),
    "hard_sigmoid": A.hard_sigmoid(),
    "hard_swish": A.hard_swish(),
    "hard_shrink": A.hard_shrink(),
    "soft_shrink": A.soft_shrink(),
    "softplus": A.softplus(),
    "threshold": A.threshold(0.5, 0.25),
    "gelu_approximation": A.gelu_approximation(),
}


def slope(function, x, y, dy):
    """Gradients from x and, where that works, from y; 37 of them, so that there is a tail."""
    layer = bnns.ActivationLayer(function, input=(37,))
    x, dy = np.full((1, 37), x, np.float32), np.full((1, 37), dy, np.float32)
    found = [layer.apply_backward(x, None, dy).input]
    if y is not None:
        y = np.full((1, 37), y, np.float32)
        found.append(layer.apply_backward(None, y, dy).input)
    return found


FROM_Y = {"rectified_linear", "relu6", "clamp", "hard_sigmoid", "hard_shrink", "threshold"}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_at_nan(name):
    for found in slope(FUNCTIONS[name], NAN, NAN if name in FROM_Y else None, 2.0):
        np.testing.assert_allclose(found, np.full((1, 37), 2.0 * AT_NAN.get(name, NAN)), rtol=1e-6)


# function, an x where its slope is 0, and the y there
SHUT = [
    ("rectified_linear", -1, 0),
    ("rectified_linear", -INF, 0),
    ("relu6", 7, 6),
    ("relu6", -INF, 0),
    ("clamp", 3, 1),
    ("hard_shrink", 0.1, 0),
    ("soft_shrink", 0.1, 0),
    ("threshold", -INF, 0.25),
]


@pytest.mark.parametrize("dy", [INF, -INF, NAN])
@pytest.mark.parametrize(("name", "x", "y"), SHUT)
def test_nothing_passes_where_the_slope_is_zero(name, x, y, dy):
    for found in slope(FUNCTIONS[name], x, y, dy):
        np.testing.assert_array_equal(found, np.zeros((1, 37)))


def test_relu_behind_a_normalization_passes_gradients_at_nan():
    """As behind any other layer: then the sum of dy is the gradient of beta."""
    x, dy = uniform(4, 3, 6, 6), uniform(4, 3, 6, 6, seed=1)
    x[2, 1, 3, 3] = NAN
    layer = bnns.NormalizationLayer(
        "batch", input=(3, 6, 6), activation="relu", beta=float32(0, 0, 0)
    )
    y = layer.apply(x, training=True)
    beta = layer.apply_backward(None, y, dy).beta
    np.testing.assert_allclose(beta[1], dy[:, 1].sum(dtype=np.float64), rtol=1e-5)
    np.testing.assert_allclose(beta[0], dy[:, 0][y[:, 0] > 0].sum(dtype=np.float64), rtol=1e-5)


@pytest.mark.parametrize("axis", [-1, 0])
def test_log_softmax_leaves_out_nan(axis):
    """As BNNS does: a value that is NaN is NaN, the others are as if it were not there."""
    x = 3 * uniform(5, 70)
    x[0, 0] = x[2, 33] = x[3, 69] = x[3, 1] = NAN
    x[:, 5] = -INF
    x[1, 7] = INF  # all of it
    values = x if axis == -1 else x.T.copy()
    layer = bnns.ActivationLayer("log_softmax", input=values.shape, axes=axis)
    y = layer.apply(values[None])[0]
    y = y if axis == -1 else y.T
    with np.errstate(invalid="ignore"):
        exact = x.astype(np.float64)
        expected = exact - np.log(np.nansum(np.exp(exact), axis=1, keepdims=True))
    expected[1] = NAN
    np.testing.assert_allclose(y, expected, rtol=1e-6, atol=1e-6)


def test_log_softmax_of_a_group_beyond_scratch_leaves_out_nan():
    x = uniform(1_200_000).astype(np.float16)
    x[777] = NAN
    layer = bnns.ActivationLayer("log_softmax", input=bnns.ArraySpec(x.shape, "float16"))
    y = layer.apply(x[None])[0]
    exact = x.astype(np.float64)
    expected = exact - np.log(np.nansum(np.exp(exact)))
    np.testing.assert_allclose(y, expected, rtol=1e-3)


def test_max_pooling_passes_nan_on():
    x = uniform(1, 2, 6, 6)
    x[0, 0, 1, 1] = NAN
    y = bnns.PoolingLayer("max", input=(2, 6, 6), kernel_size=2).apply(x)
    assert np.isnan(y[0, 0, 0, 0])
    assert np.isnan(y).sum() == 1


# ---- beside PyTorch ----


def test_gradients_at_special_values_are_those_of_pytorch():
    """Which at NaN are not always those that it gives the last values of an array."""
    torch = pytest.importorskip("torch")
    f = torch.nn.functional
    theirs = {
        "rectified_linear": f.relu,
        "leaky_rectified_linear": f.leaky_relu,
        "elu": f.elu,
        "celu": f.celu,
        "selu": f.selu,
        "relu6": f.relu6,
        "hard_sigmoid": f.hardsigmoid,
        "hard_shrink": f.hardshrink,
        "soft_shrink": f.softshrink,
        "softplus": f.softplus,
        "log_sigmoid": f.logsigmoid,
        "sigmoid": torch.sigmoid,
        "tanh": torch.tanh,
        "clamp": lambda x: torch.clamp(x, -1, 1),
        "threshold": lambda x: f.threshold(x, 0.5, 0.25),
        "hard_swish": f.hardswish,
    }
    values = float32(NAN, INF, -INF, 1e38, -1e38, 2, -2, 0.25, -0.25)
    products = {"sigmoid", "tanh", "softplus", "log_sigmoid", "elu", "celu", "selu"}
    products |= {"hard_sigmoid", "hard_swish"}

    def theirs_at(function, copies, dy):
        x = torch.tensor(np.repeat(values, copies), requires_grad=True)
        function(x).backward(torch.full_like(x, dy))
        return x.grad.numpy()[::copies]

    for name, function in theirs.items():
        for dy in (1.0, INF):
            vector, scalar = (theirs_at(function, copies, dy) for copies in (64, 1))
            for k, value in enumerate(values):
                ours = slope(FUNCTIONS[name], value, None, dy)[0][0, 0]
                if name in products and dy == INF and np.isnan([ours, vector[k]]).any():
                    continue  # infinity times a slope of 0
                close = [
                    np.isclose(ours, one[k], rtol=1e-5, atol=1e-6, equal_nan=True)
                    for one in (vector, scalar)
                ]
                assert any(close), f"{name} at {value}, dy {dy}: {ours}, {vector[k]}, {scalar[k]}"


def test_cross_entropy_at_infinity_is_that_of_pytorch():
    """Where PyTorch gives a number."""
    torch = pytest.importorskip("torch")
    layer = bnns.LossLayer("sigmoid_cross_entropy", input=(4,), reduction="none")
    for label in (0.0, 0.25, 1.0):
        x = torch.tensor([INF, -INF, 3e38, -3e38])
        y = torch.nn.functional.binary_cross_entropy_with_logits(
            x, torch.full((4,), label), reduction="none"
        ).numpy()
        ours = layer.apply(x.numpy()[None], np.full((1, 4), label, np.float32))[0]
        known = ~np.isnan(y)
        assert known.any()
        np.testing.assert_allclose(ours[known], y[known], rtol=1e-6)


def test_huge_gradients_step_as_in_pytorch():
    torch = pytest.importorskip("torch")
    pairs = (
        (bnns.AdamOptimizer(0.1), lambda p: torch.optim.Adam(p, 0.1)),
        (bnns.AdamOptimizer(0.1, amsgrad=True), lambda p: torch.optim.Adam(p, 0.1, amsgrad=True)),
        (bnns.RMSPropOptimizer(0.1), lambda p: torch.optim.RMSprop(p, 0.1)),
        (
            bnns.RMSPropOptimizer(0.1, centered=True),
            lambda p: torch.optim.RMSprop(p, 0.1, centered=True),
        ),
    )
    for ours, theirs in pairs:
        for g in (1e18, 2e19, 1e20, INF):
            w, their_w = np.ones(5, np.float32), torch.ones(5)
            ours.bind([w]).step([np.full(5, g, np.float32)])
            their_w.grad = torch.full((5,), g)
            theirs([their_w]).step()
            np.testing.assert_allclose(w, their_w.numpy(), rtol=1e-4, atol=1e-5)
