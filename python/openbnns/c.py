"""The C interface under its own names, for porting code line by line.

Functions, structs, constants and typedefs carry the names of the C headers; the headers themselves
are read when the first name is asked for. A function returns what C returns (0 or -1, an address or
None, a struct by value, strings as str), and :func:`last_error` tells why it failed.

* Constants are ints, structs are :class:`ctypes.Structure` types with the layout of the C compiler,
  callback types are :func:`ctypes.CFUNCTYPE` types.
* A pointer parameter takes None, an address as int, a ctypes object (passed by reference, byref()
  or not), a NumPy array or any other buffer, whose address is passed as it is: no copy, no
  conversion, whatever its strides. A parameter that is not const refuses read-only buffers.
* A pointer to pointers takes a list of all that, a const pointer to numbers a list of numbers, a
  ``const char *`` str or bytes.
* A pointer inside a struct can be set to the same things; the struct keeps them alive. Lists set
  array fields, missing entries are 0.

A callback is kept alive by whoever stores it: hold on to it as long as C may call it.

Max pooling of a 4x4 image and its gradient:

>>> import numpy as np
>>> from openbnns.c import *
>>> x = np.arange(1, 17, dtype=np.float32).reshape(1, 4, 4)
>>> y = np.empty((1, 2, 2), np.float32)
>>> image = dict(layout=BNNSDataLayoutImageCHW, data_type=BNNSDataTypeFloat32)
>>> pool = BNNSLayerParametersPooling(
...     i_desc=BNNSNDArrayDescriptor(size=[4, 4, 1], **image),
...     o_desc=BNNSNDArrayDescriptor(size=[2, 2, 1], **image),
...     pooling_function=BNNSPoolingFunctionMax,
...     k_width=2, k_height=2, x_stride=2, y_stride=2)
>>> f = BNNSFilterCreateLayerPooling(pool, None)
>>> indices = np.empty((1, 2, 2), np.uintp)
>>> BNNSPoolingFilterApplyBatch(f, 1, x, x.size, y, y.size, indices, indices.size)
0
>>> dx = np.empty_like(x)
>>> dy = np.array([1, 2, 3, 4], np.float32)
>>> in_delta = BNNSNDArrayDescriptor(size=[4, 4, 1], data=dx, **image)
>>> out_delta = BNNSNDArrayDescriptor(size=[2, 2, 1], data=dy, **image)
>>> BNNSPoolingFilterApplyBackwardBatch(
...     f, 1, x, x.size, in_delta, dx.size, y, y.size, out_delta, dy.size, None,
...     indices, indices.size)
0
>>> dx.astype(int)
array([[[0, 0, 0, 0],
        [0, 1, 0, 2],
        [0, 0, 0, 0],
        [0, 3, 0, 4]]])
>>> BNNSFilterDestroy(f)
"""

from __future__ import annotations

import ctypes
import os
import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ._paths import include_dir, library_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SIZE_MAX: int = ctypes.c_size_t(-1).value

_CData: Any = ctypes.Structure.__base__  # what all ctypes objects have in common
_CFuncPtr: Any = ctypes.CFUNCTYPE(None).__base__
_ByRef: Any = type(ctypes.byref(ctypes.c_int()))
_POINTER_SIZE = ctypes.sizeof(ctypes.c_void_p)


def last_error() -> str:
    """Sentence of the last failed call on this thread, "" when there is none."""
    return str(_lookup("obn_last_error")())


# ---- pointers: from what Python has to an address ----


