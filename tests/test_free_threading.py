"""Eight Python threads at once, on layers of their own and on shared ones: the results of one.

With a global lock these run in turns; an interpreter without one (`make free-threaded`) runs them
side by side.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import threading

import numpy as np
import openbnns as bnns
import pytest
from cases import in_threads
from openbnns.blocks import Attention, Convolution, Dense, Embedding, Normalize, Pool, Rows
from openbnns.io import load_checkpoint, save_checkpoint

THREADS = 8
free_threaded = pytest.mark.skipif(
    not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="this interpreter has a global lock"
)


def values(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def together(work):
    """work(number) in eight threads that begin at the same moment; what any raised is raised."""
    start, failures = threading.Barrier(THREADS), []

    def guarded(number):
        start.wait()
        try:
            work(number)
        except BaseException as error:
            failures.append(error)

    in_threads(THREADS, guarded)
    if failures:
        raise failures[0]


def assert_same_bits(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one.view(np.uint32), other.view(np.uint32))


@free_threaded
def test_imports_leave_the_lock_off():
    program = (
        "import sys, openbnns, openbnns.c, openbnns.io, openbnns.checking\n"
        "assert not sys._is_gil_enabled()\n"
        "openbnns.ActivationLayer('relu', input=(3,))\n"
        "assert not sys._is_gil_enabled()\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)
    assert not sys._is_gil_enabled()


# ---- layers ----


def convolution():
    layer = bnns.ConvolutionLayer(
        values(8, 4, 3, 3, seed=1), input=(4, 12, 12), padding=1, bias=values(8), activation="relu"
    )
    x = values(3, 4, 12, 12)

    def run():
        y = layer.apply(x)
        g = layer.apply_backward(x, y, y)
        return [y, g.input, g.weights, g.bias]

    return layer, run


def dense():
    layer = bnns.FullyConnectedLayer(values(24, 40, seed=1), bias=values(24), activation="tanh")
    x = values(9, 40)

    def run():
        y = layer.apply(x)
        g = layer.apply_backward(x, y, y)
        return [y, g.input, g.weights, g.bias]

    return layer, run


def pooling():
    layer = bnns.PoolingLayer("max", input=(4, 16, 16), kernel_size=3, stride=2)
    x = values(5, 4, 16, 16)

    def run():
        y, indices = layer.apply(x, return_indices=True)
        return [y, indices, layer.apply_backward(x, y, y, indices=indices).input]

    return layer, run


def activation():
    layer = bnns.ActivationLayer("gelu", input=(500,))
    x = values(20, 500)

    def run():
        y = layer.apply(x)
        return [y, layer.apply_backward(x, y, y).input]

    return layer, run


def loss():
    layer = bnns.LossLayer("softmax_cross_entropy", input=(10,))
    x, labels = values(30, 10), np.arange(30) % 10

    def run():
        value, gradient = layer.apply(x, labels, input_gradient=True)
        return [np.asarray(value, np.float32), gradient]

    return layer, run


def matmul():
    layer = bnns.BroadcastMatrixMultiplyLayer(input_a=(20, 30), input_b=(30, 10))
    a, b = values(4, 20, 30), values(4, 30, 10, seed=1)
    return layer, lambda: [layer.apply(a, b)]


SHARED = [convolution, dense, pooling, activation, loss, matmul]


def test_threads_have_layers_of_their_own():
    """Made, used and closed while others do the same."""
    alone = [[array.copy() for array in make()[1]()] for make in SHARED]

    def work(number):
        for turn in range(12):
            which = (number + turn) % len(SHARED)
            layer, run = SHARED[which]()
            assert_same_bits(run(), alone[which])
            layer.close()
            assert layer.closed

    together(work)


@pytest.mark.parametrize("make", SHARED, ids=lambda make: make.__name__)
def test_threads_share_a_layer(make):
    _, run = make()
    alone = [array.copy() for array in run()]

    def work(_):
        for _ in range(25):
            assert_same_bits(run(), alone)

    together(work)


def test_threads_that_train_one_layer_are_told_apart():
    """Whoever comes second is refused; whoever is let in has the right result."""
    layer = bnns.NormalizationLayer(
        "batch",
        input=(4, 10, 10),
        gamma=values(4),
        beta=values(4, seed=1),
        moving_mean=np.zeros(4, "f4"),
        moving_variance=np.ones(4, "f4"),
    )
    x = values(6, 4, 10, 10)
    expected = layer.apply(x, training=True).copy()
    done = [0] * THREADS

    def work(number):
        for _ in range(40):
            try:
                y = layer.apply(x, training=True)
            except bnns.LayerApplyError as error:
                if "one training or backward call at a time" not in str(error):
                    raise
            else:
                assert_same_bits([y], [expected])
                done[number] += 1

    together(work)
    assert sum(done) > 0


def test_threads_close_what_others_use():
    for _ in range(10):
        layer, run = dense()
        alone = run()

        def work(number, layer=layer, run=run, alone=alone):
            if number % 2:
                layer.close()
                return
            try:
                while True:
                    assert_same_bits(run(), alone)
            except bnns.LayerApplyError as error:
                if "closed" not in str(error):
                    raise

        together(work)


def test_each_thread_has_its_own_sentence():
    layer = bnns.FullyConnectedLayer(values(3, 5))

    def work(number):
        for _ in range(50):
            with pytest.raises(bnns.ArrayError, match=rf"got \(2, {number + 6}\)"):
                layer.apply(np.zeros((2, number + 6), np.float32))
            with pytest.raises(bnns.LayerCreationError, match=f"got '{number}'"):
                bnns.ActivationLayer(str(number), input=(3,))

    together(work)


def test_threads_change_the_settings():
    before = bnns.get_num_threads()
    _, run = convolution()
    alone = run()

    def work(number):
        for turn in range(20):
            bnns.set_num_threads(1 + (number + turn) % 4)
            assert_same_bits(run(), alone)

    try:
        together(work)
    finally:
        bnns.set_num_threads(before)


# ---- what is built from layers ----


def images():
    blocks = [
        Convolution(6, 3, padding=1, normalization="batch", activation="relu"),
        Pool("max", 2),
        Normalize("instance"),
        Dense(8, "relu"),
        Dense(3),
    ]
    return bnns.Network(blocks, input=(2, 8, 8), optimizer=bnns.AdamOptimizer(0.01))


def letters():
    blocks = [Embedding(7, 8), Attention(2, causal=True), Rows(Dense(3))]
    return bnns.Network(blocks, input=(8,), optimizer=bnns.AdamOptimizer(0.01))


def test_threads_train_networks_of_their_own():
    x, y = values(24, 2, 8, 8), np.arange(24) % 3
    numbers, classes = np.arange(96).reshape(12, 8) % 7, np.arange(96).reshape(12, 8) % 3

    def trained():
        one, other = images(), letters()
        losses = [*one.fit(x, y, epochs=3, batch_size=8).losses]
        losses += other.fit(numbers, classes, epochs=3, batch_size=4).losses
        return losses, [*one.state().values(), *other.state().values()]

    losses, state = trained()

    def work(_):
        found = trained()
        assert found[0] == losses
        assert_same_bits(found[1], state)

    together(work)


def test_threads_step_optimizers_of_their_own():
    def stepped():
        w = values(50, 3)
        bound = bnns.AdamOptimizer(0.1, gradient_clipping=bnns.ClipByNorm(1)).bind([w])
        for step in range(30):
            bound.step([values(50, 3, seed=step)])
        return [w, *bound.accumulators]

    alone = stepped()
    together(lambda _: assert_same_bits(stepped(), alone))


def test_threads_draw_from_one_generator():
    """In some order, each number once: together they are what one thread would have drawn."""
    generator = bnns.RandomGenerator(5)
    drawn = [[] for _ in range(THREADS)]

    def work(number):
        for _ in range(50):
            drawn[number].append(generator.integers(0, 1 << 30, 4))

    together(work)
    found = sorted(tuple(row.tolist()) for rows in drawn for row in rows)
    again = bnns.RandomGenerator(5)
    assert found == sorted(tuple(again.integers(0, 1 << 30, 4).tolist()) for _ in range(400))


def test_threads_save_and_load(tmp_path):
    network = images()
    network.save(tmp_path / "n", optimizer=True)
    expected = [array.copy() for array in network.state().values()]

    def work(number):
        for turn in range(5):
            save_checkpoint(tmp_path / f"{number % 2}", {"w": np.full(9, turn, np.float32)})
            w = load_checkpoint(tmp_path / f"{number % 2}")[0]["w"]
            assert (w == w[0]).all()
            found = bnns.Network.load(tmp_path / "n", optimizer=bnns.AdamOptimizer())
            assert_same_bits(found.state().values(), expected)

    together(work)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "n"]
