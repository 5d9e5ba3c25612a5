"""The parts of a ``Network``: each says what it does to a shape, a batch and a gradient.

A block is a description until the network builds it for a shape; then it has parameters. What it
computes with is the layer of the same name, which it makes for itself. A block of your own needs
NumPy alone: see ``Block``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from functools import partial, wraps
from math import prod, sqrt
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from ._activations import Activation, ActivationLike
from ._errors import ArrayError, BNNSError, LayerApplyError, LayerCreationError
from ._spec import pair
from ._spoken import FOREIGN, misfit, spoken
from .activation import ActivationLayer
from .arithmetic import BinaryArithmeticLayer
from .attention import AttentionCache, MultiheadAttention, Projection
from .convolution import ConvolutionLayer
from .fully_connected import FullyConnectedLayer
from .fused import (
    FusedConvolutionNormalizationLayer,
    FusedConvolutionParameters,
    FusedFullyConnectedNormalizationLayer,
    FusedNormalizationParameters,
    FusedParametersLayer,
    FusedPoolingParameters,
)
from .normalization import NormalizationLayer, NormalizationLike
from .pooling import PoolingLayer

__all__ = [
    "Activate",
    "Attention",
    "Block",
    "Branch",
    "Convolution",
    "Dense",
    "Embedding",
    "Flatten",
    "Normalize",
    "Pool",
    "Position",
    "Rows",
]

T = TypeVar("T")
Values: TypeAlias = "npt.NDArray[Any]"
Shape: TypeAlias = "tuple[int, ...]"
Arrays: TypeAlias = "Mapping[str, Values]"
Initializer: TypeAlias = "str | Callable[[Shape, np.random.Generator], Values]"


# ---- first values of weights ----


@spoken(LayerCreationError)
def initial(how: Initializer, shape: Shape, random: np.random.Generator) -> Values:
    """First values of weights (outputs, inputs, …).

    Args:
        how: ``"xavier"``: uniform, variance 2 / (inputs + outputs); ``"he"``: normal, variance
            2 / inputs, for ReLU; ``"orthogonal"``: rows or columns at right angles; or a function
            of shape and generator. Inputs and outputs are counted with the window of a convolution.
        shape: of the weights.
        random: where the numbers come from.

    Returns:
        A new packed float32 array.

    Raises:
        LayerCreationError: no such word, or the function gave another shape.

    Examples:
        >>> import numpy as np
        >>> from openbnns.blocks import initial
        >>> w = initial("orthogonal", (2, 3), np.random.default_rng(0))
        >>> np.allclose(w @ w.T, np.eye(2), atol=1e-6)
        True
    """
    require_extents("initializer", shape)
    window = prod(shape[2:])
    inputs, outputs = shape[1] * window, shape[0] * window
    if callable(how):
        values = np.asarray(how(shape, random))
        if values.shape != shape:
            raise LayerCreationError(
                f"[initializer] expected values of shape {shape}; got {values.shape}"
            )
    elif how == "xavier":
        limit = sqrt(6 / (inputs + outputs))
        values = _drawn(shape, partial(random.uniform, -limit, limit))
    elif how == "he":
        values = _drawn(shape, partial(random.normal, 0, sqrt(2 / inputs)))
    elif how == "orthogonal" and isinstance(random, Replayed):
        values = _drawn(shape, random.standard_normal)
    elif how == "orthogonal":
        flat = random.standard_normal((max(shape[0], inputs), min(shape[0], inputs)))
        q, r = np.linalg.qr(flat)
        q *= np.where(np.diag(r) < 0, -1, 1)
        values = (q.T if shape[0] < inputs else q).reshape(shape)
    else:
        raise LayerCreationError(
            f"[initializer] expected xavier, he, orthogonal or a function; got {how!r}"
        )
    return np.ascontiguousarray(values, np.float32)


class Replayed(np.random.Generator):
    """Draws the numbers of a network whose parameters come from a file: what is drawn after them
    (seeds of dropout) stays the same, but they need not become first values."""


def _drawn(shape: Shape, draw: Callable[[int], Any]) -> Values:
    """Random float32 values, the same as if all were drawn at once, without as many float64."""
    values = np.empty(shape, np.float32)
    flat = values.reshape(-1)
    for start in range(0, flat.size, _PIECE):
        part = flat[start : start + _PIECE]
        part[...] = draw(part.size)
    return values


_PIECE = 1 << 16


def require_extents(where: str, shape: Any) -> None:
    """Every extent is a whole number from 1, and all values of such an array can be counted."""
    if not all(isinstance(n, _INTEGERS) and not isinstance(n, bool) and n >= 1 for n in shape):
        raise LayerCreationError(f"[{where}] expected extents that are at least 1; got {shape}")
    if prod(map(int, shape)) >= 1 << 60:
        raise LayerCreationError(f"[{where}] expected extents of a possible array; got {shape}")


_INTEGERS = (int, np.integer)


def _built(kind: type[T]) -> type[T]:
    """A block whose fields are said to be wrong in our words when it is built."""
    build = kind.build  # type: ignore[attr-defined]

    @wraps(build)
    def call(self: Any, shape: Shape, random: np.random.Generator) -> Shape:
        fields = {f.name: f.type for f in dataclasses.fields(self)}
        words = misfit(fields, {name: getattr(self, name) for name in fields})
        if words is None:
            try:
                return build(self, shape, random)  # type: ignore[no-any-return]
            except BNNSError:
                raise
            except FOREIGN as error:
                if callable(getattr(self, "initializer", None)):
                    raise  # it may be the user's
                words = f"expected fields that go together; got {self}: {error}"
                raise LayerCreationError(f"[{kind.__name__}] {words}") from error
        raise LayerCreationError(f"[{kind.__name__}] {words}")

    kind.build = call  # type: ignore[attr-defined]
    return kind


# ---- what every block has ----


class Block:
    """A part of a network: from one array to one array.

    To write one, derive from it, fill ``parameters`` in ``build`` and give ``forward`` and
    ``backward``. As a dataclass whose fields are plain values it can also be saved.

    Attributes:
        parameters: what training changes, float32 by name; filled by ``build``.
        statistics: what forward calls change and a saved network keeps, by name.
        needs_input, needs_output: whether ``backward`` reads x and y. The network keeps no others.

    Examples:
        >>> import numpy as np, openbnns
        >>> class Scale(openbnns.blocks.Block):
        ...     def build(self, shape, random):
        ...         self.parameters = {"factor": np.ones(shape, "f4")}
        ...         return shape
        ...     def forward(self, x, y, *, training, saved):
        ...         np.multiply(x, self.parameters["factor"], out=y)
        ...     def backward(self, x, y, grad_output, input_gradient, gradients, *, saved):
        ...         if "factor" in gradients:
        ...             np.sum(grad_output * x, axis=0, out=gradients["factor"])
        ...         if input_gradient is not None:
        ...             np.multiply(grad_output, self.parameters["factor"], out=input_gradient)
        >>> network = openbnns.Network([Scale()], input=(3,))
        >>> network.predict(np.ones((1, 3), "f4"))
        array([[1., 1., 1.]], dtype=float32)
    """

    needs_input: Any = True
    needs_output: Any = True
    parameters: Any = {}  # noqa: RUF012  replaced by build, never changed here
    statistics: Any = {}  # noqa: RUF012

    def parts(self) -> tuple[Block, ...]:
        """The blocks that do the work, one after the other: usually this one."""
        return (self,)

    def build(self, shape: Shape, random: np.random.Generator) -> Shape:
        """Make parameters for samples of this shape; returns the shape of the result's samples."""
        raise NotImplementedError

    def _shapes(self, shape: Shape) -> dict[str, Shape] | None:
        """The shapes of the parameters and statistics that ``build`` would make, by name; None:
        not known before. With it a file is compared before memory is taken for its network."""
        return None

    def saved(self, batch: int) -> dict[str, tuple[Shape, str]]:
        """Arrays that forward leaves to backward besides x and y: name → (shape, type)."""
        return {}

    def forward(self, x: Values, y: Values, *, training: bool, saved: Arrays) -> None:
        """Write the result for a batch x to y."""
        raise NotImplementedError

    def backward(
        self,
        x: Values,
        y: Values,
        grad_output: Values,
        input_gradient: Values | None,
        gradients: Arrays,
        *,
        saved: Arrays,
    ) -> None:
        """Write the gradient of x, unless it is None, and those parameters' that are asked for.

        x and y are those of the forward call (None where ``needs_input`` or ``needs_output`` is
        False), ``gradients`` has an array for each parameter that is not frozen. All are written,
        not added to.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Let native layers go; nothing runs afterwards."""
        layer = getattr(self, "_layer", None)
        if layer is not None:
            layer.close()

    def describe(self) -> dict[str, Any]:
        """The block as plain values that JSON can hold, for saved networks."""
        if not dataclasses.is_dataclass(self):
            return {}
        described = {}
        for field in settings_of(type(self)):
            value = getattr(self, field.name)
            if not isinstance(value, (str, int, float, bool, list, tuple, dict, type(None))):
                raise LayerCreationError(
                    f"[{type(self).__name__}] {field.name}: expected a plain value in a network "
                    f"that is saved; got {value!r}"
                )
            described[field.name] = value
        return described


