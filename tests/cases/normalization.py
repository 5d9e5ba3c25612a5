"""Normalization cases: x and y are (n, c, h, w) or (n, c)."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from oracles import activation as activation_oracle
from oracles import normalization as oracle

from cases import dtype_of, generator, sentinel_array, spec_of
from cases.activation import activation_of

NONE = (0, 0, 0, 0)


class Gradients(NamedTuple):
    """What a backward call should give; the terms are sums of the sizes of what was added up."""

    dx: np.ndarray
    dx_terms: np.ndarray
    dbeta: np.ndarray
    dbeta_terms: np.ndarray
    dgamma: np.ndarray
    dgamma_terms: np.ndarray


@dataclass(frozen=True)
class NormalizationCase:
    """One normalization layer with a batch."""

    kind: str  # batch, instance, layer, group
    shape: tuple[int, ...]  # n, c, h, w or n, c
    axis: int = 0  # layer: the first normalized axis of a sample
    groups: int = 1  # group
    epsilon: float = 1e-5
    has_beta: bool = True
    has_gamma: bool = True
    full: bool = False  # layer: beta and gamma as large as a sample
    moving: bool = False  # with running statistics
    momentum: float = 0.9
    dtype: str = "float32"
    stored: str = ""  # type of the output; empty: that of the input
    parameter_dtype: str = "float32"
    activation: str = "identity"
    alpha: float = 0.0
    beta: float = 0.0
    x_gaps: tuple[int, ...] = NONE  # values skipped after each axis
    y_gaps: tuple[int, ...] = NONE
    step: int = 1  # distance of neighbours in a row
    tags: frozenset[str] = frozenset()

    def __post_init__(self):
        object.__setattr__(self, "stored", self.stored or self.dtype)

    def __str__(self):
        words = [self.kind, "x".join(map(str, self.shape))]
        words += [f"axis{self.axis}"] if self.kind == "layer" else []
        words += [f"groups{self.groups}"] if self.kind == "group" else []
        words += [] if self.epsilon == 1e-5 else [f"eps{self.epsilon:g}"]
        words += [] if self.has_beta else ["nobeta"]
        words += [] if self.has_gamma else ["nogamma"]
        words += ["full"] if self.full else []
        words += [f"moving{self.momentum:g}"] if self.moving else []
        words += [] if self.dtype == "float32" else [self.dtype]
        words += [] if self.stored == self.dtype else [f"to-{self.stored}"]
        words += [] if self.parameter_dtype == "float32" else [f"by-{self.parameter_dtype}"]
        words += [] if self.activation == "identity" else [self.activation]
        if any(self.x_gaps + self.y_gaps) or self.step != 1:
            gaps = "".join(map(str, self.x_gaps + self.y_gaps))
            words += [f"gaps{gaps}step{self.step}"]
        return "-".join(words)

    @property
    def channels(self):
        return self.shape[1]

    @property
    def parameter_shape(self):
        if self.kind != "layer":
            return (self.channels,)
        return self.shape[1:] if self.full else self.shape[1 + self.axis :]

    @property
    def split(self):
        return oracle.split_of(self.kind, self.shape, self.axis, self.groups)

    # ---- data ----

    def input(self):
        """Values that are not centred, of a different scale in every channel."""
        x, _ = self.empty_input()
        values = generator(self).standard_normal(self.shape)
        scales = np.linspace(0.5, 2.0, self.channels)
        x[...] = (self.per_channel(scales) * (values + 0.5)).astype(x.dtype)
        return x

    def output_gradient(self):
        dy, _ = self.empty_output()
        dy[...] = generator(self, 2).standard_normal(self.shape).astype(dy.dtype)
        return dy

    def gamma_values(self):
        if not self.has_gamma:
            return None
        values = 1.0 + 0.3 * generator(self, 3).standard_normal(self.parameter_shape)
        return values.astype(dtype_of(self.parameter_dtype))

    def beta_values(self):
        if not self.has_beta:
            return None
        values = generator(self, 4).standard_normal(self.parameter_shape)
        return values.astype(dtype_of(self.parameter_dtype))

    def moving_values(self):
        """Running mean and variance, None where the case has none."""
        if not self.moving:
            return None, None
        rng = generator(self, 5)
        mean, variance = rng.standard_normal(self.channels), rng.uniform(0.5, 2.0, self.channels)
        return mean.astype(np.float32), variance.astype(np.float32)

    def empty_input(self):
        return self._empty(self.dtype, self.x_gaps)

    def empty_output(self):
        """(y, its owner), all bytes sentinel."""
        return self._empty(self.stored, self.y_gaps)

    def _empty(self, dtype, gaps):
        return sentinel_array(self.shape, dtype, gaps[: len(self.shape)], self.step)

    # ---- the library ----

    def layer(self, num_threads=None, **parameters):
        """The NormalizationLayer; keywords replace the case's own values."""
        import openbnns

        kind = {
            "layer": openbnns.Normalization.layer(self.axis),
            "group": openbnns.Normalization.group(self.groups),
        }.get(self.kind, self.kind)
        mean, variance = self.moving_values()
        own = {
            "beta": self.beta_values(),
            "gamma": self.gamma_values(),
            "moving_mean": mean,
            "moving_variance": variance,
        }
        return openbnns.NormalizationLayer(
            kind,
            input=spec_of(self.empty_input()[0], self.dtype),
            output=spec_of(self.empty_output()[0], self.stored),
            momentum=self.momentum,
            epsilon=self.epsilon,
            activation=activation_of(self.activation, self.alpha, self.beta),
            num_threads=num_threads,
            **own | parameters,
        )

    def results(self, num_threads=None):
        """Everything a layer of this case computes, by name."""
        mean, variance = self.moving_values()
        layer = self.layer(num_threads, moving_mean=mean, moving_variance=variance)
        x, dy = self.input(), self.output_gradient()
        y = layer.apply(x, training=True)
        grads = layer.apply_backward(x, y, dy)
        results = {"y": y, "dx": grads.input, "inference": layer.apply(x, training=False)}
        named = {"dbeta sum": grads.beta, "dgamma sum": grads.gamma}
        named |= {"mean": mean, "variance": variance}
        return results | {name: array for name, array in named.items() if array is not None}

    # ---- the oracle ----

    def per_channel(self, values):
        """(c), broadcast to a sample."""
        return np.reshape(values, (-1,) + (1,) * (len(self.shape) - 2)).astype(np.float64)

    def _spread(self, values, absent):
        """A parameter, broadcast to a sample."""
        if values is None:
            return np.float64(absent)
        return values.astype(np.float64) if self.kind == "layer" else self.per_channel(values)

    def _parameters(self):
        return self._spread(self.gamma_values(), 1.0), self._spread(self.beta_values(), 0.0)

    def _standard(self, x, mean=None, variance=None):
        x = x.astype(np.float64)
        current = oracle.statistics(x, self.split)
        mean, variance = (
            now if given is None else np.reshape(given, (1, -1, 1)).astype(np.float64)
            for given, now in zip((mean, variance), current, strict=True)
        )
        xhat, r = oracle.standardize(x, self.split, mean, variance, self.epsilon)
        means = np.broadcast_to(mean, x.reshape(self.split[0]).shape).reshape(x.shape)
        return xhat, r, means

    def expected(self, x, mean=None, variance=None):
        """y in float64, with the statistics of x or with those given."""
        z = oracle.affine(self._standard(x, mean, variance)[0], *self._parameters())
        function = activation_oracle.FUNCTIONS[self.activation]
        return function.forward(z, self.alpha, self.beta)

    def forward_terms(self, x, mean=None, variance=None):
        """Sums of the sizes of what a value of y adds up."""
        _, r, means = self._standard(x, mean, variance)
        gamma, beta = self._parameters()
        return np.abs(gamma) * r * (np.abs(x.astype(np.float64)) + np.abs(means)) + np.abs(beta)

    def expected_gradients(self, x, y, dy):
        """Gradients in float64, the slope of a fused activation taken from y as stored."""
        function = activation_oracle.FUNCTIONS[self.activation]
        slope = function.slope_from_y(y.astype(np.float64), self.alpha, self.beta)
        dz = dy.astype(np.float64) * slope
        xhat, r, means = self._standard(x)
        gamma, _ = self._parameters()
        shape = self.parameter_shape
        if self.kind != "layer":
            shape = shape + (1,) * (len(self.shape) - 2)
        # x̂ is itself a difference: what it lost comes back multiplied
        lost = r * (np.abs(x.astype(np.float64)) + np.abs(means))

        def total(values):
            return oracle.summed_to(values, shape).reshape(self.parameter_shape)

        return Gradients(
            dx=oracle.backward(xhat, r, gamma, dz, self.split),
            dx_terms=oracle.backward_terms(np.abs(xhat) + lost, r, gamma, dz, self.split),
            dbeta=total(dz),
            dbeta_terms=total(np.abs(dz)),
            dgamma=total(dz * xhat),
            dgamma_terms=total(np.abs(dz) * (np.abs(xhat) + lost)),
        )

    def expected_moving(self, x, mean, variance):
        """Running mean and variance after a training call on x."""
        now = oracle.running(x.astype(np.float64), self.kind)
        return tuple(
            oracle.moved(old.astype(np.float64), new, self.momentum)
            for old, new in zip((mean, variance), now, strict=True)
        )


