"""Random numbers: a million of each kind into `out=`. Peers draw other numbers from the same
distributions, so only mean and deviation are checked."""

from collections.abc import Callable, Iterator

import numpy as np
import openbnns

from benchmarks.harness import OURS, Contender, Entry, Row, Run, Work, race_entries

COUNT = 1_000_000
# Vector operations per value: a block of AES gives four values with 11 rounds; Box and Muller.
MOMENTS = {"uniform": (0.5, 12**-0.5), "normal": (0, 1), "integers": (499.5, 288.675)}
OPERATIONS = {"uniform": 4, "normal": 24, "integers": 4}


def rows(run: Run) -> Iterator[Row]:
    """One row per distribution that matches; the phase called forward is a fill."""
    return race_entries("random", [_entry(kind, run) for kind in OPERATIONS], run)


def _entry(kind: str, run: Run) -> Entry:
    work = {"forward": Work(0, 4 * COUNT, OPERATIONS[kind] * COUNT)}
    return Entry(f"{kind}-{COUNT}", work, lambda: _contenders(kind, run))


def _contenders(kind: str, run: Run) -> list[Contender]:
    found = [contender(kind, OURS, *_ours(kind, run.threads))]
    for peer in run.peers.values():
        found += [contender(kind, name, *steps) for name, steps in peer.random(kind, COUNT).items()]
    return found


def contender(
    kind: str, name: str, fill: Callable[[], object], array: Callable[[], np.ndarray]
) -> Contender:
    """Nothing is compared value by value; mean and deviation must be those of the distribution."""

    def result():
        fill()
        y = array().astype(np.float64)
        mean, deviation = MOMENTS[kind]
        if abs(y.mean() - mean) > 0.01 * deviation or abs(y.std() / deviation - 1) > 0.01:
            raise ValueError(f"{name}: {kind} with mean {y.mean()}, deviation {y.std()}")
        return None, None

    return Contender(name, fill, None, result)


def _ours(kind: str, threads: int) -> tuple[Callable[[], object], Callable[[], np.ndarray]]:
    rng = openbnns.RandomGenerator(1, num_threads=threads)
    y = np.empty(COUNT, np.int32 if kind == "integers" else np.float32)
    fills = {
        "uniform": lambda: rng.uniform(0, 1, out=y),
        "normal": lambda: rng.normal(0, 1, out=y),
        "integers": lambda: rng.integers(0, 1000, out=y),
    }
    return fills[kind], lambda: y