class Pointer:
    """A pointer parameter or field, such as ``const void *in``.

    ``target`` is the ctypes type behind all the stars, None for void; ``depth`` counts the stars;
    ``const`` tells whether the target is const.
    """

    def __init__(self, name: str, declared: str, target: Any, depth: int, const: bool) -> None:
        self.name = name
        self.declared = declared
        self.target = target
        self.depth = depth
        self.const = const

    def __repr__(self) -> str:
        return f"<{self.declared} {self.name}>"

    def from_param(self, value: Any) -> Any:
        """Called by ctypes for every argument. Whatever this returns lives as long as the call."""
        if isinstance(value, _ByRef):
            self._check_type(value._obj)
            return value
        if isinstance(value, (list, tuple)):
            return self._array(value)
        if isinstance(value, (str, bytes)) and self.is_string:
            return ctypes.c_char_p(value.encode() if isinstance(value, str) else value)
        return ctypes.c_void_p(self.address(value))

    @property
    def is_string(self) -> bool:
        return self.target is ctypes.c_char and self.const and self.depth == 1

    @property
    def field_type(self) -> Any:
        if self.target is None and self.depth == 1:
            return ctypes.c_void_p
        if self.is_string:
            return ctypes.c_char_p
        inner = ctypes.c_void_p if self.target is None else ctypes.POINTER(self.target)
        return inner if self.depth == 1 else ctypes.POINTER(inner)

    def to_field(self, value: Any) -> Any:
        """The pointer as a ctypes object that keeps ``value`` alive when it is stored."""
        if isinstance(value, (str, bytes)) and self.is_string:
            return value.encode() if isinstance(value, str) else value
        if isinstance(value, (list, tuple)):
            value = (value, self._array(value))  # the items, and the C array that lists them
            address = ctypes.addressof(value[1])
        else:
            address = self.address(value) or 0
        raw = address.to_bytes(_POINTER_SIZE, "little")
        return _with_owner(self.field_type, raw, value)

    def address(self, value: Any) -> int | None:
        if value is None:
            return None
        if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
            return int(value)
        if isinstance(value, _CData):
            self._check_type(value)
            if self.depth == 1 and _is_pointer(value):
                return ctypes.c_void_p.from_buffer(value).value  # the address it holds
            return ctypes.addressof(value)
        return self._buffer_address(value)

    def _buffer_address(self, value: Any) -> int:
        bytes_ = self.target in (None, ctypes.c_char)
        numbers = bytes_ or issubclass(self.target, ctypes._SimpleCData)
        if self.depth > 1 or not numbers or isinstance(value, np.generic):
            raise self._error(value)
        try:
            array = value if isinstance(value, np.ndarray) else np.asarray(memoryview(value))
        except TypeError:
            raise self._error(value) from None
        if not self.const and not array.flags.writeable:
            raise TypeError(f"{self.name}: {self.declared} is written to; got a read-only buffer")
        if not bytes_ and array.itemsize != ctypes.sizeof(self.target):
            raise TypeError(
                f"{self.name}: expected items of {ctypes.sizeof(self.target)} bytes for "
                f"{self.declared}; got {array.dtype}"
            )
        return int(array.ctypes.data)

    def _array(self, values: list[Any] | tuple[Any, ...]) -> Any:
        """A C array of pointers, or of numbers behind a const pointer."""
        if self.depth > 1:
            item = Pointer(self.name, self.declared, self.target, self.depth - 1, self.const)
            return (ctypes.c_void_p * len(values))(*(item.address(value) for value in values))
        if self.const and self.target is not None and not issubclass(self.target, Struct):
            return (self.target * len(values))(*values)
        raise self._error(values)

    def _check_type(self, value: Any) -> None:
        """A ctypes object behind a typed pointer has to be of that type, or an array of it."""
        untyped = isinstance(value, (ctypes.c_void_p, ctypes.c_char_p))
        if self.target is None or self.depth > 1 or untyped:
            return
        actual = type(value)
        if not issubclass(actual, self.target):
            actual = getattr(actual, "_type_", actual)  # of an array or a pointer
        if not (isinstance(actual, type) and issubclass(actual, self.target)):
            raise self._error(value)

    def _error(self, value: Any) -> TypeError:
        return TypeError(f"{self.name}: expected {self.declared}; got {type(value).__name__}")


class Callback:
    """A function pointer parameter or field: None or an instance of its CFUNCTYPE."""

    def __init__(self, name: str, declared: str, type_: Any) -> None:
        self.name = name
        self.declared = declared
        self.field_type = type_

    def __repr__(self) -> str:
        return f"<{self.declared} {self.name}>"

    def from_param(self, value: Any) -> Any:
        if value is None:
            return self.field_type()
        if isinstance(value, self.field_type):
            return value
        raise TypeError(
            f"{self.name}: expected None or openbnns.c.{self.declared}(function); "
            f"got {type(value).__name__}"
        )

    def to_field(self, value: Any) -> Any:
        return _with_owner(self.field_type, bytes(self.from_param(value)), value)


def _is_pointer(value: Any) -> bool:
    return isinstance(value, (ctypes.c_void_p, ctypes.c_char_p, ctypes._Pointer, _CFuncPtr))


class _Cell(bytearray):
    """The bytes of a C value, and the Python object that has to live as long as they do."""

    owner: Any


def _with_owner(type_: Any, raw: bytes, owner: Any) -> Any:
    """A ctypes object with these bytes. ctypes keeps its cell alive, through every assignment of
    the object to a field, for as long as the struct that contains it."""
    cell = _Cell(raw)
    cell.owner = owner
    return type_.from_buffer(cell)


