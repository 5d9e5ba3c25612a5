"""Training: what fit does, and what a run leaves: memory, threads, Ctrl-C."""

import _thread
import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import openbnns
import pytest
from cases import in_threads
from cases.samples import blobs, random_batch
from openbnns import AdamOptimizer, ArrayError, Network, SGDMomentumOptimizer
from openbnns.blocks import Convolution, Dense, Pool
from openbnns.training import Callback, Checkpoint, EarlyStopping, cosine, exponential, piecewise
from oracles.tolerance import assert_same_bits

# ---- fit ----


def test_fit_learns_and_reports():
    x, y = blobs()
    network = Network([Dense(16, "relu"), Dense(3)], optimizer=AdamOptimizer(0.01))
    history = network.fit(x, y, epochs=20, batch_size=16, validation=0.25)
    assert len(history.rows) == 20
    assert len(history.losses) == 20 * -(-180 // 16)
    assert history["loss"][-1] < 0.2 < history["loss"][0]
    assert history["validation_accuracy"][-1] > 0.95
    assert network.evaluate(x, y)["accuracy"] > 0.95
    assert "validation_loss" in str(history)
    assert network.steps == len(history.losses)


def test_the_same_seed_gives_the_same_bits():
    x, y = blobs()

    def losses(seed):
        network = Network([Dense(8, "tanh"), Dense(3)], seed=seed)
        return network.fit(x, y, epochs=2, batch_size=32).losses

    assert losses(1) == losses(1) != losses(2)


def ends_with(threads):
    """Whether so many are left. Who makes batches says that it ends, and does a moment later."""
    for _ in range(100):
        if _thread._count() == threads:
            return True
        time.sleep(0.05)
    return False


def test_large_batches_are_gathered_ahead_to_the_same_bits(monkeypatch):
    x, y = blobs()

    def losses():
        return Network([Dense(8, "tanh"), Dense(3)]).fit(x, y, epochs=2, batch_size=32).losses

    expected = losses()
    monkeypatch.setattr(openbnns.training, "_WORTH_A_THREAD", 1)
    threads = _thread._count()
    assert losses() == expected
    assert ends_with(threads)


def test_errors_of_batches_made_ahead_arrive(monkeypatch):
    monkeypatch.setattr(openbnns.training, "_WORTH_A_THREAD", 1)
    x, y = blobs()

    class Broken(np.ndarray):
        def __getitem__(self, key):
            if isinstance(key, np.ndarray):
                raise OSError("the disk is gone")
            return super().__getitem__(key)

    with pytest.raises(OSError, match="the disk is gone"):
        Network([Dense(3)]).fit(x.view(Broken), y)


def test_fit_takes_memory_maps_iterables_and_functions(tmp_path):
    x, y = blobs()
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")

    def pairs():
        for start in range(0, len(x), 32):
            yield x[start : start + 32], y[start : start + 32]

    runs = [
        Network([Dense(3)]).fit(mapped, y, epochs=2, shuffle=False).losses,
        Network([Dense(3)]).fit(list(pairs()), epochs=2).losses,
        Network([Dense(3)]).fit(pairs, epochs=2).losses,
    ]
    assert runs[0] == runs[1] == runs[2]
    with pytest.raises(ArrayError, match="at least one batch"):
        Network([Dense(3)]).fit(pairs(), epochs=2)  # a generator is empty the second time


@pytest.mark.parametrize("dtype", ["uint8", "int32", "float64", "float16"])
def test_data_of_any_number_type(dtype):
    x = np.arange(24).reshape(4, 6).astype(dtype)
    network = Network([Dense(2)], input=(6,))
    assert_same_bits(network.predict(x), network.predict(x.astype(np.float32)))


def test_labels_as_classes_rows_and_columns():
    x, y = blobs()
    rows = np.eye(3)[y]  # float64
    assert Network([Dense(3)]).fit(x, y).losses == pytest.approx(
        Network([Dense(3)]).fit(x, rows).losses, rel=1e-6
    )
    one = Network([Dense(1)], loss="mse")
    assert one.train_step(x[:4], np.arange(4)) > 0  # (N,) for (N, 1)


def test_class_weights_are_weights_of_samples():
    x, y = blobs()
    weights = np.array([1, 0, 2], np.float32)
    ours = Network([Dense(3)]).fit(x, y, batch_size=240, shuffle=False, class_weights=weights)
    network = Network([Dense(3)])
    assert ours.losses == [network.train_step(x, y, weights=weights[y])]


def test_micro_batches_make_the_same_step():
    x, y = blobs()
    whole, cut = (
        Network([Dense(8, "tanh"), Dense(3)], optimizer=SGDMomentumOptimizer(0.1)) for _ in "ab"
    )
    for _ in range(3):
        loss = whole.train_step(x, y)
        assert cut.train_step(x, y, micro_batches=4) == pytest.approx(loss, rel=1e-5)
    for name, array in whole.parameters().items():
        np.testing.assert_allclose(cut.parameters()[name], array, rtol=1e-4, atol=1e-6)
    with pytest.raises(ArrayError, match="divisor of 240 samples; got 7"):
        cut.train_step(x, y, micro_batches=7)


def test_schedules_set_the_rate():
    x, y = blobs()
    seen = []

    class Watch(Callback):
        def on_step(self, network, step, loss):
            seen.append(network.optimizer.learning_rate)

    network = Network([Dense(3)])
    rate = piecewise((0, 0.5), (2, 0.25))
    network.fit(x, y, batch_size=60, learning_rate=rate, callbacks=[Watch()])
    assert seen == [0.5, 0.5, 0.25, 0.25]
    assert exponential(1, 0.1, every=2)(5) == pytest.approx(0.01)
    assert cosine(1, 4)(0) == 1
    assert cosine(1, 4, last=0.5)(4) == 0.5
    with pytest.raises(ArrayError, match="step 0"):
        piecewise((1, 0.5))


def test_early_stopping_restores_the_best():
    x, y = blobs()
    network = Network([Dense(3)], optimizer=SGDMomentumOptimizer(0.1))

    class Spoil(Callback):
        def on_epoch(self, network, history):
            if len(history.rows) == 2:
                self.best = {k: v.copy() for k, v in network.state().items()}
                network.optimizer.learning_rate = -1.0  # away from the minimum

    spoil, stop = Spoil(), EarlyStopping(patience=2, monitor="loss")
    history = network.fit(x, y, epochs=50, callbacks=[spoil, stop])
    assert len(history.rows) < 10
    assert stop.best == history["loss"][1] == min(history["loss"])
    for name, array in network.state().items():
        assert_same_bits(array, spoil.best[name])


def test_progress_and_plots(capsys):
    x, y = blobs()
    history = Network([Dense(3)]).fit(x, y, epochs=2, progress=True, validation=(x, y))
    said = capsys.readouterr().err.strip().split("\n")
    assert len(said) == 2
    assert "validation accuracy" in said[1]
    pytest.importorskip("matplotlib").use("agg")
    assert len(history.plot().lines) == 3


# ---- runs ----


RUNS = {
    "dense": ((8,), lambda: [Dense(16, "relu", normalization="batch"), Dense(3)]),
    "large enough for the pool": (
        (1, 28, 28),
        lambda: [
            Convolution(16, 3, padding=1, normalization="batch", activation="relu"),
            Pool("max", 2),
            Dense(3),
        ],
    ),
}


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("name", RUNS)
def test_threads_train_their_own_networks_to_the_same_bits(name, count):
    shape, blocks = RUNS[name]
    x, y = random_batch(96, *shape), np.arange(96) % 3

    def run(seed, into):
        network = Network(blocks(), seed=seed)
        losses = network.fit(x, y, epochs=3).losses
        into[seed] = losses, {k: array.tobytes() for k, array in network.state().items()}

    alone, together = {}, {}
    for seed in range(count):
        run(seed, alone)
    in_threads(count, lambda seed: run(seed, together))
    assert together == alone


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_thousand_steps_hold_no_more_memory_than_fifty():
    code = """
import os, numpy as np
from openbnns import Network, set_num_threads
from openbnns.blocks import Convolution, Dense, Pool

set_num_threads(1)  # a worker touches its own memory whenever it first helps

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

stage = Convolution(8, 3, padding=1, normalization="batch", activation="relu"), Pool("max", 2)
for blocks, shape in (([Dense(32, "relu"), Dense(10)], (64,)), ([*stage, Dense(10)], (1, 12, 12))):
    network = Network(blocks, input=shape)
    x, y = np.ones((32, *shape), "f4"), np.arange(32) % 10
    for _ in range(50):
        network.train_step(x, y)
    before = resident()
    for _ in range(1000):
        network.train_step(x, y)
    print(resident() - before)
    x, y = np.tile(x, (50,) + (1,) * len(shape)), np.tile(y, 50)
    network.fit(x, y)
    before = resident()
    network.fit(x, y, epochs=20)
    print(resident() - before)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    grown = [int(line) for line in done.stdout.split()]
    assert len(grown) == 4
    # the system may round up to a large page; the smallest batch left behind per step would be 8 MB
    assert max(grown) <= 2.5 * 2**20


LONG_RUN = """
import signal, sys, numpy as np
from openbnns import AdamOptimizer, Network
from openbnns.blocks import Dense
from openbnns.training import Callback, Checkpoint

class Tell(Callback):
    def on_start(self, network):
        print("started", flush=True)

# What a shell starts in the background ignores Ctrl-C, and so do its children.
signal.signal(signal.SIGINT, signal.default_int_handler)
x = np.random.default_rng(0).normal(size=(512, 1024)).astype("f4")
network = Network([Dense(32, "tanh"), Dense(4)], optimizer=AdamOptimizer(0.001))
save = Checkpoint(sys.argv[1], every=3)
network.fit(x, np.arange(512) % 4, epochs=10**9, batch_size=64, callbacks=[save, Tell()])
"""


@pytest.mark.skipif(os.name != "posix", reason="sends SIGINT")
@pytest.mark.parametrize(
    "seed", [*range(5), *(pytest.param(s, marks=pytest.mark.long) for s in range(5, 30))]
)
def test_ctrl_c_at_any_moment_leaves_a_checkpoint_and_nothing_else(tmp_path, seed):
    """Batches here are so large that a thread makes them."""
    path = tmp_path / "network.safetensors"
    command = [sys.executable, "-c", LONG_RUN, str(path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout.readline() == "started\n"
            time.sleep(random.Random(seed).uniform(0, 0.2))
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == -signal.SIGINT
    assert said.startswith("Traceback")
    assert said.strip().endswith("KeyboardInterrupt")
    assert "ignored" not in said
    assert os.listdir(tmp_path) == [path.name]
    network = Network.load(path, optimizer=AdamOptimizer(0.001))
    assert network.steps % 3 == 0 or network.steps % 8 == 0
    x = random_batch(512, 1024)
    again = Network.load(path, optimizer=AdamOptimizer(0.001))
    losses = [n.fit(x, np.arange(512) % 4, batch_size=64).losses for n in (network, again)]
    assert losses[0] == losses[1]
    assert np.isfinite(losses[0]).all()


def test_fit_ends_the_thread_that_makes_batches_when_it_fails(monkeypatch):
    monkeypatch.setattr(openbnns.training, "_WORTH_A_THREAD", 1)
    x, y = blobs()

    class Stop(Callback):
        def on_step(self, network, step, loss):
            raise KeyboardInterrupt

    threads = _thread._count()
    with pytest.raises(KeyboardInterrupt) as caught:
        Network([Dense(3)]).fit(x, y, batch_size=8, callbacks=[Stop()])
    assert caught.traceback  # alive, and what it refers to
    assert ends_with(threads)


INTERRUPTED = """
import random, signal, _thread
from openbnns.training import ahead

def interrupt(*_):
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, interrupt)
draw, interrupted = random.Random(1), 0
for _ in range(1000):
    batches = ahead(iter([(n, n) for n in range(30)]))
    try:
        signal.setitimer(signal.ITIMER_REAL, draw.uniform(5e-6, 6e-4))
        assert [n for n, _ in batches] == list(range(30))
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        interrupted += 1
    batches.close()
