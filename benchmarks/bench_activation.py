"""Activations: forward into `out=`, backward into a given gradient."""

import math
from collections.abc import Iterator

import numpy as np
from cases.activation import CASES, ActivationCase

from benchmarks.harness import (
    OURS,
    Contender,
    Entry,
    Row,
    Run,
    Work,
    at_lines,
    empty_like,
    race_entries,
)

# Vector operations per value of the cheapest float32 kernel we know; README.md, "Floors".
EXP = 11  # product with log2 e, rounding, 2 steps of range reduction, 6 of the polynomial, scaling
DIVIDE = 4  # estimate, 2 Newton steps, product
SIGMOID = EXP + 1 + DIVIDE
TANH = EXP + 1 + DIVIDE + 1
NORMAL = 16  # 2 to clamp, square, 12 of a polynomial, product: the normal distribution function
NORMAL_SLOPE = 21  # the same with 17, fitted to the slope of x times that function
OPERATIONS = {  # forward, backward
    "rectified_linear": (1, 2),
    "tanh": (TANH, 2),
    "sigmoid": (SIGMOID, 2),
    "silu": (SIGMOID + 1, SIGMOID + 4),
    "gelu": (NORMAL + 1, NORMAL_SLOPE + 1),
    "gelu_approximation": (3 + SIGMOID + 1, 3 + SIGMOID + 6),
    "softmax": (EXP + 4, 3),
}

# Beside the million values of the case list: the cheapest function, which only moves memory.
EXTRA = [ActivationCase("rectified_linear", (1, 1, 1000, 1000))]


def rows(run: Run) -> Iterator[Row]:
    """One row per phase of every case that matches."""
    cases = [case for case in CASES if "large" in case.tags] + EXTRA
    return race_entries("activation", [_entry(case, run) for case in cases], run)


def _entry(case: ActivationCase, run: Run) -> Entry:
    """Backward reads x or y, and dy; all arrays have one size."""
    values = math.prod(case.shape)
    size = values * np.dtype(case.dtype).itemsize
    forward, backward = OPERATIONS[case.function]
    return Entry.unary(
        str(case),
        Work(size, size, forward * values),
        Work(2 * size, size, backward * values),
        lambda: _contenders(case, run),
    )


def _contenders(case: ActivationCase, run: Run) -> list[Contender]:
    x, dy = at_lines(case.input(), case.output_gradient())
    found = [_ours(case, x, dy, run.threads)]
    for peer in run.peers.values():
        found += peer.activation(case, x, dy, run.compiled)
    return found


def _ours(case: ActivationCase, x: np.ndarray, dy: np.ndarray, threads: int) -> Contender:
    """Both x and y are at hand, as in training; the layer reads the one it prefers."""
    layer = case.layer(num_threads=threads)
    y, dx = empty_like(x), empty_like(x)

    def forward():
        layer.apply(x, out=y)

    def backward():
        layer.apply_backward(x, y, dy, input_gradient=dx)

    def result():
        forward()
        backward()
        return y, dx

    return Contender(OURS, forward, backward, result)
