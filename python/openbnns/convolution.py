"""Two-dimensional convolution and transposed convolution."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple, TypeVar, overload

import numpy.typing as npt

from . import _core
from ._activations import Activation, ActivationLike
from ._errors import LayerCreationError
from ._layer import UnaryLayer, accumulate_bits
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

T = TypeVar("T")

_apply = _core.weighted_apply
_backward = _core.weighted_backward

_FLOATS = ("float32", "float16", "bfloat16")


class WeightGradients(NamedTuple):
    """Gradients of a layer with weights; None where one was left out or does not exist."""

    input: Any
    weights: Any
    bias: Any


class ConvolutionLayer(UnaryLayer):
    """Weights moving over the two last axes of images: y = activation(bias + weights * x).

    The kernel is not flipped (cross-correlation, as in every network). Positions outside the image
    read 0.

    Args:
        weights: (O, C / groups, kH, kW); transposed: (C, O / groups, kH, kW), as PyTorch has them.
        input: one sample (C, H, W): a shape, an ``ArraySpec``, or a batch (N, C, H, W) as an
            example.
        output: the same for the output; None is inferred. A smaller output leaves the last rows
            and columns of the input unread.
        bias: (O,) added to every channel, or None.
        stride: steps of the kernel, (height, width), or an int for both, as in all pairs.
        padding: positions around the image: an int, (height, width), ((up, down), (left, right)),
            ``"same"`` or ``"valid"``.
        dilation: steps inside the kernel.
        groups: channels are split into so many groups that do not see each other.
        activation: applied last; name or ``Activation``.
        transposed: the adjoint: every input value adds its multiple of the kernel to the output,
            where the windows of a convolution with these parameters would have read it.
        output_padding: transposed: rows and columns more than the kernel reaches.
        weights_spec: what the weights are when their array does not say it: ``scale``, ``table``
            or another ``layout``.
        winograd: for kernels of 3×3 with steps of 1: True allows Winograd's algorithm, which is
            faster and a little less exact, False forbids it, None is the library's setting
            (``openbnns.set_winograd``).
        num_threads: limit for this layer; None is the library's setting.
        copy_parameters: keep copies of weights and bias. Without it the layer reads the caller's
            arrays in every call, so an update in place is seen at once.

    Raises:
        LayerCreationError: the arguments do not make a layer.
        ArrayError: weights or bias do not fit.

    Examples:
        >>> import numpy as np, openbnns
        >>> ones = np.ones((1, 1, 2, 2), "f4")
        >>> layer = openbnns.ConvolutionLayer(ones, input=(1, 3, 3))
        >>> layer(np.arange(1, 10, dtype="f4").reshape(1, 1, 3, 3))
        array([[[[12., 16.],
                 [24., 28.]]]], dtype=float32)

    See also: ``BNNSFilterCreateLayerConvolution``,
    ``BNNSFilterCreateLayerTransposedConvolution``.
    """

    __slots__ = ("_bias", "_weights")

    _weights: Any
    _bias: Any

    def __init__(
        self,
        weights: Array,
        *,
        input: SpecLike,
        output: SpecLike | None = None,
        bias: Array | None = None,
        stride: Pair = 1,
        padding: Padding = 0,
        dilation: Pair = 1,
        groups: int = 1,
        activation: ActivationLike = "identity",
        transposed: bool = False,
        output_padding: Pair = 0,
        weights_spec: ArraySpec | None = None,
        winograd: bool | None = None,
        num_threads: int | None = None,
        copy_parameters: bool = False,
    ) -> None:
        where = type(self).__name__
        self._input_spec = spec_of(where, "input", input)
        self._weights, self._bias = weights, bias
        description, self._output_spec = describe(
            where,
            self._input_spec,
            None if output is None else spec_of(where, "output", output),
            weights,
            bias,
            stride,
            padding,
            dilation,
            groups,
            activation,
            transposed,
            output_padding,
            weights_spec,
        )
        self._filter = _core.convolution_create(
            where,
            description,
            -1 if winograd is None else int(winograd),
            count(where, "num_threads", num_threads),
            copy_parameters,
        )

    @property
    def weights(self) -> Any:
        """The weights given at creation; the layer reads them unless it has copied them."""
        return self._weights

    @property
    def bias(self) -> Any:
        """The bias given at creation, or None."""
        return self._bias

    def work_bytes(self, batch: int) -> int:
        """Bytes that calls with a batch of this size hold while they run, at most.

        The memory belongs to the calling thread and serves all layers; it is not counted twice.

        Args:
            batch: number of samples.

        Raises:
            LayerApplyError: the layer is closed, or no machine has so much memory.

        See also: ``obn_filter_work_bytes``.
        """
        return _core.weighted_work_bytes(self._filter, batch)

    @overload
    def apply(self, x: Array, *, out: None = None) -> npt.NDArray[Any]: ...
    @overload
    def apply(self, x: Array, *, out: T) -> T: ...
    def apply(self, x: Array, *, out: Any = None) -> Any:
        """The output for a batch.

        Args:
            x: (N, *input shape).
            out: (N, *output shape) to write to, or None.

        Returns:
            ``out`` or a new array.

        Raises:
            ArrayError: an array does not fit.
            LayerApplyError: the layer is closed, or the C call failed.

        See also: ``BNNSFilterApplyBatch``.
        """
        return _apply(self._filter, x, out)

    __call__ = apply

    def apply_backward(
        self,
        x: Array | None,
        y: Array | None,
        grad_output: Array,
        *,
        input_gradient: GradientTarget = True,
        weights_gradient: GradientTarget = True,
        bias_gradient: GradientTarget = True,
        accumulate: bool | Collection[str] = False,
    ) -> WeightGradients:
        """The gradients of a batch.

        Args:
            x: (N, *input shape) of the forward call; None when no weights gradient is wanted.
            y: (N, *output shape) of the forward call; None unless there is an activation.
            grad_output: (N, *output shape), the gradient of y.
            input_gradient: True allocates, an array (N, *input shape) is written to, None skips.
            weights_gradient: the same for the weights, summed over the batch.
            bias_gradient: the same for the bias; an array is written to even without a bias.
            accumulate: True adds to the arrays given as targets instead of overwriting them; a set
                out of ``"input"``, ``"weights"``, ``"bias"`` picks some.

        Returns:
            ``WeightGradients(input, weights, bias)``.

        Raises:
            ArrayError: an array does not fit.
            LayerApplyError: the layer is closed, or the C call failed.

        Examples:
            >>> import numpy as np, openbnns
            >>> layer = openbnns.ConvolutionLayer(np.ones((1, 1, 2, 2), "f4"), input=(1, 3, 3))
            >>> x = np.arange(1, 10, dtype="f4").reshape(1, 1, 3, 3)
            >>> grads = layer.apply_backward(x, None, np.ones((1, 1, 2, 2), "f4"))
            >>> grads.input.tolist()
            [[[[1.0, 2.0, 1.0], [2.0, 4.0, 2.0], [1.0, 2.0, 1.0]]]]
            >>> grads.weights.tolist()
            [[[[12.0, 16.0], [24.0, 28.0]]]]

        See also: ``BNNSFilterApplyBackwardBatch``.
        """
        bits = 0
        if accumulate is not False:
            targets = {"input": input_gradient, "weights": weights_gradient, "bias": bias_gradient}
            bits = accumulate_bits(type(self).__name__, accumulate, targets)
        return WeightGradients(
            *_backward(
                self._filter,
                x,
                y,
                grad_output,
                input_gradient,
                weights_gradient,
                bias_gradient,
                bits,
            )
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}(input={self._input_spec!r}, output={self._output_spec!r})"


class TransposedConvolutionLayer(ConvolutionLayer):
    """``ConvolutionLayer(transposed=True)``.

    Args:
        weights: (C, O / groups, kH, kW).
        input, output, …: as for ``ConvolutionLayer``.

    Examples:
        >>> import numpy as np, openbnns
        >>> layer = openbnns.TransposedConvolutionLayer(
        ...     np.ones((1, 1, 3, 3), "f4"), input=(1, 2, 2))
        >>> layer(np.ones((1, 1, 2, 2), "f4"))[0, 0]
        array([[1., 2., 2., 1.],
               [2., 4., 4., 2.],
               [2., 4., 4., 2.],
               [1., 2., 2., 1.]], dtype=float32)

    See also: ``BNNSFilterCreateLayerTransposedConvolution``.
    """

    __slots__ = ()

    def __init__(
        self,
        weights: Array,
        *,
        input: SpecLike,
        output: SpecLike | None = None,
        bias: Array | None = None,
        stride: Pair = 1,
        padding: Padding = 0,
        dilation: Pair = 1,
        groups: int = 1,
        activation: ActivationLike = "identity",
        output_padding: Pair = 0,
        weights_spec: ArraySpec | None = None,
        winograd: bool | None = None,
        num_threads: int | None = None,
        copy_parameters: bool = False,
    ) -> None:
        super().__init__(
            weights,
            input=input,
            output=output,
            bias=bias,
            stride=stride,
            padding=padding,
            dilation=dilation,
            groups=groups,
            activation=activation,
            transposed=True,
            output_padding=output_padding,
            weights_spec=weights_spec,
            winograd=winograd,
            num_threads=num_threads,
            copy_parameters=copy_parameters,
        )


def describe(
    where: str,
    spec: ArraySpec,
    output: ArraySpec | None,
    weights: Array,
    bias: Array | None,
    stride: Pair,
    padding: Padding,
    dilation: Pair,
    groups: int,
    activation: ActivationLike,
    transposed: bool,
    output_padding: Pair = 0,
    weights_spec: ArraySpec | None = None,
) -> tuple[tuple[Any, ...], ArraySpec]:
    """A convolution of samples like ``spec`` for the native side, see parse_convolution in
    bindings/convolution.cpp, and the spec of its output. Fused layers use it too."""
    if len(spec.shape) != 3:
        raise LayerCreationError(
            f"[{where}] input: expected samples (channels, height, width); got {spec.shape}"
        )
    if count(where, "groups", groups) < 1:
        raise LayerCreationError(f"[{where}] groups: expected at least 1; got {groups!r}")
    held = _weights_spec(where, weights, weights_spec, transposed)
    channels, kernel = _roles(held, transposed, groups)
    steps = pair(where, "stride", stride, 1)
    dilations = pair(where, "dilation", dilation, 1)
    surplus = pair(where, "output_padding", output_padding, 0)
    if transposed and padding == "same":
        raise LayerCreationError(
            f"[{where}] padding: expected numbers for a transposed convolution; got 'same'"
        )
    if any(surplus) and (not transposed or output is not None):
        raise LayerCreationError(
            f"[{where}] output_padding: expected 0 unless the layer is transposed and output "
            f"is left out; got {output_padding!r}"
        )
    sides = padding_of(where, padding, spec.shape[1:], kernel, steps, dilations)
    if output is None:
        axes = zip(spec.shape[1:], kernel, steps, dilations, sides, surplus, strict=True)
        extents = [_extent(where, transposed, *axis) for axis in axes]
        output = ArraySpec((channels, *extents), output_type(spec))
    description = (
        spec._operand(),
        output._operand(),
        held._operand(),
        bias_spec(where, bias, channels, output)._operand(),
        weights,
        bias,
        Activation.of(activation, where)._native(where, output.shape),
        transposed,
        steps,
        dilations,
        (*sides[0], *sides[1]),
        groups,
    )
    return description, output


def _weights_spec(
    where: str, weights: Array, given: ArraySpec | None, transposed: bool
) -> ArraySpec:
    """The spec of four axes. A layout that is not said is OIHW; transposed it stays unsaid, which
    the C interface reads as (I, O, kH, kW)."""
    if given is None:
        array = as_array(where, "weights", weights)
        given = ArraySpec(array.shape, data_type_of(array.dtype))
    if len(given.shape) != 4:
        axes = "(inputs, outputs, height, width)" if transposed else "(outputs, inputs, …)"
        raise LayerCreationError(
            f"[{where}] weights: expected four axes, {axes}; got {given.shape}"
        )
    return given if transposed or given.layout is not None else given.with_layout("OIHW")


def _roles(spec: ArraySpec, transposed: bool, groups: int) -> tuple[int, tuple[int, int]]:
    """Output channels of the layer, and (kernel height, kernel width)."""
    first, second, height, width = spec.shape
    if transposed and spec.layout is None:
        return second * groups, (height, width)
    return second if spec.layout == "IOHrWr" else first, (height, width)


def _extent(
    where: str,
    transposed: bool,
    extent: int,
    kernel: int,
    stride: int,
    dilation: int,
    sides: tuple[int, int],
    surplus: int,
) -> int:
    """Output extent of one axis: all windows inside the padded image, transposed the reverse."""
    window = (kernel - 1) * dilation + 1
    if transposed:
        inferred = (extent - 1) * stride + window - sum(sides) + surplus
    else:
        inferred = (extent + sum(sides) - window) // stride + 1
    if inferred < 1:
        raise LayerCreationError(
            f"[{where}] weights: expected a kernel that fits "
            f"{'the output' if transposed else 'into the padded image'}; got one of {window} "
            f"(dilation included) for {extent} with padding {sides}"
        )
    return inferred


def output_type(spec: ArraySpec) -> str:
    """Integers come out as float32."""
    return spec.data_type if spec.data_type in _FLOATS else "float32"


def bias_spec(where: str, bias: Array | None, channels: int, output: ArraySpec) -> ArraySpec:
    """One value per output channel; its gradient has this type even when there is no bias."""
    if bias is None:
        return ArraySpec((channels,), output.data_type)
    return ArraySpec((channels,), data_type_of(as_array(where, "bias", bias)))
