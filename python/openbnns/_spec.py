"""Shapes, element types, strides, axis and pair order: the only translator between NumPy's words
and those of the C interface.

NumPy lists axes slowest first and counts strides in bytes; the C interface lists most sizes and
all strides fastest first and counts strides in values. A sample is what lies behind axis 0, the
batch.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterable, Sequence
from math import prod
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from ._config import config
from ._errors import ArrayError, CopyWarning, DTypeError, LayerCreationError
from ._spoken import is_whole, shown, spoken

#: Anything with the buffer protocol or ``__dlpack__`` whose memory the CPU can read.
Array: TypeAlias = Any
#: ``True`` allocates the gradient, an array receives it, ``None`` or ``False`` leaves it out.
GradientTarget: TypeAlias = Any
#: What a layer takes as ``input=``.
SpecLike: TypeAlias = "int | Sequence[int] | ArraySpec | Array"
Axes: TypeAlias = "int | Literal['batch'] | Sequence[int | Literal['batch']] | None"
Pair: TypeAlias = "int | tuple[int, int]"
Padding: TypeAlias = (
    "int | tuple[int, int] | tuple[tuple[int, int], tuple[int, int]] | Literal['same', 'valid']"
)
Precision: TypeAlias = "Literal['highest', 'high', 'medium']"

PRECISIONS = ("highest", "high", "medium")  # their numbers are their places

# BNNSDataType.
DATA_TYPES = {
    "float16": 0x10010,
    "float32": 0x10020,
    "bfloat16": 0x18010,
    **{f"int{bits}": 0x20000 | bits for bits in (1, 2, 4, 8, 16, 32, 64)},
    **{f"uint{bits}": 0x40000 | bits for bits in (1, 2, 3, 4, 6, 8, 16, 32, 64)},
    **{f"indexed{bits}": 0x80000 | bits for bits in (1, 2, 4, 8)},
    "bool": 0x100008,
}
# The types that NumPy has; its own dtype.name is slow.
_DTYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(name)
    for name in (
        "float16",
        "float32",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "bool",
    )
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_UINT8, _UINT16 = _DTYPES["uint8"], _DTYPES["uint16"]

_VECTOR, _ROW_MAJOR_MATRIX, _IMAGE_CHW = 0x10000, 0x20000, 0x30000
_FIRST_MAJOR = 0x08001  # plus 0x10000 for every axis
# The words of ArraySpec(layout=…): BNNSDataLayout, and how many axes the shape has.
_LAYOUTS = {
    "column_major": (0x20001, 2),
    "OIHW": (0x40000, 4),
    "OIHrWr": (0x40001, 4),
    "IOHrWr": (0x40002, 4),
    "OIHW_Pack32": (0x40010, 4),
}
_PACK = 32  # output channels side by side in OIHW_Pack32
_PACK_ALIGNMENT = 128
MAX_RANK = 8
_WHOLE = (int, np.integer)

_PACKAGE = os.path.dirname(__file__)


def _bfloat16() -> np.dtype[Any] | None:
    """The bfloat16 of ml_dtypes, or None where it is not installed."""
    try:
        from ml_dtypes import bfloat16
    except ImportError:
        return None
    found: np.dtype[Any] = np.dtype(bfloat16)
    return found


def _type_name(dtype: Any, where: str = "ArraySpec", argument: str = "dtype") -> str:
    """Name of the C interface's data type for a NumPy dtype or anything NumPy turns into one."""
    if isinstance(dtype, str) and dtype == "bfloat16":
        return dtype  # NumPy knows the word only once ml_dtypes is imported
    try:
        known = np.dtype(dtype)
    except TypeError:
        raise DTypeError(f"[{where}] {argument}: expected a data type; got {dtype!r}") from None
    name = _NAMES.get(known)
    if name is not None:
        return name
    if known.name == "bfloat16":
        return "bfloat16"
    raise DTypeError(
        f"[{where}] {argument}: expected float16, float32, bfloat16, bool or an integer type "
        f"in the byte order of this machine; got {known.name if known.isnative else known.str}"
    )


