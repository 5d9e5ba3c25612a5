"""Fully connected layers, with dense weights or weights packed sparse."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from . import _core
from ._activations import Activation, ActivationLike
from ._errors import ArrayError, LayerCreationError
from ._spec import (
    DATA_TYPES,
    MAX_RANK,
    Array,
    ArraySpec,
    Precision,
    SpecLike,
    as_array,
    count,
    data_type_of,
    empty,
    expressible,
    precision_of,
    spec_of,
)
from ._spoken import spoken
from .convolution import ConvolutionLayer, bias_spec, output_type

_SPARSE_LAYOUT = 0x21001  # BNNSDataLayoutFullyConnectedSparse
_WHERE = "FullyConnectedLayer"


@spoken(LayerCreationError)
class SparseWeights:
    """Weights of a fully connected layer in the library's own sparse form, never changed again.

    Made by ``FullyConnectedLayer.sparsify``; one of them may serve several layers.

    Attributes:
        shape: (outputs, inputs) of the matrix.
        data_type: element type of its values.
        nonzeros: how many values were given.
        nbytes: size of the packed form.
    """

    __slots__ = ("_packed", "data_type", "nonzeros", "shape")

    shape: tuple[int, int]
    data_type: str
    nonzeros: int
    _packed: npt.NDArray[np.uint8]

    def __init__(
        self, shape: tuple[int, int], data_type: str, nonzeros: int, packed: npt.NDArray[np.uint8]
    ) -> None:
        self.shape = shape
        self.data_type = data_type
        self.nonzeros = nonzeros
        self._packed = packed

    @property
    def nbytes(self) -> int:
        return self._packed.nbytes

    def _operand(self) -> tuple[Any, ...]:
        """The packed bytes, described as what they stand for; the last stride says how many."""
        operand = list(ArraySpec(self._packed.shape, "uint8")._operand())
        steps = (0,) * (MAX_RANK - 1) + (self.nbytes,)
        operand[1:5] = _SPARSE_LAYOUT, self.shape[::-1], steps, DATA_TYPES[self.data_type]
        operand[10] = False  # no strides
        return tuple(operand)

    def __repr__(self) -> str:
        return f"SparseWeights({self.shape}, {self.data_type!r}, nonzeros={self.nonzeros})"


class FullyConnectedLayer(ConvolutionLayer):
    """Every output sees every input: y = activation(weights @ x + bias).

    Args:
        weights: (outputs, inputs), rows or columns side by side in memory; or sparse:
            ``SparseWeights``, or a SciPy sparse matrix or array.
        input: one sample (inputs,): a shape, an ``ArraySpec``, or a batch (N, inputs) as an
            example; None is the type of the weights.
        output: the same for the output; None is the type of the input, float32 for integers.
        bias: (outputs,), or None.
        activation: applied last; name or ``Activation``. Softmax runs over a whole sample.
        weights_spec: what the weights are when their array does not say it: ``scale`` or ``table``.
        precision: what matrix products of this layer may lose to be faster, as in
            ``openbnns.set_matmul_precision``; None follows that setting.
        num_threads: limit for this layer; None is the library's setting.
        copy_parameters: keep copies of weights and bias. Without it the layer reads the caller's
            arrays in every call, so an update in place is seen at once.

    Calls are those of ``ConvolutionLayer``: ``apply(x)`` takes (N, inputs) and gives
    (N, outputs), ``apply_backward`` gives ``WeightGradients``. Sparse weights have no gradient.

    Raises:
        LayerCreationError: the arguments do not make a layer.
        ArrayError: weights or bias do not fit.

    Examples:
        >>> import numpy as np, openbnns
        >>> weights = np.array([[1, 2, 3], [4, 5, 6]], "f4")
        >>> layer = openbnns.FullyConnectedLayer(weights, bias=np.array([0.5, -1], "f4"))
        >>> layer(np.array([[1, 1, 1], [1, 0, -1]], "f4"))
        array([[ 6.5, 14. ],
               [-1.5, -3. ]], dtype=float32)
        >>> grads = layer.apply_backward(np.ones((1, 3), "f4"), None, np.ones((1, 2), "f4"))
        >>> grads.input
        array([[5., 7., 9.]], dtype=float32)

    See also: ``BNNSFilterCreateLayerFullyConnected``.
    """

    __slots__ = ()

    def __init__(
        self,
        weights: Array | SparseWeights,
        *,
        input: SpecLike | None = None,
        output: SpecLike | None = None,
        bias: Array | None = None,
        activation: ActivationLike = "identity",
        weights_spec: ArraySpec | None = None,
        precision: Precision | None = None,
        num_threads: int | None = None,
        copy_parameters: bool = False,
    ) -> None:
        where = type(self).__name__
        if _is_scipy_sparse(weights):
            weights = self.sparsify(weights)
        self._weights, self._bias = weights, bias
        self._input_spec = input_spec(where, input, weights, weights_spec)
        description, self._output_spec = describe(
            where,
            self._input_spec,
            None if output is None else spec_of(where, "output", output),
            weights,
            bias,
            activation,
            weights_spec,
        )
        self._filter = _core.fully_connected_create(
            where,
            description,
            precision_of(where, precision),
            count(where, "num_threads", num_threads),
            copy_parameters,
        )

    @staticmethod
    def sparsify(
        values: Array,
        *,
        coo: Any = None,
        csr: tuple[Array, Array] | None = None,
        dense_shape: tuple[int, int] | None = None,
        sparsity: tuple[int, int] | None = None,
    ) -> SparseWeights:
        """A sparse matrix in the library's own form, for ``FullyConnectedLayer``.

        Args:
            values: the nonzero values; or a SciPy sparse matrix or array, and nothing else.
            coo: (rows, columns), where each value belongs, as two arrays of integers; or both in
                one array (nonzeros, 2). Any order; values with the same place are added.
            csr: (columns, row_starts): the column of each value, row after row, and where each row
                starts, one entry more than there are rows.
            dense_shape: (outputs, inputs) of the matrix.
            sparsity: (numerator, denominator) of the share of zeros, a hint.

        Returns:
            The packed weights.

        Raises:
            ArrayError: the arrays do not make a matrix.

        Examples:
            >>> import numpy as np, openbnns
            >>> sparse = openbnns.FullyConnectedLayer.sparsify(
            ...     np.array([2, 7], "f4"), coo=([0, 1], [2, 0]), dense_shape=(2, 3))
            >>> openbnns.FullyConnectedLayer(sparse)(np.array([[1, 1, 10]], "f4"))
            array([[20.,  7.]], dtype=float32)

        See also: ``BNNSNDArrayFullyConnectedSparsifySparseCOO``,
        ``BNNSNDArrayFullyConnectedSparsifySparseCSR``.
        """
        where = f"{_WHERE}.sparsify"
        if _is_scipy_sparse(values):
            if coo is not None or csr is not None or dense_shape is not None:
                raise ArrayError(
                    f"[{where}] values: expected an array beside coo, csr or dense_shape; got "
                    f"{type(values).__name__}"
                )
            matrix = values.tocsr()
            values, csr, dense_shape = matrix.data, (matrix.indices, matrix.indptr), matrix.shape
        if (coo is None) == (csr is None):
            raise ArrayError(f"[{where}] coo, csr: expected one of them; got {_which(coo)}")
        rows, columns = _dense_shape(where, dense_shape)
        given = np.ascontiguousarray(as_array(where, "values", values)).reshape(-1)
        data_type = data_type_of(given.dtype)
        if data_type == "bfloat16":
            given = given.view(np.uint16)
        starts = None
        if csr is not None:
            indices = _whole(where, "csr", csr[0])
            starts = _whole(where, "csr", csr[1])
            if starts.size != rows + 1:
                raise ArrayError(
                    f"[{where}] csr: expected {rows + 1} row starts for {rows} rows; "
                    f"got {starts.size}"
                )
        else:
            indices = _interleaved(where, coo)
        if indices.size != given.size * (2 if starts is None else 1):
            raise ArrayError(
                f"[{where}] {'coo' if starts is None else 'csr'}: expected a place for each of "
                f"{given.size} values; got {indices.size // (2 if starts is None else 1)}"
            )
        nonzeros = given.size
        if nonzeros == 0:  # the C interface knows no empty list: one zero stands for it
            given, indices, starts = np.zeros(1, given.dtype), np.zeros(2, np.uint64), None
        numerator, denominator = (0, 0) if sparsity is None else sparsity
        packed = _core.fully_connected_sparsify(
            where,
            rows,
            columns,
            given,
            DATA_TYPES[data_type],
            indices,
            starts,
            numerator,
            denominator,
        )
        memory = empty(len(packed), np.uint8)
        memory[...] = np.frombuffer(packed, np.uint8)
        memory.flags.writeable = False
        return SparseWeights((rows, columns), data_type, nonzeros, memory)


def input_spec(
    where: str,
    value: SpecLike | None,
    weights: Array | SparseWeights,
    weights_spec: ArraySpec | None = None,
) -> ArraySpec:
    """One sample as ``input=`` says it; None: as long as the rows of the weights, of their type."""
    if value is None:
        held = _held(where, weights, weights_spec)
        indexed = isinstance(held, ArraySpec) and held.table is not None
        return ArraySpec(held.shape[1:], "float32" if indexed else held.data_type)
    spec = spec_of(where, "input", value)
    if len(spec.shape) != 1:
        raise LayerCreationError(f"[{where}] input: expected samples (inputs,); got {spec.shape}")
    return spec


def describe(
    where: str,
    spec: ArraySpec,
    output: ArraySpec | None,
    weights: Array | SparseWeights,
    bias: Array | None,
    activation: ActivationLike,
    weights_spec: ArraySpec | None = None,
) -> tuple[tuple[Any, ...], ArraySpec]:
    """A fully connected layer on samples like ``spec`` for the native side, see
    parse_fully_connected in bindings/fully_connected.cpp, and the spec of its output. Fused layers
    use it too."""
    held = _held(where, weights, weights_spec)
    outputs = held.shape[0]
    if output is None:
        output = ArraySpec((outputs,), output_type(spec))
    description = (
        spec._operand(),
        output._operand(),
        held._operand(),
        bias_spec(where, bias, outputs, output)._operand(),
        weights._packed if isinstance(weights, SparseWeights) else weights,
        bias,
        Activation.of(activation, where)._native(where, output.shape),
        not isinstance(weights, SparseWeights),
    )
    return description, output


def _held(
    where: str, weights: Array | SparseWeights, weights_spec: ArraySpec | None
) -> SparseWeights | ArraySpec:
    """What the weights are: sparse ones know it themselves."""
    if isinstance(weights, SparseWeights):
        return weights
    return _weights_spec(where, weights, weights_spec)


def _is_scipy_sparse(value: object) -> bool:
    """SciPy is not imported: what can turn itself into compressed rows is a sparse matrix."""
    return hasattr(value, "tocsr") and hasattr(value, "shape")


def _which(coo: object) -> str:
    return "none" if coo is None else "both"


def _weights_spec(where: str, weights: Array, given: ArraySpec | None) -> ArraySpec:
    """A matrix (outputs, inputs); which of its axes is the faster one is seen in the array."""
    array = as_array(where, "weights", weights)
    spec = ArraySpec(array.shape, data_type_of(array.dtype)) if given is None else given
    if len(spec.shape) != 2:
        raise LayerCreationError(
            f"[{where}] weights: expected two axes, (outputs, inputs); got {spec.shape}"
        )
    if spec.layout is not None or array.ndim != 2:
        return spec
    rows_are_runs = expressible(array.shape, array.strides, array.itemsize)
    if rows_are_runs or not expressible(array.shape[::-1], array.strides[::-1], array.itemsize):
        return spec
    return spec.with_layout("column_major")


def _dense_shape(where: str, shape: Any) -> tuple[int, int]:
    if (
        not isinstance(shape, (tuple, list))
        or len(shape) != 2
        or not all(isinstance(extent, (int, np.integer)) and extent > 0 for extent in shape)
    ):
        raise ArrayError(f"[{where}] dense_shape: expected (outputs, inputs); got {shape!r}")
    return int(shape[0]), int(shape[1])


def _whole(where: str, argument: str, values: Any) -> npt.NDArray[np.uint64]:
    """Places in a matrix as 64-bit numbers."""
    array = np.asarray(values).reshape(-1)
    if array.size and (array.dtype.kind not in "iu" or array.min() < 0):
        raise ArrayError(
            f"[{where}] {argument}: expected whole numbers, none negative; got {values!r}"
        )
    return np.ascontiguousarray(array, np.uint64)


def _interleaved(where: str, coo: Any) -> npt.NDArray[np.uint64]:
    """Column and row of each value in turn, as the C interface has them."""
    if isinstance(coo, (tuple, list)) and len(coo) == 2:
        rows, columns = (_whole(where, "coo", places) for places in coo)
    else:
        pairs = np.asarray(coo)
        if pairs.ndim != 2 or pairs.shape[1] != 2:
            raise ArrayError(
                f"[{where}] coo: expected (rows, columns) or an array (nonzeros, 2); got "
                f"{pairs.shape}"
            )
        rows, columns = (_whole(where, "coo", pairs[:, k]) for k in range(2))
    if rows.size != columns.size:
        raise ArrayError(
            f"[{where}] coo: expected as many columns as rows; got {rows.size} and {columns.size}"
        )
    return np.stack([columns, rows], axis=-1).reshape(-1)
