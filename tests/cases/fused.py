"""Fused cases: a case of convolution, fully connected or arithmetic, then a normalization."""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from oracles import activation as activation_oracle
from oracles import fused as oracle
from oracles.normalization import summed_to
from oracles.tolerance import ABSOLUTE, RELATIVE, SUM

from cases import convolution as convolution_cases
from cases import fully_connected as fully_connected_cases
from cases import spec_of
from cases.activation import activation_of
from cases.arithmetic import ArithmeticCase
from cases.convolution import ConvolutionCase
from cases.fully_connected import FullyConnectedCase
from cases.normalization import NormalizationCase

NORM_UNIT = 2e-6  # as tests/test_normalization.py has it

# The bounds of oracles/fused.py add up errors as if all had one sign. Rounding has both signs: a
# tenth is seldom reached, at either step. Halves, rounded coarsely, get the whole.
SHARE = 0.1


class Expected(NamedTuple):
    """Gradients by name in float64, and by how much float32 may miss each value."""

    values: dict[str, np.ndarray]
    errors: dict[str, np.ndarray]


@dataclass(frozen=True)
class FusedCase:
    """One fused layer with a batch."""

    first: ConvolutionCase | FullyConnectedCase | ArithmeticCase  # without an activation
    kind: str = "batch"  # of the normalization, as all that follows
    axis: int = 0
    groups: int = 1
    epsilon: float = 1e-5
    has_beta: bool = True
    has_gamma: bool = True
    full: bool = False
    moving: bool = False
    momentum: float = 0.9
    activation: str = "identity"
    alpha: float = 0.0
    beta: float = 0.0
    y_gaps: tuple[int, ...] = (0, 0, 0, 0)
    tags: frozenset[str] = frozenset()

    def __str__(self):
        return f"{self.word}-{self.first}-then-{self.norm}"

    @property
    def word(self):
        """The family of the first layer."""
        return {
            ConvolutionCase: "convolution",
            FullyConnectedCase: "fully_connected",
            ArithmeticCase: "arithmetic",
        }[type(self.first)]

    @property
    def dtype(self):
        return self.first.dtype

    @property
    def stored(self):
        return self.first.dtype

    @property
    def share(self):
        return SHARE if self.dtype == "float32" else 1.0

    @property
    def is_weighted(self):
        return self.word != "arithmetic"

    @property
    def is_one_layer(self):
        """A convolution of few taps and a batch norm: done as one, with bits of its own."""
        if self.word != "convolution" or self.first.transposed or self.kind != "batch":
            return False
        if self.dtype != "float32" or self.y_gaps[3] or self.first.groups > 1:
            return False
        if self.activation not in ("identity", "rectified_linear") or self.first.image[1] > 4:
            return False
        taps, (outputs, *extents) = math.prod(self.first.weights_shape[1:]), self.shape[1:]
        return taps <= 32 and taps * taps <= 16 * outputs and math.prod(extents) >= 64

    @property
    def shape(self):
        """Of y, with the batch."""
        return self.first.output_shape if self.is_weighted else self.first.full_output

    @cached_property
    def norm(self):
        return NormalizationCase(
            self.kind,
            self.shape,
            self.axis,
            self.groups,
            self.epsilon,
            self.has_beta,
            self.has_gamma,
            self.full,
            self.moving,
            self.momentum,
            self.dtype,
            activation=self.activation,
            alpha=self.alpha,
            beta=self.beta,
            y_gaps=self.y_gaps,
        )

    @property
    def input_names(self):
        return ("dx",) if self.is_weighted else tuple(f"d{name}" for name in self.first.names)

    @property
    def fields(self):
        """Of the result of apply_backward, by the names of expected_gradients."""
        names = self.input_names
        found = {name: "input" if len(names) == 1 else name[1:] for name in names}
        if self.is_weighted:
            found |= {"dw": "weights", "db": "bias"}
        return found | {"dbeta": "beta", "dgamma": "gamma"}

    # ---- data ----

    def inputs(self):
        return [self.first.input()] if self.is_weighted else self.first.inputs()

    def weights(self):
        return self.first.weights() if self.is_weighted else None

    def output_gradient(self):
        return self.norm.output_gradient()

    def empty_input(self, k=0):
        return self.first.empty_input() if self.is_weighted else self.first.empty_input(k)

    def empty_output(self):
        """(y, its owner), all bytes sentinel."""
        return self.norm.empty_output()

    # ---- the library ----

    def first_parameters(self, weights=None):
        """The description of the first layer."""
        import openbnns

        first = self.first
        if not self.is_weighted:
            make = {
                1: openbnns.FusedUnaryArithmeticParameters,
                2: openbnns.FusedBinaryArithmeticParameters,
                3: openbnns.FusedTernaryArithmeticParameters,
            }[first.arity]
            return make(first.function, *first.kinds[: first.arity])
        weights, bias = first.weights() if weights is None else weights, first.bias_values()
        if self.word == "fully_connected":
            return openbnns.FusedFullyConnectedParameters(weights, bias)
        return openbnns.FusedConvolutionParameters(
            weights,
            bias,
            first.stride,
            first.dilation,
            first.groups,
            first.padding,
            first.transposed,
            winograd=first.winograd,
        )

    def norm_parameters(self, **replaced):
        """The description of the second one; keywords replace the case's own values."""
        import openbnns

        norm = self.norm
        mean, variance = norm.moving_values()
        kind = {
            "layer": openbnns.Normalization.layer(norm.axis),
            "group": openbnns.Normalization.group(norm.groups),
        }.get(norm.kind, norm.kind)
        own = {
            "beta": norm.beta_values(),
            "gamma": norm.gamma_values(),
            "moving_mean": mean,
            "moving_variance": variance,
            "momentum": norm.momentum,
            "epsilon": norm.epsilon,
            "activation": activation_of(norm.activation, norm.alpha, norm.beta),
        }
        return openbnns.FusedNormalizationParameters(kind, **own | replaced)

    def layer(self, num_threads=None, weights=None, **replaced):
        """The FusedParametersLayer."""
        import openbnns

        if self.is_weighted:
            specs = [spec_of(self.empty_input()[0], self.dtype)]
        else:
            kinds = self.first.kinds[: self.first.arity]
            arrays = [self.empty_input(k)[0] for k in range(self.first.arity)]
            specs = [self.first.spec(a, kind) for a, kind in zip(arrays, kinds, strict=True)]
        return openbnns.FusedParametersLayer(
            self.first_parameters(weights),
            self.norm_parameters(**replaced),
            inputs=specs,
            output=spec_of(self.empty_output()[0], self.dtype),
            num_threads=num_threads,
        )

    def results(self, num_threads=None):
        """Everything a layer of this case computes, by name."""
        mean, variance = self.norm.moving_values()
        layer = self.layer(num_threads, moving_mean=mean, moving_variance=variance)
        inputs, dy = self.inputs(), self.output_gradient()
        y = layer.apply(*inputs, training=True)
        grads = layer.apply_backward(*inputs, y, dy)
        found = {"y": y, **self.named(grads), "mean": mean, "variance": variance}
        found["inference"] = layer.apply(*inputs, training=False)
        return {
            name + (" sum" if name.startswith("d") else ""): array
            for name, array in found.items()
            if array is not None
        }

    def named(self, grads):
        """Gradients by the names of expected_gradients; absent ones are None."""
        return {name: getattr(grads, field) for name, field in self.fields.items()}

    def only(self, *names):
        """The keywords that ask for these gradients and no others."""
        return {f"{field}_gradient": name in names for name, field in self.fields.items()}

    # ---- our own layers one after the other ----

    def separate_results(self, training=True):
        """What the two layers compute by themselves, by the same names."""
        mean, variance = self.norm.moving_values()
        norm = self.norm.layer(moving_mean=mean, moving_variance=variance)
        layer, inputs = self.first.layer(), self.inputs()
        z = layer.apply(*inputs)
        y, _ = self.empty_output()
        norm.apply(np.ascontiguousarray(z), training=training, out=y)
        found = {"y": y, "mean": mean, "variance": variance}
        if training:
            dy = self.output_gradient()
            after = norm.apply_backward(None, y, dy)
            before = layer.apply_backward(*inputs, z, after.input)
            found |= dict(zip(self.input_names, before, strict=False))
            if self.is_weighted:
                found |= {"dw": before.weights, "db": before.bias}
            found |= {"dbeta": after.beta, "dgamma": after.gamma}
        return found

    # ---- the oracle ----

    def _first(self, inputs, w):
        """z in float64, and by how much ours may miss it."""
        if self.is_weighted:
            z, terms = self.first.expected(*inputs, w), self.first.forward_terms(*inputs, w)
            error = getattr(self.first, "unit", SUM) * terms + ABSOLUTE[self.dtype]
        else:
            z = self.first.expected(inputs)
            error = ABSOLUTE[self.dtype] + 0.0 * z
        return z, self.share * (error + RELATIVE[self.dtype] * np.abs(z))

    def expected(self, inputs, w, mean=None, variance=None):
        """y in float64, with the statistics of z or with those given, and by how much ours may miss
        it."""
        norm = self.norm
        z, error = self._first(inputs, w)
        xhat, r, _ = norm._standard(z, mean, variance)
        gamma, _ = norm._parameters()
        moved = r * error if mean is not None else oracle.standard_error(xhat, r, error, norm.split)
        allowed = NORM_UNIT * norm.forward_terms(z, mean, variance) + np.abs(gamma) * moved
        return norm.expected(z, mean, variance), allowed

    def expected_moving(self, inputs, w, mean, variance):
        """Running mean and variance after a training call."""
        return self.norm.expected_moving(self._first(inputs, w)[0], mean, variance)

    def expected_gradients(self, inputs, w, y, dy):
        """All of them, the slope of the activation taken from y as stored."""
        norm = self.norm
        z, error = self._first(inputs, w)
        after = norm.expected_gradients(z, y, dy)
        slope = activation_oracle.FUNCTIONS[norm.activation].slope_from_y
        dz = dy.astype(np.float64) * slope(y.astype(np.float64), norm.alpha, norm.beta)
        xhat, r, _ = norm._standard(z)
        gamma, _ = norm._parameters()
        u_error = NORM_UNIT * after.dx_terms + RELATIVE[self.dtype] * np.abs(after.dx)
        u_error += oracle.gradient_error(xhat, r, gamma, dz, error, norm.split)
        moved = oracle.standard_error(xhat, r, error, norm.split)
        values, errors = self._first_gradients(inputs, w, z, after.dx, u_error)
        values |= {"dbeta": after.dbeta, "dgamma": after.dgamma}
        errors |= {
            "dbeta": NORM_UNIT * after.dbeta_terms,
            "dgamma": NORM_UNIT * after.dgamma_terms + self._summed(np.abs(dz) * moved),
        }
        return Expected(values, errors)

    def _summed(self, values):
        """Over the batch and what else shares one gamma."""
        norm = self.norm
        shape = norm.parameter_shape
        if norm.kind != "layer":
            shape = shape + (1,) * (len(norm.shape) - 2)
        return summed_to(values, shape).reshape(norm.parameter_shape)

    def _first_gradients(self, inputs, w, z, u, u_error):
        if not self.is_weighted:
            values, errors = {}, {}
            found = self.first.expected_gradients(inputs, z, u)
            moved = self.first.expected_gradients(inputs, z, u_error)
            for name, pair, error in zip(self.input_names, found, moved, strict=True):
                if pair is not None:
                    values[name] = pair[0]
                    errors[name] = SUM * pair[1] + self.share * error[1]
            return values, errors
        unit = getattr(self.first, "unit", SUM)
        x = inputs[0]
        found = self.first.expected_gradients(x, w, z, u)
        moved = self.first.expected_gradients(np.abs(x), np.abs(w), z, self.share * u_error)
        values = {"dx": found.dx, "dw": found.dw}
        errors = {"dx": unit * found.dx_terms + moved.dx, "dw": unit * found.dw_terms + moved.dw}
        if self.first.bias:
            values["db"], errors["db"] = found.db, SUM * found.db_terms + moved.db
        return values, errors


