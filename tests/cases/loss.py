"""Loss cases: a function, a batch of shape (b, *sample), a reduction, weights, labels."""

from dataclasses import dataclass

import numpy as np
from oracles import loss as oracle

from cases import dtype_of, generator, sentinel_array, spec_of

FUNCTIONS = (
    "softmax_cross_entropy",
    "sigmoid_cross_entropy",
    "mean_square_error",
    "huber",
    "log",
    "cosine_distance",
    "hinge",
    "mean_absolute_error",
    "categorical_cross_entropy",
)
REDUCTIONS = ("none", "sum", "weighted_mean", "mean", "non_zero_weight_mean")
WEIGHTS = ("none", "one", "sample", "value")


@dataclass(frozen=True)
class LossCase:
    """One loss layer with a batch. parameter is the label smoothing or delta."""

    function: str
    shape: tuple[int, ...]  # b, then one sample
    reduction: str = "mean"
    weights: str = "none"
    labels: str = "dense"  # or an integer type: class numbers
    parameter: float = 0.0
    dtype: str = "float32"
    stored: str = "float32"  # type of the loss
    x_gaps: tuple[int, ...] | None = None  # values skipped after each axis of input and labels
    dx_gaps: tuple[int, ...] | None = None
    step: int = 1  # distance of neighbours of input and labels
    tags: frozenset[str] = frozenset()

    def __str__(self):
        words = [self.function, "x".join(map(str, self.shape)), self.reduction]
        words += [f"w_{self.weights}"] if self.weights != "none" else []
        words += [self.labels] if self.labels != "dense" else []
        words += [f"p{self.parameter}"] if self.parameter else []
        words += [self.dtype] if self.dtype != "float32" else []
        words += [f"to_{self.stored}"] if self.stored != "float32" else []
        if self.x_gaps or self.dx_gaps or self.step != 1:
            gaps = (self.x_gaps or ()) + (self.dx_gaps or ())
            words += ["gaps" + "".join(map(str, gaps)) + f"step{self.step}"]
        return "-".join(words)

    @property
    def is_per_sample(self):
        return self.function in oracle.PER_SAMPLE

    @property
    def keeps(self):
        return self.reduction == "none"

    @property
    def output_shape(self):
        if not self.keeps:
            return ()
        return self.shape[:1] if self.is_per_sample else self.shape

    @property
    def has_derivative(self):
        """False where the documented gradient is not the derivative of the value, or has kinks."""
        kinks = ("hinge", "mean_absolute_error", "categorical_cross_entropy", "cosine_distance")
        return self.function not in kinks

    # ---- data ----

    def input(self):
        rng = generator(self)
        x, _ = sentinel_array(self.shape, self.dtype, self.x_gaps, self.step)
        values = rng.standard_normal(self.shape) * 2
        if self.function == "log":
            values = 0.02 + 0.96 * rng.random(self.shape)
        elif self.function == "cosine_distance":
            values = unit(values)
        x[...] = values.astype(x.dtype)
        return x

    def label_values(self):
        """What the layer is given: dense rows, or class numbers."""
        rng = generator(self, 1)
        if self.labels != "dense":
            classes = int(np.prod(self.shape[1:]))
            return rng.integers(0, classes, self.shape[0]).astype(self.labels)
        values = {
            "mean_square_error": lambda: rng.standard_normal(self.shape),
            "huber": lambda: rng.standard_normal(self.shape),
            "mean_absolute_error": lambda: rng.standard_normal(self.shape),
            "cosine_distance": lambda: unit(rng.standard_normal(self.shape)),
            "softmax_cross_entropy": lambda: rng.random(self.shape) / np.prod(self.shape[1:]),
            "sigmoid_cross_entropy": lambda: rng.random(self.shape),
        }.get(self.function, lambda: rng.integers(0, 2, self.shape).astype(np.float64))()
        labels, _ = sentinel_array(self.shape, self.dtype, self.x_gaps, self.step)
        labels[...] = values.astype(labels.dtype)
        return labels

    def weight_values(self):
        """Some of them 0; None for no weights."""
        shape = {"none": None, "one": (), "sample": self.shape[:1], "value": self.shape}
        if self.weights == "none":
            return None
        rng = generator(self, 2)
        values = rng.uniform(0.5, 1.5, shape[self.weights])
        if self.weights != "one":
            values *= rng.random(shape[self.weights]) < 0.8
        return np.asarray(values, np.float32)

    def empty_gradient(self):
        return sentinel_array(self.shape, self.dtype, self.dx_gaps)

    def output_gradient(self):
        dy = generator(self, 3).standard_normal(self.output_shape)
        return np.asarray(dy).astype(dtype_of(self.stored))

    # ---- the library ----

    def loss(self):
        import openbnns

        made = {
            "huber": lambda: openbnns.Loss.huber(self.parameter or 1.0),
            "softmax_cross_entropy": lambda: openbnns.Loss.softmax_cross_entropy(self.parameter),
            "sigmoid_cross_entropy": lambda: openbnns.Loss.sigmoid_cross_entropy(self.parameter),
        }
        return made.get(self.function, lambda: self.function)()

    def layer(self, num_threads=None):
        import openbnns

        shape = self.output_shape[1:] if self.keeps else ()
        return openbnns.LossLayer(
            self.loss(),
            input=spec_of(self.input(), self.dtype),
            output=openbnns.ArraySpec(shape, self.stored),
            reduction=self.reduction,
            num_threads=num_threads,
        )

    def results(self, num_threads=None):
        """Everything the layer computes, by name."""
        layer, x, labels = self.layer(num_threads), self.input(), self.label_values()
        weights = self.weight_values()
        y, dx = layer.apply(x, labels, weights=weights, input_gradient=True)
        back = layer.apply_backward(x, labels, self.output_gradient(), weights=weights).input
        return {"y": np.asarray(y), "dx": dx, "backward": back}

    # ---- the oracle ----

    def expected(self, x, labels, weights, dy=None):
        """(loss, gradient for dy, terms of the loss), float64; dy None is 1."""
        b = self.shape[0]
        rows = x.astype(np.float64).reshape(b, -1)
        if self.labels == "dense":
            truth = labels.astype(np.float64).reshape(b, -1)
        else:
            truth = np.eye(rows.shape[1])[labels.astype(np.int64)]
        each = np.ones(rows.shape)
        if weights is not None:
            wide = weights.astype(np.float64).reshape(b if weights.size > 1 else 1, -1)
            each = np.broadcast_to(wide, rows.shape)
        is_huber = self.function == "huber"
        result = oracle.forward(
            self.function,
            rows,
            truth,
            each,
            smoothing=0.0 if is_huber else self.parameter,
            delta=(self.parameter or 1.0) if is_huber else 1.0,
        )
        y, factor = oracle.reduce(self.function, self.reduction, result, each)
        terms = result.terms if self.keeps else result.terms.sum() * factor
        up = np.ones(self.output_shape) if dy is None else dy.astype(np.float64)
        if self.keeps:
            up = up.reshape(b, -1)
            y, terms = (v.reshape(self.output_shape) for v in (y, terms))
        return y, (result.slopes * factor * up).reshape(self.shape), terms


