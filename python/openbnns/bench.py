"""``openbnns bench``: training steps and single layers beside the libraries that are installed.

A few rows for a first look at a machine. All contenders of a row do the same work from the same
parameters, which is checked first, and take turns in one process. The whole set, with every layer,
oneDNN and the floors of the machine, is the folder ``benchmarks`` of the source.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import platform
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from timeit import Timer
from typing import Any

import numpy as np

import openbnns

from .__main__ import PEERS
from .blocks import Activate, Block, Convolution, Dense, Normalize, Pool
from .network import Network

__all__ = ["Timing", "duration", "race", "rest", "run"]

_RATE, _CLASSES, _FIRST = 1e-3, 10, 5  # Adam's rate; and so many losses have to agree


# ---- the race ----


@dataclass(frozen=True)
class Timing:
    """Seconds per call over the rounds; spread is the interquartile range over the median."""

    median: float
    best: float
    spread: float

    @classmethod
    def of(cls, seconds: Iterable[float]) -> Timing:
        ordered = sorted(seconds)
        median = statistics.median(ordered)
        quarter = len(ordered) // 4
        return cls(median, ordered[0], (ordered[-1 - quarter] - ordered[quarter]) / median)


def rest(seconds: float) -> None:
    """Sleeps so long, and on until no thread of this process computes: 0.3 seconds at most."""
    time.sleep(seconds)
    for _ in range(50):
        before = time.process_time()
        time.sleep(0.005)
        if time.process_time() - before < 0.0005:
            return


def race(
    timers: dict[str, Timer], rounds: int, slice_seconds: float, pause_seconds: float
) -> dict[str, Timing]:
    """Times every contender in several rounds, each round starting with another one.

    Before each slice there is a pause until this process is at rest, because threads of the peers
    spin for a while after a call (OpenBLAS: 2**26 cycles) and would sit on a core of the next
    contender; and then one call that does not count.
    """
    names = list(timers)
    repeats = {name: _repeats(timer, slice_seconds) for name, timer in timers.items()}
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            rest(pause_seconds)
            timers[name].timeit(1)
            seconds[name].append(timers[name].timeit(repeats[name]) / repeats[name])
    return {name: Timing.of(values) for name, values in seconds.items()}


def _repeats(timer: Timer, slice_seconds: float) -> int:
    """Calls that fill a slice; the first call is left out because it may compile something."""
    timer.timeit(1)
    count = 1
    while (seconds := timer.timeit(count)) < slice_seconds / 4:
        count *= 4
    return max(1, round(slice_seconds / seconds * count))


# ---- what is raced ----


def _mlp() -> list[Block]:
    return [Dense(32, "relu"), Dense(_CLASSES)]


def _cnn() -> list[Block]:
    stages = [
        (Convolution(c, 3, padding=1, bias=False, normalization="batch", activation="relu"), Pool())
        for c in (16, 32)
    ]
    return [*(block for stage in stages for block in stage), Dense(_CLASSES)]


# name: blocks, shape of a batch. Steps are forward, loss, backward and Adam; the others forward and
# backward with all gradients.
_STEPS: dict[str, tuple[Callable[[], list[Block]], tuple[int, ...]]] = {
    "step, 64-32-10, 1 sample": (_mlp, (1, 64)),
    "step, 64-32-10, 32 samples": (_mlp, (32, 64)),
    "step, two convolutions, 1 image 28x28": (_cnn, (1, 1, 28, 28)),
    "step, two convolutions, 32 images 28x28": (_cnn, (32, 1, 28, 28)),
}
_LAYERS: dict[str, tuple[Callable[[], list[Block]], tuple[int, ...]]] = {
    "dense 512 to 512, relu, 128 samples": (lambda: [Dense(512, "relu")], (128, 512)),
    "convolution 3x3, 32 to 32, 16 x 32x32": (
        lambda: [Convolution(32, 3, padding=1)],
        (16, 32, 32, 32),
    ),
    "convolution, batch norm, relu, the same": (
        lambda: [Convolution(32, 3, padding=1, normalization="batch", activation="relu")],
        (16, 32, 32, 32),
    ),
    "max pooling 2x2, 16 x 32x32x32": (lambda: [Pool("max", 2)], (16, 32, 32, 32)),
    "layer norm, 512 x 256": (lambda: [Normalize("layer")], (512, 256)),
    "gelu, 512 x 1024": (lambda: [Activate("gelu")], (512, 1024)),
}


@dataclass(frozen=True)
class _Contender:
    """One way to do the work of a row, and numbers that say whether it is that work."""

    call: Callable[[], object]
    found: Callable[[], Any]


class _Other(Exception):
    """A peer that computes something else."""


def _made(name: str) -> tuple[Network, Any, Any]:
    """The network of a row, a batch, and labels or the gradient of the result."""
    make, shape = {**_STEPS, **_LAYERS}[name]
    network = Network(make(), input=shape[1:], optimizer=openbnns.AdamOptimizer(_RATE), seed=1)
    random = np.random.default_rng(0)
    x = random.standard_normal(shape, dtype=np.float32)
    if name in _STEPS:
        return network, x, random.integers(_CLASSES, size=shape[0])
    return network, x, random.standard_normal((shape[0], *network.output_shape), dtype=np.float32)


def _ours(name: str) -> _Contender:
    network, x, y = _made(name)
    if name in _STEPS:
        return _Contender(
            lambda: network.train_step(x, y),
            lambda: [network.train_step(x, y) for _ in range(_FIRST)],
        )

    def both() -> Any:
        network.forward(x, training=True)
        return network.backward(y)

    return _Contender(both, lambda: both().copy())


def _torch(name: str) -> _Contender | None:
    """As one writes it: modules, autograd, fused Adam."""
    import torch

    from .torch import to_torch

    network, x, y = _made(name)
    model, inputs, given = to_torch(network), torch.from_numpy(x), torch.from_numpy(y)
    if name not in _STEPS:
        inputs.requires_grad_()

        def both() -> Any:
            model.zero_grad()
            inputs.grad = None
            model(inputs).backward(given)
            return inputs.grad

        return _Contender(both, lambda: both().numpy())
    entropy = torch.nn.CrossEntropyLoss()
    adam = torch.optim.Adam(model.parameters(), _RATE, fused=True)

    def step() -> float:
        adam.zero_grad()
        loss = entropy(model(inputs), given)
        loss.backward()
        adam.step()
        return float(loss.item())

    return _Contender(step, lambda: [step() for _ in range(_FIRST)])


def _jax(name: str) -> _Contender | None:
    """The whole step is one jitted function that is given its arrays back. Images NHWC."""
    if name not in _STEPS:
        return None
    jax: Any = importlib.import_module("jax")
    numpy: Any = importlib.import_module("jax.numpy")
    lax = jax.lax
    network, x, y = _made(name)
    parts: list[tuple[str, Block]] = []
    for stage in network._each():
        parts.append((stage.name, stage.block))
        if isinstance(stage.block, Convolution) and stage.block._pool is not None:
            parts.append(("", stage.block._pool))  # which our convolution does in its own pass
    batch = x.transpose(0, 2, 3, 1) if x.ndim == 4 else x
    labels = np.eye(_CLASSES, dtype=np.float32)[y]

    def forward(p: Any, z: Any) -> Any:
        for own, block in parts:
            if isinstance(block, Convolution):
                order = ("NHWC", "OIHW", "NHWC")
                z = lax.conv_general_dilated(
                    z, p[f"{own}.weights"], (1, 1), "SAME", dimension_numbers=order
                )
                mean, variance = z.mean((0, 1, 2)), z.var((0, 1, 2))
                z = (z - mean) * lax.rsqrt(variance + block.epsilon)
                z = jax.nn.relu(z * p[f"{own}.gamma"] + p[f"{own}.beta"])
            elif isinstance(block, Pool):
                window = (1, 2, 2, 1)
                z = lax.reduce_window(z, -numpy.inf, lax.max, window, window, "VALID")
            elif isinstance(block, Dense):
                z = z.transpose(0, 3, 1, 2).reshape(len(z), -1) if z.ndim == 4 else z
                z = z @ p[f"{own}.weights"].T + p[f"{own}.bias"]
                z = jax.nn.relu(z) if block.activation == "relu" else z
        return z

    def loss_of(p: Any) -> Any:
        return -(labels * jax.nn.log_softmax(forward(p, batch))).sum(axis=1).mean()

    def move(state: Any) -> Any:
        p, m, v, t = state
        loss, g = jax.value_and_grad(loss_of)(p)
        t = t + 1
        m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, g)
        v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, v, g)
        rate = _RATE * numpy.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        p = jax.tree.map(lambda p, m, v: p - rate * m / (numpy.sqrt(v) + 1e-8), p, m, v)
        return loss, (p, m, v, t)

    jitted = jax.jit(move, donate_argnums=0)
    start = {own: numpy.array(array) for own, array in network.parameters().items()}
    zeros = [jax.tree.map(numpy.zeros_like, start) for _ in "mv"]
    state: Any = (start, *zeros, numpy.zeros(()))

    def step() -> float:
        nonlocal state
        loss, state = jitted(state)
        return float(loss)

    return _Contender(step, lambda: [step() for _ in range(_FIRST)])


def _numpy(name: str) -> _Contender | None:
    """Dense layers by hand."""
    if _STEPS.get(name, (None,))[0] is not _mlp:
        return None
    network, x, y = _made(name)
    p = list(network.parameters().values())
    m, v = ([np.zeros_like(array) for array in p] for _ in "mv")
    rows, taken = np.arange(len(x)), 0

    def step() -> float:
        nonlocal taken
        taken += 1
        w1, b1, w2, b2 = p
        hidden = np.maximum(x @ w1.T + b1, 0)
        z = hidden @ w2.T + b2
        z -= z.max(axis=1, keepdims=True)
        log_p = z - np.log(np.exp(z).sum(axis=1, keepdims=True))
        loss = -log_p[rows, y].mean()
        dz = np.exp(log_p)
        dz[rows, y] -= 1
        dz /= np.float32(len(x))
        dh = (dz @ w2) * (hidden > 0)
        rate = _RATE * np.sqrt(1 - 0.999**taken) / (1 - 0.9**taken)
        for i, g in enumerate((dh.T @ x, dh.sum(axis=0), dz.T @ hidden, dz.sum(axis=0))):
            m[i] = 0.9 * m[i] + 0.1 * g
            v[i] = 0.999 * v[i] + 0.001 * g * g
            p[i] -= (rate * m[i] / (np.sqrt(v[i]) + 1e-8)).astype(np.float32)
        return float(loss)

    return _Contender(step, lambda: [step() for _ in range(_FIRST)])


_MAKERS = {"torch": _torch, "jax": _jax, "numpy": _numpy}


def _rows(
    names: Sequence[str], peers: Sequence[str], quick: bool
) -> Iterator[tuple[str, dict[str, Timing]]]:
    """The times of every row, one after the other."""
    for name in names:
        ours = _ours(name)
        expected, timers = np.asarray(ours.found()), {"ours": Timer(ours.call)}
        for peer in peers:
            contender = _MAKERS[peer](name)
            if contender is None:
                continue
            found = np.asarray(contender.found())
            if not np.allclose(found, expected, rtol=2e-3, atol=1e-3):
                raise _Other(f"{peer} computes something else than ours in {name!r}")
            timers[peer] = Timer(contender.call)
        yield name, race(timers, *((3, 0.003, 0.002) if quick else (9, 0.05, 0.02)))


# ---- the command ----


def run(
    threads: int | None = None,
    against: Sequence[str] = PEERS,
    only: str = "",
    quick: bool = False,
    as_json: bool = False,
) -> int:
    """Race all rows and print them.

    Args:
        threads: of all libraries; None is the library's setting.
        against: out of ``PEERS``; those that are not installed are left out.
        only: a pattern that names of rows match.
        quick: does it run? The times mean little.
        as_json: everything as JSON at the end, instead of a table on the way.

    Returns:
        The exit code: 0; 1 when a peer computes something else; 2 when no row matches.
    """
    names = [name for name in (*_STEPS, *_LAYERS) if re.search(only, name)]
    if not names:
        print(f"openbnns bench: --only: no row matches {only!r}", file=sys.stderr)
        return 2
    peers = [peer for peer in against if importlib.util.find_spec(peer)]
    absent = [peer for peer in against if peer not in peers]
    before = openbnns.get_num_threads()
    threads = threads or before
    openbnns.set_num_threads(threads)
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_setaffinity") else None
    try:
        if cores is not None and "jax" in peers:  # XLA counts the cores it may use
            os.sched_setaffinity(0, sorted(cores)[-threads:])
        if "torch" in peers:
            importlib.import_module("torch").set_num_threads(threads)
        versions = _versions(peers)
        if not as_json:
            many = "threads" if threads > 1 else "thread"
            print(f"{openbnns.isa()}, {threads} {many}; {_words(versions)}")
            if absent:
                print(f"not installed: {', '.join(absent)}")
            print("  ".join([f"{'':40}", f"{'ours':>8}", *(f"{peer:>17}" for peer in peers)]))
        rows = []
        for name, times in _rows(names, peers, quick):
            rows.append({"name": name, "seconds": {k: asdict(t) for k, t in times.items()}})
            if not as_json:
                print(_line(name, times, peers), flush=True)
    except _Other as error:
        print(f"openbnns bench: {error}", file=sys.stderr)
        return 1
    finally:
        openbnns.set_num_threads(before)
        if cores is not None:
            os.sched_setaffinity(0, cores)
    if as_json:
        report = {
            "isa": openbnns.isa(),
            "machine": platform.machine(),
            "threads": threads,
            "versions": versions,
            "absent": absent,
            "quick": quick,
            "rows": rows,
        }
        print(json.dumps(report, indent=1))
    return 0


def _versions(peers: Sequence[str]) -> dict[str, str]:
    found = {"openbnns": openbnns.version(), "python": platform.python_version()}
    return found | {peer: str(importlib.import_module(peer).__version__) for peer in peers}


def _words(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _line(name: str, times: dict[str, Timing], peers: Sequence[str]) -> str:
    ours = times["ours"].median
    cells = [f"{name:40}", f"{duration(ours):>8}"]
    for peer in peers:
        found = times.get(peer)
        cell = "-" if found is None else f"{duration(found.median)} ({found.median / ours:.2f}x)"
        cells.append(f"{cell:>17}")
    return "  ".join(cells)


def duration(seconds: float) -> str:
    """Three digits and a unit."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"
