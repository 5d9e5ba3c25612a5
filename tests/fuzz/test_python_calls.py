"""Random calls from Python: layers of all families with arrays of any kind, right and wrong.

Whatever is called works or raises an error of the package. On an error nothing has changed; inputs
never change; of outputs only their own values do, not what lies between them. One thread and three
give the same bits and the same errors.

    pytest tests/fuzz/test_python_calls.py                     some calls, always the same
    pytest tests/fuzz/test_python_calls.py --fuzz-minutes 10   others each time; says how many
"""

import random
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import openbnns as bnns
import pytest
from cases import dtype_of, has_bfloat16
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from openbnns.arithmetic import FUNCTIONS

GUARD = 64  # bytes around every array
SENTINEL = 0xA5
FLOATS = ("float32", "float32", "float32", "float16", "bfloat16" if has_bfloat16() else "float16")
WRONG = ("float64", "int32", "uint8", ">f4", "complex64", "bool", "float16", "float32")
LAYOUTS = ("gaps", "steps", "fortran", "reversed", "broadcast", "unaligned")
OBJECTS = (None, 1, "word", [1.0], (), 1.5)


# ---- arrays as they are drawn, and as they lie in memory ----


@dataclass
class Given:
    """An array that a call is given, not made yet."""

    shape: tuple
    dtype: str
    layout: str = "packed"
    salt: int = 0
    writes: bool = False
    is_filled: bool = True
    writable: bool = True
    over: Any = None  # another one in whose memory it lies
    shift: int = 0  # by so many values
    values: tuple | None = None  # smallest and next to largest whole number


class Memory:
    """The arrays of one run. The same Given is the same array."""

    def __init__(self):
        self.placed = {}  # id of a Given -> (array, whole memory, Given)

    def array(self, given):
        if id(given) not in self.placed:
            self.placed[id(given)] = (*self._make(given), given)
        return self.placed[id(given)][0]

    def _make(self, given):
        dtype = dtype_of(given.dtype)
        strides = strides_of(given.shape, dtype.itemsize, given.layout)
        reach = [(extent - 1) * step for extent, step in zip(given.shape, strides, strict=True)]
        empty = 0 in given.shape
        low = 0 if empty else -sum(r for r in reach if r < 0)
        span = 0 if empty else low + sum(r for r in reach if r > 0) + dtype.itemsize
        first = GUARD + low + (given.layout == "unaligned")
        if given.over is not None:
            other = self.array(given.over)
            whole = self.placed[id(given.over)][1]
            start = address(other) - address(whole) + given.shift * dtype.itemsize
            if low <= start and start - low + span <= whole.size:
                return np.ndarray(given.shape, dtype, whole, start, strides), whole
        whole = np.full(span + 2 * GUARD + 8, SENTINEL, np.uint8)
        array = np.ndarray(given.shape, dtype, whole, first, strides)
        if given.is_filled and array.size:
            array[...] = filling(given, dtype)
        array.flags.writeable = given.writable
        return array, whole

    def wholes(self):
        return {id(whole): whole for _, whole, _ in self.placed.values()}

    def written(self, whole):
        """Bytes that outputs cover."""
        mask = np.zeros(whole.size, bool)
        for array, own, drawn in self.placed.values():
            if own is whole and drawn.writes and array.size:
                start = address(array) - address(whole)
                cover = np.ndarray(
                    (*array.shape, array.itemsize), bool, mask, start, (*array.strides, 1)
                )
                cover[...] = True
        return mask


def address(array):
    return array.__array_interface__["data"][0]


def strides_of(shape, itemsize, layout):
    order = range(len(shape)) if layout == "fortran" else reversed(range(len(shape)))
    step, strides = itemsize * (2 if layout == "steps" else 1), [0] * len(shape)
    for at in order:
        strides[at] = step
        step *= max(shape[at], 1)
        if layout == "gaps":
            step += 2 * itemsize
    if layout == "reversed" and shape:
        strides[0] = -strides[0]
    if layout == "broadcast" and shape:
        strides[0] = 0
    return tuple(strides)


def filling(given, dtype):
    numbers = np.random.default_rng(given.salt)
    if given.values is not None:
        return numbers.integers(*given.values, size=given.shape).astype(dtype)
    if dtype.kind in "iu":
        return numbers.integers(0, 3, size=given.shape).astype(dtype)
    values = numbers.normal(size=given.shape)
    if given.salt % 11 == 0:
        values.reshape(-1)[:1] = (np.nan, np.inf, 1e30)[given.salt % 3]
    with np.errstate(all="ignore"):
        return values.astype(dtype)