def settings_of(kind: Any) -> list[dataclasses.Field[Any]]:
    """What a class of blocks is told when it is made; fields with an underscore are its own."""
    return [field for field in dataclasses.fields(kind) if not field.name.startswith("_")]


def _from_output(activation: ActivationLike) -> bool:
    """Whether the slope of an activation follows from its result, as fused layers need it."""
    zeros = np.zeros((1, 2), np.float32)
    with ActivationLayer(activation, input=(2,)) as layer:
        try:
            layer.apply_backward(None, zeros, zeros, alpha_gradient=None)
        except LayerApplyError:
            return False
    return True


def _is_identity(activation: ActivationLike) -> bool:
    return Activation.of(activation).name == "identity"


# ---- layers ----


class _Activated(Block):
    """What blocks that end with an activation share: one that needs more than the result is a block
    of its own behind them."""

    activation: ActivationLike

    @property
    def needs_output(self) -> bool:
        return not _is_identity(self.activation)

    def parts(self) -> tuple[Block, ...]:
        if _from_output(self.activation):
            return (self,)
        plain = dataclasses.replace(self, activation=None)  # type: ignore[type-var]
        return plain, Activate(self.activation)


_STATISTICS = ("moving_mean", "moving_variance")


def _norm_shapes(kind: Any, shape: Shape) -> dict[str, Shape]:
    """Of gamma and beta, and of what batch and instance norms keep."""
    kept = _STATISTICS if kind in ("batch", "instance") else ()
    return dict.fromkeys(("gamma", "beta", *kept), shape)