def _packed_strides(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    strides = []
    step = itemsize
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


def expressible(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> bool:
    """True when the C interface can say these strides: whole, positive, slowest axis first."""
    faster = 1
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent == 1:
            continue
        if stride % itemsize or stride < faster:
            return False
        faster = stride
    return True


@spoken(ArrayError)
class ArraySpec:
    """Shape, element type and memory order of one sample.

    Args:
        shape: extents of one sample, slowest axis first, without the batch; at most 8 axes.
        dtype: a NumPy dtype, or ``"bfloat16"``.
        strides: steps between the elements of each axis in bytes, as in NumPy; ``None`` is packed.
        scale: integer types: value = scale·stored + offset.
        offset: see ``scale``.
        table: lookup table of 2**bits values; the stored numbers are indices into it. Needs
            ``dtype="uint8"``. The table is copied.
        bits: width below 8 of packed integers or indices; ``dtype`` says ``int8`` or ``uint8``.
            Such samples travel as flat ``uint8`` arrays of ``ceil(values·bits / 8)`` bytes, the
            first value in the low bits.
        layout: ``None`` is plain C order. ``"column_major"``: a matrix whose columns lie side by
            side. Convolution weights: ``"OIHW"``, ``"OIHrWr"``, ``"IOHrWr"`` name the order of the
            axes, outputs O and inputs I; an ``r`` says that the kernel is stored turned by 180
            degrees. ``"OIHW_Pack32"``: shape is (O, I, kH, kW), arrays are
            (ceil(O / 32), I, kH, kW, 32), aligned to 128 bytes.

    Attributes:
        shape, scale, offset, table, bits, layout: as given.
        dtype: NumPy dtype of arrays of such samples. bfloat16 is that of ml_dtypes where it is
            installed and otherwise ``uint16``.
        strides: steps in bytes, filled in.
        data_type: name of the element type in the C interface: ``"float32"``, ``"uint4"`` …

    Raises:
        DTypeError: the element type does not exist in the C interface.
        ArrayError: shape, strides, bits or table make no sense together.

    Examples:
        >>> import openbnns
        >>> spec = openbnns.ArraySpec((3, 4), "float16")
        >>> spec.strides, spec.data_type
        ((8, 2), 'float16')
        >>> openbnns.ArraySpec((6,), "uint8", bits=4).data_type
        'uint4'

    See also: ``BNNSNDArrayDescriptor``.
    """

    __slots__ = (
        "_array_dtype",
        "_array_shape",
        "_array_strides",
        "_is_packed",
        "bits",
        "data_type",
        "dtype",
        "layout",
        "offset",
        "scale",
        "shape",
        "strides",
        "table",
    )

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    strides: tuple[int, ...]
    scale: float
    offset: float
    table: npt.NDArray[Any] | None
    bits: int
    layout: str | None
    data_type: str
    # How an array of samples looks behind its batch axis. Differs from the above for values of
    # less than a byte (flat uint8), for bfloat16 (uint16, because NumPy exports no other) and for
    # OIHW_Pack32 (one axis more).
    _array_shape: tuple[int, ...]
    _array_strides: tuple[int, ...]
    _array_dtype: np.dtype[Any]
    _is_packed: bool

    def __init__(
        self,
        shape: int | Sequence[int],
        dtype: Any = "float32",
        strides: Sequence[int] | None = None,
        *,
        scale: float = 1.0,
        offset: float = 0.0,
        table: Array | None = None,
        bits: int | None = None,
        layout: str | None = None,
    ) -> None:
        extents = (shape,) if isinstance(shape, int) else tuple(shape)
        if not all(isinstance(extent, _WHOLE) and extent >= 0 for extent in extents):
            raise ArrayError(f"[ArraySpec] shape: expected whole numbers; got {shape!r}")
        if len(extents) > MAX_RANK:
            raise ArrayError(f"[ArraySpec] shape: expected at most {MAX_RANK} axes; got {shape!r}")
        extents = tuple(int(extent) for extent in extents)

        if layout is not None and _LAYOUTS.get(layout, (0, -1))[1] != len(extents):
            words = ", ".join(word for word, (_, rank) in _LAYOUTS.items() if rank == len(extents))
            raise ArrayError(
                f"[ArraySpec] layout: expected {words or None} for {len(extents)} axes; "
                f"got {layout!r}"
            )

        name = _type_name(dtype)
        if bits is not None or table is not None:
            name = _narrow_name(name, bits, table is not None)
        code = DATA_TYPES[name]
        width = code & 0x7FFF
        entries = None
        if table is not None:
            given = as_array("ArraySpec", "table", table)
            _type_name(given.dtype, argument="table")
            if given.shape != (1 << width,):
                raise ArrayError(
                    f"[ArraySpec] table: expected ({1 << width},) for {name}; got {given.shape}"
                )
            entries = np.frombuffer(given.tobytes(), given.dtype)  # nobody can change or move it

        if width < 8:
            stored = _UINT8
            array_shape: tuple[int, ...] = ((prod(extents) * width + 7) // 8,)
        else:
            stored = _UINT16 if name == "bfloat16" else _DTYPES.get(name, _UINT8)
            array_shape = extents
            if layout == "OIHW_Pack32":
                array_shape = (-(-extents[0] // _PACK), *extents[1:], _PACK)
        if prod(array_shape) * stored.itemsize > sys.maxsize:
            raise ArrayError(
                f"[ArraySpec] shape: expected a size that fits in memory; got {shape!r}"
            )
        flip = -1 if layout == "column_major" else 1  # the fastest axis is the first
        packed_strides = _packed_strides(array_shape[::flip], stored.itemsize)[::flip]
        array_strides = packed_strides
        if strides is not None:
            if width < 8 or layout == "OIHW_Pack32":
                raise ArrayError(
                    f"[ArraySpec] strides: expected None for {name if width < 8 else layout}; "
                    f"got {strides!r}"
                )
            array_strides = tuple(int(stride) for stride in strides)
            if len(array_strides) != len(extents) or not expressible(
                extents[::flip], array_strides[::flip], stored.itemsize
            ):
                raise ArrayError(
                    f"[ArraySpec] strides: expected {len(extents)} positive multiples of "
                    f"{stored.itemsize} that do not increase; got {strides!r}"
                )

        is_packed = all(
            extent == 1 or have == want
            for extent, have, want in zip(array_shape, array_strides, packed_strides, strict=True)
        )
        public = stored
        if name == "bfloat16":
            public = _bfloat16() or stored
        values = {
            "shape": extents,
            "dtype": public,
            "strides": array_strides,
            "scale": float(scale),
            "offset": float(offset),
            "table": entries,
            "bits": width,
            "data_type": name,
            "layout": layout,
            "_array_shape": array_shape,
            "_array_strides": array_strides,
            "_array_dtype": stored,
            "_is_packed": is_packed,
        }
        for field, value in values.items():
            object.__setattr__(self, field, value)

    @classmethod
    def like(cls, array: Array) -> ArraySpec:
        """The spec of an array taken as one sample, without a batch axis.

        Args:
            array: any array. Its strides are kept when the C interface can express them.

        Returns:
            The spec.

        Examples:
            >>> import numpy as np, openbnns
            >>> openbnns.ArraySpec.like(np.zeros((2, 6), "f4")[:, ::2])
            ArraySpec((2, 3), 'float32', strides=(24, 8))
        """
        found = as_array("ArraySpec", "array", array)
        return _spec_of(found, found.shape, found.strides)

    @property
    def packed(self) -> ArraySpec:
        """The same samples without gaps."""
        return self if self._is_packed else self.with_layout(self.layout)

    def with_layout(self, layout: str | None) -> ArraySpec:
        """The same values in another layout, without gaps.

        Examples:
            >>> import openbnns
            >>> openbnns.ArraySpec((2, 3), "float16").with_layout("column_major").strides
            (2, 4)
        """
        _, dtype, _, scale, offset, table, bits, _ = self.__reduce__()[1]
        return _rebuild(self.shape, dtype, None, scale, offset, table, bits, layout)

    @property
    def _layout(self) -> int:
        """BNNSDataLayout: images and matrices have layouts of their own, the rest is C order."""
        if self.layout is not None:
            return _LAYOUTS[self.layout][0]
        special = {0: _VECTOR, 1: _VECTOR, 2: _ROW_MAJOR_MATRIX, 3: _IMAGE_CHW}
        rank = len(self.shape)
        return special[rank] if rank in special else _FIRST_MAJOR + 0x10000 * rank

    @property
    def _has_strides(self) -> bool:
        """False when the C interface knows one arrangement only."""
        return self.bits >= 8 and self.layout != "OIHW_Pack32"

    @property
    def _first_is_fastest(self) -> bool:
        return self.layout == "column_major"

    def _size_index(self, axis: int) -> int:
        """Position in size[] of a NumPy axis of the sample."""
        rank = len(self.shape)
        return axis if rank > 3 else rank - 1 - axis

    def _operand(self, kinds: str | None = None, *, indexed: bool = False) -> tuple[Any, ...]:
        """What the native side keeps: see parse_operand in bindings/array.cpp.

        kinds are the letters of acceptable buffers: f float, i signed, u unsigned, b bool.
        indexed: the C interface counts indices as NumPy counts axes, so that three of them are no
        image.
        """
        itemsize = self._array_dtype.itemsize
        shape = self.shape or (1,)
        is_indexed_image = indexed and self.layout is None and len(shape) == 3
        if self._first_is_fastest or is_indexed_image or (len(shape) > 3 and self.layout is None):
            sizes = shape
        else:
            sizes = shape[::-1]
        steps: list[int] = []  # fastest first, in values; one that never moves takes no step back
        if self.shape and self._has_strides:
            flip = 1 if self._first_is_fastest else -1
            for extent, stride in zip(self.shape[::flip], self.strides[::flip], strict=True):
                steps.append(stride // itemsize if extent != 1 else steps[-1] if steps else 1)
        if kinds is None:
            kinds = self._array_dtype.kind
        return (
            self,
            _FIRST_MAJOR + 0x30000 if is_indexed_image else self._layout,
            sizes,
            tuple(steps),
            DATA_TYPES[self.data_type],
            kinds,
            itemsize,
            self._array_shape,
            self._array_strides,
            self._is_packed and not (self._first_is_fastest or self.layout == "OIHW_Pack32"),
            self._has_strides,
            self._first_is_fastest,
            self._array_dtype,
            None if self.dtype == self._array_dtype else self.dtype,
            self.table,
            0 if self.table is None else DATA_TYPES[_type_name(self.table.dtype)],
            self.scale,
            self.offset,
        )

    def _key(self) -> tuple[Any, ...]:
        table = None if self.table is None else (self.table.dtype, self.table.tobytes())
        return (
            self.shape,
            self.data_type,
            self.strides,
            self.scale,
            self.offset,
            table,
            self.layout,
        )

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"ArraySpec is frozen; cannot set {name}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"ArraySpec is frozen; cannot delete {name}")

    def __reduce__(self) -> tuple[Any, ...]:
        strides = None if self._is_packed else self.strides
        dtype = self.data_type
        if self.bits < 8 or self.table is not None:
            dtype = "int8" if self.data_type.startswith("int") else "uint8"
        bits = self.bits if self.bits < 8 or self.table is not None else None
        return _rebuild, (
            self.shape,
            dtype,
            strides,
            self.scale,
            self.offset,
            self.table,
            bits,
            self.layout,
        )

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, ArraySpec) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        text = f"ArraySpec({self.shape}, {self.data_type!r}"
        if not self._is_packed:
            text += f", strides={self.strides}"
        if self.scale != 1.0:
            text += f", scale={self.scale}"
        if self.offset != 0.0:
            text += f", offset={self.offset}"
        if self.layout is not None:
            text += f", layout={self.layout!r}"
        return text + ")"


def _rebuild(
    shape: tuple[int, ...],
    dtype: str,
    strides: tuple[int, ...] | None,
    scale: float,
    offset: float,
    table: npt.NDArray[Any] | None,
    bits: int | None,
    layout: str | None = None,
) -> ArraySpec:
    return ArraySpec(
        shape, dtype, strides, scale=scale, offset=offset, table=table, bits=bits, layout=layout
    )


def _narrow_name(name: str, bits: int | None, has_table: bool) -> str:
    """The data type for packed or indexed values: int8 + 4 bits is int4."""
    width = 8 if bits is None else bits
    if has_table:
        narrow = f"indexed{width}" if name == "uint8" else ""
    else:
        narrow = f"{name[:-1]}{width}" if name in ("int8", "uint8") else ""
    if narrow not in DATA_TYPES:
        widths = "1, 2, 4 or 8" if has_table else "1, 2, 4 or 8 (uint8: also 3 or 6)"
        raise ArrayError(
            f"[ArraySpec] bits: expected {widths} with dtype "
            f"{'uint8' if has_table else 'int8 or uint8'}; got {bits} with {name}"
        )
    return narrow


def _spec_of(
    array: npt.NDArray[Any], shape: tuple[int, ...], strides: tuple[int, ...]
) -> ArraySpec:
    name = _type_name(array.dtype)
    kept = strides if expressible(shape, strides, array.itemsize) else None
    return ArraySpec(shape, name, kept)


def spec_of(where: str, argument: str, value: SpecLike) -> ArraySpec:
    """What a layer's input= or output= says: a shape, an ArraySpec, or a batch as an example."""
    if isinstance(value, ArraySpec):
        return value
    if isinstance(value, (int, tuple, list)):
        return ArraySpec(value)
    example = as_array(where, argument, value)
    if example.ndim == 0:
        raise ArrayError(f"[{where}] {argument}: expected an example with a batch axis; got ()")
    return _spec_of(example, example.shape[1:], example.strides[1:])


def as_array(where: str, argument: str, value: Array) -> npt.NDArray[Any]:
    """A NumPy array over the memory of another array; never a copy, never a cast."""
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "__dlpack__"):
        try:
            return np.from_dlpack(value)
        except Exception as error:  # every producer refuses with an exception of its own
            raise ArrayError(
                f"[{where}] {argument}: expected an array whose memory NumPy can share; got "
                f"{type(value).__name__}: {error}"
            ) from error
    try:
        return np.asarray(memoryview(value))
    except TypeError:
        raise DTypeError(
            f"[{where}] {argument}: expected an array (buffer protocol or DLPack); got "
            f"{type(value).__name__}"
        ) from None


@spoken(DTypeError, "dtype")
def data_type_of(value: Any) -> str:
    """Name of the element type that stands for an array, a spec or a dtype in the C interface.

    Args:
        value: a dtype or anything NumPy turns into one, an array, or an ``ArraySpec``.

    Returns:
        ``"float32"``, ``"bfloat16"``, ``"uint4"`` …

    Raises:
        DTypeError: there is no such type in the C interface.

    Examples:
        >>> import numpy as np, openbnns
        >>> openbnns.dtype(np.int16), openbnns.dtype(np.zeros(3, "f4"))
        ('int16', 'float32')

    See also: ``BNNSDataType``.
    """
    if isinstance(value, ArraySpec):
        return value.data_type
    if isinstance(value, (str, type, np.dtype)):
        return _type_name(value, "dtype", "value")
    return _type_name(as_array("dtype", "value", value).dtype, "dtype", "value")


def argument_spec(where: str, argument: str, value: Array) -> ArraySpec:
    """Shape and type of an array that is an argument; the messages name it."""
    array = as_array(where, argument, value)
    return ArraySpec(array.shape, _type_name(array.dtype, where, argument))


# ---- arguments of a call: the slow way, taken when an array does not fit as it is ----


def allocate(spec: ArraySpec, batch: int) -> npt.NDArray[Any]:
    """An uninitialised array of samples with the strides of the spec; batch -1 is one sample."""
    lead = () if batch < 0 else (batch,)
    if spec.layout == "OIHW_Pack32":
        return empty(spec._array_shape, spec._array_dtype)
    if spec._is_packed and not spec._first_is_fastest:
        return np.empty(lead + spec._array_shape, spec._array_dtype)
    itemsize = spec._array_dtype.itemsize
    span = itemsize + sum(
        (extent - 1) * stride
        for extent, stride in zip(spec._array_shape, spec._array_strides, strict=True)
    )
    memory = np.empty(max(batch, 1) * span // itemsize, spec._array_dtype)
    return np.ndarray(
        lead + spec._array_shape,
        spec._array_dtype,
        memory,
        strides=((span,) if lead else ()) + spec._array_strides,
    )


@spoken()
def empty(shape: int | Sequence[int], dtype: npt.DTypeLike = np.float32) -> npt.NDArray[Any]:
    """A new array whose values begin at a multiple of 128 bytes: a cache line, on any machine.

    Arrays of any other address serve as well; some calls are a little faster with such ones.

    Args:
        shape: of the array.
        dtype: of its values.

    Returns:
        A packed array with whatever its memory held.

    Examples:
        >>> import openbnns
        >>> x = openbnns.empty((3, 5))
        >>> x.dtype.name, x.ctypes.data % 128
        ('float32', 0)
    """
    extents = (shape,) if isinstance(shape, int) else tuple(shape)
    kind = np.dtype(dtype)
    memory = np.empty(prod(extents) * kind.itemsize + _PACK_ALIGNMENT, np.uint8)
    first = -memory.__array_interface__["data"][0] % _PACK_ALIGNMENT
    return np.ndarray(extents, kind, memory, first)


def conform(
    where: str,
    name: str,
    value: Array,
    spec: ArraySpec,
    kinds: str,
    use: str,
    batch: int,
    any_strides: bool,
) -> npt.NDArray[Any]:
    """An array for the native side, which found that `value` does not fit as it is.

    use is "read", "write" or "share" (a parameter that the layer keeps reading); only what is
    read may be copied. batch is the number of samples, -1 when this argument decides it, -2 when
    it has no batch axis. any_strides says that all strides of the C interface will do.
    Raises the ArrayError that says what is wrong.
    """
    array = as_array(where, name, value)
    if array.dtype not in _NAMES and array.dtype.name == "bfloat16" and array.dtype.isnative:
        if spec.data_type != "bfloat16":
            raise DTypeError(f"[{where}] {name}: expected {spec.data_type}; got bfloat16")
        array = array.view(np.uint16)
    if (
        array.dtype.kind not in kinds
        or array.itemsize != spec._array_dtype.itemsize
        or not array.dtype.isnative
    ):
        stored = f" (packed {spec._array_dtype})" if spec.bits < 8 else ""
        got = array.dtype.name if array.dtype.isnative else array.dtype.str
        raise DTypeError(f"[{where}] {name}: expected {spec.data_type}{stored}; got {got}")

    lead = 0 if batch == -2 else 1
    if array.shape[lead:] != spec._array_shape or (
        lead and (array.ndim == 0 or (batch >= 0 and array.shape[0] != batch))
    ):
        wanted = [str(extent) for extent in spec._array_shape]
        if lead:
            wanted.insert(0, str(batch) if batch >= 0 else "N")
        comma = "," if len(wanted) == 1 else ""
        raise ArrayError(
            f"[{where}] {name}: expected ({', '.join(wanted)}{comma}); got {array.shape}"
        )
    if use == "write" and not array.flags.writeable:
        raise ArrayError(f"[{where}] {name}: expected a writable array; got a read-only one")
    if _strides_fit(array, spec, lead, any_strides):
        return array

    if use != "read":
        if any_strides and spec._has_strides:
            order = "decrease" if spec._first_is_fastest else "increase"
            wanted_text = f"aligned memory and strides that do not {order}"
        else:
            wanted_text = f"aligned memory and sample strides {spec._array_strides}"
        raise ArrayError(
            f"[{where}] {name}: expected {wanted_text}; got strides {array.strides} at address "
            f"{array.__array_interface__['data'][0]:#x}, and this argument is never copied"
        )
    if config.warn_on_copy:
        _warn(
            f"[{where}] {name}: strides {array.strides} cannot be used here, so the array of "
            f"{array.nbytes} bytes is copied; pass an example array or an ArraySpec as input=, or "
            f"switch this warning off with openbnns.config.warn_on_copy = False"
        )
    copy = allocate(spec, array.shape[0] if lead else -1)
    copy[...] = array
    return copy


def _strides_fit(array: npt.NDArray[Any], spec: ArraySpec, lead: int, any_strides: bool) -> bool:
    """The native side's own test, in its words: see fits in bindings/array.cpp."""
    if array.size == 0:
        return True
    if array.__array_interface__["data"][0] % array.itemsize:
        return False
    if lead and array.shape[0] > 1:
        step = array.strides[0]
        if step <= 0 or step * 8 % spec.bits:
            return False
    shape, strides = array.shape[lead:], array.strides[lead:]
    if any_strides and spec._has_strides:
        flip = -1 if spec._first_is_fastest else 1
        return expressible(shape[::flip], strides[::flip], array.itemsize)
    return all(
        extent == 1 or have == want
        for extent, have, want in zip(shape, strides, spec._array_strides, strict=True)
    )


def _warn(message: str) -> None:
    """Warns at the first line outside this package."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back and frame.f_code.co_filename.startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, CopyWarning, stacklevel=level)


# ---- keywords of the layers ----


def axis_flags(where: str, axes: Axes, spec: ArraySpec) -> int:
    """The bits of axis_flags for NumPy axes of the sample; the batch is the bit after the last."""
    rank = len(spec.shape)
    if axes is None:
        axes = (-1,)
    elif isinstance(axes, (int, str)):
        axes = (axes,)
    flags = 0
    for axis in axes:
        if axis == "batch":
            bit = max(rank, 1)
        elif isinstance(axis, int) and -max(rank, 1) <= axis < max(rank, 1):
            bit = spec._size_index(axis % rank) if rank else 0
        else:
            raise LayerCreationError(
                f"[{where}] axes: expected axes of the sample {spec.shape} or 'batch'; got {axis!r}"
            )
        if flags >> bit & 1:
            raise LayerCreationError(f"[{where}] axes: expected each axis once; got {axes!r}")
        flags |= 1 << bit
    if not flags:
        raise LayerCreationError(f"[{where}] axes: expected at least one axis; got {axes!r}")
    return flags


def count(where: str, argument: str, value: int | None) -> int:
    """A number of things, None being 0 (the library decides)."""
    if value is None:
        return 0
    if not is_whole(value) or value < 0:
        raise LayerCreationError(
            f"[{where}] {argument}: expected a whole number, not negative; got {shown(value)}"
        )
    return int(value)


def precision_of(where: str, value: Precision | None) -> int:
    """The number of a precision, None being -1 (the library's setting)."""
    if value is None:
        return -1
    if not isinstance(value, str) or value not in PRECISIONS:
        raise LayerCreationError(
            f"[{where}] precision: expected None or one of {', '.join(PRECISIONS)}; got {value!r}"
        )
    return PRECISIONS.index(value)


def pair(where: str, argument: str, value: Pair, least: int) -> tuple[int, int]:
    """(height, width), an int meaning both."""
    both = (value, value) if isinstance(value, _WHOLE) else value
    if _are_whole(both, least):
        return (int(both[0]), int(both[1]))
    raise LayerCreationError(
        f"[{where}] {argument}: expected an int or (height, width), each at least {least}; "
        f"got {value!r}"
    )


def _are_whole(values: Any, least: int) -> bool:
    return (
        isinstance(values, (tuple, list))
        and len(values) == 2
        and all(is_whole(value) and value >= least for value in values)
    )


def padding_of(
    where: str,
    value: Padding,
    extents: Iterable[int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    dilation: tuple[int, int],
) -> tuple[tuple[int, int], tuple[int, int]]:
    """((up, down), (left, right)) from any of the spellings; extents are (height, width)."""
    if isinstance(value, str) and value == "valid":
        return ((0, 0), (0, 0))
    if isinstance(value, str) and value == "same":
        # as many outputs as there are strides in the input; the odd one goes last
        sides = []
        for extent, k, s, d in zip(extents, kernel, stride, dilation, strict=True):
            total = max((-(-extent // s) - 1) * s + (k - 1) * d + 1 - extent, 0)
            sides.append((total // 2, total - total // 2))
        return (sides[0], sides[1])
    if isinstance(value, _WHOLE):
        value = (int(value), int(value))
    if _are_whole(value, 0):
        height, width = (int(side) for side in value)  # type: ignore[arg-type]
        return ((height, height), (width, width))
    if (
        isinstance(value, (tuple, list))
        and len(value) == 2
        and all(_are_whole(side, 0) for side in value)
    ):
        (up, down), (left, right) = value  # type: ignore[misc]
        return ((int(up), int(down)), (int(left), int(right)))
    raise LayerCreationError(
        f"[{where}] padding: expected an int, (height, width), ((up, down), (left, right)), "
        f"'same' or 'valid'; got {value!r}"
    )
