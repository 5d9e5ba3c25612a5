"""Several steps of ``fit`` in one native call: the bits, errors and state of steps one by one."""

import copy
import os
import signal

import numpy as np
import openbnns
import pytest
from cases.samples import blobs, random_batch
from openbnns import AdamOptimizer, Network, SGDMomentumOptimizer, TrainingError, _core
from openbnns.blocks import Activate, Convolution, Dense, Normalize, Pool, Rows
from openbnns.training import Callback, cosine
from oracles.tolerance import assert_same_bits


class Watch(Callback):
    """Wants to see every step, so that they are done one by one."""

    def on_step(self, network, step, loss):
        pass


class Own(Activate):
    """A block of the user's, which Python calls."""


@pytest.fixture
def runs(monkeypatch):
    """How many steps each native call did, in calls as long as they can be."""
    seen = []

    def repeat(program, count, *rest):
        seen.append(native(program, count, *rest))
        return seen[-1]

    native = _core.repeat
    monkeypatch.setattr("openbnns._core.repeat", repeat)
    monkeypatch.setattr(openbnns.training, "_AT_A_TIME", 60.0)
    return seen


def everything(network):
    """What a run changes."""
    state = {name: array.tobytes() for name, array in network.state().items()}
    if network._bound is not None:
        state |= {k: v.tobytes() for k, v in network._bound.state_dict().items()}
    return network.steps, network.optimizer.learning_rate, state


