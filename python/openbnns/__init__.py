"""OpenBNNS: neural-network training primitives for the CPU, layer by layer, forward and backward.

Layers are made for one sample shape and applied to batches: axis 0 is the batch, shapes are in
NumPy order, pairs are (height, width). ``openbnns.c`` is the C interface itself.

Example:
    >>> import numpy as np, openbnns as bnns
    >>> relu = bnns.ActivationLayer("relu", input=(2, 2))
    >>> relu(np.array([[[-1, 2], [3, -4]]], "f4"))
    array([[[0., 2.],
            [3., 0.]]], dtype=float32)
"""

from __future__ import annotations

from typing import Any

from . import _core
from ._activations import Activation
from ._config import config
from ._errors import (
    ArrayError,
    BNNSError,
    CopyWarning,
    DTypeError,
    LayerApplyError,
    LayerCreationError,
)
from ._layer import Layer, UnaryLayer
from ._paths import include_dir, library_path
from ._spec import ArraySpec
from ._spec import data_type_of as dtype
from .activation import ActivationGradients, ActivationLayer, activation, convert
from .pooling import Pooling, PoolingGradients, PoolingLayer

__version__ = _core.version()

__all__ = [
    "Activation",
    "ActivationGradients",
    "ActivationLayer",
    "ArrayError",
    "ArraySpec",
    "BNNSError",
    "CopyWarning",
    "DTypeError",
    "Layer",
    "LayerApplyError",
    "LayerCreationError",
    "Pooling",
    "PoolingGradients",
    "PoolingLayer",
    "UnaryLayer",
    "activation",
    "config",
    "convert",
    "dtype",
    "get_num_threads",
    "include_dir",
    "isa",
    "last_error",
    "library_path",
    "set_num_threads",
    "set_seed",
    "support",
    "version",
]


def __getattr__(name: str) -> Any:
    """Loads openbnns.c, which reads the headers and needs ctypes, when it is first used."""
    if name == "c":
        from importlib import import_module

        return import_module("openbnns.c")
    raise AttributeError(f"module 'openbnns' has no attribute {name!r}")


def version() -> str:
    """Version of the shared library, ``"major.minor.patch"``.

    See also: ``obn_version``.
    """
    return _core.version()


def isa() -> str:
    """Instruction set in use: ``"portable"``, ``"avx2"``, ``"avx512"``, ``"amx"`` or ``"neon"``.

    See also: ``obn_isa``; the environment variable ``OPENBNNS_ISA`` asks for a lower one.
    """
    return _core.isa()


def last_error() -> str:
    """Sentence of the last failed C call on this thread, ``""`` when there is none.

    Exceptions carry it already; this is for users of ``openbnns.c``.

    See also: ``obn_last_error``.
    """
    return _core.last_error()


def get_num_threads() -> int:
    """Upper limit of threads used by one call.

    See also: ``obn_get_num_threads``.
    """
    return _core.get_num_threads()


def set_num_threads(n: int | None) -> None:
    """Limit the threads used by one call. Results do not depend on it.

    Args:
        n: the limit; None or 0 is the number of cores.

    Raises:
        ValueError: n is negative.

    Example:
        >>> import openbnns
        >>> openbnns.set_num_threads(1)
        >>> openbnns.get_num_threads()
        1
        >>> openbnns.set_num_threads(None)

    See also: ``obn_set_num_threads``.
    """
    if n is not None and n < 0:
        raise ValueError(f"[set_num_threads] n: expected None or at least 0; got {n}")
    _core.set_num_threads(n or 0)


def set_seed(seed: int) -> None:
    """Seed the process-wide generator behind the Gumbel activations.

    Args:
        seed: 0 … 2**64 − 1.

    See also: ``obn_set_seed``.
    """
    _core.set_seed(seed)


def support() -> dict[str, bool]:
    """Which functions of the C interface are built.

    Returns:
        Name of every function in the headers → True when it is built, False when it always fails.

    Example:
        >>> import openbnns
        >>> openbnns.support()["BNNSFilterCreateLayerPooling"]
        True

    See also: ``obn_is_implemented``.
    """
    import re

    names: set[str] = set()
    for header in (include_dir() / "openbnns" / "bnns").glob("*.h"):
        names.update(re.findall(r"OBN_API[^;(]*?\b(BNNS\w+)\s*\(", header.read_text()))
    return {name: _core.is_implemented(name) == 1 for name in sorted(names)}
