"""The memory and the calls of a network for one batch size.

Blocks are laid out as a tape of values; every value knows when it is first and last used; values
that are never used at the same time share their place in one arena. Then all calls of a step are
bound to their arrays, once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from math import prod
from typing import Any, NamedTuple

import numpy as np

from . import _core
from ._spec import empty
from .arithmetic import BinaryArithmeticLayer
from .blocks import (
    Activate,
    Block,
    Convolution,
    Dense,
    Flatten,
    Normalize,
    Pool,
    Position,
    Shape,
    Values,
)

_LINE = 64
# forward and backward: one native call each
_NATIVE = (Activate, Convolution, Dense, Normalize, Pool, Position)


@dataclass(eq=False)
class Stage:
    """A block of a network with its name and the shapes of its samples."""

    name: str
    block: Block
    input: Shape
    output: Shape


@dataclass(eq=False)
class Fork:
    """Branches of a network: the stages of each path, and how their ends are joined."""

    name: str
    paths: list[list[Stage | Fork | Each]]
    join: str
    output: Shape


@dataclass(eq=False)
class Each:
    """Stages whose samples are the rows of a network's samples."""

    name: str
    stages: list[Stage | Fork | Each]
    rows: int
    output: Shape


@dataclass(eq=False)
class _Buffer:
    """A piece of the arena, in use from its first to its last moment."""

    label: str
    size: int
    first: int
    last: int
    offset: int = 0


@dataclass(eq=False)
class _Value:
    """An array of a step: a buffer of its own, or another value seen differently."""

    shape: Shape
    buffer: _Buffer
    dtype: str = "float32"
    of: _Value | None = None
    look: Callable[[Values], Values] = lambda array: array
    packed: bool = True  # its values lie in one row
    users: int = 0
    gradient: _Value | None = None
    borrows_gradient: bool = False  # it is somebody else's too: read, not changed
    array: Any = None

    def place(self, arena: Values) -> Any:
        """The array in the arena."""
        if self.array is None and self.of is not None:
            self.array = self.look(self.of.place(arena))
        elif self.array is None:
            memory = arena[self.buffer.offset :][: self.buffer.size].view(self.dtype)
            self.array = memory[: prod(self.shape)].reshape(self.shape)
        return self.array

    def seen(self, shape: Shape, look: Callable[[Values], Values], packed: bool = True) -> _Value:
        return _Value(shape, self.buffer, self.dtype, self, look, packed and self.packed)

    def reshaped(self, shape: Shape) -> _Value:
        return self.seen(shape, lambda array: array.reshape(shape))


@dataclass(eq=False)
class _Node:
    """A place on the tape: inputs, output, and the way back."""

    name: str
    inputs: list[_Value]
    output: _Value
    block: Block | None = None  # None: the values are joined or seen differently
    saved: dict[str, _Value] = field(default_factory=dict)
    # of the output's gradient, one for each input; without any it has the input's shape after all
    parts: list[Callable[[Values], Values]] = field(default_factory=list)


@dataclass(eq=False)
class _Call:
    """A function and the values it is to be called with."""

    run: Callable[..., None]
    values: tuple[_Value | None, ...]
    saved: dict[str, _Value] | None
    name: str
    result: Any
    is_native: bool

    def bound(self, arena: Values) -> Bound:
        arrays = [None if value is None else value.place(arena) for value in self.values]
        given = {}
        if self.saved is not None:
            given["saved"] = {name: value.place(arena) for name, value in self.saved.items()}
        return Bound(self.name, self.is_native, partial(self.run, *arrays, **given))


class Bound(NamedTuple):
    """A call with its arrays."""

    name: str
    is_native: bool  # it does nothing but call a native layer on these arrays
    run: Callable[[], Any]


def merged(calls: list[Bound]) -> list[Callable[[], Any]]:
    """The same calls; native ones in a row become one, which runs without Python in between."""
    made: list[Callable[[], Any]] = []
    for is_native, group in groupby(calls, key=lambda call: call.is_native):
        some = list(group)
        program = _core.record([(call.name, call.run) for call in some]) if is_native else None
        made += [call.run for call in some] if program is None else [program]
    return made


