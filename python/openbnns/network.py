"""Networks: what the layers are, and everything that follows from it.

blocks ── build ──> names, shapes, parameters
batch size ── Plan ──> one arena; forward and backward as lists of calls
train_step ──> forward, loss with gradient, backward, optimizer
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import isfinite
from threading import get_ident
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from . import _core
from . import blocks as _blocks
from . import training as _training
from ._errors import (
    ArgumentError,
    ArrayError,
    BNNSError,
    CheckpointError,
    DTypeError,
    LayerApplyError,
    LayerCreationError,
    TrainingError,
)
from ._plan import Bound, Each, Fork, Plan, Stage, merged
from ._spec import MAX_RANK
from ._spoken import is_whole, misfit, shown, truth, whole
from ._turn import Turn
from .blocks import Block, Branch, Convolution, Flatten, Pool, Rows, Shape
from .io import Checkpoint, decoded, save_checkpoint, shortened
from .loss import Loss, LossLayer, LossLike
from .optim import AdamOptimizer, Optimizer
from .training import History

if TYPE_CHECKING:
    import os

    from ._spec import Array
    from .optim import BoundOptimizer

_FORMAT = "openbnns.Network 1"
_MOST_WORDS = 1 << 20  # characters of a network's description in a file
_MOST_DEPTH = 32  # branches in branches in a file
_MOST_BLOCKS = 4096  # in a file: each may hold some kilobytes of native memory without parameters
_PLANS = 8  # batch sizes whose plans are kept
_FLOAT32 = np.dtype(np.float32)


class _Pending(NamedTuple):
    """A training forward call whose gradients can be had."""

    plan: Plan
    thread: int
    is_contested: bool  # it came before another thread had had the gradients of its own


class Network:
    """Blocks in a row, branches among them, with their parameters, loss and optimizer.

    Shapes follow from the first input. All arrays of a step lie in one arena that is planned once
    per batch size; after that a step allocates nothing.

    Threads may share a network. ``predict``, ``evaluate`` and ``forward`` are done one after the
    other; what trains or changes it (``fit``, ``train_step``, ``forward(training=True)``,
    ``backward``, ``load_state``, ``freeze``) raises ``LayerApplyError`` when it meets a call of
    another thread, and so does a call that meets it.

    Args:
        blocks: see ``openbnns.blocks``.
        input: shape of one sample, (C, H, W) or (inputs,); None takes it from the first batch.
        loss: name or ``Loss``, of which the mean is minimised.
        optimizer: None is ``AdamOptimizer()``.
        seed: of the first parameters and of the order of samples in ``fit``.

    Attributes:
        blocks, loss, optimizer, seed: as given.
        steps: number of training steps so far.

    Raises:
        LayerCreationError: the blocks do not fit together.

    Examples:
        >>> import numpy as np, openbnns
        >>> from openbnns.blocks import Dense
        >>> network = openbnns.Network([Dense(16, "tanh"), Dense(1)], loss="mse",
        ...     optimizer=openbnns.AdamOptimizer(0.01))
        >>> x = np.linspace(-1, 1, 64, dtype="f4")[:, None]
        >>> history = network.fit(x, x**2, epochs=200, batch_size=16)
        >>> bool(abs(network.predict(x) - x**2).max() < 0.1)
        True
    """

    def __init__(
        self,
        blocks: Sequence[Block],
        *,
        input: Sequence[int] | None = None,
        loss: LossLike = "softmax_cross_entropy",
        optimizer: Optimizer | None = None,
        seed: int = 0,
    ) -> None:
        self.blocks = _listed(blocks)
        self.loss = Loss.of(loss, "Network")
        self.optimizer: Any = AdamOptimizer() if optimizer is None else optimizer
        if not isinstance(self.optimizer, Optimizer):
            raise ArgumentError(
                f"[Network] optimizer: expected an Optimizer or None; got {shown(optimizer)}"
            )
        self.seed = whole("Network", "seed", seed)
        self.steps = 0
        self._input_shape: Shape | None = None
        self._stages: list[Stage | Fork | Each] = []
        self._frozen: set[str] = set()
        self._plans: dict[tuple[int, bool, bool], Plan] = {}
        self._turn = Turn("Network")
        self._pending: _Pending | None = None
        if input is not None:
            self._build(_sample_shape(input))

    # ---- building ----

    def _build(
        self, shape: Shape, stored: Mapping[str, Any] | None = None, frozen: Iterable[str] = ()
    ) -> None:
        """Parameters and layers for samples of a shape. ``stored``: what a file has, by name, with
        shapes and types that are compared before anything is made; ``frozen``: what it says so."""
        self._input_shape = shape
        self._stages = _Builder(self.seed, stored).sequence(self.blocks, shape)
        if not any(not isinstance(stage.block, Flatten) for stage in self._each()):
            raise LayerCreationError("[Network] blocks: expected one that computes; got none")
        last = self._stages[-1]
        self._output_shape = last.output
        # what the loss calls a sample: a result, or each row of one
        self._rows = last.rows if isinstance(last, Each) else None
        compared = self._output_shape[1:] if isinstance(last, Each) else self._output_shape
        self._loss_layer = LossLayer(self.loss, input=compared)
        self._loss_value = np.zeros((), np.float32)
        self._frozen = set(frozen)
        if not self._frozen <= self.parameters().keys():
            raise LayerCreationError("frozen: expected names of parameters; got others")
        self._rebind()

    def _rebind(self) -> None:
        """Gradients, optimizer and plans anew: what is trained has changed."""
        trained = {k: p for k, p in self.parameters().items() if k not in self._frozen}
        self._gradients = {k: np.zeros(p.shape, p.dtype) for k, p in trained.items()}  # untouched
        self._gradient_list = list(self._gradients.values())
        self._bound: BoundOptimizer | None = None
        self._fields, self._update = bytearray(), None
        if trained:
            self._bound = self.optimizer.bind(list(trained.values()))
            self._fields, self._update = self._bound._fixed_step(self._gradient_list)
        self._plans.clear()

    def _each(self, stages: list[Stage | Fork | Each] | None = None) -> Iterator[Stage]:
        """Every block with its name, in order."""
        for stage in self._stages if stages is None else stages:
            if isinstance(stage, Fork):
                for path in stage.paths:
                    yield from self._each(path)
            elif isinstance(stage, Each):
                yield from self._each(stage.stages)
            else:
                yield stage

    def _built(self) -> None:
        if self._input_shape is None:
            raise LayerCreationError(
                "[Network] input: expected the shape of a sample, or a first batch; got neither"
            )

    def _plan(self, batch: int, training: bool, input_gradient: bool = False) -> Plan:
        self._built()
        assert self._input_shape is not None
        batch = whole("Network", "batch", batch)
        key = batch, training, input_gradient
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) == _PLANS:
                del self._plans[next(iter(self._plans))]
            plan = self._plans[key] = Plan(
                self._stages,
                self._input_shape,
                batch,
                self._gradients_of if training else None,
                input_gradient,
            )
            plan.results = self._compared(plan.output)
            if training:
                plan.results_gradient = self._compared(plan.output_gradient)
        return plan

    def _compared(self, results: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Results as the loss sees them: (samples, *shape of one)."""
        samples = len(results) * (self._rows or 1)
        return results.reshape(samples, *self._loss_layer.input_spec.shape)

    def _gradients_of(self, block: str) -> dict[str, npt.NDArray[Any]]:
        start = len(block) + 1
        return {k[start:]: g for k, g in self._gradients.items() if k.startswith(f"{block}.")}

    # ---- what it has ----

    @property
    def input_shape(self) -> Shape | None:
        """Shape of one sample; None before the first batch is seen."""
        return self._input_shape

    @property
    def output_shape(self) -> Shape:
        """Shape of one result."""
        self._built()
        return self._output_shape

    def parameters(self) -> dict[str, npt.NDArray[np.float32]]:
        """What training changes, by ``"block.parameter"``: the arrays themselves, not copies."""
        self._built()
        return {
            f"{stage.name}.{name}": array
            for stage in self._each()
            for name, array in stage.block.parameters.items()
        }

    def gradients(self) -> dict[str, npt.NDArray[np.float32]]:
        """The gradients of the last ``backward`` or ``train_step``, by the same names; not of what
        is frozen. They are overwritten by the next call."""
        self._built()
        return dict(self._gradients)

    def state(self) -> dict[str, npt.NDArray[np.float32]]:
        """Parameters and running statistics: all that inference needs."""
        statistics = {
            f"{stage.name}.{name}": array
            for stage in self._each()
            for name, array in stage.block.statistics.items()
        }
        return {**self.parameters(), **statistics}

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Copy values into parameters and statistics.

        Args:
            state: as ``state`` gives it.

        Raises:
            ArrayError: an entry is missing, not known, or of another shape; then nothing changed.
        """
        own, where = self.state(), "Network.load_state"
        if not isinstance(state, Mapping) or own.keys() != state.keys():
            raise ArrayError(
                f"[{where}] state: expected the entries {sorted(own)}; "
                f"got {sorted(map(str, state)) if isinstance(state, Mapping) else shown(state)}"
            )
        arrays = {
            name: _training.array_of(where, f"state[{name!r}]", value)
            for name, value in state.items()
        }
        for name, array in arrays.items():
            if array.shape != own[name].shape:
                raise ArrayError(
                    f"[Network.load_state] state[{name!r}]: expected {own[name].shape}; "
                    f"got {array.shape}"
                )
            if not np.can_cast(array.dtype, own[name].dtype, "same_kind"):
                raise DTypeError(
                    f"[Network.load_state] state[{name!r}]: expected {own[name].dtype}; "
                    f"got {array.dtype}"
                )
        with self._turn.alone:
            for name, array in arrays.items():
                own[name][...] = array

    def freeze(self, *names: str) -> None:
        """Leave parameters as they are from now on; the optimizer begins anew for the others.

        Args:
            names: of blocks or parameters: ``"dense_1"``, ``"dense_1.weights"``. None at all frees
                everything again.

        Raises:
            LayerCreationError: there is no such name.
        """
        known = self.parameters()
        frozen: set[str] = set()
        for name in names:
            found: set[str] = set()
            if isinstance(name, str):
                found = {key for key in known if key == name or key.startswith(f"{name}.")}
            if not found:
                raise LayerCreationError(
                    f"[Network.freeze] names: expected some of {', '.join(known)}; "
                    f"got {shown(name)}"
                )
            frozen |= found
        with self._turn.alone:
            self._frozen, self._pending = frozen, None
            self._rebind()

    def summary(self, batch: int = 32) -> str:
        """A table of blocks, shapes and parameters, and the memory a training step holds.

        Args:
            batch: number of samples the memory is said for.
        """
        self._built()
        assert self._input_shape is not None
        rows = [("block", "result", "parameters"), ("input", str(self._input_shape), "")]
        for stage in self._each():
            if stage.input == stage.output and isinstance(stage.block, Flatten):
                continue
            count = sum(array.size for array in stage.block.parameters.values())
            frozen = any(f"{stage.name}.{p}" in self._frozen for p in stage.block.parameters)
            rows.append((stage.name, str(stage.output), f"{count:,}" + " frozen" * frozen))
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        lines = [f"{a:{widths[0]}}  {b:{widths[1]}}  {c:>{widths[2]}}".rstrip() for a, b, c in rows]
        total = sum(array.size for array in self.parameters().values())
        held = self.plan(batch).nbytes
        return "\n".join(
            [*lines, f"{total:,} parameters; a step of {batch} samples works in {held:,} bytes"]
        )

    def plan(self, batch: int, *, training: bool = True) -> Plan:
        """The memory plan for a batch size, to be printed."""
        with self._turn.shared:
            return self._plan(batch, truth("Network.plan", "training", training))

    # ---- calls ----

    def forward(self, x: Array, *, training: bool = False) -> npt.NDArray[np.float32]:
        """The result for a batch, kept for ``backward`` when training.

        Args:
            x: (N, *input shape), of any type that becomes float32; it is copied into the arena.
            training: batch statistics are used and running ones updated.

        Returns:
            (N, *output shape), a new array; when training it lies in the arena and is valid until
            the next training call.
        """
        if truth("Network.forward", "training", training):
            return self._forward(x).plan.output  # type: ignore[no-any-return]
        with self._turn.shared:
            return self._infer(x).copy()

    def _infer(self, x: Array) -> npt.NDArray[np.float32]:
        """The result in the arena; the turn is the caller's."""
        plan = self._load(x, training=False)
        plan.forward()
        return plan.output  # type: ignore[no-any-return]

    def _forward(self, x: Array) -> _Pending:
        """A training call, to be handed to ``_backward``."""
        with self._turn.alone:
            thread, last, self._pending = get_ident(), self._pending, None
            plan = self._load(x, training=True, input_gradient=True)
            plan.forward()
            contested = last is not None and (last.is_contested or last.thread != thread)
            self._pending = _Pending(plan, thread, contested)
            return self._pending

    def backward(self, grad_output: Array) -> npt.NDArray[np.float32]:
        """The gradients of the last ``forward(training=True)``.

        Args:
            grad_output: (N, *output shape), the gradient of the result.

        Returns:
            The gradient of the input, (N, *input shape), valid until the next call; those of the
            parameters are in ``gradients()``.
        """
        self._built()
        pending = self._pending
        if pending is None:
            raise ArrayError(
                "[Network.backward] grad_output: expected the gradient of the last training "
                "forward's result; got one without forward(training=True) as the last such call"
            )
        if pending.is_contested and pending.thread != get_ident():
            raise LayerApplyError(
                "[Network.backward] threads: expected the last training call to be this thread's; "
                "got that of another one"
            )
        return self._backward(pending, grad_output)

    def _backward(self, pending: _Pending, grad_output: Array) -> npt.NDArray[np.float32]:
        """The gradients of a training call, as long as it is the last one."""
        where, plan = "Network.backward", pending.plan
        grad = _training.array_of(where, "grad_output", grad_output)
        if grad.shape != plan.output.shape:
            raise ArrayError(
                f"[{where}] grad_output: expected {plan.output.shape}, the shape of the last "
                f"training forward's result; got {grad.shape}"
            )
        with self._turn.alone:
            if self._pending is not pending:
                raise LayerApplyError(
                    "[Network.backward] expected the gradients of the last training call; got "
                    "those of an earlier one, whose values are gone"
                )
            self._pending = None
            plan.output_gradient[...] = grad
            plan.backward()
            return plan.input_gradient  # type: ignore[no-any-return]

    def train_step(
        self,
        x: Array,
        labels: Array,
        *,
        weights: Array | float | None = None,
        micro_batches: int = 1,
    ) -> float:
        """One step of training on a batch.

        Args:
            x: (N, *input shape), of any type that becomes float32.
            labels: of the result's shape; class numbers (N,) for losses that compare classes, and
                (N, rows) behind ``Rows``.
            weights: of the samples, (N,), or None; behind ``Rows`` also (N, rows).
            micro_batches: cut the batch in so many equal parts and add their gradients up: the
                same step, less memory. Batch norms see the parts.

        Returns:
            The loss before the step.

        Raises:
            ArrayError: an array does not fit.
            TrainingError: the loss is not finite; parameters are as before.
        """
        micro_batches = whole("Network.train_step", "micro_batches", micro_batches, 1)
        if weights is not None and not isinstance(weights, (int, float)):
            weights = _training.array_of("Network.train_step", "weights", weights)
        with self._turn.alone:
            self._pending = None
            if micro_batches == 1 and weights is None:
                loss = self._whole_step(x, labels)
            else:
                if micro_batches == 1:
                    loss = self._differentiate(x, labels, weights)
                else:
                    loss = self._add_up(x, labels, weights, micro_batches)
                if self._bound is not None:
                    self._bound.step(self._gradient_list)
            self.steps += 1
            return loss

    def fit(
        self,
        x: Any,
        y: Any = None,
        *,
        epochs: int = 1,
        batch_size: int = 32,
        validation: tuple[Any, Any] | float | None = None,
        shuffle: bool = True,
        class_weights: Sequence[float] | None = None,
        learning_rate: Callable[[int], float] | None = None,
        callbacks: Iterable[_training.Callback] = (),
        micro_batches: int = 1,
        progress: bool = False,
    ) -> History:
        """Train on arrays, memory maps, or whatever yields batches.

        The steps are those of ``train_step``, to the same bits. Small ones on float32 arrays are
        done several at a time, for two milliseconds, by one native call that other Python threads
        run beside; not if a callback has ``on_step``, or a block is not the library's own.

        Args:
            x: samples (N, …); or, without y, an iterable of batches (x, y), or a function that
                makes one for each epoch.
            y: labels (N, …).
            epochs: how often to go through all samples.
            batch_size: samples per step.
            validation: (x, y), or the share of the samples to hold out.
            shuffle: a new order in every epoch; it follows from seed and steps.
            class_weights: the weight of each class in the loss.
            learning_rate: function of the step (from 0) and nothing else, as it may be asked some
                steps ahead, see ``openbnns.training``; None leaves the optimizer's.
            callbacks: see ``openbnns.training.Callback``.
            micro_batches: see ``train_step``.
            progress: say how it goes on the error stream.

        Returns:
            What it was like, as a ``History``.

        Raises:
            ArrayError: an array does not fit.
            TrainingError: data or loss are not finite.
        """
        with self._turn.alone:
            self._pending = None
            return _training.fit(
                self,
                x,
                y,
                epochs=epochs,
                batch_size=batch_size,
                validation=validation,
                shuffle=shuffle,
                class_weights=class_weights,
                learning_rate=learning_rate,
                callbacks=callbacks,
                micro_batches=micro_batches,
                seed=self.seed,
                progress=progress,
            )

    def predict(self, x: Array, *, batch_size: int = 256) -> npt.NDArray[np.float32]:
        """The results for any number of samples: a new array (N, *output shape)."""
        samples = _training.array_of("Network.predict", "x", x)
        batch_size = whole("Network.predict", "batch_size", batch_size, 1)
        with self._turn.shared:
            self._see(samples)
            out = np.empty((len(samples), *self._output_shape), np.float32)
            for start in range(0, len(samples), batch_size):
                part = samples[start : start + batch_size]
                out[start : start + len(part)] = self._infer(part)
        return out

    def evaluate(self, x: Array, y: Array, *, batch_size: int = 256) -> dict[str, float]:
        """The mean loss over all samples, and for classes the share read correctly.

        Returns:
            ``{"loss": …}``, and ``"accuracy"`` for softmax and categorical cross-entropy.
        """
        x, y = _training.pair_of("x, y", x, y)
        with self._turn.shared:
            results = self._compared(self.predict(x, batch_size=batch_size))
            labels = self._labels(results, y)
            found = {"loss": float(self._loss_layer.apply(results, labels))}
        if self.loss.name in ("softmax_cross_entropy", "categorical_cross_entropy"):
            classes = labels if labels.ndim == 1 else labels.argmax(axis=1)
            found["accuracy"] = float((results.argmax(axis=1) == classes).mean())
        return found

    # ---- files ----

    def save(self, path: str | os.PathLike[str], *, optimizer: bool = False) -> None:
        """Write parameters, statistics and architecture to a safetensors file, all at once.

        Args:
            path: where.
            optimizer: keep the state of the optimizer too, so that training can go on to the same
                bits.

        Raises:
            CheckpointError: the file cannot be written; what was there is untouched.
            LayerCreationError: a block has settings that are not plain values.
        """
        self._built()
        _require_few(self.blocks)
        with self._turn.shared:
            arrays: dict[str, Any] = dict(self.state())
            if truth("Network.save", "optimizer", optimizer) and self._bound is not None:
                arrays |= {f"optimizer/{k}": v for k, v in self._bound.state_dict().items()}
            about = {
                "input": self._input_shape,
                "loss": self.loss.name,
                "parameter": self.loss.parameter,
                "seed": self.seed,
                "steps": self.steps,
                "frozen": sorted(self._frozen),
                "blocks": _described(self.blocks),
            }
            try:
                words = json.dumps(about, allow_nan=False)
                if len(words) > _MOST_WORDS:
                    raise ValueError(f"description of {len(words)} characters")
            except (TypeError, ValueError) as error:
                raise LayerCreationError(
                    "[Network.save] expected settings that are plain finite values, in at most "
                    f"{_MOST_WORDS} characters; got {error}"
                ) from error
            save_checkpoint(path, arrays, {"format": _FORMAT, "network": words})

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        optimizer: Optimizer | None = None,
        blocks: Iterable[type[Block]] = (),
    ) -> Network:
        """Read a network that ``save`` wrote. Nothing in the file is executed.

        Args:
            path: the file.
            optimizer: to go on training with; takes its state from the file if that has one.
            blocks: classes of your own that occur in it.

        Raises:
            CheckpointError: it is not such a file, or it is not whole.
        """
        with Checkpoint(path) as file:
            if file.notes.get("format") != _FORMAT:
                got = shortened(repr(file.notes.get("format")))
                raise CheckpointError(f"[Network.load] {path}: expected {_FORMAT}; got {got}")
            try:
                known = {block.__name__: block for block in blocks}
                with np.errstate(all="ignore"):
                    return cls._from_file(file, optimizer, known)
            except Exception as error:  # of whatever kind: the file has chosen what happened
                message = f"[Network.load] {path}: not a network: {shortened(error)}"
                raise CheckpointError(message) from error

    @classmethod
    def _from_file(
        cls, file: Checkpoint, optimizer: Optimizer | None, known: Mapping[str, Any]
    ) -> Network:
        """Build what a file describes. No memory is taken for arrays that it does not have."""
        if len(file.notes["network"]) > _MOST_WORDS:
            raise LayerCreationError(f"expected a description of at most {_MOST_WORDS} characters")
        about = decoded(file.notes["network"])
        loss, shape, steps, seed = (about[key] for key in ("loss", "input", "steps", "seed"))
        if loss in ("huber", "sigmoid_cross_entropy", "softmax_cross_entropy"):
            loss = getattr(Loss, loss)(about["parameter"])
        if not isinstance(shape, list) or not 1 <= len(shape) <= MAX_RANK:
            raise LayerCreationError(f"input: expected a shape; got {shape!r}")
        _blocks.require_extents("input", shape)
        for word, value in (("steps", steps), ("seed", seed)):
            if type(value) is not int or value < 0:
                raise LayerCreationError(f"{word}: expected a whole number; got {value!r}")
        blocks = _parsed(about["blocks"], known)
        _require_few(blocks)
        network = cls(blocks, loss=loss, optimizer=optimizer, seed=seed)
        network.steps = steps
        arrays = {k: e for k, e in file.entries.items() if not k.startswith("optimizer/")}
        network._build(tuple(shape), arrays, about["frozen"])
        own = network.state()
        if own.keys() != arrays.keys():
            raise ArrayError(f"expected the entries {sorted(own)}; got {sorted(arrays)}")
        for name, array in own.items():
            file.read_into(name, array)
        kept = {k[10:]: k for k in file.entries if k.startswith("optimizer/")}
        if kept and optimizer is not None and network._bound is not None:
            time_step = np.zeros((), np.int64)
            expected = {"time_step": time_step, **network._bound._named()}
            if expected.keys() != kept.keys():
                raise ArrayError(f"expected the entries {sorted(expected)}; got {sorted(kept)}")
            for name, array in expected.items():
                file.read_into(kept[name], array)
            network._bound._go_on(time_step)
        return network

    def close(self) -> None:
        """Let all native layers go; nothing runs afterwards."""
        self._plans.clear()
        for stage in self._each():
            stage.block.close()

    # ---- a step ----

    def _see(self, samples: npt.NDArray[Any]) -> None:
        """Build for the first batch; check the shape of any."""
        if self._input_shape is None and samples.ndim > 1:
            self._build(_sample_shape(samples.shape[1:]))
        if samples.ndim == 0 or samples.shape[1:] != self._input_shape:
            expected = ", ".join(map(str, self._input_shape or ("…",)))
            raise ArrayError(f"[Network] x: expected (N, {expected}); got {samples.shape}")

    def _load(self, x: Array, training: bool, input_gradient: bool = False) -> Plan:
        """The plan for a batch, the batch in it."""
        samples = x if isinstance(x, np.ndarray) else _training.array_of("Network", "x", x)
        if samples.shape[1:] != self._input_shape or not samples.ndim:
            self._see(samples)
        plan = self._plan(len(samples), training, input_gradient)
        if not _core.copy_packed(plan.input, samples):
            if samples.dtype.kind not in "iufbV":
                raise DTypeError(f"[Network] x: expected numbers; got {samples.dtype}")
            np.copyto(plan.input, samples, casting="unsafe")
        return plan

    def _labels(self, results: npt.NDArray[Any], labels: Array) -> npt.NDArray[Any]:
        """Labels as the loss takes them: class numbers, or float32 of the result's shape."""
        array = _training.array_of("Network", "labels", labels)
        if self._rows is not None and array.ndim == 2 and array.size == len(results):
            array = array.reshape(-1)
        if array.dtype.kind in "iu" and array.ndim == 1 and self.loss.is_per_sample:
            return array
        if array.dtype != _FLOAT32:
            array = array.astype(np.float32)
        if array.shape != results.shape and array.size == results.size:
            array = array.reshape(results.shape)
        return array

    def _whole_step(self, x: Array, labels: Array) -> float:
        """A step as few calls: all that is native runs without Python in between."""
        plan = self._load(x, training=True)
        given = self._labels(plan.results, labels)
        target, calls = plan.steps.get(given.dtype) or self._record(plan, given)
        if given.shape != target.shape:
            self._loss_layer.apply(plan.results, given)  # has the words for it
        target[...] = given
        if self._bound is not None:
            self._fields[:] = self._bound._numbers()[1]
        try:
            for call in calls:
                call()
        except TrainingError:
            loss = float(self._loss_value)
            if isfinite(loss):
                raise
            raise self._not_finite(x, labels, loss) from None
        if self._bound is not None:
            self._bound.time_step += 1
        return float(self._loss_value)

    def _several_steps(
        self,
        x: Any,
        y: Any,
        rows: npt.NDArray[np.int64] | None,
        count: int,
        learning_rate: _training.Schedule | None,
    ) -> list[float] | None:
        """Steps in one native call, to the bits of so many calls of ``train_step``.

        Args:
            x, y: arrays that have the samples and labels.
            rows: (count, N) where those of each batch are; None: one after the other.

        Returns:
            The losses; None, and nothing has happened, where a step is not one native call or
            reads arrays in other ways. A step that fails is done again by itself, to say why.
        """
        size = len(x) // count if rows is None else rows.shape[1]
        found = self._program(x, y, size)
        if found is None:
            return None
        plan, target, program = found
        rates, numbers = [], []
        for step in range(count):
            if learning_rate is not None:
                self.optimizer.learning_rate = _training.rate_at(learning_rate, self.steps + step)
                rates.append(self.optimizer.learning_rate)
            if self._bound is not None:
                numbers.append(self._bound._numbers(step)[1])
        losses = np.empty(count, np.float32)
        done = _core.repeat(
            program,
            count,
            [(plan.input, x, rows), (target, y, rows), (self._fields, b"".join(numbers), None)],
            self._loss_value,
            losses,
        )
        self.steps += done
        if self._bound is not None:
            self._bound.time_step += done
        made: list[float] = losses[:done].tolist()
        if done < count:
            if learning_rate is not None:
                self.optimizer.learning_rate = rates[done]
            part = slice(done * size, done * size + size) if rows is None else rows[done]
            made.append(self.train_step(x[part], y[part]))
        return made

    def _program(
        self, x: npt.NDArray[Any], y: npt.NDArray[Any], size: int
    ) -> tuple[Plan, npt.NDArray[Any], _core.Program] | None:
        """The step that was recorded for batches of such samples, if it is one native call that
        can have them as they are: plan, place of the labels, call."""
        plan = self._plans.get((size, True, False))
        if plan is None or type(self).train_step is not Network.train_step:
            return None
        if any(type(a) is not np.ndarray or not a.flags.c_contiguous for a in (x, y)):
            return None  # memory maps too: reading them may take long
        labels = self._labels(plan.results, y[:size])
        if x.dtype != _FLOAT32 or labels.dtype != y.dtype or labels.dtype not in plan.steps:
            return None
        target, calls = plan.steps[labels.dtype]
        if labels.shape != target.shape or x.shape[1:] != self._input_shape or len(calls) != 1:
            return None
        return (plan, target, calls[0]) if isinstance(calls[0], _core.Program) else None

    def _record(
        self, plan: Plan, labels: npt.NDArray[Any]
    ) -> tuple[npt.NDArray[Any], list[Callable[[], Any]]]:
        """Where labels like these have to be for a step on this plan, and its calls."""
        target = np.zeros(labels.shape, labels.dtype)
        loss = partial(
            self._loss_layer.apply,
            plan.results,
            target,
            input_gradient=plan.results_gradient,
            out=self._loss_value,
        )
        calls = [
            *plan.ahead,
            Bound("loss", True, loss),
            Bound("loss", True, partial(_core.require_finite, "Network", self._loss_value)),
            *plan.back,
        ]
        if self._update is not None:
            calls.append(Bound("optimizer", True, self._update))
        plan.steps[labels.dtype] = target, merged(calls)
        return plan.steps[labels.dtype]

    def _differentiate(self, x: Array, labels: Array, weights: Array | float | None) -> float:
        """The loss of a batch, its gradients in place."""
        plan = self._load(x, training=True)
        plan.forward()
        if self._rows is not None and weights is not None:
            weights = self._row_weights(np.asarray(weights), self._rows)
        self._loss_layer.apply(
            plan.results,
            self._labels(plan.results, labels),
            weights=weights,
            input_gradient=plan.results_gradient,
            out=self._loss_value,
        )
        loss = float(self._loss_value)
        if not isfinite(loss):
            raise self._not_finite(x, labels, loss)
        plan.backward()
        return loss

    @staticmethod
    def _row_weights(weights: npt.NDArray[Any], rows: int) -> npt.NDArray[Any]:
        """One for all, or one for each row of weights of samples (N,) or rows (N, rows)."""
        if weights.ndim == 0:
            return weights.astype(np.float32)
        return np.repeat(weights, rows) if weights.ndim == 1 else weights.reshape(-1)

    def _add_up(self, x: Array, labels: Array, weights: Any, parts: int) -> float:
        samples, given = _training.pair_of("x, labels", x, labels)
        if len(samples) % parts:
            raise ArrayError(
                "[Network.train_step] micro_batches: expected a divisor of "
                f"{len(samples)} samples; got {parts}"
            )
        size, total = len(samples) // parts, 0.0
        sums = [np.zeros_like(gradient) for gradient in self._gradient_list] if self._stages else []
        for start in range(0, len(samples), size):
            part = slice(start, start + size)
            own = weights if np.ndim(weights) == 0 else weights[part]
            total += self._differentiate(samples[part], given[part], own) / parts
            sums = sums or [np.zeros_like(gradient) for gradient in self._gradient_list]
            for into, gradient in zip(sums, self._gradient_list, strict=True):
                into += gradient / np.float32(parts)
        for gradient, value in zip(self._gradient_list, sums, strict=True):
            gradient[...] = value
        return total

    def _not_finite(self, x: Array, labels: Array, loss: float) -> TrainingError:
        """Where it began: the batch goes through once more, block by block."""
        plan = self._load(x, training=True)
        where = "the loss"
        for name, values in plan.walk():
            if not np.isfinite(values).all():
                where = "the data" if name == "input" else f"the result of {name}"
                break
        else:
            if not np.isfinite(self._labels(plan.results, labels)).all():
                where = "the labels"
        return TrainingError(
            f"[Network] step {self.steps + 1}: expected a finite loss; got {loss}, "
            f"first seen in {where}"
        )


