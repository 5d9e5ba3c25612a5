"""Fused layers with a pooling at the end: the values and gradients of three layers in one."""

import numpy as np
import pytest
from openbnns import (
    FusedConvolutionNormalizationLayer,
    FusedConvolutionParameters,
    FusedFullyConnectedParameters,
    FusedNormalizationParameters,
    FusedParametersLayer,
    FusedPoolingParameters,
    FusedQuantizationParameters,
    LayerApplyError,
    LayerCreationError,
    Network,
    PoolingLayer,
)
from openbnns.blocks import Convolution, Dense, Pool
from oracles.tolerance import assert_same_bits

EPSILON = 1e-3

# images, kernels, stride, padding of the convolution; kind, size, stride, padding of the pooling;
# whether it is one pass
SHAPES = {
    "digits": ((4, 1, 20, 20), (32, 3), 1, 1, ("max", 2, 2, 0), False),
    "batch of one": ((1, 1, 20, 20), (8, 3), 1, 1, ("max", 2, 2, 0), False),
    "odd plane": ((3, 1, 13, 17), (8, 3), 1, 1, ("max", 2, 2, 0), False),
    "windows apart": ((3, 1, 20, 20), (8, 3), 1, 1, ("max", 2, 3, 0), False),
    "wide windows": ((2, 1, 21, 18), (8, 3), 1, 1, ("max", 3, 3, 0), False),
    "colours": ((2, 3, 16, 16), (64, 3), 1, 1, ("max", 2, 2, 0), False),
    "strided": ((2, 1, 35, 33), (8, 3), 2, 1, ("max", 2, 2, 0), False),
    "overlapping": ((2, 1, 20, 20), (8, 3), 1, 1, ("max", 3, 2, 0), False),
    "padded": ((2, 1, 20, 20), (8, 3), 1, 1, ("max", 2, 2, 1), False),
    "average": ((2, 1, 20, 20), (8, 3), 1, 1, ("average", 2, 2, 0), False),
    "l2 norm": ((2, 1, 20, 20), (8, 3), 1, 1, ("l2_norm", 2, 2, 0), False),
    "many channels": ((2, 8, 12, 12), (6, 3), 1, 1, ("max", 2, 2, 0), False),
    "small planes": ((4, 16, 14, 14), (32, 3), 1, 1, ("max", 2, 2, 0), True),
}
every_shape = pytest.mark.parametrize("name", SHAPES)


class Trio:
    """The arrays of a shape and its layer."""

    def __init__(self, name, activation="relu", seed=0, **options):
        images, (outputs, kernel), stride, padding, pool, self.is_one_pass = SHAPES[name]
        random = np.random.default_rng(seed)

        def values(*shape):
            return random.standard_normal(shape).astype(np.float32)

        self.x, self.activation = values(*images), activation
        self.weights, self.bias = values(outputs, images[1], kernel, kernel), values(outputs)
        self.beta, self.gamma = values(outputs), values(outputs) + 2
        self.stride, self.padding, self.pool = stride, padding, pool
        kind, size, step, pad = pool
        self.layer = FusedParametersLayer(
            FusedConvolutionParameters(self.weights, self.bias, stride, padding=padding),
            FusedNormalizationParameters(
                "batch", self.beta, self.gamma, epsilon=EPSILON, activation=activation
            ),
            FusedPoolingParameters(kind, size, step, pad),
            input=images[1:],
            **options,
        )
        self.dy = values(len(self.x), *self.layer.output_spec.shape)

    def gradients(self, **options):
        self.y = self.layer(self.x, training=True)
        return self.layer.apply_backward(self.x, None, self.dy, **options)

    def pair(self):
        return FusedConvolutionNormalizationLayer(
            self.weights,
            bias=self.bias,
            input=self.x.shape[1:],
            stride=self.stride,
            padding=self.padding,
            normalization="batch",
            beta=self.beta,
            gamma=self.gamma,
            epsilon=EPSILON,
            activation=self.activation,
        )

    def separate(self):
        """The pair and the pooling: y and all gradients."""
        kind, size, step, pad = self.pool
        pair = self.pair()
        between = pair(self.x, training=True)
        pooling = PoolingLayer(
            kind, input=between.shape[1:], kernel_size=size, stride=step, padding=pad
        )
        y = pooling(between)
        back = pooling.apply_backward(between, y, self.dy).input
        return y, pair.apply_backward(self.x, between, back)

    def torch_form(self, torch, arrays):
        """The same by PyTorch in float64: the result of tensors x, weights, bias, beta, gamma."""
        f = torch.nn.functional
        x, weights, bias, beta, gamma = arrays
        z = f.conv2d(x, weights, bias, self.stride, self.padding)
        a = f.batch_norm(z, None, None, gamma, beta, training=True, eps=EPSILON)
        if self.activation == "relu":
            a = f.relu(a)
        kind, size, step, pad = self.pool
        if kind == "max":
            return f.max_pool2d(a, size, step, pad)
        if kind == "average":
            return f.avg_pool2d(a, size, step, pad)
        return torch.sqrt(f.avg_pool2d(a * a, size, step, pad) * size * size)


