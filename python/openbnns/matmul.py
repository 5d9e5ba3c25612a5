"""Matrix products with broadcasting, tensor contractions, Gram matrices."""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar, overload

import numpy as np
import numpy.typing as npt

from . import _core
from ._errors import ArrayError, LayerApplyError, LayerCreationError
from ._layer import BinaryLayer, InputGradients, UnaryLayer, accumulate_bits
from ._spec import (
    Array,
    ArraySpec,
    GradientTarget,
    SpecLike,
    _type_name,
    as_array,
    count,
    data_type_of,
    expressible,
    spec_of,
)
from ._spoken import spoken
from .arithmetic import BinaryGradients

T = TypeVar("T")

_apply = _core.matmul_apply
_backward = _core.matmul_backward

# Flags of a native filter, see bindings/matmul.cpp.
_A_IS_WEIGHTS, _B_IS_WEIGHTS, _IS_UNARY = 1, 2, 4

# An operand of an expression: name, star, letters, star.
_OPERAND = re.compile(r"([A-Za-z]+)_(\*?)([A-Za-z]*)(\*?)")


class _ProductLayer(BinaryLayer):
    """What matrix products and contractions share: two operands, of which one may be weights, or
    one alone."""

    __slots__ = ("_adds", "_flags", "_input_specs", "_weights")

    _adds: bool
    _flags: int
    _input_specs: tuple[ArraySpec, ...]
    _weights: Array | None

    @property
    def input_specs(self) -> tuple[ArraySpec, ...]:
        """Shape, type and strides of a and b; ``input_spec`` is that of a."""
        return self._input_specs

    @property
    def weights(self) -> Array | None:
        """The operand that was given at creation, None where there is none."""
        return self._weights

    @overload
    def apply(
        self, a: Array | None, b: Array | None = ..., *, out: None = None
    ) -> npt.NDArray[Any]: ...
    @overload
    def apply(self, a: Array | None, b: Array | None = ..., *, out: T) -> T: ...
    def apply(self, a: Array | None, b: Array | None = None, *, out: Any = None) -> Any:
        """The product of a batch.

        Args:
            a: (N, *shape of a); None where a is weights, which the layer has already.
            b: (N, *shape of b); it may be a. None where b is weights, or where there is one input.
            out: (N, *output shape) to write to, or None. A layer that adds to its output needs it.

        Returns:
            ``out`` or a new array.

        Raises:
            ArrayError: an array does not fit.
            LayerApplyError: the layer is closed, or the C call failed.

        See also: ``BNNSFilterApplyTwoInputBatch``, ``BNNSFilterApplyBatch``.
        """
        if self._adds and out is None:
            raise ArrayError(f"[{type(self).__name__}] out: expected an array to add to; got None")
        return _apply(self._filter, a, b, out)

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
            a: the input of the forward call; None where it is weights, or where only the gradient
                of a is wanted.
            b: the same for b.
            y: not read; None will do.
            grad_output: (N, *output shape), the gradient of y.
            a_gradient: True allocates, an array of the shape of a is written to, None skips. The
                gradient of weights has no batch axis: it is summed over the batch.
            b_gradient: the same for b. With one input there is only the gradient of a, which is
                the whole one.
            accumulate: True adds to the arrays given as targets instead of overwriting them; a set
                out of ``"a"``, ``"b"`` picks some.

        Returns:
            ``BinaryGradients(a, b)``; None for what was left out.

        Raises:
            ArrayError: an array does not fit.
            LayerApplyError: the layer is closed, a wanted gradient needs the array that is None, or
                the C call failed.

        Examples:
            >>> import numpy as np, openbnns
            >>> layer = openbnns.BroadcastMatrixMultiplyLayer(input_a=(2, 2), input_b=(2, 2))
            >>> a, b = np.array([[[1, 2], [3, 4]]], "f4"), np.array([[[5, 6], [7, 8]]], "f4")
            >>> layer.apply_backward(a, b, None, a).a
            array([[[17., 23.],
                    [39., 53.]]], dtype=float32)

        See also: ``BNNSFilterApplyBackwardTwoInputBatch``, ``BNNSFilterApplyBackwardBatch``.
        """
        bits = 0
        if accumulate is not False:
            targets = {"a": a_gradient, "b": b_gradient}
            bits = accumulate_bits(type(self).__name__, accumulate, targets)
        return BinaryGradients(
            *_backward(self._filter, a, b, grad_output, a_gradient, b_gradient, bits)
        )


class BroadcastMatrixMultiplyLayer(_ProductLayer):
    """y = alpha · a @ b on the last two axes; the axes before them are matched from the back, and
    missing ones and extents of 1 are spread.

    Args:
        input_a: one sample (…, M, K) of a: a shape, an ``ArraySpec``, or a batch (N, …) as an
            example; the array itself, without a batch axis, when a is weights.
        input_b: the same for b, (…, K, P); None with ``quadratic``.
        output: the same for the output, (…, M, P); None is the shape that the inputs give.
        transpose_a: a is (…, K, M).
        transpose_b: b is (…, P, K).
        a_is_weights: a is given here, once for all samples, and its gradient is summed.
        b_is_weights: the same for b.
        alpha: factor of the product.
        accumulate_to_output: add to ``out`` instead of overwriting it.
        quadratic: a times itself; there is one input.
        num_threads: limit for this layer; None is the library's setting.
        copy_parameters: keep a copy of the weights. Without it the layer reads the caller's array
            in every call, so an update in place is seen at once.

    Types: float32, float16, bfloat16, and integers of 8 or 16 bits as inputs; float16 and bfloat16
    do not go together. Sums are float32. The output is float32 unless both inputs are halves.

    Raises:
        LayerCreationError: the arguments do not make a layer.
        ArrayError: the weights do not fit.

    Examples:
        >>> import numpy as np, openbnns
        >>> layer = openbnns.BroadcastMatrixMultiplyLayer(
        ...     input_a=(2, 3), input_b=np.array([[1, 0], [0, 1], [1, 1]], "f4"), b_is_weights=True)
        >>> layer(np.array([[[1, 2, 3], [4, 5, 6]]], "f4"))
        array([[[ 4.,  5.],
                [10., 11.]]], dtype=float32)

    See also: ``BNNSFilterCreateLayerBroadcastMatMul``.
    """

    __slots__ = ()

    def __init__(
        self,
        *,
        input_a: SpecLike,
        input_b: SpecLike | None = None,
        output: SpecLike | None = None,
        transpose_a: bool = False,
        transpose_b: bool = False,
        a_is_weights: bool = False,
        b_is_weights: bool = False,
        alpha: float = 1.0,
        accumulate_to_output: bool = False,
        quadratic: bool = False,
        num_threads: int | None = None,
        copy_parameters: bool = False,
    ) -> None:
        where = "BroadcastMatrixMultiplyLayer"
        if a_is_weights + b_is_weights + quadratic > 1:
            raise LayerCreationError(
                f"[{where}] a_is_weights, b_is_weights, quadratic: expected one of them at most; "
                f"got several"
            )
        if (input_b is None) != quadratic:
            raise LayerCreationError(
                f"[{where}] input_b: expected None with quadratic, else an operand; got {input_b!r}"
            )
        flags = a_is_weights * _A_IS_WEIGHTS + b_is_weights * _B_IS_WEIGHTS + quadratic * _IS_UNARY
        a = _operand_spec(where, "input_a", input_a, a_is_weights)
        b = a if quadratic else _operand_spec(where, "input_b", input_b, b_is_weights)
        if output is None:
            shape = _product_shape(where, "input_", a.shape, transpose_a, b.shape, transpose_b)
            result = ArraySpec(shape, _result_type(a, b))
        else:
            result = spec_of(where, "output", output)
        self._adds, self._flags = accumulate_to_output, flags
        self._weights = input_a if a_is_weights else input_b if b_is_weights else None
        self._input_specs, self._input_spec, self._output_spec = (a, b), a, result
        self._filter = _core.matmul_create(
            where,
            a._operand(indexed=True),
            b._operand(indexed=True),
            result._operand(indexed=True),
            self._weights,
            flags,
            count(where, "num_threads", num_threads),
            copy_parameters,
            transpose_a,
            transpose_b,
            alpha,
            accumulate_to_output,
        )

    def __repr__(self) -> str:
        a, b = self._input_specs
        return f"BroadcastMatrixMultiplyLayer(input_a={a!r}, input_b={b!r})"


class TensorContractionLayer(_ProductLayer):
    """y = alpha · Σ a · b over the letters that the output does not have.

    Args:
        equation: ``"a_ij, b_jk -> c_ik"``: a name and the letters of its axes for each operand. A
            letter on the left that is missing on the right is summed. A letter twice in one
            operand is its diagonal. ``*`` in front of or behind the letters stands for any further
            axes, matched from the back or from the front, never summed. The name ``w`` marks
            weights; one name twice is a tensor times itself. A single operand is copied, permuted
            and summed. No letters at all are a single value.
        input_a: one sample of the first operand: a shape, an ``ArraySpec``, or a batch (N, …) as an
            example; the array itself, without a batch axis, when it is weights. Extents along one
            letter are equal, or 1, which is spread.
        input_b: the same for the second one; None where there is no second tensor.
        output: the same for the output; None is the shape that the inputs give.
        alpha: factor of the sum.
        beta: 0 overwrites ``out``, 1 adds to it.
        num_threads: limit for this layer; None is the library's setting.
        copy_parameters: keep a copy of the weights instead of reading the caller's array.

    Types are those of ``BroadcastMatrixMultiplyLayer``.

    Raises:
        LayerCreationError: the arguments do not make a layer.
        ArrayError: the weights do not fit.

    Examples:
        >>> import numpy as np, openbnns
        >>> layer = openbnns.TensorContractionLayer(
        ...     "a_ip, b_iq -> o_pq", input_a=(1, 2), input_b=(1, 2), alpha=10)
        >>> layer(np.array([[[1, 2]]], "f4"), np.array([[[3, 4]]], "f4"))
        array([[[30., 40.],
                [60., 80.]]], dtype=float32)
        >>> transpose = openbnns.TensorContractionLayer("a_ij -> c_ji", input_a=(2, 3))
        >>> transpose(np.array([[[1, 2, 3], [4, 5, 6]]], "f4"))
        array([[[1., 4.],
                [2., 5.],
                [3., 6.]]], dtype=float32)

    See also: ``BNNSFilterCreateLayerTensorContraction``.
    """

    __slots__ = ("_equation",)

    _equation: str

    def __init__(
        self,
        equation: str,
        *,
        input_a: SpecLike,
        input_b: SpecLike | None = None,
        output: SpecLike | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        num_threads: int | None = None,
        copy_parameters: bool = False,
    ) -> None:
        where = "TensorContractionLayer"
        words = _words(where, equation)
        names = [name for name, *_ in words[:-1]]
        is_unary = len(names) == 1 or names[0] == names[1]
        if (input_b is None) != is_unary:
            raise LayerCreationError(
                f"[{where}] input_b: expected {'None' if is_unary else 'an operand'} for "
                f"{equation!r}; got {input_b!r}"
            )
        a_is_weights, b_is_weights = names[0] == "w", not is_unary and names[1] == "w"
        flags = is_unary * _IS_UNARY + a_is_weights * _A_IS_WEIGHTS + b_is_weights * _B_IS_WEIGHTS
        a = _operand_spec(where, "input_a", input_a, a_is_weights)
        b = a if is_unary else _operand_spec(where, "input_b", input_b, b_is_weights)
        if output is None:
            shape = _contraction_shape(where, equation, words, (a.shape, b.shape))
            result = ArraySpec(shape, _result_type(a, b))
        else:
            result = spec_of(where, "output", output)
        self._equation, self._adds, self._flags = equation, beta != 0, flags
        self._weights = input_a if a_is_weights else input_b if b_is_weights else None
        self._input_specs, self._input_spec, self._output_spec = (a, b), a, result
        self._filter = _core.contraction_create(
            where,
            a._operand(indexed=True),
            b._operand(indexed=True),
            result._operand(indexed=True),
            self._weights,
            flags,
            count(where, "num_threads", num_threads),
            copy_parameters,
            equation,
            alpha,
            beta,
        )

    @property
    def equation(self) -> str:
        """The equation, as given at creation."""
        return self._equation

    def __repr__(self) -> str:
        a, b = self._input_specs
        text = f"TensorContractionLayer({self._equation!r}, input_a={a!r}"
        return text + (")" if self._flags & _IS_UNARY else f", input_b={b!r})")


class GramLayer(UnaryLayer):
    """The Gram matrix of an image: y(f, c) = alpha · Σ x(f, i, j) · x(c, i, j) over all pixels.

    Args:
        input: one image (C, H, W): a shape, an ``ArraySpec``, or a batch (N, C, H, W) as an
            example.
        output: the same for the output (C, C); None is the type of the input.
        alpha: factor of the sum.
        num_threads: limit for this layer; None is the library's setting.

    Raises:
        LayerCreationError: the arguments do not make a layer.

    Examples:
        >>> import numpy as np, openbnns
        >>> layer = openbnns.GramLayer(input=(2, 1, 2))
        >>> layer(np.array([[[[1, 2]], [[3, 4]]]], "f4"))
        array([[[ 5., 11.],
                [11., 25.]]], dtype=float32)

    See also: ``BNNSFilterCreateLayerGram``.
    """

    __slots__ = ("_alpha",)

    _alpha: float

    def __init__(
        self,
        *,
        input: SpecLike,
        output: SpecLike | None = None,
        alpha: float = 1.0,
        num_threads: int | None = None,
    ) -> None:
        where = "GramLayer"
        x = self._input_spec = spec_of(where, "input", input)
        if len(x.shape) != 3:
            raise LayerCreationError(f"[{where}] input: expected images (C, H, W); got {x.shape}")
        channels = x.shape[0]
        if output is None:
            self._output_spec = ArraySpec((channels, channels), _result_type(x, x))
        else:
            self._output_spec = spec_of(where, "output", output)
        self._alpha = alpha
        self._filter = _core.gram_create(
            where,
            x._operand(),
            self._output_spec._operand(),
            count(where, "num_threads", num_threads),
            alpha,
        )

    @overload
    def apply(self, x: Array, *, out: None = None) -> npt.NDArray[Any]: ...
    @overload
    def apply(self, x: Array, *, out: T) -> T: ...
    def apply(self, x: Array, *, out: Any = None) -> Any:
        """The Gram matrices of a batch.

        Args:
            x: (N, C, H, W).
            out: (N, C, C) to write to, or None.

        Returns:
            ``out`` or a new array.

        Raises:
            ArrayError: an array does not fit.
            LayerApplyError: the layer is closed, or the C call failed.

        See also: ``BNNSFilterApplyBatch``.
        """
        return _apply(self._filter, x, None, out)

    def apply_backward(
        self,
        x: Array,
        y: Array | None,
        grad_output: Array,
        *,
        input_gradient: GradientTarget = True,
        accumulate: bool | Collection[str] = False,
    ) -> InputGradients:
        """The gradient of a batch.

        Args:
            x: (N, C, H, W), the input of the forward call.
            y: not read; None will do.
            grad_output: (N, C, C), the gradient of y.
            input_gradient: True allocates, an array (N, C, H, W) is written to, None skips.
            accumulate: True adds to the array instead of overwriting it.

        Returns:
            ``InputGradients(input)``.

        Raises:
            ArrayError: an array does not fit.
            LayerApplyError: the layer is closed, or the C call failed.

        Examples:
            >>> import numpy as np, openbnns
            >>> layer = openbnns.GramLayer(input=(1, 1, 2))
            >>> layer.apply_backward(np.array([[[[1, 2]]]], "f4"), None, np.ones((1, 1, 1), "f4"))
            InputGradients(input=array([[[[2., 4.]]]], dtype=float32))

        See also: ``BNNSFilterApplyBackwardBatch``.
        """
        bits = 0
        if accumulate is not False:
            bits = accumulate_bits("GramLayer", accumulate, {"input": input_gradient})
        found, _ = _backward(self._filter, x, None, grad_output, input_gradient, None, bits)
        return InputGradients(found)

    def __repr__(self) -> str:
        return f"GramLayer(input={self._input_spec!r}, alpha={self._alpha})"


# ---- direct products ----


@overload
def matmul(
    a: Array,
    b: Array,
    *,
    transpose_a: bool = ...,
    transpose_b: bool = ...,
    alpha: float = ...,
    workspace: Any = ...,
    out: None = ...,
) -> npt.NDArray[Any]: ...
@overload
def matmul(
    a: Array,
    b: Array,
    *,
    transpose_a: bool = ...,
    transpose_b: bool = ...,
    alpha: float = ...,
    workspace: Any = ...,
    out: T,
) -> T: ...
@spoken(LayerApplyError)
def matmul(
    a: Array,
    b: Array,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    alpha: float = 1.0,
    workspace: Any = None,
    out: Any = None,
) -> Any:
    """alpha · a @ b on the last two axes of whole arrays, with broadcasting.

    Args:
        a: (…, M, K), at least two axes; or (…, K, M) with ``transpose_a``.
        b: (…, K, P), at least two axes; or (…, P, K) with ``transpose_b``. The axes before the last
            two are matched from the back; missing ones and extents of 1 are spread.
        transpose_a: the last two axes of a change places.
        transpose_b: the same for b.
        alpha: factor of the product.
        workspace: writable bytes, at least ``matmul_workspace_size``; None uses the thread's own
            memory, which is kept.
        out: (…, M, P) to write to, or None. It may not overlap a or b.

    Views whose last two axes have changed places are read as they are, not copied. Types are those
    of ``BroadcastMatrixMultiplyLayer``.

    Returns:
        ``out``, or a new array: float32, or the type of both inputs where they are halves.

    Raises:
        ArrayError: an array does not fit.
        LayerApplyError: the shapes do not multiply, or the C call failed.

    Examples:
        >>> import numpy as np, openbnns
        >>> a = np.array([[1, 2, 3], [4, 5, 6]], "f4")
        >>> b = np.array([[7, 8], [9, 10], [11, 12]], "f4")
        >>> openbnns.matmul(a, b)
        array([[ 58.,  64.],
               [139., 154.]], dtype=float32)
        >>> openbnns.matmul(a, a, transpose_b=True, alpha=0.5)
        array([[ 7. , 16. ],
               [16. , 38.5]], dtype=float32)

    See also: ``BNNSMatMul``.
    """
    a, b = as_array("matmul", "a", a), as_array("matmul", "b", b)
    room = None if out is None else _lie(as_array("matmul", "out", out))
    plan = _plan(_lie(a), bool(transpose_a), _lie(b), bool(transpose_b), room)
    if plan.turns_a:
        a = a.swapaxes(-1, -2)
    if plan.turns_b:
        b = b.swapaxes(-1, -2)
    return _core.matmul_direct(
        "matmul",
        *plan.operands,
        transpose_a != plan.turns_a,
        transpose_b != plan.turns_b,
        alpha,
        a,
        b,
        out,
        workspace,
    )


@spoken(LayerApplyError)
def matmul_workspace_size(
    a: SpecLike,
    b: SpecLike,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    alpha: float = 1.0,
    out: SpecLike | None = None,
) -> int:
    """Bytes that ``matmul`` needs as ``workspace``.

    Args:
        a: the array, its shape, or an ``ArraySpec``; there is no batch axis.
        b: the same for b.
        transpose_a, transpose_b, alpha: as for ``matmul``.
        out: the same for the result; None is the shape that a and b give.

    Returns:
        The number of bytes, possibly 0.

    Raises:
        LayerApplyError: the shapes do not multiply.

    Examples:
        >>> import openbnns
        >>> openbnns.matmul_workspace_size((2, 3), (3, 2)) >= 0
        True

    See also: ``BNNSMatMulWorkspaceSize``.
    """
    where = "matmul_workspace_size"
    a_spec, b_spec = _whole_spec(a), _whole_spec(b)
    if out is None:
        shape = _product_shape(
            where, "", a_spec.shape, transpose_a, b_spec.shape, transpose_b, ArrayError
        )
        result = ArraySpec(shape, _result_type(a_spec, b_spec))
    else:
        result = _whole_spec(out)
    return _core.matmul_workspace_size(
        where,
        a_spec._operand(indexed=True),
        b_spec._operand(indexed=True),
        result._operand(indexed=True),
        transpose_a,
        transpose_b,
        alpha,
    )


# ---- shapes ----


def _whole_spec(value: SpecLike) -> ArraySpec:
    if isinstance(value, ArraySpec):
        return value
    return ArraySpec(value) if isinstance(value, (int, tuple, list)) else ArraySpec.like(value)


def _operand_spec(where: str, argument: str, value: SpecLike, is_weights: bool) -> ArraySpec:
    """One sample, or weights themselves, whose array may have its columns side by side."""
    if not is_weights:
        return spec_of(where, argument, value)
    array = as_array(where, argument, value)
    turned = array.ndim == 2 and not expressible(array.shape, array.strides, array.itemsize)
    if turned and expressible(array.shape[::-1], array.strides[::-1], array.itemsize):
        return ArraySpec(array.shape, data_type_of(array.dtype)).with_layout("column_major")
    return ArraySpec.like(array)


class _Lie(NamedTuple):
    """How an array lies in memory."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]

    def spec(self, argument: str) -> ArraySpec:
        kept = expressible(self.shape, self.strides, self.dtype.itemsize)
        name = _type_name(self.dtype, "matmul", argument)
        return ArraySpec(self.shape, name, self.strides if kept else None)

    def turned(self) -> _Lie:
        """With the last two axes in each other's place."""
        (*shape, m, n), (*strides, row, column) = self.shape, self.strides
        return _Lie((*shape, n, m), (*strides, column, row), self.dtype)

    def is_better_turned(self) -> bool:
        """Only so can it be read without a copy."""
        itemsize = self.dtype.itemsize
        if len(self.shape) < 2 or expressible(self.shape, self.strides, itemsize):
            return False
        turned = self.turned()
        return expressible(turned.shape, turned.strides, itemsize)


