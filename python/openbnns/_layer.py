"""What all layers share: one native filter, its specs, its end, and the gradient keywords."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from . import _core
from ._errors import ArrayError, LayerApplyError, LayerCreationError
from ._spec import Array, ArraySpec, GradientTarget
from ._spoken import shown, spoken, whole

if TYPE_CHECKING:
    from types import TracebackType

    import numpy.typing as npt

T = TypeVar("T")

_core.watch_signals(threading.main_thread().ident or 0)  # so that Ctrl-C ends a long native call


def _after_fork() -> None:
    """In the child: calls of the parent's other threads never end, and this is the main thread."""
    _core.forget_calls()
    _core.watch_signals(threading.get_ident())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class InputGradients(NamedTuple):
    """The gradient of a layer with one input; None where it was left out."""

    input: Any


@dataclass(frozen=True)
class LayerDescription:
    """What a layer's calls run. ``str()`` of it is the line that ``obn_filter_describe`` writes.

    A value rather than a dictionary: fields that editors and type checkers know, and that nobody
    changes by mistake. Algorithms are named as in the source; their names may change.
    """

    #: What kind of native filter it is: ``"convolution"``, ``"pooling"``, ``"fused"``.
    family: str
    #: What it is within its family, such as ``"max"`` or ``"convolution+batch_norm"``; may be "".
    kind: str
    #: The algorithm of ``apply``.
    forward: str
    #: That of the gradients of inputs, ``"none"`` where there are none.
    input_gradient: str
    #: That of the gradients of weights: the same where a layer has one for all gradients.
    weight_gradient: str
    #: The instruction set in use, as ``openbnns.isa()`` says it.
    target: str
    #: As many threads as a call may take.
    threads: int
    #: One sample of every input, such as ``"3x32x32:float32"``; several are joined by ``+``.
    input: str
    #: One sample of the output.
    output: str
    #: The batch size that was asked about.
    batch: int
    #: What a training call keeps for its gradients, in bytes.
    saved_bytes: int
    #: What a call needs besides, in bytes, at most: shared by all layers of a thread.
    workspace_bytes: int
    _text: str

    def __str__(self) -> str:
        return self._text

    @classmethod
    def _of(cls, text: str) -> LayerDescription:
        said = dict(pair.split("=", 1) for pair in text.split())
        backward = said.get("backward", "")
        return cls(
            family=said["family"],
            kind=said.get("kind", ""),
            forward=said["forward"],
            input_gradient=said.get("input_gradient", backward),
            weight_gradient=said.get("weight_gradient", backward),
            target=said["target"],
            threads=int(said["threads"]),
            input=said.get("input", ""),
            output=said.get("output", ""),
            batch=int(said["batch"]),
            saved_bytes=int(said["saved_bytes"]),
            workspace_bytes=int(said["workspace_bytes"]),
            _text=text,
        )


