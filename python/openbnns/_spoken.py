"""Errors in our own words: what Python or NumPy raise about an argument says neither whose it is
nor what was expected, so it is said again here, and the first error is kept as the cause.

Only calls that make something are watched, or that make arrays: a layer's ``apply`` is not, and
nothing that calls functions of the user's, whose errors are theirs.
"""

from __future__ import annotations

import inspect
import operator
import struct
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, TypeVar

import numpy as np

from ._errors import ArgumentError, BNNSError

T = TypeVar("T")

#: What comes out of Python and NumPy when an argument is of no use.
FOREIGN = (
    TypeError,
    ValueError,
    OverflowError,
    ZeroDivisionError,
    struct.error,
    AttributeError,
    LookupError,
    MemoryError,
    BufferError,
)

_LONGEST = 80  # of a value in a message
_ALIASES = {
    "Pair": "int | tuple[int, int]",
    "Shape": "int | Sequence[int]",
    "WholeAxes": "int | Sequence[int] | None",
    "Axes": "int | str | Sequence[int] | None",
    "Precision": "str | None",
}


def shown(value: Any) -> str:
    """A value in a message, not too long."""
    try:
        text = f"{type(value).__name__} {value.shape}" if hasattr(value, "shape") else repr(value)
    except Exception:  # a number of too many digits, or an object that cannot say what it is
        text = type(value).__name__
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def is_whole(value: Any) -> bool:
    """Whether it is a whole number that the C interface can hold."""
    return isinstance(value, (int, np.integer)) and -1 << 63 <= int(value) < 1 << 63


def is_number(value: Any) -> bool:
    """Whether it is a real number, or an array of one."""
    if isinstance(value, (str, bytes)):
        return False
    try:
        float(value)
    except FOREIGN:
        return False
    return True


def whole(where: str, argument: str, value: Any, least: int = 0) -> int:
    """A whole number of at least so much."""
    if not is_whole(value) or value < least:
        raise ArgumentError(
            f"[{where}] {argument}: expected a whole number, at least {least}; got {shown(value)}"
        )
    return operator.index(value)


def number(where: str, argument: str, value: Any) -> float:
    """A number."""
    if not is_number(value):
        raise ArgumentError(f"[{where}] {argument}: expected a number; got {shown(value)}")
    return float(value)


def truth(where: str, argument: str, value: Any) -> bool:
    """Whether it is true."""
    try:
        return bool(value)
    except FOREIGN:
        raise ArgumentError(
            f"[{where}] {argument}: expected True or False; got {shown(value)}"
        ) from None


def _is_one(value: Any, kind: str) -> bool | None:
    """Whether a value is what a part of an annotation says; None: who knows."""
    if kind == "None":
        return value is None
    if kind == "int":
        return is_whole(value)
    if kind == "float":
        return is_number(value)
    if kind == "bool":
        return isinstance(value, (bool, int, np.bool_))
    if kind == "str" or kind.startswith("Literal["):
        return isinstance(value, (str, int)) if kind != "str" else isinstance(value, str)
    if kind in ("Sequence[int]", "tuple[int, ...]", "tuple[int, int]"):
        return isinstance(value, (tuple, list)) and all(map(is_whole, value))
    return None


def _parts(annotation: str) -> list[str]:
    """The kinds of a union."""
    parts, depth, start = [], 0, 0
    for at, letter in enumerate(annotation + "|"):
        depth += (letter == "[") - (letter == "]")
        if letter == "|" and depth == 0:
            parts.append(annotation[start:at].strip())
            start = at + 1
    return [p for part in parts for p in (_parts(_ALIASES[part]) if part in _ALIASES else [part])]


def misfit(annotations: Mapping[str, Any], given: Mapping[str, Any]) -> str | None:
    """The first argument that is not what its annotation says, in words."""
    for name, annotation in annotations.items():
        if name not in given or not isinstance(annotation, str):
            continue
        if not any(_is_one(given[name], part) is not False for part in _parts(annotation)):
            return f"{name}: expected {annotation}; got {shown(given[name])}"
    return None


def _said_again(
    function: Any, error: type[BNNSError], where: str, foreign: Exception, args: Any, kwargs: Any
) -> BNNSError | None:
    """None: the call itself is wrong, and Python has said so."""
    try:
        given = inspect.signature(function).bind(*args, **kwargs).arguments
    except TypeError:
        return None
    named = {name: value for name, value in given.items() if name not in ("self", "cls")}
    words = misfit(getattr(function, "__annotations__", {}), named)
    if words is None:
        what = ", ".join(f"{name}={shown(value)}" for name, value in named.items())
        words = f"arguments: expected ones that go together; got {what}: {foreign}"
    return error(f"[{where}] {words}")


def spoken(error: type[BNNSError] = ArgumentError, where: str | None = None) -> Callable[[T], T]:
    """A function, or the public ones of a class, whose foreign errors become this one."""

    def of(given: T) -> T:
        if isinstance(given, type):
            for name, member in list(vars(given).items()):
                if name != "__init__" and name.startswith("_"):
                    continue
                place = given.__name__ if name == "__init__" else f"{given.__name__}.{name}"
                if isinstance(member, (staticmethod, classmethod)):
                    made: Any = type(member)(_watched(member.__func__, error, place))
                elif isinstance(member, property) and member.fset is not None:
                    made = property(
                        member.fget, _watched(member.fset, error, place), None, member.__doc__
                    )
                elif inspect.isfunction(member):
                    made = _watched(member, error, place)
                else:
                    continue
                setattr(given, name, made)
            return given
        function: Any = given
        return _watched(function, error, where or function.__name__)  # type: ignore[no-any-return]

    return of


def _watched(function: Any, error: type[BNNSError], where: str) -> Any:
    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except BNNSError:
            raise
        except FOREIGN as foreign:
            said = _said_again(function, error, where, foreign, args, kwargs)
            if said is None:
                raise
            raise said from foreign

    return call
