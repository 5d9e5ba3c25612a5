"""Networks of dense layers as scikit-learn estimators. Imports scikit-learn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from ._errors import ArgumentError
from ._spoken import misfit
from ._turn import Turn
from .blocks import Dense
from .network import Network
from .optim import AdamOptimizer
from .training import EarlyStopping

__all__ = ["BNNSClassifier", "BNNSRegressor"]

_BATCH = 64  # of predictions


class _Estimator(BaseEstimator):  # type: ignore[misc]
    """What both share: the settings, the network, and a sensible scale for what goes in."""

    def __init__(
        self,
        hidden: Sequence[int] = (64,),
        *,
        activation: str = "relu",
        epochs: int = 100,
        batch_size: int = 32,
        learning_rate: float = 3e-3,
        l2: float = 1e-4,
        patience: int | None = None,
        validation: float = 0.1,
        scale: bool = True,
        random_state: Any = 0,
    ) -> None:
        self.hidden = hidden
        self.activation = activation
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.l2 = l2
        self.patience = patience
        self.validation = validation
        self.scale = scale
        self.random_state = random_state

    @property
    def _turns(self) -> Turn:
        """Of this estimator. Its own: scikit-learn wants a constructor that does nothing."""
        turn: Turn = self.__dict__.setdefault("_turn", Turn(type(self).__name__))
        return turn

    def _train(self, x: Any, y: Any, outputs: int, loss: str, weights: Any) -> None:
        words = misfit(type(self).__init__.__annotations__, self.get_params(deep=False))
        if words is not None:
            raise ArgumentError(f"[{type(self).__name__}] {words}")
        self.mean_ = x.mean(axis=0) if self.scale else np.zeros(x.shape[1])
        spread = x.std(axis=0) if self.scale else np.ones(x.shape[1])
        self.scale_ = np.where(spread > 0, spread, 1.0)
        state = self.random_state
        seed = int(state) if isinstance(state, (int, np.integer)) else _drawn(state)
        blocks = [Dense(units, self.activation, initializer="he") for units in self.hidden]
        self.network_ = Network(
            [*blocks, Dense(outputs)],
            input=(x.shape[1],),
            loss=loss,
            optimizer=AdamOptimizer(self.learning_rate, l2=self.l2),
            seed=seed,
        )
        stop = [] if self.patience is None else [EarlyStopping(self.patience)]
        few = int(len(x) * self.validation) == 0
        self.history_ = self.network_.fit(
            self._scaled(x),
            y,
            epochs=self.epochs,
            batch_size=min(self.batch_size, len(x)),
            validation=None if self.patience is None or few else self.validation,
            class_weights=weights,
            callbacks=stop,
        )
        self.n_iter_ = len(self.history_.rows)

    def _scaled(self, x: Any) -> Any:
        return ((x - self.mean_) / self.scale_).astype(np.float32)

    def _outputs(self, x: Any) -> Any:
        check_is_fitted(self, "network_")
        x = validate_data(self, x, reset=False, dtype=np.float64)
        # always batches of one size: a sample's result does not depend on its company
        rows = np.zeros((-(-len(x) // _BATCH) * _BATCH, x.shape[1]), np.float32)
        rows[: len(x)] = self._scaled(x)
        return self.network_.predict(rows, batch_size=_BATCH)[: len(x)]

    # A network holds native layers: what travels to other processes is its parameters.

    def __getstate__(self) -> Any:
        state = dict(super().__getstate__())
        state.pop("_turn", None)
        network = state.pop("network_", None)
        if network is not None:
            state["_parameters"] = {k: v.copy() for k, v in network.state().items()}
            state["_outline"] = network.input_shape, network.output_shape, network.loss.name
        return state

    def __setstate__(self, state: Any) -> None:
        state = dict(state)
        parameters, outline = state.pop("_parameters", None), state.pop("_outline", None)
        super().__setstate__(state)
        if parameters is not None:
            shape, output, loss = outline
            blocks = [Dense(units, self.activation) for units in self.hidden]
            self.network_ = Network([*blocks, Dense(output[0])], input=shape, loss=loss)
            self.network_.load_state(parameters)


def _drawn(state: Any) -> int:
    from sklearn.utils import check_random_state

    return int(check_random_state(state).randint(2**31))


class BNNSClassifier(ClassifierMixin, _Estimator):  # type: ignore[misc]
    """A network of dense layers that tells classes apart.

    Args:
        hidden: units of the layers between input and output.
        activation: of those layers.
        epochs: how often to go through the samples, at most.
        batch_size, learning_rate, l2: of the training with Adam; l2 holds weights down.
        patience: epochs without a better loss on held-out samples before it ends; None: all epochs.
        validation: the share held out for that.
        scale: shift and scale features to mean 0 and deviation 1 first.
        class_weight: None, ``"balanced"``, or a weight for each class by its label.
        random_state: seed; the same one gives the same bits.

    Attributes:
        classes_: the labels. network_: the ``Network``. history_: its training.

    Examples:
        >>> from sklearn.datasets import load_iris
        >>> from openbnns.sklearn import BNNSClassifier
        >>> x, y = load_iris(return_X_y=True)
        >>> BNNSClassifier(hidden=(16,), epochs=60).fit(x, y).score(x, y) > 0.95
        True
    """

    def __init__(
        self,
        hidden: Sequence[int] = (64,),
        *,
        activation: str = "relu",
        epochs: int = 100,
        batch_size: int = 32,
        learning_rate: float = 3e-3,
        l2: float = 1e-4,
        patience: int | None = None,
        validation: float = 0.1,
        scale: bool = True,
        class_weight: Any = None,
        random_state: Any = 0,
    ) -> None:
        super().__init__(
            hidden,
            activation=activation,
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
            l2=l2,
            patience=patience,
            validation=validation,
            scale=scale,
            random_state=random_state,
        )
        self.class_weight = class_weight

    def fit(self, X: Any, y: Any) -> BNNSClassifier:
        """Train on samples X (N, features) and labels y (N,)."""
        with self._turns.alone:
            return self._fit(X, y)

    def _fit(self, X: Any, y: Any) -> BNNSClassifier:
        from sklearn.utils.class_weight import compute_class_weight

        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self.classes_, numbers = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ArgumentError(
                f"[BNNSClassifier] y: expected at least two classes; got {len(self.classes_)} class"
            )
        weights = None
        if self.class_weight is not None:
            weights = compute_class_weight(self.class_weight, classes=self.classes_, y=y)
        self._train(X, numbers, len(self.classes_), "softmax_cross_entropy", weights)
        return self

    def predict_proba(self, X: Any) -> Any:
        """The probability of each class, (N, classes)."""
        with self._turns.shared:
            logits = self._outputs(X).astype(np.float64)
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        return powers / powers.sum(axis=1, keepdims=True)

    def predict(self, X: Any) -> Any:
        """The most probable label of each sample, (N,)."""
        with self._turns.shared:
            winners = self._outputs(X).argmax(axis=1)
            return self.classes_[winners]


class BNNSRegressor(RegressorMixin, _Estimator):  # type: ignore[misc]
    """A network of dense layers that predicts numbers.

    The arguments are those of ``BNNSClassifier`` but for ``class_weight``. With ``scale`` targets
    are scaled too.

    Attributes:
        network_: the ``Network``. history_: its training.

    Examples:
        >>> import numpy as np
        >>> from openbnns.sklearn import BNNSRegressor
        >>> x = np.linspace(-1, 1, 200)[:, None]
        >>> y = x[:, 0] ** 2
        >>> BNNSRegressor(hidden=(32,), epochs=200).fit(x, y).score(x, y) > 0.9
        True
    """

    def fit(self, X: Any, y: Any) -> BNNSRegressor:
        """Train on samples X (N, features) and targets y, (N,) or (N, outputs)."""
        with self._turns.alone:
            return self._fit(X, y)

    def _fit(self, X: Any, y: Any) -> BNNSRegressor:
        X, y = validate_data(self, X, y, dtype=np.float64, multi_output=True, y_numeric=True)
        targets = y.reshape(len(y), -1).astype(np.float64)
        self._many = y.ndim > 1
        self.target_mean_ = targets.mean(axis=0) if self.scale else np.zeros(targets.shape[1])
        spread = targets.std(axis=0) if self.scale else np.ones(targets.shape[1])
        self.target_scale_ = np.where(spread > 0, spread, 1.0)
        scaled = (targets - self.target_mean_) / self.target_scale_
        self._train(X, scaled.astype(np.float32), targets.shape[1], "mse", None)
        return self

    def predict(self, X: Any) -> Any:
        """The predictions, shaped as the targets were."""
        with self._turns.shared:
            found = self._outputs(X) * self.target_scale_ + self.target_mean_
            return found if self._many else found[:, 0]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
