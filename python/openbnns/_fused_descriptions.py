"""What the native side is told of the layers that a fused one is made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import arithmetic, convolution, fully_connected, normalization, quantization
from ._errors import LayerCreationError
from ._fused_parameters import (
    ArithmeticParameters,
    FusableLayerParameters,
    FusedConvolutionParameters,
    FusedDequantizationParameters,
    FusedFullyConnectedParameters,
    FusedNormalizationParameters,
    FusedPoolingParameters,
    FusedQuantizationParameters,
)
from ._spec import ArraySpec, SpecLike, spec_of

# BNNSFilterType.
_CONVOLUTION, _FULLY_CONNECTED, _QUANTIZATION, _ARITHMETIC, _NORM = 0, 1, 7, 8, 2


def checked(
    where: str, components: Sequence[FusableLayerParameters]
) -> tuple[FusableLayerParameters, FusableLayerParameters, FusedPoolingParameters | None]:
    """The components, if they go together."""
    firsts = (FusedConvolutionParameters, FusedFullyConnectedParameters, ArithmeticParameters)
    seconds = (FusedNormalizationParameters, FusedQuantizationParameters)
    third = components[2] if len(components) == 3 else None
    if (
        len(components) not in (2, 3)
        or not isinstance(components[0], firsts)
        or not isinstance(components[1], seconds)
        or (
            isinstance(components[0], ArithmeticParameters)
            and not isinstance(components[1], FusedNormalizationParameters)
        )
        or (
            len(components) == 3
            and not (
                isinstance(components[1], FusedNormalizationParameters)
                and isinstance(third, FusedPoolingParameters)
            )
        )
    ):
        got = ", ".join(type(component).__name__ for component in components) or "none"
        raise LayerCreationError(
            f"[{where}] components: expected a convolution or a fully connected layer, then a "
            "normalization or a quantization, or arithmetic, then a normalization, behind which "
            f"may be a pooling; got {got}"
        )
    assert third is None or isinstance(third, FusedPoolingParameters)
    return components[0], components[1], third


def describe_first(
    where: str,
    first: FusableLayerParameters,
    second: FusableLayerParameters,
    inputs: Sequence[SpecLike | None],
    output: ArraySpec | None,
) -> tuple[int, tuple[Any, ...], tuple[ArraySpec, ...], ArraySpec]:
    """Type, description, specs of the inputs, and the spec of what lies between the layers: packed,
    of the shape of the output."""
    if isinstance(first, ArithmeticParameters):
        return _describe_arithmetic(where, first, inputs, output)
    if len(inputs) != 1:
        raise LayerCreationError(f"[{where}] inputs: expected one; got {len(inputs)}")
    value = inputs[0]
    if isinstance(first, FusedFullyConnectedParameters):
        spec = fully_connected.input_spec(where, value, first.weights)
        description, between = fully_connected.describe(
            where, spec, _between(spec, second, output), first.weights, first.bias, "identity"
        )
        return _FULLY_CONNECTED, description, (spec,), between
    assert isinstance(first, FusedConvolutionParameters)
    if value is None:
        raise LayerCreationError(f"[{where}] input: expected the shape of a sample; got None")
    spec = spec_of(where, "input", value)
    description, between = convolution.describe(
        where,
        spec,
        _between(spec, second, output),
        first.weights,
        first.bias,
        first.stride,
        first.padding,
        first.dilation,
        first.groups,
        "identity",
        first.transposed,
    )
    return _CONVOLUTION, description, (spec,), between


def _between(
    spec: ArraySpec, second: FusableLayerParameters, output: ArraySpec | None
) -> ArraySpec | None:
    """What the first layer hands on when the output is known: values of the output's type to a
    normalization, floats to a quantization, integers as in the input to a dequantization."""
    if output is None:
        return None
    if isinstance(second, FusedNormalizationParameters):
        return ArraySpec(output.shape, output.data_type)
    if isinstance(second, FusedDequantizationParameters):
        return ArraySpec(output.shape, spec.data_type)
    return ArraySpec(output.shape, "float16" if spec.data_type == "float16" else "float32")


def _describe_arithmetic(
    where: str,
    first: ArithmeticParameters,
    inputs: Sequence[SpecLike | None],
    output: ArraySpec | None,
) -> tuple[int, tuple[Any, ...], tuple[ArraySpec, ...], ArraySpec]:
    words = ("input",) if len(first.kinds) == 1 else ("input_a", "input_b", "input_c")
    if len(inputs) != len(first.kinds) or None in inputs:
        raise LayerCreationError(
            f"[{where}] inputs: expected {len(first.kinds)} for {first.function!r}; got "
            f"{len(inputs) - list(inputs).count(None)}"
        )
    specs = [
        arithmetic.operand_spec(where, word, value, kind)
        for word, value, kind in zip(words, inputs, first.kinds, strict=False)
    ]
    if output is None:
        between = arithmetic.broadcast_spec(where, specs)
    else:
        between = ArraySpec(output.shape, output.data_type)
    description = arithmetic.describe(
        where, first.function, specs, first.kinds, between, first.output_kind, "identity"
    )
    return _ARITHMETIC, description, tuple(specs), between


def describe_second(
    where: str, second: FusableLayerParameters, between: ArraySpec, output: ArraySpec | None
) -> tuple[int, tuple[Any, ...], ArraySpec]:
    """Type, description and the spec of the output."""
    if isinstance(second, FusedNormalizationParameters):
        description = normalization.describe(
            where,
            second.normalization,
            between,
            second.beta,
            second.gamma,
            second.moving_mean,
            second.moving_variance,
            second.momentum,
            second.epsilon,
            second.activation,
        )
        return _NORM, description, between if output is None else output
    assert isinstance(second, FusedQuantizationParameters)
    if output is None:
        raise LayerCreationError(
            f"[{where}] output: expected an ArraySpec with the type wanted; got None"
        )
    function = int(isinstance(second, FusedDequantizationParameters))
    description = quantization.describe(
        where, function, between, second.scale, second.bias, second.axis, has_batch=True
    )
    return _QUANTIZATION, description, output
