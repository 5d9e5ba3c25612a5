"""Does it work at all? Every family once, in under two seconds. Run it before every commit."""

import numpy as np
import openbnns
from openbnns import c


def test_library_answers():
    assert openbnns.version() == openbnns.__version__
    assert openbnns.isa() in ("portable", "avx2", "avx512", "amx", "neon", "neon_bf16")
    assert openbnns.library_path().is_file()
    assert (openbnns.include_dir() / "openbnns" / "bnns.h").is_file()
    assert any(openbnns.support().values())


def test_activation_forward_and_backward():
    layer = openbnns.ActivationLayer("relu", input=(3,))
    x = np.array([[-1, 2, 3], [4, -5, 6]], np.float32)
    y = layer(x)
    np.testing.assert_array_equal(y, [[0, 2, 3], [4, 0, 6]])
    grads = layer.apply_backward(x, y, np.ones_like(y))
    np.testing.assert_array_equal(grads.input, [[0, 1, 1], [1, 0, 1]])
    np.testing.assert_array_equal(openbnns.activation(x, "relu"), y)


def test_convert():
    stored = openbnns.convert(np.array([0.5, 1.5, -300], np.float32), "int8")
    np.testing.assert_array_equal(stored, [0, 2, -128])


def test_pooling_forward_and_backward():
    layer = openbnns.PoolingLayer("max", input=(1, 4, 4), kernel_size=2)
    x = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
    y, indices = layer.apply(x, return_indices=True)
    np.testing.assert_array_equal(y[0, 0], [[5, 7], [13, 15]])
    np.testing.assert_array_equal(indices[0, 0], [[5, 7], [13, 15]])
    grads = layer.apply_backward(x, y, np.ones_like(y), indices=indices)
    assert grads.input.sum() == 4
    assert grads.bias is None


def test_convolution_forward_and_backward():
    layer = openbnns.ConvolutionLayer(np.ones((1, 1, 2, 2), np.float32), input=(1, 3, 3))
    x = np.arange(1, 10, dtype=np.float32).reshape(1, 1, 3, 3)
    y = layer(x)
    np.testing.assert_array_equal(y[0, 0], [[12, 16], [24, 28]])
    grads = layer.apply_backward(x, y, np.ones_like(y))
    np.testing.assert_array_equal(grads.weights[0, 0], [[12, 16], [24, 28]])
    assert grads.input.sum() == 16
    assert grads.bias is None


def test_attention_forward_and_backward():
    one = openbnns.Projection(np.ones((1, 1, 1), np.float32))
    twice = openbnns.Projection(np.full((1, 1), 2, np.float32))
    layer = openbnns.MultiheadAttention(one, one, one, twice, lengths=(1, 2))
    query, rows = np.zeros((1, 1, 1), np.float32), np.float32([[[1], [3]]])
    y, cache = layer.apply(query, rows, rows, cache=True)
    np.testing.assert_array_equal(y, [[[4]]])
    grads = layer.apply_backward(query, rows, rows, y, np.ones_like(y), cache=cache)
    np.testing.assert_array_equal(grads.value, [[[1], [1]]])
    np.testing.assert_array_equal(grads.query, [[[2]]])


def test_fully_connected_forward_and_backward():
    layer = openbnns.FullyConnectedLayer(np.float32([[3, 4]]), bias=np.float32([5]))
    x = np.float32([[1, 2], [10, 20]])
    np.testing.assert_array_equal(layer(x), [[16], [115]])
    grads = layer.apply_backward(x, None, np.float32([[1], [2]]))
    np.testing.assert_array_equal(grads.weights, [[21, 42]])
    np.testing.assert_array_equal(grads.bias, [3])


def test_optimizer_step():
    w = np.float32([1, 2])
    sgd = openbnns.SGDMomentumOptimizer(0.5, momentum=0.5, variant=1).bind([w])
    sgd.step([np.float32([1, -1])])
    sgd.step([np.float32([1, -1])])
    np.testing.assert_array_equal(w, [-0.25, 3.25])


