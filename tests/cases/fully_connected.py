"""Fully connected cases: x (n, inputs), weights (outputs, inputs), y (n, outputs)."""

from dataclasses import dataclass, replace

import numpy as np
from oracles import activation as activation_oracle
from oracles import fully_connected as oracle

from cases import sentinel_array, spec_of
from cases.activation import activation_of
from cases.weights import Gradients, WeightsCase


@dataclass(frozen=True)
class FullyConnectedCase(WeightsCase):
    """One fully connected layer with a batch."""

    batch: int
    inputs: int
    outputs: int
    dtype: str = "float32"
    bias: bool = True
    activation: str = "identity"
    alpha: float = 0.0
    beta: float = 0.0
    column_major: bool = False  # weights whose columns lie side by side
    x_gaps: tuple[int, int] = (0, 0)  # values skipped after each axis
    y_gaps: tuple[int, int] = (0, 0)
    w_gaps: tuple[int, int] = (0, 0)
    step: int = 1  # distance of neighbours in input and output
    tags: frozenset[str] = frozenset()

    def __str__(self):
        words = [f"{self.batch}x{self.inputs}-to{self.outputs}"]
        words += [] if self.dtype == "float32" else [self.dtype]
        words += [] if self.activation == "identity" else [self.activation]
        words += [] if self.bias else ["unbiased"]
        words += ["column_major"] if self.column_major else []
        gaps = self.x_gaps + self.y_gaps + self.w_gaps
        if any(gaps) or self.step != 1:
            words += ["gaps" + "".join(map(str, gaps)) + f"step{self.step}"]
        return "-".join(words)

    @property
    def input_shape(self):
        return (self.batch, self.inputs)

    @property
    def output_shape(self):
        return (self.batch, self.outputs)

    @property
    def weights_shape(self):
        return (self.outputs, self.inputs)

    @property
    def multiplications(self):
        """Of one pass; all three have the same number."""
        return self.batch * self.inputs * self.outputs

    def empty_weights(self):
        if not self.column_major:
            return super().empty_weights()
        w, owner = sentinel_array(self.weights_shape[::-1], self.dtype, self.w_gaps)
        return w.T, owner

    # ---- the library ----

    def layer(self, num_threads=None, weights=None, bias=None):
        """The FullyConnectedLayer; `weights` and `bias` replace the case's own values."""
        import openbnns

        y, _ = self.empty_output()
        return openbnns.FullyConnectedLayer(
            self.weights() if weights is None else weights,
            input=spec_of(self.input(), self.dtype),
            output=spec_of(y, self.dtype),
            bias=self.bias_values() if bias is None else bias,
            activation=activation_of(self.activation, self.alpha, self.beta),
            num_threads=num_threads,
        )

    # ---- the oracle ----

    def expected(self, x, w):
        """y in float64."""
        z = oracle.fully_connected(x.astype(np.float64), w.astype(np.float64))
        if self.bias:
            z = z + self.bias_values().astype(np.float64)
        if self.activation == "softmax":
            return activation_oracle.softmax(z, (1,))
        function = activation_oracle.FUNCTIONS[self.activation]
        return function.forward(z, self.alpha, self.beta)

    def forward_terms(self, x, w):
        """Sums of the sizes of what a value of y adds up."""
        sizes = np.abs(x.astype(np.float64)), np.abs(w.astype(np.float64))
        terms = oracle.fully_connected(*sizes)
        return terms + np.abs(self.bias_values().astype(np.float64)) if self.bias else terms

    def expected_gradients(self, x, w, y, dy):
        """Gradients in float64, the slope of a fused activation taken from y as stored."""
        y, dy = y.astype(np.float64), dy.astype(np.float64)
        if self.activation == "softmax":
            dz = activation_oracle.softmax_backward(y, dy, (1,))
            sizes = y * (np.abs(dy) + np.abs(dy * y).sum(axis=1, keepdims=True))
        else:
            function = activation_oracle.FUNCTIONS[self.activation]
            dz = dy * function.slope_from_y(y, self.alpha, self.beta)
            sizes = np.abs(dz)
        x, w = x.astype(np.float64), w.astype(np.float64)
        return Gradients(
            dx=oracle.input_gradient(dz, w),
            dx_terms=oracle.input_gradient(sizes, np.abs(w)),
            dw=oracle.weight_gradient(x, dz),
            dw_terms=oracle.weight_gradient(np.abs(x), sizes),
            db=dz.sum(axis=0),
            db_terms=sizes.sum(axis=0),
        )


def _shape(batch, inputs, outputs, *tags, **more):
    return FullyConnectedCase(batch, inputs, outputs, tags=frozenset(tags), **more)


# Used again below with other types, values and strides.
ODD = _shape(5, 37, 19, "odd")
ALONE = _shape(1, 300, 70, "odd")
WIDE = _shape(33, 130, 67, "odd")

DENSE = [
    _shape(1, 1, 1, "tiny"),
    _shape(1, 4, 4, "tiny"),
    _shape(2, 2, 1, "tiny"),
    _shape(3, 1, 5, "odd"),
    ODD,
    ALONE,
    WIDE,
    _shape(1, 17, 1000, "odd"),
    _shape(1, 1000, 3, "odd"),
    _shape(2, 64, 64, "odd"),
    _shape(4, 129, 33, "odd"),
    _shape(7, 31, 65, "odd"),
    _shape(8, 16, 16, "odd"),
    _shape(9, 250, 10, "odd"),
    _shape(70, 5, 3, "odd"),
    _shape(100, 1, 1, "odd"),
    _shape(32, 3200, 10, "typical", "split"),
    _shape(1, 1024, 1100, "typical", "split"),
    _shape(3, 700, 900, "split"),
    _shape(64, 256, 200, "typical", "split"),
    _shape(130, 300, 257, "split"),
    _shape(1000, 40, 30, "split"),
]

HALVES = [
    replace(case, dtype=dtype)
    for dtype in ("float16", "bfloat16")
    for case in (DENSE[1], ODD, ALONE, WIDE, DENSE[19])
]

GAPS = [
    replace(case, **gaps)
    for case in (ODD, ALONE, WIDE)
    for gaps in (
        {"x_gaps": (0, 3), "y_gaps": (0, 1)},
        {"w_gaps": (0, 5)},
        {"step": 2},
        {"column_major": True},
        {"column_major": True, "w_gaps": (0, 2), "bias": False},
    )
] + [replace(ODD, dtype="float16", column_major=True, x_gaps=(0, 2))]

FUSED = [
    replace(ODD, bias=False),
    replace(ALONE, bias=False),
    replace(WIDE, bias=False, activation="tanh"),
    replace(ODD, activation="rectified_linear"),
    replace(ALONE, activation="sigmoid"),
    replace(WIDE, activation="rectified_linear"),
    replace(ODD, activation="leaky_rectified_linear", alpha=0.125),
    replace(ODD, activation="softmax"),
    replace(WIDE, activation="softmax"),
    replace(ALONE, activation="softmax"),
    replace(ODD, activation="tanh", dtype="float16"),
    replace(DENSE[16], activation="rectified_linear"),
]

BENCHMARKS = [
    _shape(1, 4096, 4096, "typical", "large", bias=False),
    _shape(128, 1024, 1024, "typical", "large", bias=False),
    _shape(32, 3200, 10, "typical", "large", bias=False),
]

CASES = DENSE + HALVES + GAPS + FUSED + BENCHMARKS
