"""Convolution cases. Pairs are (vertical, horizontal); an image is (n, c, h, w)."""

from dataclasses import dataclass, replace
from math import prod

import numpy as np
from oracles import activation as activation_oracle
from oracles import convolution as oracle
from oracles.tolerance import SUM, WINOGRAD

from cases import spec_of
from cases.activation import activation_of
from cases.weights import Gradients, WeightsCase

NONE = ((0, 0), (0, 0))


@dataclass(frozen=True)
class ConvolutionCase(WeightsCase):
    """One convolution layer, plain or transposed, with a batch."""

    image: tuple[int, int, int, int]  # n, c, h, w of the input
    outputs: int  # output channels
    kernel: tuple[int, int] = (3, 3)
    stride: tuple[int, int] = (1, 1)
    padding: tuple[tuple[int, int], tuple[int, int]] = NONE  # (up, down), (left, right)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    transposed: bool = False
    extents: tuple[int, int] | None = None  # of the output; None: what the sizes say
    dtype: str = "float32"
    bias: bool = True
    activation: str = "identity"
    alpha: float = 0.0
    beta: float = 0.0
    winograd: bool | None = None
    x_gaps: tuple[int, int, int, int] = (0, 0, 0, 0)  # values skipped after each axis of the input
    y_gaps: tuple[int, int, int, int] = (0, 0, 0, 0)
    w_gaps: tuple[int, int, int, int] = (0, 0, 0, 0)
    step: int = 1  # distance of neighbours in a row of input and output
    tags: frozenset[str] = frozenset()

    def __str__(self):
        n, c, h, w = self.image
        words = ["transposed"] if self.transposed else []
        words += [f"{n}x{c}x{h}x{w}-to{self.outputs}", "k{}x{}".format(*self.kernel)]
        words += ["s{}x{}".format(*self.stride)]
        if self.padding != NONE:
            words += ["p" + "_".join(str(p) for pair in self.padding for p in pair)]
        if self.dilation != (1, 1):
            words += ["d{}x{}".format(*self.dilation)]
        if self.groups > 1:
            words += [f"g{self.groups}"]
        if self.extents:
            words += ["o{}x{}".format(*self.extents)]
        words += [] if self.dtype == "float32" else [self.dtype]
        words += [] if self.activation == "identity" else [self.activation]
        words += [] if self.bias else ["unbiased"]
        words += [] if self.winograd is None else ["winograd" if self.winograd else "plain"]
        gaps = self.x_gaps + self.y_gaps + self.w_gaps
        if any(gaps) or self.step != 1:
            words += ["gaps" + "".join(map(str, gaps)) + f"step{self.step}"]
        return "-".join(words)

    @property
    def input_shape(self):
        return self.image

    @property
    def output_shape(self):
        return (self.image[0], self.outputs, *(self.extents or map(self._extent, range(2))))

    def _extent(self, k):
        reach = self.dilation[k] * (self.kernel[k] - 1) + 1
        if self.transposed:
            return self.stride[k] * (self.image[2 + k] - 1) + reach - sum(self.padding[k])
        return (self.image[2 + k] + sum(self.padding[k]) - reach) // self.stride[k] + 1

    @property
    def weights_shape(self):
        """(o, c/g, kh, kw), transposed (c, o/g, kh, kw)."""
        if self.transposed:
            return (self.image[1], self.outputs // self.groups, *self.kernel)
        return (self.outputs, self.image[1] // self.groups, *self.kernel)

    @property
    def geometry(self):
        """That of the convolution behind a transposed one goes from output to input."""
        inner, outer = self.image[2:], self.output_shape[2:]
        return oracle.Geometry(
            image=outer if self.transposed else inner,
            output=inner if self.transposed else outer,
            kernel=self.kernel,
            stride=self.stride,
            dilation=self.dilation,
            before=(self.padding[0][0], self.padding[1][0]),
            groups=self.groups,
        )

    @property
    def may_use_winograd(self):
        if self.winograd is False or self.groups != 1 or self.dilation != (1, 1):
            return False
        return self.kernel == (3, 3) and self.stride == (1, 1)

    @property
    def unit(self):
        """Error of a sum against the sizes of its terms."""
        return WINOGRAD if self.may_use_winograd else SUM

    @property
    def multiplications(self):
        """Of one pass; all three have the same number."""
        n, c = self.image[:2]
        places = self.image[2:] if self.transposed else self.output_shape[2:]
        return n * prod(places) * prod(self.kernel) * c * self.outputs // self.groups

    # ---- the library ----

    def layer(self, num_threads=None, weights=None, bias=None):
        """The ConvolutionLayer; `weights` and `bias` replace the case's own values."""
        import openbnns

        y, _ = self.empty_output()
        return openbnns.ConvolutionLayer(
            self.weights() if weights is None else weights,
            input=spec_of(self.input(), self.dtype),
            output=spec_of(y, self.dtype),
            bias=self.bias_values() if bias is None else bias,
            stride=self.stride,
            padding=self.padding,
            dilation=self.dilation,
            groups=self.groups,
            activation=activation_of(self.activation, self.alpha, self.beta),
            transposed=self.transposed,
            winograd=self.winograd,
            num_threads=num_threads,
        )

    # ---- the oracle ----

    def expected(self, x, w):
        """y in float64."""
        z = self._forward(x.astype(np.float64), w.astype(np.float64))
        if self.bias:
            z = z + self.bias_values().astype(np.float64)[:, None, None]
        function = activation_oracle.FUNCTIONS[self.activation]
        return function.forward(z, self.alpha, self.beta)

    def forward_terms(self, x, w):
        """Sums of the sizes of what a value of y adds up."""
        terms = self._forward(np.abs(x.astype(np.float64)), np.abs(w.astype(np.float64)))
        if self.bias:
            terms = terms + np.abs(self.bias_values().astype(np.float64))[:, None, None]
        return terms

    def _forward(self, x, w):
        run = oracle.transposed if self.transposed else oracle.convolution
        return run(x, w, self.geometry)

    def expected_gradients(self, x, w, y, dy):
        """Gradients in float64, the slope of a fused activation taken from y as stored."""
        function = activation_oracle.FUNCTIONS[self.activation]
        slope = function.slope_from_y(y.astype(np.float64), self.alpha, self.beta)
        x, w, dz = x.astype(np.float64), w.astype(np.float64), dy.astype(np.float64) * slope
        kind = "transposed" if self.transposed else "convolution"
        input_gradient = getattr(oracle, f"{kind}_input_gradient")
        weight_gradient = getattr(oracle, f"{kind}_weight_gradient")
        sizes = np.abs(dz)
        return Gradients(
            dx=input_gradient(dz, w, self.geometry),
            dx_terms=input_gradient(sizes, np.abs(w), self.geometry),
            dw=weight_gradient(x, dz, self.geometry),
            dw_terms=weight_gradient(np.abs(x), sizes, self.geometry),
            db=dz.sum(axis=(0, 2, 3)),
            db_terms=sizes.sum(axis=(0, 2, 3)),
        )


def _pair(value):
    return value if isinstance(value, tuple) else (value, value)


def _shape(image, outputs, kernel=3, stride=1, padding=0, dilation=1, groups=1, tags=(), **more):
    padding = tuple(_pair(side) for side in _pair(padding))
    return ConvolutionCase(
        image,
        outputs,
        _pair(kernel),
        _pair(stride),
        padding,
        _pair(dilation),
        groups,
        tags=frozenset(tags),
        **more,
    )


def _transposed(*arguments, **options):
    return replace(_shape(*arguments, **options), transposed=True)


_ODD, _SPLIT = ("odd",), ("typical", "split")

# Used again below with other types, values and strides.
ODD = _shape((2, 3, 7, 5), 4, 3, 2, 1, tags=_ODD)
SAME = _shape((2, 5, 11, 13), 7, 3, 1, 1, tags=_ODD)
WINOGRAD_CASE = _shape((2, 17, 14, 19), 33, 3, 1, 1, tags=_ODD)
LOPSIDED = _shape((1, 4, 6, 9), 6, (3, 2), (2, 1), ((1, 0), (0, 1)), groups=2, tags=_ODD)
DEPTHWISE = _shape((2, 6, 9, 17), 6, 3, 1, 1, groups=6, tags=_ODD)
POINTWISE = _shape((2, 9, 5, 7), 10, 1, tags=_ODD)
UP = _transposed((2, 3, 5, 4), 2, 4, 2, 1, tags=_ODD)

PLAIN = [
    _shape((1, 1, 1, 1), 1, 1, tags=("tiny",)),
    _shape((1, 1, 3, 3), 1, 2, tags=("tiny",)),
    _shape((2, 2, 4, 3), 3, 3, 1, 1, tags=("tiny",)),
    ODD,
    SAME,
    LOPSIDED,
    POINTWISE,
    WINOGRAD_CASE,
    _shape((1, 20, 30, 31), 40, 3, 1, 0, tags=_ODD),
    _shape((1, 16, 9, 10), 16, 3, 1, 2, tags=_ODD),
    _shape((1, 16, 9, 10), 18, 3, 1, ((0, 2), (3, 1)), tags=_ODD),
    _shape((3, 32, 7, 7), 32, 3, 1, 1, tags=_ODD),
    _shape((2, 2, 1, 13), 3, (1, 3), (1, 2), tags=_ODD),  # one row
    _shape((1, 2, 13, 1), 3, (3, 1), tags=_ODD),  # one column
    _shape((2, 2, 3, 4), 3, 5, 1, 2, tags=_ODD),  # kernel larger than the image
    _shape((1, 2, 3, 3), 2, 2, 1, 3, tags=_ODD),  # outputs that see padding alone
    _shape((1, 3, 11, 10), 4, 2, 3, tags=_ODD),  # values that no tap reads
    _shape((1, 3, 11, 10), 4, 1, (5, 4), tags=_ODD),
    _shape((1, 3, 8, 9), 4, 3, 1, 1, extents=(5, 6), tags=_ODD),  # surplus input
    _shape((2, 2, 9, 11), 3, 3, 1, 2, dilation=2, tags=_ODD),
    _shape((1, 2, 10, 12), 3, (2, 3), 2, 1, dilation=(3, 2), tags=_ODD),
    _shape((1, 2, 8, 40), 5, (2, 3), (1, 3), 1, dilation=(1, 4), tags=_ODD),
    _shape((1, 2, 3, 300), 3, (3, 5), (1, 4), (1, 2), tags=_ODD),
    _shape((1, 1, 40, 19), 2, (11, 9), (3, 2), (5, 4), tags=_ODD),
    _shape((2, 3, 33, 35), 17, 7, 2, 3, tags=_ODD),  # a first layer
    _shape((2, 1, 20, 20), 33, 3, 1, 1, tags=_ODD),
    _shape((2, 50, 6, 5), 40, 1, tags=_ODD),
    _shape((1, 33, 5, 6), 17, 1, 2, tags=_ODD),
    _shape((1, 20, 6, 7), 30, 5, 1, 2, tags=_ODD),
    _shape((1, 130, 5, 5), 70, 3, 2, 1, tags=_ODD),
    _shape((2, 6, 7, 8), 9, 3, 1, 1, groups=3, tags=_ODD),
    _shape((1, 8, 7, 7), 4, (1, 3), 2, (0, 1), groups=4, tags=_ODD),
    DEPTHWISE,
    _shape((1, 5, 10, 11), 5, 5, 2, 2, groups=5, tags=_ODD),
    _shape((1, 7, 9, 21), 7, 3, 2, 1, groups=7, tags=_ODD),
    _shape((1, 4, 12, 40), 4, 3, 1, 2, dilation=2, groups=4, tags=_ODD),
    _shape((1, 3, 9, 9), 12, 3, 1, 1, groups=3, tags=_ODD),  # four outputs per channel
]

TRANSPOSED = [
    _transposed((1, 1, 2, 2), 1, 3, tags=("tiny",)),
    _transposed((1, 1, 1, 1), 1, 1, tags=("tiny",)),
    UP,
    _transposed((2, 5, 6, 7), 4, 3, 1, 1, tags=_ODD),
    _transposed((1, 16, 9, 10), 20, 3, 1, 1, tags=_ODD),
    _transposed((1, 4, 5, 6), 3, 2, 2, tags=_ODD),
    _transposed((1, 4, 5, 6), 3, 2, 3, tags=_ODD),  # outputs that nobody writes
    _transposed((1, 3, 5, 4), 2, 3, 2, 1, extents=(10, 8), tags=_ODD),  # output padding
    _transposed((1, 4, 5, 6), 6, 3, 2, 1, groups=2, tags=_ODD),
    _transposed((2, 4, 5, 6), 4, 3, 2, 1, groups=4, tags=_ODD),
    _transposed((1, 2, 4, 5), 3, (2, 3), (1, 2), ((1, 0), (0, 1)), dilation=(2, 1), tags=_ODD),
    _transposed((1, 6, 5, 7), 9, 1, tags=_ODD),
]

TYPICAL = [
    _shape((4, 16, 28, 28), 24, 3, 1, 1, tags=_SPLIT),
    _shape((3, 32, 14, 14), 40, 1, tags=_SPLIT),
    _shape((4, 3, 40, 40), 16, 7, 2, 3, tags=_SPLIT),
    _shape((4, 16, 28, 28), 24, 3, 2, 1, tags=_SPLIT),
    _shape((4, 32, 28, 28), 32, 3, 1, 1, groups=32, tags=_SPLIT),
    _shape((4, 12, 20, 20), 20, 3, 1, 1, groups=4, tags=_SPLIT),
    _shape((32, 1, 20, 20), 32, 3, 1, 1, tags=_SPLIT),
    _shape((1, 70, 30, 29), 50, 3, 1, 1, tags=_SPLIT),  # one sample: channels are shared out
    _transposed((4, 16, 14, 14), 12, 4, 2, 1, tags=_SPLIT),
]

HALVES = [
    replace(case, dtype=dtype)
    for dtype in ("float16", "bfloat16")
    for case in (ODD, SAME, LOPSIDED, DEPTHWISE, POINTWISE, WINOGRAD_CASE, TYPICAL[0], TYPICAL[2])
]

GAPS = [
    replace(case, **gaps)
    for case in (ODD, WINOGRAD_CASE, DEPTHWISE, UP)
    for gaps in (
        {"x_gaps": (0, 2, 0, 0)},  # a slice of channels
        {"x_gaps": (0, 0, 0, 3), "y_gaps": (0, 0, 0, 1)},  # gaps after rows
        {"x_gaps": (0, 0, 2, 0), "y_gaps": (0, 1, 1, 0), "w_gaps": (0, 1, 0, 2)},
        {"step": 2, "w_gaps": (0, 0, 1, 0)},  # every second value
    )
] + [replace(ODD, step=3, x_gaps=(0, 1, 0, 1), dtype="float16")]

FUSED = [
    replace(ODD, bias=False),
    replace(WINOGRAD_CASE, bias=False, activation="tanh"),
    replace(ODD, activation="rectified_linear"),
    replace(WINOGRAD_CASE, activation="rectified_linear"),
    replace(DEPTHWISE, activation="sigmoid"),
    replace(POINTWISE, activation="tanh"),
    replace(ODD, activation="leaky_rectified_linear", alpha=0.125),
    replace(LOPSIDED, activation="elu", alpha=0.75),
    replace(ODD, activation="softplus", alpha=1.0, beta=1.0),
    replace(UP, activation="rectified_linear"),
    replace(UP, activation="tanh", bias=False),
    replace(SAME, activation="rectified_linear", dtype="float16"),
    replace(TYPICAL[0], activation="tanh"),
]

WINOGRAD_CHOICES = [
    replace(case, winograd=wanted)
    for case in (WINOGRAD_CASE, TYPICAL[0], ODD)
    for wanted in (True, False)
]

_LARGE = ("typical", "large")
BENCHMARKS = [
    _shape((32, 64, 56, 56), 64, 3, 1, 1, bias=False, tags=_LARGE),
    _shape((8, 256, 14, 14), 256, 3, 1, 1, bias=False, tags=_LARGE),
    _shape((8, 256, 56, 56), 64, 1, bias=False, tags=_LARGE),
    _shape((16, 3, 112, 112), 64, 7, 2, 3, bias=False, tags=_LARGE),
    _shape((8, 64, 28, 28), 128, 3, 2, 1, bias=False, tags=_LARGE),
    _shape((16, 128, 28, 28), 128, 3, 1, 1, groups=128, bias=False, tags=_LARGE),
    _shape((32, 1, 20, 20), 32, 3, 1, 1, bias=False, tags=_LARGE),
    _transposed((8, 64, 28, 28), 32, 4, 2, 1, bias=False, tags=_LARGE),
]

CASES = PLAIN + TRANSPOSED + TYPICAL + HALVES + GAPS + FUSED + WINOGRAD_CHOICES + BENCHMARKS
