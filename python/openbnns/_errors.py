"""Exceptions and warnings. Every message reads ``[Where] argument: expected …; got …``."""

from __future__ import annotations


class BNNSError(Exception):
    """Base of everything this package raises on its own account."""


class LayerCreationError(BNNSError, ValueError):
    """A layer cannot be made from these arguments (the C creator returned NULL)."""


class ArgumentError(BNNSError, ValueError, TypeError):
    """A number, a word or a function is not what an argument can be."""


class LayerApplyError(BNNSError, RuntimeError):
    """A call on a layer failed (the C function returned an error), or the layer is closed."""


class OptimizerStepError(BNNSError, RuntimeError):
    """An optimizer step failed (the C function returned an error); nothing was changed."""


class ArrayError(BNNSError, ValueError):
    """An array has the wrong shape or strides, is read-only, or cannot be used at all."""


class DTypeError(ArrayError, TypeError):
    """An array has the wrong element type, or the object is no array. Nothing is cast silently."""


class TrainingError(BNNSError, ArithmeticError):
    """Training cannot go on: data or loss are not finite. Parameters are as before the step."""


class CheckpointError(BNNSError, OSError):
    """A checkpoint cannot be written or read; what was on the disk before is still there."""


class CopyWarning(UserWarning):
    """An input could not be used where it lies and was copied; see ``config.warn_on_copy``."""


for _class in (
    ArgumentError,
    BNNSError,
    LayerCreationError,
    LayerApplyError,
    OptimizerStepError,
    ArrayError,
    DTypeError,
    TrainingError,
    CheckpointError,
    CopyWarning,
):
    _class.__module__ = "openbnns"  # tracebacks name them as users import them