NETWORKS = {
    "dense": ((5,), [Dense(7, "relu"), Dense(4, "tanh", normalization="batch"), Dense(3)]),
    "images": (
        (2, 6, 6),
        [Convolution(4, padding=1, normalization="batch", activation="relu"), Pool(), Dense(3)],
    ),
    "layer norm": ((5,), [Dense(7), Normalize("layer", "sigmoid"), Dense(3)]),
}
OPTIMIZERS = {
    "adam": lambda: AdamOptimizer(0.01),
    "sgd": lambda: SGDMomentumOptimizer(0.01, momentum=0.9, l2=0.01),
}


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("rate", [None, cosine(0.02, 20, warmup=3)])
@pytest.mark.parametrize("loss", ["softmax_cross_entropy", "mse"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", NETWORKS)
def test_bits_are_those_of_single_steps(runs, name, optimizer, loss, rate, shuffle):
    shape, blocks = NETWORKS[name]
    x = random_batch(45, *shape)
    y = random_batch(45, 3) if loss == "mse" else np.arange(45) % 3
    left = []
    for callbacks in ([], [Watch()]):
        network = Network(
            copy.deepcopy(blocks), loss=loss, optimizer=OPTIMIZERS[optimizer](), seed=3
        )
        history = network.fit(
            x, y, epochs=3, batch_size=8, shuffle=shuffle, learning_rate=rate, callbacks=callbacks
        )
        rows = [(row["loss"], row["learning_rate"]) for row in history.rows]
        left.append((history.losses, rows, everything(network)))
    assert left[0] == left[1]
    assert runs == [4, 5, 5]  # the first by itself, and the smaller batches at the ends


def test_samples_of_rows_and_frozen_networks(runs):
    def left(callbacks):
        network = Network([Rows(Dense(4, "tanh"), Dense(2))])
        x, y = random_batch(24, 3, 5), np.arange(72).reshape(24, 3) % 2
        losses = network.fit(x, y, batch_size=4, callbacks=callbacks).losses
        network.freeze("dense_1", "dense_2")
        return losses, network.fit(x, y, batch_size=4, callbacks=callbacks).losses

    assert left([]) == left([Watch()])
    assert runs == [5, 5]


@pytest.mark.parametrize(
    "kind",
    [
        "memory map",
        "float64",
        "strides",
        "rows of zeros and ones",
        "own block",
        "own network",
        "class weights",
        "micro batches",
        "iterable",
        "large",
    ],
)
def test_all_else_is_done_one_by_one(runs, monkeypatch, tmp_path, kind):
    class Counted(Network):
        def train_step(self, *given, **options):
            return super().train_step(*given, **options)

    x, y = blobs(32)
    network = Network([Dense(4, "tanh"), Dense(3)])
    expected = network.fit(x, y, batch_size=8, shuffle=False).losses
    assert runs == [3]
    runs.clear()
    options = {}
    given = [Dense(4, "tanh"), Dense(3)]
    match kind:
        case "memory map":
            np.save(tmp_path / "x.npy", x)
            x = np.load(tmp_path / "x.npy", mmap_mode="r")
        case "float64":
            x = x.astype(np.float64)
        case "strides":
            x = np.asfortranarray(x)
        case "rows of zeros and ones":
            y = np.eye(3, dtype=np.int64)[y]
        case "own block":
            given = [Dense(4), Own("tanh"), Dense(3)]
        case "class weights":
            options["class_weights"] = [1, 1, 1]
        case "micro batches":
            options["micro_batches"] = 2
        case "iterable":
            x, y = [(x[i : i + 8], y[i : i + 8]) for i in range(0, 32, 8)], None
        case "large":
            monkeypatch.setattr(openbnns.training, "_WORTH_A_THREAD", 1)
    network = (Counted if kind == "own network" else Network)(given)
    losses = network.fit(x, y, batch_size=8, shuffle=False, **options).losses
    assert losses == pytest.approx(expected, rel=1e-5)
    assert runs == []


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("what", ["data", "labels", "class"])
def test_a_step_that_fails_says_so_and_changes_as_much(runs, what, shuffle):
    x, y = blobs(64)
    labels = np.eye(3, dtype=np.float32)[y]
    if what == "data":
        x[40, 2] = np.nan
    elif what == "labels":
        labels[40, 1] = np.inf
    else:
        labels = np.where(np.arange(64) == 40, 3, y)
    left = []
    for callbacks in ([], [Watch()]):
        network = Network([Dense(4, "tanh"), Dense(3)])
        with pytest.raises(openbnns.BNNSError) as caught:
            network.fit(
                x,
                labels,
                batch_size=8,
                shuffle=shuffle,
                learning_rate=cosine(0.01, 8),
                callbacks=callbacks,
            )
        assert isinstance(caught.value, TrainingError) == (what != "class")
        left.append((type(caught.value), str(caught.value), everything(network)))
    assert left[0] == left[1]
    assert runs == [network.steps - 1]
    if not shuffle:
        assert network.steps == 5


def test_repeat_refuses_what_does_not_fit():
    layer = openbnns.FullyConnectedLayer(np.ones((1, 2), np.float32))
    x, y = np.zeros((2, 2), np.float32), np.zeros((2, 1), np.float32)
    program = _core.record([("call", lambda: layer.apply(x, out=y))])
    source, results = np.arange(12, dtype=np.float32).reshape(6, 2), np.zeros((3, 2), np.float32)
    rows = np.array([5, 0, 1, 1, 2, 3])
    assert _core.repeat(program, 3, [(x, source, None)], y, results) == 3
    assert_same_bits(results.ravel(), source.sum(axis=1))
    assert _core.repeat(program, 3, [(x, source, rows)], y, results) == 3
    assert_same_bits(results.ravel(), source.sum(axis=1)[rows])
    before = x.copy(), y.copy(), results.copy()
    for runs, feed, into in (
        (2, (x, source, None), results[:2]),  # more than is read
        (4, (x, source, None), np.zeros((4, 2), np.float32)),
        (3, (x, source, np.array([5, 0, 1, 1, 2, 6])), results),
        (3, (x, source, np.array([5, 0, 1, 1, 2, -1])), results),
        (3, (x, source, rows.astype(np.int32)), results),
        (3, (x, source, rows[:5]), results),
        (3, (x, source[:0], rows), results),
        (3, (x, source.reshape(4, 3), rows), results),
        (3, (x, source, rows), results[:2]),
        (3, (x[:, ::-1], source, rows), results),
        (3, (b"12345678" * 2, source, rows), results),
    ):
        with pytest.raises((ValueError, BufferError)):
            _core.repeat(program, runs, [feed], y, into)
        for now, then in zip((x, y, results), before, strict=True):
            assert_same_bits(now, then)
    with pytest.raises(TypeError):
        _core.repeat(None, 1, [], y, y)


@pytest.mark.skipif(os.name != "posix", reason="sets a timer")
def test_signals_are_heard_between_calls():
    def stop(number, frame):
        raise KeyboardInterrupt

    x, y = blobs(100_000)
    network = Network([Dense(4, "tanh"), Dense(3)])
    before = signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            network.fit(x, y, epochs=10**6, batch_size=8)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert network.steps > 1
    assert np.isfinite(network.fit(x[:80], y[:80], batch_size=8).losses).all()
