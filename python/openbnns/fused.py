"""Two layers in one: a convolution, a fully connected layer or arithmetic, then a normalization or
a quantization; behind a normalization of images a pooling may follow. What lies between them stays
inside."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, TypeVar, overload

import numpy.typing as npt

from . import _core, pooling
from ._activations import ActivationLike
from ._errors import LayerCreationError
from ._fused_descriptions import checked, describe_first, describe_second
from ._fused_parameters import (
    FusableLayerParameters,
    FusedBinaryArithmeticParameters,
    FusedConvolutionParameters,
    FusedDequantizationParameters,
    FusedFullyConnectedParameters,
    FusedNormalizationParameters,
    FusedPoolingParameters,
    FusedQuantizationParameters,
    FusedTernaryArithmeticParameters,
    FusedUnaryArithmeticParameters,
)
from ._layer import Layer, accumulate_bits
from ._spec import Array, ArraySpec, GradientTarget, Padding, Pair, SpecLike, count, spec_of
from .normalization import Normalization, NormalizationLike

__all__ = [
    "FusableLayerParameters",
    "FusedBinaryArithmeticParameters",
    "FusedBinaryGradients",
    "FusedConvolutionNormalizationLayer",
    "FusedConvolutionParameters",
    "FusedDequantizationParameters",
    "FusedFullyConnectedNormalizationLayer",
    "FusedFullyConnectedParameters",
    "FusedGradients",
    "FusedLayer",
    "FusedNormalizationParameters",
    "FusedParametersLayer",
    "FusedPoolingParameters",
    "FusedQuantizationParameters",
    "FusedTernaryArithmeticParameters",
    "FusedTernaryGradients",
    "FusedUnaryArithmeticParameters",
]

T = TypeVar("T")

_apply = _core.fused_apply
_backward = _core.fused_backward


class FusedGradients(NamedTuple):
    """Gradients of a fused layer with one input; None where one was left out or does not exist.

    ``weights`` and ``bias`` are those of the first layer, ``beta`` and ``gamma`` those of the
    normalization.

    See also: ``BNNSFusedFilterApplyBackwardBatch``.
    """

    input: Any
    weights: Any
    bias: Any
    beta: Any
    gamma: Any


class FusedBinaryGradients(NamedTuple):
    """Gradients of a fused layer with two inputs; None where one was left out."""

    a: Any
    b: Any
    beta: Any
    gamma: Any


class FusedTernaryGradients(NamedTuple):
    """Gradients of a fused layer with three inputs; None where one was left out."""

    a: Any
    b: Any
    c: Any
    beta: Any
    gamma: Any


# ---- the layers ----


class FusedLayer(Layer):
    """Base of the layers that are several in one. A training call keeps what the gradients need
    inside the layer, so it serves one training or backward call at a time."""

    __slots__ = ("_components", "_input_specs")

    _components: tuple[FusableLayerParameters, ...]
    _input_specs: tuple[ArraySpec, ...]

    def _create(
        self,
        components: Sequence[FusableLayerParameters],
        inputs: Sequence[SpecLike | None],
        output: SpecLike | None,
        num_threads: int | None,
        copy_parameters: bool,
    ) -> None:
        where = type(self).__name__
        first, second, third = checked(where, components)
        self._components = tuple(components)
        given = None if output is None else spec_of(where, "output", output)
        before = given if third is None else None  # the output of the first two
        kind, description, self._input_specs, between = describe_first(
            where, first, second, inputs, before
        )
        self._input_spec = self._input_specs[0]
        second_kind, second_description, self._output_spec = describe_second(
            where, second, between, before
        )
        third_description = None
        if third is not None:
            third_description, self._output_spec = pooling.describe(
                where,
                third.pooling,
                between,
                given,
                third.kernel_size,
                third.stride,
                third.padding,
                third.dilation,
                third.activation,
            )
        winograd = getattr(first, "winograd", None)
        self._filter = _core.fused_create(
            where,
            kind,
            description,
            self._output_spec._operand(),
            second_kind,
            second_description,
            third_description,
            -1 if winograd is None else int(winograd),
            count(where, "num_threads", num_threads),
            copy_parameters,
        )

    @property
    def components(self) -> tuple[FusableLayerParameters, ...]:
        """The layers this one was made of."""
        return self._components

    @overload
    def apply(self, x: Array, *, training: bool, out: None = None) -> npt.NDArray[Any]: ...
    @overload
    def apply(self, x: Array, *, training: bool, out: T) -> T: ...
    def apply(self, x: Array, *, training: bool, out: Any = None) -> Any:
        """The output for a batch.

        Args:
            x: (N, *input shape).
            training: True normalizes with the statistics of the batch, updates the running ones
                and keeps what ``apply_backward`` needs; False uses running statistics where there
                are any.
            out: (N, *output shape) to write to, or None.

        Returns:
            ``out`` or a new array.

        Raises:
            ArrayError: an array does not fit.
            LayerApplyError: the layer is closed, or the C call failed.

        See also: ``BNNSFusedFilterApplyBatch``.
        """
        return _apply(self._filter, out, training, x)

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
        beta_gradient: GradientTarget = True,
        gamma_gradient: GradientTarget = True,
        accumulate: bool | Collection[str] = False,
    ) -> FusedGradients:
        """The gradients of the batch of the last training call.

        Args:
            x: (N, *input shape) of that call; None when no weights gradient is wanted.
            y: (N, *output shape), its result; None unless there is an activation.
            grad_output: (N, *output shape), the gradient of y.
            input_gradient: True allocates, an array (N, *input shape) is written to, None skips.
            weights_gradient: the same for the weights, summed over the batch.
            bias_gradient: the same for the first layer's bias.
            beta_gradient: the same for beta of the normalization.
            gamma_gradient: the same for gamma.
            accumulate: True adds to the arrays given as targets instead of overwriting them; a set
                out of ``"input"``, ``"weights"``, ``"bias"``, ``"beta"``, ``"gamma"`` picks some.

        Returns:
            ``FusedGradients(input, weights, bias, beta, gamma)``.

        Raises:
            ArrayError: an array does not fit.
            LayerApplyError: the layer is closed, or the C call failed: there was no training call,
                or one with another batch.

        Examples:
            >>> import numpy as np, openbnns
            >>> layer = openbnns.FusedFullyConnectedNormalizationLayer(
            ...     np.eye(2, dtype="f4"), normalization="batch", epsilon=0)
            >>> x = np.array([[1, 2], [3, 4]], "f4")
            >>> y = layer(x, training=True)
            >>> beta, gamma = np.empty(2, "f4"), np.empty(2, "f4")
            >>> grads = layer.apply_backward(
            ...     x, y, np.array([[1, 0], [0, 2]], "f4"), beta_gradient=beta,
            ...     gamma_gradient=gamma)
            >>> beta.tolist(), gamma.tolist()
            ([1.0, 2.0], [-1.0, 2.0])

        See also: ``BNNSFusedFilterApplyBackwardBatch``.
        """
        targets = {
            "input": input_gradient,
            "weights": weights_gradient,
            "bias": bias_gradient,
            "beta": beta_gradient,
            "gamma": gamma_gradient,
        }
        return FusedGradients(*self._gradients((x,), y, grad_output, targets, accumulate))

    def _gradients(
        self,
        xs: Sequence[Array | None],
        y: Array | None,
        grad_output: Array,
        targets: dict[str, GradientTarget],
        accumulate: bool | Collection[str],
    ) -> tuple[Any, ...]:
        bits = 0
        if accumulate is not False:
            bits = accumulate_bits(type(self).__name__, accumulate, targets)
        return _backward(self._filter, y, grad_output, bits, *xs, *targets.values())

    def work_bytes(self, batch: int) -> int:
        """Bytes that calls with a batch of this size hold while they run, at most.

        The memory belongs to the calling thread and serves all layers; it is not counted twice.

        Args:
            batch: number of samples.

        Raises:
            LayerApplyError: the layer is closed, or no machine has so much memory.

        See also: ``obn_filter_work_bytes``.
        """
        return _core.fused_work_bytes(self._filter, batch)

    def kept_bytes(self, batch: int) -> int:
        """Bytes that a training call with a batch of this size keeps for its gradients.

        The memory belongs to the layer; the next training call uses it again.

        Args:
            batch: number of samples.

        Raises:
            LayerApplyError: the layer is closed, or no machine has so much memory.

        See also: ``obn_filter_kept_bytes``.
        """
        return _core.fused_kept_bytes(self._filter, batch)

    def __repr__(self) -> str:
        names = ", ".join(type(component).__name__ for component in self._components)
        shapes = f"input={self._input_spec!r}, output={self._output_spec!r}"
        if len(self._input_specs) > 1:
            shapes = f"inputs={self._input_specs!r}, output={self._output_spec!r}"
        return f"{type(self).__name__}({names}, {shapes})"


class FusedParametersLayer(FusedLayer):
    """Two layers in one, by their descriptions: y = second(first(x)). Behind a normalization a
    pooling may be the third.

    Args:
        components: the layers in order, see ``FusableLayerParameters``. The first has no
            activation.
        input: one sample: a shape, an ``ArraySpec``, or a batch as an example; for a fully
            connected layer None is the shape and type of the weights' rows.
        inputs: the same for each input of arithmetic. Constants and parameters have no batch axis.
        output: the same for the output. None is inferred; a quantization needs it, because it says
            which integers. What lies between two layers is packed and of this type (with a pooling
            of the type of the input); before a quantization float32 (float16 behind a float16
            input), before a dequantization of the type of the input.
        num_threads: limit for this layer; None is the library's setting.
        copy_parameters: keep copies of weights, bias, beta and gamma. Without it the layer reads
            the caller's arrays in every call, so an update in place is seen at once.

    Raises:
        LayerCreationError: the arguments do not make a layer.
        ArrayError: a parameter does not fit.

    Examples:
        >>> import numpy as np, openbnns
        >>> layer = openbnns.FusedParametersLayer(
        ...     openbnns.FusedBinaryArithmeticParameters("add"),
        ...     openbnns.FusedNormalizationParameters("batch", epsilon=0),
        ...     inputs=[(2,), (2,)])
        >>> a, b = np.array([[1, 2], [2, 3]], "f4"), np.array([[0, 0], [1, 1]], "f4")
        >>> layer(a, b, training=True)
        array([[-1., -1.],
               [ 1.,  1.]], dtype=float32)

    See also: ``BNNSFilterCreateFusedLayer``.
    """

    __slots__ = ()

    def __init__(
        self,
        *components: FusableLayerParameters,
        input: SpecLike | None = None,
        inputs: Sequence[SpecLike] | None = None,
        output: SpecLike | None = None,
        num_threads: int | None = None,
        copy_parameters: bool = False,
    ) -> None:
        if (inputs is not None) and (input is not None):
            raise LayerCreationError(
                f"[{type(self).__name__}] inputs: expected None beside input; got both"
            )
        specs = [input] if inputs is None else list(inputs)
        self._create(components, specs, output, num_threads, copy_parameters)

    @property
    def input_specs(self) -> tuple[ArraySpec, ...]:
        """Shape, type and strides of one sample of every input."""
        return self._input_specs

    # One class has one to three inputs, as in Swift, and as there a method for each number: `*xs`
    # alone would take no input by its name, and y and grad_output by nothing else.
    @overload
    def apply(self, x: Array, *, training: bool, out: None = None) -> npt.NDArray[Any]: ...
    @overload
    def apply(self, x: Array, *, training: bool, out: T) -> T: ...
    @overload
    def apply(
        self, a: Array, b: Array, *, training: bool, out: None = None
    ) -> npt.NDArray[Any]: ...
    @overload
    def apply(self, a: Array, b: Array, *, training: bool, out: T) -> T: ...
    @overload
    def apply(
        self, a: Array, b: Array, c: Array, *, training: bool, out: None = None
    ) -> npt.NDArray[Any]: ...
    @overload
    def apply(self, a: Array, b: Array, c: Array, *, training: bool, out: T) -> T: ...
    def apply(self, *xs: Any, training: bool, out: Any = None, **named: Any) -> Any:
        """The output for a batch.

        Args:
            x: (N, *input shape), where the layer has one input.
            a, b, c: the same for each of two or three; no N for those that are not samples.
            training: see ``FusedLayer.apply``; without a normalization it does not matter.
            out: (N, *output shape) to write to, or None.

        Returns:
            ``out`` or a new array.

        Raises:
            ArrayError: an array does not fit.
            LayerApplyError: the layer is closed, or the C call failed.

        See also: ``BNNSFusedFilterApplyMultiInputBatch``.
        """
        if named:
            words = ("x",) if len(self._input_specs) == 1 else ("a", "b", "c")
            rest = words[len(xs) : len(self._input_specs)]
            if named.keys() != set(rest):
                raise TypeError(
                    f"[{type(self).__name__}] expected {', '.join(rest) or 'no more'} by name; "
                    f"got {', '.join(named)}"
                )
            xs += tuple(named[word] for word in rest)
        return _apply(self._filter, out, training, *xs)

    __call__ = apply

    @overload
    def apply_backward(
        self,
        x: Array | None,
        y: Array | None,
        grad_output: Array,
        *,
        input_gradient: GradientTarget = True,
        weights_gradient: GradientTarget = True,
        bias_gradient: GradientTarget = True,
        beta_gradient: GradientTarget = True,
        gamma_gradient: GradientTarget = True,
        accumulate: bool | Collection[str] = False,
    ) -> FusedGradients: ...
    @overload
    def apply_backward(
        self,
        a: Array | None,
        b: Array | None,
        y: Array | None,
        grad_output: Array,
        *,
        a_gradient: GradientTarget = True,
        b_gradient: GradientTarget = True,
        beta_gradient: GradientTarget = True,
        gamma_gradient: GradientTarget = True,
        accumulate: bool | Collection[str] = False,
    ) -> FusedBinaryGradients: ...
    @overload
    def apply_backward(
        self,
        a: Array | None,
        b: Array | None,
        c: Array | None,
        y: Array | None,
        grad_output: Array,
        *,
        a_gradient: GradientTarget = True,
        b_gradient: GradientTarget = True,
        c_gradient: GradientTarget = True,
        beta_gradient: GradientTarget = True,
        gamma_gradient: GradientTarget = True,
        accumulate: bool | Collection[str] = False,
    ) -> FusedTernaryGradients: ...
    def apply_backward(self, *arrays: Any, **options: Any) -> Any:
        """The gradients of the batch of the last training call.

        By the number of inputs: ``apply_backward(x, y, grad_output)`` as of ``FusedLayer``,
        ``apply_backward(a, b, y, grad_output)`` or ``apply_backward(a, b, c, y, grad_output)``,
        each by position or keyword.

        Args:
            x, a, b, c: the inputs of that call; None for those that no gradient needs.
            y: (N, *output shape), its result; None unless there is an activation.
            grad_output: (N, *output shape), the gradient of y.
            input_gradient, weights_gradient, bias_gradient: with one input, as of ``FusedLayer``.
            a_gradient, b_gradient, c_gradient: with several inputs: True allocates, an array is
                written to, None skips. Inputs that were one array share one target, which receives
                the sum.
            beta_gradient, gamma_gradient: the same for those of the normalization.
            accumulate: True adds to the arrays given as targets instead of overwriting them; a set
                of fields of the result picks some.

        Returns:
            ``FusedGradients(input, weights, bias, beta, gamma)``,
            ``FusedBinaryGradients(a, b, beta, gamma)`` or
            ``FusedTernaryGradients(a, b, c, beta, gamma)``.

        Raises:
            ArrayError: an array does not fit.
            LayerApplyError: the layer is closed, or the C call failed: there was no training call,
                one with another batch, or there is no such gradient.

        Examples:
            >>> import numpy as np, openbnns
            >>> layer = openbnns.FusedParametersLayer(
            ...     openbnns.FusedBinaryArithmeticParameters("add"),
            ...     openbnns.FusedNormalizationParameters("batch", np.zeros(2, "f4"), epsilon=0),
            ...     inputs=[(2,), (2,)])
            >>> a, b = np.array([[1, 2], [2, 3]], "f4"), np.array([[0, 0], [1, 1]], "f4")
            >>> y = layer(a, b, training=True)
            >>> grads = layer.apply_backward(a, b, y, np.eye(2, dtype="f4"), a_gradient=None)
            >>> grads.a, grads.b.shape, grads.beta
            (None, (2, 2), array([1., 1.], dtype=float32))

        See also: ``BNNSFusedFilterApplyBackwardMultiInputBatch``.
        """
        if len(self._input_specs) == 1:
            return super().apply_backward(*arrays, **options)
        backward = self._backward_of_two if len(self._input_specs) == 2 else self._backward_of_three
        return backward(*arrays, **options)

    def _backward_of_two(
        self,
        a: Array | None,
        b: Array | None,
        y: Array | None,
        grad_output: Array,
        *,
        a_gradient: GradientTarget = True,
        b_gradient: GradientTarget = True,
        beta_gradient: GradientTarget = True,
        gamma_gradient: GradientTarget = True,
        accumulate: bool | Collection[str] = False,
    ) -> FusedBinaryGradients:
        targets = {"a": a_gradient, "b": b_gradient, "beta": beta_gradient, "gamma": gamma_gradient}
        return FusedBinaryGradients(*self._gradients((a, b), y, grad_output, targets, accumulate))

    def _backward_of_three(
        self,
        a: Array | None,
        b: Array | None,
        c: Array | None,
        y: Array | None,
        grad_output: Array,
        *,
        a_gradient: GradientTarget = True,
        b_gradient: GradientTarget = True,
        c_gradient: GradientTarget = True,
        beta_gradient: GradientTarget = True,
        gamma_gradient: GradientTarget = True,
        accumulate: bool | Collection[str] = False,
    ) -> FusedTernaryGradients:
        targets = {
            "a": a_gradient,
            "b": b_gradient,
            "c": c_gradient,
            "beta": beta_gradient,
            "gamma": gamma_gradient,
        }
        return FusedTernaryGradients(
            *self._gradients((a, b, c), y, grad_output, targets, accumulate)
        )


class FusedConvolutionNormalizationLayer(FusedLayer):
    """A convolution and a normalization in one.

    For groups, transposed convolutions or a quantization see ``FusedParametersLayer``.

    Args:
        weights: (O, C, kH, kW).
        input: one sample (C, H, W): a shape, an ``ArraySpec``, or a batch as an example.
        output: the same for the output; None is inferred.
        bias: (O,) added to every channel, or None. Behind a batch, instance or group norm that
            takes the mean away it does nothing.
        stride, dilation, padding: as for ``ConvolutionLayer``.
        normalization: name or ``Normalization``.
        beta, gamma, moving_mean, moving_variance, momentum, epsilon, activation: as for
            ``NormalizationLayer``.
        winograd: True allows Winograd's algorithm, False forbids it, None is the library's setting.
        num_threads: limit for this layer; None is the library's setting.
        copy_parameters: keep copies of weights, bias, beta and gamma. Without it the layer reads
            the caller's arrays in every call, so an update in place is seen at once.

    Raises:
        LayerCreationError: the arguments do not make a layer.
        ArrayError: a parameter does not fit.

    Examples:
        >>> import numpy as np, openbnns
        >>> layer = openbnns.FusedConvolutionNormalizationLayer(
        ...     np.ones((1, 1, 1, 2), "f4"), input=(1, 1, 4), normalization="batch", epsilon=0,
        ...     activation="relu")
        >>> layer(np.array([[[[1, 0, 1, 2]]]], "f4"), training=True).round(3)
        array([[[[0.   , 0.   , 1.414]]]], dtype=float32)

    See also: ``BNNSFilterCreateFusedLayer``.
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
        dilation: Pair = 1,
        padding: Padding = 0,
        normalization: NormalizationLike,
        beta: Array | None = None,
        gamma: Array | None = None,
        moving_mean: Array | None = None,
        moving_variance: Array | None = None,
        momentum: float = 0.0,
        epsilon: float = 1e-5,
        activation: ActivationLike = "identity",
        winograd: bool | None = None,
        num_threads: int | None = None,
        copy_parameters: bool = False,
    ) -> None:
        first = FusedConvolutionParameters(
            weights, bias, stride, dilation, 1, padding, winograd=winograd
        )
        second = FusedNormalizationParameters(
            Normalization.of(normalization, type(self).__name__),
            beta,
            gamma,
            momentum,
            epsilon,
            activation,
            moving_mean=moving_mean,
            moving_variance=moving_variance,
        )
        self._create((first, second), (input,), output, num_threads, copy_parameters)