def closed_form(trio):
    """Forward in float64 NumPy, for max pooling."""
    x, w = trio.x.astype(float), trio.weights.astype(float)
    p, s, k = trio.padding, trio.stride, w.shape[2]
    padded = np.pad(x, ((0, 0), (0, 0), (p, p), (p, p)))
    views = np.lib.stride_tricks.sliding_window_view(padded, (k, k), (2, 3))[:, :, ::s, ::s]
    z = np.einsum("ncpqij,ocij->nopq", views, w) + trio.bias[:, None, None]
    mean, variance = z.mean((0, 2, 3)), z.var((0, 2, 3))

    def along(values):
        return values[:, None, None]

    a = along(trio.gamma) * (z - along(mean)) / along(np.sqrt(variance + EPSILON))
    a = np.maximum(a + along(trio.beta), 0 if trio.activation == "relu" else -np.inf)
    _, size, step, pad = trio.pool
    a = np.pad(a, ((0, 0), (0, 0), (pad, pad), (pad, pad)), constant_values=-np.inf)
    windows = np.lib.stride_tricks.sliding_window_view(a, (size, size), (2, 3))
    return windows[:, :, ::step, ::step].max((-1, -2))


def assert_near(got, expected, tolerance=2e-5):
    scale = max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance * scale)


@pytest.mark.parametrize("activation", ["relu", "identity"])
@pytest.mark.parametrize("name", [name for name in SHAPES if SHAPES[name][4][0] == "max"])
def test_training_matches_closed_form(name, activation):
    trio = Trio(name, activation)
    assert_near(trio.layer(trio.x, training=True), closed_form(trio))


@every_shape
@pytest.mark.parametrize("activation", ["relu", "identity"])
def test_values_and_gradients_match_torch(name, activation):
    torch = pytest.importorskip("torch")
    trio = Trio(name, activation)
    gradients = trio.gradients()
    given = trio.x, trio.weights, trio.bias, trio.beta, trio.gamma
    arrays = [torch.tensor(array.astype(float), requires_grad=True) for array in given]
    y = trio.torch_form(torch, arrays)
    assert_near(trio.y, y.detach().numpy())
    y.backward(torch.tensor(trio.dy.astype(float)))
    for got, array in zip(gradients, arrays, strict=True):
        assert_near(got, array.grad.numpy(), 1e-4)


@pytest.mark.parametrize("name", ["digits", "windows apart", "padded"])
def test_gradients_match_central_differences(name):
    """By our own forward; values in whose reach another pixel of a window wins are left out."""
    trio = Trio(name, "identity")
    gradients = trio.gradients()
    for array, gradient in ((trio.weights, gradients.weights), (trio.beta, gradients.beta)):
        flat, slopes = array.reshape(-1), gradient.reshape(-1)
        for i in range(0, flat.size, 7):
            before, sums = flat[i], []
            for step in (1e-2, -1e-2, 5e-3, -5e-3):
                flat[i] = before + step
                sums.append(float((trio.layer(trio.x, training=True) * trio.dy).sum(dtype=float)))
            flat[i] = before
            wide, narrow = (sums[0] - sums[1]) / 2e-2, (sums[2] - sums[3]) / 1e-2
            scale = max(10.0, float(np.abs(slopes).max()))
            if abs(wide - narrow) < 1e-3 * scale:
                assert abs(narrow - slopes[i]) < 2e-2 * scale


@every_shape
def test_nearly_or_exactly_the_pair_and_the_pooling(name):
    trio = Trio(name)
    gradients = trio.gradients()
    y, expected = trio.separate()
    for got, array in zip((trio.y, *gradients), (y, *expected), strict=True):
        if trio.is_one_pass:
            assert_near(got, array)
        else:
            assert_same_bits(got, array)