def _lie(array: npt.NDArray[Any]) -> _Lie:
    return _Lie(array.shape, array.strides, array.dtype)


class _Plan(NamedTuple):
    """A direct product: operands for the native side, and which of them are turned for it."""

    operands: tuple[Any, Any, Any]
    turns_a: bool
    turns_b: bool


@lru_cache(maxsize=256)  # making specs takes ten times as long as a small product
def _plan(a: _Lie, transpose_a: bool, b: _Lie, transpose_b: bool, out: _Lie | None) -> _Plan:
    turns_a, turns_b = a.is_better_turned(), b.is_better_turned()
    a_spec = (a.turned() if turns_a else a).spec("a")
    b_spec = (b.turned() if turns_b else b).spec("b")
    if out is None:
        shape = _product_shape("matmul", "", a.shape, transpose_a, b.shape, transpose_b, ArrayError)
        result = ArraySpec(shape, _result_type(a_spec, b_spec))
    else:
        result = out.spec("out")
    operands = tuple(spec._operand(indexed=True) for spec in (a_spec, b_spec, result))
    return _Plan(operands, turns_a, turns_b)  # type: ignore[arg-type]


def _result_type(a: ArraySpec, b: ArraySpec) -> str:
    is_half = a.data_type in ("float16", "bfloat16") and a.data_type == b.data_type
    return a.data_type if is_half else "float32"


