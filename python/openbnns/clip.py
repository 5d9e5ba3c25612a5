"""Clipping and the L2 norm of whole arrays, and the words for how optimizers clip gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar, overload

import numpy.typing as npt

from . import _core
from ._errors import ArrayError, LayerApplyError
from ._spec import Array, ArraySpec, GradientTarget, as_array
from ._spoken import spoken

T = TypeVar("T")
#: Axes of a whole array; None is all of them.
WholeAxes: TypeAlias = "int | Sequence[int] | None"


@dataclass(frozen=True)
class ClipByValue:
    """Every gradient value is limited to low … high.

    Examples:
        >>> import openbnns
        >>> openbnns.ClipByValue(-0.5, 0.5)
        ClipByValue(low=-0.5, high=0.5)
    """

    low: float
    high: float


@dataclass(frozen=True)
class ClipByNorm:
    """The gradient of each parameter is scaled down to an L2 norm of at most ``threshold``."""

    threshold: float


@dataclass(frozen=True)
class ClipByGlobalNorm:
    """All gradients are scaled by one factor, so that their joint L2 norm is at most ``threshold``.

    ``global_norm`` is that norm where it is known already; None computes it.
    """

    threshold: float
    global_norm: float | None = None


#: What optimizers take as ``gradient_clipping=``.
GradientClipping: TypeAlias = "ClipByValue | ClipByNorm | ClipByGlobalNorm | None"


def _whole(where: str, argument: str, x: Array) -> ArraySpec:
    return ArraySpec.like(as_array(where, argument, x))


def _flags(where: str, axes: WholeAxes, rank: int) -> int:
    """Bit k for axis k; 0 stands for all axes."""
    if axes is None:
        return 0
    flags = 0
    for axis in (axes,) if isinstance(axes, int) else axes:
        if not isinstance(axis, int) or not -rank <= axis < rank:
            raise LayerApplyError(
                f"[{where}] axes: expected axes of an array with {rank}; got {axis!r}"
            )
        bit = 1 << axis % rank
        if flags & bit:
            raise LayerApplyError(f"[{where}] axes: expected each axis once; got {axes!r}")
        flags |= bit
    if not flags:
        raise LayerApplyError(f"[{where}] axes: expected at least one axis; got {axes!r}")
    return flags


@overload
def clip(x: Array, low: float, high: float, *, out: None = ...) -> npt.NDArray[Any]: ...
@overload
def clip(x: Array, low: float, high: float, *, out: T) -> T: ...
@spoken(LayerApplyError)
def clip(x: Array, low: float, high: float, *, out: Any = None) -> Any:
    """Every value limited to low … high; NaN stays NaN.

    Args:
        x: float array of any shape up to 8 axes.
        low, high: the bounds, low at most high.
        out: array of the shape and type of x to write to, or None; x itself will do.

    Returns:
        ``out``, or a new array.

    Raises:
        ArrayError: an array does not fit.
        LayerApplyError: the C call failed.

    Examples:
        >>> import numpy as np, openbnns
        >>> openbnns.clip(np.arange(1, 9, dtype="f4"), 3, 6)
        array([3., 3., 3., 4., 5., 6., 6., 6.], dtype=float32)

    See also: ``BNNSClipByValue``.
    """
    spec = _whole("clip", "x", x)
    return _core.clip_value("clip", spec._operand(), spec.packed._operand(), x, out, low, high)


@overload
def clip_by_norm(
    x: Array, threshold: float, *, axes: WholeAxes = ..., out: None = ...
) -> npt.NDArray[Any]: ...
@overload
def clip_by_norm(x: Array, threshold: float, *, axes: WholeAxes = ..., out: T) -> T: ...
@spoken(LayerApplyError)
def clip_by_norm(x: Array, threshold: float, *, axes: WholeAxes = None, out: Any = None) -> Any:
    """Slices scaled down to an L2 norm of at most ``threshold``.

    Args:
        x: float array of any shape up to 8 axes.
        threshold: the largest norm, at least 0.
        axes: the axes that a slice runs over; None is all of them, so that x is one slice.
        out: array of the shape and type of x to write to, or None; x itself will do.

    Returns:
        ``out``, or a new array. A slice whose norm is 0 or NaN is left as it is.

    Raises:
        ArrayError: an array does not fit.
        LayerApplyError: the C call failed, or an axis does not exist.

    Examples:
        >>> import numpy as np, openbnns
        >>> openbnns.clip_by_norm(np.array([3, 4], "f4"), 2.5)
        array([1.5, 2. ], dtype=float32)

    See also: ``BNNSClipByNorm``.
    """
    where = "clip_by_norm"
    spec = _whole(where, "x", x)
    flags = _flags(where, axes, len(spec.shape))
    return _core.clip_norm(where, spec._operand(), spec.packed._operand(), x, out, threshold, flags)


@spoken(LayerApplyError)
def clip_by_global_norm(
    xs: Sequence[Array],
    threshold: float,
    *,
    global_norm: float | None = None,
    out: Sequence[Any] | None = None,
) -> list[Any]:
    """Several arrays scaled by one factor, so that their joint L2 norm is at most ``threshold``.

    Args:
        xs: float arrays.
        threshold: the largest norm, at least 0.
        global_norm: the joint norm where it is known; None computes it.
        out: as many arrays to write to, each like its input or that input itself; None makes new
            ones.

    Returns:
        The arrays of ``out``, or new ones, in a list.

    Raises:
        ArrayError: an array does not fit.
        LayerApplyError: the C call failed.

    Examples:
        >>> import numpy as np, openbnns
        >>> openbnns.clip_by_global_norm([np.array([3, 4], "f4"), np.array([12], "f4")], 6.5)
        [array([1.5, 2. ], dtype=float32), array([6.], dtype=float32)]

    See also: ``BNNSClipByGlobalNorm``.
    """
    where = "clip_by_global_norm"
    if out is None:
        out = [None] * len(xs)
    if len(out) != len(xs):
        raise ArrayError(f"[{where}] out: expected {len(xs)} arrays; got {len(out)}")
    items = []
    for i, (x, y) in enumerate(zip(xs, out, strict=True)):
        spec = _whole(where, f"xs[{i}]", x)
        items.append((spec._operand(), spec.packed._operand(), x, y))
    return _core.clip_global_norm(where, items, threshold, global_norm or 0.0)


@overload
def norm(x: Array, *, axes: WholeAxes = ..., out: None = ...) -> npt.NDArray[Any]: ...
@overload
def norm(x: Array, *, axes: WholeAxes = ..., out: T) -> T: ...
@spoken(LayerApplyError)
def norm(x: Array, *, axes: WholeAxes = None, out: Any = None) -> Any:
    """The L2 norm √Σx² of slices.

    Args:
        x: float array of any shape up to 8 axes.
        axes: the axes that a slice runs over, which are missing in the result; None is all.
        out: array for the norms, of the type of x, or None.

    Returns:
        ``out``, or a new array.

    Raises:
        ArrayError: an array does not fit.
        LayerApplyError: the C call failed, or an axis does not exist.

    Examples:
        >>> import numpy as np, openbnns
        >>> openbnns.norm(np.array([[3, 4], [12, 5]], "f4"), axes=1)
        array([ 5., 13.], dtype=float32)

    See also: ``BNNSComputeNorm``.
    """
    where = "norm"
    spec = _whole(where, "x", x)
    flags = _flags(where, axes, len(spec.shape))
    norms = _norms(spec, flags)
    return _core.clip_compute_norm(where, spec._operand(), norms._operand(), x, out, flags)


@spoken(LayerApplyError)
def norm_backward(
    x: Array,
    y: Array,
    grad_output: Array,
    *,
    axes: WholeAxes = None,
    input_gradient: GradientTarget = True,
    accumulate: bool = False,
) -> Any:
    """The gradient of ``norm``: grad_output·x/y, and 0 where the norm is 0.

    Args:
        x, y: input and result of ``norm``.
        grad_output: gradient of the result, of its shape.
        axes: as in ``norm``.
        input_gradient: True makes a new array, an array of the shape of x is written to.
        accumulate: True adds to that array.

    Returns:
        The gradient of x.

    Raises:
        ArrayError: an array does not fit.
        LayerApplyError: the C call failed, or an axis does not exist.

    Examples:
        >>> import numpy as np, openbnns
        >>> x = np.array([3, 4], "f4")
        >>> openbnns.norm_backward(x, openbnns.norm(x), np.float32(2))
        array([1.2, 1.6], dtype=float32)

    See also: ``BNNSComputeNormBackward``.
    """
    where = "norm_backward"
    if input_gradient is None or input_gradient is False:
        raise ArrayError(f"[{where}] input_gradient: expected True or an array; got None")
    if accumulate and input_gradient is True:
        raise ArrayError(
            f"[{where}] accumulate: expected an array to add to as input_gradient; got True"
        )
    spec = _whole(where, "x", x).packed
    flags = _flags(where, axes, len(spec.shape))
    return _core.clip_norm_backward(
        where,
        spec._operand(),
        _norms(spec, flags)._operand(),
        x,
        y,
        grad_output,
        None if input_gradient is True else input_gradient,
        flags,
        accumulate,
    )


def _norms(spec: ArraySpec, flags: int) -> ArraySpec:
    """What is left of the axes; no flags choose them all."""
    kept = [n for axis, n in enumerate(spec.shape) if flags and not flags >> axis & 1]
    return ArraySpec(kept, spec.data_type)
