"""Python threads that train a network each: what a step costs when one does, and when two do.

The phase "1 user" is one Python thread that computes on one core, "2 users" are two at once with
the library's own setting, on two cores. The time is of all steps together over their number, so
half of the one is the best there is for the other. First with ``train_step``, the same batch every
time; then, "-fit", with ``fit`` on as many shuffled batches. Only in processes of two threads.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from timeit import Timer

import numpy as np
import openbnns
from openbnns.blocks import Convolution, Dense, Pool

from benchmarks.harness import OURS, Row, Run, Timing, race

Train = Callable[[openbnns.Network], object]

CLASSES = 10
USERS = (1, 2)


def _mlp(units: list[int]) -> Callable[[], list]:
    return lambda: [*(Dense(n, "relu") for n in units), Dense(CLASSES)]


def _cnn() -> list:
    stages = [
        (Convolution(c, 3, padding=1, bias=False, normalization="batch", activation="relu"), Pool())
        for c in (16, 32)
    ]
    return [*(block for stage in stages for block in stage), Dense(CLASSES)]


# name: blocks, shape of a batch, steps that a thread does at a time
NETWORKS = {
    "mlp-32x64-32": (_mlp([32]), (32, 64), 500),
    "mlp-256x64-512-512": (_mlp([512, 512]), (256, 64), 4),
    "cnn-1x1x28x28": (_cnn, (1, 1, 28, 28), 100),
    "cnn-32x1x28x28": (_cnn, (32, 1, 28, 28), 10),
}


def rows(run: Run) -> Iterator[Row]:
    for name, (blocks, shape, steps) in NETWORKS.items():
        if run.threads < 2 or not run.wants("threads", name):
            continue
        for suffix, train in (("", _train_step(shape, steps)), ("-fit", _fit(shape, steps))):
            with ThreadPoolExecutor(max(USERS)) as pool:
                timers = {str(n): _timer(pool, blocks, shape[1:], train, n) for n in USERS}
                times = race(timers, run)
            for users in USERS:
                each = _per_step(times[str(users)], users * steps)
                phase = f"{users} user{'s' * (users > 1)}"
                yield Row("threads", name + suffix, phase, users, {OURS: each})
    openbnns.set_num_threads(run.threads)


def _train_step(shape: tuple[int, ...], steps: int) -> Train:
    x, labels = _samples(shape)

    def train(network: openbnns.Network) -> None:
        for _ in range(steps):
            network.train_step(x, labels)

    return train


def _fit(shape: tuple[int, ...], steps: int) -> Train:
    x, labels = _samples((steps * shape[0], *shape[1:]))
    return lambda network: network.fit(x, labels, batch_size=shape[0])


def _samples(shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    return random.standard_normal(shape, np.float32), random.integers(CLASSES, size=shape[0])


def _timer(
    pool: ThreadPoolExecutor,
    blocks: Callable[[], list],
    shape: tuple[int, ...],
    train: Train,
    users: int,
) -> Timer:
    """So many networks trained, each in a thread of its own."""
    networks = [openbnns.Network(blocks(), input=shape, seed=seed) for seed in range(users)]
    return Timer(
        lambda: list(pool.map(train, networks)), setup=lambda: openbnns.set_num_threads(users)
    )


def _per_step(timing: Timing, steps: int) -> Timing:
    return Timing(timing.median / steps, timing.best / steps, timing.spread)
