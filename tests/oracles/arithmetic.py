"""The arithmetic functions in float64: each with the number it has in the C interface, its value,
and its gradients with respect to a, b and c for dz, the gradient of its value.

a, b, c, y, dz: arrays that broadcast to each other. Round breaks ties to even; minimum and maximum
share a gradient where they tie, and pass NaN on.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

erf = np.vectorize(math.erf, otypes=[np.float64])


@dataclass(frozen=True)
class Function:
    """value(*inputs); gradients[k](*inputs, y, dz)."""

    number: int
    value: Callable[..., np.ndarray]
    gradients: tuple[Callable[..., np.ndarray], ...]

    @property
    def inputs(self):
        return len(self.gradients)


def nothing(*arguments):
    return np.zeros_like(arguments[-1])


def _no_nan(condition, value):
    return np.where(condition, value, 0.0)


def _selected(wins):
    """The gradient of a minimum or maximum: all of it where this side wins, half of it in a tie."""
    return lambda a, b, y, dz: dz * np.where(a == b, 0.5, np.where(wins(a, b), 1.0, 0.0))


def _pow_a(a, b, y, dz):
    return np.where(b == 0, 0.0, dz * b * a ** (b - 1))


def _pow_b(a, b, y, dz):
    return np.where((a == 0) & (b >= 0), 0.0, dz * y * np.log(np.where(a == 0, 1.0, a)))


UNARY = {
    "sqrt": Function(4, np.sqrt, (lambda a, y, dz: dz / (2 * y),)),
    "rsqrt": Function(5, lambda a: 1 / np.sqrt(a), (lambda a, y, dz: -0.5 * dz * y**3,)),
    "ceil": Function(6, np.ceil, (nothing,)),
    "floor": Function(7, np.floor, (nothing,)),
    "round": Function(8, np.round, (nothing,)),
    "sin": Function(9, np.sin, (lambda a, y, dz: dz * np.cos(a),)),
    "cos": Function(10, np.cos, (lambda a, y, dz: -dz * np.sin(a),)),
    "tan": Function(11, np.tan, (lambda a, y, dz: dz * (1 + y**2),)),
    "asin": Function(12, np.arcsin, (lambda a, y, dz: dz / np.sqrt(1 - a**2),)),
    "acos": Function(13, np.arccos, (lambda a, y, dz: -dz / np.sqrt(1 - a**2),)),
    "atan": Function(14, np.arctan, (lambda a, y, dz: dz / (1 + a**2),)),
    "sinh": Function(15, np.sinh, (lambda a, y, dz: dz * np.cosh(a),)),
    "cosh": Function(16, np.cosh, (lambda a, y, dz: dz * np.sinh(a),)),
    "tanh": Function(17, np.tanh, (lambda a, y, dz: dz * (1 - y**2),)),
    "asinh": Function(18, np.arcsinh, (lambda a, y, dz: dz / np.sqrt(a**2 + 1),)),
    "acosh": Function(19, np.arccosh, (lambda a, y, dz: dz / np.sqrt(a**2 - 1),)),
    "atanh": Function(20, np.arctanh, (lambda a, y, dz: dz / (1 - a**2),)),
    "exp": Function(22, np.exp, (lambda a, y, dz: dz * y,)),
    "exp2": Function(23, np.exp2, (lambda a, y, dz: dz * y * math.log(2),)),
    "log": Function(24, np.log, (lambda a, y, dz: dz / a,)),
    "log2": Function(25, np.log2, (lambda a, y, dz: dz / (a * math.log(2)),)),
    "abs": Function(32, np.abs, (lambda a, y, dz: dz * np.sign(a),)),
    "sign": Function(33, np.sign, (nothing,)),
    "negative": Function(34, np.negative, (lambda a, y, dz: -dz,)),
    "reciprocal": Function(35, lambda a: 1 / a, (lambda a, y, dz: -dz * y**2,)),
    "square": Function(36, np.square, (lambda a, y, dz: 2 * a * dz,)),
    "erf": Function(40, erf, (lambda a, y, dz: dz * 2 / math.sqrt(math.pi) * np.exp(-(a**2)),)),
}

BINARY = {
    "add": Function(0, np.add, (lambda a, b, y, dz: dz, lambda a, b, y, dz: dz)),
    "subtract": Function(1, np.subtract, (lambda a, b, y, dz: dz, lambda a, b, y, dz: -dz)),
    "multiply": Function(2, np.multiply, (lambda a, b, y, dz: dz * b, lambda a, b, y, dz: dz * a)),
    "divide": Function(
        3, np.divide, (lambda a, b, y, dz: dz / b, lambda a, b, y, dz: -dz * a / b**2)
    ),
    "pow": Function(21, np.power, (_pow_a, _pow_b)),
    "multiply_no_nan": Function(
        26,
        lambda a, b: _no_nan(b != 0, a * b),
        (lambda a, b, y, dz: _no_nan(b != 0, dz * b), lambda a, b, y, dz: _no_nan(dz != 0, dz * a)),
    ),
    "divide_no_nan": Function(
        27,
        lambda a, b: _no_nan(b != 0, a / np.where(b == 0, 1, b)),
        (
            lambda a, b, y, dz: _no_nan(b != 0, dz / np.where(b == 0, 1, b)),
            lambda a, b, y, dz: _no_nan(b != 0, -dz * a / np.where(b == 0, 1, b) ** 2),
        ),
    ),
    "minimum": Function(
        29, np.minimum, (_selected(lambda a, b: a < b), _selected(lambda a, b: b < a))
    ),
    "maximum": Function(
        30, np.maximum, (_selected(lambda a, b: a > b), _selected(lambda a, b: b > a))
    ),
    "floor_divide": Function(37, lambda a, b: np.floor(a / b), (nothing, nothing)),
    "trunc_divide": Function(38, lambda a, b: np.trunc(a / b), (nothing, nothing)),
    "trunc_remainder": Function(
        39, np.fmod, (lambda a, b, y, dz: dz, lambda a, b, y, dz: -dz * np.trunc(a / b))
    ),
}

TERNARY = {
    "multiply_add": Function(
        28,
        lambda a, b, c: a * b + c,
        (lambda a, b, c, y, dz: dz * b, lambda a, b, c, y, dz: dz * a, lambda a, b, c, y, dz: dz),
    ),
    "select": Function(
        31,
        lambda a, b, c: np.where(a != 0, b, c),
        (
            nothing,
            lambda a, b, c, y, dz: np.where(a != 0, dz, 0.0),
            lambda a, b, c, y, dz: np.where(a != 0, 0.0, dz),
        ),
    ),
}

FUNCTIONS = UNARY | BINARY | TERNARY


def summed_to(gradient, shape):
    """Added up over the axes that `shape` lacks in front or has with extent 1."""
    while gradient.ndim > len(shape):
        gradient = gradient.sum(axis=0)
    axes = tuple(k for k, extent in enumerate(shape) if extent == 1 != gradient.shape[k])
    return gradient.sum(axis=axes, keepdims=True) if axes else gradient
