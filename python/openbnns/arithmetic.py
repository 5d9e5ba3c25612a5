"""Element-wise arithmetic on one, two or three arrays, with broadcasting."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar, overload

import numpy.typing as npt

from . import _core
from ._activations import Activation, ActivationLike
from ._errors import LayerCreationError
from ._layer import BinaryLayer, InputGradients, Layer, accumulate_bits
from ._spec import Array, ArraySpec, GradientTarget, SpecLike, count, spec_of

T = TypeVar("T")

_apply = _core.arithmetic_apply
_backward = _core.arithmetic_backward

Kind: TypeAlias = Literal["constant", "sample", "parameter"]

# BNNSDescriptorType.
_KINDS = {"constant": 0, "sample": 1, "parameter": 2}

# BNNSArithmeticFunction, by number of inputs.
FUNCTIONS: dict[int, dict[str, int]] = {
    1: {
        "abs": 32,
        "acos": 13,
        "acosh": 19,
        "asin": 12,
        "asinh": 18,
        "atan": 14,
        "atanh": 20,
        "ceil": 6,
        "cos": 10,
        "cosh": 16,
        "erf": 40,
        "exp": 22,
        "exp2": 23,
        "floor": 7,
        "log": 24,
        "log2": 25,
        "negative": 34,
        "reciprocal": 35,
        "round": 8,
        "rsqrt": 5,
        "sign": 33,
        "sin": 9,
        "sinh": 15,
        "sqrt": 4,
        "square": 36,
        "tan": 11,
        "tanh": 17,
    },
    2: {
        "add": 0,
        "divide": 3,
        "divide_no_nan": 27,
        "floor_divide": 37,
        "maximum": 30,
        "minimum": 29,
        "multiply": 2,
        "multiply_no_nan": 26,
        "pow": 21,
        "subtract": 1,
        "trunc_divide": 38,
        "trunc_remainder": 39,
    },
    3: {"multiply_add": 28, "select": 31},
}


class BinaryGradients(NamedTuple):
    """Gradients of a layer with two inputs; None where one was left out or does not exist."""

    a: Any
    b: Any


class TernaryGradients(NamedTuple):
    """Gradients of a layer with three inputs; None where one was left out or does not exist."""

    a: Any
    b: Any
    c: Any


class UnaryArithmeticLayer(Layer):
    """y = activation(function(x)), value by value.

    Args:
        function: ``"abs"``, ``"acos"``, ``"acosh"``, ``"asin"``, ``"asinh"``, ``"atan"``,
            ``"atanh"``, ``"ceil"``, ``"cos"``, ``"cosh"``, ``"erf"``, ``"exp"``, ``"exp2"``,
            ``"floor"``, ``"log"``, ``"log2"``, ``"negative"``, ``"reciprocal"``, ``"round"`` (ties
            to even), ``"rsqrt"`` (1/√x), ``"sign"``, ``"sin"``, ``"sinh"``, ``"sqrt"``,
            ``"square"``, ``"tan"``, ``"tanh"``.
        input: one sample: a shape, an ``ArraySpec``, or a batch (N, …) as an example.
        output: the same for the output; None is the shape and type of the input, packed. Axes of
            the input with extent 1 may be longer here.
        input_kind: ``"sample"``: arrays have a batch axis. ``"parameter"``: no batch axis, the
            gradient is summed over the batch. ``"constant"``: no batch axis, no gradient.
        output_kind: ``"sample"``, or one of the others when the input is no sample either.
        activation: applied last; name or ``Activation``.
        num_threads: limit for this layer; None is the library's setting.

    Raises:
        LayerCreationError: the arguments do not make a layer.

    Examples:
        >>> import numpy as np, openbnns
        >>> layer = openbnns.UnaryArithmeticLayer("square", input=(4,))
        >>> layer(np.array([[-3, -1, 2, 4]], "f4"))
        array([[ 9.,  1.,  4., 16.]], dtype=float32)

    See also: ``BNNSFilterCreateLayerArithmetic``.
    """

    __slots__ = ("_function",)

    _function: str

    def __init__(
        self,
        function: str,
        *,
        input: SpecLike,
        output: SpecLike | None = None,
        input_kind: Kind = "sample",
        output_kind: Kind = "sample",
        activation: ActivationLike = "identity",
        num_threads: int | None = None,
    ) -> None:
        where = "UnaryArithmeticLayer"
        self._function = function
        self._input_spec = operand_spec(where, "input", input, input_kind)
        specs, kinds = (self._input_spec,), (input_kind,)
        self._output_spec = _output_spec(where, specs, output, output_kind)
        self._filter = _core.arithmetic_create(
            where,
            describe(where, function, specs, kinds, self._output_spec, output_kind, activation),
            count(where, "num_threads", num_threads),
        )

    @property
    def function(self) -> str:
        """The name of the function, as given at creation."""
        return self._function

    @overload
    def apply(self, x: Array, *, out: None = None) -> npt.NDArray[Any]: ...
    @overload
    def apply(self, x: Array, *, out: T) -> T: ...
    def apply(self, x: Array, *, out: Any = None) -> Any:
        """The function of a batch.

        Args:
            x: (N, *input shape); without N unless it is a sample.
            out: (N, *output shape) to write to, or None. It may be x itself.

        Returns:
            ``out`` or a new array.

        Raises:
            ArrayError: an array does not fit.
            LayerApplyError: the layer is closed, or the C call failed.

        See also: ``BNNSArithmeticFilterApplyBatch``.
        """
        return _apply(self._filter, out, x)

    __call__ = apply

    def apply_backward(
        self,
        x: Array | None,
        y: Array | None,
        grad_output: Array,
        *,
        input_gradient: GradientTarget = True,
        accumulate: bool | Collection[str] = False,
    ) -> InputGradients:
        """The gradient of a batch.

        Args:
            x: the input of the forward call. None will do for ceil, floor, negative, round, sign,
                and, when y is given and there is no activation, for exp, exp2, rsqrt, sqrt, tanh.
            y: (N, *output shape) of the forward call; None unless there is an activation, or no x.
            grad_output: (N, *output shape), the gradient of y.
            input_gradient: True allocates, an array of the shape of x is written to, None skips.
                It may be ``grad_output`` itself.
            accumulate: True adds to the array given as target instead of overwriting it.

        Returns:
            ``InputGradients(input)``.

        Raises:
            ArrayError: an array does not fit.
            LayerApplyError: the layer is closed, the function needs the array that is None, or the
                C call failed.

        Examples:
            >>> import numpy as np, openbnns
            >>> layer = openbnns.UnaryArithmeticLayer("square", input=(2,))
            >>> x = np.array([[3, -4]], "f4")
            >>> layer.apply_backward(x, None, np.ones((1, 2), "f4")).input
            array([[ 6., -8.]], dtype=float32)

        See also: ``BNNSArithmeticFilterApplyBackwardBatch``.
        """
        bits = 0
        if accumulate is not False:
            targets = {"input": input_gradient}
            bits = accumulate_bits("UnaryArithmeticLayer", accumulate, targets)
        return InputGradients(*_backward(self._filter, y, grad_output, bits, x, input_gradient))

    def __repr__(self) -> str:
        return f"UnaryArithmeticLayer({self._function!r}, input={self._input_spec!r})"


class BinaryArithmeticLayer(BinaryLayer):
    """y = activation(function(a, b)), value by value.

    Args:
        function: ``"add"``, ``"divide"``, ``"divide_no_nan"`` (0 where b is 0), ``"floor_divide"``,
            ``"maximum"``, ``"minimum"``, ``"multiply"``, ``"multiply_no_nan"`` (0 where b is 0),
            ``"pow"``, ``"subtract"``, ``"trunc_divide"``, ``"trunc_remainder"``.
        input_a: one sample of a: a shape, an ``ArraySpec``, or a batch (N, …) as an example; the
            array itself when a is no sample.
        input_b: the same for b. Both have the same number of axes, and extents that are equal or 1,
            which is spread over the other's.
        output: the same for the output; None is the shape that both together have.
        a_kind: ``"sample"``: arrays have a batch axis. ``"parameter"``: no batch axis, the gradient
            is summed over the batch. ``"constant"``: no batch axis, no gradient.
        b_kind: the same for b.
        output_kind: ``"sample"``, or one of the others when no input is a sample.
        activation: applied last; name or ``Activation``.
        num_threads: limit for this layer; None is the library's setting.

    Raises:
        LayerCreationError: the arguments do not make a layer.

    Examples:
        >>> import numpy as np, openbnns
        >>> layer = openbnns.BinaryArithmeticLayer(
        ...     "add", input_a=(2, 3), input_b=(1, 3), b_kind="parameter")
        >>> layer(np.zeros((1, 2, 3), "f4"), np.array([[1, 2, 3]], "f4"))
        array([[[1., 2., 3.],
                [1., 2., 3.]]], dtype=float32)

    See also: ``BNNSFilterCreateLayerArithmetic``.
    """

    __slots__ = ("_function", "_input_specs")

    _function: str
    _input_specs: tuple[ArraySpec, ...]

    def __init__(
        self,
        function: str,
        *,
        input_a: SpecLike,
        input_b: SpecLike,
        output: SpecLike | None = None,
        a_kind: Kind = "sample",
        b_kind: Kind = "sample",
        output_kind: Kind = "sample",
        activation: ActivationLike = "identity",
        num_threads: int | None = None,
    ) -> None:
        where = "BinaryArithmeticLayer"
        self._function = function
        kinds = (a_kind, b_kind)
        specs = self._input_specs = (
            operand_spec(where, "input_a", input_a, a_kind),
            operand_spec(where, "input_b", input_b, b_kind),
        )
        self._input_spec = specs[0]
        self._output_spec = _output_spec(where, specs, output, output_kind)
        self._filter = _core.arithmetic_create(
            where,
            describe(where, function, specs, kinds, self._output_spec, output_kind, activation),
            count(where, "num_threads", num_threads),
        )

    @property
    def function(self) -> str:
        """The name of the function, as given at creation."""
        return self._function

    @property
    def input_specs(self) -> tuple[ArraySpec, ...]:
        """Shape, type and strides of a and b; ``input_spec`` is that of a."""
        return self._input_specs

    @overload
    def apply(self, a: Array, b: Array, *, out: None = None) -> npt.NDArray[Any]: ...
    @overload
    def apply(self, a: Array, b: Array, *, out: T) -> T: ...
    def apply(self, a: Array, b: Array, *, out: Any = None) -> Any:
        """The function of a batch.

        Args:
            a: (N, *shape of a); without N unless it is a sample.
            b: the same for b; it may be a.
            out: (N, *output shape) to write to, or None. It may be an input of the same shape.

        Returns:
            ``out`` or a new array.

        Raises:
            ArrayError: an array does not fit.
            LayerApplyError: the layer is closed, or the C call failed.

        See also: ``BNNSArithmeticFilterApplyBatch``.
        """
        return _apply(self._filter, out, a, b)

    __call__ = apply

    def apply_backward(
        self,
        a: Array | None,
        b: Array | None,
        y: Array | None,
        grad_output: Array,
        *,
        a_gradient: GradientTarget = True,
        b_gradient: GradientTarget = True,
        accumulate: bool | Collection[str] = False,
    ) -> BinaryGradients:
        """The gradients of a batch.

        Args:
            a: the input of the forward call; None where no wanted gradient reads it, as for add and
                subtract.
            b: the same for b.
            y: (N, *output shape) of the forward call; None unless there is an activation.
            grad_output: (N, *output shape), the gradient of y.
            a_gradient: True allocates, an array of the shape of a is written to, None skips. One
                array for both gradients receives their sum, as it should where a is b.
            b_gradient: the same for b.
            accumulate: True adds to the arrays given as targets instead of overwriting them; a set
                out of ``"a"``, ``"b"`` picks some.

        Returns:
            ``BinaryGradients(a, b)``; None for constants.

        Raises:
            ArrayError: an array does not fit.
            LayerApplyError: the layer is closed, the function needs the array that is None, or the
                C call failed.

        Examples:
            >>> import numpy as np, openbnns
            >>> layer = openbnns.BinaryArithmeticLayer("multiply", input_a=(2,), input_b=(2,))
            >>> x, dx = np.array([[3, 4]], "f4"), np.empty((1, 2), "f4")
            >>> dy = np.ones((1, 2), "f4")
            >>> layer.apply_backward(x, x, None, dy, a_gradient=dx, b_gradient=dx).a
            array([[6., 8.]], dtype=float32)

        See also: ``BNNSArithmeticFilterApplyBackwardBatch``.
        """
        bits = 0
        if accumulate is not False:
            targets = {"a": a_gradient, "b": b_gradient}
            bits = accumulate_bits("BinaryArithmeticLayer", accumulate, targets)
        return BinaryGradients(
            *_backward(self._filter, y, grad_output, bits, a, b, a_gradient, b_gradient)
        )

    def __repr__(self) -> str:
        a, b = self._input_specs
        return f"BinaryArithmeticLayer({self._function!r}, input_a={a!r}, input_b={b!r})"


class TernaryArithmeticLayer(Layer):
    """y = activation(function(a, b, c)), value by value.

    Args:
        function: ``"multiply_add"`` (a·b + c) or ``"select"`` (b where a is not 0, else c).
        input_a, input_b, input_c: as for ``BinaryArithmeticLayer``.
        output: one sample of the output; None is the shape that all inputs together have.
        a_kind, b_kind, c_kind, output_kind: as for ``BinaryArithmeticLayer``.
        activation: applied last; name or ``Activation``.
        num_threads: limit for this layer; None is the library's setting.

    Raises:
        LayerCreationError: the arguments do not make a layer.

    Examples:
        >>> import numpy as np, openbnns
        >>> layer = openbnns.TernaryArithmeticLayer(
        ...     input_a=(3,), input_b=(1,), input_c=(1,), b_kind="parameter", c_kind="constant")
        >>> layer(np.array([[1, 2, 3]], "f4"), np.array([10], "f4"), np.array([5], "f4"))
        array([[15., 25., 35.]], dtype=float32)

    See also: ``BNNSFilterCreateLayerArithmetic``.
    """

    __slots__ = ("_function", "_input_specs")

    _function: str
    _input_specs: tuple[ArraySpec, ...]

    def __init__(
        self,
        function: str = "multiply_add",
        *,
        input_a: SpecLike,
        input_b: SpecLike,
        input_c: SpecLike,
        output: SpecLike | None = None,
        a_kind: Kind = "sample",
        b_kind: Kind = "sample",
        c_kind: Kind = "sample",
        output_kind: Kind = "sample",
        activation: ActivationLike = "identity",
        num_threads: int | None = None,
    ) -> None:
        where = "TernaryArithmeticLayer"
        self._function = function
        kinds = (a_kind, b_kind, c_kind)
        specs = self._input_specs = (
            operand_spec(where, "input_a", input_a, a_kind),
            operand_spec(where, "input_b", input_b, b_kind),
            operand_spec(where, "input_c", input_c, c_kind),
        )
        self._input_spec = specs[0]
        self._output_spec = _output_spec(where, specs, output, output_kind)
        self._filter = _core.arithmetic_create(
            where,
            describe(where, function, specs, kinds, self._output_spec, output_kind, activation),
            count(where, "num_threads", num_threads),
        )

    @property
    def function(self) -> str:
        """The name of the function, as given at creation."""
        return self._function

    @property
    def input_specs(self) -> tuple[ArraySpec, ...]:
        """Shape, type and strides of a, b and c; ``input_spec`` is that of a."""
        return self._input_specs

    @overload
    def apply(self, a: Array, b: Array, c: Array, *, out: None = None) -> npt.NDArray[Any]: ...
    @overload
    def apply(self, a: Array, b: Array, c: Array, *, out: T) -> T: ...
    def apply(self, a: Array, b: Array, c: Array, *, out: Any = None) -> Any:
        """The function of a batch.

        Args:
            a, b, c: (N, *shape), without N unless they are samples; they may be one array.
            out: (N, *output shape) to write to, or None. It may be an input of the same shape.

        Returns:
            ``out`` or a new array.

        Raises:
            ArrayError: an array does not fit.
            LayerApplyError: the layer is closed, or the C call failed.

        See also: ``BNNSArithmeticFilterApplyBatch``.
        """
        return _apply(self._filter, out, a, b, c)

    __call__ = apply

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
        accumulate: bool | Collection[str] = False,
    ) -> TernaryGradients:
        """The gradients of a batch.

        Args:
            a, b, c: inputs of the forward call; None where no wanted gradient reads them, as c of
                multiply_add.
            y: (N, *output shape) of the forward call; None unless there is an activation.
            grad_output: (N, *output shape), the gradient of y.
            a_gradient, b_gradient, c_gradient: True allocates, an array of the shape of the input
                is written to, None skips. One array for several receives their sum.
            accumulate: True adds to the arrays given as targets instead of overwriting them; a set
                out of ``"a"``, ``"b"``, ``"c"`` picks some.

        Returns:
            ``TernaryGradients(a, b, c)``; None for constants.

        Raises:
            ArrayError: an array does not fit.
            LayerApplyError: the layer is closed, the function needs the array that is None, or the
                C call failed.

        Examples:
            >>> import numpy as np, openbnns
            >>> layer = openbnns.TernaryArithmeticLayer(input_a=(1,), input_b=(1,), input_c=(1,))
            >>> a, b, dy = (np.array([[value]], "f4") for value in (2, 3, 1))
            >>> [gradient.item() for gradient in layer.apply_backward(a, b, None, None, dy)]
            [3.0, 2.0, 1.0]

        See also: ``BNNSArithmeticFilterApplyBackwardBatch``.
        """
        bits = 0
        if accumulate is not False:
            targets = {"a": a_gradient, "b": b_gradient, "c": c_gradient}
            bits = accumulate_bits("TernaryArithmeticLayer", accumulate, targets)
        return TernaryGradients(
            *_backward(
                self._filter, y, grad_output, bits, a, b, c, a_gradient, b_gradient, c_gradient
            )
        )

    def __repr__(self) -> str:
        a, b, c = self._input_specs
        return (
            f"TernaryArithmeticLayer({self._function!r}, input_a={a!r}, input_b={b!r}, "
            f"input_c={c!r})"
        )


def describe(
    where: str,
    function: str,
    specs: Sequence[ArraySpec],
    kinds: Sequence[str],
    output: ArraySpec,
    output_kind: str,
    activation: ActivationLike,
) -> tuple[Any, ...]:
    """A function of samples like ``specs`` for the native side: see parse_arithmetic in
    bindings/arithmetic.cpp. Fused layers use it too."""
    known = FUNCTIONS[len(specs)]
    if function not in known:
        raise LayerCreationError(
            f"[{where}] function: expected one of {', '.join(known)}; got {function!r}"
        )
    names = ("input",) if len(specs) == 1 else ("a", "b", "c")
    operands = [
        (spec._operand(), _KINDS[check_kind(where, f"{name}_kind", kind)])
        for spec, kind, name in zip(specs, kinds, names, strict=False)
    ]
    operands.append((output._operand(), _KINDS[check_kind(where, "output_kind", output_kind)]))
    native = Activation.of(activation, where)._native(where, output.shape)
    return known[function], native, tuple(operands)


def check_kind(where: str, argument: str, kind: str) -> str:
    """The word, if it is one."""
    if kind not in _KINDS:
        raise LayerCreationError(
            f"[{where}] {argument}: expected constant, sample or parameter; got {kind!r}"
        )
    return kind


def operand_spec(where: str, argument: str, value: SpecLike, kind: str) -> ArraySpec:
    """A shape, a spec, or an example: a batch of samples, or a constant or parameter itself."""
    word = f"{argument.removeprefix('input_')}_kind"
    is_sample = check_kind(where, word, kind) == "sample"
    if is_sample or isinstance(value, (int, tuple, list, ArraySpec)):
        return spec_of(where, argument, value)
    return ArraySpec.like(value)


def _output_spec(
    where: str, specs: Sequence[ArraySpec], output: SpecLike | None, kind: str
) -> ArraySpec:
    """The output as given, or what the inputs have together."""
    if output is not None:
        return operand_spec(where, "output", output, kind)
    return broadcast_spec(where, specs)


def broadcast_spec(where: str, specs: Sequence[ArraySpec]) -> ArraySpec:
    """The shape of several inputs together, packed, in type and layout of the first."""
    first = specs[0]
    if all(len(spec.shape) == len(first.shape) for spec in specs):
        lengths = [set(axis) - {1} for axis in zip(*(spec.shape for spec in specs), strict=True)]
        if all(len(several) <= 1 for several in lengths):
            extents = [several.pop() if several else 1 for several in lengths]
            return ArraySpec(extents, first.data_type, layout=first.layout)
    shapes = " and ".join(str(spec.shape) for spec in specs)
    raise LayerCreationError(
        f"[{where}] input_a: expected as many axes as the others and extents equal or 1; "
        f"got {shapes}"
    )
