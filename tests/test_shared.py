"""Objects that threads share: calls on them are right, or refused with a sentence. And arrays that
layers go on reading: nobody moves their memory."""

import os
import pickle
import sys
import threading
import time

import numpy as np
import openbnns as bnns
import pytest
from cases import in_threads
from openbnns import LayerApplyError, Network, OptimizerStepError
from openbnns.blocks import Activate, Branch, Convolution, Dense, Normalize
from openbnns.training import Callback

RANDOM = np.random.default_rng(5)


def image_network(**given):
    inner = [Convolution(4, padding=1, normalization="batch", activation="relu")]
    blocks = [Convolution(4, padding=1), Branch(inner, []), Activate("tanh"), Dense(3)]
    return Network(blocks, input=(2, 6, 6), seed=1, **given)


def images(count):
    return RANDOM.normal(size=(count, 2, 6, 6)).astype("f4")


class Gate:
    """Holds one thread inside a call until another has tried its own."""

    def __init__(self):
        self.is_inside, self.may_go = threading.Event(), threading.Event()

    def wait(self):
        self.is_inside.set()
        assert self.may_go.wait(30)

    def while_inside(self, work, trial):
        """trial() while another thread is held inside work()."""
        failed = []

        def run():
            try:
                work()
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            assert self.is_inside.wait(30)
            return trial()
        finally:
            self.may_go.set()
            thread.join()
            assert not failed, failed


class Held(bnns.blocks.Block):
    """A block that waits in its forward call; does nothing else."""

    def __init__(self):
        self.gate = None

    def build(self, shape, random):
        return shape

    def forward(self, x, y, *, training, saved):
        y[...] = x
        if self.gate is not None:
            gate, self.gate = self.gate, None
            gate.wait()

    def backward(self, x, y, grad_output, input_gradient, gradients, *, saved):
        if input_gradient is not None:
            input_gradient[...] = grad_output


# ---- networks ----


def test_threads_that_share_a_network_get_their_own_results():
    network = Network([Dense(256, "tanh"), Dense(3)], input=(64,), seed=1)
    batches = [RANDOM.normal(size=(n, 64)).astype("f4") for n in (256, 256, 256, 300, 256, 300)]
    labels = [RANDOM.integers(3, size=len(x)) for x in batches]
    expected = [network.predict(x) for x in batches]
    losses = [network.evaluate(x, y) for x, y in zip(batches, labels, strict=True)]

    def work(number):
        x = batches[number]
        for _ in range(20):
            np.testing.assert_array_equal(network.predict(x), expected[number])
            np.testing.assert_array_equal(network.forward(x), expected[number])
            assert network.evaluate(x, labels[number]) == losses[number]

    in_threads(6, work)


@pytest.mark.parametrize("call", ["predict", "forward"])
def test_a_call_keeps_its_memory_to_itself(call):
    network, gate, found = Network([Held(), Activate("relu")], input=(4,), loss="mse"), Gate(), {}
    network.blocks[0].gate = gate

    def run(value):
        found[value] = getattr(network, call)(np.full((2, 4), value, "f4"))

    def trial():  # it ends now, and spoils the other's memory; or it waits
        other = threading.Thread(target=run, args=(2,))
        other.start()
        other.join(0.3)
        return other

    gate.while_inside(lambda: run(1), trial).join()
    for value, result in found.items():
        np.testing.assert_array_equal(result, np.full((2, 4), value))


def test_the_first_calls_of_threads_build_a_network_once():
    for _ in range(5):
        network = Network([Dense(3)], loss="mse")
        x, found = np.ones((2, 4), "f4"), []
        in_threads(4, lambda _: found.append(network.predict(x)))  # noqa: B023
        for result in found:
            np.testing.assert_array_equal(result, found[0])


def test_results_of_forward_are_the_callers():
    network = image_network()
    first = network.forward(images(2))
    kept = first.copy()
    network.forward(images(2))
    np.testing.assert_array_equal(first, kept)


CHANGES = {
    "fit": lambda n: n.fit(np.ones((2, 4), "f4"), np.ones((2, 4), "f4")),
    "train_step": lambda n: n.train_step(np.ones((2, 4), "f4"), np.ones((2, 4), "f4")),
    "forward": lambda n: n.forward(np.ones((2, 4), "f4"), training=True),
    "load_state": lambda n: n.load_state(n.state()),
    "freeze": lambda n: n.freeze(),
    "check_gradients": lambda n: bnns.check_gradients(n, np.ones((2, 4), "f4")),
}
READS = {
    "predict": lambda n: n.predict(np.ones((2, 4), "f4")),
    "forward": lambda n: n.forward(np.ones((2, 4), "f4")),
    "evaluate": lambda n: n.evaluate(np.ones((2, 4), "f4"), np.ones((2, 4), "f4")),
    "save": lambda n: n.save("network.safetensors"),
    "summary": lambda n: n.summary(),
}


