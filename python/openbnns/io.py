"""Checkpoints: named arrays and a few words about them, in one safetensors file.

The file is complete or it is not there: it is written beside its place, brought to the disk, and
renamed. A file that is read may come from anybody: whatever its bytes are, the result is its
arrays or a ``CheckpointError``, nothing in it is executed, and reading takes no more memory than
twice the file and 64 MiB. The format: a length (8 bytes), a header (JSON), the values.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from math import isfinite, prod
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np

from ._errors import CheckpointError
from ._spec import _bfloat16
from ._spoken import spoken

try:
    import fcntl
except ImportError:  # Windows, where a file that is open cannot be removed anyway
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy.typing as npt

__all__ = ["CheckpointError", "load_checkpoint", "save_checkpoint"]

# What the header calls a type: NumPy's word for it, little-endian.
_DTYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "C64": "<c8",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "<i1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "<u1",
    "BOOL": "?",
}
_WORDS = {np.dtype(dtype): word for word, dtype in _DTYPES.items()}
_MOST_HEADER = 4 << 20  # bytes; some ten thousand arrays
_MOST_ENTRY = 4096  # characters that describe one array
_MOST_AXES = 32
_NOTES = "__metadata__"
_PIECE = 1 << 30  # bytes that one system call is asked for


class _Wrong(ValueError):
    """What is wrong with the content of a file."""


# ---- JSON of strangers ----


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _Wrong("expected each name once; got one twice")
    return found


def _whole(digits: str) -> int:
    if len(digits) > 40:
        raise _Wrong(f"expected numbers of at most 40 digits; got {len(digits)}")
    return int(digits)


def _finite(digits: str) -> float:
    value = float(digits)
    if not isfinite(value):
        raise _Wrong(f"expected finite numbers; got {shortened(digits)}")
    return value


_decoder = json.JSONDecoder(
    object_pairs_hook=_without_twins, parse_int=_whole, parse_float=_finite, parse_constant=_finite
)


def decoded(text: str) -> Any:
    """A JSON text: each name once, finite numbers, text that is Unicode; else a ValueError."""
    try:
        value = _decoder.decode(text)
    except RecursionError:
        raise _Wrong("expected values that are nested less deeply") from None
    if "\\u" in text:  # can stand for half a character
        json.dumps(value, ensure_ascii=False).encode()
    return value


def shortened(reason: object) -> str:
    """A sentence about a file, which may have chosen part of it: no longer than can be read."""
    text = str(reason)
    return text if len(text) <= 500 else f"{text[:400]} … ({len(text)} characters)"


class _Header:
    """Walks through a header. Only what the format has a use for is ever made of it, so that no
    text becomes many times as many bytes of objects."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def read(self) -> tuple[dict[str, _Entry], dict[str, str]]:
        entries: dict[str, _Entry] = {}
        notes: dict[str, str] | None = None
        for name in self._names():
            if name in entries or (name == _NOTES and notes is not None):
                self._fail(f"each name once, not {name!r} twice")
            if name == _NOTES:
                notes = {}
                for note in self._names():
                    if note in notes:
                        self._fail(f"each note once, not {note!r} twice")
                    notes[note] = self._string()
            else:
                entries[name] = self._entry(name)
        if self._text[self._at :].strip(" \t\r\n"):
            self._fail("nothing behind the last brace")
        return entries, notes or {}

    def _fail(self, expected: str) -> NoReturn:
        raise _Wrong(f"header, character {self._at}: expected {shortened(expected)}")

    def _take(self, pattern: re.Pattern[str], expected: str) -> str:
        found = pattern.match(self._text, self._at)
        if found is None:
            self._fail(expected)
        self._at = found.end()
        return found[1]

    def _names(self) -> Iterator[str]:
        """The names of an object; who asks reads the value that follows before the next."""
        self._take(_OPENS, "an object")
        if self._text.startswith("}", self._at):
            self._at += 1
            return
        while True:
            name = self._string()
            self._take(_COLON, "a colon")
            yield name
            if self._take(_NEXT, "a comma or a brace") == "}":
                return

    def _string(self) -> str:
        self._take(_QUOTED, "a text")
        value, self._at = _decoder.raw_decode(self._text, self._at)
        value.encode()  # raises where it holds half a character
        return value  # type: ignore[no-any-return]

    def _entry(self, name: str) -> _Entry:
        text = self._take(_ENTRY, f"an object of at most {_MOST_ENTRY} characters for {name!r}")
        given = _decoder.decode(text)
        if given.keys() != {"dtype", "shape", "data_offsets"}:
            self._fail(f"dtype, shape and data_offsets for {name!r}")
        dtype = _dtype_of(given["dtype"])
        shape = _numbers(given["shape"])
        offsets = _numbers(given["data_offsets"])
        if dtype is None or shape is None or offsets is None or len(offsets) != 2:
            self._fail(f"a known dtype, a shape and two offsets for {name!r}, not {text}")
        # NumPy counts the other axes of an empty array too
        if len(shape) > _MOST_AXES or prod(n or 1 for n in shape) * dtype.itemsize >= 1 << 63:
            self._fail(f"a shape that an array can have for {name!r}, not {shape}")
        begin, end = offsets
        if end - begin != prod(shape) * dtype.itemsize:
            self._fail(f"{prod(shape) * dtype.itemsize} bytes for {name!r}, not {text}")
        return _Entry(dtype, shape, begin)


