"""Fused layers: a training forward pass into `out=`, then all gradients into given arrays; beside
them our own two layers one after the other."""

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import openbnns
from cases.arithmetic import ArithmeticCase
from cases.convolution import ConvolutionCase
from cases.fully_connected import FullyConnectedCase
from cases.fused import FusedCase

from benchmarks.bench_normalization import away_from_kinks, works
from benchmarks.harness import (
    OURS,
    SEPARATE,
    Contender,
    Entry,
    Row,
    Run,
    Work,
    at_lines,
    empty_like,
    race_entries,
)


def _convolution(image, outputs, side=3, groups=1):
    """With batch norm and ReLU; as many rows and columns come out as go in."""
    padding = ((side // 2,) * 2,) * 2
    first = ConvolutionCase(
        image, outputs, (side, side), (1, 1), padding, groups=groups, bias=False
    )
    return FusedCase(first, moving=True, activation="rectified_linear")


CASES = [
    _convolution((32, 1, 20, 20), 32),
    _convolution((32, 64, 56, 56), 64),
    _convolution((8, 256, 14, 14), 256),
    _convolution((8, 256, 56, 56), 64, side=1),
    _convolution((16, 128, 28, 28), 128, groups=128),
    FusedCase(FullyConnectedCase(32, 1568, 10, bias=False), moving=True),
    FusedCase(FullyConnectedCase(128, 1024, 1024, bias=False), moving=True),
    FusedCase(ArithmeticCase("add", ((64, 56, 56),) * 2, batch=32), moving=True),
]


def rows(run: Run) -> Iterator[Row]:
    """One row per phase of every case that matches."""
    return race_entries("fused", [_entry(case, run) for case in CASES], run)


def _entry(case: FusedCase, run: Run) -> Entry:
    """Every array once; what lies between the layers is written by forward and read by backward."""
    inputs = 4 * sum(math.prod(array.shape) for array in case.inputs())
    norm_forward, norm_backward = works(case.norm)
    z = 4 * math.prod(case.shape)
    if case.is_weighted:
        weights, products = 4 * math.prod(case.first.weights_shape), case.first.multiplications
        forward = Work(inputs + weights, 2 * z, products + norm_forward.operations)
        backward = Work(
            2 * z + inputs + weights, inputs + weights, 2 * products + norm_backward.operations
        )
    else:
        forward = Work(inputs, 2 * z, math.prod(case.shape) + norm_forward.operations)
        backward = Work(2 * z, inputs, norm_backward.operations)
    names = ("y", *case.input_names, *(("dw",) if case.is_weighted else ()), "dgamma", "dbeta")
    return Entry.unary(_name(case), forward, backward, lambda: _contenders(case, run), names)


def _name(case: FusedCase) -> str:
    relu = "-relu" if case.activation != "identity" else ""
    return f"{case.first}-{case.kind}{relu}".replace("-unbiased", "")


def _contenders(case: FusedCase, run: Run) -> list[Contender]:
    *inputs, w, dy = at_lines(*case.inputs(), case.weights(), case.output_gradient())
    if case.activation == "rectified_linear":
        z = case.layer(weights=w, activation="identity").apply(*inputs, training=True)
        dy = away_from_kinks(z, dy)
    found = [_ours(OURS, case, inputs, w, dy, run.threads)]
    if getattr(case.first, "may_use_winograd", False):
        plain = replace(case, first=replace(case.first, winograd=False))
        found.append(_ours(f"{OURS} plain", plain, inputs, w, dy, run.threads))
    found.append(_separate(case, inputs, w, dy, run.threads))
    for peer in run.peers.values():
        found += peer.fused(case, inputs, w, dy, run.compiled)
    return found


def _targets(case: FusedCase, inputs: list[np.ndarray], w: np.ndarray | None):
    """Arrays for the gradients of inputs, weights, gamma and beta."""
    dw = None if w is None else empty_like(w)
    dgamma, dbeta = (openbnns.empty(case.norm.parameter_shape) for _ in range(2))
    return [empty_like(x) for x in inputs], dw, dgamma, dbeta


def _bytes_read(case: FusedCase, inputs: list[np.ndarray], y: np.ndarray) -> int:
    """Of the caller's arrays that backward reads: x for the weights, y for ReLU."""
    read = sum(x.nbytes for x in inputs) if case.is_weighted else 0
    return read + (y.nbytes if case.activation != "identity" else 0)


def _ours(
    name: str,
    case: FusedCase,
    inputs: list[np.ndarray],
    w: np.ndarray | None,
    dy: np.ndarray,
    threads: int,
) -> Contender:
    layer = case.layer(num_threads=threads, weights=w)
    y = empty_like(dy)
    dx, dw, dgamma, dbeta = _targets(case, inputs, w)
    targets = {"beta_gradient": dbeta, "gamma_gradient": dgamma}
    if case.is_weighted:
        targets |= {"input_gradient": dx[0], "weights_gradient": dw, "bias_gradient": None}
    else:
        targets |= {"a_gradient": dx[0], "b_gradient": dx[1]}

    def forward():
        layer.apply(*inputs, training=True, out=y)

    def backward():
        layer.apply_backward(*inputs, y, dy, **targets)

    def result():
        forward()
        backward()
        return y, *dx, *(() if dw is None else (dw,)), dgamma, dbeta

    kept = layer.kept_bytes(len(y)) + _bytes_read(case, inputs, y)
    return Contender(name, forward, backward, result, kept_bytes=kept)


def _separate(
    case: FusedCase, inputs: list[np.ndarray], w: np.ndarray | None, dy: np.ndarray, threads: int
) -> Contender:
    """Two layers; the gradient of what lies between them takes its place, for nobody reads it any
    more."""
    weights = {"weights": w} if case.is_weighted else {}
    first, norm = case.first.layer(threads, **weights), case.norm.layer(threads)
    z, y = empty_like(dy), empty_like(dy)
    dx, dw, dgamma, dbeta = _targets(case, inputs, w)

    def forward():
        first.apply(*inputs, out=z)
        norm.apply(z, training=True, out=y)

    def backward():
        norm.apply_backward(
            None, y, dy, input_gradient=z, beta_gradient=dbeta, gamma_gradient=dgamma
        )
        if case.is_weighted:
            first.apply_backward(*inputs, None, z, input_gradient=dx[0], weights_gradient=dw)
        else:
            first.apply_backward(*inputs, None, z, a_gradient=dx[0], b_gradient=dx[1])

    def result():
        forward()
        backward()
        return y, *dx, *(() if dw is None else (dw,)), dgamma, dbeta

    kept = norm.kept_bytes(len(y)) + _bytes_read(case, inputs, y)
    return Contender(SEPARATE, forward, backward, result, kept_bytes=kept)