def _tagged(first, *tags, **more):
    return FusedCase(first, tags=frozenset(tags), **more)


KINDS = [
    {"kind": "batch", "moving": True},
    {"kind": "instance", "moving": True},
    {"kind": "layer"},
    {"kind": "layer", "axis": 1, "full": True},
    {"kind": "layer", "axis": 2},
    {"kind": "group", "groups": 2},
]

# Every first layer with every normalization.
CONVOLUTION = ConvolutionCase((3, 3, 7, 6), 4, (3, 3), (2, 1), ((1, 1), (1, 0)))
SAME = ConvolutionCase((2, 5, 9, 11), 6, padding=((1, 1), (1, 1)))
DEPTHWISE = ConvolutionCase((2, 6, 9, 17), 6, padding=((1, 1), (1, 1)), groups=6)
POINTWISE = ConvolutionCase((3, 9, 5, 7), 10, (1, 1))
TRANSPOSED = ConvolutionCase((2, 3, 5, 4), 2, (4, 4), (2, 2), ((1, 1), (1, 1)), transposed=True)
GROUPED = ConvolutionCase((2, 6, 7, 8), 8, padding=((1, 1), (1, 1)), groups=2)
DENSE = FullyConnectedCase(9, 37, 20)
ADD = ArithmeticCase("add", ((4, 5, 7), (4, 5, 7)), batch=3)
SQUARE = ArithmeticCase("square", ((4, 5, 7),), batch=3)
SCALED = ArithmeticCase(
    "multiply_add", ((4, 5, 7), (4, 1, 1), (1, 5, 7)), ("sample", "parameter", "constant"), batch=3
)
MULTIPLY = ArithmeticCase("multiply", ((6,), (6,)), ("sample", "parameter"), batch=5)