_OPENS = re.compile(r"[ \t\r\n]*(\{)[ \t\r\n]*")
_NEXT = re.compile(r"[ \t\r\n]*([,}])[ \t\r\n]*")
_QUOTED = re.compile(r'()(?=")')
_COLON = re.compile(r"[ \t\r\n]*(:)[ \t\r\n]*")
_ENTRY = re.compile(rf"(\{{[^{{}}]{{0,{_MOST_ENTRY}}}\}})")


class _Entry(NamedTuple):
    """Where the values of an array are."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    begin: int

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


def _dtype_of(word: object) -> np.dtype[Any] | None:
    if word == "BF16":
        found = _bfloat16()
        if found is None:
            raise _Wrong("BF16 values: expected the package ml_dtypes; got none")
        return found
    return np.dtype(_DTYPES[word]) if isinstance(word, str) and word in _DTYPES else None


def _numbers(values: object) -> tuple[int, ...] | None:
    """Whole numbers from 0 that 63 bits can hold, or None."""
    if not isinstance(values, list):
        return None
    return tuple(values) if all(type(v) is int and 0 <= v < 1 << 63 for v in values) else None


# ---- reading ----


class Checkpoint:
    """A file whose header was read and found sound; values are read when they are asked for.

    Raises:
        CheckpointError: by every method, for whatever is wrong.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path
        try:
            if not stat.S_ISREG(os.stat(path).st_mode):  # a pipe would be waited for
                is_folder = os.path.isdir(path)
                raise CheckpointError(
                    f"[load_checkpoint] {path}: expected a file; got "
                    f"{'a folder' if is_folder else 'something else'}"
                )
            self._file = open(path, "rb", buffering=0)  # noqa: SIM115  closed by close
        except FileNotFoundError as error:
            raise CheckpointError(f"[load_checkpoint] {path}: no such file") from error
        except (OSError, ValueError, TypeError, OverflowError) as error:
            if isinstance(error, CheckpointError):
                raise
            reason = getattr(error, "strerror", None) or error
            message = f"[load_checkpoint] {path}: cannot be read: {reason}"
            raise CheckpointError(message) from error
        try:
            with self._said():
                self._read_header()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()

    @contextlib.contextmanager
    def _said(self) -> Iterator[None]:
        try:
            yield
        except CheckpointError:
            raise
        except OSError as error:
            message = f"[load_checkpoint] {self._path}: cannot be read: {error.strerror}"
            raise CheckpointError(message) from error
        except MemoryError as error:
            message = f"[load_checkpoint] {self._path}: not enough memory for it"
            raise CheckpointError(message) from error
        except (ValueError, RecursionError) as error:
            raise CheckpointError(
                f"[load_checkpoint] {self._path}: not a whole checkpoint: {shortened(error)}"
            ) from error

    def _read_header(self) -> None:
        size = os.fstat(self._file.fileno()).st_size
        if size < 8:
            raise _Wrong(f"expected at least 8 bytes; got {size}")
        first = bytearray(8)
        self._fill(first)
        length = int.from_bytes(first, "little")
        if length > min(size - 8, _MOST_HEADER):
            raise _Wrong(
                f"expected a header of at most {min(size - 8, _MOST_HEADER)} bytes; got {length}"
            )
        content = bytearray(length)
        self._fill(content)
        self.entries, self.notes = _Header(content.decode()).read()
        end = 0
        for name, entry in sorted(self.entries.items(), key=_place):
            if entry.begin != end:  # arrays that overlap, or bytes that belong to none
                raise _Wrong(
                    f"expected the values of {name!r} to begin at {end}; got {entry.begin}"
                )
            end += entry.nbytes
        self._start = 8 + length
        if end != size - self._start:
            raise _Wrong(f"expected {end} bytes of values; got {size - self._start}")

    def _fill(self, room: bytearray | memoryview) -> None:
        view = memoryview(room)
        while view:
            count = self._file.readinto(view[:_PIECE])
            if not count:
                raise _Wrong("the file became shorter")
            view = view[count:]

    def read(self, name: str) -> npt.NDArray[Any]:
        """A new array."""
        entry = self.entries[name]
        with self._said():
            array = np.empty(entry.shape, entry.dtype)
        self.read_into(name, array)
        return array

    def read_into(self, name: str, array: npt.NDArray[Any]) -> None:
        """Read values into an array of the same shape and type."""
        entry = self.entries[name]
        if (array.shape, array.dtype) != (entry.shape, entry.dtype):
            raise CheckpointError(
                f"[load_checkpoint] {self._path}: {shortened(repr(name))}: expected "
                f"{array.dtype} {array.shape}; got {entry.dtype} {entry.shape}"
            )
        if not array.flags.c_contiguous:
            array[...] = self.read(name)
            return
        with self._said():
            flat = array.reshape(-1).view(np.uint8)
            self._file.seek(self._start + entry.begin)
            self._fill(flat.data)
            if entry.dtype == np.bool_ and flat.size and flat.max() > 1:
                raise _Wrong(f"{name!r}: expected bytes that are 0 or 1; got {flat.max()}")


