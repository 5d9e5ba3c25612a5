"""Optimizers: one step of all parameters, a million values in one tensor and in fifty."""

from collections.abc import Iterator

import numpy as np
from cases.optimizer import LARGE, OptimizerCase

from benchmarks.harness import OURS, Contender, Entry, Row, Run, Work, race_entries

# Arrays read and written, vector operations per value (a division and a root count as 4 each).
WORK = {"adam": (4, 3, 16), "sgd": (3, 2, 2)}


def rows(run: Run) -> Iterator[Row]:
    """One row per case that matches; the phase called forward is a step."""
    return race_entries("optimizer", [_entry(case, run) for case in LARGE], run)


def _name(case: OptimizerCase) -> str:
    return f"{case.kind}-{case.values}-in-{len(case.shapes)}"


def _entry(case: OptimizerCase, run: Run) -> Entry:
    read, written, operations = (case.values * factor for factor in WORK[case.kind])
    work = {"forward": Work(4 * read, 4 * written, operations)}
    return Entry(_name(case), work, lambda: _contenders(case, run))


def _contenders(case: OptimizerCase, run: Run) -> list[Contender]:
    found = [_ours(case, run.threads)]
    for peer in run.peers.values():
        found += peer.optimizer(case)
    return found


def _ours(case: OptimizerCase, threads: int) -> Contender:
    gradients = case.gradients()

    def start():
        parameters = case.parameters()
        return parameters, case.optimizer().bind(parameters, num_threads=threads)

    def result():
        parameters, bound = start()
        bound.step(gradients)
        return np.concatenate(parameters), None

    _, moving = start()
    return Contender(OURS, lambda: moving.step(gradients), None, result)
