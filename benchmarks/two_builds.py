"""What a change costs training steps: two installed builds of the library, taking turns.

    pip install --target before OLD_WHEEL; pip install --target after NEW_WHEEL
    python -m benchmarks.two_builds before after [--only NAME,NAME] [--rounds 3]

Every round starts a fresh process per build and number of threads, so that neither build sees the
other's memory or workers; the table has the best median of all rounds. The networks differ in what
they need: few channels, many, strides, windows of other sizes, depthwise layers, sums, one sample.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import openbnns
from openbnns.blocks import Block, Convolution, Dense, Pool
from openbnns.examples import digits

from benchmarks.networks import NETWORKS as USUAL

CLASSES = 10
SECONDS = 0.4  # for one network in one process
RANDOM = np.random.default_rng(0)
Step = Callable[[], object]


def stage(channels: int, kernel: int = 3, stride: int = 1, padding: int | None = None) -> Block:
    """Convolution, batch norm, ReLU."""
    return Convolution(
        channels,
        kernel,
        stride=stride,
        padding=kernel // 2 if padding is None else padding,
        bias=False,
        normalization="batch",
        activation="relu",
    )


def pooled(*stages: Block) -> list[Block]:
    return [block for one in stages for block in (one, Pool("max", 2))]


def network(blocks: list[Block], batch: int, shape: tuple[int, ...]) -> Step:
    made = openbnns.Network([*blocks, Dense(CLASSES)], input=shape, seed=1)
    x = RANDOM.standard_normal((batch, *shape), dtype=np.float32)
    labels = RANDOM.integers(CLASSES, size=batch)
    return lambda: made.train_step(x, labels)


def digit_program() -> Step:
    made, batch = digits.DigitNetwork(0), digits.make_batch(0, 0)
    return lambda: made.step(*batch)


def usual(name: str) -> Step:
    made, (batch,) = USUAL[name].network(1e-4), USUAL[name].batches(1)
    return lambda: made.train_step(*batch)


def chain(layers: list, x: np.ndarray) -> Step:
    """Layers one after the other, and their gradients back."""

    def step() -> None:
        values = [x]
        for layer in layers:
            values.append(layer.apply(values[-1], training=True))
        gradient = values[-1]
        for layer, before, after in zip(
            reversed(layers), values[-2::-1], values[:0:-1], strict=True
        ):
            gradient = layer.apply_backward(before, after, gradient).input

    return step


def separable(batch: int, channels: int, side: int) -> Step:
    """Depthwise and 1 x 1 convolutions in turn."""

    def pair(weights: np.ndarray, groups: int, padding: int) -> object:
        return openbnns.FusedParametersLayer(
            openbnns.FusedConvolutionParameters(weights, groups=groups, padding=padding),
            openbnns.FusedNormalizationParameters("batch", activation="relu"),
            input=(channels, side, side),
        )

    def values(*shape: int) -> np.ndarray:
        return RANDOM.standard_normal(shape, dtype=np.float32) / 20

    layers = []
    for _ in range(3):
        layers += [pair(values(channels, 1, 3, 3), channels, 1)]
        layers += [pair(values(channels, channels, 1, 1), 1, 0)]
    return chain(layers, values(batch, channels, side, side))


NETWORKS: dict[str, Callable[[], Step]] = {
    "digits": digit_program,
    "small cnn": lambda: network(pooled(stage(16), stage(32)), 32, (1, 28, 28)),
    "one image": lambda: network(pooled(stage(16), stage(32)), 1, (1, 28, 28)),
    "colour": lambda: network(pooled(stage(32), stage(64), stage(64)), 32, (3, 32, 32)),
    "7x7 stem": lambda: network(pooled(stage(32, 7, 2), stage(64)), 16, (3, 64, 64)),
    "5x5": lambda: network(pooled(stage(16, 5), stage(32, 5)), 64, (1, 28, 28)),
    "4x4 stride 2": lambda: network([stage(c, 4, 2, 1) for c in (64, 128, 256)], 16, (3, 64, 64)),
    "3x3 stride 2": lambda: network([stage(c, 3, 2) for c in (32, 64, 128)], 16, (3, 96, 96)),
    "one row": lambda: network([Dense(1024, "relu"), Dense(1024, "relu")], 1, (784,)),
    "separable 28": lambda: separable(16, 128, 28),
    "separable 12": lambda: separable(32, 96, 12),
    **{name: lambda name=name: usual(name) for name in USUAL},
}


def measure(names: list[str], threads: int) -> dict[str, float]:
    """Median seconds of a step, of the library this process has imported."""
    openbnns.set_num_threads(threads)
    found = {}
    for name in names:
        step, times = NETWORKS[name](), []
        for _ in range(3):
            step()
        until = time.perf_counter() + SECONDS
        while len(times) < 5 or time.perf_counter() < until:
            begin = time.perf_counter()
            step()
            times.append(time.perf_counter() - begin)
        found[name] = float(np.median(times))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", nargs="?")
    parser.add_argument("after", nargs="?")
    parser.add_argument("--only", default=",".join(NETWORKS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--measure", type=int, help="in a child: threads")
    given = parser.parse_args()
    names = given.only.split(",")
    if given.measure:
        print(json.dumps(measure(names, given.measure)))
        return
    best: dict[tuple[str, int, str], float] = {}
    for _ in range(given.rounds):
        for threads in given.threads:
            for build in (given.before, given.after):
                command = [sys.executable, "-m", "benchmarks.two_builds", "--only", given.only]
                path = os.pathsep.join([str(Path(build).resolve()), str(Path.cwd())])
                child = subprocess.run(
                    [*command, "--measure", str(threads)],
                    env={**os.environ, "PYTHONPATH": path},
                    capture_output=True,
                    text=True,
                    check=True,
                )
                for name, seconds in json.loads(child.stdout).items():
                    key = name, threads, build
                    best[key] = min(best.get(key, seconds), seconds)
    print(
        "network".ljust(16),
        *(f"{t} threads: before, after, ratio".rjust(36) for t in given.threads),
    )
    for name in names:
        cells = []
        for threads in given.threads:
            before, after = (best[name, threads, build] for build in (given.before, given.after))
            cells.append(f"{before * 1e6:.0f} us  {after * 1e6:.0f} us  {after / before:.2f}")
        print(name.ljust(16), *(cell.rjust(36) for cell in cells))


if __name__ == "__main__":
    main()