class FusedFullyConnectedNormalizationLayer(FusedLayer):
    """A fully connected layer and a normalization in one.

    Args:
        weights: (outputs, inputs).
        input: one sample (inputs,); None is the type of the weights.
        output: the same for the output; None is inferred.
        bias: (outputs,), or None.
        normalization: name or ``Normalization``.
        beta, gamma, moving_mean, moving_variance, momentum, epsilon, activation: as for
            ``NormalizationLayer``.
        num_threads: limit for this layer; None is the library's setting.
        copy_parameters: keep copies of weights, bias, beta and gamma. Without it the layer reads
            the caller's arrays in every call, so an update in place is seen at once.

    Raises:
        LayerCreationError: the arguments do not make a layer.
        ArrayError: a parameter does not fit.

    Examples:
        >>> import numpy as np, openbnns
        >>> layer = openbnns.FusedFullyConnectedNormalizationLayer(
        ...     np.eye(2, dtype="f4"), normalization="batch", epsilon=0)
        >>> layer(np.array([[1, 2], [3, 4]], "f4"), training=True)
        array([[-1., -1.],
               [ 1.,  1.]], dtype=float32)

    See also: ``BNNSFilterCreateFusedLayer``.
    """

    __slots__ = ()

    def __init__(
        self,
        weights: Array,
        *,
        input: SpecLike | None = None,
        output: SpecLike | None = None,
        bias: Array | None = None,
        normalization: NormalizationLike,
        beta: Array | None = None,
        gamma: Array | None = None,
        moving_mean: Array | None = None,
        moving_variance: Array | None = None,
        momentum: float = 0.0,
        epsilon: float = 1e-5,
        activation: ActivationLike = "identity",
        num_threads: int | None = None,
        copy_parameters: bool = False,
    ) -> None:
        first = FusedFullyConnectedParameters(weights, bias)
        second = FusedNormalizationParameters(
            Normalization.of(normalization, type(self).__name__),
            beta,
            gamma,
            momentum,
            epsilon,
            activation,
            moving_mean=moving_mean,
            moving_variance=moving_variance,
        )
        self._create((first, second), (input,), output, num_threads, copy_parameters)
