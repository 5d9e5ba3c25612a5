"""Pooling cases. Pairs are (vertical, horizontal); an image is (n, c, h, w)."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from oracles import activation as activation_oracle
from oracles import pooling as oracle

from cases import dtype_of, generator, sentinel_array, spec_of
from cases.activation import activation_of

FUNCTIONS = ("max", "average", "average_exclude_padding", "unmax", "l2_norm")


class Gradients(NamedTuple):
    """What a backward call should give; the terms are sums of the sizes of what was added up."""

    dx: np.ndarray
    dx_terms: np.ndarray
    dbias: np.ndarray
    dbias_terms: np.ndarray


@dataclass(frozen=True)
class PoolingCase:
    """One pooling layer with a batch. For unmax, image and windows belong to the matching max
    pooling: its input has one value per window, its output is the image."""

    function: str
    image: tuple[int, int, int, int]  # n, c, h, w
    kernel: tuple[int, int] = (2, 2)
    stride: tuple[int, int] = (2, 2)
    padding: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (0, 0))  # (up, down), (left, right)
    dilation: tuple[int, int] = (1, 1)
    windows: tuple[int, int] | None = None  # None: those that fit into the padded image
    dtype: str = "float32"
    index_dtype: str = "uint32"
    bias: bool = False
    activation: str = "identity"
    alpha: float = 0.0
    beta: float = 0.0
    values: str = "normal"  # or "ties": few distinct values, "negative", "specials"
    x_gaps: tuple[int, int, int, int] = (0, 0, 0, 0)  # values skipped after each axis of the input
    y_gaps: tuple[int, int, int, int] = (0, 0, 0, 0)  # the same for output and indices
    step: int = 1  # distance of neighbours in a row of input and output
    tags: frozenset[str] = frozenset()

    def __str__(self):
        n, c, h, w = self.image
        words = [self.function, f"{n}x{c}x{h}x{w}", "k{}x{}".format(*self.kernel)]
        words += ["s{}x{}".format(*self.stride)]
        if self.padding != ((0, 0), (0, 0)):
            words += ["p" + "_".join(str(p) for pair in self.padding for p in pair)]
        if self.dilation != (1, 1):
            words += ["d{}x{}".format(*self.dilation)]
        if self.windows:
            words += ["o{}x{}".format(*self.windows)]
        defaults = PoolingCase(self.function, self.image)
        for name in ("dtype", "index_dtype", "activation", "values"):
            if getattr(self, name) != getattr(defaults, name):
                words += [getattr(self, name)]
        if self.bias:
            words += ["bias"]
        if self.x_gaps != defaults.x_gaps or self.y_gaps != defaults.y_gaps or self.step != 1:
            words += ["gaps" + "".join(map(str, self.x_gaps + self.y_gaps)) + f"step{self.step}"]
        return "-".join(words)

    @property
    def pooled(self):
        """Shape (n, c, oh, ow) of the array with one value per window."""
        if self.windows:
            return self.image[:2] + self.windows
        sizes = (
            (self.image[2 + k] + sum(self.padding[k]) - self.dilation[k] * (self.kernel[k] - 1) - 1)
            // self.stride[k]
            + 1
            for k in range(2)
        )
        return self.image[:2] + tuple(sizes)

    @property
    def stored(self):
        """Type of the output."""
        return self.dtype

    @property
    def input_shape(self):
        return self.pooled if self.function == "unmax" else self.image

    @property
    def output_shape(self):
        return self.image if self.function == "unmax" else self.pooled

    @property
    def takes_indices(self):
        return self.function in ("max", "unmax")

    @property
    def windows_overlap(self):
        """True when a position may lie in several windows, inside ones or empty ones (index 0)."""
        flat, inside = self.geometry.positions()
        return not inside.any(axis=-1).all() or np.unique(flat[inside]).size < inside.sum()

    @property
    def geometry(self):
        return oracle.Geometry(
            image=self.image[2:],
            windows=self.pooled[2:],
            kernel=self.kernel,
            stride=self.stride,
            dilation=self.dilation,
            before=(self.padding[0][0], self.padding[1][0]),
        )

    # ---- data ----

    def input(self):
        """x, of the case's shape, type and gaps."""
        rng = generator(self)
        values = {
            "normal": lambda: rng.standard_normal(self.input_shape),
            "ties": lambda: rng.integers(-2, 3, self.input_shape).astype(np.float64),
            "negative": lambda: -1.0 - rng.random(self.input_shape),
            "specials": lambda: rng.choice([np.nan, np.inf, -np.inf, 0.0, 1.0], self.input_shape),
        }[self.values]()
        x, _ = sentinel_array(self.input_shape, self.dtype, self.x_gaps, self.step)
        x[...] = values.astype(x.dtype)
        return x

    def empty_output(self):
        """(y, its owner), all bytes sentinel."""
        return sentinel_array(self.output_shape, self.dtype, self.y_gaps, self.step)

    def empty_indices(self):
        """(indices, their owner): shape and strides of the array with one value per window."""
        gaps = self.x_gaps if self.function == "unmax" else self.y_gaps
        return sentinel_array(self.pooled, self.index_dtype, gaps, self.step)

    def unmax_indices(self):
        """What the matching max pooling would have found in random data."""
        image = generator(self, 1).standard_normal(self.image)
        indices, _ = self.empty_indices()
        indices[...] = oracle.max_pool(image, self.geometry)[1]
        return indices

    def output_gradient(self):
        dy, _ = self.empty_output()
        dy[...] = generator(self, 2).standard_normal(self.output_shape).astype(dy.dtype)
        return dy

    def bias_values(self):
        if not self.bias:
            return None
        return generator(self, 3).standard_normal(self.image[1]).astype(dtype_of(self.dtype))

    # ---- the library ----

    def layer(self, num_threads=None, bias=None):
        """The PoolingLayer; `bias` replaces the case's own values."""
        import openbnns

        y, _ = self.empty_output()
        return openbnns.PoolingLayer(
            pooling_of(self.function),
            input=spec_of(self.input(), self.dtype),
            output=spec_of(y, self.dtype),
            kernel_size=self.kernel,
            stride=self.stride,
            padding=self.padding,
            dilation=self.dilation,
            bias=self.bias_values() if bias is None else bias,
            activation=activation_of(self.activation, self.alpha, self.beta),
            num_threads=num_threads,
        )

    def apply(self, layer, x, y=None):
        """(y, indices or None): gives the layer the indices it takes and asks for those it has."""
        if not self.takes_indices:
            return layer.apply(x, out=y), None
        indices = self.unmax_indices() if self.function == "unmax" else self.empty_indices()[0]
        found = layer.apply(x, out=y, indices=indices)
        return (found[0] if isinstance(found, tuple) else found), indices

    def results(self, num_threads=None):
        """Everything a layer of this case computes, by name."""
        layer, x, dy = self.layer(num_threads), self.input(), self.output_gradient()
        y, indices = self.apply(layer, x)
        wants_bias = True if self.bias else None
        grads = layer.apply_backward(x, y, dy, indices=indices, bias_gradient=wants_bias)
        results = {"y": y, "dx": grads.input}
        if self.bias:
            results["sum"] = grads.bias
        if self.function == "max":  # the gradient without indices takes another way
            results["indices"] = indices
            results["dx again"] = layer.apply_backward(x, y, dy, bias_gradient=None).input
        return results

    # ---- the oracle ----

    def expected(self, x, indices=None):
        """(y, indices or None) in float64."""
        z, found = oracle.forward(self.function, x.astype(np.float64), self.geometry, indices)
        if self.bias:
            z = z + self.bias_values().astype(np.float64)[:, None, None]
        function = activation_oracle.FUNCTIONS[self.activation]
        return function.forward(z, self.alpha, self.beta), found

    def expected_gradients(self, x, y, dy, indices=None):
        """Gradients in float64, the slope of a fused activation taken from y as stored."""
        function = activation_oracle.FUNCTIONS[self.activation]
        slope = function.slope_from_y(y.astype(np.float64), self.alpha, self.beta)
        dz, x = dy.astype(np.float64) * slope, x.astype(np.float64)
        if self.function == "max" and indices is None:
            indices = oracle.max_pool(x, self.geometry)[1]
        sizes = np.abs(dz)
        return Gradients(
            dx=oracle.backward(self.function, x, dz, self.geometry, indices),
            dx_terms=oracle.backward(self.function, np.abs(x), sizes, self.geometry, indices),
            dbias=dz.sum(axis=(0, 2, 3)),
            dbias_terms=sizes.sum(axis=(0, 2, 3)),
        )