def _plain_values(name: str, shape: Shape) -> Values:
    """First values of what is not random."""
    make = np.ones if name in ("gamma", "moving_variance") else np.zeros
    return make(shape, np.float32)


class _Weighted(_Activated):
    """What dense layers and convolutions share: weights, then maybe a norm, then an activation."""

    bias: bool
    normalization: str | None
    momentum: float
    epsilon: float
    initializer: Initializer

    _layer: Any
    _is_fused: bool

    def _weights_shape(self, shape: Shape) -> Shape:
        raise NotImplementedError

    def _shapes(self, shape: Shape) -> dict[str, Shape]:
        weights = self._weights_shape(shape)
        require_extents(type(self).__name__, weights)
        shapes = {"weights": weights}
        if self.bias:
            shapes["bias"] = weights[:1]
        if self.normalization is not None:
            shapes |= _norm_shapes(self.normalization, weights[:1])
        return shapes

    def _make_parameters(self, shape: Shape, random: np.random.Generator) -> None:
        shapes = self._shapes(shape)
        self._is_fused = self.normalization is not None
        self.parameters = {"weights": initial(self.initializer, shapes.pop("weights"), random)}
        made = {name: _plain_values(name, extents) for name, extents in shapes.items()}
        self.statistics = {name: made.pop(name) for name in _STATISTICS if name in made}
        self.parameters |= made

    def _norm(self) -> dict[str, Any]:
        return {
            "normalization": self.normalization,
            "momentum": self.momentum,
            "epsilon": self.epsilon,
            **self.statistics,
        }

    def forward(self, x: Values, y: Values, *, training: bool, saved: Arrays) -> None:
        if self._is_fused:
            self._layer.apply(x, training=training, out=y)
        else:
            self._layer.apply(x, out=y)

    def backward(
        self,
        x: Values,
        y: Values,
        grad_output: Values,
        input_gradient: Values | None,
        gradients: Arrays,
        *,
        saved: Arrays,
    ) -> None:
        self._layer.apply_backward(
            x, y, grad_output, input_gradient=input_gradient, **_targets(self.parameters, gradients)
        )


