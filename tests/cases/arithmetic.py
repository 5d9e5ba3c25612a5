"""Arithmetic cases. Shapes are those of one sample; samples have the batch in front of them."""

from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from oracles import activation as activation_oracle
from oracles import arithmetic as oracle

from cases import generator, sentinel_array
from cases.activation import activation_of

# Where the functions are tame: (low, high) of a, b, c; outside of it they grow, jump or do not
# exist. Everything else takes values around zero.
RANGES = {
    "sqrt": [(0.25, 4)],
    "rsqrt": [(0.25, 4)],
    "tan": [(-1.2, 1.2)],
    "asin": [(-0.9, 0.9)],
    "acos": [(-0.9, 0.9)],
    "acosh": [(1.25, 4)],
    "atanh": [(-0.9, 0.9)],
    "log": [(0.25, 4)],
    "log2": [(0.25, 4)],
    "reciprocal": [(0.5, 3)],
    "divide": [(-2, 2), (0.5, 3)],
    "pow": [(0.25, 2), (-2, 2)],
    "divide_no_nan": [(-2, 2), (0.5, 3)],
    "floor_divide": [(-9, 9), (0.5, 3)],
    "trunc_divide": [(-9, 9), (0.5, 3)],
    "trunc_remainder": [(-9, 9), (0.5, 3)],
}
NAMES = {1: ("input",), 2: ("a", "b"), 3: ("a", "b", "c")}