def pooling_of(function):
    import openbnns

    if function.startswith("average"):
        return openbnns.Pooling.average(count_include_padding=function == "average")
    return function


def _shape(image, kernel, stride=None, padding=0, dilation=1, windows=None, tags=()):
    def pair(v):
        return v if isinstance(v, tuple) else (v, v)

    kernel = pair(kernel)
    padding = tuple(pair(p) for p in pair(padding))
    stride = kernel if stride is None else pair(stride)
    return PoolingCase(
        "max", image, kernel, stride, padding, pair(dilation), windows, tags=frozenset(tags)
    )


# Used again below with other types, values and strides.
ODD = _shape((2, 3, 7, 5), 3, 2, 1, tags=("odd",))
LOPSIDED = _shape((1, 2, 5, 9), (3, 2), (2, 1), ((1, 0), (0, 1)), tags=("odd",))
PADDING_ONLY = _shape((1, 2, 3, 3), 2, 1, 3, tags=("odd",))  # for some windows
PLAIN = _shape((2, 2, 33, 35), 2, 2, tags=("odd",))
OVERLAPPING = _shape((1, 2, 17, 33), 3, 1, 1, tags=("odd",))
TYPICAL = _shape((4, 8, 56, 56), 3, 2, 1, tags=("typical", "split"))

