"""Two layers in one: a convolution, a fully connected layer or arithmetic, then a normalization or
a quantization; behind a normalization of images a pooling may follow. What lies between them stays
inside."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, TypeVar, overload

import numpy.typing as npt

from . import _core, pooling
from ._activations import ActivationLike
from ._errors import ArrayError, LayerCreationError
from ._fused_descriptions import checked, describe_first, describe_second
from ._fused_parameters import (
    INPUT_NAMES,
    ArithmeticParameters,
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
    "FusableLayerParameters", "FusedBinaryArithmeticParameters",
    "FusedConvolutionNormalizationLayer", "FusedConvolutionParameters",
    "FusedDequantizationParameters", "FusedFullyConnectedNormalizationLayer",
    "FusedFullyConnectedParameters", "FusedGradients", "FusedLayer", "FusedNormalizationParameters",
    "FusedParametersLayer", "FusedPoolingParameters", "FusedQuantizationParameters",
    "FusedTernaryArithmeticParameters", "FusedUnaryArithmeticParameters",
]  # fmt: skip

T = TypeVar("T")

_apply = _core.fused_apply
_backward = _core.fused_backward

_WEIGHTED_NAMES = ("weights", "bias", "beta", "gamma")
_ARITHMETIC_NAMES = ("beta", "gamma")


class FusedGradients:
    """Gradients of a fused layer; None where one was left out or does not exist.

    ``inputs``: one per input. ``parameters``: in the order of the C interface, weights, bias, beta,
    gamma, or beta, gamma behind arithmetic. Each has its own name too, and ``input`` is the first
    of the inputs. Iterating gives the inputs, then the parameters as one tuple.

    See also: ``BNNSFusedFilterApplyBackwardBatch``.
    """

    __slots__ = ("inputs", "parameters")

    inputs: tuple[Any, ...]
    parameters: tuple[Any, ...]

    def __init__(self, inputs: tuple[Any, ...], parameters: tuple[Any, ...]) -> None:
        object.__setattr__(self, "inputs", inputs)
        object.__setattr__(self, "parameters", parameters)

    @property
    def input(self) -> Any:
        """The gradient of the first input."""
        return self.inputs[0]

    @property
    def weights(self) -> Any:
        """The gradient of the weights; None behind arithmetic."""
        return self.parameters[0] if len(self.parameters) == 4 else None

    @property
    def bias(self) -> Any:
        """The gradient of the first layer's bias; None behind arithmetic."""
        return self.parameters[1] if len(self.parameters) == 4 else None

    @property
    def beta(self) -> Any:
        """The gradient of beta."""
        return self.parameters[-2]

    @property
    def gamma(self) -> Any:
        """The gradient of gamma."""
        return self.parameters[-1]

    def __iter__(self) -> Iterator[Any]:
        yield from self.inputs
        yield self.parameters

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"FusedGradients is frozen; cannot set {name}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"FusedGradients is frozen; cannot delete {name}")

    def __repr__(self) -> str:
        return f"FusedGradients(inputs={self.inputs!r}, parameters={self.parameters!r})"


# ---- the layers ----


