"""Optimizers: rules that move parameters along their gradients, many arrays in one native call.

An optimizer holds numbers only. ``step`` is the call of the C interface: the caller keeps the
accumulators and counts the steps. ``bind`` does both for a list of parameters.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import partial, wraps
from math import prod
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from . import _core
from ._errors import ArgumentError, ArrayError, BNNSError, DTypeError, OptimizerStepError
from ._spec import Array, ArraySpec, as_array, count
from ._spoken import FOREIGN, misfit, shown, spoken
from ._turn import Turn
from .clip import ClipByGlobalNorm, ClipByNorm, ClipByValue, GradientClipping

# BNNSOptimizerRegularizationFunction.
_PENALTIES = {"none": 0, "l1": 1, "l2": 2}
_LINE = 16  # floats of a cache line


class Optimizer:
    """Base of the optimizers.

    Attributes:
        learning_rate: the step size.
        gradient_scale: factor of every gradient, after clipping.
        l1, l2: factor of the penalty on parameters that is added to the gradient; at most one.
        gradient_clipping: ``ClipByValue``, ``ClipByNorm``, ``ClipByGlobalNorm`` or None.

    All of them may be changed between steps.

    See also: ``BNNSOptimizerStep``.
    """

    __slots__ = ("gradient_clipping", "gradient_scale", "l1", "l2", "learning_rate")

    learning_rate: float
    gradient_scale: float
    l1: float | None
    l2: float | None
    gradient_clipping: GradientClipping

    def __init__(
        self,
        learning_rate: float,
        gradient_scale: float,
        l1: float | None,
        l2: float | None,
        gradient_clipping: GradientClipping,
    ) -> None:
        self.learning_rate = learning_rate
        self.gradient_scale = gradient_scale
        self.l1 = l1
        self.l2 = l2
        self.gradient_clipping = gradient_clipping
        self._penalty()
        self._clipping()

    @property
    def regularization_function(self) -> Literal["none", "l1", "l2"]:
        """The penalty in use."""
        if self.l1 is not None:
            return "l1"
        return "none" if self.l2 is None else "l2"

    @property
    def regularization_scale(self) -> float:
        """The factor of the penalty in use."""
        return self.l1 if self.l1 is not None else self.l2 or 0.0

    @property
    def accumulator_count_multiplier(self) -> int:
        """How many accumulators each parameter needs, with the numbers as they are now."""
        return len(self._roles())

    def _roles(self) -> tuple[str, ...]:
        """What the accumulators of a parameter hold, in order."""
        raise NotImplementedError

    def _native(self, time_step: float) -> tuple[int, bytes]:
        """BNNSOptimizerFunction and the bytes of its struct, the one with clipping."""
        raise NotImplementedError

    def __init_subclass__(cls) -> None:
        """Numbers that are none are named at once."""
        super().__init_subclass__()
        if "__init__" not in vars(cls):
            return
        make: Any = spoken(where=cls.__name__)(vars(cls)["__init__"])

        @wraps(make)
        def checked(self: Optimizer, *args: Any, **kwargs: Any) -> None:
            make(self, *args, **kwargs)
            self._check()

        cls.__init__ = checked  # type: ignore[method-assign]

    def _check(self) -> None:
        kinds, clipping = type(self).__init__.__annotations__, self.gradient_clipping
        words = misfit(kinds, {k: getattr(self, k) for k in kinds if hasattr(self, k)})
        if words is None and isinstance(clipping, (ClipByValue, ClipByNorm, ClipByGlobalNorm)):
            words = misfit(type(clipping).__annotations__, vars(clipping))
        if words is not None:
            raise ArgumentError(f"[{type(self).__name__}] {words}")

    def _packed(self, time_step: float) -> tuple[int, bytes]:
        """``_native``, in our words when a number has become none since."""
        try:
            return self._native(time_step)
        except BNNSError:
            raise
        except FOREIGN as error:
            self._check()
            raise ArgumentError(f"[{type(self).__name__}] {error}") from error

    def _first_step(self) -> int:
        return 1

    def _penalty(self) -> tuple[float, int]:
        if self.l1 is not None and self.l2 is not None:
            raise ArgumentError(
                f"[{type(self).__name__}] l1, l2: expected at most one of them; "
                f"got {self.l1} and {self.l2}"
            )
        return self.regularization_scale, _PENALTIES[self.regularization_function]

    def _clipping(self) -> tuple[int, float, float, float, float]:
        """clipping_func, and its minimum, maximum, largest norm and known norm."""
        match self.gradient_clipping:
            case None:
                return 0, 0.0, 0.0, 0.0, 0.0
            case ClipByValue(low, high):
                return 1, low, high, 0.0, 0.0
            case ClipByNorm(threshold):
                return 2, 0.0, 0.0, threshold, 0.0
            case ClipByGlobalNorm(threshold, global_norm):
                return 3, 0.0, 0.0, threshold, global_norm or 0.0
        raise ArgumentError(
            f"[{type(self).__name__}] gradient_clipping: expected ClipByValue, ClipByNorm, "
            f"ClipByGlobalNorm or None; got {shown(self.gradient_clipping)}"
        )

    def step(
        self,
        parameters: Sequence[Array],
        gradients: Sequence[Array],
        accumulators: Sequence[Array] = (),
        *,
        num_threads: int | None = None,
    ) -> None:
        """One update of all parameters, in place. Nothing here remembers it: see ``bind``.

        Args:
            parameters: packed float32 arrays, which are changed.
            gradients: as many float32 arrays of the same shapes.
            accumulators: ``accumulator_count_multiplier`` arrays for each parameter, of its shape,
                zeros before the first step, grouped by role: the first ones of all parameters,
                then the second ones of all. They are changed.
            num_threads: limit for this call; None is the library's setting.

        Raises:
            ArrayError: an array does not fit.
            OptimizerStepError: the C call failed; nothing was changed.

        Examples:
            >>> import numpy as np, openbnns
            >>> w = np.array([1, 2], "f4")
            >>> openbnns.SGDMomentumOptimizer(0.5).step([w], [np.ones(2, "f4")])
            >>> w
            array([0.5, 1.5], dtype=float32)

        See also: ``BNNSOptimizerStep``.
        """
        where = type(self).__name__
        parameters, gradients, accumulators = (
            _listed(where, word, arrays)
            for word, arrays in (
                ("parameters", parameters),
                ("gradients", gradients),
                ("accumulators", accumulators),
            )
        )
        roles = self.accumulator_count_multiplier
        if len(accumulators) != roles * len(parameters):
            raise OptimizerStepError(
                f"[{where}] accumulators: expected {roles * len(parameters)}, {roles} for each "
                f"parameter; got {len(accumulators)}"
            )
        operands = _operands(where, parameters)
        _core.optimizer_step(
            where,
            *self._packed(self._first_step()),
            _core.optimizer_hold(where, "parameters", operands, parameters),
            gradients,
            _core.optimizer_hold(where, "accumulators", operands * roles, accumulators),
            count(where, "num_threads", num_threads),
        )

    def bind(
        self, parameters: Sequence[Array], *, num_threads: int | None = None
    ) -> BoundOptimizer:
        """This optimizer for these parameters, with accumulators of its own.

        Args:
            parameters: packed float32 arrays, which steps will change where they lie.
            num_threads: limit for the steps; None is the library's setting.

        Returns:
            The bound optimizer. It reads the numbers of this one at every step.

        Raises:
            ArrayError: a parameter does not fit.

        Examples:
            >>> import numpy as np, openbnns
            >>> w = np.ones(3, "f4")
            >>> adam = openbnns.AdamOptimizer(0.5).bind([w])
            >>> adam.step([np.array([1, 0, -1], "f4")])
            >>> w.round(3)
            array([0.5, 1. , 1.5], dtype=float32)
        """
        return BoundOptimizer(self, parameters, num_threads=num_threads)


def _listed(where: str, argument: str, arrays: Sequence[Array]) -> list[Array]:
    if not isinstance(arrays, (list, tuple)):
        raise ArgumentError(f"[{where}] {argument}: expected a list of arrays; got {shown(arrays)}")
    return list(arrays)


def _operands(where: str, parameters: Sequence[Array]) -> list[tuple[Any, ...]]:
    operands = []
    for i, parameter in enumerate(parameters):
        array = as_array(where, f"parameters[{i}]", parameter)
        if array.dtype != np.float32:
            raise DTypeError(f"[{where}] parameters[{i}]: expected float32; got {array.dtype.name}")
        operands.append(ArraySpec(array.shape)._operand())
    return operands


def _place(array: npt.NDArray[Any]) -> tuple[tuple[int, ...], int]:
    """Shape, and how many floats past a cache line the values begin."""
    return array.shape, array.__array_interface__["data"][0] // 4 % _LINE


class BoundOptimizer:
    """An optimizer with the parameters it moves, its accumulators and the number of its next step.

    Made by ``Optimizer.bind``. A call that meets one of another thread raises
    ``OptimizerStepError``.

    Attributes:
        optimizer: the numbers, read at every step: ``bound.optimizer.learning_rate /= 10``.
        parameters: the arrays that steps change.
        accumulators: state, one array per role and parameter, by role; all of it is one block of
            memory.
        time_step: number of the next step, from 1 (Adam: from its ``time_step``).
    """

    __slots__ = (
        "__weakref__",
        "_arena",
        "_held",
        "_held_accumulators",
        "_name",
        "_roles",
        "_threads",
        "_turn",
        "accumulators",
        "optimizer",
        "parameters",
        "time_step",
    )

    def __init__(
        self, optimizer: Optimizer, parameters: Sequence[Array], *, num_threads: int | None = None
    ) -> None:
        self._name = where = type(optimizer).__name__
        self._threads = count(where, "num_threads", num_threads)
        self._turn = Turn(where, OptimizerStepError)
        self.optimizer = optimizer
        self.parameters = tuple(_listed(where, "parameters", parameters))
        self.time_step = optimizer._first_step()
        self._roles = optimizer._roles()
        operands = _operands(where, self.parameters)
        self._held = _core.optimizer_hold(where, "parameters", operands, list(self.parameters))
        # Each accumulator lies to a cache line as its parameter does: a step walks them together.
        places = [_place(as_array(where, "parameters", p)) for p in self.parameters]
        sizes = [(prod(shape) // _LINE + 2) * _LINE for shape, _ in places]
        self._arena = np.zeros(len(self._roles) * sum(sizes) + _LINE, np.float32)
        start = -_place(self._arena)[1] % _LINE
        accumulators: list[npt.NDArray[Any]] = []
        for _ in self._roles:
            for (shape, offset), size in zip(places, sizes, strict=True):
                first = start + offset
                accumulators.append(self._arena[first : first + prod(shape)].reshape(shape))
                start += size
        self.accumulators = tuple(accumulators)
        self._held_accumulators = _core.optimizer_hold(
            where, "accumulators", operands * len(self._roles), accumulators
        )

    def step(self, gradients: Sequence[Array]) -> None:
        """One update of all parameters, in place.

        Args:
            gradients: one float32 array for each parameter, of its shape.

        Raises:
            ArrayError: a gradient does not fit.
            OptimizerStepError: the C call failed; nothing was changed and no step counted.

        See also: ``BNNSOptimizerStep``.
        """
        with self._turn.alone:
            _core.optimizer_step(
                self._name,
                *self._numbers(),
                self._held,
                _listed(self._name, "gradients", gradients),
                self._held_accumulators,
                self._threads,
            )
            self.time_step += 1

    def _numbers(self, ahead: int = 0) -> tuple[int, bytes]:
        """What the next step, or one so many later, is done with; see ``Optimizer._native``."""
        optimizer = self.optimizer
        if optimizer._roles() != self._roles:
            raise OptimizerStepError(
                f"[{self._name}] accumulators: expected {', '.join(optimizer._roles()) or 'none'}, "
                f"as the optimizer's numbers now say; bound with {', '.join(self._roles) or 'none'}"
            )
        return optimizer._packed(self.time_step + ahead)

    def _fixed_step(self, gradients: list[npt.NDArray[Any]]) -> tuple[bytearray, Any]:
        """Steps with gradients that always lie in these arrays: a function that does one, and where
        the bytes of ``_numbers`` have to be then. It counts no step."""
        function, numbers = self._numbers()
        fields = bytearray(numbers)
        operands = _operands(self._name, self.parameters)
        held = _core.optimizer_hold(self._name, "gradients", operands, gradients)
        return fields, partial(
            _core.optimizer_step,
            self._name,
            function,
            fields,
            self._held,
            held,
            self._held_accumulators,
            self._threads,
        )

    def state_dict(self) -> dict[str, npt.NDArray[Any]]:
        """All that a later run needs beside the parameters.

        Returns:
            ``"time_step"`` and ``"ROLE.INDEX"`` → array, copies of the accumulators.

        Examples:
            >>> import numpy as np, openbnns
            >>> bound = openbnns.RMSPropOptimizer().bind([np.ones(3, "f4")])
            >>> sorted(bound.state_dict())
            ['mean_square.0', 'time_step']
        """
        with self._turn.alone:
            state = {name: array.copy() for name, array in self._named().items()}
            return {"time_step": np.array(self.time_step, np.int64), **state}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Goes back to a state of ``state_dict``.

        Args:
            state: as ``state_dict`` gives it.

        Raises:
            ArrayError: an entry is missing, not known, or of another shape; then nothing changed.
        """
        named = self._named()
        expected = {"time_step", *named}
        if not isinstance(state, Mapping) or expected != set(state):
            got = sorted(map(str, state)) if isinstance(state, Mapping) else shown(state)
            raise ArrayError(
                f"[{self._name}] state: expected the entries {sorted(expected)}; got {got}"
            )
        arrays = {name: as_array(self._name, f"state[{name!r}]", state[name]) for name in state}
        for name, into in named.items():
            if arrays[name].shape != into.shape:
                raise ArrayError(
                    f"[{self._name}] state[{name!r}]: expected {into.shape}; "
                    f"got {arrays[name].shape}"
                )
            if not np.can_cast(arrays[name].dtype, into.dtype, "same_kind"):
                raise DTypeError(
                    f"[{self._name}] state[{name!r}]: expected float32; got {arrays[name].dtype}"
                )
        with self._turn.alone:
            self._go_on(arrays["time_step"])
            for name, into in named.items():
                into[...] = arrays[name]

    def _go_on(self, time_step: npt.NDArray[Any]) -> None:
        """Take up the number of the next step, which may come from a file."""
        if time_step.shape or time_step.dtype.kind not in "iu" or not 0 <= time_step < 1 << 62:
            raise ArrayError(
                f"[{self._name}] state['time_step']: expected a whole number; got {time_step!r}"
            )
        self.time_step = int(time_step)

    def _named(self) -> dict[str, npt.NDArray[Any]]:
        n = len(self.parameters)
        return {
            f"{role}.{p}": self.accumulators[k * n + p]
            for k, role in enumerate(self._roles)
            for p in range(n)
        }


