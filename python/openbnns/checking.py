"""``check_gradients``: is a backward pass the derivative of its forward pass?"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ._errors import ArgumentError, ArrayError, LayerApplyError
from ._layer import Layer
from ._spoken import number, shown, whole
from .blocks import (
    Activate,
    Attention,
    Block,
    Branch,
    Convolution,
    Dense,
    Normalize,
    Pool,
    Position,
    Rows,
)
from .network import Network
from .normalization import Normalization
from .training import array_of

__all__ = ["GradientReport", "check_all", "check_gradients"]

_IMAGES = (4, 3, 9, 8)
_ROWS = (6, 8)
_SEQUENCES = (3, 5, 8)


def check_all() -> dict[str, GradientReport]:
    """``check_gradients`` of every kind of block, with the kernels of this machine, by a name."""
    targets: dict[str, tuple[tuple[int, ...], list[Block]]] = {
        "dense": (_ROWS, [Dense(5, "tanh")]),
        "dense, batch norm": (_ROWS, [Dense(5, "sigmoid", normalization="batch")]),
        "convolution": (_IMAGES, [Convolution(4, 3, padding=1, activation="tanh")]),
        "convolution, stride 2": (_IMAGES, [Convolution(4, 3, stride=2)]),
        "convolution, 1 x 1": (_IMAGES, [Convolution(4, 1)]),
        "convolution, one channel a group": (_IMAGES, [Convolution(3, 3, groups=3)]),
        "convolution, batch norm": (
            _IMAGES,
            [Convolution(4, 3, normalization="batch", activation="sigmoid")],
        ),
        "max pooling": (_IMAGES, [Pool("max", 2)]),
        "average pooling": (_IMAGES, [Pool("average", 3, 2, 1)]),
        "L2 pooling": (_IMAGES, [Pool("l2_norm", 2)]),
        "batch norm": (_IMAGES, [Normalize("batch")]),
        "instance norm": (_IMAGES, [Normalize("instance")]),
        "layer norm": (_ROWS, [Normalize("layer")]),
        "group norm": (_IMAGES, [Normalize(Normalization.group(3))]),
        "attention": (_SEQUENCES, [Attention(2)]),
        "attention, causal": (_SEQUENCES, [Attention(4, causal=True)]),
        "positions": (_SEQUENCES, [Position()]),
        "rows": (_SEQUENCES, [Rows(Normalize("layer"), Dense(4, "gelu"))]),
        "branches, added": (_ROWS, [Branch([Dense(8, "tanh")], [])]),
        "branches, side by side": (_ROWS, [Branch([Dense(3)], [], join="concatenate")]),
    }
    for word in ("relu", "gelu", "silu", "softmax", "tanh"):
        targets[word] = (_ROWS, [Activate(word)])
    random = np.random.default_rng(0)
    return {
        name: check_gradients(
            Network(blocks, loss="mse"), random.normal(size=shape).astype(np.float32)
        )
        for name, (shape, blocks) in targets.items()
    }


@dataclass(frozen=True)
class GradientReport:
    """What ``check_gradients`` found; ``print(report)`` is a table of the worst entries.

    Attributes:
        rows: (array, index, by backward, by differences, error), the worst of each array first.
        checked, skipped: numbers of entries; at skipped ones backward is off, but so far apart
            are the slopes to both sides: there is a kink.
        tolerance: the largest error allowed, relative to the largest gradient of the array, or to a
            hundredth of the largest of all.
    """

    rows: tuple[tuple[str, tuple[int, ...], float, float, float], ...]
    checked: int
    skipped: int
    tolerance: float

    @property
    def ok(self) -> bool:
        """True when no entry is off, and more were checked than skipped."""
        return self.checked > self.skipped and all(row[4] <= self.tolerance for row in self.rows)

    def __str__(self) -> str:
        lines = [f"{'array':24} {'index':16} {'backward':>12} {'differences':>12} {'error':>9}"]
        for name, index, ours, expected, error in self.rows:
            mark = "" if error <= self.tolerance else "  wrong"
            place = str(index).replace(" ", "")
            lines.append(f"{name:24} {place:16} {ours:12.5g} {expected:12.5g} {error:9.1e}{mark}")
        lines.append(
            f"{self.checked} entries checked, {self.skipped} at kinks skipped, "
            f"tolerance {self.tolerance:g}: {'good' if self.ok else 'WRONG'}"
        )
        return "\n".join(lines)


def check_gradients(
    target: Any,
    x: Any,
    *,
    parameters: Mapping[str, npt.NDArray[Any]] | None = None,
    entries: int = 20,
    worst: int = 3,
    step: float = 1e-2,
    tolerance: float = 1e-2,
    seed: int = 0,
) -> GradientReport:
    """Compare a backward pass with central differences of its own forward pass.

    The result is weighted with random numbers and added up in float64; then single entries of the
    input and of every parameter are moved a little to both sides.

    Frozen parameters of a network are checked too, and dropout of ``Attention`` is set aside
    meanwhile; afterwards everything is as before.

    Args:
        target: a ``Network``, a block, or a layer with ``apply`` and ``apply_backward``.
        x: a batch; float32. Put back as it was.
        parameters: of a layer: the arrays it reads, by the names of their gradients. Networks and
            blocks know their own.
        entries: how many of each array, drawn at random.
        worst: how many of each array the report shows.
        step: how far to each side, and an eighth of it where that is too far; float32 has no use
            for much smaller ones.
        tolerance: largest error allowed, see ``GradientReport``.
        seed: of the random numbers.

    Returns:
        The report; ``report.ok`` says whether all is well.

    Raises:
        ArrayError: x is not float32, or a layer has no gradient of a name.
        LayerApplyError: the same x gives other results every time: something in the target draws
            random numbers.

    Examples:
        >>> import numpy as np, openbnns
        >>> from openbnns.blocks import Dense
        >>> x = np.random.default_rng(0).normal(size=(4, 3)).astype("f4")
        >>> openbnns.check_gradients(Dense(2, "tanh"), x).ok
        True
    """
    where = "check_gradients"
    values = array_of(where, "x", x).copy()
    if values.dtype != np.float32 or not values.ndim:
        raise ArrayError(f"[{where}] x: expected float32 (N, …); got {values.dtype} {values.shape}")
    entries, worst = whole(where, "entries", entries, 1), whole(where, "worst", worst)
    step, tolerance = number(where, "step", step), number(where, "tolerance", tolerance)
    if not step > 0:
        raise ArgumentError(f"[{where}] step: expected more than 0; got {step}")
    seed = whole(where, "seed", seed)
    if parameters is not None and not isinstance(parameters, Mapping):
        raise ArgumentError(
            f"[{where}] parameters: expected arrays by name or None; got {shown(parameters)}"
        )
    if isinstance(target, Block):
        target = Network([target], loss="mse")
    if not isinstance(target, (Network, Layer)):
        raise ArgumentError(
            f"[{where}] target: expected a layer, a block or a network; got {shown(target)}"
        )
    if isinstance(target, Layer):
        functions = _of_layer(target, values, dict(parameters or {}))
        return _compare(values, *functions, entries, worst, step, tolerance, seed)
    with target._turn.alone, _prepared(target, values):
        functions = _of_network(target, values)
        return _compare(values, *functions, entries, worst, step, tolerance, seed)


@contextlib.contextmanager
def _prepared(network: Network, values: npt.NDArray[Any]) -> Iterator[None]:
    """Built for such values; all is trained, nothing is dropped. Then all is frozen and dropped
    that was."""
    network._see(values)
    blocks = [stage.block for stage in network._each()]
    dropping = [b for b in blocks if isinstance(b, Attention) and b.dropout != 0]
    if not network._frozen and not dropping:
        yield
        return
    frozen, bound, layers = network._frozen, network._bound, [b._trained for b in dropping]
    for block in dropping:
        block._trained = block._layer
    network.freeze()
    try:
        yield
    finally:
        for block, layer in zip(dropping, layers, strict=True):
            block._trained = layer
        network.freeze(*frozen)
        if bound is not None and network._bound is not None:
            network._bound.load_state_dict(bound.state_dict())


def _compare(
    values: npt.NDArray[Any],
    forward: Forward,
    backward: Backward,
    own: Arrays,
    entries: int,
    worst: int,
    step: float,
    tolerance: float,
    seed: int,
) -> GradientReport:
    first = forward()
    if not np.array_equal(first, forward(), equal_nan=True):
        raise LayerApplyError(
            "[check_gradients] target: expected the same result from the same x every time; got "
            "another: leave out what draws random numbers"
        )
    random = np.random.default_rng((seed, 0x6772))  # not the numbers of somebody's x
    weights = random.normal(size=first.shape).astype(np.float32)
    gradients = backward(weights)
    sizes = {name: float(np.abs(g).max(initial=0.0)) for name, g in gradients.items()}
    least = 1e-2 * max(sizes.values()) or 1.0  # what should be 0 is rounding: a bias before a norm
    rows: list[tuple[str, tuple[int, ...], float, float, float]] = []
    checked = skipped = 0
    for name, array in {"input": values, **own}.items():
        found, kinks = _entries(
            name,
            array,
            gradients[name],
            max(sizes[name], least),
            forward,
            weights,
            random,
            entries,
            step,
            tolerance,
        )
        checked, skipped = checked + len(found), skipped + kinks
        rows += sorted(found, key=lambda row: -row[4])[:worst]
    return GradientReport(tuple(rows), checked, skipped, tolerance)


Forward = Callable[[], npt.NDArray[Any]]
Backward = Callable[[npt.NDArray[Any]], dict[str, npt.NDArray[Any]]]
Arrays = dict[str, npt.NDArray[Any]]


def _of_network(network: Network, x: npt.NDArray[Any]) -> tuple[Forward, Backward, Arrays]:
    kept = {name: array.copy() for name, array in network.state().items()}

    def forward() -> npt.NDArray[Any]:
        result = network.forward(x, training=True).copy()
        for name, array in network.state().items():  # running statistics stay out of it
            if name not in network.parameters():
                array[...] = kept[name]
        return result

    def backward(weights: npt.NDArray[Any]) -> Arrays:
        network.forward(x, training=True)
        gradient = network.backward(weights).copy()
        found = {name: array.copy() for name, array in network.gradients().items()}
        return {"input": gradient, **found}

    return forward, backward, dict(network.parameters())


def _of_layer(
    layer: Any, x: npt.NDArray[Any], parameters: Arrays
) -> tuple[Forward, Backward, Arrays]:
    import inspect

    trains = "training" in inspect.signature(layer.apply).parameters
    options = {"training": True} if trains else {}

    def forward() -> npt.NDArray[Any]:
        return np.array(layer.apply(x, **options))

    def backward(weights: npt.NDArray[Any]) -> Arrays:
        gradients = layer.apply_backward(x, layer.apply(x, **options), weights)
        missing = [n for n in ("input", *parameters) if getattr(gradients, n, None) is None]
        if missing:
            raise ArrayError(
                f"[check_gradients] parameters: expected names that {type(layer).__name__} has "
                f"gradients of; got {', '.join(missing)}"
            )
        return {name: getattr(gradients, name) for name in ("input", *parameters)}

    return forward, backward, parameters


def _entries(
    name: str,
    array: npt.NDArray[Any],
    gradient: npt.NDArray[Any],
    scale: float,
    forward: Forward,
    weights: npt.NDArray[Any],
    random: np.random.Generator,
    entries: int,
    step: float,
    tolerance: float,
) -> tuple[list[tuple[str, tuple[int, ...], float, float, float]], int]:
    """Rows for some entries of an array, and how many were skipped."""
    picked = random.choice(array.size, min(entries, array.size), replace=False)
    rows, skipped = [], 0
    for place in np.sort(picked):
        index = tuple(int(i) for i in np.unravel_index(place, array.shape))
        ours = float(gradient[index])
        for size in (step, step / 8):  # the smaller one has more rounding and fewer kinks in it
            left, right = _slopes(array, index, forward, weights, size)
            expected = (left + right) / 2
            error = abs(ours - expected) / scale
            if error <= tolerance:
                break
        if error > tolerance and abs(left - right) > error * scale:
            skipped += 1
            continue
        rows.append((name, index, ours, expected, error))
    return rows, skipped


def _slopes(
    array: npt.NDArray[Any],
    index: tuple[int, ...],
    forward: Forward,
    weights: npt.NDArray[Any],
    step: float,
) -> tuple[float, float]:
    """The slopes to the left and to the right of an entry."""
    before = array[index]
    sums, places = [], []
    for side in (-step, 0.0, step):
        array[index] = before + np.float32(side)
        places.append(float(array[index]))
        sums.append(float((forward().astype(np.float64) * weights).sum()))
    array[index] = before
    return (
        (sums[1] - sums[0]) / (places[1] - places[0]),
        (sums[2] - sums[1]) / (places[2] - places[1]),
    )