def _product_shape(
    where: str,
    prefix: str,
    a: tuple[int, ...],
    transpose_a: bool,
    b: tuple[int, ...],
    transpose_b: bool,
    error: type[Exception] = LayerCreationError,
) -> tuple[int, ...]:
    """(…, M, P) of (…, M, K) and (…, K, P)."""
    for name, shape in ((f"{prefix}a", a), (f"{prefix}b", b)):
        if len(shape) < 2:
            raise error(f"[{where}] {name}: expected at least two axes; got {shape}")
    m, k = (a[-1], a[-2]) if transpose_a else (a[-2], a[-1])
    rows, p = (b[-1], b[-2]) if transpose_b else (b[-2], b[-1])
    if k != rows:
        raise error(f"[{where}] {prefix}b: expected {k} rows for the columns of a; got {rows}")
    try:
        return (*np.broadcast_shapes(a[:-2], b[:-2]), m, p)
    except ValueError:
        raise error(
            f"[{where}] {prefix}b: expected extents equal to those of {a}, or 1, before the last "
            f"two; got {b}"
        ) from None


def _words(where: str, equation: str) -> list[tuple[str, str, str, str]]:
    """Name, star, letters, star of the operands and of the output."""
    sides = re.sub(r"\s", "", equation).split("->") if isinstance(equation, str) else []
    texts = [*sides[0].split(","), sides[1]] if len(sides) == 2 else []
    matches = [_OPERAND.fullmatch(text) for text in texts]
    words = [match.group(1, 2, 3, 4) for match in matches if match]
    if len(words) != len(texts) or len(words) not in (2, 3):
        raise LayerCreationError(
            f'[{where}] equation: expected a text like "a_ij, b_jk -> c_ik"; got {equation!r}'
        )
    return words  # type: ignore[return-value]