class SGDMomentumOptimizer(Optimizer):
    """Stochastic gradient descent, with or without momentum.

    With W parameter, g gradient, V accumulator and m momentum:

    ======= ============================= =====================================
    variant plain                         nesterov
    ======= ============================= =====================================
    0       V = m·V − lr·g;  W += V       the same V;  W += V + m·(V − V before)
    1       V = m·V + g;  W −= lr·V       the same V;  W −= lr·(g + m·V)
    2       V = m·V + lr·g;  W −= V       V = m·V + g;  W −= lr·(g + m·V)
    ======= ============================= =====================================

    Args:
        learning_rate: the step size.
        momentum: 0 is none.
        nesterov: the second column.
        variant: 0, 1 (that of PyTorch) or 2.
        gradient_scale, l1, l2, gradient_clipping: see ``Optimizer``.

    Raises:
        ValueError: both l1 and l2 are given, or the clipping is of no known kind.

    Examples:
        >>> import numpy as np, openbnns
        >>> w, v = np.array([10], "f4"), np.zeros(1, "f4")
        >>> sgd = openbnns.SGDMomentumOptimizer(0.1, momentum=0.9, variant=1)
        >>> sgd.step([w], [np.array([2], "f4")], [v])
        >>> w, v
        (array([9.8], dtype=float32), array([2.], dtype=float32))

    See also: ``BNNSOptimizerSGDMomentumWithClippingFields``.
    """

    __slots__ = ("momentum", "nesterov", "variant")

    _FIELDS: ClassVar[struct.Struct] = struct.Struct("@ffff?IIIffff")

    def __init__(
        self,
        learning_rate: float,
        *,
        momentum: float = 0.0,
        nesterov: bool = False,
        variant: Literal[0, 1, 2] = 0,
        gradient_scale: float = 1.0,
        l1: float | None = None,
        l2: float | None = None,
        gradient_clipping: GradientClipping = None,
    ) -> None:
        super().__init__(learning_rate, gradient_scale, l1, l2, gradient_clipping)
        self.momentum = momentum
        self.nesterov = nesterov
        self.variant = variant

    def _roles(self) -> tuple[str, ...]:
        return ("velocity",) if self.momentum != 0 else ()

    def _native(self, time_step: float) -> tuple[int, bytes]:
        scale, penalty = self._penalty()
        return 7, self._FIELDS.pack(
            self.learning_rate,
            self.momentum,
            self.gradient_scale,
            scale,
            self.nesterov,
            penalty,
            self.variant,
            *self._clipping(),
        )


