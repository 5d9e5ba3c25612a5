"""The matrix engine, through the forward pass of a fully connected layer without a bias:
y (m, n) = x (m, k) times weights that lie as (n, k), "nt", or column-major as (k, n), "nn".

Half types, and float32 that may be rounded to bfloat16 ("medium"), race our own float32: x and
weights of the same values, results in float32."""

import math
import re
from collections.abc import Iterator

import numpy as np
import openbnns
from cases import dtype_of, has_bfloat16
from cases.fully_connected import FullyConnectedCase

from benchmarks.harness import OURS, Entry, Row, Run, Trainer, Work, at_lines, race_entries

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
ROUGH = ("bfloat16", "float16", "medium")
ROUGH_CASES = [case for case in CASES[:6] if not case.column_major]
# Few rows or columns, the weights as (k, n): half values are cheaper to read, but not to pack.
_NARROW_SIZES = ((8, 1024, 1024), (16, 1024, 1024), (32, 1024, 1024), (32, 10, 1568))
NARROW_CASES = [
    FullyConnectedCase(m, k, n, bias=False, column_major=True) for m, n, k in _NARROW_SIZES
]


def rows(run: Run) -> Iterator[Row]:
    """One row per case that matches."""
    entries = [_entry(case, run) for case in CASES]
    entries += [
        _rough_entry(case, kind, run)
        for kind in ROUGH
        for case in ROUGH_CASES + (NARROW_CASES if kind != "medium" else [])
        if kind == "float16" or has_bfloat16()
    ]
    chosen = [entry for entry in entries if re.search(run.only, f"gemm {entry.name}")]
    return race_entries("gemm", chosen, run)


def _name(case: FullyConnectedCase) -> str:
    order = "nn" if case.column_major else "nt"
    return f"gemm-{case.batch}x{case.outputs}x{case.inputs}-{order}"


def _rough_entry(case: FullyConnectedCase, kind: str, run: Run) -> Entry:
    """Two products of bfloat16 for one operation: what AVX512_BF16 does in a lane."""
    size = 4 if kind == "medium" else 2
    read = size * (math.prod(case.input_shape) + math.prod(case.weights_shape))
    operations = case.multiplications if kind == "float16" else case.multiplications // 2
    work = {"forward": Work(read, 4 * math.prod(case.output_shape), operations)}
    return Entry(f"{_name(case)}-{kind}", work, lambda: _rough_trainers(case, kind, run.threads))


def _rough_trainers(case: FullyConnectedCase, kind: str, threads: int) -> list[Trainer]:
    half = dtype_of("bfloat16" if kind == "medium" else kind)
    x, w = at_lines(case.input().astype(half), case.weights().astype(half))
    widened = at_lines(x.astype(np.float32), w.astype(np.float32))
    found = []
    for name in (OURS, "openbnns float32"):
        is_rough = name == OURS
        given = (x, w) if is_rough and kind != "medium" else widened
        layer = openbnns.FullyConnectedLayer(
            given[1],
            output=openbnns.ArraySpec((case.outputs,), "float32"),
            precision="medium" if is_rough and kind == "medium" else "highest",
            num_threads=threads,
        )
        found.append(_trainer(name, layer, given[0], case))
    return found


def _trainer(name: str, layer, x: np.ndarray, case: FullyConnectedCase) -> Trainer:
    y = openbnns.empty(case.output_shape)
    return Trainer(
        name, lambda: layer.apply(x, out=y), None, None, lambda: (layer.apply(x, out=y),)
    )


def _entry(case: FullyConnectedCase, run: Run) -> Entry:
    x, w, y = (4 * math.prod(s) for s in (case.input_shape, case.weights_shape, case.output_shape))
    work = {"forward": Work(x + w, y, case.multiplications)}
    return Entry(_name(case), work, lambda: _trainers(case, run))


def _trainers(case: FullyConnectedCase, run: Run) -> list[Trainer]:
    x, w = at_lines(case.input(), case.weights())
    found = [_ours(case, x, w, run.threads)]
    for peer in run.peers.values():
        found += peer.gemm(case, x, w, run.compiled)
    return found


def _ours(case: FullyConnectedCase, x: np.ndarray, w: np.ndarray, threads: int) -> Trainer:
    return _trainer(OURS, case.layer(num_threads=threads, weights=w), x, case)
