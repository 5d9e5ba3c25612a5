"""Batches of matrix products: forward into `out=`, then both gradients into given arrays.

Half types race our own float32, forward: inputs of the same values, results in float32."""

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import openbnns
from cases import has_bfloat16
from cases.matmul import LARGE, MatmulCase

from benchmarks.bench_arithmetic import ours_of_two
from benchmarks.harness import OURS, Contender, Entry, Row, Run, Work, at_lines, race_entries

CASES = [
    *LARGE,  # 64 times 128x64 · 64x128, and 8 times 512x512 · 512x512
    MatmulCase((128, 64), (128, 64), transpose=(False, True), batch=64),  # scores of an attention
    MatmulCase((32, 32), (32, 32), batch=512),
    MatmulCase((8, 8), (8, 8), batch=4096),
]
ROUGH = [
    replace(case, dtype=kind, out_dtype="float32")
    for kind in ("bfloat16", "float16")
    for case in LARGE
    if kind == "float16" or has_bfloat16()
]


def rows(run: Run) -> Iterator[Row]:
    """One row per phase of every case that matches."""
    entries = [_entry(case, run) for case in CASES] + [_rough_entry(case, run) for case in ROUGH]
    return race_entries("matmul", entries, run)


def _rough_entry(case: MatmulCase, run: Run) -> Entry:
    """Two products of bfloat16 for one operation: what AVX512_BF16 does in a lane."""
    a, b, y = (math.prod(s) for s in (case.full_shape(0), case.full_shape(1), case.full_output))
    operations = y * case.a[1] // (2 if case.dtype == "bfloat16" else 1)
    works = {"forward": Work(2 * (a + b), 4 * y, operations)}
    return Entry(str(case), works, lambda: _rough_contenders(case, run.threads), ("y",))


def _rough_contenders(case: MatmulCase, threads: int) -> list[Contender]:
    halves = at_lines(*case.inputs())
    widened = at_lines(*(array.astype(np.float32) for array in halves))
    found = []
    for name, one, given in (
        (OURS, case, halves),
        ("openbnns float32", replace(case, dtype="float32"), widened),
    ):
        layer, y = one.layer(num_threads=threads), openbnns.empty(case.full_output)

        def forward(layer=layer, given=given, y=y):
            layer.apply(*given, out=y)
            return (y,)

        found.append(Contender(name, forward, None, forward))
    return found


def _entry(case: MatmulCase, run: Run) -> Entry:
    a, b, y = (4 * math.prod(s) for s in (case.full_shape(0), case.full_shape(1), case.full_output))
    products = math.prod(case.full_output) * case.a[0 if case.transpose[0] else 1]
    forward, backward = Work(a + b, y, products), Work(y + a + b, a + b, 2 * products)
    results = ("y", "da", "db")
    return Entry.unary(str(case), forward, backward, lambda: _contenders(case, run), results)


def _contenders(case: MatmulCase, run: Run) -> list[Contender]:
    a, b, dy = at_lines(*case.inputs(), case.output_gradient())
    found = [ours_of_two(case, a, b, dy, run.threads)]
    for peer in run.peers.values():
        found += peer.matmul(case, a, b, dy, run.compiled)
    return found