class _AdamFamily(Optimizer):
    __slots__ = ("amsgrad", "beta1", "beta2", "epsilon", "time_step")

    _FIELDS: ClassVar[struct.Struct] = struct.Struct("@fffffffIIffff")

    beta1: float
    beta2: float
    epsilon: float
    time_step: int
    amsgrad: bool

    def _roles(self) -> tuple[str, ...]:
        roles = ("first_moment", "second_moment")
        return (*roles, "largest_second_moment") if self.amsgrad else roles

    def _first_step(self) -> int:
        return self.time_step

    def _fields(self, time_step: float, scale: float, penalty: int) -> bytes:
        return self._FIELDS.pack(
            self.learning_rate,
            self.beta1,
            self.beta2,
            time_step,
            self.epsilon,
            self.gradient_scale,
            scale,
            penalty,
            *self._clipping(),
        )


class AdamOptimizer(_AdamFamily):
    """Adam: steps along a running mean of the gradient over the root of its running square.

    W −= lr·√(1−β2ᵗ)/(1−β1ᵗ) · m/(√v + ε): ε is added to the root before its correction, which
    is PyTorch's ε times √(1−β2ᵗ).

    Args:
        learning_rate: the step size.
        beta1, beta2: decay of the two means, at least 0 and below 1.
        epsilon: added to the root.
        time_step: number of the step that ``step`` takes, and of the first one after ``bind``.
        amsgrad: use the largest running square so far.
        gradient_scale, l1, l2, gradient_clipping: see ``Optimizer``.

    Raises:
        ValueError: both l1 and l2 are given, or the clipping is of no known kind.

    Examples:
        >>> import numpy as np, openbnns
        >>> w = np.zeros(2, "f4")
        >>> adam = openbnns.AdamOptimizer(0.01, gradient_clipping=openbnns.ClipByValue(-1, 1))
        >>> adam.bind([w]).step([np.array([5, -5], "f4")])
        >>> w.round(3)
        array([-0.01,  0.01], dtype=float32)

    See also: ``BNNSOptimizerAdamWithClippingFields``.
    """

    __slots__ = ()

    def __init__(
        self,
        learning_rate: float = 1e-3,
        *,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        time_step: int = 1,
        amsgrad: bool = False,
        gradient_scale: float = 1.0,
        l1: float | None = None,
        l2: float | None = None,
        gradient_clipping: GradientClipping = None,
    ) -> None:
        super().__init__(learning_rate, gradient_scale, l1, l2, gradient_clipping)
        self.beta1 = beta1
        self.beta2 = beta2
        self.epsilon = epsilon
        self.time_step = time_step
        self.amsgrad = amsgrad

    def _native(self, time_step: float) -> tuple[int, bytes]:
        return 11 if self.amsgrad else 8, self._fields(time_step, *self._penalty())


