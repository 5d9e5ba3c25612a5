"""Activation cases. Shapes include the batch as axis 0."""

import math
from dataclasses import dataclass

import numpy as np
from oracles import activation as oracle

from cases import generator, sentinel_array, spec_of

# Parameters that make every branch of a function reachable: (alpha, beta).
PARAMETERS = {
    "identity": (0.0, 0.0),
    "rectified_linear": (0.0, 0.0),
    "leaky_rectified_linear": (0.125, 0.0),
    "sigmoid": (0.0, 0.0),
    "tanh": (0.0, 0.0),
    "scaled_tanh": (1.75, 0.625),
    "abs": (0.0, 0.0),
    "linear": (-1.5, 0.0),
    "clamp": (-0.75, 1.25),
    "gelu_approximation": (math.sqrt(2.0 / math.pi), 0.044715),
    "hard_sigmoid": (0.25, 0.5),
    "softplus": (1.25, 0.75),
    "softsign": (0.0, 0.0),
    "elu": (0.75, 0.0),
    "clamped_leaky_rectified_linear": (0.125, 1.5),
    "linear_with_bias": (1.5, -0.25),
    "log_sigmoid": (0.0, 0.0),
    "selu": (0.0, 0.0),
    "celu": (1.25, 0.0),
    "hard_shrink": (0.5, 0.0),
    "soft_shrink": (0.5, 0.0),
    "tanh_shrink": (0.0, 0.0),
    "threshold": (0.25, -0.5),
    "prelu_per_channel": (0.25, 0.0),
    "gelu_approximation_2": (1.0 / 6.0, 0.5),
    "hard_swish": (1.0 / 6.0, 0.5),
    "silu": (0.0, 0.0),
    "relu6": (0.0, 0.0),
    "erf": (0.0, 0.0),
    "gelu": (0.0, 0.0),
    "gelu_approximation_sigmoid": (0.0, 0.0),
}

# Where the slope jumps: (alpha, beta) -> x.
KINKS = {
    "rectified_linear": lambda a, b: (0.0,),
    "leaky_rectified_linear": lambda a, b: (0.0,),
    "prelu_per_channel": lambda a, b: (0.0,),
    "abs": lambda a, b: (0.0,),
    "clamp": lambda a, b: (a, b),
    "hard_sigmoid": lambda a, b: (-b / a, (1.0 - b) / a),
    "elu": lambda a, b: (0.0,),
    "selu": lambda a, b: (0.0,),
    "clamped_leaky_rectified_linear": lambda a, b: (0.0, b),
    "hard_shrink": lambda a, b: (-a, a),
    "soft_shrink": lambda a, b: (-a, a),
    "threshold": lambda a, b: (a,),
    "gelu_approximation_2": lambda a, b: (-3.0, 3.0),
    "hard_swish": lambda a, b: (-3.0, 3.0),
    "relu6": lambda a, b: (0.0, 6.0),
}

SOFTMAX = ("softmax", "log_softmax")