def test_clip_and_norm():
    x = np.float32([3, 4])
    assert openbnns.norm(x) == 5
    np.testing.assert_array_equal(openbnns.clip(x, 0, 3.5), [3, 3.5])
    np.testing.assert_array_equal(openbnns.clip_by_norm(x, 2.5), [1.5, 2])


def test_random_numbers():
    rng = openbnns.RandomGenerator(7)
    x = rng.uniform(-1, 1, (10, 10))
    assert -1 <= x.min() < x.max() <= 1
    assert rng.integers(3, 4, 5).tolist() == [3] * 5
    assert rng.normal(0, 0, 3).tolist() == [0] * 3


def test_loss_forward_and_backward():
    layer = openbnns.LossLayer("softmax_cross_entropy", input=(2,))
    x = np.zeros((3, 2), np.float32)
    y, dx = layer.apply(x, np.array([0, 1, 1]), input_gradient=True)
    assert abs(float(y) - np.log(2)) < 1e-6
    np.testing.assert_allclose(dx * 6, [[-1, 1], [1, -1], [1, -1]], rtol=1e-6)
    grads = layer.apply_backward(x, np.array([0, 1, 1]), 2.0)
    np.testing.assert_allclose(grads.input, 2 * dx)


def test_normalization_forward_and_backward():
    layer = openbnns.NormalizationLayer("batch", input=(2,), beta=np.float32([0, 5]), epsilon=0)
    y = layer(np.float32([[1, 2], [3, 4]]), training=True)
    np.testing.assert_array_equal(y, [[-1, 4], [1, 6]])
    grads = layer.apply_backward(None, y, np.float32([[1, 0], [0, 2]]))
    np.testing.assert_array_equal(grads.beta, [1, 2])
    np.testing.assert_array_equal(grads.input, 0)
    assert grads.gamma is None


def test_arithmetic_forward_and_backward():
    layer = openbnns.BinaryArithmeticLayer("multiply", input_a=(2,), input_b=(1,))
    a, b = np.float32([[1, 2]]), np.float32([[10]])
    np.testing.assert_array_equal(layer(a, b), [[10, 20]])
    grads = layer.apply_backward(a, b, None, np.float32([[1, 1]]))
    np.testing.assert_array_equal(grads.a, [[10, 10]])
    np.testing.assert_array_equal(grads.b, [[3]])


def test_matmul_forward_and_backward():
    layer = openbnns.BroadcastMatrixMultiplyLayer(input_a=(1, 2), input_b=(2, 1))
    a, b = np.float32([[[1, 2]]]), np.float32([[[3], [4]]])
    np.testing.assert_array_equal(layer(a, b), [[[11]]])
    grads = layer.apply_backward(a, b, None, np.float32([[[2]]]))
    np.testing.assert_array_equal(grads.a, [[[6, 8]]])
    np.testing.assert_array_equal(grads.b, [[[2], [4]]])


def test_quantization_there_and_back():
    stored = openbnns.quantize(np.float32([0, 2, 4]), scale=0.5, bias=1)
    np.testing.assert_array_equal(stored, [1, 2, 3])
    np.testing.assert_array_equal(openbnns.dequantize(stored, scale=0.5, bias=1), [0, 2, 4])


def test_fused_forward_and_backward():
    layer = openbnns.FusedFullyConnectedNormalizationLayer(
        np.eye(2, dtype=np.float32), normalization="batch", beta=np.zeros(2, np.float32), epsilon=0
    )
    x = np.float32([[1, 2], [3, 4]])
    y = layer(x, training=True)
    np.testing.assert_array_equal(y, [[-1, -1], [1, 1]])
    grads = layer.apply_backward(x, y, np.float32([[1, 0], [0, 2]]))
    np.testing.assert_array_equal(grads.beta, [1, 2])
    np.testing.assert_allclose(grads.weights, 0, atol=1e-6)
    assert grads.bias is grads.gamma is None


def test_c_interface():
    assert c.BNNSDataLayoutGetRank(c.BNNSDataLayoutImageCHW) == 3