@every_shape
def test_what_is_kept(name):
    trio = Trio(name)
    pair, samples = trio.pair(), len(trio.x)
    between = 4 * samples * int(np.prod(pair.output_spec.shape))
    more = trio.layer.kept_bytes(samples) - pair.kept_bytes(samples)
    assert (more < between) == trio.is_one_pass


def test_ties_go_to_the_first():
    """Equal pixels: the gradient of a constant image is that of the first pixel of each window."""
    trio = Trio("digits", "identity")
    trio.x[...] = 0
    trio.x[0, 0, 5, 5] = 1  # so that there is a variance
    gradients = trio.gradients()
    _, expected = trio.separate()
    assert_near(gradients.weights, expected.weights)
    assert_near(gradients.input, expected.input)


@pytest.mark.parametrize("name", ["digits", "padded"])
def test_accumulates_and_leaves_out(name):
    trio = Trio(name)
    plain = trio.gradients()
    parameters = plain._asdict()
    del parameters["input"]
    arrays = {f"{name}_gradient": np.full_like(array, 3) for name, array in parameters.items()}
    again = trio.layer.apply_backward(
        trio.x, None, trio.dy, input_gradient=None, **arrays, accumulate=True
    )
    assert again.input is None
    for got, gradient in zip(arrays.values(), parameters.values(), strict=True):
        assert_near(got - 3, gradient, 1e-5)
    nothing = dict.fromkeys((*arrays, "input_gradient"))
    only = trio.layer.apply_backward(trio.x, None, trio.dy, **nothing | {"beta_gradient": True})
    assert_near(only.beta, plain.beta, 1e-6)
    assert [name for name, array in only._asdict().items() if array is not None] == ["beta"]


@pytest.mark.parametrize("name", ["digits", "padded"])
def test_any_number_of_threads_gives_the_same_bits(name):
    results = []
    for threads in (1, 2, 7):
        trio = Trio(name, num_threads=threads)
        gradients = trio.gradients()
        results.append((trio.y, *gradients))
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            assert_same_bits(a, b)


@pytest.mark.parametrize("name", ["digits", "padded"])
def test_backward_needs_a_training_call_with_this_batch(name):
    trio = Trio(name)
    with pytest.raises(LayerApplyError, match="training"):
        trio.layer.apply_backward(trio.x, None, trio.dy)
    trio.gradients()
    with pytest.raises(LayerApplyError, match="samples"):
        trio.layer.apply_backward(trio.x[:1], None, trio.dy[:1])


def test_impossible_trios_are_refused_with_a_sentence():
    weights, norm = np.ones((4, 1, 3, 3), "f4"), FusedNormalizationParameters("batch")
    first, pool = FusedConvolutionParameters(weights), FusedPoolingParameters("max", 2)
    for components, sentence in (
        ((first, norm, norm), "may be a pooling"),
        ((first, pool), "components"),
        ((first, FusedQuantizationParameters(2.0), pool), "components"),
        ((first, norm, pool, pool), "components"),
        ((first, norm, FusedPoolingParameters("unmax", 2)), "unmax"),
        ((first, norm, FusedPoolingParameters("max", 20)), "kernel_size"),
    ):
        with pytest.raises(LayerCreationError, match=sentence):
            FusedParametersLayer(*components, input=(1, 8, 8))
    vectors = FusedFullyConnectedParameters(np.ones((4, 3), "f4"))
    with pytest.raises(LayerCreationError, match="channels, height, width"):
        FusedParametersLayer(vectors, norm, pool)


def test_the_description_shows_itself():
    layer = Trio("digits").layer
    assert "FusedPoolingParameters" in repr(layer)
    assert len(layer.components) == 3


def test_a_network_joins_them_where_it_is_one_pass():
    def network(kind, channels=16):
        first = Convolution(2 * channels, padding=1, normalization="batch", activation="relu")
        return Network([first, Pool(kind, 2), Dense(2)], input=(channels, 12, 12))

    joined = network("max")
    assert [stage.name for stage in joined._each()] == ["convolution_1", "flatten", "dense_1"]
    for apart in (network("average"), network("max", 4)):
        assert [stage.name for stage in apart._each()][:2] == ["convolution_1", "pool_1"]
    x = np.random.default_rng(0).standard_normal((6, 16, 12, 12)).astype(np.float32)
    losses = [joined.train_step(x, np.arange(6) % 2) for _ in range(20)]
    assert losses[-1] < losses[0]