print(interrupted)
"""


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="sets a timer")
def test_batches_made_ahead_end_whenever_they_are_interrupted():
    """Over and over, at moments of microseconds: no lock stays taken, nothing waits for ever."""
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) > 0


def test_interrupted_runs_leave_a_whole_file(tmp_path):
    """Ctrl-C in the middle of an epoch: what was saved goes on to the bits of an unbroken run."""
    x, y = blobs(64)
    path = tmp_path / "network.safetensors"

    class Interrupt(Callback):
        def on_step(self, network, step, loss):
            if step == 11:
                raise KeyboardInterrupt

    def network():
        return Network([Dense(8, "tanh"), Dense(3)], optimizer=AdamOptimizer(0.01))

    whole = network()
    whole.fit(x, y, epochs=4, batch_size=16)
    with pytest.raises(KeyboardInterrupt):
        network().fit(x, y, epochs=4, batch_size=16, callbacks=[Checkpoint(path), Interrupt()])
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    again = Network.load(path, optimizer=AdamOptimizer(0.01))
    assert again.steps == 8
    again.fit(x, y, epochs=2, batch_size=16)
    for name, array in whole.state().items():
        assert_same_bits(again.state()[name], array)
    again.fit(x, y, batch_size=16, callbacks=[Checkpoint(path, every=3)])
    assert Network.load(path).steps == 20
