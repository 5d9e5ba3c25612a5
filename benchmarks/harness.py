"""A case -> its contenders -> a race -> a row.

A contender is one way to do the work of a case. All contenders of a case live in one process; each
is checked against ours, then they take turns in several rounds, and a row keeps the medians beside
the floor.
"""

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from timeit import Timer
from types import ModuleType

import numpy as np
import openbnns
from openbnns import bench
from openbnns.bench import Timing

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
BUILD = ROOT / "build" / "benchmarks"
PHASES = ("forward", "backward", "both")
PASSES = ("forward", "dx", "dw", "all")  # of layers with weights
OURS = "ours"
SEPARATE = "separate"  # our own layers one after the other, beside a fused one

Step = Callable[[], object]


def at_lines(*arrays: np.ndarray | None) -> list:
    """Copies of packed arrays that begin at a cache line, as the peers' own memory does; matrices
    of packed columns too."""
    return [None if array is None else _copy(array) for array in arrays]


def _copy(array: np.ndarray) -> np.ndarray:
    if not array.flags.c_contiguous:
        return _copy(array.T).T if array.flags.f_contiguous else array
    found = empty_like(array)
    found[...] = array
    return found


def empty_like(array: np.ndarray) -> np.ndarray:
    """An array of the same shape and type, at a cache line if `array` is packed."""
    if not array.flags.c_contiguous:
        return np.empty_like(array)
    return openbnns.empty(array.shape, array.dtype)


@dataclass(frozen=True)
class Contender:
    """One way to do the work of a case, everything it needs prepared.

    name: the peer, a space, the variant ("torch nhwc"). Backward may be repeated without another
    forward. result: y, dx and the other gradients (None without backward) as NumPy arrays in the
    case's own layout and order.
    """

    name: str
    forward: Step
    backward: Step | None
    result: Callable[[], tuple[np.ndarray | None, ...]]
    both: Step | None = None  # None: forward, then backward
    kept_bytes: int | None = None  # by forward for backward, the caller's arrays included

    def step(self, phase: str) -> Step | None:
        """What is timed in a phase; None when the contender cannot do it."""
        if phase == "forward":
            return self.forward
        if phase == "backward" or self.backward is None:
            return self.backward
        return self.both or self._one_after_the_other

    def _one_after_the_other(self) -> None:
        self.forward()
        self.backward()


@dataclass(frozen=True)
class Trainer:
    """The same for a layer with weights: three passes, timed one by one and together.

    result: y, dx and dw (None where there is no such pass).
    """

    name: str
    forward: Step
    input_gradient: Step | None
    weight_gradient: Step | None
    result: Callable[[], tuple[np.ndarray | None, ...]]
    both_gradients: Step | None = None  # None: one after the other
    both_gradients_and_forward: Step | None = None  # None: forward, then both gradients

    def step(self, phase: str) -> Step | None:
        if phase == "all" and self.input_gradient is not None:
            return self.both_gradients_and_forward or self._all
        steps = {"forward": self.forward, "dx": self.input_gradient, "dw": self.weight_gradient}
        return steps.get(phase)

    def _all(self) -> None:
        self.forward()
        if self.both_gradients is not None:
            self.both_gradients()
        else:
            self.input_gradient()
            self.weight_gradient()


@dataclass(frozen=True)
class Learner:
    """One way to train a network of a case, whose batches it holds as it likes them.

    restart: everything as it was before the first step. step: on the batch of that number; returns
    its loss, read by Python, as one who watches it does.
    """

    name: str
    restart: Step
    step: Callable[[int], float]
    tolerance: float = 1e-4  # of its losses; ROUGH where statistics of a batch are rough


ROUGH = 2e-3  # batch norms that sum thousands of values one by one in float32: 5e-4 off in y


@dataclass(frozen=True)
class Work:
    """What an ideal kernel does: bytes read, bytes written, vector operations times lanes."""

    read: int
    written: int
    operations: int
    calls: tuple["Work", ...] = ()  # of which each needs the results of the one before

    def __add__(self, other: "Work") -> "Work":
        return Work(
            self.read + other.read, self.written + other.written, self.operations + other.operations
        )