def _case(kind, shape, tags=("odd",), **more):
    return NormalizationCase(kind, shape, tags=frozenset(tags), **more)


_TINY, _SPLIT = ("tiny",), ("typical", "split")

# Used again below with other types, values and strides.
ODD = (3, 4, 5, 7)
BATCH = _case("batch", ODD, moving=True)
INSTANCE = _case("instance", ODD, moving=True)
LAYER = _case("layer", ODD)
ROWS = _case("layer", ODD, axis=2)
GROUP = _case("group", ODD, groups=2)
EACH = [BATCH, INSTANCE, LAYER, ROWS, GROUP]

IMAGES = [
    *EACH,
    _case("batch", (2, 1, 1, 2), _TINY),
    _case("batch", (1, 2, 3, 3), _TINY, moving=True),
    _case("batch", (1, 3, 1, 1), _TINY, moving=True),  # variances of single values
    _case("batch", (5, 3, 1, 17), moving=True, momentum=0.0),
    _case("batch", (2, 33, 6, 6), moving=True, momentum=1.0),
    _case("batch", (7, 70, 1, 1)),
    _case("instance", (1, 1, 1, 2), _TINY),
    _case("instance", (2, 3, 1, 9), moving=True, momentum=0.25),
    _case("instance", (2, 3, 1, 1), moving=True),
    _case("instance", (4, 9, 13, 11)),
    _case("layer", (1, 1, 1, 4), _TINY),
    _case("layer", (2, 3, 4, 5), full=True),
    _case("layer", ODD, axis=1),
    _case("layer", ODD, axis=1, full=True),
    _case("layer", ODD, axis=2, full=True),
    _case("layer", (2, 1, 9, 100), axis=2),
    _case("layer", (3, 2, 5, 1), axis=2),  # groups of one value
    _case("layer", (1, 7, 3, 31), axis=2, has_gamma=False),
    _case("layer", (2, 3, 4, 5), has_beta=False),
    _case("group", (2, 6, 3, 5), groups=1),
    _case("group", (2, 6, 3, 5), groups=6),
    _case("group", (1, 12, 1, 1), groups=3),
    _case("group", (3, 32, 5, 5), groups=8, has_beta=False, has_gamma=False),
    _case("batch", ODD, has_beta=False),
    _case("batch", ODD, has_gamma=False),
    _case("batch", ODD, epsilon=0.0),
    _case("layer", ODD, epsilon=0.5),
]