@_built
@dataclasses.dataclass(eq=False)
class Dense(_Weighted):
    """A fully connected layer: (inputs,) → (units,); samples of more axes are flattened.

    Args:
        units: number of outputs.
        activation: name or ``Activation``, applied last.
        bias: whether there is one; behind a batch norm it does nothing.
        normalization: ``"batch"`` or None, between the product and the activation.
        momentum, epsilon: of the normalization.
        initializer: of the weights, see ``initial``.

    See also: ``FullyConnectedLayer``, ``FusedFullyConnectedNormalizationLayer``.
    """

    units: int
    activation: ActivationLike = None
    bias: bool = True
    normalization: str | None = None
    momentum: float = 0.9
    epsilon: float = 1e-5
    initializer: Initializer = "xavier"

    def _weights_shape(self, shape: Shape) -> Shape:
        return (self.units, prod(shape))

    def build(self, shape: Shape, random: np.random.Generator) -> Shape:
        self._make_parameters(shape, random)
        if self._is_fused:
            self._layer = FusedFullyConnectedNormalizationLayer(
                **self.parameters, **self._norm(), activation=self.activation
            )
        else:
            self._layer = FullyConnectedLayer(**self.parameters, activation=self.activation)
        return (self.units,)

    def parts(self) -> tuple[Block, ...]:
        return (Flatten(), *super().parts())


