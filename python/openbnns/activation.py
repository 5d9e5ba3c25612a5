"""Activations, softmax, and conversion between element types."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple, TypeVar, overload

import numpy as np
import numpy.typing as npt

from . import _core
from ._activations import Activation, ActivationLike
from ._errors import LayerApplyError, LayerCreationError
from ._layer import UnaryLayer, accumulate_bits
from ._spec import (
    Array,
    ArraySpec,
    Axes,
    GradientTarget,
    SpecLike,
    as_array,
    axis_flags,
    count,
    data_type_of,
    spec_of,
)
from ._spoken import spoken

T = TypeVar("T")

_apply = _core.activation_apply
_backward = _core.activation_backward


class ActivationGradients(NamedTuple):
    """Gradients of an activation; None where one was left out or does not exist."""

    input: Any
    alpha: Any


class ActivationLayer(UnaryLayer):
    """An element-wise function, a softmax, or (identity between two types) a conversion.

    Args:
        activation: name or ``Activation``.
        input: one sample: a shape, an ``ArraySpec``, or a batch (N, …) as an example.
        output: the same for the output; None is the shape and type of the input, packed. Only the
            number of values has to agree.
        axes: softmax kinds: axes of the sample over which to normalise jointly, negative ones from
            the end; ``"batch"``, alone or in the tuple, is the batch axis. None is the last axis.
        num_threads: limit for this layer; None is the library's setting.

    Raises:
        LayerCreationError: the arguments do not make a layer.

    Examples:
        >>> import numpy as np, openbnns
        >>> layer = openbnns.ActivationLayer("relu", input=(3,))
        >>> layer(np.array([[-1, 0, 2]], "f4"))
        array([[0., 0., 2.]], dtype=float32)

    See also: ``BNNSFilterCreateLayerActivation``.
    """

    __slots__ = ("_activation",)

    _activation: Activation

    def __init__(
        self,
        activation: ActivationLike,
        *,
        input: SpecLike,
        output: SpecLike | None = None,
        axes: Axes = None,
        num_threads: int | None = None,
    ) -> None:
        where = "ActivationLayer"
        self._activation = Activation.of(activation, where)
        self._input_spec = spec_of(where, "input", input)
        self._output_spec = (
            self._input_spec.packed if output is None else spec_of(where, "output", output)
        )
        channels = 1
        if self._activation.name == "prelu_per_channel" and self._input_spec.shape:
            channels = self._input_spec.shape[0]
        self._filter = _core.activation_create(
            where,
            self._input_spec._operand(),
            self._output_spec._operand(),
            ArraySpec((channels,))._operand(),
            self._activation._native(where, self._input_spec.shape),
            _flags_for(where, self._activation, axes, self._input_spec),
            count(where, "num_threads", num_threads),
        )

    @property
    def activation(self) -> Activation:
        """The function, as given at creation."""
        return self._activation

    @property
    def alpha(self) -> npt.NDArray[np.float32]:
        """alpha as a live float32 array of shape (1,), or (C,) for PReLU.

        Writing to it changes the following calls. It stays valid after ``close()``.

        See also: ``BNNSGetPointer``.
        """
        return np.asarray(_core.activation_parameter(self._filter, 0))

    @property
    def beta(self) -> npt.NDArray[np.float32]:
        """beta as a live float32 array of shape (1,); see ``alpha``."""
        return np.asarray(_core.activation_parameter(self._filter, 1))

    @overload
    def apply(self, x: Array, *, out: None = None) -> npt.NDArray[Any]: ...
    @overload
    def apply(self, x: Array, *, out: T) -> T: ...
    def apply(self, x: Array, *, out: Any = None) -> Any:
        """The activation of a batch.

        Args:
            x: (N, *input shape).
            out: (N, *output shape) to write to, or None. It may be x itself when the types agree.

        Returns:
            ``out``, or a new array.

        Raises:
            ArrayError: an array does not fit.
            LayerApplyError: the layer is closed, or the C call failed.

        Examples:
            >>> import numpy as np, openbnns
            >>> layer = openbnns.ActivationLayer("softmax", input=(2,))
            >>> layer.apply(np.zeros((1, 2), "f4"))
            array([[0.5, 0.5]], dtype=float32)

        See also: ``BNNSFilterApplyBatch``.
        """
        return _apply(self._filter, x, out)

    def apply_backward(
        self,
        x: Array | None,
        y: Array | None,
        grad_output: Array,
        *,
        input_gradient: GradientTarget = True,
        alpha_gradient: GradientTarget = True,
        accumulate: bool | Collection[str] = False,
    ) -> ActivationGradients:
        """The gradients of a batch.

        Args:
            x: (N, *input shape) of the forward call; None where y is enough.
            y: (N, *output shape) of the forward call; None where x is enough.
            grad_output: (N, *output shape), the gradient of y.
            input_gradient: True allocates, an array (N, *input shape) is written to, None skips.
            alpha_gradient: the same for alpha, (1,) or (C,), which leaky and PReLU have; needs x.
            accumulate: True adds to the arrays given as targets instead of overwriting them; a set
                out of ``"input"``, ``"alpha"`` picks some.

        Returns:
            ``ActivationGradients(input, alpha)``.

        Raises:
            ArrayError: an array does not fit.
            LayerApplyError: the layer is closed, the function needs the tensor that is None, or
                it has no gradient.

        Examples:
            >>> import numpy as np, openbnns
            >>> layer = openbnns.ActivationLayer("relu", input=(3,))
            >>> x = np.array([[-1, 1, 2]], "f4")
            >>> layer.apply_backward(x, layer(x), np.full((1, 3), 5, "f4")).input
            array([[0., 5., 5.]], dtype=float32)

        See also: ``BNNSFilterApplyBackwardBatch``.
        """
        bits = 0
        if accumulate is not False:
            targets = {"input": input_gradient, "alpha": alpha_gradient}
            bits = accumulate_bits("ActivationLayer", accumulate, targets)
        return ActivationGradients(
            *_backward(self._filter, x, y, grad_output, input_gradient, alpha_gradient, bits)
        )

    def __repr__(self) -> str:
        return f"ActivationLayer({self._activation!r}, input={self._input_spec!r})"


def _flags_for(where: str, function: Activation, axes: Axes, spec: ArraySpec) -> int:
    if function._uses_axes:
        return axis_flags(where, axes, spec)
    if axes is not None:
        raise LayerCreationError(
            f"[{where}] axes: expected None for {function.name}, which works on single values; "
            f"got {axes!r}"
        )
    return 0


@overload
def activation(
    x: Array,
    activation: ActivationLike,
    *,
    axes: Axes = ...,
    out: None = ...,
    num_threads: int | None = ...,
) -> npt.NDArray[Any]: ...
@overload
def activation(
    x: Array, activation: ActivationLike, *, axes: Axes = ..., out: T, num_threads: int | None = ...
) -> T: ...
@spoken(LayerApplyError)
def activation(
    x: Array,
    activation: ActivationLike,
    *,
    axes: Axes = None,
    out: Any = None,
    num_threads: int | None = None,
) -> Any:
    """An activation of one whole array, without making a layer.

    Args:
        x: array of any shape up to 8 axes. There is no batch here: ``axes`` count all axes of x.
        activation: name or ``Activation``.
        axes: softmax kinds: axes of x; None is the last one.
        out: array of the shape and type of x to write to, or None; x itself will do.
        num_threads: limit for this call; None is the library's setting.

    Returns:
        ``out``, or a new array of the shape and type of x.

    Raises:
        ArrayError: an array does not fit.
        LayerApplyError: the C call failed.

    Examples:
        >>> import numpy as np, openbnns
        >>> openbnns.activation(np.zeros((2, 4), "f4"), "softmax", axes=0)
        array([[0.5, 0.5, 0.5, 0.5],
               [0.5, 0.5, 0.5, 0.5]], dtype=float32)

    See also: ``BNNSDirectApplyActivationBatch``.
    """
    where = "activation"
    function = Activation.of(activation, where)
    spec = _whole(where, x)
    return _core.activation_direct(
        where,
        spec._operand(),
        spec.packed._operand(),
        function._native(where, spec.shape),
        _flags_for(where, function, axes, spec),
        count(where, "num_threads", num_threads),
        x,
        out,
    )


def _whole(where: str, x: Array) -> ArraySpec:
    return ArraySpec.like(as_array(where, "x", x))


@overload
def convert(
    x: Array, dtype: Any, *, scale: float = ..., offset: float = ..., out: None = ...
) -> npt.NDArray[Any]: ...
@overload
def convert(x: Array, dtype: Any, *, scale: float = ..., offset: float = ..., out: T) -> T: ...
@spoken(LayerApplyError)
def convert(
    x: Array, dtype: Any, *, scale: float = 1.0, offset: float = 0.0, out: Any = None
) -> Any:
    """An array in another element type.

    Integers stand for value = scale·stored + offset when they become floats, and floats become
    round(value / scale − offset), to the nearest and ties to even, saturated to the type.

    Args:
        x: array of any shape up to 8 axes.
        dtype: the element type wanted.
        scale, offset: of the integer side; with two float or two integer types they stay away.
        out: array of that type and the shape of x to write to, or None.

    Returns:
        ``out``, or a new array.

    Raises:
        DTypeError: there is no such type.
        LayerApplyError: the C call failed.

    Examples:
        >>> import numpy as np, openbnns
        >>> openbnns.convert(np.array([1.5, -2.5, 300], "f4"), "int8")
        array([  2,  -2, 127], dtype=int8)

    See also: ``BNNSDirectApplyActivationBatch`` with the identity.
    """
    where = "convert"
    source = _whole(where, x)
    name = data_type_of(dtype)
    from_float, to_float = "float" in source.data_type, "float" in name
    target = ArraySpec(source.shape, name)
    if scale != 1.0 or offset != 0.0:
        if from_float == to_float:
            raise LayerCreationError(
                f"[{where}] scale: expected 1 and offset 0 from {source.data_type} to {name}, as "
                f"not exactly one side is an integer; got {scale} and {offset}"
            )
        if from_float:
            target = ArraySpec(source.shape, name, scale=scale, offset=offset)
        else:
            source = ArraySpec(
                source.shape, source.data_type, source.strides, scale=scale, offset=offset
            )
    return _core.activation_direct(
        where,
        source._operand(),
        target._operand(),
        Activation.identity._native(where, source.shape),
        0,
        0,
        x,
        out,
    )
