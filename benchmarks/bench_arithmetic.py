"""Arithmetic on two arrays: forward into `out=`, then both gradients into given arrays."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import openbnns
from cases import generator

from benchmarks.harness import OURS, Contender, Entry, Row, Run, Work, race_entries

_IMAGE = (32, 64, 56, 56)  # 25.7 MB


@dataclass(frozen=True)
class ArithmeticRace:
    """y = function(a, b), b spread over the axes where its extent is 1. An axis 0 of extent 1 makes
    it a parameter, which all samples share."""

    function: str
    b_shape: tuple[int, int, int, int]
    shape: tuple[int, int, int, int] = _IMAGE

    def __str__(self):
        return f"{self.function}-{'x'.join(map(str, self.shape))}-{'x'.join(map(str, self.b_shape))}"

    def arrays(self) -> tuple[np.ndarray, ...]:
        """a, b, dy"""
        shapes = (self.shape, self.b_shape, self.shape)
        return tuple(
            generator(self, salt).standard_normal(shape).astype(np.float32)
            for salt, shape in enumerate(shapes)
        )


CASES = [
    ArithmeticRace(function, b_shape)
    for function in ("add", "multiply")
    for b_shape in (_IMAGE, (1, 64, 1, 1), (32, 64, 56, 1))  # the same, per channel, per row
]


def rows(run: Run) -> Iterator[Row]:
    """One row per phase of every case that matches."""
    chosen = [_entry(case, run) for case in CASES if re.search(run.only, f"arithmetic {case}")]
    return race_entries("arithmetic", chosen, run)


def _entry(case: ArithmeticRace, run: Run) -> Entry:
    """Products read both arrays again for their gradients, sums only dy."""
    a, b = 4 * math.prod(case.shape), 4 * math.prod(case.b_shape)
    values = math.prod(case.shape)
    forward = Work(a + b, a, values)
    if case.function == "add":
        backward = Work(a, a + b, values)
    else:
        backward = Work(2 * a + b, a + b, 2 * values)
    results = ("y", "da", "db")
    return Entry.unary(str(case), forward, backward, lambda: _contenders(case, run), results)


def _contenders(case: ArithmeticRace, run: Run) -> list[Contender]:
    a, b, dy = case.arrays()
    found = [_ours(case, a, b, dy, run.threads)]
    for peer in run.peers.values():
        found += peer.arithmetic(case, a, b, dy, run.compiled)
    return found


def _ours(
    case: ArithmeticRace, a: np.ndarray, b: np.ndarray, dy: np.ndarray, threads: int
) -> Contender:
    shared = case.b_shape[0] == 1
    layer = openbnns.BinaryArithmeticLayer(
        case.function,
        input_a=case.shape[1:],
        input_b=case.b_shape[1:],
        b_kind="parameter" if shared else "sample",
        num_threads=threads,
    )
    y, da, db = np.empty_like(dy), np.empty_like(a), np.empty_like(b)
    b, b_gradient = (b[0], db[0]) if shared else (b, db)

    def forward():
        layer.apply(a, b, out=y)

    def backward():
        layer.apply_backward(a, b, None, dy, a_gradient=da, b_gradient=b_gradient)

    def result():
        forward()
        backward()
        return y, da, db

    return Contender(OURS, forward, backward, result)