class Layer:
    """Base of all layers: owns a native filter until it is closed or collected.

    See also: ``BNNSFilter``, ``BNNSFilterDestroy``.
    """

    __slots__ = ("__weakref__", "_filter", "_input_spec", "_output_spec")

    def __init_subclass__(cls) -> None:
        """What makes layers, or asks about them, says in our words what is wrong."""
        super().__init_subclass__()
        for name, member in list(vars(cls).items()):
            place = f"{cls.__name__}.{name}"
            if name == "__init__":
                made: Any = spoken(LayerCreationError, cls.__name__)(member)
            elif isinstance(member, staticmethod):
                made = staticmethod(spoken(LayerCreationError, place)(member.__func__))
            elif name.endswith("_bytes") and not name.startswith("_"):
                made = spoken(LayerApplyError, place)(member)
            else:
                continue
            setattr(cls, name, made)

    _filter: _core.Filter
    _input_spec: ArraySpec
    _output_spec: ArraySpec

    @property
    def input_spec(self) -> ArraySpec:
        """Shape, type and strides of one input sample."""
        return self._input_spec

    @property
    def output_spec(self) -> ArraySpec:
        """Shape, type and strides of one output sample."""
        return self._output_spec

    @property
    def closed(self) -> bool:
        """True after ``close()``."""
        return self._filter.closed

    @property
    def handle(self) -> int:
        """The ``BNNSFilter`` as an integer for ``openbnns.c``; 0 once the layer is closed."""
        return self._filter.handle

    def describe(self, batch: int = 1) -> LayerDescription:
        """What calls with so many samples run: algorithms, instruction set, threads and memory.

        Args:
            batch: The number of samples.

        Returns:
            A ``LayerDescription``.

        Raises:
            ArgumentError: The batch is no whole number, or less than 0.
            LayerApplyError: The layer is closed, or so many samples cannot be addressed.

        Examples:
            >>> import numpy as np, openbnns as bnns
            >>> layer = bnns.ConvolutionLayer(np.ones((4, 1, 3, 3), "f4"), input=(1, 8, 8))
            >>> found = layer.describe(batch=16)
            >>> found.family, found.input, found.output
            ('convolution', '1x8x8:float32', '4x6x6:float32')
            >>> found.workspace_bytes == layer.work_bytes(16)
            True

        See also: ``obn_filter_describe``, and ``OPENBNNS_VERBOSE=1``, which prints what runs.
        """
        where = f"{type(self).__name__}.describe"
        return LayerDescription._of(self._filter.describe(whole(where, "batch", batch)))

    def close(self) -> None:
        """Free the native filter now; later calls raise ``LayerApplyError``.

        Calls under way on other threads finish first. Closing twice does nothing.
        """
        self._filter.close()

    def __enter__(self: T) -> T:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class UnaryLayer(Layer):
    """Base of the layers with one input and one output."""

    __slots__ = ()

    def apply(self, x: Array, *, out: Any = None) -> npt.NDArray[Any] | Any:
        """The output for a batch. Arguments: see the layer."""
        raise NotImplementedError

    def __call__(self, x: Array, *, out: Any = None) -> npt.NDArray[Any] | Any:
        """The same as ``apply``."""
        return self.apply(x, out=out)


class BinaryLayer(Layer):
    """Base of the layers with two inputs and one output."""

    __slots__ = ()

    def apply(self, a: Array, b: Array, *, out: Any = None) -> npt.NDArray[Any] | Any:
        """The output for a batch. Arguments: see the layer."""
        raise NotImplementedError

    def __call__(self, a: Array, b: Array, *, out: Any = None) -> npt.NDArray[Any] | Any:
        """The same as ``apply``."""
        return self.apply(a, b, out=out)


def accumulate_bits(
    where: str, accumulate: bool | Collection[str], targets: dict[str, GradientTarget]
) -> int:
    """Bit i for every gradient that is added to its array: targets has them in order.

    True stands for all gradients whose target is an array; a name has to belong to such a one.
    """
    if isinstance(accumulate, str):
        accumulate = (accumulate,)
    given = [
        name
        for name, target in targets.items()
        if target is not None and not isinstance(target, bool)
    ]
    if not isinstance(accumulate, (bool, Collection)):
        raise ArrayError(
            f"[{where}] accumulate: expected True, False or names out of {', '.join(targets)}; "
            f"got {shown(accumulate)}"
        )
    if isinstance(accumulate, bool):
        names: Collection[str] = given if accumulate else ()
        if accumulate and not given:
            raise ArrayError(
                f"[{where}] accumulate: expected an array to add to as "
                f"{' or '.join(f'{name}_gradient' for name in targets)}; got none"
            )
    else:
        names = accumulate
    bits = 0
    for name in names:
        if not isinstance(name, str) or name not in targets:
            raise ArrayError(
                f"[{where}] accumulate: expected names out of {', '.join(targets)}; "
                f"got {shown(name)}"
            )
        if name not in given:
            raise ArrayError(
                f"[{where}] accumulate: expected an array to add to as {name}_gradient; "
                f"got {targets[name]!r}"
            )
        bits |= 1 << list(targets).index(name)
    return bits
