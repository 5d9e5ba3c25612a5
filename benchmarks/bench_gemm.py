"""The matrix engine, through the forward pass of a fully connected layer without a bias:
y (m, n) = x (m, k) times weights that lie as (n, k), "nt", or column-major as (k, n), "nn"."""

import math
import re
from collections.abc import Iterator

import numpy as np
from cases.fully_connected import FullyConnectedCase

from benchmarks.harness import OURS, Entry, Row, Run, Trainer, Work, race_entries

_SIZES = (
    (1024, 1024, 1024),
    (8192, 512, 512),
    (128, 1024, 1024),
    (256, 256, 256),
    (64, 64, 64),
    (32, 10, 1568),
)
CASES = [
    FullyConnectedCase(m, k, n, bias=False, column_major=column_major)
    for m, n, k in _SIZES
    for column_major in (False, True)
]


def rows(run: Run) -> Iterator[Row]:
    """One row per case that matches."""
    chosen = [_entry(case, run) for case in CASES if re.search(run.only, f"gemm {_name(case)}")]
    return race_entries("gemm", chosen, run)


def _name(case: FullyConnectedCase) -> str:
    order = "nn" if case.column_major else "nt"
    return f"gemm-{case.batch}x{case.outputs}x{case.inputs}-{order}"


def _entry(case: FullyConnectedCase, run: Run) -> Entry:
    x, w, y = (4 * math.prod(s) for s in (case.input_shape, case.weights_shape, case.output_shape))
    work = {"forward": Work(x + w, y, case.multiplications)}
    return Entry(_name(case), work, lambda: _trainers(case, run))


def _trainers(case: FullyConnectedCase, run: Run) -> list[Trainer]:
    x, w = case.input(), case.weights()
    found = [_ours(case, x, w, run.threads)]
    for peer in run.peers.values():
        found += peer.gemm(case, x, w, run.compiled)
    return found


def _ours(case: FullyConnectedCase, x: np.ndarray, w: np.ndarray, threads: int) -> Trainer:
    layer, y = case.layer(num_threads=threads, weights=w), np.empty(case.output_shape, np.float32)
    return Trainer(
        OURS, lambda: layer.apply(x, out=y), None, None, lambda: (layer.apply(x, out=y),)
    )