GEOMETRIES = [
    _shape((1, 1, 4, 4), 2, tags=("tiny",)),
    _shape((1, 1, 1, 1), 1, tags=("tiny",)),
    _shape((2, 3, 3, 3), 2, 1, tags=("tiny",)),
    ODD,
    LOPSIDED,
    _shape((2, 2, 1, 13), (1, 3), (1, 2), tags=("odd",)),  # one row
    _shape((1, 2, 13, 1), (3, 1), (1, 1), tags=("odd",)),  # one column
    _shape((2, 2, 3, 4), 5, 1, 2, tags=("odd",)),  # kernel larger than the image
    _shape((1, 2, 3, 4), 7, 1, windows=(1, 1), tags=("odd",)),  # the same without padding
    _shape((1, 3, 11, 10), 2, 3, tags=("odd",)),  # values no window sees
    _shape((1, 3, 11, 10), 1, (5, 4), tags=("odd",)),
    _shape((2, 2, 9, 11), 3, 1, 2, dilation=2, tags=("odd",)),
    _shape((1, 2, 10, 12), (2, 3), 2, 1, dilation=(3, 2), tags=("odd",)),
    _shape((1, 2, 8, 40), (2, 3), (1, 3), 1, dilation=(1, 4), tags=("odd",)),
    _shape((1, 2, 6, 7), 3, 2, ((0, 2), (1, 3)), tags=("odd",)),
    _shape((2, 2, 6, 6), 3, 2, windows=(3, 3), tags=("odd",)),  # overhang: ceil mode
    _shape((1, 2, 7, 7), 2, 2, windows=(4, 4), tags=("odd",)),
    _shape((1, 2, 5, 5), 4, 2, ((1, 0), (1, 0)), windows=(3, 3), tags=("odd",)),
    PADDING_ONLY,
    _shape((2, 5, 7, 7), 7, 1, tags=("typical",)),  # global
    _shape((1, 2, 3, 70), (2, 3), 1, (0, 1), tags=("odd",)),
    _shape((1, 2, 6, 131), 3, 2, 1, tags=("odd",)),
    _shape((1, 1, 4, 67), 2, 2, tags=("odd",)),
    _shape((1, 2, 9, 100), 3, 3, tags=("odd",)),
    PLAIN,
    OVERLAPPING,
    _shape((1, 1, 3, 300), (3, 5), (1, 4), (1, 2), tags=("odd",)),
    _shape((1, 1, 40, 19), (11, 9), (3, 2), (5, 4), tags=("odd",)),
    _shape((1, 1, 3, 200_000), 3, 2, 1, tags=("odd",)),  # rows larger than a thread's scratch
    _shape((1, 1, 2, 3000), (1, 1000), (1, 7), (0, 500), tags=("odd",)),  # a very wide window
    _shape((1, 2, 3, 5000), 2, (1, 1000), tags=("odd",)),  # a very wide step
    TYPICAL,
    _shape((4, 8, 56, 56), 2, 2, tags=("typical", "split")),
    _shape((1, 2, 150, 140), 3, 1, 1, tags=("split",)),  # few planes: rows are shared out
    _shape((2, 3, 64, 64), (2, 3), (1, 2), ((1, 0), (0, 2)), (2, 1), tags=("split",)),
]