# ---- drawing ----


class Draw:
    """What one scenario consists of, drawn before anything is called."""

    def __init__(self, data):
        self._data = data
        self.calls = []  # (function of what was made before, positional, keywords)
        self.inputs = []
        self.is_calm = False
        self.is_calm = self.sometimes()  # all fits, so that every call is reached

    def pick(self, *choices):
        return self._data.draw(st.sampled_from(choices))

    def whole(self, low, high):
        return self._data.draw(st.integers(low, high))

    def rarely(self, one_in=12):
        return not self.is_calm and self.whole(1, one_in) == one_in

    def sometimes(self):
        return self.whole(0, 1) == 1

    def extent(self):
        return self.pick(1, 2, 3, 4, 5, 8, 17)

    def batch(self):
        return self.pick(0, 1, 2, 3, 5) if self.rarely(6) else self.pick(1, 2, 3)

    def dtype(self):
        return self.pick(*FLOATS)

    def option(self, usual, *others):
        """Mostly the usual one."""
        if self.rarely(5):
            return self.pick(usual, *others, *OBJECTS) if self.rarely(5) else self.pick(*others)
        return usual

    def array(self, shape, dtype, writes=False, **about):
        """An array that fits, or nearly."""
        if self.rarely(40):
            return self.pick(*OBJECTS)
        shape = tuple(shape)
        if self.rarely(30):
            change = self.pick("more", "fewer", "other", "empty")
            if change == "more":
                shape = (*shape, 1)
            elif change == "fewer":
                shape = shape[:-1]
            elif shape:
                at = self.whole(0, len(shape) - 1)
                size = 0 if change == "empty" else shape[at] + 1
                shape = (*shape[:at], size, *shape[at + 1 :])
        if self.rarely(30):
            dtype = self.pick(*WRONG)
        layout = self.pick(*LAYOUTS) if self.rarely(4) else "packed"
        if self.is_calm:
            layout = self.pick("packed", "packed", "packed", "gaps")
        return Given(
            shape, dtype, layout, self.whole(0, 1000), writes, writable=not self.rarely(40), **about
        )

    def input(self, shape, dtype, **about):
        made = self.array(shape, dtype, **about)
        if isinstance(made, Given):
            self.inputs.append(made)
        return made

    def output(self, shape, dtype):
        """None, an array, or one that lies over an input."""
        if self.sometimes():
            return None
        made = self.array(shape, dtype, writes=True, is_filled=False)
        if isinstance(made, Given) and self.inputs and self.rarely(5):
            made.over, made.shift = self.pick(*self.inputs), self.pick(0, 0, 1, -1, 3)
        return made

    def target(self, shape, dtype, is_filled=True):
        """What a gradient is written to, or whether it is wanted."""
        kind = self.pick("yes", "yes", "array", "array", "no", "none")
        if kind != "array":
            return {"yes": True, "no": False, "none": None}[kind]
        made = self.array(shape, dtype, writes=True, is_filled=is_filled)
        if isinstance(made, Given) and self.inputs and self.rarely(8):
            made.over, made.shift = self.pick(*self.inputs), self.pick(0, 1, -2)
        return made

    def accumulate(self, *names):
        return self.option(False, True, *names, names)

    def spec(self, shape, dtype):
        """What a layer takes as input=."""
        kind = self.pick("spec", "spec", "example", "shape")
        if kind == "shape" and dtype == "float32":
            return self.option(tuple(shape), *shape, (), (0,), (*shape, 1), (-1,), (1 << 62,) * 3)
        if kind == "example":
            return self.array((2, *shape), dtype)
        return ("spec", tuple(shape), dtype)

    def call(self, function, *args, **kwargs):
        self.calls.append((function, args, kwargs))

    def make(self, kind, *args, **kwargs):
        self.call(lambda _, *a, **k: kind(*a, **k), *args, **kwargs)

    def method(self, name, *args, **kwargs):
        self.call(lambda layer, *a, **k: getattr(layer, name)(*a, **k), *args, **kwargs)


# ---- running ----


def resolve(value, memory):
    if isinstance(value, Given):
        return memory.array(value)
    if (
        isinstance(value, tuple)
        and len(value) == 3
        and isinstance(value[0], str)
        and (value[0] == "spec")
    ):
        return bnns.ArraySpec(value[1], value[2])
    if isinstance(value, (tuple, list)):
        return type(value)(resolve(item, memory) for item in value)
    return value


