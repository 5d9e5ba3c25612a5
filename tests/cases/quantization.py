"""Quantization cases: whole arrays, without a batch."""

from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from oracles import quantization as oracle

from cases import generator, sentinel_array

REALS = ("float32", "float16", "int32")
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32")


@dataclass(frozen=True)
class QuantizationCase:
    """One array to integers (quantize) or back (dequantize)."""

    function: str
    shape: tuple[int, ...]
    dtype: str  # of x
    stored: str  # of y
    axis: int | None = None
    scale: str | None = "float32"  # type of the array; None: there is none
    bias: str | None = "float32"
    gap: int = 0  # values skipped after the last axis
    step: int = 1
    tags: frozenset[str] = frozenset()

    def __str__(self):
        words = [self.function, "x".join(map(str, self.shape)), self.dtype, self.stored]
        words += [] if self.axis is None else [f"axis{self.axis}"]
        words += [f"scale-{self.scale}", f"bias-{self.bias}"]
        words += [f"gap{self.gap}step{self.step}"] if self.gap or self.step != 1 else []
        return "-".join(words)

    @property
    def length(self):
        return 1 if self.axis is None else self.shape[self.axis]

    def input(self):
        """Values whose results fill the range of the integers, a little more when quantizing."""
        x, _ = self._empty(self.dtype)
        rng = generator(self)
        if self.function == "quantize":
            values = rng.standard_normal(self.shape) * 40
        else:
            limits = np.iinfo(self.dtype)
            values = rng.integers(limits.min, limits.max, self.shape, endpoint=True)
        x[...] = np.round(values).astype(x.dtype) if self.dtype == "int32" else values
        return x

    def factors(self):
        """scale and bias, None where the case has none."""
        rng = generator(self, 1)
        scale = rng.uniform(0.5, 9, self.length)
        bias = rng.uniform(-9, 9, self.length)
        return tuple(
            None
            if dtype is None
            else np.round(values).astype(dtype)
            if "int" in dtype
            else values.astype(dtype)
            for dtype, values in ((self.scale, np.maximum(scale, 1.0)), (self.bias, bias))
        )

    def empty_output(self):
        return self._empty(self.stored)

    def _empty(self, dtype):
        gaps = (0,) * (len(self.shape) - 1) + (self.gap,)
        return sentinel_array(self.shape, dtype, gaps, self.step)

    def run(self, x, out=None, num_threads=None):
        import openbnns

        scale, bias = self.factors()
        return getattr(openbnns, self.function)(
            x,
            scale=scale,
            bias=bias,
            axis=self.axis,
            dtype=self.stored,
            out=out,
            num_threads=num_threads,
        )

    def results(self, num_threads=None):
        return {"y": self.run(self.input(), num_threads=num_threads)}

    def expected(self, x):
        """Integers as they should be; floats in float64."""
        scale, bias = (
            default if values is None else self._spread(values.astype(np.float64))
            for default, values in zip((1.0, 0.0), self.factors(), strict=True)
        )
        x = x.astype(np.float64)
        if self.function == "quantize":
            return oracle.quantize(x, scale, bias, self.stored)
        y = oracle.dequantize(x, scale, bias)
        return oracle.quantize(y, 1.0, 0.0, "int32") if self.stored == "int32" else y

    def _spread(self, values):
        if self.axis is None:
            return values
        behind = len(self.shape) - 1 - self.axis % len(self.shape)
        return values.reshape((-1,) + (1,) * behind)


def _quantize(shape, dtype="float32", stored="int8", **more):
    return QuantizationCase("quantize", shape, dtype, stored, **more)


def _dequantize(shape, dtype="int8", stored="float32", **more):
    return QuantizationCase("dequantize", shape, dtype, stored, **more)


TYPES = [_quantize((3, 70), real, whole) for real, whole in product(REALS, INTEGERS)]
TYPES += [_dequantize((3, 70), whole, real) for real, whole in product(REALS, INTEGERS)]

AXES = [
    make(shape, axis=axis)
    for make in (_quantize, _dequantize)
    for shape, axis in (
        ((5,), 0),
        ((4, 9), 0),
        ((4, 9), 1),
        ((4, 9), -1),
        ((3, 4, 5), 0),
        ((3, 4, 5), 1),
        ((3, 4, 5), -1),
        ((2, 3, 4, 5), 1),
        ((2, 3, 4, 5), -1),
        ((2, 1, 3, 2, 5), 2),
        ((7, 1), 1),
    )
]

FACTORS = [
    replace(case, scale=scale, bias=bias)
    for case in (_quantize((4, 9), axis=0), _dequantize((4, 9), axis=1), _quantize((40,)))
    for scale, bias in (
        (None, None),
        (None, "float32"),
        ("float32", None),
        ("int16", "int8"),
        ("float16", "int32"),
    )
]

STRIDED = [
    replace(case, gap=gap, step=step)
    for case in (_quantize((4, 30), axis=0), _dequantize((3, 4, 17), axis=1))
    for gap, step in ((3, 1), (0, 2), (1, 3))
]

TYPICAL = [
    _quantize((64, 128, 56), axis=0, tags=frozenset({"split"})),
    _quantize((64, 128, 56), "float16", tags=frozenset({"split"})),
    _dequantize((500_000,), "int16", tags=frozenset({"split"})),
    _dequantize((100, 3000), axis=1, tags=frozenset({"split"})),
]

CASES = TYPES + AXES + FACTORS + STRIDED + TYPICAL