@dataclass(frozen=True)
class ArithmeticCase:
    """One arithmetic layer with a batch."""

    function: str
    shapes: tuple[tuple[int, ...], ...]  # of the inputs
    kinds: tuple[str, ...] = ("sample", "sample", "sample")
    batch: int = 2
    output_kind: str = "sample"
    output: tuple[int, ...] | None = None  # None: what the inputs have together
    dtype: str = "float32"
    activation: str = "identity"
    alpha: float = 0.0
    beta: float = 0.0
    gap: int = 0  # values skipped after the last axis of every array
    step: int = 1  # distance of neighbours along it
    tags: frozenset[str] = frozenset()

    def __str__(self):
        words = [self.function, f"n{self.batch}"]
        for shape, kind in zip(self.shapes, self.kinds, strict=False):
            words += [("" if kind == "sample" else kind[0]) + "x".join(map(str, shape))]
        words += [] if self.output is None else ["to" + "x".join(map(str, self.output))]
        words += [] if self.output_kind == "sample" else [f"to-{self.output_kind}"]
        words += [] if self.dtype == "float32" else [self.dtype]
        words += [] if self.activation == "identity" else [self.activation]
        words += [f"gap{self.gap}step{self.step}"] if self.gap or self.step != 1 else []
        return "-".join(words)

    @property
    def stored(self):
        return self.dtype

    @property
    def arity(self):
        return len(self.shapes)

    @property
    def names(self):
        return NAMES[self.arity]

    @property
    def output_shape(self):
        """Of one sample."""
        return self.output or np.broadcast_shapes(*self.shapes)

    def full_shape(self, k):
        """Of the array for input k."""
        return self._with_batch(self.shapes[k], self.kinds[k])

    @property
    def full_output(self):
        return self._with_batch(self.output_shape, self.output_kind)

    def _with_batch(self, shape, kind):
        return (self.batch, *shape) if kind == "sample" else shape

    # ---- data ----

    def inputs(self):
        arrays = []
        ranges = RANGES.get(self.function, [])
        for k in range(self.arity):
            low, high = ranges[k] if k < len(ranges) else (-2.0, 2.0)
            array, _ = self.empty_input(k)
            values = generator(self, k).uniform(low, high, array.shape)
            if self.function == "select" and k == 0:
                values = np.where(values < 0, 0.0, values)
            array[...] = values.astype(array.dtype)
            arrays.append(array)
        return arrays

    def output_gradient(self):
        dy, _ = self.empty_output()
        dy[...] = generator(self, 5).standard_normal(dy.shape).astype(dy.dtype)
        return dy

    def empty_input(self, k):
        return self._empty(self.full_shape(k))

    def empty_output(self):
        """(y, its owner), all bytes sentinel."""
        return self._empty(self.full_output)

    def _empty(self, shape):
        return sentinel_array(shape, self.dtype, (0,) * (len(shape) - 1) + (self.gap,), self.step)

    # ---- the library ----

    def spec(self, array, kind):
        import openbnns

        lead = 1 if kind == "sample" else 0
        return openbnns.ArraySpec(array.shape[lead:], self.dtype, array.strides[lead:])

    def layer(self, num_threads=None):
        import openbnns

        specs = [self.spec(self.empty_input(k)[0], self.kinds[k]) for k in range(self.arity)]
        words = ["input"] if self.arity == 1 else [f"input_{name}" for name in self.names]
        make = {
            1: openbnns.UnaryArithmeticLayer,
            2: openbnns.BinaryArithmeticLayer,
            3: openbnns.TernaryArithmeticLayer,
        }[self.arity]
        return make(
            self.function,
            **dict(zip(words, specs, strict=True)),
            **{f"{name}_kind": kind for name, kind in zip(self.names, self.kinds, strict=False)},
            output=self.spec(self.empty_output()[0], self.output_kind),
            output_kind=self.output_kind,
            activation=activation_of(self.activation, self.alpha, self.beta),
            num_threads=num_threads,
        )

    def results(self, num_threads=None):
        """Everything a layer of this case computes, by name."""
        layer, inputs, dy = self.layer(num_threads), self.inputs(), self.output_gradient()
        y = layer.apply(*inputs, out=self.empty_output()[0])
        grads = layer.apply_backward(*inputs, y, dy)
        results = {"y": y}
        for k, (name, gradient) in enumerate(zip(self.names, grads, strict=True)):
            if gradient is not None:
                results[f"d{name}" + (" sum" if self.is_sum(k) else "")] = gradient
        return results

    def is_sum(self, k):
        """Several values of the output contribute to one of the gradient."""
        return self.full_shape(k) != self.full_output

    # ---- the oracle ----

    def _aligned(self, k, array):
        """An input as float64 beside samples: parameters and constants get a batch of one."""
        lead = self.kinds[k] != "sample" and self.output_kind == "sample"
        return array.astype(np.float64)[None] if lead else array.astype(np.float64)

    def _values(self, inputs):
        wide = [self._aligned(k, array) for k, array in enumerate(inputs)]
        return wide, oracle.FUNCTIONS[self.function].value(*wide)

    def expected(self, inputs):
        """y in float64."""
        _, z = self._values(inputs)
        function = activation_oracle.FUNCTIONS[self.activation]
        y = function.forward(z, self.alpha, self.beta)
        return np.broadcast_to(y, self.full_output)

    def expected_gradients(self, inputs, y, dy):
        """[(gradient, sum of the sizes of its terms)] in float64, None for constants; the slope of
        a fused activation is taken from y as stored."""
        slope = activation_oracle.FUNCTIONS[self.activation].slope_from_y
        dz = dy.astype(np.float64) * slope(y.astype(np.float64), self.alpha, self.beta)
        wide, z = self._values(inputs)
        found = []
        for k, gradient in enumerate(oracle.FUNCTIONS[self.function].gradients):
            if self.kinds[k] == "constant":
                found.append(None)
                continue
            terms = np.broadcast_to(gradient(*wide, z, dz), self.full_output)
            shape = self.full_shape(k)
            found.append((oracle.summed_to(terms, shape), oracle.summed_to(np.abs(terms), shape)))
        return found


def _case(function, *shapes, tags=("odd",), **more):
    return ArithmeticCase(function, shapes, tags=frozenset(tags), **more)


_TINY, _SPLIT = ("tiny",), ("typical", "split")

EVERY = (
    [_case(name, (3, 5, 7)) for name in oracle.UNARY]
    + [_case(name, (3, 5, 7), (3, 5, 7)) for name in oracle.BINARY]
    + [_case(name, (3, 5, 7), (3, 5, 7), (3, 5, 7)) for name in oracle.TERNARY]
)

