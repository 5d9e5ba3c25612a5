"""Two layers in one: a convolution, a fully connected layer or arithmetic, then a normalization or
a quantization; behind a normalization of images a pooling may follow. What lies between them stays
inside."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Literal, TypeVar, overload

import numpy.typing as npt

from . import (
    _core,
    arithmetic,
    convolution,
    fully_connected,
    normalization,
    pooling,
    quantization,
)
from ._activations import ActivationLike
from ._errors import ArrayError, LayerCreationError
from ._layer import Layer, accumulate_bits
from ._spec import Array, ArraySpec, GradientTarget, Padding, Pair, SpecLike, count, spec_of
from .arithmetic import Kind
from .normalization import Normalization, NormalizationLike
from .pooling import Pooling, PoolingLike

T = TypeVar("T")

_apply = _core.fused_apply
_backward = _core.fused_backward

# BNNSFilterType.
_CONVOLUTION, _FULLY_CONNECTED, _QUANTIZATION, _ARITHMETIC, _NORM = 0, 1, 7, 8, 2

_WEIGHTED_NAMES = ("weights", "bias", "beta", "gamma")
_ARITHMETIC_NAMES = ("beta", "gamma")
_INPUT_NAMES = ("a", "b", "c")


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


# ---- the layers that can be put together ----


class FusableLayerParameters:
    """Base of the descriptions that ``FusedParametersLayer`` puts together; they cannot be changed.

    First: ``FusedConvolutionParameters``, ``FusedFullyConnectedParameters``, or one of
    ``FusedUnaryArithmeticParameters``, ``FusedBinaryArithmeticParameters`` and
    ``FusedTernaryArithmeticParameters``. Second: ``FusedNormalizationParameters``, and behind the
    first two also ``FusedQuantizationParameters`` and ``FusedDequantizationParameters``. Third, if
    any, behind a normalization: ``FusedPoolingParameters``.
    """

    __slots__: tuple[str, ...] = ()

    def _keep(self, **fields: Any) -> None:
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen; cannot set {name}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen; cannot delete {name}")

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={_shown(getattr(self, name))}" for name in self.__slots__)
        return f"{type(self).__name__}({fields})"


class FusedConvolutionParameters(FusableLayerParameters):
    """A convolution as the first of two layers.

    Args:
        weights: (O, C / groups, kH, kW); transposed: (C, O / groups, kH, kW).
        bias: (O,), or None.
        stride, dilation, groups, padding, transposed: as for ``ConvolutionLayer``.
        winograd: True allows Winograd's algorithm, False forbids it, None is the library's setting.

    Examples:
        >>> import numpy as np, openbnns
        >>> openbnns.FusedConvolutionParameters(np.ones((4, 3, 3, 3), "f4"), padding=1).padding
        1

    See also: ``BNNSLayerParametersConvolution``.
    """

    __slots__ = (
        "bias", "dilation", "groups", "padding", "stride", "transposed", "weights", "winograd",
    )  # fmt: skip

    weights: Array
    bias: Array | None
    stride: Pair
    dilation: Pair
    groups: int
    padding: Padding
    transposed: bool
    winograd: bool | None

    def __init__(
        self,
        weights: Array,
        bias: Array | None = None,
        stride: Pair = 1,
        dilation: Pair = 1,
        groups: int = 1,
        padding: Padding = 0,
        transposed: bool = False,
        *,
        winograd: bool | None = None,
    ) -> None:
        self._keep(
            weights=weights, bias=bias, stride=stride, dilation=dilation, groups=groups,
            padding=padding, transposed=transposed, winograd=winograd,
        )  # fmt: skip


class FusedFullyConnectedParameters(FusableLayerParameters):
    """A fully connected layer as the first of two layers.

    Args:
        weights: (outputs, inputs).
        bias: (outputs,), or None.

    Examples:
        >>> import numpy as np, openbnns
        >>> openbnns.FusedFullyConnectedParameters(np.eye(2, dtype="f4"))
        FusedFullyConnectedParameters(bias=None, weights=array (2, 2))

    See also: ``BNNSLayerParametersFullyConnected``.
    """

    __slots__ = ("bias", "weights")

    weights: Array
    bias: Array | None

    def __init__(self, weights: Array, bias: Array | None = None) -> None:
        self._keep(weights=weights, bias=bias)


class FusedNormalizationParameters(FusableLayerParameters):
    """A normalization as the second of two layers.

    Args:
        normalization: name or ``Normalization``.
        beta, gamma, momentum, epsilon, activation: as for ``NormalizationLayer``.
        moving_mean, moving_variance: the running statistics, likewise.

    Examples:
        >>> import openbnns
        >>> openbnns.FusedNormalizationParameters("batch", activation="relu").epsilon
        1e-05

    See also: ``BNNSLayerParametersNormalization``.
    """

    __slots__ = (
        "activation", "beta", "epsilon", "gamma", "momentum", "moving_mean", "moving_variance",
        "normalization",
    )  # fmt: skip

    normalization: Normalization
    beta: Array | None
    gamma: Array | None
    momentum: float
    epsilon: float
    activation: ActivationLike
    moving_mean: Array | None
    moving_variance: Array | None

    def __init__(
        self,
        normalization: NormalizationLike,
        beta: Array | None = None,
        gamma: Array | None = None,
        momentum: float = 0.0,
        epsilon: float = 1e-5,
        activation: ActivationLike = "identity",
        *,
        moving_mean: Array | None = None,
        moving_variance: Array | None = None,
    ) -> None:
        self._keep(
            normalization=Normalization.of(normalization, type(self).__name__),
            beta=beta,
            gamma=gamma,
            momentum=momentum,
            epsilon=epsilon,
            activation=activation,
            moving_mean=moving_mean,
            moving_variance=moving_variance,
        )


class FusedPoolingParameters(FusableLayerParameters):
    """A pooling as the third layer, behind a normalization of images. Apple's fused layers have
    none.

    Args:
        pooling: name or ``Pooling``, any but ``"unmax"``.
        kernel_size, stride, padding, dilation, activation: as for ``PoolingLayer``.

    Examples:
        >>> import openbnns
        >>> openbnns.FusedPoolingParameters("max", 2).kernel_size
        2

    See also: ``OBN_FILTER_POOLING``.
    """

    __slots__ = ("activation", "dilation", "kernel_size", "padding", "pooling", "stride")

    pooling: Pooling
    kernel_size: Pair
    stride: Pair | None
    padding: Padding
    dilation: Pair
    activation: ActivationLike

    def __init__(
        self,
        pooling: PoolingLike,
        kernel_size: Pair,
        stride: Pair | None = None,
        padding: Padding = 0,
        dilation: Pair = 1,
        activation: ActivationLike = "identity",
    ) -> None:
        self._keep(
            pooling=Pooling.of(pooling, type(self).__name__), kernel_size=kernel_size,
            stride=stride, padding=padding, dilation=dilation, activation=activation,
        )  # fmt: skip


class FusedQuantizationParameters(FusableLayerParameters):
    """Integers as the second of two layers: scale·z + bias, rounded, saturated.

    Args:
        scale, bias: a number, or an array with one value per place along ``axis``.
        axis: the axis of a sample along which they vary, ``"batch"`` for one value per sample
            (which fixes the number of samples), or None.

    Examples:
        >>> import openbnns
        >>> openbnns.FusedQuantizationParameters(scale=127.0)
        FusedQuantizationParameters(axis=None, bias=None, scale=127.0)

    See also: ``BNNSLayerParametersQuantization``.
    """

    __slots__ = ("axis", "bias", "scale")

    scale: Array | float | None
    bias: Array | float | None
    axis: int | Literal["batch"] | None

    def __init__(
        self,
        scale: Array | float | None = None,
        bias: Array | float | None = None,
        axis: int | Literal["batch"] | None = None,
    ) -> None:
        self._keep(scale=scale, bias=bias, axis=axis)


class FusedDequantizationParameters(FusedQuantizationParameters):
    """The way back as the second of two layers: (z − bias) / scale.

    Args:
        scale, bias, axis: as for ``FusedQuantizationParameters``.

    Examples:
        >>> import openbnns
        >>> openbnns.FusedDequantizationParameters(scale=127.0).scale
        127.0

    See also: ``BNNSLayerParametersQuantization``.
    """

    __slots__ = ()


class _ArithmeticParameters(FusableLayerParameters):
    __slots__ = ("function", "kinds", "output_kind")

    function: str
    kinds: tuple[Kind, ...]
    output_kind: Kind

    def __repr__(self) -> str:
        words = ("input",) if len(self.kinds) == 1 else _INPUT_NAMES
        kinds = ", ".join(f"{w}_kind={k!r}" for w, k in zip(words, self.kinds, strict=False))
        return (
            f"{type(self).__name__}({self.function!r}, {kinds}, output_kind={self.output_kind!r})"
        )


class FusedUnaryArithmeticParameters(_ArithmeticParameters):
    """A function of one array as the first of two layers.

    Args:
        function: a name of ``UnaryArithmeticLayer``.
        input_kind, output_kind: ``"sample"``, ``"parameter"`` or ``"constant"``.

    Examples:
        >>> import openbnns
        >>> openbnns.FusedUnaryArithmeticParameters("square")
        FusedUnaryArithmeticParameters('square', input_kind='sample', output_kind='sample')

    See also: ``BNNSArithmeticUnary``.
    """

    __slots__ = ()

    def __init__(
        self, function: str, input_kind: Kind = "sample", output_kind: Kind = "sample"
    ) -> None:
        self._keep(function=function, kinds=(input_kind,), output_kind=output_kind)

    @property
    def input_kind(self) -> Kind:
        """The role of the input in a batch."""
        return self.kinds[0]


class FusedBinaryArithmeticParameters(_ArithmeticParameters):
    """A function of two arrays as the first of two layers.

    Args:
        function: a name of ``BinaryArithmeticLayer``.
        a_kind, b_kind, output_kind: ``"sample"``, ``"parameter"`` or ``"constant"``.

    Examples:
        >>> import openbnns
        >>> openbnns.FusedBinaryArithmeticParameters("add", b_kind="parameter").b_kind
        'parameter'

    See also: ``BNNSArithmeticBinary``.
    """

    __slots__ = ()

    def __init__(
        self,
        function: str,
        a_kind: Kind = "sample",
        b_kind: Kind = "sample",
        output_kind: Kind = "sample",
    ) -> None:
        self._keep(function=function, kinds=(a_kind, b_kind), output_kind=output_kind)

    @property
    def a_kind(self) -> Kind:
        """The role of a in a batch."""
        return self.kinds[0]

    @property
    def b_kind(self) -> Kind:
        """The role of b in a batch."""
        return self.kinds[1]


class FusedTernaryArithmeticParameters(_ArithmeticParameters):
    """A function of three arrays as the first of two layers.

    Args:
        function: a name of ``TernaryArithmeticLayer``.
        a_kind, b_kind, c_kind, output_kind: ``"sample"``, ``"parameter"`` or ``"constant"``.

    Examples:
        >>> import openbnns
        >>> openbnns.FusedTernaryArithmeticParameters().function
        'multiply_add'

    See also: ``BNNSArithmeticTernary``.
    """

    __slots__ = ()

    def __init__(
        self,
        function: str = "multiply_add",
        a_kind: Kind = "sample",
        b_kind: Kind = "sample",
        c_kind: Kind = "sample",
        output_kind: Kind = "sample",
    ) -> None:
        self._keep(function=function, kinds=(a_kind, b_kind, c_kind), output_kind=output_kind)

    @property
    def a_kind(self) -> Kind:
        """The role of a in a batch."""
        return self.kinds[0]

    @property
    def b_kind(self) -> Kind:
        """The role of b in a batch."""
        return self.kinds[1]

    @property
    def c_kind(self) -> Kind:
        """The role of c in a batch."""
        return self.kinds[2]


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
        first, second, third = _checked(where, components)
        self._components = tuple(components)
        given = None if output is None else spec_of(where, "output", output)
        before = given if third is None else None  # the output of the first two
        kind, description, self._input_specs, between = _describe_first(
            where, first, second, inputs, before
        )
        self._input_spec = self._input_specs[0]
        second_kind, second_description, self._output_spec = _describe_second(
            where, second, between, before
        )
        third_description = None
        if third is not None:
            third_description, self._output_spec = pooling.describe(
                where, third.pooling, between, given, third.kernel_size, third.stride,
                third.padding, third.dilation, third.activation,
            )  # fmt: skip
        is_weighted = kind != _ARITHMETIC
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
        targets = _targets(
            type(self).__name__, "parameter_gradients", names, parameter_gradients
        )
        bits = 0
        if accumulate is not False:
            every = (*self._input_names, *names), (*input_gradients, *targets)
            bits = accumulate_bits(
                type(self).__name__, accumulate, dict(zip(*every, strict=True))
            )
        return FusedGradients(
            *_backward(self._filter, y, grad_output, bits, *xs, *input_gradients, *targets)
        )

    @property
    def _input_names(self) -> tuple[str, ...]:
        number = len(self._input_specs)
        return ("input",) if number == 1 else _INPUT_NAMES[:number]

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
        components: the layers in order, see ``FusableLayerParameters``. The first has no activation.
        input: one sample: a shape, an ``ArraySpec``, or a batch as an example; for a fully
            connected layer None is the shape and type of the weights' rows.
        inputs: the same for each input of arithmetic. Constants and parameters have no batch axis.
        output: the same for the output. None is inferred; a quantization needs it, because it says
            which integers. What lies between two layers is packed and of this type (with a pooling
            of the type of the input); before a quantization float32 (float16 behind a float16 input), before a dequantization of the
            type of the input.
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


# ---- descriptions for the native side ----


def _checked(
    where: str, components: Sequence[FusableLayerParameters]
) -> tuple[FusableLayerParameters, FusableLayerParameters, FusedPoolingParameters | None]:
    """The components, if they go together."""
    firsts = (FusedConvolutionParameters, FusedFullyConnectedParameters, _ArithmeticParameters)
    seconds = (FusedNormalizationParameters, FusedQuantizationParameters)
    third = components[2] if len(components) == 3 else None
    if (
        len(components) not in (2, 3)
        or not isinstance(components[0], firsts)
        or not isinstance(components[1], seconds)
        or (
            isinstance(components[0], _ArithmeticParameters)
            and not isinstance(components[1], FusedNormalizationParameters)
        )
        or (
            len(components) == 3
            and not (
                isinstance(components[1], FusedNormalizationParameters)
                and isinstance(third, FusedPoolingParameters)
            )
        )
    ):
        got = ", ".join(type(component).__name__ for component in components) or "none"
        raise LayerCreationError(
            f"[{where}] components: expected a convolution or a fully connected layer, then a "
            "normalization or a quantization, or arithmetic, then a normalization, behind which "
            f"may be a pooling; got {got}"
        )
    assert third is None or isinstance(third, FusedPoolingParameters)
    return components[0], components[1], third


def _describe_first(
    where: str,
    first: FusableLayerParameters,
    second: FusableLayerParameters,
    inputs: Sequence[SpecLike | None],
    output: ArraySpec | None,
) -> tuple[int, tuple[Any, ...], tuple[ArraySpec, ...], ArraySpec]:
    """Type, description, specs of the inputs, and the spec of what lies between the layers: packed,
    of the shape of the output."""
    if isinstance(first, _ArithmeticParameters):
        return _describe_arithmetic(where, first, inputs, output)
    if len(inputs) != 1:
        raise LayerCreationError(f"[{where}] inputs: expected one; got {len(inputs)}")
    value = inputs[0]
    if isinstance(first, FusedFullyConnectedParameters):
        spec = fully_connected.input_spec(where, value, first.weights)
        description, between = fully_connected.describe(
            where, spec, _between(spec, second, output), first.weights, first.bias, "identity"
        )
        return _FULLY_CONNECTED, description, (spec,), between
    assert isinstance(first, FusedConvolutionParameters)
    if value is None:
        raise LayerCreationError(f"[{where}] input: expected the shape of a sample; got None")
    spec = spec_of(where, "input", value)
    description, between = convolution.describe(
        where, spec, _between(spec, second, output), first.weights, first.bias, first.stride,
        first.padding, first.dilation, first.groups, "identity", first.transposed,
    )  # fmt: skip
    return _CONVOLUTION, description, (spec,), between


def _between(
    spec: ArraySpec, second: FusableLayerParameters, output: ArraySpec | None
) -> ArraySpec | None:
    """What the first layer hands on when the output is known: values of the output's type to a
    normalization, floats to a quantization, integers as in the input to a dequantization."""
    if output is None:
        return None
    if isinstance(second, FusedNormalizationParameters):
        return ArraySpec(output.shape, output.data_type)
    if isinstance(second, FusedDequantizationParameters):
        return ArraySpec(output.shape, spec.data_type)
    return ArraySpec(output.shape, "float16" if spec.data_type == "float16" else "float32")


def _describe_arithmetic(
    where: str,
    first: _ArithmeticParameters,
    inputs: Sequence[SpecLike | None],
    output: ArraySpec | None,
) -> tuple[int, tuple[Any, ...], tuple[ArraySpec, ...], ArraySpec]:
    words = ("input",) if len(first.kinds) == 1 else ("input_a", "input_b", "input_c")
    if len(inputs) != len(first.kinds) or None in inputs:
        raise LayerCreationError(
            f"[{where}] inputs: expected {len(first.kinds)} for {first.function!r}; got "
            f"{len(inputs) - list(inputs).count(None)}"
        )
    specs = [
        arithmetic.operand_spec(where, word, value, kind)
        for word, value, kind in zip(words, inputs, first.kinds, strict=False)
    ]
    if output is None:
        between = arithmetic.broadcast_spec(where, specs)
    else:
        between = ArraySpec(output.shape, output.data_type)
    description = arithmetic.describe(
        where, first.function, specs, first.kinds, between, first.output_kind, "identity"
    )
    return _ARITHMETIC, description, tuple(specs), between


def _describe_second(
    where: str, second: FusableLayerParameters, between: ArraySpec, output: ArraySpec | None
) -> tuple[int, tuple[Any, ...], ArraySpec]:
    """Type, description and the spec of the output."""
    if isinstance(second, FusedNormalizationParameters):
        description = normalization.describe(
            where, second.normalization, between, second.beta, second.gamma, second.moving_mean,
            second.moving_variance, second.momentum, second.epsilon, second.activation,
        )  # fmt: skip
        return _NORM, description, between if output is None else output
    assert isinstance(second, FusedQuantizationParameters)
    if output is None:
        raise LayerCreationError(
            f"[{where}] output: expected an ArraySpec with the type wanted; got None"
        )
    function = int(isinstance(second, FusedDequantizationParameters))
    description = quantization.describe(
        where, function, between, second.scale, second.bias, second.axis, has_batch=True
    )
    return _QUANTIZATION, description, output


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


def _shown(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return repr(value) if shape is None else f"array {tuple(shape)}"
