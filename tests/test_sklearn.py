"""The estimators: scikit-learn's own checks, pipelines, searches in two processes."""

import doctest
import pickle

import numpy as np
import pytest

pytest.importorskip("sklearn")
bridge = pytest.importorskip("openbnns.sklearn")

from sklearn.datasets import load_iris, make_regression  # noqa: E402
from sklearn.model_selection import GridSearchCV  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import MinMaxScaler  # noqa: E402
from sklearn.utils.estimator_checks import parametrize_with_checks  # noqa: E402


@parametrize_with_checks([bridge.BNNSClassifier(epochs=40), bridge.BNNSRegressor(epochs=40)])
@pytest.mark.filterwarnings("ignore")  # the checks provoke them
def test_scikit_learns_checks(estimator, check):
    check(estimator)


def test_classes_are_told_apart_and_the_same_bits_come_back():
    x, y = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    first, second = (bridge.BNNSClassifier((16,), epochs=50).fit(x, names) for _ in "ab")
    assert first.score(x, names) > 0.95
    assert (first.predict_proba(x) == second.predict_proba(x)).all()
    np.testing.assert_allclose(first.predict_proba(x).sum(axis=1), 1)
    again = pickle.loads(pickle.dumps(first))
    assert (again.predict_proba(x) == first.predict_proba(x)).all()
    balanced = bridge.BNNSClassifier((8,), epochs=10, class_weight="balanced").fit(x[:120], y[:120])
    assert balanced.score(x, y) > 0.6
    stopped = bridge.BNNSClassifier((16,), epochs=500, patience=3).fit(x, y)
    assert stopped.n_iter_ < 500


def test_numbers_are_predicted_in_a_pipeline():
    x, y = make_regression(200, 6, n_targets=2, noise=0.1, random_state=0)
    model = make_pipeline(MinMaxScaler(), bridge.BNNSRegressor((32,), epochs=150)).fit(x, y)
    assert model.score(x, y) > 0.95
    assert model.predict(x[:3]).shape == (3, 2)


def test_a_search_in_two_processes():
    x, y = load_iris(return_X_y=True)
    search = GridSearchCV(
        bridge.BNNSClassifier(epochs=60), {"hidden": [(4,), (16,)]}, cv=3, n_jobs=2
    ).fit(x, y)
    assert search.best_score_ > 0.8
    alone = GridSearchCV(
        bridge.BNNSClassifier(epochs=60), {"hidden": [(4,), (16,)]}, cv=3, n_jobs=1
    ).fit(x, y)
    np.testing.assert_array_equal(
        search.cv_results_["mean_test_score"], alone.cv_results_["mean_test_score"]
    )


def test_examples_in_docstrings():
    result = doctest.testmod(bridge)
    assert result.attempted > 0
    assert result.failed == 0