def _contraction_shape(
    where: str,
    equation: str,
    words: list[tuple[str, str, str, str]],
    shapes: tuple[tuple[int, ...], ...],
) -> tuple[int, ...]:
    """The shape that the inputs give. What does not fit together is the native side's to say."""
    extents: dict[str, int] = {}
    stars: tuple[int, ...] = ()
    for (_, first, letters, last), shape in zip(words[:-1], shapes, strict=False):
        more = len(shape) - len(letters)
        if more < 0 or (more > 0 and not (first or last)):
            raise LayerCreationError(
                f"[{where}] input: expected {len(letters)} axes for {letters!r} of {equation!r}; "
                f"got {shape}"
            )
        named = shape[more:] if first else shape[: len(letters)]
        others = shape[:more] if first else shape[len(letters) :]
        for letter, extent in zip(letters, named, strict=True):
            extents[letter] = max(extent, extents.get(letter, 1))
        width = max(len(stars), len(others))
        if first:  # matched from the back
            pairs = zip(_padded(stars, width, True), _padded(others, width, True), strict=True)
        else:
            pairs = zip(_padded(stars, width, False), _padded(others, width, False), strict=True)
        stars = tuple(max(pair) for pair in pairs)
    _, first, letters, last = words[-1]
    unknown = [letter for letter in letters if letter not in extents]
    if unknown:
        raise LayerCreationError(
            f"[{where}] equation: expected letters of the inputs on the right of {equation!r}; "
            f"got {unknown[0]}"
        )
    kept = tuple(extents[letter] for letter in letters)
    return stars + kept if first else kept + stars if last else kept


def _padded(shape: tuple[int, ...], width: int, in_front: bool) -> tuple[int, ...]:
    ones = (1,) * (width - len(shape))
    return ones + shape if in_front else shape + ones