def _listed(blocks: Iterable[Block]) -> list[Block]:
    if not isinstance(blocks, (list, tuple)):
        raise LayerCreationError(f"[Network] blocks: expected a list; got {shown(blocks)}")
    return list(blocks)


def _sample_shape(shape: Any) -> Shape:
    """Extents of a sample, of which none is empty."""
    if not isinstance(shape, (tuple, list)) or not all(is_whole(e) and e > 0 for e in shape):
        raise LayerCreationError(
            f"[Network] input: expected the extents of a sample, each at least 1; "
            f"got {shown(shape)}"
        )
    return tuple(int(extent) for extent in shape)


class _Builder:
    """Gives blocks their names and shapes, one after the other."""

    def __init__(self, seed: int, stored: Mapping[str, Any] | None = None) -> None:
        self._random = np.random.default_rng(seed)
        if stored is not None:
            self._random = _blocks.Replayed(self._random.bit_generator)
        self._stored = stored
        self._counts: dict[str, int] = {}
        self._seen: set[int] = set()

    def sequence(self, blocks: Sequence[Block], shape: Shape) -> list[Stage | Fork | Each]:
        stages: list[Stage | Fork | Each] = []
        for given in _listed(blocks):
            if not isinstance(given, Block):
                raise LayerCreationError(
                    f"[Network] blocks: expected openbnns.blocks; got {type(given).__name__}"
                )
            if id(given) in self._seen:
                raise LayerCreationError(
                    f"[Network] blocks: expected each block once; got the same "
                    f"{type(given).__name__} twice"
                )
            self._seen.add(id(given))
            if isinstance(given, Branch):
                stages.append(self._fork(given, shape))
            elif isinstance(given, Rows):
                stages.append(self._each(given, shape))
            elif joined := self._join(stages, given):
                stages[-1] = joined
            else:
                stages += self._stages(given, shape)
            shape = stages[-1].output if stages else shape
        return stages

    def _join(self, stages: list[Stage | Fork | Each], given: Block) -> Stage | None:
        """The last stage with a pooling that its convolution can do in the same pass."""
        last = stages[-1] if stages else None
        if not isinstance(given, Pool) or not isinstance(last, Stage):
            return None
        if not isinstance(last.block, Convolution):
            return None
        try:
            output = last.block.join(given)
        except BNNSError:
            return None  # said again by the pooling itself, under its name
        if output is None:
            return None
        self._name(given)
        return Stage(last.name, last.block, last.input, output)

    def _stages(self, given: Block, shape: Shape) -> list[Stage]:
        stages = []
        for block in given.parts():
            name = self._name(block)
            try:
                self._compare(name, block, shape)
                after = tuple(block.build(shape, self._random))
            except (BNNSError, MemoryError) as error:
                raise LayerCreationError(f"[Network] {name} on {shape}: {error}") from error
            stages.append(Stage(name, block, shape, after))
            shape = after
        return stages

    def _compare(self, name: str, block: Block, shape: Shape) -> None:
        """Whether the file has what the block will make."""
        if self._stored is None:
            return
        for word, expected in (block._shapes(shape) or {}).items():
            got = self._stored.get(f"{name}.{word}")
            if got is None or (got.shape, got.dtype) != (expected, _FLOAT32):
                found = "nothing" if got is None else f"{got.dtype} {got.shape}"
                raise LayerCreationError(f"{word}: expected float32 {expected}; got {found}")

    def _fork(self, branch: Branch, shape: Shape) -> Fork:
        name = self._name(branch)
        paths = [self.sequence(path, shape) for path in branch.paths]
        ends = [path[-1].output if path else shape for path in paths]
        agree = {end if branch.join == "add" else end[1:] for end in ends}
        if len(agree) > 1:
            raise LayerCreationError(
                f"[Network] {name}: expected paths whose results can be joined by {branch.join}; "
                f"got {', '.join(map(str, ends))}"
            )
        output = ends[0]
        if branch.join == "concatenate":
            output = (sum(end[0] for end in ends), *ends[0][1:])
        return Fork(name, paths, branch.join, output)

    def _each(self, rows: Rows, shape: Shape) -> Each:
        name = self._name(rows)
        if len(shape) < 2:
            raise LayerCreationError(
                f"[Network] {name}: expected samples of at least two axes, (rows, …); got {shape}"
            )
        stages = self.sequence(rows.blocks, shape[1:])
        inner = stages[-1].output if stages else shape[1:]
        return Each(name, stages, shape[0], (shape[0], *inner))

    def _name(self, block: Block) -> str:
        word = type(block).__name__.lower()
        if isinstance(block, Flatten):
            return word
        self._counts[word] = self._counts.get(word, 0) + 1
        return f"{word}_{self._counts[word]}"


