"""What all layers share: one native filter, its specs, its end, and the gradient keywords."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from . import _core
from ._errors import ArrayError
from ._spec import Array, ArraySpec, GradientTarget

if TYPE_CHECKING:
    from types import TracebackType

    import numpy.typing as npt

T = TypeVar("T")


class InputGradients(NamedTuple):
    """The gradient of a layer with one input; None where it was left out."""

    input: Any


class Layer:
    """Base of all layers: owns a native filter until it is closed or collected.

    See also: ``BNNSFilter``, ``BNNSFilterDestroy``.
    """

    __slots__ = ("__weakref__", "_filter", "_input_spec", "_output_spec")

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
    where: str,
    accumulate: bool | Collection[str],
    targets: dict[str, GradientTarget],
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
        if name not in targets:
            raise ArrayError(
                f"[{where}] accumulate: expected names out of {', '.join(targets)}; got {name!r}"
            )
        if name not in given:
            raise ArrayError(
                f"[{where}] accumulate: expected an array to add to as {name}_gradient; "
                f"got {targets[name]!r}"
            )
        bits |= 1 << list(targets).index(name)
    return bits
