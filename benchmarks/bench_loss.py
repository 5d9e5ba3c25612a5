"""Losses: the loss alone, and the loss with its gradient ("both"), as a training step has it."""

import math
from collections.abc import Iterator

import numpy as np
from cases.loss import CASES, HUGE, LossCase

from benchmarks.bench_activation import EXP
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
LOG1P = 9  # a polynomial of log(1 + t) for t up to 1
RECIPROCAL = 3  # estimate, Newton step
OPERATIONS = {  # the loss, and with its gradient
    "softmax_cross_entropy": (EXP + 5, EXP + 7),
    "softmax of classes": (EXP + 3, EXP + 4),
    "sigmoid_cross_entropy": (EXP + LOG1P + 5, EXP + LOG1P + RECIPROCAL + 9),
    "huber": (6, 8),
    "mean_square_error": (2, 3),
}

# Beside the large cases of the list: what the digits program has, and many small rows.
EXTRA = [
    LossCase("softmax_cross_entropy", (32, 10)),
    LossCase("softmax_cross_entropy", (16384, 10), labels="int64"),
]


def rows(run: Run) -> Iterator[Row]:
    """One row per phase of every case that matches."""
    cases = [case for case in CASES if "large" in case.tags] + EXTRA + HUGE
    return race_entries("loss", [_entry(case, run) for case in cases], run)


def _entry(case: LossCase, run: Run) -> Entry:
    """x and labels are read once, the gradient is written once."""
    values = math.prod(case.shape)
    dense = case.labels == "dense"
    labels = values * 4 if dense else case.shape[0] * np.dtype(case.labels).itemsize
    forward, both = OPERATIONS[case.function if dense else "softmax of classes"]
    works = {
        "forward": Work(values * 4 + labels, 0, forward * values),
        "both": Work(values * 4 + labels, values * 4, both * values),
    }
    return Entry(str(case), works, lambda: _contenders(case, run))


def _contenders(case: LossCase, run: Run) -> list[Contender]:
    x, labels = at_lines(case.input(), case.label_values())
    found = [_ours(case, x, labels, run.threads)]
    for peer in run.peers.values():
        found += peer.loss(case, x, labels, run.compiled)
    return found


def _ours(case: LossCase, x: np.ndarray, labels: np.ndarray, threads: int) -> Contender:
    layer = case.layer(num_threads=threads)
    y, dx = np.empty((), np.float32), empty_like(x)

    def forward():
        layer.apply(x, labels, out=y)

    def backward():
        layer.apply_backward(x, labels, input_gradient=dx)

    def both():
        layer.apply(x, labels, out=y, input_gradient=dx)

    def result():
        both()
        return y, dx

    return Contender(OURS, forward, backward, result, both)