@_built
@dataclasses.dataclass(eq=False)
class Convolution(_Weighted):
    """A convolution over images: (C, H, W) → (channels, H', W').

    Args:
        channels: of the result.
        kernel_size, stride, dilation, padding: as for ``ConvolutionLayer``.
        activation: name or ``Activation``, applied last.
        bias: whether there is one; behind a normalization it does nothing.
        normalization: ``"batch"``, ``"instance"`` or None, before the activation.
        momentum, epsilon: of the normalization.
        groups: of channels that see only each other; not with a normalization.
        initializer: of the weights, see ``initial``.

    See also: ``ConvolutionLayer``, ``FusedConvolutionNormalizationLayer``.
    """

    channels: int
    kernel_size: int | tuple[int, int] = 3
    stride: int | tuple[int, int] = 1
    padding: Any = 0
    dilation: int | tuple[int, int] = 1
    activation: ActivationLike = None
    bias: bool = True
    normalization: str | None = None
    momentum: float = 0.9
    epsilon: float = 1e-5
    groups: int = 1
    initializer: Initializer = "he"

    _pool: Pool | None = None  # the pooling behind it that it does in the same pass

    def _weights_shape(self, shape: Shape) -> Shape:
        if len(shape) != 3:
            raise LayerCreationError(
                f"[Convolution] input: expected samples (channels, height, width); got {shape}"
            )
        if not isinstance(self.groups, _INTEGERS) or self.groups < 1 or shape[0] % self.groups:
            raise LayerCreationError(
                f"[Convolution] groups: expected a divisor of {shape[0]} channels; "
                f"got {self.groups}"
            )
        window = pair("Convolution", "kernel_size", self.kernel_size, 1)
        return (self.channels, shape[0] // self.groups, *window)

    def build(self, shape: Shape, random: np.random.Generator) -> Shape:
        self._make_parameters(shape, random)
        given: dict[str, Any] = {
            **self.parameters,
            "input": shape,
            "stride": self.stride,
            "padding": self.padding,
            "dilation": self.dilation,
            "activation": self.activation,
        }
        self._pool = None
        if not self._is_fused:
            self._layer = ConvolutionLayer(**given, groups=self.groups)
        elif self.groups == 1:
            self._layer = FusedConvolutionNormalizationLayer(**given, **self._norm())
        else:
            raise LayerCreationError(
                "[Convolution] groups: expected 1 with a normalization (put Normalize behind it); "
                f"got {self.groups}"
            )
        return tuple(self._layer.output_spec.shape)

    def join(self, pool: Pool) -> Shape | None:
        """The shape behind a pooling that this block does in its own pass from now on; None: it
        cannot, and the pooling stays a layer of its own."""
        if not self._is_fused or pool.kind != "max":
            return None
        p, norm = self.parameters, self._norm()
        layer = FusedParametersLayer(
            FusedConvolutionParameters(
                p["weights"], p.get("bias"), self.stride, self.dilation, padding=self.padding
            ),
            FusedNormalizationParameters(
                norm.pop("normalization"), p["beta"], p["gamma"], activation=self.activation, **norm
            ),
            FusedPoolingParameters("max", pool.kernel_size, pool.stride, pool.padding),
            input=self._layer.input_spec,
        )
        samples = 32  # some: the layer decides by the batch
        between = 4 * samples * prod(self._layer.output_spec.shape)
        if layer.kept_bytes(samples) >= self._layer.kept_bytes(samples) + between:
            layer.close()  # it would keep what lies before the pooling, which a plan shares
            return None
        self._layer.close()
        self._layer, self._pool = layer, pool
        return tuple(layer.output_spec.shape)

    @property
    def needs_output(self) -> bool:
        return self._pool is None and super().needs_output


@_built
@dataclasses.dataclass(eq=False)
class Normalize(_Activated):
    """A normalization with beta and gamma: batch, instance, layer or group.

    Args:
        kind: name or ``Normalization``.
        activation: name or ``Activation``, applied last, known from its result.
        momentum, epsilon: as for ``NormalizationLayer``.

    See also: ``NormalizationLayer``.
    """

    kind: NormalizationLike = "batch"
    activation: ActivationLike = None
    momentum: float = 0.9
    epsilon: float = 1e-5

    needs_input = True  # borrowed by the layer, which keeps no copy then

    def _shapes(self, shape: Shape) -> dict[str, Shape]:
        whole = getattr(self.kind, "name", self.kind) == "layer"
        require_extents("Normalize", shape)
        return _norm_shapes(self.kind, shape if whole else shape[:1])

    def build(self, shape: Shape, random: np.random.Generator) -> Shape:
        made = {name: _plain_values(name, extents) for name, extents in self._shapes(shape).items()}
        self.statistics = {name: made.pop(name) for name in _STATISTICS if name in made}
        self.parameters = made
        self._layer = NormalizationLayer(
            self.kind,
            input=shape,
            **self.parameters,
            **self.statistics,
            momentum=self.momentum,
            epsilon=self.epsilon,
            activation=self.activation,
            borrow_input=True,
        )
        return shape

    def forward(self, x: Values, y: Values, *, training: bool, saved: Arrays) -> None:
        self._layer.apply(x, training=training, out=y)

    def backward(
        self,
        x: Values,
        y: Values,
        grad_output: Values,
        input_gradient: Values | None,
        gradients: Arrays,
        *,
        saved: Arrays,
    ) -> None:
        self._layer.apply_backward(
            None,
            y,
            grad_output,
            input_gradient=input_gradient,
            beta_gradient=gradients.get("beta"),
            gamma_gradient=gradients.get("gamma"),
        )


@_built
@dataclasses.dataclass(eq=False)
class Activate(Block):
    """An activation of its own: any name or ``Activation``; softmax runs over the last axis.

    See also: ``ActivationLayer``.
    """

    activation: ActivationLike

    def _shapes(self, shape: Shape) -> dict[str, Shape]:
        return {}

    def build(self, shape: Shape, random: np.random.Generator) -> Shape:
        self.needs_input = not _from_output(self.activation)
        self.needs_output = True
        self._layer = ActivationLayer(self.activation, input=shape)
        return shape

    def forward(self, x: Values, y: Values, *, training: bool, saved: Arrays) -> None:
        self._layer.apply(x, out=y)

    def backward(
        self,
        x: Values,
        y: Values,
        grad_output: Values,
        input_gradient: Values | None,
        gradients: Arrays,
        *,
        saved: Arrays,
    ) -> None:
        if input_gradient is not None:
            self._layer.apply_backward(
                x, y, grad_output, input_gradient=input_gradient, alpha_gradient=None
            )


@_built
@dataclasses.dataclass(eq=False)
class Pool(Block):
    """Pooling over images: (C, H, W) → (C, H', W').

    Args:
        kind: ``"max"``, ``"average"`` or ``"l2_norm"``.
        kernel_size, stride, padding: as for ``PoolingLayer``.

    See also: ``PoolingLayer``.
    """

    kind: str = "max"
    kernel_size: int | tuple[int, int] = 2
    stride: int | tuple[int, int] | None = None
    padding: Any = 0

    @property
    def needs_input(self) -> bool:
        return self.kind == "l2_norm"

    @property
    def needs_output(self) -> bool:
        return self.kind == "l2_norm"

    def _shapes(self, shape: Shape) -> dict[str, Shape]:
        return {}

    def build(self, shape: Shape, random: np.random.Generator) -> Shape:
        self._layer = PoolingLayer(
            self.kind,
            input=shape,
            kernel_size=self.kernel_size,
            stride=self.stride,
            padding=self.padding,
        )
        return tuple(self._layer.output_spec.shape)

    def saved(self, batch: int) -> dict[str, tuple[Shape, str]]:
        if self.kind != "max":
            return {}
        return {"indices": ((batch, *self._layer.output_spec.shape), "uint32")}

    def forward(self, x: Values, y: Values, *, training: bool, saved: Arrays) -> None:
        self._layer.apply(x, out=y, indices=saved.get("indices"))

    def backward(
        self,
        x: Values,
        y: Values,
        grad_output: Values,
        input_gradient: Values | None,
        gradients: Arrays,
        *,
        saved: Arrays,
    ) -> None:
        if input_gradient is not None:
            self._layer.apply_backward(
                x,
                y,
                grad_output,
                indices=saved.get("indices"),
                input_gradient=input_gradient,
                bias_gradient=None,
            )


# ---- sequences: samples (length, width) ----


@_built
@dataclasses.dataclass(eq=False)
class Embedding(Block):
    """A vector for each number: samples of whole numbers (…) → (…, width).

    Numbers come as the network's input, of any type. The gradient of a vector is the sum over all
    places where its number stands; numbers themselves have none.

    Args:
        entries: how many numbers there are: 0 to entries − 1.
        width: of the vectors.
        scale: standard deviation of their first values.

    Examples:
        >>> import numpy as np, openbnns
        >>> from openbnns.blocks import Dense, Embedding
        >>> network = openbnns.Network([Embedding(10, 4), Dense(2)], input=(3,))
        >>> network.predict(np.array([[7, 7, 1]])).shape
        (1, 2)
    """

    entries: int
    width: int
    scale: float = 0.02

    needs_input = False  # the numbers are kept as such
    needs_output = False

    def _shapes(self, shape: Shape) -> dict[str, Shape]:
        table = self.entries, self.width
        require_extents("Embedding", table)
        if self.entries > _WHOLE:
            raise LayerCreationError(
                f"[Embedding] entries: expected 1 to {_WHOLE}; got {self.entries}"
            )
        return {"table": table}

    def build(self, shape: Shape, random: np.random.Generator) -> Shape:
        draw = partial(random.normal, 0, self.scale)
        self.parameters = {"table": _drawn(self._shapes(shape)["table"], draw)}
        self._shape = shape
        return (*shape, self.width)

    def saved(self, batch: int) -> dict[str, tuple[Shape, str]]:
        return {"numbers": ((batch, *self._shape), "int64")}

    def forward(self, x: Values, y: Values, *, training: bool, saved: Arrays) -> None:
        if x.size and not (x.min() > -0.5 and x.max() < self.entries - 0.5):  # nor for NaN
            raise ArrayError(
                f"[Embedding] x: expected numbers from 0 to {self.entries - 1}; "
                f"got {x.min():g} to {x.max():g}"
            )
        numbers = saved.get("numbers")
        if numbers is None:
            numbers = np.empty(x.shape, np.int64)
        np.rint(x, out=numbers, casting="unsafe")
        np.take(self.parameters["table"], numbers, axis=0, out=y, mode="clip")

    def backward(
        self,
        x: Values,
        y: Values,
        grad_output: Values,
        input_gradient: Values | None,
        gradients: Arrays,
        *,
        saved: Arrays,
    ) -> None:
        if "table" in gradients:
            numbers = saved["numbers"].reshape(-1)
            order = np.argsort(numbers, kind="stable")
            found, starts = np.unique(numbers[order], return_index=True)
            rows = grad_output.reshape(-1, self.width)[order]
            gradients["table"][...] = 0
            gradients["table"][found] = np.add.reduceat(rows, starts, axis=0)
        if input_gradient is not None:
            input_gradient[...] = 0


_WHOLE = 1 << 24  # float32 knows all whole numbers up to here


@_built
@dataclasses.dataclass(eq=False)
class Position(Block):
    """A learned array of a sample's shape, added to every sample: where in it a value stands.

    Args:
        scale: standard deviation of its first values.
    """

    scale: float = 0.02

    needs_input = False
    needs_output = False

    def _shapes(self, shape: Shape) -> dict[str, Shape]:
        require_extents("Position", shape)
        return {"table": shape}

    def build(self, shape: Shape, random: np.random.Generator) -> Shape:
        table = _drawn(self._shapes(shape)["table"], partial(random.normal, 0, self.scale))
        self.parameters = {"table": table}
        self._layer = BinaryArithmeticLayer("add", input_a=shape, input_b=table, b_kind="parameter")
        return shape

    def forward(self, x: Values, y: Values, *, training: bool, saved: Arrays) -> None:
        self._layer.apply(x, self.parameters["table"], out=y)

    def backward(
        self,
        x: Values,
        y: Values,
        grad_output: Values,
        input_gradient: Values | None,
        gradients: Arrays,
        *,
        saved: Arrays,
    ) -> None:
        self._layer.apply_backward(
            None,
            None,
            None,
            grad_output,
            a_gradient=input_gradient,
            b_gradient=gradients.get("table"),
        )


@_built
@dataclasses.dataclass(eq=False)
class Attention(Block):
    """Attention of a sequence to itself: (length, width) → (length, width).

    Args:
        heads: their number, a divisor of the width.
        causal: each row sees itself and those before it.
        bias: whether the four projections have one.
        initializer: of the weights, see ``initial``.
        dropout: share of the probabilities that training sets to 0, others in every step. Which
            ones follows from the network's seed and the number of its steps since it was made or
            loaded.

    See also: ``MultiheadAttention``, which has what needs a second input: other keys and values,
    and masks.
    """

    heads: int
    causal: bool = False
    bias: bool = True
    initializer: Initializer = "xavier"
    dropout: float = 0.0

    needs_output = False

    def _shapes(self, shape: Shape) -> dict[str, Shape]:
        whole = isinstance(self.heads, _INTEGERS) and self.heads >= 1
        if len(shape) != 2 or not whole or shape[1] % self.heads:
            raise LayerCreationError(
                "[Attention] input: expected samples (length, width) with a width that "
                f"{self.heads} heads divide; got {shape}"
            )
        width = shape[1]
        shapes: dict[str, Shape] = {}
        for word in _PROJECTIONS:
            outer = (width,) if word == "output" else (self.heads, width // self.heads)
            shapes[f"{word}_weights"] = (*outer, width)
            if self.bias:
                shapes[f"{word}_bias"] = outer
        return shapes

    def build(self, shape: Shape, random: np.random.Generator) -> Shape:
        self.parameters = {}
        for name, extents in self._shapes(shape).items():
            if name.endswith("_weights"):
                square = initial(self.initializer, (shape[1], shape[1]), random)
                self.parameters[name] = square.reshape(extents)
            else:
                self.parameters[name] = np.zeros(extents, np.float32)
        given: dict[str, Any] = {"lengths": shape[0], "causal": self.causal}
        for word in _PROJECTIONS:
            bias = self.parameters.get(f"{word}_bias")
            given[word] = Projection(self.parameters[f"{word}_weights"], bias)
        self._layer = self._trained = MultiheadAttention(**given)
        if self.dropout != 0:
            seed = int(random.integers(1, 1 << 32))
            self._trained = MultiheadAttention(**given, dropout=self.dropout, seed=seed)
        return shape

    def close(self) -> None:
        self._layer.close()
        self._trained.close()

    def saved(self, batch: int) -> dict[str, tuple[Shape, str]]:
        return {"cache": ((-(-self._trained.cache_bytes(batch) // 8),), "uint64")}

    def forward(self, x: Values, y: Values, *, training: bool, saved: Arrays) -> None:
        layer = self._trained if training else self._layer
        layer.apply(x, x, x, out=y, cache=_cache(saved) if saved else False)

    def backward(
        self,
        x: Values,
        y: Values,
        grad_output: Values,
        input_gradient: Values | None,
        gradients: Arrays,
        *,
        saved: Arrays,
    ) -> None:
        self._trained.apply_backward(  # one array for three inputs receives the sum
            x,
            x,
            x,
            None,
            grad_output,
            cache=_cache(saved),
            query_gradient=input_gradient,
            key_gradient=input_gradient,
            value_gradient=input_gradient,
            **_targets(self.parameters, gradients),
        )


_PROJECTIONS = ("query", "key", "value", "output")


def _targets(parameters: Iterable[str], gradients: Arrays) -> dict[str, Any]:
    """The keywords of a layer's ``apply_backward`` for all parameters; frozen ones are skipped."""
    return {f"{name}_gradient": gradients.get(name) for name in parameters}


def _cache(saved: Arrays) -> AttentionCache:
    cache = AttentionCache()
    cache._memory = saved["cache"]
    return cache


# ---- without numbers of their own ----


@dataclasses.dataclass(eq=False)
class Flatten(Block):
    """Samples of one axis: (C, H, W) → (C·H·W,). Costs nothing: the same memory."""

    def _shapes(self, shape: Shape) -> dict[str, Shape]:
        return {}

    def build(self, shape: Shape, random: np.random.Generator) -> Shape:
        return (prod(shape),)


@spoken(LayerCreationError)
@dataclasses.dataclass(eq=False, init=False)
class Branch(Block):
    """Several ways from the same input, joined: a sum, or their channels side by side.

    Args:
        paths: lists of blocks; an empty one hands its input on.
        join: ``"add"``: the results have one shape; ``"concatenate"``: all axes but the first
            agree.

    Examples:
        >>> import numpy as np, openbnns
        >>> from openbnns.blocks import Branch, Dense
        >>> residual = Branch([Dense(4, "relu"), Dense(4)], [])
        >>> openbnns.Network([residual], input=(4,)).predict(np.zeros((1, 4), "f4"))
        array([[0., 0., 0., 0.]], dtype=float32)
    """

    paths: tuple[list[Block], ...]
    join: str

    def __init__(self, *paths: list[Block], join: str = "add") -> None:
        if join not in ("add", "concatenate"):
            raise LayerCreationError(f"[Branch] join: expected add or concatenate; got {join!r}")
        if len(paths) < 2:
            raise LayerCreationError(f"[Branch] paths: expected at least two; got {len(paths)}")
        self.paths, self.join = tuple(list(path) for path in paths), join

    def close(self) -> None:
        for path in self.paths:
            for block in path:
                block.close()


@dataclasses.dataclass(eq=False, init=False)
class Rows(Block):
    """Blocks that see each row of a sample as a sample: (rows, …) → (rows, …). Costs nothing.

    At the end of a network the loss, too, is that of rows: class numbers are (N, rows) then.

    Args:
        blocks: one after the other.

    Examples:
        >>> import openbnns
        >>> from openbnns.blocks import Dense, Rows
        >>> network = openbnns.Network([Rows(Dense(4, "gelu"), Dense(2))], input=(10, 3))
        >>> network.output_shape, network.parameters()["dense_1.weights"].shape
        ((10, 2), (4, 3))
    """

    blocks: tuple[Block, ...]

    def __init__(self, *blocks: Block) -> None:
        self.blocks = blocks

    def close(self) -> None:
        for block in self.blocks:
            block.close()
