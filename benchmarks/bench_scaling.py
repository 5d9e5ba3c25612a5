"""What more threads gain, from calls of a microsecond to training steps of half a second.

The contenders of a row are thread counts, 1, 2, 4, … up to those of the process, which take turns:
times of different processes on a shared machine differ by more than what is asked here. The phase
names the count. Only in processes of two threads and more.
"""

from collections.abc import Callable, Iterator
from itertools import cycle
from timeit import Timer

import numpy as np
import openbnns as bnns
from openbnns.blocks import Convolution, Dense, Pool
from openbnns.examples import digits

from benchmarks.harness import OURS, Row, Run, Step, at_lines, empty_like, race
from benchmarks.networks import NETWORKS

_random = np.random.default_rng(0)


def _values(*shape: int) -> np.ndarray:
    return at_lines(_random.standard_normal(shape, np.float32))[0]


def _product(m: int, n: int, k: int) -> Step:
    a, b, c = _values(m, k), _values(k, n), _values(m, n)
    return lambda: bnns.matmul(a, b, out=c)


def _both(layer: object, shape: tuple[int, ...], **forward: object) -> Step:
    """Forward and all gradients, in memory of the caller."""
    x = _values(*shape)
    y = at_lines(layer.apply(x, **forward))[0]
    grad = _values(*y.shape)
    target = empty_like(x)

    def step() -> None:
        layer.apply(x, out=y, **forward)
        layer.apply_backward(x, y, grad, input_gradient=target)

    return step


def _convolution(
    n: int,
    channels: int,
    side: int,
    outputs: int,
    kernel: int = 3,
    stride: int = 1,
    groups: int = 1,
) -> Step:
    layer = bnns.ConvolutionLayer(
        _values(outputs, channels // groups, kernel, kernel),
        input=(channels, side, side),
        stride=stride,
        padding=kernel // 2,
        groups=groups,
    )
    return _both(layer, (n, channels, side, side))


def _pooling() -> Step:
    layer = bnns.PoolingLayer("max", input=(64, 56, 56), kernel_size=2)
    x, grad = _values(16, 64, 56, 56), _values(16, 64, 28, 28)
    y, indices = layer.apply(x, return_indices=True)
    target = empty_like(x)

    def step() -> None:
        layer.apply(x, out=y, indices=indices)
        layer.apply_backward(x, y, grad, indices=indices, input_gradient=target)

    return step


def _normalization(kind: str, sample: tuple[int, ...], n: int, activation: str) -> Step:
    parameters = sample if kind == "layer" else sample[:1]
    layer = bnns.NormalizationLayer(
        kind,
        input=sample,
        beta=np.zeros(parameters, "f4"),
        gamma=np.ones(parameters, "f4"),
        activation=activation,
    )
    return _both(layer, (n, *sample), training=True)


def _loss(n: int, classes: int) -> Step:
    layer = bnns.LossLayer("softmax_cross_entropy", input=(classes,))
    x, labels = _values(n, classes), _random.integers(classes, size=n)
    target = empty_like(x)
    return lambda: layer.apply(x, labels, input_gradient=target)


def _adam(size: int) -> Step:
    weights, gradient = _values(size), _values(size)
    adam = bnns.AdamOptimizer(1e-6).bind([weights])
    return lambda: adam.step([gradient])


def _digits() -> Step:
    network, batch = digits.DigitNetwork(0), digits.make_batch(0, 0)
    return lambda: network.step(*batch)


def _network(blocks: list, shape: tuple[int, ...]) -> Step:
    network = bnns.Network(blocks, input=shape[1:], seed=1)
    x, labels = _values(*shape), _random.integers(10, size=shape[0])
    return lambda: network.train_step(x, labels)


def _cnn() -> list:
    stages = [
        (Convolution(c, 3, padding=1, bias=False, normalization="batch", activation="relu"), Pool())
        for c in (16, 32)
    ]
    return [*(block for stage in stages for block in stage), Dense(10)]


def _usual(name: str) -> Step:
    network, batches = NETWORKS[name].network(), cycle(NETWORKS[name].batches(2))
    return lambda: network.train_step(*next(batches))


CASES: dict[str, Callable[[], Step]] = {
    "relu-4096": lambda: _both(bnns.ActivationLayer("relu", input=(4096,)), (1, 4096)),
    "loss-32x10": lambda: _loss(32, 10),
    "product-64x64x64": lambda: _product(64, 64, 64),
    "product-32x10x1568": lambda: _product(32, 10, 1568),
    "step-mlp-32x64-32-10": lambda: _network([Dense(32, "relu"), Dense(10)], (32, 64)),
    "product-100x120x150": lambda: _product(100, 120, 150),
    "layer-norm-128x256": lambda: _normalization("layer", (256,), 128, "identity"),
    "adam-100000": lambda: _adam(100_000),
    "product-130x200x90": lambda: _product(130, 200, 90),
    "step-digits-32x1x20x20": _digits,
    "gelu-512x1024": lambda: _both(bnns.ActivationLayer("gelu", input=(1024,)), (512, 1024)),
    "convolution-1x32x14x14-k3": lambda: _convolution(1, 32, 14, 32),
    "step-cnn-32x1x28x28": lambda: _network(_cnn(), (32, 1, 28, 28)),
    "depthwise-8x64x28x28-k3": lambda: _convolution(8, 64, 28, 64, groups=64),
    "convolution-16x32x28x28-k3-s2": lambda: _convolution(16, 32, 28, 64, stride=2),
    "convolution-16x256x14x14-k1": lambda: _convolution(16, 256, 14, 256, kernel=1),
    "batch-norm-relu-16x64x56x56": lambda: _normalization("batch", (64, 56, 56), 16, "relu"),
    "max-pooling-16x64x56x56-k2": _pooling,
    "product-1024x1024x1024": lambda: _product(1024, 1024, 1024),
    "convolution-16x64x56x56-k3": lambda: _convolution(16, 64, 56, 64),
    "convolution-32x128x28x28-k3-s2": lambda: _convolution(32, 128, 28, 256, stride=2),
    **{f"step-{case.name}": lambda key=key: _usual(key) for key, case in NETWORKS.items()},
}


def rows(run: Run) -> Iterator[Row]:
    counts = [n for n in (1, 2, 4, 8, 16, 32, 64, 128) if n < run.threads] + [run.threads]
    for name, make in CASES.items():
        if run.threads < 2 or not run.wants("scaling", name):
            continue
        step = make()
        times = race({str(n): _timer(step, n) for n in counts}, run)
        for n in counts:
            yield Row("scaling", name, f"of {run.threads}", n, {OURS: times[str(n)]})
    bnns.set_num_threads(run.threads)


def _timer(step: Step, threads: int) -> Timer:
    return Timer(step, setup=lambda: bnns.set_num_threads(threads))


def summary(rows_: list[Row]) -> str:
    """A line per case: its times, the gain of the most threads, and how much slower any count is
    than the best of fewer."""
    cases: dict[str, dict[int, float]] = {}
    for row in rows_:
        cases.setdefault(row.case, {})[row.threads] = row.times[OURS].median
    lines = []
    for case, times in cases.items():
        counts = sorted(times)
        loss = max(times[n] / min(times[m] for m in counts if m <= n) for n in counts)
        cells = " ".join(f"{1e6 * times[n]:10.1f}" for n in counts)
        gain = times[1] / times[counts[-1]]
        lines.append(f"{case:34} {cells}  gain {gain:5.2f}  loss {loss:4.2f}")
    return "\n".join(lines)
