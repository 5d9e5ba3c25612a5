"""Normalization: a training forward pass into `out=`, then all gradients into given arrays.

Every case twice: as BNNS has it, where the layer keeps a copy of x for its gradients, and borrowed,
where it relies on x staying as it is. The peers do the latter in both."""

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import openbnns
from cases.normalization import NormalizationCase

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

CASES = [
    NormalizationCase(
        "batch", (32, 64, 56, 56), moving=True, momentum=0.9, activation="rectified_linear"
    ),
    NormalizationCase("layer", (4096, 1024)),
    NormalizationCase("layer", (1024, 512)),
    NormalizationCase("group", (32, 64, 56, 56), groups=32),
]
RESULTS = ("y", "dx", "dgamma", "dbeta")


def rows(run: Run) -> Iterator[Row]:
    """One row per phase of every case that matches."""
    entries = [_entry(case, borrows, run) for case in CASES for borrows in (False, True)]
    return race_entries("normalization", entries, run)


def works(case: NormalizationCase) -> tuple[Work, Work]:
    """Forward and backward, each array once (README.md, "Floors"): x and y; dy, x and dx. Per
    value: two sums and a product, ReLU one more; two sums and two products, ReLU two more."""
    values = math.prod(case.shape)
    relu = case.activation == "rectified_linear"
    forward = Work(4 * values, 4 * values, (4 if relu else 3) * values)
    backward = Work(8 * values, 4 * values, (6 if relu else 4) * values)
    return forward, backward


def _entry(case: NormalizationCase, borrows: bool, run: Run) -> Entry:
    name = f"{case}-borrowed" if borrows else str(case)
    return Entry.unary(name, *works(case), lambda: _contenders(case, borrows, run), RESULTS)


def _contenders(case: NormalizationCase, borrows: bool, run: Run) -> list[Contender]:
    x, dy = at_lines(case.input(), case.output_gradient())
    if case.activation == "rectified_linear":
        parameters = {"gamma": case.gamma_values(), "beta": case.beta_values()}
        straight = replace(case, activation="identity").layer(**parameters)
        dy = away_from_kinks(straight.apply(x, training=True), dy)
    found = [_ours(case, borrows, x, dy, run.threads)]
    for peer in run.peers.values():
        found += peer.normalization(case, x, dy, run.compiled)
    return found


def away_from_kinks(z: np.ndarray, dy: np.ndarray) -> np.ndarray:
    """dy without those values where rounding decides whether ReLU of z lets them pass: there the
    contenders may differ without being wrong."""
    return at_lines(np.where(np.abs(z) > 1e-4, dy, np.float32(0)))[0]


def _ours(
    case: NormalizationCase, borrows: bool, x: np.ndarray, dy: np.ndarray, threads: int
) -> Contender:
    layer = case.layer(num_threads=threads, borrow_input=borrows)
    y, dx = empty_like(dy), empty_like(x)
    dgamma, dbeta = (openbnns.empty(case.parameter_shape) for _ in range(2))

    def forward():
        layer.apply(x, training=True, out=y)

    def backward():
        layer.apply_backward(
            None, y, dy, input_gradient=dx, gamma_gradient=dgamma, beta_gradient=dbeta
        )

    def result():
        forward()
        backward()
        return y, dx, dgamma, dbeta

    return Contender(OURS, forward, backward, result)