class AdamWOptimizer(_AdamFamily):
    """Adam with weight decay that does not pass through the means: W −= lr·decay·W, then Adam.

    Args:
        weight_decay: the decay; the other arguments are those of ``AdamOptimizer``, but there are
            no penalties.

    Raises:
        ValueError: the clipping is of no known kind.

    Examples:
        >>> import numpy as np, openbnns
        >>> w = np.ones(1, "f4")
        >>> openbnns.AdamWOptimizer(0.1, weight_decay=0.5).bind([w]).step([np.zeros(1, "f4")])
        >>> w
        array([0.95], dtype=float32)

    See also: ``BNNSOptimizerAdamWithClippingFields``.
    """

    __slots__ = ("weight_decay",)

    def __init__(
        self,
        learning_rate: float = 1e-3,
        *,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        time_step: int = 1,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        gradient_scale: float = 1.0,
        gradient_clipping: GradientClipping = None,
    ) -> None:
        super().__init__(learning_rate, gradient_scale, None, None, gradient_clipping)
        self.beta1 = beta1
        self.beta2 = beta2
        self.epsilon = epsilon
        self.time_step = time_step
        self.weight_decay = weight_decay
        self.amsgrad = amsgrad

    def _native(self, time_step: float) -> tuple[int, bytes]:
        return 12 if self.amsgrad else 10, self._fields(time_step, self.weight_decay, 0)