VECTORS = [
    _case("batch", (2, 2), _TINY),
    _case("batch", (9, 1), _TINY, moving=True),
    _case("batch", (6, 130), moving=True),
    _case("batch", (33, 67), moving=True, activation="rectified_linear"),
    _case("layer", (1, 4), _TINY),
    _case("layer", (5, 131)),
    _case("group", (4, 60), groups=5),
    _case("instance", (3, 4)),  # every value is its own group
]

FUSED = [
    replace(case, activation=name, alpha=alpha, beta=beta)
    for case in EACH
    for name, alpha, beta in (
        ("rectified_linear", 0.0, 0.0),
        ("tanh", 0.0, 0.0),
        ("leaky_rectified_linear", 0.125, 0.0),
    )
]

TYPES = [replace(case, dtype=name) for case in EACH for name in ("float16", "bfloat16")] + [
    replace(BATCH, dtype="float16", parameter_dtype="float16"),
    replace(BATCH, stored="float16"),
    replace(LAYER, dtype="float16", stored="float32", parameter_dtype="float16"),
    replace(GROUP, dtype="bfloat16", stored="float32", parameter_dtype="bfloat16"),
    replace(BATCH, dtype="float16", shape=(8, 19), activation="rectified_linear"),
]

STRIDED = [
    replace(case, x_gaps=x_gaps, y_gaps=y_gaps, step=step)
    for case in EACH
    for x_gaps, y_gaps, step in (((0, 0, 0, 3), (0, 0, 2, 0), 1), ((1, 1, 0, 1), (0, 2, 0, 0), 2))
] + [replace(BATCH, shape=(5, 21), x_gaps=(0, 4, 0, 0), step=2)]

TYPICAL = [
    _case("batch", (16, 64, 28, 28), _SPLIT, moving=True, activation="rectified_linear"),
    _case("batch", (64, 1000), _SPLIT, moving=True),
    _case("instance", (4, 32, 56, 56), _SPLIT),
    _case("layer", (4, 1, 128, 768), _SPLIT, axis=2),
    _case("layer", (16, 1, 64, 64), _SPLIT),
    _case("group", (8, 64, 28, 28), _SPLIT, groups=32),
    _case("batch", (32, 256, 28, 28), ("large",), moving=True),
    _case("layer", (32, 1, 512, 768), ("large",), axis=2),
]

CASES = IMAGES + VECTORS + FUSED + TYPES + STRIDED + TYPICAL
