"""Batches of matrix products: forward into `out=`, then both gradients into given arrays."""

import math
import re
from collections.abc import Iterator

from cases.matmul import LARGE, MatmulCase

from benchmarks.bench_arithmetic import ours_of_two
from benchmarks.harness import Contender, Entry, Row, Run, Work, race_entries

CASES = [
    *LARGE,  # 64 times 128x64 · 64x128, and 8 times 512x512 · 512x512
    MatmulCase((128, 64), (128, 64), transpose=(False, True), batch=64),  # scores of an attention
    MatmulCase((32, 32), (32, 32), batch=512),
    MatmulCase((8, 8), (8, 8), batch=4096),
]


def rows(run: Run) -> Iterator[Row]:
    """One row per phase of every case that matches."""
    chosen = [_entry(case, run) for case in CASES if re.search(run.only, f"matmul {case}")]
    return race_entries("matmul", chosen, run)


def _entry(case: MatmulCase, run: Run) -> Entry:
    a, b, y = (4 * math.prod(s) for s in (case.full_shape(0), case.full_shape(1), case.full_output))
    products = math.prod(case.full_output) * case.a[0 if case.transpose[0] else 1]
    forward, backward = Work(a + b, y, products), Work(y + a + b, a + b, 2 * products)
    results = ("y", "da", "db")
    return Entry.unary(str(case), forward, backward, lambda: _contenders(case, run), results)


def _contenders(case: MatmulCase, run: Run) -> list[Contender]:
    (a, b), dy = case.inputs(), case.output_gradient()
    found = [ours_of_two(case, a, b, dy, run.threads)]
    for peer in run.peers.values():
        found += peer.matmul(case, a, b, dy, run.compiled)
    return found
