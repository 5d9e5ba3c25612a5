"""Pooling: forward into `out=` (max: with indices), backward into a given gradient."""

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import openbnns
from cases.pooling import CASES, PoolingCase

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

# Beside the large cases of the list: one that fits into a cache, and one image alone.
_SMALL = PoolingCase("max", (8, 16, 14, 14))
_ALONE = PoolingCase("max", (1, 64, 112, 112), (3, 3), (2, 2), ((1, 1), (1, 1)))
EXTRA = [_SMALL, replace(_SMALL, function="average"), _ALONE, replace(_ALONE, function="average")]


def rows(run: Run) -> Iterator[Row]:
    """One row per phase of every case that matches."""
    cases = [case for case in CASES if "large" in case.tags] + EXTRA
    return race_entries("pooling", [_entry(case, run) for case in cases], run)


def _entry(case: PoolingCase, run: Run) -> Entry:
    """Vector operations of a plain kernel (README.md, "Floors"), per value of a window:
    max compares and selects value and index, then compares the index and selects the gradient;
    an average adds, with one product per window, in both directions.
    """
    item = np.dtype(case.dtype).itemsize
    x, windows = math.prod(case.image) * item, math.prod(case.pooled)
    y, positions = windows * item, math.prod(case.kernel)
    if case.function == "max":
        indices = windows * np.dtype(case.index_dtype).itemsize
        forward = Work(x, y + indices, windows * 3 * (positions - 1))
        backward = Work(y + indices, x, windows * 2 * positions)
    else:
        forward = Work(x, y, windows * positions)
        backward = Work(y, x, windows * (positions + 1))
    return Entry.unary(str(case), forward, backward, lambda: _contenders(case, run))


def _contenders(case: PoolingCase, run: Run) -> list[Contender]:
    x, dy = at_lines(case.input(), case.output_gradient())
    found = [_ours(case, x, dy, run.threads)]
    for peer in run.peers.values():
        found += peer.pooling(case, x, dy, run.compiled)
    return found


def _ours(case: PoolingCase, x: np.ndarray, dy: np.ndarray, threads: int) -> Contender:
    layer = case.layer(num_threads=threads)
    y, dx = empty_like(dy), empty_like(x)
    indices = openbnns.empty(case.pooled, case.index_dtype) if case.function == "max" else None

    def forward():
        layer.apply(x, out=y, indices=indices)

    def backward():
        layer.apply_backward(x, y, dy, indices=indices, input_gradient=dx)

    def result():
        forward()
        backward()
        return y, dx

    return Contender(OURS, forward, backward, result)
