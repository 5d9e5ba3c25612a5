"""NumPy, where one expression does it: what somebody writes without a library."""

import math

import numpy as np

from benchmarks.harness import Contender, Trainer

VERSIONS = {"numpy": np.__version__}


def pooling(case, x, dy, compiled):
    """Windows side by side only, and forward only: the rest is no one-liner."""
    n, c, h, w = x.shape
    side_by_side = case.kernel == case.stride and not any(map(any, case.padding))
    if not side_by_side or h % case.kernel[0] or w % case.kernel[1]:
        return []
    windows = x.reshape(n, c, h // case.kernel[0], case.kernel[0], -1, case.kernel[1])
    reduce = np.max if case.function == "max" else np.mean
    y = np.empty_like(dy)

    def forward():
        return reduce(windows, axis=(3, 5), out=y)

    return [Contender("numpy", forward, None, lambda: (forward(), None))]


def activation(case, x, dy, compiled):
    if case.function not in _ACTIVATIONS:
        return []
    forward, backward = _ACTIVATIONS[case.function]
    y = forward(x)
    return [
        Contender(
            "numpy",
            lambda: forward(x),
            lambda: backward(x, y, dy),
            lambda: (forward(x), backward(x, y, dy)),
        )
    ]


def convolution(case, x, w, dy, compiled):
    """No expression for it."""
    return []


def fully_connected(case, x, w, dy, compiled):
    y, dx, dw = np.empty_like(dy), np.empty_like(x), np.empty_like(w)

    def forward():
        return np.matmul(x, w.T, out=y)

    def input_gradient():
        return np.matmul(dy, w, out=dx)

    def weight_gradient():
        return np.matmul(dy.T, x, out=dw)

    def result():
        return forward(), input_gradient(), weight_gradient()

    return [Trainer("numpy", forward, input_gradient, weight_gradient, result)]


def gemm(case, x, w, compiled):
    y = np.empty(case.output_shape, np.float32)

    def forward():
        return np.matmul(x, w.T, out=y)

    return [Trainer("numpy", forward, None, None, lambda: (forward(),))]


def matmul(case, a, b, dy, compiled):
    y, da, db = np.empty_like(dy), np.empty_like(a), np.empty_like(b)
    whole = [_turned(array, on) for array, on in zip((a, b), case.transpose, strict=True)]
    gradients = [_turned(array, on) for array, on in zip((da, db), case.transpose, strict=True)]

    def forward():
        return np.matmul(*whole, out=y)

    def backward():
        np.matmul(dy, _turned(whole[1], True), out=gradients[0])
        np.matmul(_turned(whole[0], True), dy, out=gradients[1])

    def result():
        forward()
        backward()
        return y, da, db

    return [Contender("numpy", forward, backward, result)]


def _turned(array, on):
    return array.swapaxes(-1, -2) if on else array


def normalization(case, x, dy, compiled):
    """No single expression."""
    return []


def attention(case, p, dy, compiled):
    """No single expression."""
    return []


def fused(case, inputs, w, dy, compiled):
    """No single expression."""
    return []


def arithmetic(case, a, b, dy, compiled):
    y, da, db = np.empty_like(dy), np.empty_like(a), np.empty_like(b)
    function = {"add": np.add, "multiply": np.multiply}[case.function]
    axes = tuple(k for k, extent in enumerate(b.shape) if extent != dy.shape[k])

    def forward():
        return function(a, b, out=y)

    def backward():
        if case.function == "add":
            da[...] = dy
            whole = dy
        else:
            np.multiply(dy, b, out=da)
            whole = np.multiply(dy, a, out=None if axes else db)
        if axes:
            np.sum(whole, axis=axes, keepdims=True, out=db)
        elif case.function == "add":
            db[...] = dy

    def result():
        forward()
        backward()
        return y, da, db

    return [Contender("numpy", forward, backward, result)]


def _sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


def _softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def _silu_backward(x, y, dy):
    s = _sigmoid(x)
    return dy * s * (1.0 + x * (1.0 - s))


_A, _B = math.sqrt(2.0 / math.pi), 0.044715


def _gelu_tanh(x):
    return 0.5 * x * (1.0 + np.tanh(_A * (x + _B * x * x * x)))


def _gelu_tanh_backward(x, y, dy):
    t = np.tanh(_A * (x + _B * x * x * x))
    return dy * 0.5 * (1.0 + t + x * (1.0 - t * t) * _A * (1.0 + 3.0 * _B * x * x))


# forward(x), backward(x, y, dy). NumPy has no erf, so the exact GELU is absent.
_ACTIVATIONS = {
    "rectified_linear": (lambda x: np.maximum(x, 0.0), lambda x, y, dy: dy * (y > 0.0)),
    "tanh": (np.tanh, lambda x, y, dy: dy * (1.0 - y * y)),
    "sigmoid": (_sigmoid, lambda x, y, dy: dy * (y * (1.0 - y))),
    "silu": (lambda x: x * _sigmoid(x), _silu_backward),
    "gelu_approximation": (_gelu_tanh, _gelu_tanh_backward),
    "softmax": (_softmax, lambda x, y, dy: y * (dy - (dy * y).sum(axis=-1, keepdims=True))),
}


def loss(case, x, labels, compiled):
    """No one-liner."""
    return []


def optimizer(case):
    """No one-liner."""
    return []


def training(case, compiled):
    """No one-liner."""
    return []


def random(kind, count):
    """The fast bit generator; integers cannot be written to a given array."""
    rng = np.random.Generator(np.random.SFC64(1))
    y = np.empty(count, np.float32)
    fills = {
        "uniform": lambda: rng.random(out=y, dtype=np.float32),
        "normal": lambda: rng.standard_normal(out=y, dtype=np.float32),
        "integers": lambda: rng.integers(0, 1000, count, np.int32),
    }
    last = fills[kind]()
    return {"numpy": (fills[kind], (lambda: last) if kind == "integers" else (lambda: y))}