def _place(item: tuple[str, _Entry]) -> tuple[int, int]:
    return item[1].begin, item[1].nbytes


@spoken(CheckpointError)
def load_checkpoint(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Read a checkpoint: its arrays and its notes.

    Args:
        path: a safetensors file.

    Returns:
        New arrays by name, and the texts kept beside them.

    Raises:
        CheckpointError: there is no such file, it cannot be read, it is cut short, or it is no
            safetensors file.

    See also: ``save_checkpoint``.
    """
    with Checkpoint(path) as file:
        return {name: file.read(name) for name in file.entries}, file.notes


# ---- writing ----


@spoken(CheckpointError)
def save_checkpoint(
    path: str | os.PathLike[str], arrays: Mapping[str, Any], notes: Mapping[str, str] | None = None
) -> None:
    """Write named arrays to a file that appears all at once.

    Args:
        path: where the checkpoint shall be. What is there stays until the new one is complete, and
            hands its permissions on; a symbolic link is followed.
        arrays: NumPy arrays of any shape, by name; strided ones are written packed.
        notes: short texts to keep beside them (a step, a seed), by name.

    Raises:
        CheckpointError: the file cannot be written. What was at ``path`` is untouched, and nothing
            is left beside it. (A process that is killed leaves a file ``.openbnns-….tmp``, which
            the next one to save into that folder removes.)

    Examples:
        >>> import numpy as np, os, tempfile
        >>> from openbnns.io import load_checkpoint, save_checkpoint
        >>> path = os.path.join(tempfile.mkdtemp(), "weights.safetensors")
        >>> save_checkpoint(path, {"w": np.ones((2, 3), "f4")}, {"step": "7"})
        >>> arrays, notes = load_checkpoint(path)
        >>> arrays["w"].shape, notes["step"]
        ((2, 3), '7')
    """
    try:
        parts = _content(arrays, notes or {})
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"[save_checkpoint] arrays: cannot be stored: {shortened(error)}"
        ) from error
    try:
        _write(os.path.realpath(path), parts)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CheckpointError(f"[save_checkpoint] {path}: {reason}") from error


def _content(arrays: Mapping[str, Any], notes: Mapping[str, str]) -> list[bytes | memoryview]:
    """The file in pieces: the header, then the values where they lie."""
    header: dict[str, Any] = {}
    if notes:
        if not all(isinstance(text, str) for item in notes.items() for text in item):
            raise TypeError(f"notes: expected texts by name; got {notes!r}")
        header[_NOTES] = dict(notes)
    packed = {}
    for name, given in arrays.items():
        array = np.asarray(given, order="C")
        word = _WORDS.get(array.dtype.newbyteorder("<"))
        if array.dtype.name == "bfloat16":
            word = "BF16"
        if not isinstance(name, str) or name == _NOTES:
            raise TypeError(f"expected names that are texts, not {_NOTES}; got {name!r}")
        if word is None or array.ndim > _MOST_AXES:
            raise TypeError(f"{name!r}: expected an array of numbers; got {array.dtype}")
        packed[name] = word, array
    end = 0
    values: list[memoryview] = []
    # large elements first: all are aligned then
    for name in sorted(packed, key=lambda name: (-packed[name][1].itemsize, name)):
        word, array = packed[name]
        begin, end = end, end + array.nbytes
        header[name] = {"dtype": word, "shape": array.shape, "data_offsets": (begin, end)}
        if len(json.dumps(header[name], ensure_ascii=False)) > _MOST_ENTRY:
            raise ValueError(f"{name!r}: expected a shape that can be described")
        little = array if word == "BF16" else array.astype(_DTYPES[word], copy=False)
        values.append(little.reshape(-1).view(np.uint8).data)
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > _MOST_HEADER:
        raise ValueError(
            f"expected names, shapes and notes of at most {_MOST_HEADER} bytes; got {len(text)}"
        )
    return [len(text).to_bytes(8, "little") + text, *values]


def _write(target: str, parts: list[bytes | memoryview]) -> None:
    """Write a file beside its place and rename it."""
    folder = os.path.dirname(target)
    mode, owner = 0o666, None
    with contextlib.suppress(FileNotFoundError):
        there = os.lstat(target)
        if not stat.S_ISREG(there.st_mode):  # a folder, a device, links in a circle
            raise ValueError("expected the place of a file; got something else")
        mode, owner = stat.S_IMODE(there.st_mode), (there.st_uid, there.st_gid)
    _remove_leftovers(folder)
    beside, handle = "", -1
    try:
        while handle < 0:
            # the name first: Ctrl-C may come right behind the opening
            beside = os.path.join(folder, f".openbnns-{os.urandom(8).hex()}.tmp")
            handle = _open_locked(beside, mode)
        if owner is not None and hasattr(os, "fchown"):  # Windows has no such owners
            with contextlib.suppress(OSError):  # who may not hand it on owns the new one
                os.fchown(handle, *owner)
            os.fchmod(handle, mode)
        for part in parts:
            view = memoryview(part)
            while view:
                view = view[os.write(handle, view[:_PIECE]) :]
        os.fsync(handle)
        if fcntl is None:  # Windows renames no open file
            os.close(handle)
            handle = -1
        os.replace(beside, target)
    finally:
        if handle >= 0:
            os.close(handle)
        with contextlib.suppress(OSError):
            os.unlink(beside)
    _sync_folder(folder)


_LEFTOVER = re.compile(r"\.openbnns-[0-9a-f]{16}\.tmp")
_FLAGS = getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0)


def _open_locked(path: str, mode: int) -> int:
    """A new file that is locked as long as its writer lives, so that nobody takes it for a
    leftover. -1: somebody did before it was locked, and may remove whatever has its name now."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _FLAGS, mode)
    if fcntl is None:
        return handle
    with contextlib.suppress(OSError):  # file systems without locks: nor are leftovers removed
        fcntl.flock(handle, fcntl.LOCK_EX)
    if os.fstat(handle).st_nlink:
        return handle
    os.close(handle)
    return -1


def _remove_leftovers(folder: str) -> None:
    """Remove files of writers that were killed: those that nobody holds a lock on."""
    with contextlib.suppress(OSError):
        for name in filter(_LEFTOVER.fullmatch, os.listdir(folder)):
            path = os.path.join(folder, name)
            with contextlib.suppress(OSError):
                if fcntl is None:
                    os.unlink(path)  # fails while it is open
                    continue
                handle = os.open(path, os.O_RDWR | os.O_NONBLOCK | _FLAGS)
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.unlink(path)
                finally:
                    os.close(handle)


def _sync_folder(folder: str) -> None:
    """Bring the new name to the disk, where folders can be opened."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