def held_network():
    return Network([Dense(4), Held()], input=(4,), loss="mse")


@pytest.mark.parametrize("call", CHANGES)
def test_training_that_meets_another_call_is_refused(call):
    network, gate = held_network(), Gate()
    network.blocks[1].gate = gate
    before = {name: array.copy() for name, array in network.state().items()}

    def trial():
        with pytest.raises(LayerApplyError, match=r"\[Network\] threads: expected no other call"):
            CHANGES[call](network)

    gate.while_inside(lambda: READS["predict"](network), trial)
    for name, array in network.state().items():
        np.testing.assert_array_equal(array, before[name])
    CHANGES[call](network)  # now it may


@pytest.mark.parametrize("call", READS | {"train_step": CHANGES["train_step"]})
def test_calls_that_meet_training_are_refused(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    network, gate = held_network(), Gate()
    network.blocks[1].gate = gate

    def trial():
        with pytest.raises(LayerApplyError, match=r"\[Network\] threads: expected no"):
            (READS | CHANGES)[call](network)

    gate.while_inside(lambda: CHANGES["fit"](network), trial)


def test_callbacks_use_the_network_that_is_trained():
    network, seen = image_network(), []

    class Look(Callback):
        def on_step(self, network, step, loss):
            seen.append(network.predict(x).sum())

        def on_epoch(self, network, history):
            network.evaluate(x, y)
            network.load_state(network.state())
            network.train_step(x, y)

    x, y = images(4), np.array([0, 1, 2, 0])
    network.fit(x, y, epochs=2, batch_size=2, callbacks=[Look()])
    assert len(seen) == 4


def test_gradients_of_another_threads_forward_are_refused():
    network = image_network()
    x, grad = images(2), np.ones((2, 3), "f4")
    network.forward(x, training=True)
    wanted = network.backward(grad).copy()
    network.forward(x, training=True)
    in_threads(1, lambda _: network.forward(images(2), training=True))
    with pytest.raises(LayerApplyError, match="another one"):
        network.backward(grad)
    network.forward(x, training=True)
    np.testing.assert_array_equal(network.backward(grad), wanted)


def test_gradients_may_be_had_by_another_thread():
    network = image_network()
    network.forward(images(2), training=True)
    in_threads(1, lambda _: network.backward(np.ones((2, 3), "f4")))


def test_gradients_are_those_of_the_last_training_call():
    network = image_network()
    x, grad = images(2), np.ones((2, 3), "f4")
    network.forward(x, training=True)
    network.train_step(x, np.zeros(2, int))
    with pytest.raises(bnns.ArrayError, match="last training forward"):
        network.backward(grad)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_networks_work_after_a_fork_in_the_middle_of_a_call():
    network, gate = held_network(), Gate()
    network.blocks[1].gate = gate

    def trial():
        child = os.fork()
        if child == 0:
            code = 1
            try:
                network.train_step(np.ones((2, 4), "f4"), np.ones((2, 4), "f4"))
                network.predict(np.ones((2, 4), "f4"))
                code = 0
            finally:
                os._exit(code)
        for _ in range(300):
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return status
            time.sleep(0.1)
        os.kill(child, 9)
        os.waitpid(child, 0)
        return "hangs"

    assert gate.while_inside(lambda: READS["predict"](network), trial) == 0


def test_turns_are_left_after_errors_and_copied_anew():
    from openbnns._turn import Turn

    turn = Turn("Thing")
    for way in (turn.shared, turn.alone):
        with pytest.raises(ZeroDivisionError), way, turn.shared:
            raise ZeroDivisionError
    copy = pickle.loads(pickle.dumps(turn))

    def other(_):
        with turn.alone, copy.alone:
            pass

    in_threads(1, other)

    def refused(_):
        with pytest.raises(LayerApplyError, match=r"\[Thing\] threads"), turn.shared:
            pass

    with turn.alone:
        in_threads(1, refused)


# ---- what networks are made of ----


def norm_layer():
    return bnns.NormalizationLayer(
        "batch",
        input=(3,),
        gamma=np.ones(3, "f4"),
        beta=np.zeros(3, "f4"),
        moving_mean=np.zeros(3, "f4"),
        moving_variance=np.ones(3, "f4"),
    )


def fused_layer():
    return bnns.FusedFullyConnectedNormalizationLayer(
        np.eye(3, dtype="f4"),
        normalization="batch",
        gamma=np.ones(3, "f4"),
        beta=np.zeros(3, "f4"),
        moving_mean=np.zeros(3, "f4"),
        moving_variance=np.ones(3, "f4"),
    )


@pytest.mark.parametrize("make", [norm_layer, fused_layer])
def test_layers_refuse_gradients_of_an_earlier_training_call(make):
    layer = make()
    x = RANDOM.normal(size=(5, 3)).astype("f4")
    y = layer.apply(x, training=True)
    in_threads(1, lambda _: layer.apply(x[::-1].copy(), training=True))
    with pytest.raises(LayerApplyError, match="last training call"):
        layer.apply_backward(x, y, x)
    layer.apply(x, training=True)
    layer.apply_backward(x, y, x)


@pytest.mark.parametrize("make", [norm_layer, fused_layer])
def test_gradients_of_a_layer_may_be_had_by_another_thread(make):
    layer = make()
    x = RANDOM.normal(size=(5, 3)).astype("f4")
    for _ in range(3):
        y = layer.apply(x, training=True)
        in_threads(1, lambda _: layer.apply_backward(x, y, x))  # noqa: B023


@pytest.mark.parametrize("make", [norm_layer, fused_layer])
def test_layers_that_train_are_right_or_refuse(make):
    """No result is a mixture: whoever gets one gets that of a call alone."""
    batches = [RANDOM.normal(size=(2000, 3)).astype("f4") for _ in range(4)]
    expected = [make().apply(x, training=True) for x in batches]
    layer, outcomes = make(), []

    def work(number):
        for _ in range(60):
            try:
                y = layer.apply(batches[number], training=True)
            except LayerApplyError as error:
                outcomes.append(str(error).partition("; ")[0].partition(": ")[2])
                continue
            np.testing.assert_array_equal(y, expected[number])
            outcomes.append("right")

    in_threads(4, work)
    assert "right" in outcomes
    assert set(outcomes) <= {"right", "expected one training or backward call at a time"}


def test_steps_of_a_bound_optimizer_meet_nobody():
    w = np.ones(100_000, "f4")
    bound = bnns.AdamOptimizer(0.1).bind([w])
    done, refused = [], []

    def work(_):
        for _ in range(30):
            try:
                bound.step([np.ones_like(w)])
            except OptimizerStepError as error:
                refused.append(str(error))
            else:
                done.append(1)

    in_threads(4, work)
    assert bound.time_step == 1 + len(done)
    assert all(sentence.startswith("[AdamOptimizer] threads") for sentence in refused)
    alone = np.ones_like(w)
    other = bnns.AdamOptimizer(0.1).bind([alone])
    for _ in done:
        other.step([np.ones_like(w)])
    np.testing.assert_array_equal(w, alone)


def test_threads_draw_parts_of_one_stream():
    generator = bnns.RandomGenerator(3)
    whole = generator.uniform(0, 1, 8 * 1000).reshape(-1, 1000)
    generator, found = bnns.RandomGenerator(3), []
    in_threads(8, lambda _: found.append(generator.uniform(0, 1, 1000)))
    order = sorted(map(tuple, found))
    assert order == sorted(map(tuple, whole))


def test_estimators_are_shared_by_threads():
    pytest.importorskip("sklearn")
    from openbnns.sklearn import BNNSClassifier

    x = RANDOM.normal(size=(60, 4))
    y = (x[:, 0] > 0).astype(int)
    model = BNNSClassifier(hidden=(8,), epochs=3).fit(x, y)
    expected, before = model.predict_proba(x), model.network_
    refused = []

    def work(number):
        for _ in range(10):
            if number:
                try:
                    np.testing.assert_array_equal(model.predict_proba(x), expected)
                except LayerApplyError:
                    refused.append(number)
            else:
                try:
                    model.fit(x, y)
                except LayerApplyError:
                    refused.append(number)

    in_threads(4, work)
    np.testing.assert_array_equal(model.predict_proba(x), expected)
    assert before is not None
    pickle.loads(pickle.dumps(model)).predict(x)


def test_estimators_refuse_what_meets_a_fit(monkeypatch):
    pytest.importorskip("sklearn")
    from openbnns.sklearn import BNNSRegressor

    x = RANDOM.normal(size=(20, 4))
    model, gate, fit = BNNSRegressor(hidden=(3,), epochs=2).fit(x, x[:, 0]), Gate(), Network.fit

    def held(*args, **given):
        gate.wait()
        return fit(*args, **given)

    monkeypatch.setattr(Network, "fit", held)

    def trial():
        for call in (lambda: model.predict(x), lambda: model.fit(x, x[:, 1])):
            with pytest.raises(LayerApplyError, match=r"\[BNNSRegressor\] threads"):
                call()

    gate.while_inside(lambda: model.fit(x, x[:, 0]), trial)
    model.predict(x)


def test_torch_modules_are_shared_by_threads():
    torch = pytest.importorskip("torch")
    from openbnns.torch import Module

    module = Module([Dense(8, "relu"), Normalize("batch"), Dense(2)], input=(4,)).eval()
    batches = [torch.randn(3, 4) for _ in range(4)]
    expected = [module(x) for x in batches]

    def work(number):
        for _ in range(40):
            assert torch.equal(module(batches[number]), expected[number])

    in_threads(4, work)
    module.train()
    y = module(batches[0])
    in_threads(1, lambda _: module(batches[1]))
    with pytest.raises(LayerApplyError, match="an earlier one"):
        y.sum().backward()


# ---- arrays that somebody goes on reading ----


def bfloat16(*shape):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    return np.ones(shape, ml_dtypes.bfloat16)


def kept_arrays():
    """Name → (array, whoever reads it, a call that does)."""
    f4 = lambda *shape: np.ones(shape, "f4")  # noqa: E731
    x, rows = f4(2, 4), f4(2, 3, 4)

    def weights(array):
        layer = bnns.FullyConnectedLayer(array)
        return layer, lambda: layer.apply(x)

    def convolution(array):
        layer = bnns.ConvolutionLayer(array, input=(1, 4, 4))
        return layer, lambda: layer.apply(f4(1, 1, 4, 4))

    def bias(array):
        layer = bnns.FullyConnectedLayer(f4(4, 4), bias=array)
        return layer, lambda: layer.apply(x)

    def half(array):
        layer = bnns.FullyConnectedLayer(array, input=bfloat16(2, 4))
        return layer, lambda: layer.apply(bfloat16(2, 4))

    def statistics(array):
        layer = bnns.NormalizationLayer(
            "batch", input=(4,), gamma=f4(4), beta=f4(4), moving_mean=array, moving_variance=f4(4)
        )
        return layer, lambda: layer.apply(x, training=True)

    def borrowed(array):
        layer = bnns.NormalizationLayer(
            "layer", input=(4,), gamma=f4(4), beta=f4(4), borrow_input=True
        )
        y = layer.apply(array, training=True)
        return layer, lambda: layer.apply_backward(None, y, x)

    def fused(array):
        layer = bnns.FusedFullyConnectedNormalizationLayer(
            array,
            normalization="batch",
            gamma=f4(4),
            beta=f4(4),
            moving_mean=f4(4),
            moving_variance=f4(4),
        )
        return layer, lambda: layer.apply(x, training=True)

    def attention(array):
        one, two = bnns.Projection(array), bnns.Projection(f4(4, 4))
        layer = bnns.MultiheadAttention(one, one, one, two, lengths=3)
        return layer, lambda: layer.apply(rows, rows, rows)

    def optimizer(array):
        bound = bnns.AdamOptimizer().bind([array])
        return bound, lambda: bound.step([f4(4)])

    def accumulator(_):
        bound = bnns.AdamOptimizer().bind([f4(4)])
        return (bound, bound._arena), lambda: bound.step([f4(4)])

    def network(_):
        network = Network([Dense(4)], input=(4,), loss="mse")
        network.train_step(x, x)
        return (network, network.parameters()["dense_1.weights"]), lambda: network.train_step(x, x)

    def arena(_):
        network = Network([Dense(4)], input=(4,), loss="mse")
        network.train_step(x, x)
        owner = network.plan(2).output
        while owner.base is not None:
            owner = owner.base
        return (network, owner), lambda: network.train_step(x, x)

    def view(array):
        layer = bnns.FullyConnectedLayer(array[:4])
        return layer, lambda: layer.apply(x)

    def through_memoryview(array):
        layer = bnns.FullyConnectedLayer(memoryview(array))
        return layer, lambda: layer.apply(x)

    return {
        "weights": (f4(4, 4), weights),
        "convolution": (f4(1, 1, 3, 3), convolution),
        "bias": (f4(4), bias),
        "statistics": (f4(4), statistics),
        "borrowed": (f4(2, 4), borrowed),
        "fused": (f4(4, 4), fused),
        "attention": (f4(2, 2, 4), attention),
        "optimizer": (f4(4), optimizer),
        "accumulator": (None, accumulator),
        "network": (None, network),
        "arena": (None, arena),
        "view": (f4(6, 4), view),
        "memoryview": (f4(4, 4), through_memoryview),
        "bfloat16": (None, half),
    }


@pytest.mark.skipif(sys.implementation.name != "cpython", reason="resize needs reference counts")
@pytest.mark.parametrize("name", kept_arrays())
def test_memory_that_is_kept_stays_where_it_is(name):
    array, make = kept_arrays()[name]
    if name == "bfloat16":
        array = bfloat16(4, 4)
    keeper, call = make(array)
    if array is None:
        keeper, array = keeper
    with pytest.raises(ValueError, match="cannot resize"):
        array.resize((1 << 24,), refcheck=False)
    call()
    if isinstance(keeper, bnns.Layer):
        keeper.close()
        array.resize((2, 2), refcheck=False)  # nobody reads it any more