def bits(result):
    """What a call gave, to be compared."""
    if isinstance(result, np.ndarray):
        assert all(0 <= extent < 1 << 40 for extent in result.shape)
        return result.shape, result.dtype.str, result.tobytes()
    if isinstance(result, (tuple, list, bnns.FusedGradients)):
        return tuple(bits(item) for item in result)
    return result if isinstance(result, (int, float, str, bytes, bool)) else None


def run(calls):
    """All calls, the first one's result being what the others are called on; what came of them."""
    made, outcomes = None, []
    memory = Memory()
    for number, (function, args, kwargs) in enumerate(calls):
        # all arrays are there before the call, so that what it changes can be seen
        args = [resolve(value, memory) for value in args]
        kwargs = {name: resolve(value, memory) for name, value in kwargs.items()}
        before = {key: whole.copy() for key, whole in memory.wholes().items()}
        try:
            result = function(made, *args, **kwargs)
            error = None
        except bnns.BNNSError as refused:
            result, error = None, refused
        for key, whole in memory.wholes().items():
            changed = whole != before[key]
            if error is not None:
                assert not changed.any(), f"changed by a call that failed: {error}"
            else:
                assert not (changed & ~memory.written(whole)).any(), "changed what is no output"
        if error is not None:
            assert str(error).startswith("["), f"says not where: {error}"
            outcomes.append((type(error), str(error).partition(" at address")[0]))
            if number == 0:
                break
            continue
        if kwargs.get("out") is not None and isinstance(kwargs["out"], np.ndarray):
            first = result[0] if isinstance(result, tuple) else result
            assert first is kwargs["out"]
        if number == 0 and isinstance(result, bnns.Layer):
            made = result
        outcomes.append(bits(result))
    outcomes.append([whole.tobytes() for whole in memory.wholes().values()])
    return outcomes


def check(calls):
    outcomes = []
    for threads in (1, 3):
        bnns.set_num_threads(threads)
        bnns.set_seed(7)
        outcomes.append(run(calls))
    assert outcomes[0] == outcomes[1], "one thread and three give different bits"


# ---- the families ----

ACTIVATIONS = (
    "identity",
    "relu",
    "leaky_rectified_linear",
    "sigmoid",
    "tanh",
    "scaled_tanh",
    "abs",
    "linear",
    "clamp",
    "softmax",
    "log_softmax",
    "gelu",
    "gelu_approximation",
    "hard_sigmoid",
    "silu",
    "elu",
    "celu",
    "selu",
    "soft_shrink",
    "threshold",
    "softplus",
    "softsign",
    "prelu_per_channel",
    "erf",
    "gumbel",
    "gumbel_max",
    "hard_swish",
    "log_sigmoid",
    "relu6",
    "nothing",
)


def some_activation(draw):
    return draw.pick(*ACTIVATIONS) if draw.rarely(4) else draw.pick(None, "relu", "tanh", "sigmoid")


def some_shape(draw):
    return tuple(draw.extent() for _ in range(draw.whole(0, 4)))


def activation(draw):
    shape, dtype, n = some_shape(draw), draw.dtype(), draw.batch()
    draw.make(
        bnns.ActivationLayer,
        draw.pick(*ACTIVATIONS),
        input=draw.spec(shape, dtype),
        axes=draw.option(None, 0, -1, (0, 1), "batch", 7),
        num_threads=draw.option(None, 1, 2),
    )
    x = draw.input((n, *shape), dtype)
    draw.method("apply", x, out=draw.output((n, *shape), dtype))
    y, dy = draw.input((n, *shape), dtype), draw.input((n, *shape), dtype)
    draw.method(
        "apply_backward",
        draw.option(x, None),
        draw.option(y, None),
        dy,
        input_gradient=draw.target((n, *shape), dtype),
        accumulate=draw.accumulate("input"),
    )