class Struct(ctypes.Structure):
    """Base of all structs: fields also take arrays, lists and strings, and keep them alive."""

    _pointers: ClassVar[dict[str, Pointer | Callback]] = {}

    def __setattr__(self, name: str, value: Any) -> None:
        pointer = self._pointers.get(name)
        if pointer is not None:
            value = pointer.to_field(value)
        elif isinstance(value, Struct):
            # A copy with the owners of this moment: value may point elsewhere later.
            whole: Any = value if value._b_base_ is None else value._b_base_
            value = _with_owner(type(value), bytes(value), dict(whole._objects or {}))
        elif isinstance(value, (list, np.ndarray)):
            value = _tuples(value)
        super().__setattr__(name, value)


def _tuples(value: Any) -> Any:
    """Nested lists and arrays as nested tuples, the one form in which ctypes fills array fields."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    return tuple(map(_tuples, value)) if isinstance(value, (list, tuple)) else value


# ---- the headers: small, regular C, read with one expression per kind of declaration ----

_SCALARS: dict[str, Any] = {
    "void": None,
    "bool": ctypes.c_bool,
    "char": ctypes.c_char,
    "int": ctypes.c_int,
    "unsigned int": ctypes.c_uint,
    "float": ctypes.c_float,
    "size_t": ctypes.c_size_t,
    "ssize_t": ctypes.c_ssize_t,
    "uint8_t": ctypes.c_uint8,
    "uint16_t": ctypes.c_uint16,
    "int32_t": ctypes.c_int32,
    "uint32_t": ctypes.c_uint32,
    "int64_t": ctypes.c_int64,
    "uint64_t": ctypes.c_uint64,
}

_DECLARATION = re.compile(
    r"""
      \#define\ (?P<constant>\w+)\ (?P<value>\d+)$
    | OBN_ENUM\((?P<enum>\w+)\)\s*\{(?P<members>.*?)\};
    | typedef\ struct\ (?P<struct>\w+)\s*\{(?P<fields>.*?)\}\s*(?P=struct);
    | typedef\ (?P<result>[\w\s*]+?)\(\*(?P<callback>\w+)\)\((?P<arguments>.*?)\);
    | typedef\ (?P<type>[\w\s*]+?)(?P<typedef>\w+);
    | OBN_API\ (?P<returns>[\w\s*]+?)(?P<function>\w+)\((?P<parameters>.*?)\)
      (?:\s*OBN_SYMBOL\((?P<symbol>\w+)\))?;
    """,
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)
_MEMBER = re.compile(r"(\w+) = (\w+),")
_UNION = re.compile(r"OBN_EXTENSION union \{(.*?)\};", re.DOTALL)
_VARIABLE = re.compile(r"(?P<type>.*?)\s*(?P<name>\w+)(?P<dimensions>(?:\[\w+\])*)$", re.DOTALL)


class _Headers:
    """Everything the headers declare."""

    def __init__(self, folder: Path) -> None:
        self.constants: dict[str, int] = {}
        self.types: dict[str, Any] = {}
        self.functions: dict[str, re.Match[str]] = {}
        self._read: set[Path] = set()
        for name in ("bnns.h", "openbnns.h"):
            self._include(folder / "openbnns" / name)

    def _include(self, path: Path) -> None:
        """Reads the headers that this one includes, then this one."""
        path = path.resolve()
        if path in self._read:
            return
        self._read.add(path)
        text = path.read_text(encoding="utf-8")
        for name in re.findall(r'^#include "(.*)"', text, re.MULTILINE):
            self._include(path.parent / name)
        text = re.sub(r"\s*/\*.*?\*/", "", text, flags=re.DOTALL)
        text = re.sub(r"(?ms)^#if defined\(_MSC_VER\)\n.*?^#endif$", "", text)
        text = re.sub(r"^#(?!define \w+ \d+$)(.*\\\n)*.*$", "", text, flags=re.MULTILINE)
        for declaration in _DECLARATION.finditer(text):
            self._declare(declaration)

    def _declare(self, found: re.Match[str]) -> None:
        if name := found["constant"]:
            self.constants[name] = int(found["value"])
        elif name := found["enum"]:
            self.types[name] = ctypes.c_uint32
            for member, value in _MEMBER.findall(found["members"]):
                self.constants[member] = int(value, 0)
        elif name := found["struct"]:
            self.types[name] = self._struct(name, found["fields"])
        elif name := found["callback"]:
            self.types[name] = self._callback(found["result"], found["arguments"])
        elif name := found["typedef"]:
            self.types[name] = _plain(self._type(found["type"]))
        else:
            self.functions[found["function"]] = found

    def _struct(self, name: str, text: str) -> type[Struct]:
        pointers: dict[str, Pointer | Callback] = {}
        fields: list[tuple[str, Any]] = []
        body: dict[str, Any] = {"_pointers": pointers, "_fields_": fields}
        if union := _UNION.search(text):
            members = list(self._fields(union[1], pointers))
            fields.append(("_union", type("_union", (ctypes.Union,), {"_fields_": members})))
            body["_anonymous_"] = ("_union",)
            text = _UNION.sub("", text)
        fields.extend(self._fields(text, pointers))
        return type(name, (Struct,), body)

    def _fields(
        self, text: str, pointers: dict[str, Pointer | Callback]
    ) -> Iterator[tuple[str, Any]]:
        for declared in text.split(";")[:-1]:
            name, type_, dimensions = self._variable(declared)
            if isinstance(type_, (Pointer, Callback)):
                pointers[name] = type_
            field_type = _plain(type_)
            for dimension in reversed(dimensions):
                field_type *= self.constants.get(dimension) or int(dimension)
            yield name, field_type

    def _callback(self, result: str, arguments: str) -> Any:
        types = [_plain(type_) for _, type_ in self._parameters(arguments)]
        return ctypes.CFUNCTYPE(_plain(self._type(result)), *types)

    def _parameters(self, text: str) -> Iterator[tuple[str, Any]]:
        for declared in text.split(",") if text != "void" else []:
            name, type_, _ = self._variable(declared)
            yield name, type_

    def _variable(self, declared: str) -> tuple[str, Any, list[str]]:
        """Name, type and dimensions of a field or parameter."""
        found = _VARIABLE.match(declared.strip())
        assert found, declared
        name = found["name"]
        return name, self._type(found["type"], name), re.findall(r"\w+", found["dimensions"])

    def _type(self, declared: str, name: str = "") -> Any:
        """The ctypes type of a value, Pointer or Callback for what needs more care."""
        declared = " ".join(declared.split())
        words = declared.replace("*", "").split()
        base = " ".join(word for word in words if word != "const")
        target = self.types[base] if base in self.types else _SCALARS[base]
        if depth := declared.count("*"):
            return Pointer(name, declared, target, depth, "const" in words)
        if isinstance(target, type) and issubclass(target, _CFuncPtr):
            return Callback(name, declared, target)
        return target

    def bind(self, library: ctypes.CDLL, name: str) -> Callable[..., Any]:
        """The function, with the types of its parameters and of its result."""
        found = self.functions[name]
        function = getattr(library, found["symbol"] or name)
        function.argtypes = [type_ for _, type_ in self._parameters(found["parameters"])]
        function.restype = _plain(self._type(found["returns"]))
        if function.restype is ctypes.c_char_p:
            function.errcheck = lambda result, *_: None if result is None else result.decode()
        function.__name__ = name
        function.__doc__ = " ".join(found[0].removeprefix("OBN_API ").split())
        return function  # type: ignore[no-any-return]


def _plain(type_: Any) -> Any:
    """The ctypes type of a field, of a result, of what a callback receives."""
    return type_.field_type if isinstance(type_, (Pointer, Callback)) else type_


# ---- names, looked up on first use ----

_lock = threading.RLock()
if hasattr(os, "register_at_fork"):  # a child would wait for ever for a thread it does not have
    _free = _lock.release
    os.register_at_fork(before=_lock.acquire, after_in_parent=_free, after_in_child=_free)
_headers: _Headers | None = None
_library: ctypes.CDLL | None = None


def _loaded() -> _Headers:
    global _headers
    with _lock:
        if _headers is None:
            _headers = _Headers(Path(include_dir()))
            globals().update(_headers.constants, **_headers.types)
        return _headers


def _lookup(name: str) -> Any:
    global _library
    with _lock:
        headers = _loaded()
        if name not in globals() and name in headers.functions:
            if _library is None:
                _library = ctypes.CDLL(str(library_path()))
            globals()[name] = headers.bind(_library, name)
        if name in globals():
            return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _names() -> list[str]:
    headers = _loaded()
    own = ["SIZE_MAX", "last_error"]
    return sorted([*headers.constants, *headers.types, *headers.functions, *own])


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return _names()
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _lookup(name)


def __dir__() -> list[str]:
    return _names()
