"""The layers that can be put together to a fused one, as values."""

from __future__ import annotations

from typing import Any, Literal

from ._activations import ActivationLike
from ._errors import LayerCreationError
from ._spec import Array, Padding, Pair
from ._spoken import spoken
from .arithmetic import Kind
from .normalization import Normalization, NormalizationLike
from .pooling import Pooling, PoolingLike


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


@spoken(LayerCreationError)
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
        "bias",
        "dilation",
        "groups",
        "padding",
        "stride",
        "transposed",
        "weights",
        "winograd",
    )

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
            weights=weights,
            bias=bias,
            stride=stride,
            dilation=dilation,
            groups=groups,
            padding=padding,
            transposed=transposed,
            winograd=winograd,
        )


@spoken(LayerCreationError)
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


@spoken(LayerCreationError)
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
        "activation",
        "beta",
        "epsilon",
        "gamma",
        "momentum",
        "moving_mean",
        "moving_variance",
        "normalization",
    )

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


@spoken(LayerCreationError)
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
            pooling=Pooling.of(pooling, type(self).__name__),
            kernel_size=kernel_size,
            stride=stride,
            padding=padding,
            dilation=dilation,
            activation=activation,
        )


@spoken(LayerCreationError)
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


@spoken(LayerCreationError)
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


# Arithmetic on one, two or three arrays.
@spoken(LayerCreationError)
class ArithmeticParameters(FusableLayerParameters):
    __slots__ = ("function", "kinds", "output_kind")

    function: str
    kinds: tuple[Kind, ...]
    output_kind: Kind

    def __repr__(self) -> str:
        words = ("input",) if len(self.kinds) == 1 else ("a", "b", "c")
        kinds = ", ".join(f"{w}_kind={k!r}" for w, k in zip(words, self.kinds, strict=False))
        return (
            f"{type(self).__name__}({self.function!r}, {kinds}, output_kind={self.output_kind!r})"
        )


@spoken(LayerCreationError)
class FusedUnaryArithmeticParameters(ArithmeticParameters):
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


@spoken(LayerCreationError)
class FusedBinaryArithmeticParameters(ArithmeticParameters):
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


@spoken(LayerCreationError)
class FusedTernaryArithmeticParameters(ArithmeticParameters):
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


def _shown(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return repr(value) if shape is None else f"array {tuple(shape)}"
