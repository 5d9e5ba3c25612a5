"""Two-dimensional pooling: max, averages, L2 norm, and the inverse of max."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias, TypeVar, overload

import numpy.typing as npt

from . import _core
from ._activations import Activation, ActivationLike
from ._errors import LayerCreationError
from ._layer import Layer, accumulate_bits
from ._spec import (
    Array,
    ArraySpec,
    GradientTarget,
    Padding,
    Pair,
    SpecLike,
    as_array,
    count,
    data_type_of,
    padding_of,
    pair,
    spec_of,
)
from ._spoken import spoken

T = TypeVar("T")

_apply = _core.pooling_apply
_backward = _core.pooling_backward

PoolingLike: TypeAlias = "str | Pooling"


@spoken(LayerCreationError)
class Pooling:
    """What happens inside a pooling window.

    ``Pooling.max``, ``Pooling.unmax`` and ``Pooling.l2_norm`` are values,
    ``Pooling.average(count_include_padding=…)`` makes one. Names do as well: ``"max"``,
    ``"average"`` (padding counts), ``"unmax"``, ``"l2_norm"``.

    Examples:
        >>> from openbnns import Pooling
        >>> Pooling.average(count_include_padding=False)
        Pooling.average(count_include_padding=False)

    See also: ``BNNSPoolingFunction``.
    """

    __slots__ = ("_code", "name")

    name: str
    _code: int

    max: ClassVar[Pooling]
    unmax: ClassVar[Pooling]
    l2_norm: ClassVar[Pooling]

    def __init__(self, name: str, code: int) -> None:
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "_code", code)

    @staticmethod
    def average(count_include_padding: bool = True) -> Pooling:
        """The mean of a window, divided by its size or by its positions inside the image."""
        return Pooling("average", 1 if count_include_padding else 2)

    @classmethod
    def of(cls, value: PoolingLike, where: str = "Pooling") -> Pooling:
        """The kind of pooling for a name or a value.

        Raises:
            LayerCreationError: no such name.
        """
        if isinstance(value, Pooling):
            return value
        if value == "average":
            return cls.average()
        if value in ("max", "unmax", "l2_norm"):
            found: Pooling = getattr(cls, value)
            return found
        raise LayerCreationError(
            f"[{where}] pooling: expected one of average, l2_norm, max, unmax; got {value!r}"
        )

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"Pooling is frozen; cannot set {name}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"Pooling is frozen; cannot delete {name}")

    def __reduce__(self) -> tuple[Any, ...]:
        return Pooling, (self.name, self._code)

    def __eq__(self, other: object) -> bool:
        return self._code == other._code if isinstance(other, Pooling) else NotImplemented

    def __hash__(self) -> int:
        return hash(("Pooling", self._code))

    def __repr__(self) -> str:
        if self.name == "average":
            return f"Pooling.average(count_include_padding={self._code == 1})"
        return f"Pooling.{self.name}"


Pooling.max = Pooling("max", 0)
Pooling.unmax = Pooling("unmax", 3)
Pooling.l2_norm = Pooling("l2_norm", 4)


class PoolingGradients(NamedTuple):
    """Gradients of a pooling layer; None where one was left out or does not exist."""

    input: Any
    bias: Any


class PoolingLayer(Layer):
    """A window moving over the two last axes of images: y = activation(bias + pooling(window)).

    Args:
        pooling: name or ``Pooling``.
        input: one sample (C, H, W): a shape, an ``ArraySpec``, or a batch (N, C, H, W) as an
            example.
        output: the same for the output; None is inferred, with windows that fit into the padded
            image. A larger output lets the last windows hang over the edge.
        kernel_size: (height, width) of the window, or an int for both, as in all pairs.
        stride: steps of the window; None is ``kernel_size``.
        padding: positions around the image: an int, (height, width), ((up, down), (left, right)),
            ``"same"`` or ``"valid"``. They never win a maximum.
        dilation: steps inside the window.
        bias: (C,) added to every channel, or None.
        activation: applied last; name or ``Activation``.
        num_threads: limit for this layer; None is the library's setting.
        copy_parameters: keep a copy of the bias instead of reading the caller's array on every
            call.

    With ``"unmax"`` the geometry is that of the max pooling it undoes, whose output is this
    layer's input.

    Raises:
        LayerCreationError: the arguments do not make a layer.
        ArrayError: the bias does not fit.

    Examples:
        >>> import numpy as np, openbnns
        >>> pool = openbnns.PoolingLayer("max", input=(1, 4, 4), kernel_size=2)
        >>> x = np.arange(16, dtype="f4").reshape(1, 1, 4, 4)
        >>> pool(x)
        array([[[[ 5.,  7.],
                 [13., 15.]]]], dtype=float32)

    See also: ``BNNSFilterCreateLayerPooling``.
    """

    __slots__ = ("_pooling",)

    _pooling: Pooling

    def __init__(
        self,
        pooling: PoolingLike,
        *,
        input: SpecLike,
        output: SpecLike | None = None,
        kernel_size: Pair,
        stride: Pair | None = None,
        padding: Padding = 0,
        dilation: Pair = 1,
        bias: Array | None = None,
        activation: ActivationLike = "identity",
        num_threads: int | None = None,
        copy_parameters: bool = False,
    ) -> None:
        where = "PoolingLayer"
        self._pooling = Pooling.of(pooling, where)
        spec = self._input_spec = spec_of(where, "input", input)
        given = None if output is None else spec_of(where, "output", output)
        description, self._output_spec = describe(
            where, self._pooling, spec, given, kernel_size, stride, padding, dilation, activation
        )
        indexed = spec if self._pooling == Pooling.unmax else self._output_spec
        bias_type = spec.data_type
        if bias is not None:
            bias_type = data_type_of(as_array(where, "bias", bias))
        self._filter = _core.pooling_create(
            where,
            spec._operand(),
            self._output_spec._operand(),
            ArraySpec(spec.shape[:1], bias_type)._operand(),
            _index_spec(indexed, "uint32")._operand("iu"),
            _index_spec(indexed, "uint64")._operand("iu"),
            bias,
            description,
            count(where, "num_threads", num_threads),
            copy_parameters,
        )

    @property
    def pooling(self) -> Pooling:
        """The kind of pooling, as given at creation."""
        return self._pooling

    @overload
    def apply(
        self,
        x: Array,
        *,
        out: None = None,
        indices: Array | None = None,
        return_indices: Literal[False] = False,
    ) -> npt.NDArray[Any]: ...
    @overload
    def apply(
        self,
        x: Array,
        *,
        out: T,
        indices: Array | None = None,
        return_indices: Literal[False] = False,
    ) -> T: ...
    @overload
    def apply(
        self,
        x: Array,
        *,
        out: Any = None,
        indices: Array | None = None,
        return_indices: Literal[True],
    ) -> tuple[Any, Any]: ...
    def apply(
        self,
        x: Array,
        *,
        out: Any = None,
        indices: Array | None = None,
        return_indices: bool = False,
    ) -> Any:
        """The pooling of a batch.

        Args:
            x: (N, C, H, W).
            out: (N, *output shape) to write to, or None.
            indices: max: array of the output's shape that receives the position y·W + x of every
                maximum inside its channel; unmax: the positions to write to, of the shape of x.
                uint32 or uint64; int32 and int64 are taken as such, since positions are never
                negative.
            return_indices: max: return the indices too, as uint32 unless ``indices`` is given.

        Returns:
            ``out`` or a new array; with ``return_indices`` a pair of it and the indices.

        Raises:
            ArrayError: an array does not fit.
            LayerApplyError: the layer is closed, or the C call failed.

        Examples:
            >>> import numpy as np, openbnns
            >>> pool = openbnns.PoolingLayer("max", input=(1, 2, 4), kernel_size=2)
            >>> x = np.array([[[[1, 9, 2, 3], [4, 5, 8, 7]]]], "f4")
            >>> y, indices = pool.apply(x, return_indices=True)
            >>> y.tolist(), indices.tolist()
            ([[[[9.0, 8.0]]]], [[[[1, 6]]]])

        See also: ``BNNSPoolingFilterApplyBatchEx``.
        """
        return _apply(self._filter, x, out, indices, return_indices)

    __call__ = apply

    def apply_backward(
        self,
        x: Array | None,
        y: Array | None,
        grad_output: Array,
        *,
        indices: Array | None = None,
        input_gradient: GradientTarget = True,
        bias_gradient: GradientTarget = True,
        accumulate: bool | Collection[str] = False,
    ) -> PoolingGradients:
        """The gradients of a batch.

        Args:
            x: (N, C, H, W) of the forward call; None for averages, unmax, and max with indices.
            y: (N, *output shape) of the forward call; None unless there is an activation.
            grad_output: (N, *output shape), the gradient of y.
            indices: those of the forward call; max finds them again from x without them.
            input_gradient: True allocates, an array (N, C, H, W) is written to, None skips.
            bias_gradient: the same for the bias, (C,), summed over the batch.
            accumulate: True adds to the arrays given as targets instead of overwriting them; a set
                out of ``"input"``, ``"bias"`` picks some.

        Returns:
            ``PoolingGradients(input, bias)``.

        Raises:
            ArrayError: an array does not fit.
            LayerApplyError: the layer is closed, or the C call failed.

        Examples:
            >>> import numpy as np, openbnns
            >>> pool = openbnns.PoolingLayer("average", input=(1, 2, 2), kernel_size=2)
            >>> pool.apply_backward(None, None, np.full((1, 1, 1, 1), 8, "f4")).input
            array([[[[2., 2.],
                     [2., 2.]]]], dtype=float32)

        See also: ``BNNSPoolingFilterApplyBackwardBatchEx``.
        """
        bits = 0
        if accumulate is not False:
            targets = {"input": input_gradient, "bias": bias_gradient}
            bits = accumulate_bits("PoolingLayer", accumulate, targets)
        return PoolingGradients(
            *_backward(
                self._filter, x, y, grad_output, indices, input_gradient, bias_gradient, bits
            )
        )

    def __repr__(self) -> str:
        return f"PoolingLayer({self._pooling!r}, input={self._input_spec!r})"


def describe(
    where: str,
    pooling: Pooling,
    spec: ArraySpec,
    output: ArraySpec | None,
    kernel_size: Pair,
    stride: Pair | None,
    padding: Padding,
    dilation: Pair,
    activation: ActivationLike,
) -> tuple[tuple[Any, ...], ArraySpec]:
    """A pooling for parse_pooling in bindings/pooling.cpp, and the spec of its output. Fused layers
    use it too."""
    if len(spec.shape) != 3:
        raise LayerCreationError(
            f"[{where}] input: expected samples (channels, height, width); got {spec.shape}"
        )
    kernel = pair(where, "kernel_size", kernel_size, 1)
    steps = kernel if stride is None else pair(where, "stride", stride, 1)
    dilations = pair(where, "dilation", dilation, 1)
    sides = padding_of(where, padding, spec.shape[1:], kernel, steps, dilations)
    if output is None:
        extents = tuple(
            _extent(where, pooling, *axis)
            for axis in zip(spec.shape[1:], kernel, steps, dilations, sides, strict=True)
        )
        output = ArraySpec((spec.shape[0], *extents), spec.data_type)
    native = Activation.of(activation, where)._native(where, spec.shape)
    return (pooling._code, kernel, steps, dilations, (*sides[0], *sides[1]), native), output


def _extent(
    where: str,
    pooling: Pooling,
    extent: int,
    kernel: int,
    stride: int,
    dilation: int,
    sides: tuple[int, int],
) -> int:
    """Output extent of one axis: all windows inside the padded image, or for unmax the reverse."""
    window = (kernel - 1) * dilation + 1
    if pooling == Pooling.unmax:
        inferred = (extent - 1) * stride + window - sum(sides)
    else:
        inferred = (extent + sum(sides) - window) // stride + 1
    if inferred < 1:
        raise LayerCreationError(
            f"[{where}] kernel_size: expected a window that fits into the padded image; got one of "
            f"{window} (dilation included) for {extent} with padding {sides}"
        )
    return inferred


def _index_spec(like: ArraySpec, dtype: str) -> ArraySpec:
    """Indices have the shape and the strides, in values, of the array they belong to."""
    itemsize = 8 if dtype == "uint64" else 4
    scale = like._array_dtype.itemsize
    return ArraySpec(like.shape, dtype, tuple(step // scale * itemsize for step in like.strides))