HALVES = [
    replace(geometry, dtype=dtype)
    for dtype in ("float16", "bfloat16")
    for geometry in GEOMETRIES
    if "split" in geometry.tags or geometry in (ODD, PLAIN, LOPSIDED, PADDING_ONLY)
]

GAPS = [
    replace(geometry, **gaps)
    for geometry in (ODD, PLAIN)
    for gaps in (
        {"x_gaps": (0, 2, 0, 0)},  # a slice of channels
        {"x_gaps": (0, 0, 0, 3), "y_gaps": (0, 0, 0, 1)},  # gaps after rows
        {"x_gaps": (0, 0, 2, 0), "y_gaps": (0, 1, 1, 0)},
        {"x_gaps": (0, 1, 1, 5), "y_gaps": (0, 3, 2, 1), "dtype": "float16"},
        {"step": 2},  # every second value
        {"step": 3, "x_gaps": (0, 1, 0, 1), "dtype": "float16"},
    )
]

VALUES = [
    replace(geometry, values=values)
    for geometry in (ODD, LOPSIDED, OVERLAPPING)
    for values in ("ties", "negative", "specials")
]

FUSED = [
    replace(ODD, bias=True),
    replace(PLAIN, bias=True, dtype="float16"),
    replace(ODD, bias=True, dtype="bfloat16"),
    replace(ODD, activation="rectified_linear"),
    replace(ODD, bias=True, activation="sigmoid"),
    replace(PLAIN, bias=True, activation="tanh"),
    replace(ODD, bias=True, activation="leaky_rectified_linear", alpha=0.125),
    replace(ODD, activation="elu", alpha=0.75),
    replace(ODD, bias=True, activation="hard_sigmoid", alpha=0.25, beta=0.5),
    replace(ODD, bias=True, activation="softplus", alpha=1.0, beta=1.0),
    replace(PLAIN, bias=True, activation="rectified_linear", dtype="float16"),
    replace(TYPICAL, bias=True, activation="tanh"),
]

BENCHMARKS = [
    _shape((32, 64, 112, 112), 2, 2, tags=("typical", "large")),
    _shape((32, 64, 112, 112), 3, 2, 1, tags=("typical", "large")),
]


def _for_functions(cases, functions=FUNCTIONS):
    return [replace(case, function=function) for case in cases for function in functions]


def _usable(case):
    """Sums of infinities of both signs have no closed form worth comparing."""
    return case.values != "specials" or case.function == "max"


CASES = [
    case
    for case in (
        _for_functions(GEOMETRIES + HALVES + GAPS + VALUES + FUSED)
        + _for_functions(
            [replace(g, index_dtype="uint64") for g in (ODD, PLAIN, TYPICAL)], ("max", "unmax")
        )
        + _for_functions(BENCHMARKS, ("max", "average"))
    )
    if _usable(case)
]
