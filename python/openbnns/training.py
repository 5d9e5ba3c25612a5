"""Training of a ``Network``: batches, learning rates, when to stop, and what it looked like."""

from __future__ import annotations

import _thread
import contextlib
import importlib
import importlib.util
import math
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ._errors import ArgumentError, ArrayError, DTypeError
from ._spoken import FOREIGN, is_number, number, shown, spoken, truth, whole

if TYPE_CHECKING:
    from .network import Network

__all__ = [
    "Callback",
    "Checkpoint",
    "EarlyStopping",
    "History",
    "cosine",
    "exponential",
    "piecewise",
]

Batch: TypeAlias = "tuple[npt.NDArray[Any], npt.NDArray[Any]]"
Schedule: TypeAlias = "Callable[[int], float]"

_AHEAD = 2  # batches that are made while others are trained on
_WORTH_A_THREAD = 1 << 18  # bytes of a batch from which that pays
_AT_A_TIME = 0.002  # seconds of steps in one native call: so long Ctrl-C and progress wait
_MOST = 1000  # steps in one


# ---- learning rates: functions of the number of the step, from 0 ----


@spoken()
def cosine(rate: float, steps: int, *, warmup: int = 0, last: float = 0.0) -> Schedule:
    """From ``rate`` down to ``last`` along half a cosine, after a straight rise over ``warmup``.

    Examples:
        >>> from openbnns.training import cosine
        >>> rate = cosine(1.0, steps=10, warmup=2)
        >>> [round(rate(step), 2) for step in (0, 1, 2, 6, 10, 99)]
        [0.5, 1.0, 1.0, 0.5, 0.0, 0.0]
    """

    where = "cosine"
    rate, last = number(where, "rate", rate), number(where, "last", last)
    steps, warmup = whole(where, "steps", steps), whole(where, "warmup", warmup)

    def at(step: int) -> float:
        if step < warmup:
            return rate * (step + 1) / warmup
        share = min((step - warmup) / max(steps - warmup, 1), 1.0)
        return last + (rate - last) * 0.5 * (1 + math.cos(math.pi * share))

    return at


