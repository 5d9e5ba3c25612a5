"""Batch, instance, layer and group normalization."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, ClassVar, NamedTuple, TypeAlias, TypeVar, overload

import numpy.typing as npt

from . import _core
from ._activations import Activation, ActivationLike
from ._errors import ArrayError, LayerCreationError
from ._layer import Layer, accumulate_bits
from ._spec import Array, ArraySpec, GradientTarget, SpecLike, argument_spec, count, spec_of
from ._spoken import spoken

T = TypeVar("T")

_apply = _core.normalization_apply
_backward = _core.normalization_backward

NormalizationLike: TypeAlias = "str | Normalization"

# BNNSFilterType.
_TYPES = {"batch": 2, "instance": 3, "layer": 4, "group": 5}


@spoken(LayerCreationError)
class Normalization:
    """Which values of a batch share a mean and a variance.

    ``Normalization.batch``: one channel of all samples. ``Normalization.instance``: one channel of
    one sample. ``Normalization.layer(axis)``: one sample, from this axis to the last.
    ``Normalization.group(groups)``: that many groups of consecutive channels, each of one sample.
    Names do as well: ``"batch"``, ``"instance"``, ``"layer"`` (whole samples).

    Examples:
        >>> from openbnns import Normalization
        >>> Normalization.layer(-1)
        Normalization.layer(axis=-1)

    See also: ``BNNSFilterType``.
    """

    __slots__ = ("axis", "groups", "name")

    name: str
    axis: int
    groups: int

    batch: ClassVar[Normalization]
    instance: ClassVar[Normalization]

    def __init__(self, name: str, axis: int = 0, groups: int = 0) -> None:
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "axis", axis)
        object.__setattr__(self, "groups", groups)

    @staticmethod
    def layer(axis: int = 0) -> Normalization:
        """All values of a sample from ``axis`` to its last axis; negative ones from the end."""
        return Normalization("layer", axis=axis)

    @staticmethod
    def group(groups: int) -> Normalization:
        """The channels of a sample in so many groups of consecutive ones."""
        return Normalization("group", groups=groups)

    @classmethod
    def of(cls, value: NormalizationLike, where: str = "Normalization") -> Normalization:
        """The kind of normalization for a name or a value.

        Raises:
            LayerCreationError: no such name.
        """
        if isinstance(value, Normalization):
            return value
        if value in ("batch", "instance"):
            found: Normalization = getattr(cls, value)
            return found
        if value == "layer":
            return cls.layer()
        raise LayerCreationError(
            f"[{where}] normalization: expected one of batch, instance, layer, "
            f"Normalization.layer(axis), Normalization.group(groups); got {value!r}"
        )

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"Normalization is frozen; cannot set {name}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"Normalization is frozen; cannot delete {name}")

    def _key(self) -> tuple[str, int, int]:
        return self.name, self.axis, self.groups

    def __reduce__(self) -> tuple[Any, ...]:
        return Normalization, self._key()

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, Normalization) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        if self.name == "layer":
            return f"Normalization.layer(axis={self.axis})"
        if self.name == "group":
            return f"Normalization.group(groups={self.groups})"
        return f"Normalization.{self.name}"


Normalization.batch = Normalization("batch")
Normalization.instance = Normalization("instance")


class NormalizationGradients(NamedTuple):
    """Gradients of a normalization; None where one was left out or does not exist."""

    input: Any
    beta: Any
    gamma: Any


class NormalizationLayer(Layer):
    """y = activation(gamma·(x − mean) / sqrt(variance + epsilon) + beta).

    Mean and variance (divided by the number of values) are those of groups of values, see
    ``Normalization``. A training call keeps what the gradients need inside the layer, so it may
    work in place unless it borrows; a layer serves one training or backward call at a time.

    Args:
        normalization: name or ``Normalization``.
        input: one sample (C, H, W) or (C,): a shape, an ``ArraySpec``, or a batch as an example.
            Rows of features go as (1, rows, features).
        output: the same for the output; None is the shape and type of the input, packed.
        beta: what is added, (C,); layer normalization: of the shape of a sample or of its
            normalized part, ``shape[axis:]``. None is 0.
        gamma: the factor, likewise. None is 1.
        moving_mean: batch and instance: the running mean, (C,) float32. Training calls update it
            in place, others use it; None leaves it out.
        moving_variance: the same for the variance, of which N / (N − 1) times is kept.
        momentum: moving = momentum·moving + (1 − momentum)·current, from 0 to 1.
        epsilon: added to the variance, at least 0.
        activation: applied last; name or ``Activation`` of single values.
        num_threads: limit for this layer; None is the library's setting.
        copy_parameters: keep copies of beta and gamma. Without it the layer reads the caller's
            arrays in every call, so an update in place is seen at once.
        borrow_input: a training call holds on to x instead of copying it, which saves the memory
            and the time of the copy. Results are the same as long as nobody changes x until
            ``apply_backward`` has been called; the output and the gradients have to lie elsewhere.
            Float32 samples without gaps are borrowed, others copied as ever.

    Raises:
        LayerCreationError: the arguments do not make a layer.
        ArrayError: a parameter does not fit.

    Examples:
        >>> import numpy as np, openbnns
        >>> layer = openbnns.NormalizationLayer("batch", input=(2,), epsilon=0)
        >>> layer(np.array([[1, 2], [3, 6]], "f4"), training=True)
        array([[-1., -1.],
               [ 1.,  1.]], dtype=float32)

    See also: ``BNNSFilterCreateLayerNormalization``, ``obn_filter_set_borrow_input``.
    """

    __slots__ = ("_normalization",)

    _normalization: Normalization

    def __init__(
        self,
        normalization: NormalizationLike,
        *,
        input: SpecLike,
        output: SpecLike | None = None,
        beta: Array | None = None,
        gamma: Array | None = None,
        moving_mean: Array | None = None,
        moving_variance: Array | None = None,
        momentum: float = 0.0,
        epsilon: float = 1e-5,
        activation: ActivationLike = "identity",
        num_threads: int | None = None,
        copy_parameters: bool = False,
        borrow_input: bool = False,
    ) -> None:
        where = "NormalizationLayer"
        self._normalization = Normalization.of(normalization, where)
        spec = self._input_spec = spec_of(where, "input", input)
        self._output_spec = spec.packed if output is None else spec_of(where, "output", output)
        self._filter = _core.normalization_create(
            where,
            spec._operand(),
            self._output_spec._operand(),
            describe(
                where,
                self._normalization,
                spec,
                beta,
                gamma,
                moving_mean,
                moving_variance,
                momentum,
                epsilon,
                activation,
            ),
            count(where, "num_threads", num_threads),
            copy_parameters,
            borrow_input,
        )

    @property
    def normalization(self) -> Normalization:
        """The kind of normalization, as given at creation."""
        return self._normalization

    @overload
    def apply(self, x: Array, *, training: bool, out: None = None) -> npt.NDArray[Any]: ...
    @overload
    def apply(self, x: Array, *, training: bool, out: T) -> T: ...
    def apply(self, x: Array, *, training: bool, out: Any = None) -> Any:
        """The normalization of a batch.

        Args:
            x: (N, *input shape).
            training: True uses the statistics of x, updates the running ones and keeps what
                ``apply_backward`` needs. False uses the running statistics where there are any,
                and keeps nothing.
            out: (N, *output shape) to write to, or None. It may be x itself when the types agree,
                unless a training call borrows x.

        Returns:
            ``out`` or a new array.

        Raises:
            ArrayError: an array does not fit.
            LayerApplyError: the layer is closed or busy, or the C call failed.

        Examples:
            >>> import numpy as np, openbnns
            >>> mean, variance = np.zeros(1, "f4"), np.ones(1, "f4")
            >>> layer = openbnns.NormalizationLayer("batch", input=(1,), epsilon=0,
            ...     moving_mean=mean, moving_variance=variance)
            >>> layer.apply(np.array([[1], [3]], "f4"), training=True).tolist()
            [[-1.0], [1.0]]
            >>> mean.tolist(), variance.tolist()
            ([2.0], [2.0])

        See also: ``BNNSNormalizationFilterApplyBatch``.
        """
        return _apply(self._filter, x, out, training)

    __call__ = apply

    def apply_backward(
        self,
        x: Array | None,
        y: Array | None,
        grad_output: Array,
        *,
        input_gradient: GradientTarget = True,
        beta_gradient: GradientTarget = True,
        gamma_gradient: GradientTarget = True,
        accumulate: bool | Collection[str] = False,
    ) -> NormalizationGradients:
        """The gradients of the last training call.

        Args:
            x: not looked at, since the layer keeps or borrows what it needs; here for uniformity.
            y: (N, *output shape) of the forward call; None unless there is an activation.
            grad_output: (N, *output shape), the gradient of y, N being that of the training call.
            input_gradient: True allocates, an array (N, *input shape) is written to, None skips.
                It may be ``grad_output`` itself when the types agree.
            beta_gradient: the same for beta, summed over the batch; an array is written to even
                without a beta.
            gamma_gradient: the same for gamma.
            accumulate: True adds to the arrays given as targets instead of overwriting them; a set
                out of ``"input"``, ``"beta"``, ``"gamma"`` picks some.

        Returns:
            ``NormalizationGradients(input, beta, gamma)``.

        Raises:
            ArrayError: an array does not fit.
            LayerApplyError: the layer is closed or busy, there was no training call, or the C
                call failed.

        Examples:
            >>> import numpy as np, openbnns
            >>> layer = openbnns.NormalizationLayer(
            ...     "batch", input=(2,), beta=np.zeros(2, "f4"), gamma=np.ones(2, "f4"))
            >>> y = layer(np.array([[1, 2], [3, 4]], "f4"), training=True)
            >>> grads = layer.apply_backward(None, None, np.array([[1, 0], [0, 2]], "f4"))
            >>> grads.beta, grads.gamma.round(2)
            (array([1., 2.], dtype=float32), array([-1.,  2.], dtype=float32))

        See also: ``BNNSNormalizationFilterApplyBackwardBatch``.
        """
        bits = 0
        if accumulate is not False:
            targets = {"input": input_gradient, "beta": beta_gradient, "gamma": gamma_gradient}
            bits = accumulate_bits("NormalizationLayer", accumulate, targets)
        return NormalizationGradients(
            *_backward(
                self._filter, y, grad_output, input_gradient, beta_gradient, gamma_gradient, bits
            )
        )

    def kept_bytes(self, batch: int) -> int:
        """Bytes that a training call with a batch of this size keeps for its gradients.

        The memory belongs to the layer; the next training call uses it again.

        Args:
            batch: number of samples.

        Raises:
            LayerApplyError: the layer is closed, or no machine has so much memory.

        See also: ``obn_filter_kept_bytes``.
        """
        return _core.normalization_kept_bytes(self._filter, batch)

    def __repr__(self) -> str:
        return f"NormalizationLayer({self._normalization!r}, input={self._input_spec!r})"


def describe(
    where: str,
    normalization: Normalization,
    spec: ArraySpec,
    beta: Array | None,
    gamma: Array | None,
    moving_mean: Array | None,
    moving_variance: Array | None,
    momentum: float,
    epsilon: float,
    activation: ActivationLike,
) -> tuple[Any, ...]:
    """A normalization of samples like ``spec`` for the native side: see parse_normalization in
    bindings/normalization.cpp. Fused layers use it too."""
    rank = len(spec.shape)
    if rank not in (1, 3):
        raise LayerCreationError(
            f"[{where}] input: expected samples (channels, height, width) or (channels,); "
            f"got {spec.shape}"
        )
    axis = 0
    if normalization.name == "layer":
        axis = normalization.axis
        if not isinstance(axis, int) or not -rank <= axis < rank:
            raise LayerCreationError(
                f"[{where}] normalization: expected an axis of the sample {spec.shape}; "
                f"got {axis!r}"
            )
        axis %= rank
    groups = count(where, "normalization", normalization.groups)
    if normalization.name == "group" and groups < 1:
        raise LayerCreationError(f"[{where}] normalization: expected at least 1 group; got 0")
    if normalization.name in ("layer", "group"):
        for argument, value in (("moving_mean", moving_mean), ("moving_variance", moving_variance)):
            if value is not None:
                raise LayerCreationError(
                    f"[{where}] {argument}: expected None for {normalization.name} normalization, "
                    f"which has no running statistics; got an array"
                )
    shapes = [spec.shape[:1]]
    if normalization.name == "layer":
        shapes = [spec.shape[axis:], spec.shape]
    return (
        _TYPES[normalization.name],
        groups,
        axis,
        momentum,
        epsilon,
        Activation.of(activation, where)._native(where, spec.shape),
        _parameter_spec(where, "beta", beta, shapes, spec)._operand(),
        _parameter_spec(where, "gamma", gamma, shapes, spec)._operand(),
        ArraySpec(spec.shape[:1])._operand(),
        beta,
        gamma,
        moving_mean,
        moving_variance,
    )


def _parameter_spec(
    where: str, argument: str, value: Array | None, shapes: list[tuple[int, ...]], spec: ArraySpec
) -> ArraySpec:
    """The spec of beta or gamma and of its gradient, which exists without the parameter too."""
    if value is None:
        return ArraySpec(shapes[0], spec.data_type)
    found = argument_spec(where, argument, value)
    if found.shape not in shapes:
        wanted = " or ".join(str(shape) for shape in dict.fromkeys(shapes))
        raise ArrayError(f"[{where}] {argument}: expected {wanted}; got {found.shape}")
    return found
