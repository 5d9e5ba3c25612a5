"""Quantization: floats to integers by a scale and a bias, and back."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeVar, overload

import numpy as np
import numpy.typing as npt

from . import _core
from ._errors import ArrayError, LayerApplyError, LayerCreationError
from ._spec import Array, ArraySpec, argument_spec, as_array, count, data_type_of, expressible
from ._spoken import spoken

T = TypeVar("T")

# BNNSQuantizerFunction.
_QUANTIZE, _DEQUANTIZE = 0, 1


@overload
def quantize(
    x: Array,
    *,
    scale: Array | float | None = ...,
    bias: Array | float | None = ...,
    axis: int | None = ...,
    dtype: Any = ...,
    out: None = ...,
    num_threads: int | None = ...,
) -> npt.NDArray[Any]: ...
@overload
def quantize(
    x: Array,
    *,
    scale: Array | float | None = ...,
    bias: Array | float | None = ...,
    axis: int | None = ...,
    dtype: Any = ...,
    out: T,
    num_threads: int | None = ...,
) -> T: ...
@spoken(LayerApplyError)
def quantize(
    x: Array,
    *,
    scale: Array | float | None = None,
    bias: Array | float | None = None,
    axis: int | None = None,
    dtype: Any = None,
    out: Any = None,
    num_threads: int | None = None,
) -> Any:
    """scale·x + bias as integers: rounded to the nearest, ties to even, saturated to the type.

    Args:
        x: array of up to 8 axes, float32, float16 or int32. There is no batch here: ``axis`` counts
            all axes of x.
        scale: the factor: a number, or an array of any type with one value per place along
            ``axis``, one value without it. None is 1.
        bias: what is added, likewise. None is 0.
        axis: the axis along which scale and bias vary, negative ones from the end; None: they
            do not.
        dtype: the integer type wanted, of 8, 16 or 32 bits; None is that of ``out``, or int8.
        out: array of that type and the shape of x to write to, or None.
        num_threads: limit for this call; None is the library's setting.

    Returns:
        ``out``, or a new array. NaN becomes 0.

    Raises:
        ArrayError: an array does not fit.
        LayerCreationError: there is no such axis.
        LayerApplyError: the C call failed, for example because of the types.

    Examples:
        >>> import numpy as np, openbnns
        >>> openbnns.quantize(np.array([0, 2, 4, 600], "f4"), scale=0.5, bias=1)
        array([  1,   2,   3, 127], dtype=int8)

    See also: ``BNNSDirectApplyQuantizer``.
    """
    return _run("quantize", _QUANTIZE, x, scale, bias, axis, dtype, "int8", out, num_threads)


@overload
def dequantize(
    x: Array,
    *,
    scale: Array | float | None = ...,
    bias: Array | float | None = ...,
    axis: int | None = ...,
    dtype: Any = ...,
    out: None = ...,
    num_threads: int | None = ...,
) -> npt.NDArray[Any]: ...
@overload
def dequantize(
    x: Array,
    *,
    scale: Array | float | None = ...,
    bias: Array | float | None = ...,
    axis: int | None = ...,
    dtype: Any = ...,
    out: T,
    num_threads: int | None = ...,
) -> T: ...
@spoken(LayerApplyError)
def dequantize(
    x: Array,
    *,
    scale: Array | float | None = None,
    bias: Array | float | None = None,
    axis: int | None = None,
    dtype: Any = None,
    out: Any = None,
    num_threads: int | None = None,
) -> Any:
    """(x − bias) / scale: the inverse of ``quantize``, but for what rounding lost.

    Args:
        x: array of up to 8 axes, of integers of 8, 16 or 32 bits.
        scale, bias, axis, num_threads: as for ``quantize``.
        dtype: float32, float16 or int32 (rounded); None is that of ``out``, or float32.
        out: array of that type and the shape of x to write to, or None.

    Returns:
        ``out``, or a new array.

    Raises:
        ArrayError: an array does not fit.
        LayerCreationError: there is no such axis.
        LayerApplyError: the C call failed, for example because of the types.

    Examples:
        >>> import numpy as np, openbnns
        >>> openbnns.dequantize(np.array([1, 2, 3], "i1"), scale=0.5, bias=1)
        array([0., 2., 4.], dtype=float32)

    See also: ``BNNSDirectApplyQuantizer``.
    """
    return _run("dequantize", _DEQUANTIZE, x, scale, bias, axis, dtype, "float32", out, num_threads)


def _run(
    where: str,
    function: int,
    x: Array,
    scale: Array | float | None,
    bias: Array | float | None,
    axis: int | None,
    dtype: Any,
    default: str,
    out: Any,
    num_threads: int | None,
) -> Any:
    array = as_array(where, "x", x)
    if dtype is None:
        dtype = default if out is None else as_array(where, "out", out).dtype
    source, target = _operands(array.shape, array.strides, array.dtype, data_type_of(dtype))
    return _core.quantization_direct(
        where,
        source,
        target,
        describe(where, function, source[0], scale, bias, axis),
        count(where, "num_threads", num_threads),
        x,
        out,
    )


@lru_cache(maxsize=256)
def _operands(
    shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype[Any], stored: str
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Input and output for the native side; arrays of one kind come again and again."""
    kept = strides if expressible(shape, strides, dtype.itemsize) else None
    spec = ArraySpec(shape, data_type_of(dtype), kept)
    return spec._operand(), ArraySpec(shape, stored)._operand()


def describe(
    where: str,
    function: int,
    spec: ArraySpec,
    scale: Array | float | None,
    bias: Array | float | None,
    axis: int | str | None,
    has_batch: bool = False,
) -> tuple[Any, ...]:
    """A quantization (0) or dequantization (1) of samples like ``spec`` for the native side: see
    parse_quantization in bindings/quantization.cpp. Fused layers use it too; they have a batch,
    which is an axis ``"batch"`` of any length."""
    rank = len(spec.shape)
    mask, length = 0, 1
    if has_batch and axis == "batch":
        mask, length = 1 << rank, _ANY_LENGTH
    elif axis is not None:
        if not isinstance(axis, int) or not -rank <= axis < rank:
            raise LayerCreationError(
                f"[{where}] axis: expected None or an axis of {spec.shape}; got {axis!r}"
            )
        mask, length = 1 << spec._size_index(axis % rank), spec.shape[axis]
    scale_operand, scale = _factor(where, "scale", scale, length)
    bias_operand, bias = _factor(where, "bias", bias, length)
    return function, mask, scale_operand, bias_operand, scale, bias


_ANY_LENGTH = -1

# What stands for a scale or a bias that is not there, and for one that is a number.
_ONE_FLOAT = ArraySpec((1,))._operand()


def _factor(
    where: str, argument: str, value: Array | float | None, length: int
) -> tuple[tuple[Any, ...], Array | None]:
    """Scale or bias, one value or (length), behind its operand."""
    if value is None:
        return _ONE_FLOAT, None
    if isinstance(value, (int, float)) and length == 1:
        return _ONE_FLOAT, np.array([value], np.float32)
    spec = argument_spec(where, argument, value)
    if length == _ANY_LENGTH:
        if len(spec.shape) != 1:
            raise ArrayError(
                f"[{where}] {argument}: expected one value per sample; got {spec.shape}"
            )
    elif spec.shape != (length,) and (spec.shape != () or length != 1):
        raise ArrayError(f"[{where}] {argument}: expected ({length},); got {spec.shape}")
    return spec._operand(), value