@spoken()
def exponential(rate: float, factor: float, *, every: int = 1) -> Schedule:
    """``rate`` times ``factor`` for each ``every`` steps that have passed.

    Examples:
        >>> from openbnns.training import exponential
        >>> exponential(1.0, 0.5, every=10)(25)
        0.25
    """
    where = "exponential"
    rate, factor = number(where, "rate", rate), number(where, "factor", factor)
    every = whole(where, "every", every, 1)
    return lambda step: float(rate * factor ** (step // every))


@spoken()
def piecewise(*pieces: tuple[int, float]) -> Schedule:
    """The rate of the last piece (first step, rate) that has begun.

    Examples:
        >>> from openbnns.training import piecewise
        >>> rate = piecewise((0, 0.01), (500, 0.001))
        >>> rate(499), rate(500)
        (0.01, 0.001)
    """
    ordered = sorted(
        (whole("piecewise", "pieces", first), number("piecewise", "pieces", rate))
        for first, rate in pieces
    )
    if not ordered or ordered[0][0] != 0:
        raise ArrayError("[piecewise] pieces: expected the first to begin at step 0")
    return lambda step: next(rate for first, rate in reversed(ordered) if first <= step)


# ---- what a run leaves ----


@dataclass
class History:
    """One row per epoch: loss, validation loss and accuracy, learning rate, seconds.

    Attributes:
        rows: a dictionary per epoch.
        losses: the loss of every step.
    """

    rows: list[dict[str, float]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)

    def __getitem__(self, name: str) -> list[float]:
        """A column, for example ``history["validation_loss"]``."""
        return [row[name] for row in self.rows]

    def __str__(self) -> str:
        if not self.rows:
            return "no epoch yet"
        names = list(self.rows[0])
        lines = ["  ".join(f"{name:>19}" for name in names)]
        lines += ["  ".join(f"{row[name]:19.6g}" for name in names) for row in self.rows]
        return "\n".join(lines)

    def plot(self, axes: Any = None) -> Any:
        """Draw the losses with matplotlib, which is imported here; returns its axes."""
        if axes is None:
            from matplotlib import pyplot

            axes = pyplot.figure().add_subplot()
        steps = np.arange(1, len(self.losses) + 1)
        axes.plot(steps, self.losses, linewidth=0.5, label="step")
        ends = np.linspace(0, len(self.losses), len(self.rows) + 1)[1:]
        for name in ("loss", "validation_loss"):
            if self.rows and name in self.rows[0]:
                axes.plot(ends, self[name], marker="o", label=name.replace("_", " "))
        axes.set_xlabel("step")
        axes.set_ylabel("loss")
        axes.legend()
        return axes


class Callback:
    """What ``fit`` calls on its way; derive from it and give what you need."""

    def on_start(self, network: Network) -> None:
        """Before the first step; the network is built."""

    def on_step(self, network: Network, step: int, loss: float) -> None:
        """After each step; steps count from 1."""

    def on_epoch(self, network: Network, history: History) -> bool | None:
        """After each epoch, whose row is the last of the history; True ends the training."""
        return None


class EarlyStopping(Callback):
    """Ends the training when a number has not become smaller for some epochs.

    Args:
        patience: epochs to wait.
        monitor: the column of the history; None is the validation loss, else the loss.
        restore: put the parameters of the best epoch back at the end.
    """

    def __init__(
        self, patience: int = 3, monitor: str | None = None, *, restore: bool = True
    ) -> None:
        self.patience = whole("EarlyStopping", "patience", patience)
        self.monitor, self.restore = monitor, restore
        self.best = math.inf
        self._waited = 0
        self._kept: dict[str, npt.NDArray[Any]] = {}

    def on_epoch(self, network: Network, history: History) -> bool:
        row = history.rows[-1]
        name = self.monitor
        if name is None:
            name = "validation_loss" if "validation_loss" in row else "loss"
        if not isinstance(name, str) or name not in row:
            raise ArgumentError(
                f"[EarlyStopping] monitor: expected one of {', '.join(row)}; got {shown(name)}"
            )
        if row[name] < self.best:
            self.best, self._waited = row[name], 0
            self._kept = {k: array.copy() for k, array in network.state().items()}
            return False
        self._waited += 1
        if self._waited < self.patience:
            return False
        if self.restore:
            network.load_state(self._kept)
        return True


class Checkpoint(Callback):
    """Saves the network and its optimizer's state before the first step, after every epoch, and
    every so many steps.

    The file is always whole: a run that is stopped in between, by Ctrl-C or otherwise, leaves the
    last one. ``Network.load(path, optimizer=…)`` goes on from there.

    Args:
        path: of the safetensors file.
        every: steps between two; None saves after epochs alone.
    """

    def __init__(self, path: str | os.PathLike[str], every: int | None = None) -> None:
        self.path = path
        self.every = None if every is None else whole("Checkpoint", "every", every, 1)

    def on_start(self, network: Network) -> None:
        network.save(self.path, optimizer=True)

    def on_step(self, network: Network, step: int, loss: float) -> None:
        if self.every is not None and step % self.every == 0:
            network.save(self.path, optimizer=True)

    def on_epoch(self, network: Network, history: History) -> None:
        network.save(self.path, optimizer=True)


# ---- batches ----


class _Samples:
    """The samples of an epoch in batches, the last one maybe smaller; shuffled if there is a
    generator."""

    def __init__(
        self,
        x: npt.NDArray[Any],
        y: npt.NDArray[Any],
        size: int,
        random: np.random.Generator | None,
    ) -> None:
        self._x, self._y, self.size = x, y, size
        self._order = None if random is None else random.permutation(len(x)).astype(np.int64)
        self.are_large = len(x) > 0 and x[:1].nbytes * size >= _WORTH_A_THREAD

    def batch(self, start: int) -> Batch:
        part = slice(start, start + self.size)
        if self._order is None:
            return self._x[part], self._y[part]
        # ascending inside a batch: the same set, and a memory map is read in one direction
        rows = np.sort(self._order[part])
        return self._x[rows], self._y[rows]

    def several(self, start: int, count: int) -> tuple[Any, Any, npt.NDArray[np.int64] | None]:
        """Arrays with the samples of so many batches: in order, or at these rows (count, size)."""
        part = slice(start, start + count * self.size)
        if self._order is None:
            return self._x[part], self._y[part], None
        return self._x, self._y, np.sort(self._order[part].reshape(count, self.size), axis=1)

    def __iter__(self) -> Generator[Batch, None, None]:
        """All batches. Large ones are gathered by a thread while others are trained on."""
        made = (self.batch(start) for start in range(0, len(self._x), self.size))
        return ahead(made) if self.are_large and self._order is not None else made


def ahead(made: Iterator[Batch]) -> Generator[Batch, None, None]:
    """The same batches, made by a thread some steps ahead. Its exceptions appear here."""
    # Ctrl-C may come between any two steps of Python code, such as queue.Queue and Thread are made
    # of, and leave their locks taken for ever. None comes inside of what is used here.
    wanted: queue.SimpleQueue[bool] = queue.SimpleQueue()
    ready: queue.SimpleQueue[Batch | BaseException | None] = queue.SimpleQueue()
    ended = threading.Lock()
    ended.acquire()

    def work() -> None:
        try:
            while wanted.get():
                ready.put(next(made, None))
        except BaseException as error:
            ready.put(error)
        ended.release()

    _thread.start_new_thread(work, ())
    try:
        for _ in range(_AHEAD):
            wanted.put(True)
        while (batch := ready.get()) is not None:
            if isinstance(batch, BaseException):
                raise batch
            wanted.put(True)
            yield batch
    finally:
        with contextlib.suppress(queue.Empty):  # those that nobody needs any more
            while True:
                wanted.get_nowait()
        wanted.put(False)
        ended.acquire()


# ---- the loop ----


def fit(
    network: Network,
    x: Any,
    y: Any,
    *,
    epochs: int,
    batch_size: int,
    validation: Batch | float | None,
    shuffle: bool,
    class_weights: Any,
    learning_rate: Schedule | None,
    callbacks: Iterable[Callback],
    micro_batches: int,
    seed: int,
    progress: bool,
) -> History:
    """See ``Network.fit``."""
    where, held = "Network.fit", None
    epochs, batch_size = whole(where, "epochs", epochs), whole(where, "batch_size", batch_size, 1)
    micro_batches = whole(where, "micro_batches", micro_batches, 1)
    shuffle, progress = truth(where, "shuffle", shuffle), truth(where, "progress", progress)
    if learning_rate is not None and not callable(learning_rate):
        raise ArgumentError(
            f"[{where}] learning_rate: expected a function of the step or None; "
            f"got {shown(learning_rate)}"
        )
    if y is not None:
        x, y = pair_of("x, y", x, y)
        x, y, held = _hold_out(x, y, validation, seed)
    elif isinstance(validation, tuple) and len(validation) == 2:
        held = pair_of("validation", *validation)
    elif validation is not None:
        raise ArrayError(
            f"[Network.fit] validation: expected (x, y) beside an iterator; got {shown(validation)}"
        )
    weights = None if class_weights is None else floats(where, "class_weights", class_weights)
    if weights is not None and weights.ndim != 1:
        raise ArgumentError(
            f"[{where}] class_weights: expected a number for each class; got {shown(class_weights)}"
        )
    history, listeners = History(), _listed(callbacks)
    steps = _Steps(network, listeners, learning_rate, weights, micro_batches)
    expected = None if y is None else -(-len(x) // batch_size)
    with _Bar(epochs, expected, progress) as bar:
        for epoch in range(epochs):
            start, total, samples, number = time.perf_counter(), 0.0, 0, 0
            generator = np.random.default_rng((seed, network.steps)) if shuffle else None
            with contextlib.closing(steps.epoch(x, y, batch_size, generator)) as made:
                for losses, size in made:
                    history.losses += losses
                    for loss in losses:
                        total += loss * size
                    samples += size * len(losses)
                    number += len(losses)
                    bar.step(epoch, number, losses[-1])
                    for listener in listeners:
                        listener.on_step(network, network.steps, losses[-1])
            if samples == 0:
                raise ArrayError("[Network.fit] x: expected at least one batch; got none")
            row = {"epoch": epoch + 1, "loss": total / samples}
            if held is not None:
                results = network.evaluate(*held)
                row |= {f"validation_{name}": value for name, value in results.items()}
            row["learning_rate"] = float(network.optimizer.learning_rate)
            row["seconds"] = time.perf_counter() - start
            history.rows.append(row)
            bar.epoch(row)
            answers = [listener.on_epoch(network, history) for listener in listeners]
            if True in answers:
                break
    return history


class _Steps:
    """How a run does its steps: one by one, or several in one native call, to the same bits."""

    def __init__(
        self,
        network: Network,
        listeners: list[Callback],
        learning_rate: Schedule | None,
        class_weights: npt.NDArray[np.float32] | None,
        micro_batches: int,
    ) -> None:
        self._network, self._listeners, self._learning_rate = network, listeners, learning_rate
        self._class_weights, self._micro_batches = class_weights, micro_batches
        self._is_plain = (
            class_weights is None
            and micro_batches == 1
            and all(type(listener).on_step is Callback.on_step for listener in listeners)
        )
        self._has_begun = False
        self._count = 1  # steps that take about _AT_A_TIME

    def epoch(
        self, x: Any, y: Any, size: int, random: np.random.Generator | None
    ) -> Generator[tuple[list[float], int], None, None]:
        """One more epoch; after one step or several their losses, and the samples of each."""
        if y is None:  # the caller's batches: a function is called, an iterable begun again
            batches = x() if callable(x) else x
            if not isinstance(batches, Iterable):
                raise ArgumentError(
                    "[Network.fit] x: expected samples with y, or batches (x, y) without; "
                    f"got {shown(x)}"
                )
            for batch in batches:
                if not isinstance(batch, (tuple, list)) or len(batch) != 2:
                    raise ArgumentError(
                        f"[Network.fit] x: expected batches (x, y); got {shown(batch)}"
                    )
                inputs, labels = pair_of("x, y", *batch)
                yield [self._one(inputs, labels)], len(inputs)
            return
        samples = _Samples(x, y, size, random)
        if self._is_plain and not samples.are_large:
            yield from self._several(samples, len(x))
            return
        with contextlib.closing(iter(samples)) as made:
            for inputs, labels in made:
                yield [self._one(inputs, labels)], len(inputs)

    def _one(self, inputs: Any, labels: Any) -> float:
        network = self._network
        if not self._has_begun:
            network._see(np.asarray(inputs))
            for listener in self._listeners:
                listener.on_start(network)
            self._has_begun = True
        if self._learning_rate is not None:
            network.optimizer.learning_rate = rate_at(self._learning_rate, network.steps)
        weights = None
        if self._class_weights is not None:
            has_numbers = labels.ndim == len(network.output_shape)
            weights = _sample_weights(labels, self._class_weights, has_numbers)
        return network.train_step(
            inputs, labels, weights=weights, micro_batches=self._micro_batches
        )

    def _several(
        self, samples: _Samples, total: int
    ) -> Generator[tuple[list[float], int], None, None]:
        """As many steps at a time as take a moment; one by one where the network cannot."""
        start, can = 0, True
        while start < total:
            begun = time.perf_counter()
            count = min(self._count, (total - start) // samples.size)
            losses = None
            if can and count > 1:
                given = samples.several(start, count)
                losses = self._network._several_steps(*given, count, self._learning_rate)
                can = losses is not None
            if losses is None:
                losses = [self._one(*samples.batch(start))]
            seconds = (time.perf_counter() - begun) / len(losses)
            self._count = max(1, min(int(_AT_A_TIME / seconds), _MOST))
            size = min(samples.size, total - start)
            start += size * len(losses)
            yield losses, size


def rate_at(schedule: Schedule, step: int) -> float:
    """What a schedule says, if it is a number."""
    rate = schedule(step)
    return number("Network.fit", f"learning_rate({step})", rate)


def floats(where: str, argument: str, value: Any) -> npt.NDArray[np.float32]:
    """Numbers as an array of float32."""
    try:
        return np.asarray(value, np.float32)
    except FOREIGN:
        raise ArgumentError(f"[{where}] {argument}: expected numbers; got {shown(value)}") from None


def _listed(callbacks: Iterable[Callback]) -> list[Callback]:
    listeners = list(callbacks) if isinstance(callbacks, Iterable) else [callbacks]
    for listener in listeners:
        if not isinstance(listener, Callback):
            raise ArgumentError(
                f"[Network.fit] callbacks: expected openbnns.training.Callback; "
                f"got {shown(listener)}"
            )
    return listeners


def array_of(where: str, argument: str, value: Any) -> npt.NDArray[Any]:
    """An array of numbers, or something that NumPy makes one of."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "fiub":
        return value
    try:
        made = np.asarray(value)
    except FOREIGN:
        made = np.empty(0, object)
    if made.dtype.kind not in "fiubV":
        raise DTypeError(f"[{where}] {argument}: expected an array of numbers; got {shown(value)}")
    return made


def pair_of(what: str, x: Any, y: Any) -> Batch:
    """Samples and labels as arrays, as many of one as of the other."""
    x, y = (array_of("Network", what, a) for a in (x, y))
    if x.ndim == 0 or y.ndim == 0 or len(x) != len(y):
        raise ArrayError(
            f"[Network] {what}: expected as many samples as labels; got {x.shape} and {y.shape}"
        )
    return x, y


def _hold_out(
    x: npt.NDArray[Any], y: npt.NDArray[Any], validation: Batch | float | None, seed: int
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], Batch | None]:
    """What is trained on, and what is held out for validation."""
    if validation is None:
        return x, y, None
    if isinstance(validation, tuple) and len(validation) == 2:
        return x, y, pair_of("validation", *validation)
    if not is_number(validation) or isinstance(validation, np.ndarray):
        raise ArgumentError(
            f"[Network.fit] validation: expected (x, y) or a share; got {shown(validation)}"
        )
    if not 0 < validation < 1 or int(len(x) * validation) == 0:
        raise ArrayError(
            "[Network.fit] validation: expected (x, y) or a share between 0 and 1 that leaves a "
            f"sample on both sides; got {validation!r} of {len(x)}"
        )
    order = np.random.default_rng((seed, 1 << 40)).permutation(len(x))
    cut = int(len(x) * validation)
    held, kept = np.sort(order[:cut]), np.sort(order[cut:])
    return x[kept], y[kept], (x[held], y[held])


def _sample_weights(
    labels: npt.NDArray[Any], class_weights: npt.NDArray[Any], has_numbers: bool
) -> npt.NDArray[np.float32]:
    """The weight of each class number, or of each row of zeros and ones."""
    classes = labels if has_numbers else labels.argmax(axis=-1)
    if classes.size and not 0 <= classes.min() <= classes.max() < len(class_weights):
        raise ArgumentError(
            f"[Network.fit] class_weights: expected one for each class; got {len(class_weights)} "
            f"for classes {classes.min()} to {classes.max()}"
        )
    return np.asarray(class_weights[classes.astype(np.int64)], np.float32)


class _Bar:
    """Progress on the error stream: rich's bar on a terminal if it is installed, and in any case a
    line per epoch."""

    def __init__(self, epochs: int, steps: int | None, wanted: bool) -> None:
        self._epochs, self._wanted = epochs, wanted
        self._bar: Any = None
        if wanted and sys.stderr.isatty() and importlib.util.find_spec("rich"):
            progress: Any = importlib.import_module("rich.progress")
            console: Any = importlib.import_module("rich.console").Console(stderr=True)
            columns = "{task.description}", progress.BarColumn(), "loss {task.fields[loss]:.4f}"
            self._bar = progress.Progress(*columns, console=console, transient=True)
            self._task = self._bar.add_task("epoch 1", total=steps, loss=math.nan)

    def __enter__(self) -> _Bar:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def step(self, epoch: int, number: int, loss: float) -> None:
        if self._bar is not None:
            name = f"epoch {epoch + 1}/{self._epochs}"
            self._bar.update(self._task, completed=number, loss=loss, description=name)

    def epoch(self, row: dict[str, float]) -> None:
        if not self._wanted:
            return
        shown = "  ".join(
            f"{name.replace('_', ' ')} {value:.4g}"
            for name, value in row.items()
            if name != "epoch"
        )
        line = f"epoch {int(row['epoch'])}/{self._epochs}  {shown}"
        if self._bar is not None:
            self._bar.console.print(line, highlight=False)
        else:
            print(line, file=sys.stderr, flush=True)