class RMSPropOptimizer(Optimizer):
    """RMSProp: steps along the gradient over the root of its running square.

    n = α·n + (1−α)·g²;  Δ = momentum·Δ − lr·g/(√n + ε);  W += Δ. Centered takes the square of the
    running mean gradient off n. Unlike PyTorch's, Δ holds the learning rate.

    Args:
        learning_rate: the step size.
        alpha: decay of the means, at least 0 and below 1.
        epsilon: added to the root.
        centered: see above.
        momentum: 0 is none.
        gradient_scale, l1, l2, gradient_clipping: see ``Optimizer``.

    Raises:
        ValueError: both l1 and l2 are given, or the clipping is of no known kind.

    Examples:
        >>> import numpy as np, openbnns
        >>> w = np.zeros(1, "f4")
        >>> openbnns.RMSPropOptimizer(0.1, alpha=0.75).bind([w]).step([np.ones(1, "f4")])
        >>> w
        array([-0.2], dtype=float32)

    See also: ``BNNSOptimizerRMSPropWithClippingFields``.
    """

    __slots__ = ("alpha", "centered", "epsilon", "momentum")

    _FIELDS: ClassVar[struct.Struct] = struct.Struct("@fff?fffIIffff")

    def __init__(
        self,
        learning_rate: float = 1e-2,
        *,
        alpha: float = 0.99,
        epsilon: float = 1e-8,
        centered: bool = False,
        momentum: float = 0.0,
        gradient_scale: float = 1.0,
        l1: float | None = None,
        l2: float | None = None,
        gradient_clipping: GradientClipping = None,
    ) -> None:
        super().__init__(learning_rate, gradient_scale, l1, l2, gradient_clipping)
        self.alpha = alpha
        self.epsilon = epsilon
        self.centered = centered
        self.momentum = momentum

    def _roles(self) -> tuple[str, ...]:
        roles: tuple[str, ...] = ("mean_square",)
        if self.centered:
            roles += ("mean_gradient",)
        return (*roles, "change") if self.momentum != 0 else roles

    def _native(self, time_step: float) -> tuple[int, bytes]:
        return 9, self._FIELDS.pack(
            self.learning_rate,
            self.alpha,
            self.epsilon,
            self.centered,
            self.momentum,
            self.gradient_scale,
            *self._penalty(),
            *self._clipping(),
        )