class Plan:
    """Arrays and calls of a network for one batch size.

    ``print(plan)`` shows what lies where, and in use from which call of a step to which.

    Attributes:
        batch: number of samples.
        nbytes: size of the arena.
        input, output: arrays (batch, *shape) in the arena.
        output_gradient, input_gradient: the same for the gradients; None where there is none.
    """

    def __init__(
        self,
        stages: list[Stage | Fork | Each],
        input_shape: Shape,
        batch: int,
        gradients: Callable[[str], Mapping[str, Values]] | None = None,
        wants_input_gradient: bool = False,
    ) -> None:
        """gradients: the arrays for a block's parameters by its name; None plans inference."""
        self.batch = batch
        self._samples = batch  # of the blocks at hand: more among the rows of samples
        self._trains = gradients is not None
        self._buffers: list[_Buffer] = []
        self._tape: list[_Node] = []
        self._calls: list[_Call] = []
        self._now = 0
        x = self._value("input", (batch, *input_shape))
        y = self._sequence(stages, x)
        self._touch(y)
        ahead = len(self._calls)
        if gradients is not None:
            y.gradient = self._value("gradient of the output", y.shape)
            self._now += 1
            self._go_back(gradients, x, wants_input_gradient)
        self.nbytes = _place(self._buffers)
        arena = empty(self.nbytes, np.uint8)
        calls = [call.bound(arena) for call in self._calls]
        self.ahead, self.back = calls[:ahead], calls[ahead:]
        self._forward, self._backward = merged(self.ahead), merged(self.back)
        self.input, self.output = x.place(arena), y.place(arena)
        self.output_gradient: Any = None if y.gradient is None else y.gradient.place(arena)
        self.input_gradient: Any = None if x.gradient is None else x.gradient.place(arena)
        # the same as the loss sees them; the network's to say
        self.results, self.results_gradient = self.output, self.output_gradient
        self.steps: dict[Any, tuple[Values, list[Callable[[], Any]]]] = {}

    def forward(self) -> None:
        """All blocks, from ``input`` to ``output``."""
        for call in self._forward:
            call()

    def backward(self) -> None:
        """All blocks backward, from ``output_gradient``."""
        for call in self._backward:
            call()

    def walk(self) -> Iterator[tuple[str, Values]]:
        """``forward`` call by call: the name of each block and its result."""
        yield "input", self.input
        for call, bound in zip(self._calls, self.ahead, strict=False):
            bound.run()
            yield call.name, call.result.array

    def __str__(self) -> str:
        rows = [f"{'array':32} {'bytes':>10} {'offset':>10}  in use"]
        rows += [
            f"{b.label:32} {b.size:10} {b.offset:10}  {b.first}-{b.last}" for b in self._buffers
        ]
        together = sum(buffer.size for buffer in self._buffers)
        rows.append(f"{'together':32} {together:10} in {self.nbytes} bytes")
        return "\n".join(rows)

    # ---- forward ----

    def _value(self, label: str, shape: Shape, dtype: str = "float32") -> _Value:
        size = -(-prod(shape) * np.dtype(dtype).itemsize // _LINE) * _LINE
        self._buffers.append(_Buffer(label, max(size, _LINE), self._now, self._now))
        return _Value(shape, self._buffers[-1], dtype)

    def _touch(self, *values: _Value) -> None:
        for value in values:
            value.buffer.last = max(value.buffer.last, self._now)

    def _call(
        self,
        run: Callable[..., None],
        *values: _Value | None,
        saved: dict[str, _Value] | None = None,
        name: str = "",
        result: _Value | None = None,
        block: Block | None = None,
        is_native: bool = False,
    ) -> None:
        """The next call of a step; all it is given is in use then."""
        given = [value for value in (*values, *(saved or {}).values()) if value is not None]
        self._touch(*given)
        is_native |= type(block) in _NATIVE  # classes derived from them may do anything
        self._calls.append(_Call(run, values, saved, name, result, is_native))
        self._now += 1

    def _sequence(self, stages: list[Stage | Fork | Each], x: _Value) -> _Value:
        for stage in stages:
            if isinstance(stage, Fork):
                x = self._fork(stage, x)
            elif isinstance(stage, Each):
                x = self._each(stage, x)
            elif isinstance(stage.block, Flatten):
                x = self._reshape(stage.name, x, (self._samples, *stage.output))
            else:
                x = self._block(stage, x)
        return x

    def _reshape(self, name: str, x: _Value, shape: Shape) -> _Value:
        """The same memory."""
        x.users += 1
        y = x.reshaped(shape)
        self._tape.append(_Node(name, [x], y))
        return y

    def _each(self, each: Each, x: _Value) -> _Value:
        outside = self._samples
        self._samples *= each.rows
        y = self._reshape(each.name, x, (self._samples, *x.shape[2:]))
        y = self._sequence(each.stages, y)
        self._samples = outside
        return self._reshape(each.name, y, (outside, *each.output))

    def _block(self, stage: Stage, x: _Value) -> _Value:
        block = stage.block
        x.users += 1
        y = self._value(stage.name, (self._samples, *stage.output))
        saved = {}
        if self._trains:
            saved = {
                name: self._value(f"{stage.name}.{name}", shape, dtype)
                for name, (shape, dtype) in block.saved(self._samples).items()
            }
        self._tape.append(_Node(stage.name, [x], y, block, saved))
        run = partial(block.forward, training=self._trains)
        self._call(run, x, y, saved=saved, name=stage.name, result=y, block=block)
        return y

    def _fork(self, fork: Fork, x: _Value) -> _Value:
        ends = [self._sequence(path, x) for path in fork.paths]
        y = self._value(fork.name, (self._samples, *fork.output))
        node = _Node(fork.name, ends, y)
        if fork.join == "add":
            node.parts = [lambda gradient: gradient] * len(ends)
            self._add(y, *ends, name=fork.name, result=y)
        else:
            start, apart = 0, []
            for end in ends:
                look = _channels(start, start + end.shape[1])
                start += end.shape[1]
                node.parts.append(look)
                if end is not x and end.of is None and end.users == 0:
                    # nobody else reads it: it is written where it belongs at once
                    y.buffer.first = min(y.buffer.first, end.buffer.first)
                    self._buffers.remove(end.buffer)
                    end.buffer, end.of, end.look, end.packed = y.buffer, y, look, False
                else:
                    apart += [y.seen(end.shape, look, packed=False), end]
            if apart:
                self._call(_copy, *apart, name=fork.name, result=y)
        for end in ends:
            end.users += 1
        self._tape.append(node)
        return y

    # ---- backward ----

    def _go_back(
        self,
        gradients: Callable[[str], Mapping[str, Values]],
        x: _Value,
        wants_input_gradient: bool,
    ) -> None:
        for node in reversed(self._tape):
            gradient = node.output.gradient
            if gradient is None:  # the input, seen differently
                continue
            wanted = [s for s in node.inputs if wants_input_gradient or not _is_input(s, x)]
            if node.block is None and not node.parts:
                if wanted:
                    back = self._packed(gradient).reshaped(node.inputs[0].shape)
                    self._share(node.inputs[0], back)
                continue
            if node.block is None:
                for source, part in zip(node.inputs, node.parts, strict=True):
                    if source in wanted:
                        packed = gradient.shape == source.shape
                        self._share(source, gradient.seen(source.shape, part, packed))
                continue
            source, block, target = node.inputs[0], node.block, None
            if wanted:
                target = self._value(f"gradient before {node.name}", source.shape)
            run = partial(_backward, block, gradients(node.name))
            self._call(
                run,
                source if block.needs_input else None,
                node.output if block.needs_output else None,
                gradient,
                target,
                saved=node.saved,
                name=node.name,
                block=block,
            )
            if target is not None:
                self._own(source, target)

    def _packed(self, value: _Value) -> _Value:
        """The value, or a copy where it is a part of something wider."""
        if value.packed:
            return value
        copy = self._value("gradient in one row", value.shape)
        self._call(_copy, copy, value)
        return copy

    def _share(self, source: _Value, part: _Value) -> None:
        """A part of a value's gradient that is also somebody else's: read, not changed."""
        if source.gradient is None:
            source.gradient, source.borrows_gradient = part, True
        elif source.borrows_gradient:
            self._collect(source, part, self._value("sum of gradients", source.shape))
        else:
            self._collect(source, part, source.gradient)

    def _own(self, source: _Value, part: _Value) -> None:
        """A part of a value's gradient that nobody else reads."""
        if source.gradient is None:
            source.gradient = part
        else:
            self._collect(source, part, part if source.borrows_gradient else source.gradient)

    def _collect(self, source: _Value, part: _Value, total: _Value) -> None:
        assert source.gradient is not None
        self._add(total, source.gradient, part)
        source.gradient, source.borrows_gradient = total, False

    def _add(self, total: _Value, *parts: _Value, **about: Any) -> None:
        """total = Σ parts, of which one of the first two may be the total itself."""
        spec = total.shape[1:]
        layer = BinaryArithmeticLayer("add", input_a=spec, input_b=spec)
        self._call(partial(_add, layer), total, *parts, is_native=True, **about)


def _is_input(value: _Value, x: _Value) -> bool:
    return value is x or (value.of is not None and _is_input(value.of, x))


def _channels(start: int, stop: int) -> Callable[[Values], Values]:
    return lambda array: array[:, start:stop]


def _backward(
    block: Block,
    gradients: Mapping[str, Values],
    x: Values,
    y: Values,
    grad_output: Values,
    input_gradient: Values | None,
    *,
    saved: Mapping[str, Values],
) -> None:
    if gradients or input_gradient is not None:
        block.backward(x, y, grad_output, input_gradient, gradients, saved=saved)


def _add(layer: BinaryArithmeticLayer, total: Values, *parts: Values) -> None:
    layer.apply(parts[0], parts[1], out=total)
    for part in parts[2:]:
        layer.apply(total, part, out=total)


def _copy(*pairs: Values) -> None:
    for target, source in zip(pairs[::2], pairs[1::2], strict=True):
        target[...] = source


def _place(buffers: list[_Buffer]) -> int:
    """Give every buffer a place that no other uses at the same time; returns the size of it all.

    The largest first, each at the lowest place that is free.
    """
    placed: list[_Buffer] = []
    for buffer in sorted(buffers, key=lambda b: -b.size):
        buffer.offset = 0
        for other in sorted(placed, key=lambda b: b.offset):
            meets = other.first <= buffer.last and buffer.first <= other.last
            if meets and other.offset < buffer.offset + buffer.size:
                buffer.offset = max(buffer.offset, other.offset + other.size)
        placed.append(buffer)
    return max(b.offset + b.size for b in buffers)
