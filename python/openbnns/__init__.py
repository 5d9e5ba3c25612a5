"""OpenBNNS: neural-network training primitives for the CPU, layer by layer, forward and backward.

Layers are made for one sample shape and applied to batches: axis 0 is the batch, shapes are in
NumPy order, pairs are (height, width). ``openbnns.c`` is the C interface itself.

Examples:
    >>> import numpy as np, openbnns as bnns
    >>> relu = bnns.ActivationLayer("relu", input=(2, 2))
    >>> relu(np.array([[[-1, 2], [3, -4]]], "f4"))
    array([[[0., 2.],
            [3., 0.]]], dtype=float32)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from . import _core
from ._activations import Activation
from ._config import config
from ._errors import (
    ArgumentError,
    ArrayError,
    BNNSError,
    CheckpointError,
    CopyWarning,
    DTypeError,
    LayerApplyError,
    LayerCreationError,
    OptimizerStepError,
    TrainingError,
)
from ._layer import BinaryLayer, InputGradients, Layer, LayerDescription, UnaryLayer
from ._paths import cmake_dir, include_dir, library_path
from ._spec import PRECISIONS as _PRECISIONS
from ._spec import ArraySpec, empty
from ._spec import data_type_of as dtype
from ._spoken import is_whole as _is_whole
from ._spoken import shown as _shown
from ._spoken import spoken as _spoken_as
from .activation import ActivationGradients, ActivationLayer, activation, convert
from .arithmetic import (
    BinaryArithmeticLayer,
    BinaryGradients,
    TernaryArithmeticLayer,
    TernaryGradients,
    UnaryArithmeticLayer,
)
from .attention import AttentionCache, AttentionGradients, MultiheadAttention, Projection
from .clip import (
    ClipByGlobalNorm,
    ClipByNorm,
    ClipByValue,
    clip,
    clip_by_global_norm,
    clip_by_norm,
    norm,
    norm_backward,
)
from .convolution import ConvolutionLayer, TransposedConvolutionLayer, WeightGradients
from .fully_connected import FullyConnectedLayer, SparseWeights
from .fused import (
    FusableLayerParameters,
    FusedBinaryArithmeticParameters,
    FusedBinaryGradients,
    FusedConvolutionNormalizationLayer,
    FusedConvolutionParameters,
    FusedDequantizationParameters,
    FusedFullyConnectedNormalizationLayer,
    FusedFullyConnectedParameters,
    FusedGradients,
    FusedLayer,
    FusedNormalizationParameters,
    FusedParametersLayer,
    FusedPoolingParameters,
    FusedQuantizationParameters,
    FusedTernaryArithmeticParameters,
    FusedTernaryGradients,
    FusedUnaryArithmeticParameters,
)
from .loss import Loss, LossLayer, YoloParameters
from .matmul import (
    BroadcastMatrixMultiplyLayer,
    GramLayer,
    TensorContractionLayer,
    matmul,
    matmul_workspace_size,
)
from .normalization import Normalization, NormalizationGradients, NormalizationLayer
from .optim import (
    AdamOptimizer,
    AdamWOptimizer,
    BoundOptimizer,
    Optimizer,
    RMSPropOptimizer,
    SGDMomentumOptimizer,
)
from .pooling import Pooling, PoolingGradients, PoolingLayer
from .quantization import dequantize, quantize
from .random import RandomGenerator

if TYPE_CHECKING:
    from . import blocks, training
    from .checking import GradientReport, check_gradients
    from .network import Network

__version__ = _core.version()

__all__ = [
    "Activation",
    "ActivationGradients",
    "ActivationLayer",
    "AdamOptimizer",
    "AdamWOptimizer",
    "ArgumentError",
    "ArrayError",
    "ArraySpec",
    "AttentionCache",
    "AttentionGradients",
    "BNNSError",
    "BinaryArithmeticLayer",
    "BinaryGradients",
    "BinaryLayer",
    "BoundOptimizer",
    "BroadcastMatrixMultiplyLayer",
    "CheckpointError",
    "ClipByGlobalNorm",
    "ClipByNorm",
    "ClipByValue",
    "ConvolutionLayer",
    "CopyWarning",
    "DTypeError",
    "FullyConnectedLayer",
    "FusableLayerParameters",
    "FusedBinaryArithmeticParameters",
    "FusedBinaryGradients",
    "FusedConvolutionNormalizationLayer",
    "FusedConvolutionParameters",
    "FusedDequantizationParameters",
    "FusedFullyConnectedNormalizationLayer",
    "FusedFullyConnectedParameters",
    "FusedGradients",
    "FusedLayer",
    "FusedNormalizationParameters",
    "FusedParametersLayer",
    "FusedPoolingParameters",
    "FusedQuantizationParameters",
    "FusedTernaryArithmeticParameters",
    "FusedTernaryGradients",
    "FusedUnaryArithmeticParameters",
    "GradientReport",
    "GramLayer",
    "InputGradients",
    "Layer",
    "LayerApplyError",
    "LayerCreationError",
    "LayerDescription",
    "Loss",
    "LossLayer",
    "MultiheadAttention",
    "Network",
    "Normalization",
    "NormalizationGradients",
    "NormalizationLayer",
    "Optimizer",
    "OptimizerStepError",
    "Pooling",
    "PoolingGradients",
    "PoolingLayer",
    "Projection",
    "RMSPropOptimizer",
    "RandomGenerator",
    "SGDMomentumOptimizer",
    "SparseWeights",
    "TensorContractionLayer",
    "TernaryArithmeticLayer",
    "TernaryGradients",
    "TrainingError",
    "TransposedConvolutionLayer",
    "UnaryArithmeticLayer",
    "UnaryLayer",
    "WeightGradients",
    "YoloParameters",
    "activation",
    "blocks",
    "check_gradients",
    "clip",
    "clip_by_global_norm",
    "clip_by_norm",
    "cmake_dir",
    "config",
    "convert",
    "dequantize",
    "dtype",
    "empty",
    "get_matmul_precision",
    "get_num_threads",
    "get_winograd",
    "include_dir",
    "isa",
    "last_error",
    "library_path",
    "matmul",
    "matmul_workspace_size",
    "norm",
    "norm_backward",
    "quantize",
    "set_matmul_precision",
    "set_num_threads",
    "set_seed",
    "set_winograd",
    "support",
    "training",
    "version",
]


# What plain layers do without is loaded when it is first used; openbnns.c reads the headers.
_LATER = {
    "GradientReport": "checking",
    "Network": "network",
    "blocks": "blocks",
    "c": "c",
    "check_gradients": "checking",
    "io": "io",
    "training": "training",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'openbnns' has no attribute {name!r}")
    from importlib import import_module

    module = import_module(f"openbnns.{_LATER[name]}")
    return module if name == _LATER[name] else getattr(module, name)


def version() -> str:
    """Version of the shared library, ``"major.minor.patch"``.

    See also: ``obn_version``.
    """
    return _core.version()


def isa() -> str:
    """Instruction set in use: ``"portable"``, ``"avx2"``, ``"avx512"``, ``"amx"``, on ARM
    ``"neon"`` or, with products of bfloat16, ``"neon_bf16"``.

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
        ArgumentError: n is negative or no whole number.

    Examples:
        >>> import openbnns
        >>> openbnns.set_num_threads(1)
        >>> openbnns.get_num_threads()
        1
        >>> openbnns.set_num_threads(None)

    See also: ``obn_set_num_threads``.
    """
    if n is not None and (not _is_whole(n) or n < 0):
        raise ArgumentError(f"[set_num_threads] n: expected None or at least 0; got {_shown(n)}")
    _core.set_num_threads(n or 0)


def get_matmul_precision() -> str:
    """The setting of ``set_matmul_precision``.

    See also: ``obn_get_matmul_precision``.
    """
    return _PRECISIONS[_core.get_matmul_precision()]


def set_matmul_precision(precision: Literal["highest", "high", "medium"]) -> None:
    """What products of float32 matrices may lose in exactness to be faster.

    It allows, it does not force: where the machine has no faster way, results are those of
    ``"highest"``.

    Args:
        precision: ``"highest"``: float32 throughout, as at the start. ``"high"``: operands may be
            split into bfloat16 pieces that keep at least 16 bits (no machine is faster so today).
            ``"medium"``: operands may be rounded to bfloat16; sums stay float32. That needs
            AVX512_BF16, AMX or FEAT_BF16 of ARM.

    Raises:
        ArgumentError: any other word.

    Examples:
        >>> import openbnns
        >>> openbnns.set_matmul_precision("highest")
        >>> openbnns.get_matmul_precision()
        'highest'

    See also: ``obn_set_matmul_precision``.
    """
    if not isinstance(precision, str) or precision not in _PRECISIONS:
        raise ArgumentError(
            f"[set_matmul_precision] precision: expected one of {', '.join(_PRECISIONS)}; "
            f"got {_shown(precision)}"
        )
    _core.set_matmul_precision(_PRECISIONS.index(precision))


def get_winograd() -> bool:
    """The setting of ``set_winograd``.

    See also: ``obn_get_winograd``.
    """
    return _core.get_winograd()


@_spoken_as()
def set_winograd(allowed: bool) -> None:
    """Allow or forbid Winograd's algorithm where a convolution layer says nothing itself.

    It does 3×3 convolutions with steps of 1 with fewer multiplications. Rounding errors grow a
    little, and an infinite or NaN input spoils the whole tile of results around it. True at the
    start, unless the environment says ``OPENBNNS_WINOGRAD=0``. It holds for existing layers too.

    Args:
        allowed: True or False.

    Examples:
        >>> import openbnns
        >>> openbnns.set_winograd(False)
        >>> openbnns.get_winograd()
        False
        >>> openbnns.set_winograd(True)

    See also: ``obn_set_winograd``.
    """
    _core.set_winograd(allowed)


@_spoken_as()
def set_seed(seed: int) -> None:
    """Seed the process-wide generator behind the Gumbel activations.

    Args:
        seed: 0 … 2**64 − 1.

    Raises:
        ArgumentError: it is no such number.

    See also: ``obn_set_seed``.
    """
    _core.set_seed(seed)


def support() -> dict[str, bool]:
    """Which functions of the C interface are built.

    Returns:
        Name of every function in the headers → True when it is built, False when it always fails.

    Examples:
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