PAIRS = [
    _tagged(first, "odd", **kind)
    for first in (CONVOLUTION, TRANSPOSED, ADD, SQUARE, SCALED)
    for kind in KINDS
] + [
    _tagged(first, "odd", **kind)
    for first in (DENSE, MULTIPLY)
    for kind in (KINDS[0], KINDS[2], KINDS[5])
]

ALGORITHMS = [
    _tagged(first, "odd", moving=True, activation="rectified_linear")
    for first in (
        SAME,
        replace(SAME, winograd=False),
        replace(SAME, bias=False),
        DEPTHWISE,
        POINTWISE,
        GROUPED,
        convolution_cases.WINOGRAD_CASE,
        ConvolutionCase((2, 1, 20, 20), 33, padding=((1, 1), (1, 1))),
        ConvolutionCase((2, 3, 33, 35), 17, (7, 7), (2, 2), ((3, 3), (3, 3))),
        ConvolutionCase((1, 3, 8, 9), 4, padding=((1, 1), (1, 1)), extents=(5, 6)),
        fully_connected_cases.WIDE,
        replace(fully_connected_cases.WIDE, column_major=True, bias=False),
        FullyConnectedCase(33, 130, 67, bias=False),
    )
]

OPTIONS = [
    _tagged(CONVOLUTION, "odd", has_beta=False),
    _tagged(CONVOLUTION, "odd", has_gamma=False),
    _tagged(DENSE, "odd", has_beta=False, has_gamma=False),
    _tagged(ADD, "odd", has_beta=False, has_gamma=False),
    _tagged(CONVOLUTION, "odd", epsilon=0.5),
    _tagged(CONVOLUTION, "odd", activation="tanh"),
    _tagged(CONVOLUTION, "odd", activation="leaky_rectified_linear", alpha=0.125),
    _tagged(TRANSPOSED, "odd", activation="sigmoid", kind="instance"),
    _tagged(DENSE, "odd", activation="rectified_linear", moving=True),
    _tagged(ADD, "odd", activation="rectified_linear", moving=True),
    _tagged(SCALED, "odd", activation="tanh", kind="group", groups=4),
    _tagged(replace(CONVOLUTION, image=(1, 3, 7, 6)), "odd", moving=True),  # one sample
    _tagged(replace(DENSE, batch=1), "odd", kind="layer"),
    _tagged(replace(CONVOLUTION, outputs=1), "odd"),  # one channel
    _tagged(ConvolutionCase((2, 2, 1, 1), 3, (1, 1)), "odd"),  # one pixel
    _tagged(ConvolutionCase((4, 1, 2, 2), 1, (2, 2)), "tiny"),
    _tagged(FullyConnectedCase(3, 2, 1), "tiny"),
    _tagged(ArithmeticCase("add", ((2,), (2,)), batch=2), "tiny"),
]

