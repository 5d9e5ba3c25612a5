"""The same bits for any number of threads where work is cut by their number: shapes large enough
for every such cut, which the cases of the families are not."""

import numpy as np
import openbnns as bnns
import pytest

THREADS = (1, 2, 4, 7, 16)


@pytest.fixture(autouse=True)
def setting():
    before = bnns.get_num_threads()
    yield
    bnns.set_num_threads(before)


def values(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def same_for_all(results):
    """results(): arrays; compared with those of one thread, bit by bit."""
    bnns.set_num_threads(1)
    expected = [array.copy() for array in results()]
    for threads in THREADS[1:]:
        bnns.set_num_threads(threads)
        for number, (found, wanted) in enumerate(zip(results(), expected, strict=True)):
            np.testing.assert_array_equal(
                found.view(np.uint32), wanted.view(np.uint32), f"{threads} threads, array {number}"
            )


# channels, side, outputs, kernel, stride, batch: Winograd's way with weights made at once, with
# weights made by panel, sums apart and shared, and the direct way
CONVOLUTIONS = [
    (64, 24, 64, 3, 1, 6),
    (48, 13, 80, 3, 1, 5),
    (160, 8, 256, 3, 1, 16),
    (256, 4, 224, 3, 1, 20),
    (40, 27, 72, 3, 2, 5),
    (128, 14, 192, 1, 1, 7),
    (24, 19, 56, 5, 1, 3),
]


@pytest.mark.parametrize("shape", CONVOLUTIONS, ids=str)
def test_convolution_has_the_same_bits(shape):
    channels, side, outputs, kernel, stride, batch = shape
    layer = bnns.ConvolutionLayer(
        values(outputs, channels, kernel, kernel, seed=1),
        input=(channels, side, side),
        stride=stride,
        padding=kernel // 2,
        bias=values(outputs, seed=2),
        activation="relu",
    )
    x = values(batch, channels, side, side)
    y = layer.apply(x)
    grad = values(*y.shape, seed=3)

    def results():
        gradients = layer.apply_backward(x, y, grad)
        return [layer.apply(x), gradients.input, gradients.weights, gradients.bias]

    same_for_all(results)


@pytest.mark.parametrize("borrow", [False, True])
@pytest.mark.parametrize("side", [9, 33, 70])  # the last: a run is summed in more than one part
@pytest.mark.parametrize("activation", ["identity", "relu"])
def test_batch_norm_has_the_same_bits(side, activation, borrow):
    channels, batch = 131_072 // (16 * side**2) + 3, 17
    layer = bnns.NormalizationLayer(
        "batch",
        input=(channels, side, side),
        beta=values(channels, seed=1),
        gamma=values(channels, seed=2),
        activation=activation,
        borrow_input=borrow,
    )
    x, grad = values(batch, channels, side, side), values(batch, channels, side, side, seed=3)

    def results():
        y = layer.apply(x, training=True)
        gradients = layer.apply_backward(None, y, grad)
        return [y, gradients.input, gradients.beta, gradients.gamma]

    same_for_all(results)


@pytest.mark.parametrize("shape", [(130, 200, 90), (512, 96, 300), (64, 700, 257), (33, 10, 1568)])
def test_product_has_the_same_bits(shape):
    m, n, k = shape
    a, b = values(m, k), values(k, n, seed=1)
    turned = values(n, k, seed=2).T
    same_for_all(lambda: [bnns.matmul(a, b), bnns.matmul(a, turned)])


def test_residual_network_has_the_same_bits():
    from openbnns.blocks import Activate, Branch, Convolution, Dense

    def convolution(activation):
        return Convolution(
            16, 3, padding=1, bias=False, normalization="batch", activation=activation
        )

    x, labels = values(16, 8, 20, 20), np.arange(16) % 10

    def results():
        inner = [convolution("relu"), convolution("identity")]
        blocks = [convolution("relu"), Branch(inner, []), Activate("relu"), Dense(10)]
        network = bnns.Network(blocks, input=(8, 20, 20), seed=1)
        for _ in range(3):
            network.train_step(x, labels)
        return list(network.parameters().values())

    same_for_all(results)