BROADCAST = [
    _case("add", (1,), (1,), tags=_TINY, batch=1),
    _case("add", (1, 3, 4), (2, 3, 1)),
    _case("multiply", (2, 3, 4), (1, 1, 1)),
    _case("subtract", (1, 1, 5), (4, 3, 1)),
    _case("divide", (6, 1), (1, 9)),
    _case("maximum", (4, 70), (1, 70), batch=3),
    _case("multiply", (2, 1, 3, 1, 2), (1, 4, 1, 5, 1)),
    _case("multiply_add", (3, 1, 5), (1, 4, 1), (3, 4, 1)),
    _case("select", (3, 1, 1), (1, 4, 5), (3, 4, 5)),
    _case("exp", (3, 1, 5), output=(3, 4, 5)),
    _case("square", (1, 1), output=(6, 300), batch=3),
    _case("add", (2, 3, 4, 5, 2), (2, 3, 4, 5, 2)),
]

KINDS = [
    replace(case, kinds=kinds)
    for case, kinds in product(
        [_case("multiply", (3, 4), (3, 4), batch=3), _case("subtract", (3, 1), (1, 40), batch=3)],
        [
            ("sample", "parameter"),
            ("parameter", "sample"),
            ("sample", "constant"),
            ("constant", "sample"),
            ("parameter", "parameter"),
            ("parameter", "constant"),
        ],
    )
] + [
    _case("multiply_add", (5, 6), (1, 6), (1, 6), kinds=("sample", "parameter", "parameter")),
    _case("multiply_add", (5, 6), (5, 6), (5, 6), kinds=("constant", "sample", "parameter")),
    _case("tanh", (4, 5), kinds=("parameter",), batch=3),
    _case("add", (4, 5), (4, 5), kinds=("parameter", "constant"), output_kind="parameter"),
    _case("exp", (4, 5), kinds=("parameter",), output_kind="constant"),
]

FUSED = [
    replace(case, activation=name, alpha=alpha)
    for case in (
        _case("add", (3, 5, 7), (3, 5, 7)),
        _case("multiply", (3, 5, 7), (3, 1, 7), kinds=("sample", "parameter")),
        _case("sin", (40,)),
    )
    for name, alpha in (("rectified_linear", 0.0), ("tanh", 0.0), ("leaky_rectified_linear", 0.125))
]

SHAPES = [
    _case("multiply", (17,), (17,)),
    _case("multiply", (5, 33), (5, 33), gap=3),
    _case("divide", (4, 5, 6), (4, 1, 6), gap=1, step=2),
    _case("multiply_add", (3, 8), (1, 8), (3, 1), gap=2, step=3),
    _case("tanh", (9, 9), step=2),
]

TYPES = [
    replace(case, dtype=dtype)
    for case in (
        _case("multiply", (3, 5, 7), (3, 1, 7)),
        _case("exp", (3, 5, 7)),
        _case("add", (40,), (40,), kinds=("sample", "parameter"), activation="rectified_linear"),
        _case("multiply_add", (3, 8), (1, 8), (3, 1), gap=2),
    )
    for dtype in ("float16", "bfloat16")
]

TYPICAL = [
    _case("add", (64, 56, 56), (64, 56, 56), batch=4, tags=_SPLIT),
    _case("multiply", (64, 56, 56), (64, 1, 1), batch=4, tags=_SPLIT),
    _case("add", (128, 768), (1, 768), kinds=("sample", "parameter"), batch=4, tags=_SPLIT),
    _case("tanh", (100_000,), batch=4, tags=_SPLIT),
    _case("multiply_add", (8, 300, 40), (8, 300, 1), (1, 1, 40), batch=4, tags=_SPLIT),
    _case("add", (256, 56, 56), (256, 56, 56), batch=16, tags=("large",)),
]

CASES = EVERY + BROADCAST + KINDS + FUSED + SHAPES + TYPES + TYPICAL