def whole_arrays(draw):
    shape, dtype = some_shape(draw), draw.dtype()
    x = draw.input(shape, dtype)
    out = draw.output(shape, dtype)
    axes = draw.option(None, 0, -1, (0, 1), 5)
    which = draw.pick("clip", "clip_by_norm", "norm", "activation", "convert", "global", "back")
    if which == "clip":
        draw.make(bnns.clip, x, draw.option(-0.5, 1.0, float("nan")), 0.5, out=out)
    elif which == "clip_by_norm":
        draw.make(bnns.clip_by_norm, x, draw.option(0.5, 0.0, -1.0), axes=axes, out=out)
    elif which == "norm":
        draw.make(bnns.norm, x, axes=axes, out=draw.output((), dtype))
    elif which == "activation":
        draw.make(bnns.activation, draw.pick(*ACTIVATIONS), x, axes=axes, out=out)
    elif which == "convert":
        kind = draw.pick("float16", "float32", "bfloat16", "int8", "uint8", "int32", "bool", "x")
        draw.make(bnns.convert, x, kind, scale=draw.option(1.0, 0.0, 2.0), out=out)
    elif which == "global":
        other = draw.input(some_shape(draw), dtype)
        draw.make(bnns.clip_by_global_norm, [x, other], draw.option(0.5, -1.0), out=[out, None])
    else:
        y, dy = draw.input((), dtype), draw.input((), dtype)
        draw.make(
            bnns.norm_backward,
            x,
            y,
            dy,
            input_gradient=draw.target(shape, dtype),
            accumulate=draw.option(False, True),
        )


def quantization(draw):
    shape, dtype = some_shape(draw), draw.pick("int8", "uint8", "int16", "int32")
    axis = draw.option(None, 0, -1, 9)
    scale = draw.option(0.5, draw.input(shape[:1], "float32"), 0.0, None)
    if draw.sometimes():
        x, out = draw.input(shape, draw.dtype()), draw.output(shape, dtype)
        draw.make(bnns.quantize, x, scale=scale, axis=axis, dtype=dtype, out=out)
    else:
        x, out = draw.input(shape, dtype), draw.output(shape, "float32")
        draw.make(bnns.dequantize, x, scale=scale, axis=axis, dtype="float32", out=out)


def arithmetic(draw):
    count, n, dtype = draw.whole(1, 3), draw.batch(), draw.dtype()
    shape = tuple(draw.extent() for _ in range(draw.whole(1, 3)))
    shapes = [
        tuple(1 if draw.rarely(6) else extent for extent in shape) if k else shape
        for k in range(count)
    ]
    kinds = [draw.option("sample", "parameter", "constant") for _ in range(count)]
    names = ("input",) if count == 1 else ("input_a", "input_b", "input_c")[:count]
    words = ("input",) if count == 1 else ("a", "b", "c")[:count]
    kind = [bnns.UnaryArithmeticLayer, bnns.BinaryArithmeticLayer, bnns.TernaryArithmeticLayer]
    options = {name: draw.spec(s, dtype) for name, s in zip(names, shapes, strict=True)}
    if count > 1:
        options |= {f"{word}_kind": k for word, k in zip(words, kinds, strict=True)}
    draw.make(
        kind[count - 1], draw.pick(*FUNCTIONS[count]), **options, activation=some_activation(draw)
    )
    xs = [
        draw.input(s if k != "sample" else (n, *s), dtype)
        for s, k in zip(shapes, kinds, strict=True)
    ]
    draw.method("apply", *xs, out=draw.output((n, *shape), dtype))
    given = [draw.option(x, None) for x in xs]
    targets = {
        f"{word}_gradient": draw.target(s if k != "sample" else (n, *s), dtype)
        for word, s, k in zip(words, shapes, kinds, strict=True)
    }
    y, dy = draw.input((n, *shape), dtype), draw.input((n, *shape), dtype)
    draw.method(
        "apply_backward",
        *given,
        draw.option(y, None),
        dy,
        **targets,
        accumulate=draw.accumulate(*words),
    )