@dataclass(frozen=True)
class Entry:
    """A case of a family, ready to race; contenders are built only when its turn comes."""

    name: str
    works: dict[str, Work]  # by phase
    contenders: Callable[[], list[Contender] | list[Trainer]]  # ours first
    results: tuple[str, ...] = ("y", "dx", "dw")  # what a contender's result holds

    @classmethod
    def unary(
        cls,
        name: str,
        forward: Work,
        backward: Work,
        contenders: Callable[[], list[Contender]],
        results: tuple[str, ...] = ("y", "dx"),
    ) -> "Entry":
        """Of a layer whose gradients all come from one call."""
        works = (forward, backward, replace(forward + backward, calls=(forward, backward)))
        return cls(name, dict(zip(PHASES, works, strict=True)), contenders, results)

    @classmethod
    def weighted(
        cls,
        name: str,
        sizes: tuple[int, int, int],
        multiplications: int,
        contenders: Callable[[], list[Trainer]],
    ) -> "Entry":
        """Of a layer with weights; sizes: values of x, weights and y, 4 bytes each. Every pass
        reads two of the three and writes the third."""
        x, w, y = (4 * size for size in sizes)
        forward = Work(x + w, y, multiplications)
        dx, dw = Work(y + w, x, multiplications), Work(x + y, w, multiplications)
        works = (forward, dx, dw, forward + dx + dw)
        return cls(name, dict(zip(PASSES, works, strict=True)), contenders)


@dataclass(frozen=True)
class Run:
    """What one process is asked to do."""

    threads: int
    peers: dict[str, ModuleType]
    only: str = ""
    quick: bool = False
    compiled: bool = False  # torch.compile as one more contender

    def wants(self, family: str, name: str) -> bool:
        """Whether `--only` matches a case."""
        return re.search(self.only, f"{family} {name}") is not None

    @property
    def rounds(self) -> int:
        return 3 if self.quick else 9

    @property
    def slice_seconds(self) -> float:
        return 0.003 if self.quick else 0.05

    @property
    def pause_seconds(self) -> float:
        return 0.002 if self.quick else 0.02


@dataclass(frozen=True)
class Row:
    """One phase of one case at one thread count. Floors are seconds, None when not measured."""

    family: str
    case: str
    phase: str
    threads: int
    times: dict[str, Timing]
    byte_floor: float | None = None
    operation_floor: float | None = None
    kept_bytes: dict[str, int] = field(default_factory=dict)  # by contenders that tell it

    def as_json(self) -> dict:
        return asdict(self)

    @classmethod
    def from_json(cls, stored: dict) -> "Row":
        times = {name: Timing(**timing) for name, timing in stored["times"].items()}
        return cls(**{**stored, "times": times})

    @property
    def floor(self) -> float | None:
        if self.byte_floor is None:
            return None
        return max(self.byte_floor, self.operation_floor)

    def best_of(self, peer: str) -> tuple[str, Timing] | None:
        """The fastest variant of a peer and its timing."""
        mine = [(name, timing) for name, timing in self.times.items() if name.split()[0] == peer]
        return min(mine, key=lambda pair: pair[1].median, default=None)

    @property
    def best_peer(self) -> tuple[str, Timing] | None:
        mine = (OURS, SEPARATE)
        others = [(n, t) for n, t in self.times.items() if n.split()[0] not in mine]
        return min(others, key=lambda pair: pair[1].median, default=None)


# ---- racing ----


def check(
    contender: Contender | Trainer, ours: tuple[np.ndarray | None, ...], words: tuple[str, ...]
) -> None:
    """Raises when a contender's results are not ours: then it was set up for other work.

    The tolerance separates another function, layout or padding from another rounding; sums of many
    terms round in proportion to the largest of them.
    """
    for word, found, expected in zip(words, contender.result(), ours, strict=False):
        if found is not None and expected is not None:
            np.testing.assert_allclose(
                found,
                expected,
                rtol=1e-4,
                atol=2e-5 * max(1.0, float(np.abs(expected).max())),
                err_msg=f"{contender.name}: {word} not ours",
            )


def race(timers: dict[str, Timer], run: Run) -> dict[str, Timing]:
    """Times every contender in several rounds, as `openbnns bench` does."""
    return bench.race(timers, run.rounds, run.slice_seconds, run.pause_seconds)


def race_beside_floor(timers: dict[str, Timer], work: Work, run: Run) -> tuple:
    """The times, and the floors for bytes and for operations in seconds: of the former the median
    of a loop that runs in the same rounds, because memory is now faster, now slower. None without
    a compiler."""
    limits = ceilings(run.threads)
    if limits is None:
        return race(timers, run), None, None
    times = race({**timers, "floor": limits.loops(work)}, run)
    return times, times.pop("floor").median, work.operations / limits.fma


def race_entries(family: str, entries: list[Entry], run: Run) -> Iterator[Row]:
    """Rows of all phases of all entries that are wanted."""
    entries = [entry for entry in entries if run.wants(family, entry.name)]
    for entry in entries:
        yield from _race_entry(family, entry, run)


def _race_entry(family: str, entry: Entry, run: Run) -> Iterator[Row]:
    contenders = entry.contenders()
    ours = contenders[0].result()
    for contender in contenders[1:]:
        check(contender, ours, entry.results)
    kept = {c.name: c.kept_bytes for c in contenders if getattr(c, "kept_bytes", None)}
    for phase, work in entry.works.items():
        timers = {c.name: Timer(c.step(phase)) for c in contenders if c.step(phase)}
        raced = race_beside_floor(timers, work, run)
        yield Row(family, entry.name, phase, run.threads, *raced, kept)


