"""The activation functions as values: names, codes of the C interface, parameters and defaults."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from math import pi, sqrt
from typing import Any, ClassVar, TypeAlias

from ._errors import LayerCreationError
from ._spoken import spoken

ActivationLike: TypeAlias = "str | Activation | None"


@spoken(LayerCreationError)
class Activation:
    """An activation function with its parameters.

    Functions without parameters are attributes, the others are constructors; wherever an activation
    is expected, the name as a string does too if its parameters have defaults. ``None`` is the
    identity. x is the input; formulas with two parameters name them alpha and beta as in C.

    Attributes:
        name: the word, for example ``"leaky_rectified_linear"``.
        alpha, beta: parameters, 0 where the function has none.

    Examples:
        >>> from openbnns import Activation
        >>> Activation.tanh
        Activation.tanh
        >>> Activation.leaky_rectified_linear(alpha=0.1)
        Activation.leaky_rectified_linear(0.1)
        >>> Activation.of("relu")
        Activation.rectified_linear

    See also: ``BNNSActivation``, ``BNNSActivationFunction``.
    """

    __slots__ = ("_code", "_integers", "_parameters", "alpha", "beta", "name")

    name: str
    alpha: float
    beta: float
    _code: int
    _parameters: int  # how many of alpha, beta the function has
    _integers: tuple[Any, Any, Any] | None  # scale, offset, shift: numbers, or tuples of numbers

    abs: ClassVar[Activation]
    erf: ClassVar[Activation]
    gelu: ClassVar[Activation]
    gelu_approximation_sigmoid: ClassVar[Activation]
    identity: ClassVar[Activation]
    log_sigmoid: ClassVar[Activation]
    log_softmax: ClassVar[Activation]
    rectified_linear: ClassVar[Activation]
    relu: ClassVar[Activation]
    relu6: ClassVar[Activation]
    selu: ClassVar[Activation]
    sigmoid: ClassVar[Activation]
    silu: ClassVar[Activation]
    softmax: ClassVar[Activation]
    softsign: ClassVar[Activation]
    swish: ClassVar[Activation]
    tanh: ClassVar[Activation]
    tanh_shrink: ClassVar[Activation]

    def __init__(
        self,
        name: str,
        code: int,
        parameters: Sequence[float] = (),
        integers: tuple[Any, Any, Any] | None = None,
    ) -> None:
        alpha, beta = (*parameters, 0.0, 0.0)[:2]
        values = {
            "name": name,
            "alpha": float(alpha),
            "beta": float(beta),
            "_code": code,
            "_parameters": len(parameters),
            "_integers": integers,
        }
        for field, value in values.items():
            object.__setattr__(self, field, value)

    # ---- one parameter ----

    @staticmethod
    def celu(alpha: float = 1.0) -> Activation:
        """x < 0 ? alpha·(exp(x/alpha) − 1) : x."""
        return Activation("celu", 24, (alpha,))

    @staticmethod
    def elu(alpha: float = 1.0) -> Activation:
        """x < 0 ? alpha·(exp(x) − 1) : x."""
        return Activation("elu", 18, (alpha,))

    @staticmethod
    def hard_shrink(alpha: float = 0.5) -> Activation:
        """|x| < |alpha| ? 0 : x."""
        return Activation("hard_shrink", 25, (alpha,))

    @staticmethod
    def leaky_rectified_linear(alpha: float = 0.01) -> Activation:
        """x < 0 ? alpha·x : x. Alias ``leaky_relu``."""
        return Activation("leaky_rectified_linear", 2, (alpha,))

    leaky_relu = leaky_rectified_linear

    @staticmethod
    def linear(alpha: float) -> Activation:
        """alpha·x."""
        return Activation("linear", 7, (alpha,))

    @staticmethod
    def prelu_per_channel(alpha: float = 0.25) -> Activation:
        """Leaky with one alpha per channel of a (C, H, W) sample, all starting at alpha.

        Alias ``prelu``.
        """
        return Activation("prelu_per_channel", 29, (alpha,))

    prelu = prelu_per_channel

    @staticmethod
    def soft_shrink(alpha: float = 0.5) -> Activation:
        """|x| < |alpha| ? 0 : x − copysign(alpha, x)."""
        return Activation("soft_shrink", 26, (alpha,))

    # ---- two parameters ----

    @staticmethod
    def clamp(low: float, high: float) -> Activation:
        """min(max(x, low), high)."""
        return Activation("clamp", 8, (low, high))

    @staticmethod
    def clamped_leaky_rectified_linear(alpha: float, beta: float) -> Activation:
        """min(x < 0 ? alpha·x : x, beta)."""
        return Activation("clamped_leaky_rectified_linear", 19, (alpha, beta))

    @staticmethod
    def gelu_approximation(alpha: float = sqrt(2 / pi), beta: float = 0.044715) -> Activation:
        """x/2·(1 + tanh(alpha·(x + beta·x³))). Alias ``gelu_tanh``."""
        return Activation("gelu_approximation", 12, (alpha, beta))

    gelu_tanh = gelu_approximation

    @staticmethod
    def gelu_approximation_2(alpha: float = 1 / 6, beta: float = 0.5) -> Activation:
        """x·min(max(x + 3, 0), 6)/6; the C function has alpha and beta but does not use them."""
        return Activation("gelu_approximation_2", 30, (alpha, beta))

    @staticmethod
    def gumbel(alpha: float, beta: float) -> Activation:
        """−log(−log(alpha·U + beta) + beta), U random in (0, 1); see ``openbnns.set_seed``."""
        return Activation("gumbel", 13, (alpha, beta))

    @staticmethod
    def gumbel_max(alpha: float, beta: float) -> Activation:
        """The largest of x plus Gumbel noise along the axes of the layer."""
        return Activation("gumbel_max", 14, (alpha, beta))

    @staticmethod
    def hard_sigmoid(alpha: float = 1 / 6, beta: float = 0.5) -> Activation:
        """min(max(alpha·x + beta, 0), 1)."""
        return Activation("hard_sigmoid", 15, (alpha, beta))

    @staticmethod
    def hard_swish(alpha: float = 1 / 6, beta: float = 0.5) -> Activation:
        """x·min(max(x + 3, 0), 6)/6; the C function has alpha and beta but does not use them."""
        return Activation("hard_swish", 30, (alpha, beta))

    @staticmethod
    def linear_with_bias(alpha: float, beta: float) -> Activation:
        """alpha·x + beta."""
        return Activation("linear_with_bias", 20, (alpha, beta))

    @staticmethod
    def scaled_tanh(alpha: float, beta: float) -> Activation:
        """alpha·tanh(beta·x)."""
        return Activation("scaled_tanh", 5, (alpha, beta))

    @staticmethod
    def softplus(alpha: float = 1.0, beta: float = 1.0) -> Activation:
        """alpha·log(1 + exp(beta·x))."""
        return Activation("softplus", 16, (alpha, beta))

    @staticmethod
    def threshold(alpha: float, beta: float) -> Activation:
        """x <= alpha ? beta : x."""
        return Activation("threshold", 28, (alpha, beta))

    # ---- integers ----

    @staticmethod
    def integer_linear_saturate(scale: int, offset: int = 0, shift: int = 0) -> Activation:
        """(scale·x + offset) >> shift, saturated to the integer type of the output."""
        return Activation("integer_linear_saturate", 9, (), (int(scale), int(offset), int(shift)))

    @staticmethod
    def integer_linear_saturate_per_channel(
        scale: Sequence[int], offset: Sequence[int], shift: Sequence[int]
    ) -> Activation:
        """The same with one scale, offset and shift per channel."""
        lists = tuple(tuple(int(value) for value in values) for values in (scale, offset, shift))
        if len({len(values) for values in lists}) != 1:
            raise LayerCreationError(
                "[Activation] integer_linear_saturate_per_channel: expected as many offsets and "
                f"shifts as scales; got {', '.join(str(len(values)) for values in lists)}"
            )
        return Activation(
            "integer_linear_saturate_per_channel", 10, (), (lists[0], lists[1], lists[2])
        )

    # ---- use ----

    @classmethod
    def of(cls, value: ActivationLike, where: str = "Activation") -> Activation:
        """The activation for a name, an activation or None.

        Args:
            value: what was given.
            where: the class named in messages.

        Raises:
            LayerCreationError: no such name, or one whose parameters have no defaults.
        """
        if value is None:
            return cls.identity
        if isinstance(value, Activation):
            return value
        found = getattr(cls, value, None) if isinstance(value, str) and value in _NAMES else None
        if isinstance(found, Activation):
            return found
        if found is None:
            raise LayerCreationError(
                f"[{where}] activation: expected one of {', '.join(sorted(_NAMES))}; got {value!r}"
            )
        make: Callable[[], Activation] = found
        try:
            return make()
        except TypeError:
            raise LayerCreationError(
                f"[{where}] activation: expected parameters, Activation.{value}(…); got {value!r}"
            ) from None

    def _native(self, where: str, shape: Sequence[int]) -> tuple[Any, ...]:
        """What the native side reads for samples of this shape: see parse_activation in bindings/.

        It gets pointers without lengths, so the number of channels is checked here.
        """
        numbers: tuple[Any, ...] = (0, 0, 0)
        lists: tuple[Any, ...] = (None, None, None)
        if self._integers and isinstance(self._integers[0], tuple):
            channels = shape[0] if shape else 1
            if len(self._integers[0]) != channels:
                raise LayerCreationError(
                    f"[{where}] activation: expected {channels} scales, one per channel of "
                    f"{tuple(shape)}; got {len(self._integers[0])}"
                )
            lists = tuple(array("i", values) for values in self._integers)
        elif self._integers:
            numbers = self._integers
        return (self._code, self.alpha, self.beta, *numbers, *lists)

    @property
    def _uses_axes(self) -> bool:
        return self.name in ("softmax", "log_softmax", "gumbel_max")

    def _key(self) -> tuple[Any, ...]:
        return (self._code, self.alpha, self.beta, self._integers)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"Activation is frozen; cannot set {name}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"Activation is frozen; cannot delete {name}")

    def __reduce__(self) -> tuple[Any, ...]:
        parameters = (self.alpha, self.beta)[: self._parameters]
        return Activation, (self.name, self._code, parameters, self._integers)

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, Activation) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        values = self._integers or (self.alpha, self.beta)[: self._parameters]
        text = ", ".join(f"{v:g}" if isinstance(v, float) else str(v) for v in values)
        return f"Activation.{self.name}({text})" if values else f"Activation.{self.name}"


for _name, _code in {
    "abs": 6,
    "erf": 33,
    "gelu": 34,
    "gelu_approximation_sigmoid": 35,
    "identity": 0,
    "log_sigmoid": 22,
    "log_softmax": 21,
    "rectified_linear": 1,
    "relu6": 32,
    "selu": 23,
    "sigmoid": 3,
    "silu": 31,
    "softmax": 11,
    "softsign": 17,
    "tanh": 4,
    "tanh_shrink": 27,
}.items():
    setattr(Activation, _name, Activation(_name, _code))
Activation.relu = Activation.rectified_linear
Activation.swish = Activation.silu

_NAMES = frozenset(
    name
    for name, value in vars(Activation).items()
    if isinstance(value, (Activation, staticmethod)) and not name.startswith("_")
)
