"""Fully connected layers: forward, dx and dw into given arrays, and all three."""

import math
from collections.abc import Iterator

from cases.fully_connected import CASES, FullyConnectedCase

from benchmarks.bench_convolution import ours
from benchmarks.harness import OURS, Entry, Row, Run, Trainer, at_lines, race_entries


def rows(run: Run) -> Iterator[Row]:
    """One row per pass of every case that matches."""
    cases = [case for case in CASES if "large" in case.tags]
    return race_entries("fully_connected", [_entry(c, run) for c in cases], run)


def _entry(case: FullyConnectedCase, run: Run) -> Entry:
    sizes = tuple(map(math.prod, (case.input_shape, case.weights_shape, case.output_shape)))
    return Entry.weighted(str(case), sizes, case.multiplications, lambda: _trainers(case, run))


def _trainers(case: FullyConnectedCase, run: Run) -> list[Trainer]:
    x, w, dy = at_lines(case.input(), case.weights(), case.output_gradient())
    found = [ours(OURS, case, x, w, dy, run.threads)]
    for peer in run.peers.values():
        found += peer.fully_connected(case, x, w, dy, run.compiled)
    return found
