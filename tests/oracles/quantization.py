"""Quantization in float64. scale and bias broadcast to x."""

import numpy as np


def quantize(x, scale, bias, dtype):
    """scale·x + bias, rounded with ties to even, saturated; NaN becomes 0."""
    limits = np.iinfo(dtype)
    values = np.nan_to_num(scale * x + bias, nan=0.0, posinf=np.inf, neginf=-np.inf)
    return np.clip(np.round(values), limits.min, limits.max).astype(dtype)


def dequantize(x, scale, bias):
    """(x - bias) / scale, before it is rounded to the output's type."""
    return (x - bias) / scale
