"""Multi-head attention: projections, softmax of scores, and the output projection, in one layer."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from . import _core
from ._errors import ArgumentError, ArrayError, LayerCreationError
from ._layer import Layer, accumulate_bits
from ._spec import (
    Array,
    ArraySpec,
    GradientTarget,
    argument_spec,
    as_array,
    count,
    data_type_of,
    expressible,
)
from ._spoken import shown, spoken

_WHERE = "MultiheadAttention"
#: Gradients that the native side sees with their axes swapped.
_TURNED = (
    "query_bias",
    "key_bias",
    "value_bias",
    "output_weights",
    "key_attention_bias",
    "value_attention_bias",
)


@spoken(LayerCreationError)
@dataclass(frozen=True, eq=False)
class Projection:
    """One linear projection of attention.

    Args:
        weights: query, key and value: (heads, width, inputs), a matrix per head. Output:
            (outputs, heads·width of the values).
        bias: (heads, width); output: (outputs,). None is no bias.
    """

    weights: Any
    bias: Any = None


class AttentionGradients(NamedTuple):
    """Gradients of ``MultiheadAttention``, shaped like what they are gradients of; None where one
    was left out or does not exist.

    ``query``, ``key`` and ``value`` are those of the inputs.
    """

    query: Any
    key: Any
    value: Any
    query_weights: Any
    query_bias: Any
    key_weights: Any
    key_bias: Any
    value_weights: Any
    value_bias: Any
    output_weights: Any
    output_bias: Any
    key_attention_bias: Any
    value_attention_bias: Any


class AttentionCache:
    """What ``apply`` keeps for ``apply_backward``; may be used again for the next ``apply``.

    Attributes:
        nbytes: size of its memory.
    """

    __slots__ = ("_memory",)

    _memory: npt.NDArray[np.uint64] | None

    def __init__(self) -> None:
        self._memory = None

    @property
    def nbytes(self) -> int:
        return 0 if self._memory is None else self._memory.nbytes

    def _room(self, nbytes: int) -> npt.NDArray[np.uint64]:
        if self._memory is None or self._memory.nbytes < nbytes:
            self._memory = np.empty(-(-nbytes // 8), np.uint64)
        return self._memory

    def __repr__(self) -> str:
        return f"AttentionCache({self.nbytes} bytes)"


class MultiheadAttention(Layer):
    """Attention of queries to keys and values, in several heads.

    For every head: softmax(q·kᵀ/√width + attention_bias)·v with q, k, v the projections of query,
    key and value; then the output projection of all heads side by side. The scores are computed
    in blocks and never kept, so memory grows with the lengths, not with their product.

    Args:
        query: weights (heads, width, inputs) and bias (heads, width).
        key: the same for the keys; inputs may differ.
        value: the same for the values; width and inputs may differ.
        output: weights (outputs, heads·width of the values) and bias (outputs,).
        lengths: rows of a query sample, and of a key and value sample: (targets, sources), an int
            meaning both.
        dtype: of inputs and output; None is the type of the weights. Gradients need float32.
        add_zero_attention: one more key and value, all zeros.
        key_attention_bias: (heads, width), one more key for every sample; goes with
            ``value_attention_bias``.
        value_attention_bias: (heads, width), its value.
        causal: row i of the queries sees keys 0 … i only; no mask is needed for that.
        dropout: share of the probabilities that every ``apply`` sets to 0, the others growing in
            turn; 0 is none. ``apply_backward`` then needs the cache.
        seed: of the dropout, 1 … 2**32 − 1; None differs from run to run.
        num_threads: limit for this layer; None is the library's setting.
        copy_parameters: keep copies of weights and biases. Without it the layer reads the caller's
            arrays in every call, so an update in place is seen at once.

    Raises:
        LayerCreationError: the arguments do not make a layer.
        ArrayError: a parameter does not fit.

    Examples:
        >>> import numpy as np, openbnns
        >>> one = openbnns.Projection(np.ones((1, 1, 1), "f4"))
        >>> layer = openbnns.MultiheadAttention(
        ...     one, one, one, openbnns.Projection(np.full((1, 1), 2, "f4")), lengths=(1, 2))
        >>> x = np.array([[[1], [3]]], "f4")
        >>> layer(np.zeros((1, 1, 1), "f4"), x, x)
        array([[[4.]]], dtype=float32)

    See also: ``BNNSFilterCreateLayerMultiheadAttention``, ``obn_attention_set_causal``.
    """

    __slots__ = ("_attention_biases", "_lengths", "_projections")

    _attention_biases: tuple[Any, Any]
    _lengths: tuple[int, int]
    _projections: tuple[Projection, Projection, Projection, Projection]

    def __init__(
        self,
        query: Projection,
        key: Projection,
        value: Projection,
        output: Projection,
        lengths: int | tuple[int, int],
        *,
        dtype: Any = None,
        add_zero_attention: bool = False,
        key_attention_bias: Array | None = None,
        value_attention_bias: Array | None = None,
        causal: bool = False,
        dropout: float = 0.0,
        seed: int | None = None,
        num_threads: int | None = None,
        copy_parameters: bool = False,
    ) -> None:
        targets, sources = self._lengths = _pair_of_lengths(lengths)
        self._projections = (query, key, value, output)
        self._attention_biases = (key_attention_bias, value_attention_bias)
        if not 0.0 <= dropout < 1.0:
            raise LayerCreationError(
                f"[{_WHERE}] dropout: expected a share from 0 up to 1; got {dropout!r}"
            )
        if seed is not None and not 1 <= seed < 1 << 32:
            raise LayerCreationError(f"[{_WHERE}] seed: expected 1 to 2**32 − 1; got {seed!r}")
        if (key_attention_bias is None) != (value_attention_bias is None):
            raise LayerCreationError(
                f"[{_WHERE}] key_attention_bias, value_attention_bias: expected both or neither; "
                "got only one"
            )
        first = _describe("query", query, targets, dtype)
        last, self._output_spec = _describe_output(output, targets, dtype)
        self._input_spec = first[0][0]
        turned_key = _turn("key_attention_bias", key_attention_bias)
        turned_value = _turn("value_attention_bias", value_attention_bias)
        self._filter = _core.attention_create(
            _WHERE,
            first,
            _describe("key", key, sources, dtype),
            _describe("value", value, sources, dtype),
            last,
            _turned_operand("key_attention_bias", turned_key, _widths(key)),
            _turned_operand("value_attention_bias", turned_value, _widths(value)),
            ArraySpec((sources,), "bool")._operand(),
            turned_key,
            turned_value,
            add_zero_attention,
            dropout,
            seed or 0,
            causal,
            count(_WHERE, "num_threads", num_threads),
            copy_parameters,
        )

    @classmethod
    def from_torch(
        cls, state: Mapping[str, Array], heads: int, lengths: int | tuple[int, int], **options: Any
    ) -> MultiheadAttention:
        """A layer with the parameters of a ``torch.nn.MultiheadAttention``.

        PyTorch is not needed: arrays under the names of its ``state_dict`` will do. Their memory
        is shared, so an optimizer may go on changing them.

        Args:
            state: ``in_proj_weight`` or ``q_proj_weight``, ``k_proj_weight``, ``v_proj_weight``;
                ``out_proj.weight``; and ``in_proj_bias``, ``out_proj.bias``, ``bias_k``,
                ``bias_v`` where there are any.
            heads: their number, which the arrays do not tell.
            lengths: see the class.
            options: all other arguments of the class.

        Examples:
            >>> import numpy as np, openbnns
            >>> state = {"in_proj_weight": np.ones((6, 2), "f4"),
            ...          "out_proj.weight": np.ones((2, 2), "f4")}
            >>> openbnns.MultiheadAttention.from_torch(state, heads=2, lengths=3)
            MultiheadAttention(heads=2, lengths=(3, 3))
        """
        arrays = {name: as_array(_WHERE, name, array) for name, array in state.items()}
        if "in_proj_weight" in arrays:
            parts = np.split(arrays["in_proj_weight"], 3)
        else:
            parts = [arrays[f"{letter}_proj_weight"] for letter in "qkv"]
        biases: list[Any] = [None] * 3
        if "in_proj_bias" in arrays:
            biases = [bias.reshape(heads, -1) for bias in np.split(arrays["in_proj_bias"], 3)]
        query, key, value = (
            Projection(part.reshape(heads, -1, part.shape[1]), bias)
            for part, bias in zip(parts, biases, strict=True)
        )
        if "bias_k" in arrays:
            options["key_attention_bias"] = arrays["bias_k"].reshape(heads, -1)
            options["value_attention_bias"] = arrays["bias_v"].reshape(heads, -1)
        output = Projection(arrays["out_proj.weight"], arrays.get("out_proj.bias"))
        return cls(query, key, value, output, lengths, **options)

    def to_torch(self, gradients: AttentionGradients | None = None) -> dict[str, npt.NDArray[Any]]:
        """The parameters under the names and shapes of a ``torch.nn.MultiheadAttention``.

        Args:
            gradients: a result of ``apply_backward``, to convert that instead.

        Returns:
            New arrays for the input projections, in one ``in_proj_weight`` where the inputs are as
            many as the heads' values together, and views of the others.
        """
        if gradients is None:
            projections, (key_bias, value_bias) = self._projections, self._attention_biases
        else:
            g = gradients
            projections = (
                Projection(g.query_weights, g.query_bias),
                Projection(g.key_weights, g.key_bias),
                Projection(g.value_weights, g.value_bias),
                Projection(g.output_weights, g.output_bias),
            )
            key_bias, value_bias = g.key_attention_bias, g.value_attention_bias
        *inputs, output = projections
        weights = [as_array(_WHERE, "weights", part.weights) for part in inputs]
        rows = [array.reshape(-1, array.shape[2]) for array in weights]
        if all(array.shape == (array.shape[1],) * 2 for array in rows):
            state = {"in_proj_weight": np.concatenate(rows)}
        else:
            state = {
                f"{letter}_proj_weight": array for letter, array in zip("qkv", rows, strict=True)
            }
        biases = [part.bias for part in inputs]
        if all(bias is not None for bias in biases):
            flat = [as_array(_WHERE, "bias", bias).reshape(-1) for bias in biases]
            state["in_proj_bias"] = np.concatenate(flat)
        state["out_proj.weight"] = as_array(_WHERE, "weights", output.weights)
        if output.bias is not None:
            state["out_proj.bias"] = as_array(_WHERE, "bias", output.bias)
        if key_bias is not None:
            for name, bias in (("bias_k", key_bias), ("bias_v", value_bias)):
                state[name] = as_array(_WHERE, name, bias).reshape(1, 1, -1)
        return state

    def apply(
        self,
        query: Array,
        key: Array,
        value: Array,
        *,
        key_mask: Array | None = None,
        attention_bias: Array | None = None,
        out: Any = None,
        cache: AttentionCache | bool = False,
    ) -> Any:
        """The attention of a batch.

        Args:
            query: (N, targets, inputs).
            key: (N, sources, inputs).
            value: (N, sources, inputs).
            key_mask: (N, sources) booleans; True hides a key from all queries of its sample.
            attention_bias: (targets, sources), (heads, targets, sources) or
                (N, heads, targets, sources), added to the scores; True of booleans hides.
            out: (N, targets, outputs) to write to, or None.
            cache: True, or an ``AttentionCache`` to use again, keeps what ``apply_backward`` would
                otherwise have to compute again.

        Returns:
            ``out`` or a new array; with a cache, the array and the cache. A row that sees no key
            at all is NaN.

        Raises:
            ArrayError: an array does not fit.
            LayerApplyError: the layer is closed, or the C call failed.

        See also: ``BNNSApplyMultiheadAttention``.
        """
        bias = None if attention_bias is None else _bias_pair(attention_bias)
        if cache is False:
            return _apply(self._filter, query, key, value, key_mask, bias, out, None)
        kept = _checked(AttentionCache() if cache is True else cache)
        samples = len(as_array(_WHERE, "query", query))
        memory = kept._room(_core.attention_cache_bytes(self._filter, samples))
        return _apply(self._filter, query, key, value, key_mask, bias, out, memory), kept

    __call__ = apply

    def apply_backward(
        self,
        query: Array | None,
        key: Array | None,
        value: Array | None,
        y: Array | None,
        grad_output: Array,
        *,
        key_mask: Array | None = None,
        attention_bias: Array | None = None,
        cache: AttentionCache | None = None,
        query_gradient: GradientTarget = True,
        key_gradient: GradientTarget = True,
        value_gradient: GradientTarget = True,
        query_weights_gradient: GradientTarget = True,
        query_bias_gradient: GradientTarget = True,
        key_weights_gradient: GradientTarget = True,
        key_bias_gradient: GradientTarget = True,
        value_weights_gradient: GradientTarget = True,
        value_bias_gradient: GradientTarget = True,
        output_weights_gradient: GradientTarget = True,
        output_bias_gradient: GradientTarget = True,
        key_attention_bias_gradient: GradientTarget = True,
        value_attention_bias_gradient: GradientTarget = True,
        accumulate: bool | Collection[str] = False,
    ) -> AttentionGradients:
        """The gradients of a call of ``apply``.

        Args:
            query: as in ``apply``. May be None, like key and value, when there is a cache and the
                gradient of its weights is not wanted.
            key: the same.
            value: the same.
            y: not read; None will do.
            grad_output: (N, targets, outputs), the gradient of y.
            key_mask: as in ``apply``.
            attention_bias: as in ``apply``; it has no gradient itself.
            cache: what ``apply`` gave for these inputs; without it the forward pass is repeated.
            query_gradient: True allocates, an array (N, targets, inputs) is written to, None skips.
            key_gradient, value_gradient: the same, (N, sources, inputs). One array for several
                inputs receives the sum of their gradients.
            query_weights_gradient, key_weights_gradient, value_weights_gradient,
                output_weights_gradient: those of the projections' weights, summed over the batch.
            query_bias_gradient, key_bias_gradient, value_bias_gradient, output_bias_gradient: those
                of their biases.
            key_attention_bias_gradient, value_attention_bias_gradient: those of the key and value
                that every sample has in addition.
            accumulate: True adds to the arrays given as targets instead of overwriting them; a set
                out of the fields of ``AttentionGradients`` picks some.

        Returns:
            ``AttentionGradients``.

        Raises:
            ArrayError: an array does not fit.
            LayerApplyError: the layer is closed, or the C call failed.

        Examples:
            >>> import numpy as np, openbnns
            >>> one = openbnns.Projection(np.ones((1, 1, 1), "f4"))
            >>> layer = openbnns.MultiheadAttention(
            ...     one, one, one, openbnns.Projection(np.ones((1, 1), "f4")), lengths=1)
            >>> x = np.full((1, 1, 1), 3, "f4")
            >>> layer.apply_backward(x, x, x, None, x, query_gradient=None).value_weights
            array([[[9.]]], dtype=float32)

        See also: ``BNNSApplyMultiheadAttentionBackward``.
        """
        targets: dict[str, GradientTarget] = {  # in the order of the native side
            "query": query_gradient,
            "key": key_gradient,
            "value": value_gradient,
            "query_weights": query_weights_gradient,
            "query_bias": query_bias_gradient,
            "key_weights": key_weights_gradient,
            "key_bias": key_bias_gradient,
            "value_weights": value_weights_gradient,
            "value_bias": value_bias_gradient,
            "output_weights": output_weights_gradient,
            "output_bias": output_bias_gradient,
            "key_attention_bias": key_attention_bias_gradient,
            "value_attention_bias": value_attention_bias_gradient,
        }
        bits = 0
        if accumulate is not False:
            bits = accumulate_bits(_WHERE, accumulate, targets)
        for name in _TURNED:
            if not isinstance(targets[name], bool):
                targets[name] = _turn(f"{name}_gradient", targets[name])
        bias = None if attention_bias is None else _bias_pair(attention_bias)
        memory = None if cache is None else _checked(cache)._memory
        grads = AttentionGradients(
            *_backward(
                self._filter,
                query,
                key,
                value,
                grad_output,
                key_mask,
                bias,
                memory,
                tuple(targets.values()),
                bits,
            )
        )
        turned = {name: getattr(grads, name) for name in _TURNED}
        return grads._replace(**{n: a.T for n, a in turned.items() if a is not None})

    def cache_bytes(self, batch: int) -> int:
        """Size of the cache of a call with so many samples."""
        return _core.attention_cache_bytes(self._filter, batch)

    def __repr__(self) -> str:
        heads = as_array(_WHERE, "query.weights", self._projections[0].weights).shape[0]
        return f"{_WHERE}(heads={heads}, lengths={self._lengths})"


_apply, _backward = _core.attention_apply, _core.attention_backward


def _pair_of_lengths(lengths: int | tuple[int, int]) -> tuple[int, int]:
    pair = (lengths, lengths) if isinstance(lengths, (int, np.integer)) else tuple(lengths)
    if len(pair) != 2 or not all(isinstance(n, (int, np.integer)) and n >= 1 for n in pair):
        raise LayerCreationError(
            f"[{_WHERE}] lengths: expected an int or (targets, sources), at least 1; "
            f"got {lengths!r}"
        )
    return int(pair[0]), int(pair[1])


def _turn(name: str, value: Array | None) -> Any:
    """The C interface names width before heads, and inputs before outputs."""
    if value is None:
        return None
    array = as_array(_WHERE, name, value)
    if array.ndim != 2:
        raise ArrayError(f"[{_WHERE}] {name}: expected two axes; got {array.shape}")
    return array.T


def _turned_operand(
    name: str, turned: npt.NDArray[Any] | None, shape: tuple[int, ...] = ()
) -> tuple[Any, ...]:
    """Which of the two axes is the faster one is seen in the array; None is like one of `shape`."""
    if turned is None:
        return ArraySpec(shape, layout="column_major")._operand()
    spec = argument_spec(_WHERE, name, turned)
    in_order = expressible(turned.shape[::-1], turned.strides[::-1], turned.itemsize)
    return (spec.with_layout("column_major") if in_order else spec)._operand()


def _widths(projection: Projection) -> tuple[int, int]:
    """(width, heads)"""
    heads, width, _ = as_array(_WHERE, "weights", projection.weights).shape
    return width, heads


def _describe(name: str, projection: Projection, rows: int, dtype: Any) -> tuple[Any, ...]:
    """Query, key or value for the native side: see parse_projection in bindings/attention.cpp."""
    weights = argument_spec(_WHERE, f"{name}.weights", projection.weights)
    if len(weights.shape) != 3:
        raise ArrayError(
            f"[{_WHERE}] {name}.weights: expected (heads, width, inputs); got {weights.shape}"
        )
    stored = weights.data_type if dtype is None else data_type_of(dtype)
    bias = _turn(f"{name}.bias", projection.bias)
    return (
        ArraySpec((rows, weights.shape[2]), stored)._operand(),
        weights._operand(),
        _turned_operand(f"{name}.bias", bias, _widths(projection)),
        projection.weights,
        bias,
    )


def _describe_output(
    projection: Projection, rows: int, dtype: Any
) -> tuple[tuple[Any, ...], ArraySpec]:
    """The same for the output, and the spec of the result."""
    weights = _turn("output.weights", projection.weights)
    stored = data_type_of(weights.dtype) if dtype is None else data_type_of(dtype)
    spec = ArraySpec((rows, weights.shape[1]), stored)
    bias = ArraySpec(weights.shape[1:])
    if projection.bias is not None:
        bias = argument_spec(_WHERE, "output.bias", projection.bias)
    return (
        spec._operand(),
        _turned_operand("output.weights", weights),
        bias._operand(),
        weights,
        projection.bias,
    ), spec


def _checked(cache: Any) -> AttentionCache:
    if not isinstance(cache, AttentionCache):
        raise ArgumentError(
            f"[{_WHERE}] cache: expected an AttentionCache, or what stands for one; "
            f"got {shown(cache)}"
        )
    return cache


def _bias_pair(value: Array) -> tuple[tuple[Any, ...], npt.NDArray[Any]]:
    array = as_array(_WHERE, "attention_bias", value)
    return argument_spec(_WHERE, "attention_bias", array)._operand(), array
