"""Arithmetic on two arrays: forward into `out=`, then both gradients into given arrays."""

import math
from collections.abc import Iterator

import numpy as np
from cases.arithmetic import ArithmeticCase
from cases.matmul import MatmulCase

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

_SAMPLE = (64, 56, 56)  # 32 of them are 25.7 MB
_SECOND = {
    "sample": _SAMPLE,  # the same shape
    "parameter": (64, 1, 1),  # a value per channel, which all samples share
    "row": (64, 56, 1),  # a value per row
}
CASES = [
    ArithmeticCase(
        function, (_SAMPLE, shape), ("sample", "sample" if name == "row" else name), batch=32
    )
    for function in ("add", "multiply")
    for name, shape in _SECOND.items()
]


def rows(run: Run) -> Iterator[Row]:
    """One row per phase of every case that matches."""
    return race_entries("arithmetic", [_entry(case, run) for case in CASES], run)


def _entry(case: ArithmeticCase, run: Run) -> Entry:
    """Products read both arrays again for their gradients, sums only dy."""
    values = math.prod(case.full_output)
    a, b = 4 * values, 4 * math.prod(case.full_shape(1))
    forward = Work(a + b, a, values)
    if case.function == "add":
        backward = Work(a, a + b, values)
    else:
        backward = Work(2 * a + b, a + b, 2 * values)
    results = ("y", "da", "db")
    return Entry.unary(str(case), forward, backward, lambda: _contenders(case, run), results)


def _contenders(case: ArithmeticCase, run: Run) -> list[Contender]:
    a, b, dy = at_lines(*case.inputs(), case.output_gradient())
    found = [ours_of_two(case, a, b, dy, run.threads)]
    whole = b if b.ndim == a.ndim else b[None]
    for peer in run.peers.values():
        found += peer.arithmetic(case, a, whole, dy, run.compiled)
    return found


def ours_of_two(
    case: ArithmeticCase | MatmulCase, a: np.ndarray, b: np.ndarray, dy: np.ndarray, threads: int
) -> Contender:
    """Our layer of two inputs, with arrays for its result and both gradients."""
    layer = case.layer(num_threads=threads)
    y, da, db = empty_like(dy), empty_like(a), empty_like(b)

    def forward():
        layer.apply(a, b, out=y)

    def backward():
        layer.apply_backward(a, b, None, dy, a_gradient=da, b_gradient=db)

    def result():
        forward()
        backward()
        return y, da, db if b.ndim == a.ndim else db[None]

    return Contender(OURS, forward, backward, result)
