"""Losses: from predictions and labels to one number and the gradient that training starts with."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from . import _core
from ._config import config
from ._errors import ArrayError, DTypeError, LayerCreationError
from ._layer import InputGradients, Layer, accumulate_bits
from ._spec import (
    DATA_TYPES,
    Array,
    ArraySpec,
    GradientTarget,
    SpecLike,
    _type_name,
    _warn,
    as_array,
    count,
    pair,
    spec_of,
)
from ._spoken import number, spoken

_apply = _core.loss_apply
_backward = _core.loss_backward

LossLike: TypeAlias = "str | Loss"

_WHERE = "LossLayer"
_REDUCTIONS = {"none": 0, "sum": 1, "weighted_mean": 2, "mean": 3, "non_zero_weight_mean": 4}
_PER_SAMPLE = ("softmax_cross_entropy", "cosine_distance", "categorical_cross_entropy")
_FLOAT32 = np.dtype(np.float32)


@spoken(LayerCreationError)
@dataclass(frozen=True, eq=False)
class YoloParameters:
    """What the detection loss knows of its grid and of the weight of its parts.

    Args:
        grid: (rows, columns) of cells.
        anchors: (anchor count, 2): width and height of every anchor box, in cells.
        anchor_box_size: values of one anchor: x, y, w, h, confidence and one per class.
        rescore: the overlap with the true box is the target of the confidence, not 1.
        xy_scale, wh_scale, object_scale, no_object_scale, classification_scale: weights of place,
            size, confidence where there is an object, confidence where there is none, and class.
        object_min_iou: overlap from which an anchor is responsible for the object of its cell; the
            one with the largest overlap always is.
        no_object_max_iou: overlap up to which the others count as background; those in between
            count for nothing.
        huber_delta: error of w and h at which the parabola becomes a line.

    See also: ``BNNSLayerParametersLossYolo``.
    """

    grid: tuple[int, int]
    anchors: Array
    anchor_box_size: int
    rescore: bool = True
    xy_scale: float = 1.0
    wh_scale: float = 1.0
    object_scale: float = 1.0
    no_object_scale: float = 1.0
    classification_scale: float = 1.0
    object_min_iou: float = 0.5
    no_object_max_iou: float = 0.5
    huber_delta: float = 1.0

    def _native(self) -> tuple[Any, ...]:
        rows, columns = pair(_WHERE, "grid", self.grid, 1)
        try:
            anchors = np.ascontiguousarray(self.anchors, dtype=np.float32)
        except (TypeError, ValueError):
            anchors = np.empty(0, np.float32)
        if anchors.ndim != 2 or anchors.shape[1] != 2 or not anchors.size:
            raise LayerCreationError(
                f"[{_WHERE}] anchors: expected (count, 2): widths and heights; got {self.anchors!r}"
            )
        return (
            rows,
            columns,
            len(anchors),
            count(_WHERE, "anchor_box_size", self.anchor_box_size),
            self.rescore,
            self.xy_scale,
            self.wh_scale,
            self.object_scale,
            self.no_object_scale,
            self.classification_scale,
            self.object_min_iou,
            self.no_object_max_iou,
            self.huber_delta,
            anchors,
        )


@spoken(LayerCreationError)
class Loss:
    """A loss function with its parameters; x are inputs, l labels, w weights.

    Losses without parameters are attributes, the others are constructors; the name as a string does
    as well, except for ``yolo``.

    Attributes:
        name: the word, for example ``"huber"``.
        parameter: ``label_smoothing`` or ``delta``; 0 where there is none.

    Examples:
        >>> from openbnns import Loss
        >>> Loss.of("mse")
        Loss.mean_square_error
        >>> Loss.huber(delta=0.5)
        Loss.huber(0.5)

    See also: ``BNNSLossFunction``.
    """

    __slots__ = ("_code", "_yolo", "name", "parameter")

    name: str
    parameter: float
    _code: int
    _yolo: YoloParameters | None

    #: softmax cross entropy divided by the number of labels that are not 0.
    categorical_cross_entropy: ClassVar[Loss]
    #: 1 − Σ w·l·x of unit vectors; the gradient is that on the unit sphere.
    cosine_distance: ClassVar[Loss]
    #: w·max(0, 1 − (2l − 1)·x).
    hinge: ClassVar[Loss]
    #: −w·(l·log(x + ε) + (1 − l)·log(1 − x + ε)), ε = 1e-7: x are probabilities.
    log: ClassVar[Loss]
    #: w·|x − l|. Alias ``mae``.
    mean_absolute_error: ClassVar[Loss]
    mae: ClassVar[Loss]
    #: w·(x − l)². Alias ``mse``.
    mean_square_error: ClassVar[Loss]
    mse: ClassVar[Loss]

    def __init__(
        self, name: str, code: int, parameter: float = 0.0, yolo: YoloParameters | None = None
    ) -> None:
        values = {"name": name, "_code": code, "parameter": float(parameter), "_yolo": yolo}
        for field, value in values.items():
            object.__setattr__(self, field, value)

    @staticmethod
    def huber(delta: float = 1.0) -> Loss:
        """e = x − l: w·e²/2 up to |e| = delta, then the line w·delta·(|e| − delta/2)."""
        return Loss("huber", 4, delta)

    @staticmethod
    def sigmoid_cross_entropy(label_smoothing: float = 0.0) -> Loss:
        """w·(−l·log σ(x) − (1 − l)·log(1 − σ(x))), l smoothed towards 1/2."""
        return Loss("sigmoid_cross_entropy", 2, label_smoothing)

    @staticmethod
    def softmax_cross_entropy(label_smoothing: float = 0.0) -> Loss:
        """−Σ w·l·log softmax(x) over a sample, l smoothed towards 1/classes."""
        return Loss("softmax_cross_entropy", 1, label_smoothing)

    @staticmethod
    def yolo(parameters: YoloParameters) -> Loss:
        """The detection loss of YOLO version 2; its reduction is ``"sum"``."""
        return Loss("yolo", 5, 0.0, parameters)

    @classmethod
    def of(cls, value: LossLike, where: str = "Loss") -> Loss:
        """The loss for a name or a value.

        Raises:
            LayerCreationError: no such name.
        """
        if isinstance(value, Loss):
            return value
        found = _NAMED.get(value) if isinstance(value, str) else None
        if found is None:
            raise LayerCreationError(
                f"[{where}] loss: expected a Loss or one of {', '.join(sorted(_NAMED))}; "
                f"got {value!r}"
            )
        return found()

    @property
    def is_per_sample(self) -> bool:
        """True when a sample has one loss, False when each of its values has."""
        return self.name in _PER_SAMPLE

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"Loss is frozen; cannot set {name}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"Loss is frozen; cannot delete {name}")

    def __reduce__(self) -> tuple[Any, ...]:
        return Loss, (self.name, self._code, self.parameter, self._yolo)

    def _key(self) -> tuple[Any, ...]:
        return self._code, self.parameter, None if self._yolo is None else id(self._yolo)

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, Loss) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        if self._yolo is not None:
            return f"Loss.yolo({self._yolo!r})"
        parameter = f"({self.parameter})" if self._code in (1, 2, 4) else ""
        return f"Loss.{self.name}{parameter}"


Loss.log = Loss("log", 6)
Loss.cosine_distance = Loss("cosine_distance", 7)
Loss.hinge = Loss("hinge", 8)
Loss.mean_absolute_error = Loss.mae = Loss("mean_absolute_error", 9)
Loss.mean_square_error = Loss.mse = Loss("mean_square_error", 3)
Loss.categorical_cross_entropy = Loss("categorical_cross_entropy", 10)

_NAMED: dict[str, Callable[[], Loss]] = {
    "categorical_cross_entropy": lambda: Loss.categorical_cross_entropy,
    "cosine_distance": lambda: Loss.cosine_distance,
    "hinge": lambda: Loss.hinge,
    "huber": Loss.huber,
    "log": lambda: Loss.log,
    "mae": lambda: Loss.mean_absolute_error,
    "mean_absolute_error": lambda: Loss.mean_absolute_error,
    "mean_square_error": lambda: Loss.mean_square_error,
    "mse": lambda: Loss.mean_square_error,
    "sigmoid_cross_entropy": Loss.sigmoid_cross_entropy,
    "softmax_cross_entropy": Loss.softmax_cross_entropy,
}


class LossLayer(Layer):
    """How far predictions are from their labels, and which way they should move.

    Args:
        loss: name or ``Loss``.
        input: one sample: a shape, an ``ArraySpec``, or a batch (N, *shape) as an example. Its
            values are the classes of the losses that compare classes, whatever the shape.
        output: the same for the result; None is inferred, float32: () for one number, or for
            ``reduction="none"`` a loss per sample (softmax, categorical, cosine) or per value.
        reduction: how the losses of a batch become the result. ``"sum"`` adds them up, ``"mean"``
            divides by their number, ``"weighted_mean"`` by the sum of their weights,
            ``"non_zero_weight_mean"`` by the number of weights that are not 0; ``"none"`` keeps
            them all. Yolo wants ``"sum"``.
        num_threads: limit for this layer; None is the library's setting.

    Raises:
        LayerCreationError: the arguments do not make a layer.

    Examples:
        >>> import numpy as np, openbnns
        >>> loss = openbnns.LossLayer("softmax_cross_entropy", input=(3,))
        >>> logits = np.array([[2, 0, 0], [0, 0, 2]], "f4")
        >>> value, gradient = loss.apply(logits, np.array([0, 1]), input_gradient=True)
        >>> print(f"{value:.4f}", gradient[0].round(4))
        1.2395 [-0.1065  0.0533  0.0533]

    See also: ``BNNSFilterCreateLayerLoss``.
    """

    __slots__ = ("_loss", "_reduction")

    _loss: Loss
    _reduction: str

    def __init__(
        self,
        loss: LossLike,
        *,
        input: SpecLike,
        output: SpecLike | None = None,
        reduction: str = "mean",
        num_threads: int | None = None,
    ) -> None:
        self._loss = Loss.of(loss, _WHERE)
        self._reduction = reduction
        code = _REDUCTIONS.get(reduction) if isinstance(reduction, str) else None
        if code is None:
            raise LayerCreationError(
                f"[{_WHERE}] reduction: expected one of {', '.join(_REDUCTIONS)}; got {reduction!r}"
            )
        spec = self._input_spec = spec_of(_WHERE, "input", input)
        keeps_values = code == 0 and not self._loss.is_per_sample
        shape = spec.shape if keeps_values else ()
        self._output_spec = (
            ArraySpec(shape) if output is None else spec_of(_WHERE, "output", output)
        )
        yolo = self._loss._yolo
        self._filter = _core.loss_create(
            _WHERE,
            spec._operand(),
            self._output_spec._operand(),
            self._loss._code,
            code,
            self._loss.parameter,
            None if yolo is None else yolo._native(),
            count(_WHERE, "num_threads", num_threads),
        )

    @property
    def loss(self) -> Loss:
        """The loss function, as given at creation."""
        return self._loss

    @property
    def reduction(self) -> str:
        """How the losses are combined, as given at creation."""
        return self._reduction

    def apply(
        self,
        x: Array,
        labels: Array,
        *,
        weights: Array | float | None = None,
        input_gradient: GradientTarget = None,
        accumulate: bool | Collection[str] = False,
        out: Any = None,
    ) -> Any:
        """The loss of a batch and, if wanted, its gradient in the same pass.

        Args:
            x: (N, *input shape).
            labels: the same shape and type as x. Softmax and categorical cross entropy also take
                class numbers, (N,) of any integer type: then no rows of zeros and ones are made.
            weights: float32: a number for all, (N,) one per sample, or (N, *input shape).
            input_gradient: True allocates, an array (N, *input shape) is written to, None skips.
            accumulate: True or ``{"input"}`` adds to that array instead of overwriting it.
            out: where the loss goes, or None.

        Returns:
            The loss: ``out`` or a new array, () unless the reduction is ``"none"``. With a gradient
            a pair of both. The gradient is that of what is returned: of the mean for ``"mean"``.

        Raises:
            ArrayError: an array does not fit.
            LayerApplyError: the layer is closed, or the C call failed.

        Examples:
            >>> import numpy as np, openbnns
            >>> loss = openbnns.LossLayer("mse", input=(3,), reduction="sum")
            >>> x, labels = np.array([[1, 2, 3]], "f4"), np.zeros((1, 3), "f4")
            >>> loss.apply(x, labels, input_gradient=True)
            (array(14., dtype=float32), array([[2., 4., 6.]], dtype=float32))

        See also: ``BNNSLossFilterApplyBatch``, ``obn_loss_apply_classes``.
        """
        bits = 0
        if accumulate is not False:
            bits = accumulate_bits(_WHERE, accumulate, {"input": input_gradient})
        labels, class_type = self._labels(x, labels)
        if weights is not None:
            weights = self._weights(x, weights)
        return _apply(self._filter, x, labels, class_type, weights, out, input_gradient, bits)

    __call__ = apply

    def apply_backward(
        self,
        x: Array,
        labels: Array,
        grad_output: Array | float | None = None,
        *,
        weights: Array | float | None = None,
        input_gradient: GradientTarget = True,
        accumulate: bool | Collection[str] = False,
    ) -> InputGradients:
        """The gradient of a batch for a gradient of its loss. Needs no forward call before it.

        Args:
            x, labels, weights: as in ``apply``.
            grad_output: the gradient of the loss: a number, or an array of the loss's shape. None
                is 1.
            input_gradient: True allocates, an array (N, *input shape) is written to.
            accumulate: True or ``{"input"}`` adds to that array instead of overwriting it.

        Returns:
            ``InputGradients(input)``.

        Raises:
            ArrayError: an array does not fit.
            LayerApplyError: the layer is closed, or the C call failed.

        Examples:
            >>> import numpy as np, openbnns
            >>> loss = openbnns.LossLayer("huber", input=(2,), reduction="none")
            >>> x, labels = np.array([[0.5, -4]], "f4"), np.zeros((1, 2), "f4")
            >>> loss.apply_backward(x, labels, np.array([[1, 10]], "f4")).input
            array([[  0.5, -10. ]], dtype=float32)

        See also: ``BNNSLossFilterApplyBackwardBatch``.
        """
        bits = 0
        if accumulate is not False:
            bits = accumulate_bits(_WHERE, accumulate, {"input": input_gradient})
        labels, class_type = self._labels(x, labels)
        if weights is not None:
            weights = self._weights(x, weights)
        if grad_output is None or isinstance(grad_output, (int, float)):
            grad_output = self._gradient_of(x, 1.0 if grad_output is None else grad_output)
        return InputGradients(
            _backward(
                self._filter, x, labels, class_type, weights, grad_output, input_gradient, bits
            )
        )

    def __repr__(self) -> str:
        return (
            f"LossLayer({self._loss!r}, input={self._input_spec!r}, reduction={self._reduction!r})"
        )

    # ---- arguments ----

    def _labels(self, x: Array, labels: Array) -> tuple[Array, int]:
        """Labels for the native side and their type if they are class numbers, else 0.

        Those are counted here: the C call has a pointer to them.
        """
        if getattr(labels, "ndim", 1) != 1 or not self._input_spec.shape:
            return labels, 0
        array = as_array(_WHERE, "labels", labels)
        if array.dtype.kind not in "iu":
            return labels, 0
        samples = _samples(x)
        if array.shape != (samples,):
            raise ArrayError(
                f"[{_WHERE}] labels: expected class numbers ({samples},); got {array.shape}"
            )
        if array.dtype.itemsize > 1 and not array.dtype.isnative:
            raise DTypeError(
                f"[{_WHERE}] labels: expected the byte order of this machine; got {array.dtype.str}"
            )
        step = array.strides[0]
        if not array.flags.aligned or (samples > 1 and (step <= 0 or step % array.itemsize)):
            array = _copied("labels", array)
        return array, DATA_TYPES[_type_name(array.dtype, _WHERE, "labels")]

    def _weights(self, x: Array, weights: Array | float) -> npt.NDArray[Any]:
        """Packed float32 with one value, one per sample, or one per value.

        The shape is looked at here: the C call knows only how many there are.
        """
        if self._loss._yolo is not None:
            raise ArrayError(
                f"[{_WHERE}] weights: expected None for yolo, which has scales instead; "
                f"got {type(weights).__name__}"
            )
        if isinstance(weights, (int, float)):
            return np.full((), number(_WHERE, "weights", weights), np.float32)
        array = as_array(_WHERE, "weights", weights)
        if array.dtype != _FLOAT32:
            raise DTypeError(f"[{_WHERE}] weights: expected float32; got {array.dtype}")
        samples = _samples(x)
        if array.shape not in ((), (1,), (samples,), (samples, *self._input_spec.shape)):
            raise ArrayError(
                f"[{_WHERE}] weights: expected a number, ({samples},) or "
                f"{(samples, *self._input_spec.shape)}; got {array.shape}"
            )
        packed = array.flags.c_contiguous and array.flags.aligned
        return array if packed else _copied("weights", array)

    def _gradient_of(self, x: Array, value: float) -> npt.NDArray[Any]:
        """The same gradient for all losses."""
        spec = self._output_spec
        if spec.data_type == "bfloat16" and spec.dtype.kind == "u":
            raise ArrayError(
                f"[{_WHERE}] grad_output: expected an array for bfloat16 without ml_dtypes; "
                f"got {value!r}"
            )
        lead = (_samples(x),) if self._reduction == "none" else ()
        return np.full((*lead, *spec.shape), number(_WHERE, "grad_output", value), spec.dtype)


def _samples(x: Array) -> int:
    """Extent of the batch axis; an x without one is refused later, with its own words."""
    shape = as_array(_WHERE, "x", x).shape
    return shape[0] if shape else 0


def _copied(name: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if config.warn_on_copy:
        _warn(
            f"[{_WHERE}] {name}: strides {array.strides} cannot be used here, so the array of "
            f"{array.nbytes} bytes is copied; switch this warning off with "
            f"openbnns.config.warn_on_copy = False"
        )
    return np.array(array, order="C")
