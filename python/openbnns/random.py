"""Random numbers: one generator, whose stream is the same on every machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from . import _core
from ._errors import ArrayError, LayerApplyError, LayerCreationError
from ._spec import Array, ArraySpec, as_array, count
from ._spoken import spoken

Shape: TypeAlias = "int | Sequence[int]"


@spoken(LayerApplyError)
class RandomGenerator:
    """A stream of random numbers: AES-128 in counter mode. Not for cryptography.

    The same seed gives the same numbers on every machine and for any number of threads, and the
    uniform floats are those of Apple's library. Calls may come from several threads; each takes
    its own part of the stream.

    Args:
        seed: 0 … 2**64 − 1, or None for one that differs from run to run.
        method: ``"aes_ctr"``, the only one there is.
        num_threads: limit for the fills of this generator; None is the library's setting.

    Raises:
        LayerCreationError: there is no such method, or the seed is too large.

    Examples:
        >>> import openbnns
        >>> rng = openbnns.RandomGenerator(42)
        >>> state = rng.state
        >>> a = rng.normal(0, 1, (2, 3))
        >>> rng.state = state
        >>> bool((rng.normal(0, 1, (2, 3)) == a).all())
        True

    See also: ``BNNSCreateRandomGeneratorWithSeed``.
    """

    __slots__ = ("__weakref__", "_generator")

    def __init__(
        self, seed: int | None = None, *, method: str = "aes_ctr", num_threads: int | None = None
    ) -> None:
        where = "RandomGenerator"
        if method != "aes_ctr":
            raise LayerCreationError(f"[{where}] method: expected 'aes_ctr'; got {method!r}")
        if seed is not None and (
            not isinstance(seed, (int, np.integer)) or not 0 <= int(seed) < 1 << 64
        ):
            raise LayerCreationError(
                f"[{where}] seed: expected None or a whole number from 0 to 2**64 - 1; got {seed!r}"
            )
        self._generator = _core.random_create(
            None if seed is None else int(seed), count(where, "num_threads", num_threads)
        )

    @property
    def state(self) -> bytes:
        """Where the stream stands; setting it goes back there. Equal state, equal numbers.

        See also: ``BNNSRandomGeneratorGetState``, ``BNNSRandomGeneratorSetState``.
        """
        return _core.random_get_state(self._generator)

    @state.setter
    def state(self, state: bytes) -> None:
        _core.random_set_state(self._generator, state)

    def uniform(
        self,
        low: float,
        high: float,
        shape: Shape | None = None,
        dtype: Any = "float32",
        *,
        out: Any = None,
    ) -> Any:
        """Floats spread evenly from low to high; high itself can occur, by rounding.

        Args:
            low, high: the bounds; half types: numbers they can hold.
            shape: of the result; None takes that of ``out``.
            dtype: float32, float16 or bfloat16.
            out: array to fill, or None; its own type counts then.

        Returns:
            ``out``, or a new array.

        Raises:
            ArrayError: ``out`` does not fit.
            LayerApplyError: the C call failed.

        Examples:
            >>> import openbnns
            >>> openbnns.RandomGenerator(42).uniform(0, 1, 3)
            array([0.80894095, 0.5918459 , 0.47177643], dtype=float32)

        See also: ``BNNSRandomFillUniformFloat``.
        """
        where = "RandomGenerator.uniform"
        spec = _spec(where, shape, dtype, out)
        if 0 in spec.shape:
            return _empty(spec, out)
        return _core.random_uniform(self._generator, where, spec._operand(), out, low, high)

    def normal(
        self,
        mean: float,
        std: float,
        shape: Shape | None = None,
        dtype: Any = "float32",
        *,
        out: Any = None,
    ) -> Any:
        """Normally distributed floats.

        Args:
            mean, std: of the distribution; std is at least 0.
            shape: of the result; None takes that of ``out``.
            dtype: float32, float16 or bfloat16; the half types are limited to finite numbers.
            out: array to fill, or None; its own type counts then.

        Returns:
            ``out``, or a new array.

        Raises:
            ArrayError: ``out`` does not fit.
            LayerApplyError: the C call failed.

        Examples:
            >>> import openbnns
            >>> openbnns.RandomGenerator(1).normal(0, 1, (2, 3)).shape
            (2, 3)

        See also: ``BNNSRandomFillNormalFloat``.
        """
        where = "RandomGenerator.normal"
        spec = _spec(where, shape, dtype, out)
        if 0 in spec.shape:
            return _empty(spec, out)
        return _core.random_normal(self._generator, where, spec._operand(), out, mean, std)

    def integers(
        self,
        low: int,
        high: int,
        shape: Shape | None = None,
        dtype: Any = "int32",
        *,
        out: Any = None,
    ) -> Any:
        """Whole numbers spread evenly over low … high − 1, as ``range(low, high)`` has them.

        Args:
            low, high: the bounds, limited to the type; high is not included.
            shape: of the result; None takes that of ``out``.
            dtype: an integer type of 8 to 64 bits.
            out: array to fill, or None; its own type counts then.

        Returns:
            ``out``, or a new array.

        Raises:
            ArrayError: ``out`` does not fit.
            LayerApplyError: the C call failed.

        Examples:
            >>> import openbnns
            >>> x = openbnns.RandomGenerator(1).integers(10, 20, 1000)
            >>> int(x.min()), int(x.max())
            (10, 19)

        See also: ``BNNSRandomFillUniformInt``.
        """
        where = "RandomGenerator.integers"
        spec = _spec(where, shape, dtype, out)
        if 0 in spec.shape:
            return _empty(spec, out)
        return _core.random_integers(self._generator, where, spec._operand(), out, low, high)

    def categorical(
        self,
        probabilities: Array,
        shape: Shape | None = None,
        *,
        log: bool = False,
        out: Any = None,
    ) -> Any:
        """Category numbers 0 … K−1, drawn by weight and stored as floats.

        Args:
            probabilities: float array (…, K): for each row the weights of K categories, at least
                0; they need not sum to 1.
            shape: of the result, (…, draws): but for the last axis that of ``probabilities``. A
                number is that many draws for each row; None takes the shape of ``out``.
            log: True when ``probabilities`` holds logarithms.
            out: array of the type of ``probabilities`` to fill, or None.

        Returns:
            ``out``, or a new array of the type of ``probabilities``.

        Raises:
            ArrayError: an array does not fit.
            LayerApplyError: the C call failed, for example because a row has no weight at all.

        Examples:
            >>> import numpy as np, openbnns
            >>> openbnns.RandomGenerator(1).categorical(np.array([0, 0, 1], "f4"), 4)
            array([2., 2., 2., 2.], dtype=float32)

        See also: ``BNNSRandomFillCategoricalFloat``.
        """
        where = "RandomGenerator.categorical"
        weights = ArraySpec.like(as_array(where, "probabilities", probabilities))
        if not weights.shape:
            raise ArrayError(f"[{where}] probabilities: expected at least one axis; got ()")
        if isinstance(shape, (int, np.integer)):
            shape = (*weights.shape[:-1], int(shape))
        spec = _spec(where, shape, weights.data_type, out)
        if 0 in spec.shape and spec.shape[:-1] == weights.shape[:-1]:
            return _empty(spec, out)
        return _core.random_categorical(
            self._generator, where, weights._operand(), spec._operand(), probabilities, out, log
        )


def _spec(where: str, shape: Shape | None, dtype: Any, out: Any) -> ArraySpec:
    """Of the result: out as it is, or a new array."""
    if out is None:
        if shape is None:
            raise ArrayError(f"[{where}] shape: expected a shape, or an array as out; got neither")
        return ArraySpec(shape, dtype)
    spec = ArraySpec.like(as_array(where, "out", out))
    if shape is not None:
        wanted = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
        if wanted != spec.shape:
            raise ArrayError(f"[{where}] out: expected {wanted}; got {spec.shape}")
    return spec


def _empty(spec: ArraySpec, out: Any) -> npt.NDArray[Any] | Any:
    return np.empty(spec.shape, spec.dtype) if out is None else out