def convolution(draw):
    n, dtype = draw.batch(), draw.dtype()
    groups = draw.pick(1, 1, 1, 2)
    channels, outputs = groups * draw.pick(1, 2, 3), groups * draw.pick(1, 2, 4)
    height, width = draw.pick(1, 3, 5, 8), draw.pick(1, 3, 6, 9)
    kernel, stride = draw.pick(1, 2, 3, 5), draw.pick(1, 1, 2, (2, 1))
    padding, transposed = draw.pick(0, 1, "same", "valid", ((0, 1), (1, 0))), draw.rarely(4)
    shape = (outputs, channels // groups, kernel, kernel)
    if transposed:
        shape = (channels, outputs // groups, kernel, kernel)
    weights = draw.array(shape, dtype)
    bias = draw.option(None, draw.array((outputs,), dtype))
    draw.make(
        bnns.TransposedConvolutionLayer if transposed else bnns.ConvolutionLayer,
        weights,
        input=draw.spec((channels, height, width), dtype),
        bias=bias,
        stride=stride,
        padding=padding,
        dilation=draw.option(1, 2, 0),
        groups=draw.option(groups, 1, 3),
        activation=some_activation(draw),
        winograd=draw.option(None, True, False),
        copy_parameters=draw.option(False, True),
    )
    steps = stride if isinstance(stride, tuple) else (stride, stride)
    sides = (
        {0: (0, 0), 1: (2, 2), "valid": (0, 0), "same": None}.get(padding, (1, 1))
        if not (isinstance(padding, tuple))
        else (1, 1)
    )
    if transposed:
        size = [(e - 1) * s + kernel for e, s in zip((height, width), steps, strict=True)]
        sides = sides or (kernel - 1, kernel - 1)
        size = [e - p for e, p in zip(size, sides, strict=True)]
    elif sides is None:
        size = [-(-e // s) for e, s in zip((height, width), steps, strict=True)]
    else:
        size = [
            (e + p - kernel) // s + 1 for e, p, s in zip((height, width), sides, steps, strict=True)
        ]
    result = (n, outputs, max(size[0], 1), max(size[1], 1))
    x = draw.input((n, channels, height, width), dtype)
    draw.method("apply", x, out=draw.output(result, dtype))
    y, dy = draw.input(result, dtype), draw.input(result, dtype)
    draw.method(
        "apply_backward",
        draw.option(x, None),
        draw.option(y, None),
        dy,
        input_gradient=draw.target((n, channels, height, width), dtype),
        weights_gradient=draw.target(shape, dtype),
        bias_gradient=draw.target((outputs,), dtype),
        accumulate=draw.accumulate("input", "weights", "bias"),
    )


def fully_connected(draw):
    n, dtype, inputs, outputs = draw.batch(), draw.dtype(), draw.extent(), draw.extent()
    weights = draw.array((outputs, inputs), dtype)
    draw.make(
        bnns.FullyConnectedLayer,
        weights,
        input=draw.option(None, draw.spec((inputs,), dtype)),
        bias=draw.option(None, draw.array((outputs,), dtype)),
        activation=some_activation(draw),
        copy_parameters=draw.option(False, True),
    )
    x = draw.input((n, inputs), dtype)
    draw.method("apply", x, out=draw.output((n, outputs), dtype))
    y, dy = draw.input((n, outputs), dtype), draw.input((n, outputs), dtype)
    draw.method(
        "apply_backward",
        draw.option(x, None),
        draw.option(y, None),
        dy,
        input_gradient=draw.target((n, inputs), dtype),
        weights_gradient=draw.target((outputs, inputs), dtype),
        bias_gradient=draw.target((outputs,), dtype),
        accumulate=draw.accumulate("input", "weights", "bias"),
    )


def pooling(draw):
    n, dtype, channels = draw.batch(), draw.dtype(), draw.pick(1, 2, 5)
    height, width, kernel = draw.pick(2, 4, 7), draw.pick(2, 5, 8), draw.pick(1, 2, 3)
    stride = draw.pick(1, 2, 3)
    kind = draw.pick("max", "max", "average", "l2_norm", "unmax")
    draw.make(
        bnns.PoolingLayer,
        kind,
        input=draw.spec((channels, height, width), dtype),
        kernel_size=kernel,
        stride=draw.option(stride, None),
        padding=draw.option(0, 1, "same"),
        activation=some_activation(draw),
    )
    size = [max((extent - kernel) // stride + 1, 1) for extent in (height, width)]
    x, result = draw.input((n, channels, height, width), dtype), (n, channels, *size)
    indices = draw.option(
        None, draw.array(result, draw.pick("uint32", "int32", "uint64"), writes=True)
    )
    draw.method("apply", x, out=draw.output(result, dtype), indices=indices)
    y, dy = draw.input(result, dtype), draw.input(result, dtype)
    places = draw.option(
        None, draw.array(result, "uint32", values=(0, draw.pick(1, height * width, 1000)))
    )
    draw.method(
        "apply_backward",
        draw.option(x, None),
        draw.option(y, None),
        dy,
        indices=places,
        input_gradient=draw.target((n, channels, height, width), dtype),
        bias_gradient=None,
        accumulate=draw.accumulate("input"),
    )


def normalization(draw):
    n, dtype, channels = draw.batch(), draw.dtype(), draw.pick(1, 2, 4)
    shape = (channels, draw.pick(1, 3), draw.pick(1, 5)) if draw.sometimes() else (channels,)
    kind = draw.pick("batch", "batch", "instance", "layer", "group")
    own = draw.pick("float32", dtype)
    affine = shape if kind == "layer" else (channels,)
    groups = draw.pick(1, 2, 3)
    statistics = {}
    if kind in ("batch", "instance"):
        statistics = {
            name: draw.option(draw.array(affine, own, writes=True), None)
            for name in ("moving_mean", "moving_variance")
        }
    beta, gamma = (draw.option(draw.array(affine, own), None) for _ in range(2))
    draw.make(
        bnns.NormalizationLayer,
        bnns.Normalization.group(groups) if kind == "group" else kind,
        input=draw.spec(shape, dtype),
        beta=beta,
        gamma=gamma,
        **statistics,
        momentum=draw.option(0.9, 0.0, 1.0, 2.0),
        epsilon=draw.option(1e-5, 0.0, -1.0),
        activation=some_activation(draw),
        borrow_input=draw.option(False, True),
    )
    x, full = draw.input((n, *shape), dtype), (n, *shape)
    draw.method("apply", x, training=draw.pick(True, True, False), out=draw.output(full, dtype))
    y, dy = draw.input(full, dtype), draw.input(full, dtype)
    draw.method(
        "apply_backward",
        x,
        draw.option(y, None),
        dy,
        input_gradient=draw.target(full, dtype),
        beta_gradient=draw.target(affine, own),
        gamma_gradient=draw.target(affine, own),
        accumulate=draw.accumulate("input", "beta", "gamma"),
    )


def fused(draw):
    n, channels, outputs = draw.batch(), draw.pick(1, 3), draw.pick(1, 2, 4)
    dtype = draw.pick("float32", "float32", draw.dtype())
    is_convolution = draw.sometimes()
    shape, result = (channels,), (n, outputs)
    weights, kind = (outputs, channels), bnns.FusedFullyConnectedNormalizationLayer
    more = {}
    if is_convolution:
        shape, result = (channels, 6, 5), (n, outputs, 6, 5)
        weights, kind = (outputs, channels, 3, 3), bnns.FusedConvolutionNormalizationLayer
        more = {"padding": draw.option(1, 0, "same")}
    arrays = {
        name: draw.option(draw.array((outputs,), "float32", writes=name.startswith("moving")), None)
        for name in ("beta", "gamma", "moving_mean", "moving_variance")
    }
    draw.make(
        kind,
        draw.array(weights, dtype),
        input=draw.spec(shape, dtype),
        normalization=draw.option("batch", "instance"),
        **arrays,
        **more,
        activation=draw.pick(None, "relu"),
        momentum=draw.option(0.9, 0.0),
    )
    x = draw.input((n, *shape), dtype)
    draw.method("apply", x, training=draw.pick(True, True, False), out=draw.output(result, dtype))
    y, dy = draw.input(result, dtype), draw.input(result, dtype)
    draw.method(
        "apply_backward",
        draw.option(x, None),
        draw.option(y, None),
        dy,
        input_gradient=draw.target((n, *shape), dtype),
        weights_gradient=draw.target(weights, dtype),
        bias_gradient=draw.option(True, None),
        beta_gradient=draw.target((outputs,), "float32"),
        gamma_gradient=draw.option(True, False),
        accumulate=draw.accumulate("input"),
    )


def loss(draw):
    n, dtype = draw.batch(), draw.dtype()
    shape = tuple(draw.extent() for _ in range(draw.pick(1, 1, 2)))
    name = draw.pick(
        "softmax_cross_entropy",
        "sigmoid_cross_entropy",
        "mse",
        "mae",
        "huber",
        "log",
        "cosine_distance",
        "hinge",
        "categorical_cross_entropy",
        "nothing",
    )
    reduction = draw.pick("mean", "sum", "none", "weighted_mean", "non_zero_weight_mean", "x")
    draw.make(bnns.LossLayer, name, input=draw.spec(shape, dtype), reduction=reduction)
    x = draw.input((n, *shape), dtype)
    labels = draw.input((n, *shape), dtype)
    if draw.sometimes():
        labels = draw.input(
            (n,),
            draw.pick("int32", "int64", "uint8"),
            values=(0, draw.pick(shape[0], shape[0], 300)),
        )
    weights = draw.option(None, draw.array((n,), "float32"), 0.5)
    per_sample = (n,) if reduction == "none" else ()
    draw.method(
        "apply",
        x,
        labels,
        weights=weights,
        out=draw.output(per_sample, dtype),
        input_gradient=draw.target((n, *shape), dtype),
        accumulate=draw.accumulate("input"),
    )
    draw.method(
        "apply_backward",
        x,
        labels,
        draw.option(None, 1.0, draw.array(per_sample, dtype)),
        weights=weights,
        input_gradient=draw.target((n, *shape), dtype),
    )


def matmul(draw):
    n, dtype = draw.batch(), draw.dtype()
    m, k, p = draw.extent(), draw.extent(), draw.extent()
    lead = draw.pick((), (), (2,), (1,))
    turn_a, turn_b = draw.option(False, True), draw.option(False, True)
    a = (*lead, k, m) if turn_a is True else (*lead, m, k)
    b = (p, k) if turn_b is True else (k, p)
    result = (*lead, m, p)
    if draw.sometimes():
        x, y = draw.input(a, dtype), draw.input(b, dtype)
        draw.make(
            bnns.matmul,
            x,
            y,
            transpose_a=turn_a,
            transpose_b=turn_b,
            alpha=draw.option(1.0, 0.0, 2.5),
            out=draw.output(result, dtype),
        )
        return
    draw.make(
        bnns.BroadcastMatrixMultiplyLayer,
        input_a=draw.spec(a, dtype),
        input_b=draw.spec(b, dtype),
        transpose_a=turn_a,
        transpose_b=turn_b,
        alpha=draw.option(1.0, 0.5),
        accumulate_to_output=draw.option(False, True),
    )
    x, y = draw.input((n, *a), dtype), draw.input((n, *b), dtype)
    draw.method("apply", x, y, out=draw.output((n, *result), dtype))
    dy = draw.input((n, *result), dtype)
    draw.method(
        "apply_backward",
        x,
        y,
        None,
        dy,
        a_gradient=draw.target((n, *a), dtype),
        b_gradient=draw.target((n, *b), dtype),
        accumulate=draw.accumulate("a", "b"),
    )


def contraction(draw):
    n, dtype = draw.batch(), draw.dtype()
    i, j, k = draw.extent(), draw.extent(), draw.extent()
    if draw.rarely(3):
        draw.make(bnns.GramLayer, input=draw.spec((i, j, k), dtype), alpha=draw.option(1.0, 0.5))
        x = draw.input((n, i, j, k), dtype)
        draw.method("apply", x, out=draw.output((n, i, i), dtype))
        dy = draw.input((n, i, i), dtype)
        draw.method(
            "apply_backward",
            x,
            None,
            dy,
            input_gradient=draw.target((n, i, j, k), dtype),
            accumulate=draw.accumulate("input"),
        )
        return
    equation = draw.pick("a_ij, b_jk -> c_ik", "a_ij, b_kj -> c_ki", "a_ij, b_jk ->", "a_i*,b")
    b = (k, j) if "b_kj" in equation else (j, k)
    result = (k, i) if "c_ki" in equation else (i, k)
    draw.make(
        bnns.TensorContractionLayer,
        equation,
        input_a=draw.spec((i, j), dtype),
        input_b=draw.spec(b, dtype),
    )
    x, y = draw.input((n, i, j), dtype), draw.input((n, *b), dtype)
    draw.method("apply", x, y, out=draw.output((n, *result), dtype))


def attention(draw):
    n, heads, part, width = draw.batch(), draw.pick(1, 2), draw.pick(1, 3), draw.pick(2, 5)
    targets, sources = draw.pick(1, 4), draw.pick(1, 6)
    dtype = draw.pick("float32", "float32", draw.dtype())
    projections = [
        (
            draw.array((heads, part, width), dtype),
            draw.option(None, draw.array((heads, part), dtype)),
        )
        for _ in range(3)
    ]
    projections.append((draw.array((width, heads * part), dtype), None))

    def make(*arrays, **given):
        pairs = [bnns.Projection(*pair) for pair in arrays]
        return bnns.MultiheadAttention(*pairs, **given)

    draw.make(
        make,
        *projections,
        lengths=(targets, sources),
        causal=draw.option(False, True),
        add_zero_attention=draw.option(False, True),
        dropout=draw.option(0.0, 0.5),
        seed=3,
    )
    query = draw.input((n, targets, width), dtype)
    key, value = (draw.input((n, sources, width), dtype) for _ in range(2))
    bias = draw.option(None, draw.array((targets, sources), dtype))
    mask = draw.option(None, draw.array((n, sources), draw.pick("bool", "float32")))
    draw.method(
        "apply",
        query,
        key,
        value,
        key_mask=mask,
        attention_bias=bias,
        out=draw.output((n, targets, width), dtype),
    )
    dy = draw.input((n, targets, width), dtype)
    draw.method(
        "apply_backward",
        query,
        key,
        value,
        draw.option(None, query),
        dy,
        key_mask=mask,
        attention_bias=bias,
        query_gradient=draw.target((n, targets, width), dtype),
        key_weights_gradient=draw.target((heads, part, width), dtype),
        key_bias_gradient=draw.target((heads, part), dtype),
        output_weights_gradient=draw.target((width, heads * part), dtype),
        key_attention_bias_gradient=draw.option(True, None),
        accumulate=draw.option(False, True, {"query"}, {"nothing"}),
    )


def optimizer(draw):
    shapes = [some_shape(draw) for _ in range(draw.whole(1, 3))]
    parameters = [draw.array(shape, "float32", writes=True) for shape in shapes]
    gradients = [draw.input(shape, "float32") for shape in shapes]
    rule = draw.pick(
        bnns.SGDMomentumOptimizer(0.1),
        bnns.AdamOptimizer(),
        bnns.RMSPropOptimizer(),
        bnns.SGDMomentumOptimizer(0.1, momentum=0.9, nesterov=True, variant=2),
        bnns.AdamWOptimizer(gradient_clipping=bnns.ClipByGlobalNorm(0.5)),
    )
    roles = rule.accumulator_count_multiplier
    accumulators = [
        draw.array(shape, "float32", writes=True) for _ in range(roles) for shape in shapes
    ]
    if draw.rarely(10):
        accumulators = accumulators[1:]
    draw.make(lambda *given: rule.step(*given), parameters, gradients, accumulators)


def filled(draw):
    shape, name = some_shape(draw), draw.pick("uniform", "normal", "integers", "categorical")
    number = draw.whole(0, 1 << 32)
    if name == "categorical":
        x = draw.input((*shape, draw.extent()), draw.dtype())
        draw.make(lambda *given: bnns.RandomGenerator(number).categorical(*given), x, 3)
        return
    dtype = draw.pick("int8", "int32", "uint64") if name == "integers" else draw.dtype()
    low, high = draw.pick((0, 5), (0, 5), (5, 0), (0, 0), (-3, 1 << 70), ("a", None))
    out = draw.output(shape, dtype)

    def fill(out):
        return getattr(bnns.RandomGenerator(number), name)(low, high, shape, dtype, out=out)

    draw.make(fill, out=out)


FAMILIES = [
    activation,
    whole_arrays,
    quantization,
    arithmetic,
    convolution,
    fully_connected,
    pooling,
    normalization,
    fused,
    loss,
    matmul,
    contraction,
    attention,
    optimizer,
    filled,
]


# ---- the tests ----


@pytest.fixture(autouse=True)
def _quiet():
    threads, warn = bnns.get_num_threads(), bnns.config.warn_on_copy
    bnns.config.warn_on_copy = False
    yield
    bnns.set_num_threads(threads)
    bnns.config.warn_on_copy = warn


def scenario(family, counts=None):
    def once(data):
        draw = Draw(data)
        family(draw)
        if counts is not None:
            counts["scenarios"] += 1
            counts["calls"] += 2 * len(draw.calls)
        check(draw.calls)

    return once


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_calls_work_or_are_refused(family, request):
    examples = 400 if request.config.getoption("--long") else 40
    given(st.data())(
        settings(max_examples=examples, suppress_health_check=list(HealthCheck))(scenario(family))
    )()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_calls_for_some_minutes(request, capsys):
    minutes = request.config.getoption("--fuzz-minutes")
    if not minutes:
        pytest.skip("needs --fuzz-minutes N")
    counts = {"scenarios": 0, "calls": 0}
    end = time.monotonic() + 60 * minutes
    while time.monotonic() < end:
        for family in FAMILIES:
            number = random.SystemRandom().getrandbits(32)
            with capsys.disabled():  # so that a crash leaves the last one to be seen
                print(f"\r{counts['calls']} calls, {family.__name__} {number}", end=" ", flush=True)
            few = settings(
                max_examples=100,
                derandomize=False,
                database=None,
                suppress_health_check=list(HealthCheck),
                report_multiple_bugs=False,
            )
            seed(number)(given(st.data())(few(scenario(family, counts))))()
            if time.monotonic() > end:
                break
    with capsys.disabled():
        print(f"\n{counts['scenarios']} scenarios, {counts['calls']} calls")