STRIDED = [
    _tagged(replace(CONVOLUTION, x_gaps=(0, 1, 0, 2)), "odd", y_gaps=(0, 2, 0, 1), moving=True),
    _tagged(replace(SAME, x_gaps=(1, 0, 0, 0), w_gaps=(0, 1, 0, 2)), "odd", y_gaps=(1, 0, 2, 0)),
    _tagged(replace(DENSE, x_gaps=(0, 3)), "odd", y_gaps=(0, 2, 0, 0), activation="tanh"),
    _tagged(replace(ADD, gap=2), "odd", y_gaps=(0, 0, 0, 3), activation="rectified_linear"),
]

TYPES = [
    _tagged(replace(first, dtype=dtype), "odd", moving=True, activation="rectified_linear")
    for first in (CONVOLUTION, SAME, DENSE, ADD)
    for dtype in ("float16", "bfloat16")
]

_SPLIT = ("typical", "split")
TYPICAL = [
    _tagged(
        ConvolutionCase(image, outputs, kernel, padding=padding, groups=groups, bias=False),
        *_SPLIT,
        moving=True,
        activation="rectified_linear",
    )
    for image, outputs, kernel, padding, groups in (
        ((32, 1, 20, 20), 32, (3, 3), ((1, 1), (1, 1)), 1),
        ((4, 32, 28, 28), 40, (3, 3), ((1, 1), (1, 1)), 1),
        ((4, 64, 28, 28), 32, (1, 1), ((0, 0), (0, 0)), 1),
        ((4, 32, 28, 28), 32, (3, 3), ((1, 1), (1, 1)), 32),
    )
] + [
    _tagged(FullyConnectedCase(32, 1568, 10, bias=False), *_SPLIT, moving=True),
    _tagged(FullyConnectedCase(64, 256, 200), *_SPLIT, activation="rectified_linear"),
    _tagged(ArithmeticCase("add", ((64, 28, 28),) * 2, batch=4), *_SPLIT, moving=True),
]

CASES = PAIRS + ALGORITHMS + OPTIONS + STRIDED + TYPES + TYPICAL