# ---- floors ----


class Ceilings:
    """ceilings.cpp, running.

    fma: multiply-adds of one value each that this machine does in a second.
    """

    def __init__(self, program: Path, threads: int):
        # Threads that wait give their core away: it belongs to the next contender.
        environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
        self._process = subprocess.Popen(
            [program, str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.fma = float(self._process.stdout.readline())

    def loops(self, work: Work) -> "Loops":
        """The simplest loops that read and write what `work` does; they end with the next call."""
        self.ask(" ".join(["open", *(f"{w.read}:{w.written}" for w in work.calls or (work,))]))
        return Loops(self)

    def ask(self, line: str) -> str:
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline()


@dataclass(frozen=True)
class Loops:
    """Timed as a contender is."""

    of: Ceilings

    def timeit(self, number: int) -> float:
        return float(self.of.ask(f"run {number}"))


@cache
def ceilings(threads: int) -> Ceilings | None:
    """This machine with so many threads; None without a compiler."""
    program = build("ceilings.cpp", "ceilings", ["-O3", "-march=native", "-fopenmp"])
    return None if program is None else Ceilings(program, threads)


# ---- native helpers ----


def build(source: str, name: str, flags: list[str]) -> Path | None:
    """Compiles a source beside this file into build/benchmarks, once per source with its own
    headers, flags and CPU.

    None when there is no compiler; a source that does not compile raises.
    """
    compiler = shutil.which("gcc" if source.endswith(".c") else "g++")
    if compiler is None:
        return None
    path = HERE / source
    text = path.read_text()
    headers = re.findall(r'^#include "(.+)"$', text, re.MULTILINE)
    text += "".join((HERE / header).read_text() for header in headers)
    key = text + repr(flags) + cpu_name()
    target = BUILD / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
    if not target.exists():
        BUILD.mkdir(parents=True, exist_ok=True)
        standard = "-std=c11" if source.endswith(".c") else "-std=c++20"
        unfinished = target.with_suffix(".tmp")
        subprocess.run([compiler, standard, path, *flags, "-o", unfinished], check=True)
        unfinished.replace(target)
    return target


def cpu_name() -> str:
    """The processor as it calls itself."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


# ---- printing ----


def duration(seconds: float | None) -> str:
    """Three digits and a unit."""
    return "-" if seconds is None else bench.duration(seconds)


def factor(numerator: float, denominator: float | None) -> str:
    return "-" if not denominator else f"{numerator / denominator:.2f}x"


def header(peers: Iterable[str]) -> str:
    """The line above the rows. A peer's cell is its fastest variant and its time over ours."""
    words = [f"{'case':54}", f"{'phase':8}", "thr", f"{'ours':>8}", "spread"]
    words += [f"{peer:>17}" for peer in peers]
    words += [f"{'best/ours':>9}", f"{'bytes':>8}", f"{'ops':>8}", f"{'ours/floor':>10}"]
    words += ["best peer"]
    return "  ".join(words)


def line(row: Row, peers: Iterable[str]) -> str:
    """One row under that header."""
    best_ours = row.best_of(OURS)
    ours = best_ours[1] if best_ours else None
    words = [f"{row.case:54}", f"{row.phase:8}", f"{row.threads:3}"]
    words += [f"{duration(ours and ours.median):>8}", f"{_percent(ours):>6}"]
    for peer in peers:
        found = row.best_of(peer)
        ratio = f" ({factor(found[1].median, ours and ours.median)})" if found else ""
        words += [f"{duration(found and found[1].median) + ratio:>17}"]
    best = row.best_peer
    words += [f"{factor(best[1].median, ours and ours.median) if best else '-':>9}"]
    words += [f"{duration(row.byte_floor):>8}", f"{duration(row.operation_floor):>8}"]
    words += [f"{factor(ours.median, row.floor) if ours else '-':>10}"]
    words += [best[0] if best else "-"]
    separate = row.times.get(SEPARATE)
    if separate and ours:
        words += [f"{SEPARATE} {factor(separate.median, ours.median)}"]
    for name in (OURS, SEPARATE):
        if name in row.kept_bytes:
            words += [f"{name} keeps {row.kept_bytes[name] / 1e6:.3g} MB"]
    return "  ".join(words)


def _percent(timing: Timing | None) -> str:
    return "-" if timing is None else f"{100 * timing.spread:.0f}%"


def say(text: str) -> None:
    """Progress and remarks go beside the table, not into it."""
    print(text, file=sys.stderr, flush=True)