@dataclass(frozen=True)
class ActivationCase:
    """One activation layer with a batch."""

    function: str
    shape: tuple[int, ...]  # n, then one sample
    alpha: float = 0.0
    beta: float = 0.0
    axes: tuple[int, ...] = ()  # softmax kinds: axes of `shape`, 0 being the batch
    dtype: str = "float32"
    out_dtype: str | None = None  # None: as dtype
    x_gaps: tuple[int, ...] = ()  # values skipped after each axis
    y_gaps: tuple[int, ...] = ()
    step: int = 1
    tags: frozenset[str] = frozenset()

    def __str__(self):
        words = [self.function, "x".join(map(str, self.shape)), self.dtype]
        if self.out_dtype:
            words += ["to", self.out_dtype]
        if self.axes:
            words += ["axes" + "".join(map(str, self.axes))]
        if self.x_gaps or self.y_gaps or self.step != 1:
            words += ["gaps" + "".join(map(str, self.x_gaps + self.y_gaps)) + f"step{self.step}"]
        return "-".join(words)

    @property
    def stored(self):
        """Type of the output."""
        return self.out_dtype or self.dtype

    @property
    def softmax(self):
        return self.function in SOFTMAX

    @property
    def kinks(self):
        return KINKS.get(self.function, lambda a, b: ())(self.alpha, self.beta)

    # ---- data ----

    def input(self):
        rng = generator(self)
        x, _ = sentinel_array(self.shape, self.dtype, self.x_gaps, self.step)
        x[...] = (2.0 * rng.standard_normal(self.shape)).astype(x.dtype)
        return x

    def empty_output(self):
        """(y, its owner), all bytes sentinel."""
        return sentinel_array(self.shape, self.stored, self.y_gaps, self.step)

    def output_gradient(self):
        dy, _ = self.empty_output()
        dy[...] = generator(self, 1).standard_normal(self.shape).astype(dy.dtype)
        return dy

    # ---- the library ----

    def layer(self, num_threads=None):
        import openbnns

        y, _ = self.empty_output()
        return openbnns.ActivationLayer(
            activation_of(self.function, self.alpha, self.beta),
            input=spec_of(self.input(), self.dtype),
            output=spec_of(y, self.stored),
            axes=python_axes(self.axes) if self.softmax else None,
            num_threads=num_threads,
        )

    def results(self, num_threads=None):
        """Everything a layer of this case computes, by name."""
        layer, x, dy = self.layer(num_threads), self.input(), self.output_gradient()
        y = layer.apply(x)
        results = {"y": y}
        results["dx"] = layer.apply_backward(x, None, dy, alpha_gradient=None).input
        if self.function in oracle.FROM_Y:
            results["dx of y"] = layer.apply_backward(None, y, dy, alpha_gradient=None).input
        if self.function in ("leaky_rectified_linear", "prelu_per_channel"):
            results["sum"] = layer.apply_backward(x, None, dy, alpha_gradient=True).alpha
        return results

    # ---- the oracle ----

    def expected(self, x):
        x = x.astype(np.float64)
        if self.softmax:
            return getattr(oracle, self.function)(x, self.axes)
        return oracle.FUNCTIONS[self.function].forward(x, self.alpha, self.beta)

    def expected_from_x(self, x, dy):
        """dx in float64, everything derived from x."""
        x, dy = x.astype(np.float64), dy.astype(np.float64)
        if self.softmax:
            return self.expected_from_y(getattr(oracle, self.function)(x, self.axes), dy)
        return dy * oracle.FUNCTIONS[self.function].slope(x, self.alpha, self.beta)

    def expected_from_y(self, y, dy):
        """dx in float64 from the output as it was stored; None where y does not say enough."""
        y, dy = y.astype(np.float64), dy.astype(np.float64)
        if self.softmax:
            return getattr(oracle, self.function + "_backward")(y, dy, self.axes)
        slope = oracle.FUNCTIONS[self.function].slope_from_y
        return None if slope is None else dy * slope(y, self.alpha, self.beta)

    def gradient_terms(self, x, dy):
        """Sum of the sizes of what a gradient adds up; None where it adds nothing."""
        if not self.softmax:
            return None
        share = oracle.softmax(x.astype(np.float64), self.axes)
        sizes = np.abs(dy.astype(np.float64))
        if self.function == "softmax":
            sizes = sizes * share
        return share * sizes.sum(axis=self.axes, keepdims=True)


def activation_of(name, alpha, beta):
    """The Python word for an activation, with the parameters it has."""
    import openbnns

    make = getattr(openbnns.Activation, name)
    counts = {"leaky_rectified_linear": 1, "linear": 1, "elu": 1, "celu": 1, "hard_shrink": 1}
    counts |= {"soft_shrink": 1, "prelu_per_channel": 1}
    counts |= dict.fromkeys(("scaled_tanh", "clamp", "gelu_approximation", "hard_sigmoid"), 2)
    counts |= dict.fromkeys(("softplus", "clamped_leaky_rectified_linear", "threshold"), 2)
    counts |= dict.fromkeys(("linear_with_bias", "gelu_approximation_2", "hard_swish"), 2)
    count = counts.get(name, 0)
    return make(*(alpha, beta)[:count]) if count else make


