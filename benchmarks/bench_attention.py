"""Attention: a forward pass into `out=` with a cache, then all gradients into given arrays.

And the memory of one long sequence, forward and backward without a cache."""

import subprocess
import sys
from collections.abc import Iterator

import numpy as np
from cases.attention import VERY_LONG, AttentionCase

from benchmarks.harness import (
    OURS,
    ROOT,
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
    AttentionCase(8, 128, 128, 8, 64),
    AttentionCase(1, 2048, 2048, 8, 64),
    AttentionCase(1, 2048, 2048, 8, 64, causal=True),
    AttentionCase(32, 32, 32, 4, 16),
    AttentionCase(1, 16, 16, 4, 16),
]
GRADIENTS = (
    "query",
    "key",
    "value",
    "query_weights",
    "key_weights",
    "value_weights",
    "output_weights",
    "query_bias",
    "key_bias",
    "value_bias",
    "output_bias",
)
RESULTS = ("y", *GRADIENTS)


def rows(run: Run) -> Iterator[Row]:
    """One row per phase of every case that matches."""
    yield from race_entries("attention", [_entry(case, run) for case in CASES], run)
    name = f"{VERY_LONG}-uncached"
    if sys.platform == "linux" and run.wants("attention", name):
        held = {OURS: _peak_bytes(run.threads)}
        yield Row("attention", name, "memory", run.threads, {}, kept_bytes=held)


def _peak_bytes(threads: int) -> int:
    script = f"import benchmarks, cases.attention as a; print(a.VERY_LONG.peak_bytes({threads}))"
    return int(subprocess.check_output([sys.executable, "-c", script], cwd=ROOT))


def works(case: AttentionCase) -> tuple[Work, Work]:
    """Forward and backward (README.md, "Floors"): inputs, weights and y once; then those, dy and
    all gradients. Backward has two products for every projection and five for the scores."""
    inputs = case.model * case.batch * (case.targets + 2 * case.sources)
    outputs = case.model * case.batch * case.targets
    weights = 4 * case.model**2
    scores = 2 * case.batch * case.targets * case.sources * case.model
    seen = scores // 2 if case.causal else scores
    forward = case.multiplications - scores + seen
    backward = 2 * (case.multiplications - scores) + 5 * seen // 2
    return (
        Work(4 * (inputs + weights), 4 * outputs, forward),
        Work(4 * (inputs + weights + outputs), 4 * (inputs + weights), backward),
    )


def _entry(case: AttentionCase, run: Run) -> Entry:
    return Entry.unary(str(case), *works(case), lambda: _contenders(case, run), RESULTS)


def _contenders(case: AttentionCase, run: Run) -> list[Contender]:
    p, (dy,) = case.parameters(), at_lines(case.output_gradient())
    found = [_ours(case, p, dy, run.threads)]
    for peer in run.peers.values():
        found += peer.attention(case, p, dy, run.compiled)
    return found


def _ours(case: AttentionCase, p, dy: np.ndarray, threads: int) -> Contender:
    layer, y = case.layer(p, threads), empty_like(dy)
    _, cache = layer.apply(p.q, p.k, p.v, cache=True)
    first = layer.apply_backward(p.q, p.k, p.v, None, dy, cache=cache)
    targets = {f"{name}_gradient": getattr(first, name) for name in GRADIENTS}

    def forward():
        layer.apply(p.q, p.k, p.v, out=y, cache=cache)

    def backward():
        layer.apply_backward(p.q, p.k, p.v, None, dy, cache=cache, **targets)

    def result():
        forward()
        backward()
        flat = list(targets.values())
        flat[3:6] = [array.reshape(-1, array.shape[-1]) for array in flat[3:6]]
        flat[7:10] = [array.reshape(-1) for array in flat[7:10]]
        flat[8] = None  # the gradient of the keys' bias is 0, what comes out is rounding
        return y, *flat

    return Contender(OURS, forward, backward, result, kept_bytes=cache.nbytes)
