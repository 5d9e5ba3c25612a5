"""The activation functions in float64: each function, below it its slope, below that the slope
found from the output where the output says enough.

x, y: any shape; a, b: the parameters alpha and beta. Gradients are dx = dy * slope.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

SELU_SCALE = 1.0507009873554805
SELU_ALPHA = 1.6732632423543772

erf_of = np.vectorize(math.erf, otypes=[np.float64])


def identity(x, a, b):
    return x


def identity_slope(x, a, b):
    return np.ones_like(x)


def rectified_linear(x, a, b):
    return np.where(x < 0, 0.0, x)


def rectified_linear_slope(x, a, b):
    return np.where(x > 0, 1.0, 0.0)


def leaky_rectified_linear(x, a, b):
    return np.where(x < 0, a * x, x)


def leaky_rectified_linear_slope(x, a, b):
    return np.where(x > 0, 1.0, a)


def sigmoid(x, a, b):
    e = np.exp(-np.abs(x))  # never overflows
    return np.where(x < 0, e, 1.0) / (1.0 + e)


def sigmoid_slope(x, a, b):
    return sigmoid(x, a, b) * sigmoid(-x, a, b)


def sigmoid_slope_from_y(y, a, b):
    return y * (1.0 - y)


def tanh(x, a, b):
    return np.tanh(x)


def tanh_slope(x, a, b):
    return 1.0 - np.tanh(x) ** 2


def tanh_slope_from_y(y, a, b):
    return 1.0 - y**2


def scaled_tanh(x, a, b):
    return a * np.tanh(b * x)


def scaled_tanh_slope(x, a, b):
    return a * b * (1.0 - np.tanh(b * x) ** 2)


def scaled_tanh_slope_from_y(y, a, b):
    return b * (a - y**2 / a)


def absolute(x, a, b):
    return np.abs(x)


def absolute_slope(x, a, b):
    return np.sign(x)


def linear(x, a, b):
    return a * x


def linear_slope(x, a, b):
    return np.full_like(x, a)


def clamp(x, a, b):
    return np.minimum(np.maximum(x, a), b)


def clamp_slope(x, a, b):
    return np.where((a <= x) & (x <= b), 1.0, 0.0)


def clamp_slope_from_y(y, a, b):
    return np.where((a < y) & (y < b), 1.0, 0.0)


def gelu_approximation(x, a, b):
    return 0.5 * x * (1.0 + np.tanh(a * (x + b * x**3)))


def gelu_approximation_slope(x, a, b):
    t = np.tanh(a * (x + b * x**3))
    return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t**2) * a * (1.0 + 3.0 * b * x**2)


def hard_sigmoid(x, a, b):
    return np.clip(a * x + b, 0.0, 1.0)


def hard_sigmoid_slope(x, a, b):
    return np.where((a * x + b > 0.0) & (a * x + b < 1.0), a, 0.0)


def hard_sigmoid_slope_from_y(y, a, b):
    return np.where((y > 0.0) & (y < 1.0), a, 0.0)


def softplus(x, a, b):
    return a * (np.maximum(b * x, 0.0) + np.log1p(np.exp(-np.abs(b * x))))


def softplus_slope(x, a, b):
    return a * b * sigmoid(b * x, a, b)


def softplus_slope_from_y(y, a, b):
    return a * b * -np.expm1(-y / a)


def softsign(x, a, b):
    return x / (1.0 + np.abs(x))


def softsign_slope(x, a, b):
    return 1.0 / (1.0 + np.abs(x)) ** 2


def softsign_slope_from_y(y, a, b):
    return (1.0 - np.abs(y)) ** 2


def elu(x, a, b):
    return np.where(x < 0, a * np.expm1(np.minimum(x, 0.0)), x)


def elu_slope(x, a, b):
    return np.where(x < 0, a * np.exp(np.minimum(x, 0.0)), 1.0)


def elu_slope_from_y(y, a, b):
    return np.where(y < 0, y + a, 1.0)


def clamped_leaky_rectified_linear(x, a, b):
    return np.minimum(leaky_rectified_linear(x, a, b), b)


def clamped_leaky_rectified_linear_slope(x, a, b):
    unclamped = leaky_rectified_linear(x, a, b)
    return np.where(unclamped < b, np.where(x < 0, a, 1.0), 0.0)


def clamped_leaky_rectified_linear_slope_from_y(y, a, b):
    return np.where(y < b, np.where(y < 0, a, 1.0), 0.0)


def linear_with_bias(x, a, b):
    return a * x + b


def linear_with_bias_slope(x, a, b):
    return np.full_like(x, a)


def log_sigmoid(x, a, b):
    return -softplus(-x, 1.0, 1.0)


def log_sigmoid_slope(x, a, b):
    return sigmoid(-x, a, b)


def log_sigmoid_slope_from_y(y, a, b):
    return -np.expm1(y)


def selu(x, a, b):
    return SELU_SCALE * elu(x, SELU_ALPHA, b)


def selu_slope(x, a, b):
    return SELU_SCALE * elu_slope(x, SELU_ALPHA, b)


def selu_slope_from_y(y, a, b):
    return np.where(y < 0, y + SELU_SCALE * SELU_ALPHA, SELU_SCALE)


def celu(x, a, b):
    return np.where(x < 0, a * np.expm1(np.minimum(x, 0.0) / a), x)


def celu_slope(x, a, b):
    return np.where(x < 0, np.exp(np.minimum(x, 0.0) / a), 1.0)


def celu_slope_from_y(y, a, b):
    return np.where(y < 0, y / a + 1.0, 1.0)


def hard_shrink(x, a, b):
    return np.where(np.abs(x) < abs(a), 0.0, x)


def hard_shrink_slope(x, a, b):
    return np.where(np.abs(x) < abs(a), 0.0, 1.0)


def hard_shrink_slope_from_y(y, a, b):
    return np.where(y == 0, 0.0, 1.0)


def soft_shrink(x, a, b):
    return np.where(np.abs(x) < abs(a), 0.0, x - np.copysign(a, x))


def soft_shrink_slope(x, a, b):
    return np.where(np.abs(x) < abs(a), 0.0, 1.0)


def soft_shrink_slope_from_y(y, a, b):
    return np.where(y == 0, 0.0, 1.0)


def tanh_shrink(x, a, b):
    return x - np.tanh(x)


def tanh_shrink_slope(x, a, b):
    return np.tanh(x) ** 2


def tanh_shrink_slope_from_y(y, a, b):
    return tanh_shrink_slope(_solve_rising(tanh_shrink, y, -np.abs(y) - 2.0, np.abs(y) + 2.0), a, b)


def threshold(x, a, b):
    return np.where(x <= a, b, x)


def threshold_slope(x, a, b):
    return np.where(x <= a, 0.0, 1.0)


def hard_swish(x, a, b):
    return x * np.clip(x + 3.0, 0.0, 6.0) / 6.0


def hard_swish_slope(x, a, b):
    return np.where(x <= -3.0, 0.0, np.where(x >= 3.0, 1.0, (2.0 * x + 3.0) / 6.0))


def silu(x, a, b):
    return x * sigmoid(x, a, b)


def silu_slope(x, a, b):
    s = sigmoid(x, a, b)
    return s * (1.0 + x * sigmoid(-x, a, b))


def relu6(x, a, b):
    return np.clip(x, 0.0, 6.0)


def relu6_slope(x, a, b):
    return np.where((x > 0.0) & (x < 6.0), 1.0, 0.0)


def erf(x, a, b):
    return erf_of(x)


def erf_slope(x, a, b):
    return 2.0 / np.sqrt(np.pi) * np.exp(-(x**2))


def gelu(x, a, b):
    return 0.5 * x * (1.0 + erf_of(x / np.sqrt(2.0)))


def gelu_slope(x, a, b):
    density = np.exp(-(x**2) / 2.0) / np.sqrt(2.0 * np.pi)
    return 0.5 * (1.0 + erf_of(x / np.sqrt(2.0))) + x * density


def gelu_approximation_sigmoid(x, a, b):
    return x * sigmoid(1.702 * x, a, b)


def gelu_approximation_sigmoid_slope(x, a, b):
    s = sigmoid(1.702 * x, a, b)
    return s + 1.702 * x * s * sigmoid(-1.702 * x, a, b)


def gelu_approximation_sigmoid_slope_from_y(y, a, b):
    """For y >= 0 only: below zero two inputs share an output."""
    x = _solve_rising(gelu_approximation_sigmoid, y, np.zeros_like(y), y + 1.0)
    return gelu_approximation_sigmoid_slope(x, a, b)


def _solve_rising(function, y, low, high):
    """x with function(x) = y, by halving intervals on which the function rises."""
    for _ in range(200):
        middle = 0.5 * (low + high)
        rises_above = function(middle, 0.0, 0.0) > y
        low, high = np.where(rises_above, low, middle), np.where(rises_above, middle, high)
    return 0.5 * (low + high)


Elementwise = Callable[[np.ndarray, float, float], np.ndarray]


@dataclass(frozen=True)
class Function:
    """One element-wise activation: its number in the C interface and its three formulas."""

    number: int
    forward: Elementwise
    slope: Elementwise
    slope_from_y: Elementwise | None = None  # None: the gradient needs x


FUNCTIONS = {
    "identity": Function(0, identity, identity_slope, identity_slope),
    "rectified_linear": Function(
        1, rectified_linear, rectified_linear_slope, rectified_linear_slope
    ),
    "leaky_rectified_linear": Function(
        2, leaky_rectified_linear, leaky_rectified_linear_slope, leaky_rectified_linear_slope
    ),
    "sigmoid": Function(3, sigmoid, sigmoid_slope, sigmoid_slope_from_y),
    "tanh": Function(4, tanh, tanh_slope, tanh_slope_from_y),
    "scaled_tanh": Function(5, scaled_tanh, scaled_tanh_slope, scaled_tanh_slope_from_y),
    "abs": Function(6, absolute, absolute_slope),
    "linear": Function(7, linear, linear_slope, linear_slope),
    "clamp": Function(8, clamp, clamp_slope, clamp_slope_from_y),
    "gelu_approximation": Function(12, gelu_approximation, gelu_approximation_slope),
    "hard_sigmoid": Function(15, hard_sigmoid, hard_sigmoid_slope, hard_sigmoid_slope_from_y),
    "softplus": Function(16, softplus, softplus_slope, softplus_slope_from_y),
    "softsign": Function(17, softsign, softsign_slope, softsign_slope_from_y),
    "elu": Function(18, elu, elu_slope, elu_slope_from_y),
    "clamped_leaky_rectified_linear": Function(
        19,
        clamped_leaky_rectified_linear,
        clamped_leaky_rectified_linear_slope,
        clamped_leaky_rectified_linear_slope_from_y,
    ),
    "linear_with_bias": Function(
        20, linear_with_bias, linear_with_bias_slope, linear_with_bias_slope
    ),
    "log_sigmoid": Function(22, log_sigmoid, log_sigmoid_slope, log_sigmoid_slope_from_y),
    "selu": Function(23, selu, selu_slope, selu_slope_from_y),
    "celu": Function(24, celu, celu_slope, celu_slope_from_y),
    "hard_shrink": Function(25, hard_shrink, hard_shrink_slope, hard_shrink_slope_from_y),
    "soft_shrink": Function(26, soft_shrink, soft_shrink_slope, soft_shrink_slope_from_y),
    "tanh_shrink": Function(27, tanh_shrink, tanh_shrink_slope, tanh_shrink_slope_from_y),
    "threshold": Function(28, threshold, threshold_slope, threshold_slope),  # y: only if b <= a
    # alpha is one value per channel here, shaped to broadcast
    "prelu_per_channel": Function(
        29, leaky_rectified_linear, leaky_rectified_linear_slope, leaky_rectified_linear_slope
    ),
    "gelu_approximation_2": Function(30, hard_swish, hard_swish_slope),
    "hard_swish": Function(30, hard_swish, hard_swish_slope),
    "silu": Function(31, silu, silu_slope),
    "relu6": Function(32, relu6, relu6_slope, relu6_slope),
    "erf": Function(33, erf, erf_slope),
    "gelu": Function(34, gelu, gelu_slope),
    "gelu_approximation_sigmoid": Function(
        35,
        gelu_approximation_sigmoid,
        gelu_approximation_sigmoid_slope,
        gelu_approximation_sigmoid_slope_from_y,
    ),
}


# Whose gradient the output alone decides, and whose it cannot.
FROM_Y = [name for name, function in FUNCTIONS.items() if function.slope_from_y is not None]
FROM_Y = [name for name in FROM_Y if name != "gelu_approximation_sigmoid"]  # only for y >= 0
FROM_Y += ["softmax", "log_softmax"]
FROM_X_ONLY = [name for name, function in FUNCTIONS.items() if function.slope_from_y is None]


def softmax(x, axes):
    """x: any shape; axes: a tuple, the softmax runs over all of them jointly."""
    e = np.exp(x - x.max(axis=axes, keepdims=True))
    return e / e.sum(axis=axes, keepdims=True)


def softmax_backward(y, dy, axes):
    """dx_i = y_i (dy_i - sum_j dy_j y_j)."""
    return y * (dy - (dy * y).sum(axis=axes, keepdims=True))


def log_softmax(x, axes):
    shifted = x - x.max(axis=axes, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=axes, keepdims=True))


def log_softmax_backward(y, dy, axes):
    """dx_i = dy_i - e^{y_i} sum_j dy_j."""
    return dy - np.exp(y) * dy.sum(axis=axes, keepdims=True)


def leaky_alpha_gradient(x, dy, axes):
    """y = alpha x where x < 0, so dalpha is the sum of dy x over those, along `axes`."""
    return np.where(x < 0, dy * x, 0.0).sum(axis=axes)


def gumbel_of_uniform(u, a, b):
    """The noise of the two random functions: -log(-log(a u + b) + b)."""
    return -np.log(-np.log(a * u + b) + b)


def integer_linear_saturate(x, scale, offset, shift, dtype):
    """(scale x + offset) >> shift in exact integers, saturated to the output type."""
    limits = np.iinfo(dtype)
    wide = (scale * x.astype(np.int64) + offset) >> shift
    return np.clip(wide, limits.min, limits.max).astype(dtype)


def real_of_integer(codes, scale, bias):
    return scale * codes.astype(np.float64) + bias


def integer_of_real(values, scale, bias, low, high):
    """saturate(round(value / scale - bias)) to low ... high, ties to even, NaN to 0."""
    with np.errstate(invalid="ignore"):
        rounded = np.rint(values / scale - bias)
    return np.clip(np.nan_to_num(rounded, nan=0.0, posinf=np.inf, neginf=-np.inf), low, high)


def pack(codes, bits):
    """Codes of `bits` bits each as bytes, first value in the low bits, rows not padded."""
    shifts = np.arange(bits)
    stream = ((np.asarray(codes).astype(np.int64).reshape(-1, 1) >> shifts) & 1).astype(np.uint8)
    return np.packbits(stream.reshape(-1), bitorder="little")


def unpack(data, bits, count, signed):
    """The first `count` codes of packed bytes."""
    stream = np.unpackbits(np.asarray(data, dtype=np.uint8), bitorder="little")
    stream = stream[: count * bits].reshape(count, bits).astype(np.int64)
    codes = (stream << np.arange(bits)).sum(axis=1)
    return np.where(codes >= 1 << (bits - 1), codes - (1 << bits), codes) if signed else codes
