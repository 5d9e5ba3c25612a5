"""Convolution: forward, input gradient (dx) and weight gradient (dw) into given arrays, and all."""

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from cases.convolution import CASES, ConvolutionCase

from benchmarks.harness import OURS, Entry, Row, Run, Trainer, at_lines, empty_like, race_entries


def rows(run: Run) -> Iterator[Row]:
    """One row per pass of every case that matches."""
    cases = [case for case in CASES if "large" in case.tags]
    return race_entries("convolution", [_entry(case, run) for case in cases], run)


def _entry(case: ConvolutionCase, run: Run) -> Entry:
    """Multiplications are those of the definition; Winograd's algorithm needs fewer."""
    sizes = tuple(map(math.prod, (case.image, case.weights_shape, case.output_shape)))
    return Entry.weighted(str(case), sizes, case.multiplications, lambda: _trainers(case, run))


def _trainers(case: ConvolutionCase, run: Run) -> list[Trainer]:
    x, w, dy = at_lines(case.input(), case.weights(), case.output_gradient())
    found = [ours(OURS, case, x, w, dy, run.threads)]
    if case.may_use_winograd:
        plain = replace(case, winograd=False)
        found.append(ours(f"{OURS} plain", plain, x, w, dy, run.threads))
    for peer in run.peers.values():
        found += peer.convolution(case, x, w, dy, run.compiled)
    return found


def ours(name: str, case, x: np.ndarray, w: np.ndarray, dy: np.ndarray, threads: int) -> Trainer:
    """A convolution or fully connected case through its Python layer."""
    layer = case.layer(num_threads=threads, weights=w)
    y, dx, dw = empty_like(dy), empty_like(x), empty_like(w)

    def forward():
        layer.apply(x, out=y)

    def input_gradient():
        layer.apply_backward(None, None, dy, input_gradient=dx, weights_gradient=None)

    def weight_gradient():
        layer.apply_backward(x, None, dy, input_gradient=None, weights_gradient=dw)

    def both_gradients():
        layer.apply_backward(x, None, dy, input_gradient=dx, weights_gradient=dw)

    def result():
        forward()
        both_gradients()
        return y, dx, dw

    return Trainer(name, forward, input_gradient, weight_gradient, result, both_gradients)