class FusedLayer(Layer):
    """Base of the layers that are several in one. A training call keeps what the gradients need
    inside the layer, so it serves one training or backward call at a time."""

    __slots__ = ("_components", "_input_specs", "_parameter_names")

    _components: tuple[FusableLayerParameters, ...]
    _input_specs: tuple[ArraySpec, ...]
    _parameter_names: tuple[str, ...]

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
                where, third.pooling, between, given, third.kernel_size, third.stride,
                third.padding, third.dilation, third.activation,
            )  # fmt: skip
        is_weighted = not isinstance(first, ArithmeticParameters)
        self._parameter_names = _WEIGHTED_NAMES if is_weighted else _ARITHMETIC_NAMES
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
    def parameter_names(self) -> tuple[str, ...]:
        """What ``parameter_gradients`` and ``FusedGradients.parameters`` hold, in order."""
        return self._parameter_names

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

    def __call__(self, x: Array, *, training: bool, out: Any = None) -> Any:
        """The same as ``apply``."""
        return _apply(self._filter, out, training, x)

    def apply_backward(
        self,
        x: Array | None,
        y: Array | None,
        grad_output: Array,
        *,
        input_gradient: GradientTarget = True,
        parameter_gradients: bool | Sequence[GradientTarget] = True,
        accumulate: bool | Collection[str] = False,
    ) -> FusedGradients:
        """The gradients of the batch of the last training call.

        Args:
            x: (N, *input shape) of that call; None when no weights gradient is wanted.
            y: (N, *output shape), its result; None unless there is an activation.
            grad_output: (N, *output shape), the gradient of y.
            input_gradient: True allocates, an array (N, *input shape) is written to, None skips.
            parameter_gradients: one target per name in ``parameter_names``, or True or None for
                all. True allocates the gradients of parameters the layer has.
            accumulate: True adds to the arrays given as targets instead of overwriting them; a set
                out of ``"input"`` and ``parameter_names`` picks some.

        Returns:
            ``FusedGradients``.

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
            ...     x, y, np.array([[1, 0], [0, 2]], "f4"),
            ...     parameter_gradients=(True, None, beta, gamma))
            >>> beta.tolist(), gamma.tolist()
            ([1.0, 2.0], [-1.0, 2.0])

        See also: ``BNNSFusedFilterApplyBackwardBatch``.
        """
        return self._gradients(
            (x,), y, grad_output, (input_gradient,), parameter_gradients, accumulate
        )

    def _gradients(
        self,
        xs: Sequence[Array | None],
        y: Array | None,
        grad_output: Array,
        input_gradients: Sequence[GradientTarget],
        parameter_gradients: bool | Sequence[GradientTarget] | None,
        accumulate: bool | Collection[str],
    ) -> FusedGradients:
        names = self._parameter_names
        targets = _targets(type(self).__name__, "parameter_gradients", names, parameter_gradients)
        bits = 0
        if accumulate is not False:
            every = (*self._input_names, *names), (*input_gradients, *targets)
            bits = accumulate_bits(type(self).__name__, accumulate, dict(zip(*every, strict=True)))
        return FusedGradients(
            *_backward(self._filter, y, grad_output, bits, *xs, *input_gradients, *targets)
        )

    @property
    def _input_names(self) -> tuple[str, ...]:
        number = len(self._input_specs)
        return ("input",) if number == 1 else INPUT_NAMES[:number]

    def work_bytes(self, batch: int) -> int:
        """Bytes that calls with a batch of this size hold while they run, at most.

        The memory belongs to the calling thread and serves all layers; it is not counted twice.

        Args:
            batch: number of samples.

        Raises:
            LayerApplyError: the layer is closed.

        See also: ``obn_filter_work_bytes``.
        """
        return _core.fused_work_bytes(self._filter, batch)

    def kept_bytes(self, batch: int) -> int:
        """Bytes that a training call with a batch of this size keeps for its gradients.

        The memory belongs to the layer; the next training call uses it again.

        Args:
            batch: number of samples.

        Raises:
            LayerApplyError: the layer is closed.

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

    @overload
    def apply(self, *xs: Array, training: bool, out: None = None) -> npt.NDArray[Any]: ...
    @overload
    def apply(self, *xs: Array, training: bool, out: T) -> T: ...
    def apply(self, *xs: Array, training: bool, out: Any = None) -> Any:
        """The output for a batch.

        Args:
            xs: as many arrays as the layer has inputs, (N, *shape); no N for those that are not
                samples.
            training: see ``FusedLayer.apply``; without a normalization it does not matter.
            out: (N, *output shape) to write to, or None.

        Returns:
            ``out`` or a new array.

        Raises:
            ArrayError: an array does not fit.
            LayerApplyError: the layer is closed, or the C call failed.

        See also: ``BNNSFusedFilterApplyMultiInputBatch``.
        """
        return _apply(self._filter, out, training, *xs)

    def __call__(self, *xs: Array, training: bool, out: Any = None) -> Any:
        """The same as ``apply``."""
        return _apply(self._filter, out, training, *xs)

    def apply_backward(  # type: ignore[override]
        self,
        *xs: Array | None,
        y: Array | None,
        grad_output: Array,
        input_gradients: bool | Sequence[GradientTarget] | None = True,
        parameter_gradients: bool | Sequence[GradientTarget] = True,
        accumulate: bool | Collection[str] = False,
    ) -> FusedGradients:
        """The gradients of the batch of the last training call.

        Args:
            xs: the inputs of that call; None for those that no gradient needs.
            y: (N, *output shape), its result; None unless there is an activation.
            grad_output: (N, *output shape), the gradient of y.
            input_gradients: one target per input, or True or None for all. Inputs that were one
                array share one target, which receives the sum.
            parameter_gradients: one target per name in ``parameter_names``, or True or None for
                all.
            accumulate: True adds to the arrays given as targets instead of overwriting them; a set
                out of ``"input"`` (several inputs: ``"a"``, ``"b"``, ``"c"``) and
                ``parameter_names`` picks some.

        Returns:
            ``FusedGradients``.

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
            >>> grads = layer.apply_backward(a, b, y=None, grad_output=np.eye(2, dtype="f4"))
            >>> grads.beta, len(grads.inputs), grads.gamma
            (array([1., 1.], dtype=float32), 2, None)

        See also: ``BNNSFusedFilterApplyBackwardMultiInputBatch``.
        """
        names = self._input_names
        if len(xs) != len(names):
            raise _miscounted(type(self).__name__, "xs", names, xs)
        targets = _targets(type(self).__name__, "input_gradients", names, input_gradients)
        return self._gradients(xs, y, grad_output, targets, parameter_gradients, accumulate)


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
            Normalization.of(normalization, type(self).__name__), beta, gamma, momentum, epsilon,
            activation, moving_mean=moving_mean, moving_variance=moving_variance,
        )  # fmt: skip
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
            Normalization.of(normalization, type(self).__name__), beta, gamma, momentum, epsilon,
            activation, moving_mean=moving_mean, moving_variance=moving_variance,
        )  # fmt: skip
        self._create((first, second), (input,), output, num_threads, copy_parameters)


# ---- targets of gradients ----


def _targets(
    where: str,
    argument: str,
    names: tuple[str, ...],
    given: bool | Sequence[GradientTarget] | None,
) -> Sequence[GradientTarget]:
    """One target per name; True, False and None stand for all of them."""
    if given is None or given is True or given is False:
        return (given,) * len(names)
    if len(given) != len(names):
        raise _miscounted(where, argument, names, given)
    return given


def _miscounted(
    where: str, argument: str, names: tuple[str, ...], got: Sequence[Any]
) -> ArrayError:
    return ArrayError(
        f"[{where}] {argument}: expected {len(names)}, {', '.join(names)}; got {len(got)}"
    )