def unit(values):
    rows = values.reshape(values.shape[0], -1)
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).reshape(values.shape)


def _cases():
    tiny, odd = frozenset({"tiny"}), frozenset({"odd"})
    smooth = {"softmax_cross_entropy": 0.1, "sigmoid_cross_entropy": 0.2, "huber": 0.75}
    for function in FUNCTIONS:
        for reduction in REDUCTIONS:
            for weights in WEIGHTS:
                yield LossCase(function, (3, 5), reduction, weights, tags=tiny)
        parameter = smooth.get(function, 0.0)
        for shape in ((1, 1), (1, 7), (9, 1), (5, 2, 3), (2, 3, 4, 5), (4, 1500), (2, 3000)):
            yield LossCase(function, shape, "mean", "sample", parameter=parameter, tags=odd)
        for dtype in ("float16", "bfloat16"):
            yield LossCase(function, (6, 33), "none", "value", dtype=dtype, tags=odd)
            yield LossCase(function, (6, 33), "sum", dtype=dtype, stored=dtype, tags=odd)
        yield LossCase(
            function,
            (4, 3, 21),
            "mean",
            "value",
            parameter=parameter,
            x_gaps=(0, 1, 2),
            dx_gaps=(1, 0, 3),
            step=2,
            tags=odd,
        )
        split = frozenset({"split"})
        yield LossCase(function, (300, 257), "weighted_mean", "value", tags=split)
    for function in ("softmax_cross_entropy", "categorical_cross_entropy"):
        for labels in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"):
            yield LossCase(function, (5, 9), labels=labels, tags=tiny)
        for shape, reduction, weights in (
            ((7, 10), "none", "sample"),
            ((7, 10), "sum", "value"),
            ((3, 2, 700), "weighted_mean", "value"),
            ((2, 3000), "mean", "one"),
        ):
            yield LossCase(function, shape, reduction, weights, "int64", tags=odd)
    for shape in ((6, 11), (2, 3000)):
        yield LossCase(
            "softmax_cross_entropy", shape, "mean", "value", "int32", parameter=0.1, tags=odd
        )


LARGE = frozenset({"typical", "large"})
CASES = [
    *_cases(),
    LossCase("softmax_cross_entropy", (128, 1000), tags=LARGE),
    LossCase("softmax_cross_entropy", (128, 1000), labels="int64", tags=LARGE),
    LossCase("sigmoid_cross_entropy", (1000, 1000), tags=LARGE),
    LossCase("huber", (1000, 1000), tags=LARGE),
    LossCase("mean_square_error", (1000, 1000), tags=LARGE),
]
# Half a gigabyte each: for benchmarks alone.
HUGE = [
    LossCase("softmax_cross_entropy", (4096, 32000), tags=LARGE),
    LossCase("softmax_cross_entropy", (4096, 32000), labels="int64", tags=LARGE),
]
ODD = LossCase("softmax_cross_entropy", (7, 33), "mean", "sample", parameter=0.1)