def python_axes(axes):
    """Axes of a batch as axes of a sample, the batch by its name."""
    return tuple("batch" if axis == 0 else axis - 1 for axis in axes)


def _each(shape, **changes):
    return [ActivationCase(name, shape, *PARAMETERS[name], **changes) for name in PARAMETERS]


def _tags(*tags):
    return frozenset(tags)


ELEMENTWISE = (
    _each((2, 3, 5, 7), tags=_tags("odd"))
    + _each((1, 1, 1, 1), tags=_tags("tiny"))
    + _each((3, 2, 9, 11), dtype="float16", tags=_tags("odd"))
    + _each((3, 2, 9, 11), dtype="bfloat16", tags=_tags("odd"))
    + _each((3, 4, 50, 67), tags=_tags("split"))
    + _each((2, 3, 4, 5), x_gaps=(0, 0, 2, 3), y_gaps=(0, 1, 0, 2), tags=_tags("odd"))
    + _each((2, 2, 3, 9), step=2, dtype="float16", out_dtype="float32", tags=_tags("odd"))
    + _each((2, 2, 3, 9), out_dtype="float16", tags=_tags("odd"))
)

_AXES = [
    ((4, 10), (1,)),
    ((4, 10), (0,)),
    ((4, 10), (0, 1)),
    ((1, 1), (1,)),
    ((3, 1000), (1,)),
    ((2, 3, 5, 7), (3,)),
    ((2, 3, 5, 7), (2,)),
    ((2, 3, 5, 7), (1,)),
    ((2, 3, 5, 7), (2, 3)),
    ((2, 3, 5, 7), (1, 3)),
    ((2, 3, 5, 7), (1, 2, 3)),
    ((2, 3, 5, 7), (0,)),
    ((2, 3, 5, 7), (0, 2)),
    ((2, 3, 5, 7), (0, 1, 2, 3)),
    ((5, 6, 33), (2,)),
    ((5, 6, 33), (1,)),
]

SOFTMAXES = [
    ActivationCase(name, shape, axes=axes, tags=_tags("odd"))
    for name in SOFTMAX
    for shape, axes in _AXES
] + [
    ActivationCase(name, shape, axes=axes, **changes)
    for name in SOFTMAX
    for shape, axes, changes in [
        ((2, 3, 5, 7), (1,), {"dtype": "float16"}),
        ((2, 3, 5, 7), (1, 3), {"dtype": "bfloat16"}),
        ((2, 3, 5, 7), (3,), {"dtype": "float16", "out_dtype": "float32"}),
        ((2, 3, 5, 7), (2,), {"x_gaps": (0, 0, 2, 3), "y_gaps": (0, 1, 0, 2)}),
        ((2, 3, 5, 7), (0, 3), {"x_gaps": (0, 1, 0, 3), "y_gaps": (0, 1, 0, 2)}),
        ((200, 333), (1,), {"tags": _tags("split")}),
        ((64, 10), (1,), {"tags": _tags("typical")}),
        ((3, 40, 700), (1,), {"tags": _tags("split")}),
        ((8, 9000), (0,), {"tags": _tags("split")}),
        ((2, 70000), (1,), {"tags": _tags("split")}),
    ]
]

_MILLION = (1, 1, 1000, 1000)
BENCHMARKS = [
    ActivationCase(name, _MILLION, *PARAMETERS[name], tags=_tags("typical", "large"))
    for name in ("tanh", "sigmoid", "gelu", "gelu_approximation", "silu")
] + [ActivationCase("softmax", (1000, 1000), axes=(1,), tags=_tags("typical", "large"))]

CASES = ELEMENTWISE + SOFTMAXES + BENCHMARKS