def _described(blocks: Sequence[Block], depth: int = 0) -> list[dict[str, Any]]:
    if depth > _MOST_DEPTH:
        raise LayerCreationError(
            f"[Network.save] blocks: expected at most {_MOST_DEPTH} in one another; got more"
        )
    described: list[dict[str, Any]] = []
    for block in blocks:
        if isinstance(block, Branch):
            paths = [_described(path, depth + 1) for path in block.paths]
            described.append({"block": "Branch", "join": block.join, "paths": paths})
        elif isinstance(block, Rows):
            described.append({"block": "Rows", "blocks": _described(block.blocks, depth + 1)})
        else:
            described.append({"block": type(block).__name__, **block.describe()})
    return described


def _require_few(blocks: Sequence[Block]) -> None:
    """So many blocks as a file may have, those in branches and rows too."""
    pending, count = list(blocks), 0
    while pending:
        block = pending.pop()
        count += 1
        if isinstance(block, Branch):
            for path in block.paths:
                pending += path
        elif isinstance(block, Rows):
            pending += block.blocks
    if count > _MOST_BLOCKS:
        raise LayerCreationError(
            f"[Network] blocks: expected at most {_MOST_BLOCKS} in a file; got {count}"
        )


def _parsed(described: Any, known: Mapping[str, Any], depth: int = 0) -> list[Block]:
    if not isinstance(described, list) or not all(isinstance(entry, dict) for entry in described):
        raise LayerCreationError(f"blocks: expected a list of blocks; got {described!r}")
    if depth > _MOST_DEPTH:
        raise LayerCreationError(f"blocks: expected at most {_MOST_DEPTH} in one another")
    blocks: list[Block] = []
    for entry in described:
        given = {word: _tuples(value) for word, value in entry.items() if word not in _STRUCTURE}
        word = entry["block"]
        if word == "Branch":
            paths = [_parsed(path, known, depth + 1) for path in entry["paths"]]
            blocks.append(Branch(*paths, join=given["join"]))
            continue
        if word == "Rows":
            blocks.append(Rows(*_parsed(entry["blocks"], known, depth + 1)))
            continue
        kind = known.get(word) or (getattr(_blocks, word) if word in _blocks.__all__ else None)
        if kind is None:
            raise LayerCreationError(f"blocks: expected a class for {word!r}; got none")
        if word not in known:  # ours, so that their fields say what may be given
            words = misfit({f.name: f.type for f in _blocks.settings_of(kind)}, given)
            if words is not None:
                raise LayerCreationError(f"{word}: {words}")
        blocks.append(kind(**given))
    return blocks


_STRUCTURE = ("block", "blocks", "paths")


def _tuples(value: Any) -> Any:
    """JSON knows lists alone."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
