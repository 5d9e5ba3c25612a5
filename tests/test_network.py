"""Networks: gradients against differences, plans, steps, files, words."""

import copy
import json
import warnings

import numpy as np
import openbnns
import pytest
from cases.samples import blobs, random_batch
from hypothesis import given
from hypothesis import strategies as st
from openbnns import (
    AdamOptimizer,
    ArrayError,
    CheckpointError,
    ClipByValue,
    LayerCreationError,
    Network,
    TrainingError,
    _core,
    check_gradients,
)
from openbnns.__main__ import main
from openbnns._plan import _Buffer, _place
from openbnns.blocks import (
    Activate,
    Attention,
    Block,
    Branch,
    Convolution,
    Dense,
    Embedding,
    Flatten,
    Normalize,
    Pool,
    Position,
    Rows,
    initial,
)
from openbnns.checking import check_all
from openbnns.examples import digits
from oracles.tolerance import assert_same_bits


class Scale(Block):
    """A block of a user's own, in NumPy."""

    slope = 1.0  # other numbers: a wrong gradient

    def build(self, shape, random):
        self.parameters = {"factor": random.normal(size=shape).astype(np.float32)}
        return shape

    def forward(self, x, y, *, training, saved):
        np.multiply(x, self.parameters["factor"], out=y)

    def backward(self, x, y, grad_output, input_gradient, gradients, *, saved):
        if "factor" in gradients:
            np.sum(grad_output * x, axis=0, out=gradients["factor"])
            gradients["factor"] *= self.slope
        if input_gradient is not None:
            np.multiply(grad_output, self.parameters["factor"], out=input_gradient)


# ---- gradients ----

IMAGES = (2, 3, 7, 6)
NETWORKS = {
    "dense": ((5, 4), lambda: [Dense(6, "tanh"), Dense(3)]),
    "dense without bias": ((5, 4), lambda: [Dense(3, bias=False)]),
    "dense and batch norm": (
        (6, 4),
        lambda: [Dense(5, "sigmoid", normalization="batch"), Dense(2)],
    ),
    "activation that needs x": ((5, 4), lambda: [Dense(6, "gelu"), Dense(3, "silu")]),
    "convolution": (IMAGES, lambda: [Convolution(4, 3, padding=1, activation="tanh")]),
    "convolution, groups": (IMAGES, lambda: [Convolution(6, 3, groups=3, stride=2, bias=False)]),
    "convolution and batch norm": (
        IMAGES,
        lambda: [Convolution(4, (3, 2), normalization="batch", activation="sigmoid")],
    ),
    "convolution, norm, gelu": (
        IMAGES,
        lambda: [Convolution(4, 3, normalization="instance", activation="gelu")],
    ),
    "max": (IMAGES, lambda: [Convolution(4, 3), Pool("max", 2), Dense(3)]),
    "average": (IMAGES, lambda: [Pool("average", 3, stride=2, padding=1), Dense(3)]),
    "l2": (IMAGES, lambda: [Convolution(2, 1), Pool("l2_norm", 2)]),
    "layer norm": ((4, 6), lambda: [Normalize("layer"), Dense(3), Normalize("layer", "tanh")]),
    "batch norm": (IMAGES, lambda: [Normalize("batch", "gelu"), Dense(2)]),
    "softmax": ((4, 6), lambda: [Dense(5), Activate("softmax")]),
    "flatten first": (IMAGES, lambda: [Flatten(), Dense(4)]),
    "residual": ((4, 6), lambda: [Dense(5), Branch([Dense(5, "tanh"), Dense(5)], []), Dense(2)]),
    "residual first": ((4, 6), lambda: [Branch([], [Dense(6)])]),
    "twice the same": ((4, 6), lambda: [Dense(3), Branch([], [])]),
    "three paths": (
        (4, 6),
        lambda: [Branch([Dense(3)], [Dense(3, "tanh")], [Dense(4), Dense(3)]), Dense(2)],
    ),
    "side by side": (
        IMAGES,
        lambda: [
            Branch([Convolution(2, 1)], [Convolution(3, 3, padding=1)], [], join="concatenate"),
            Convolution(2, 3),
        ],
    ),
    "side by side, shared": (
        (4, 6),
        lambda: [Dense(4), Branch([], [Dense(3)], [], [Activate("tanh")], join="concatenate")],
    ),
    "branch in a branch": (
        (4, 6),
        lambda: [
            Branch(
                [Dense(4), Branch([Dense(4, "tanh")], [])],
                [Branch([Dense(1)], [Dense(3)], join="concatenate")],
            ),
            Dense(2),
        ],
    ),
    "attention": ((3, 5, 6), lambda: [Attention(3, causal=True), Dense(2)]),
    "attention without bias": ((3, 5, 6), lambda: [Attention(2, bias=False, initializer="he")]),
    "positions": ((3, 5, 6), lambda: [Position(), Rows(Dense(2, "tanh"))]),
    "rows": ((3, 4, 6), lambda: [Rows(Dense(5, "gelu"), Normalize("layer"), Dense(3)), Dense(2)]),
    "rows of rows": ((2, 3, 4, 5), lambda: [Rows(Position(), Rows(Dense(2)), Dense(3))]),
    "rows of images": ((2, 2, 1, 5, 5), lambda: [Rows(Convolution(2, 3), Pool("max", 2))]),
    "a transformer": (
        (3, 5, 6),
        lambda: [
            Position(),
            Branch([Rows(Normalize("layer")), Attention(2, causal=True)], []),
            Branch([Rows(Normalize("layer"), Dense(8, "gelu"), Dense(6))], []),
            Rows(Normalize("layer"), Dense(4)),
        ],
    ),
    "rows side by side": (
        (3, 4, 6),
        lambda: [
            Branch(
                [Rows(Dense(3, "tanh"))],
                [Rows(Dense(3)), Position()],
                [Rows(Dense(3))],
                join="concatenate",
            ),
            Rows(Dense(2)),
        ],
    ),
    "flattened side by side": (
        IMAGES,
        lambda: [Branch([Convolution(2, 3), Flatten()], [Flatten()], join="concatenate")],
    ),
    "own block": ((4, 6), lambda: [Dense(5), Scale(), Dense(2)]),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_follow_the_forward_pass(name):
    shape, make = NETWORKS[name]
    network = Network(make(), loss="mse")
    report = check_gradients(network, random_batch(*shape), entries=12)
    assert report.ok, f"\n{report}"
    assert {row[0] for row in report.rows} == {"input", *network.parameters()}


def test_gradients_of_embeddings_follow_the_forward_pass():
    numbers = np.array([[0, 3, 3], [4, 0, 3]], np.float32)
    for blocks in ([Embedding(5, 4)], [Embedding(5, 4), Position(), Attention(2), Dense(3)]):
        network = Network(blocks, loss="mse", seed=1)
        report = check_gradients(network, numbers)
        assert report.ok, f"\n{report}"
        table = network.gradients()["embedding_1.table"]
        assert (table[[1, 2]] == 0).all()  # they do not occur
        assert (table[[0, 3, 4]] != 0).any(axis=1).all()


def test_numbers_without_a_vector_are_refused():
    network = Network([Embedding(5, 4)], input=(2,), loss="mse")
    table = network.parameters()["embedding_1.table"]
    assert_same_bits(network.predict(np.array([[4, 0]])), table[[4, 0]][None])
    for wrong in (5, -1, np.nan):
        with pytest.raises(ArrayError, match="expected numbers from 0 to 4"):
            network.predict(np.array([[0, wrong]]))


def test_gradients_of_single_layers_are_checked():
    weights, bias = random_batch(3, 4), random_batch(3, seed=1)
    layer = openbnns.FullyConnectedLayer(weights, bias=bias, activation="tanh")
    parameters = {"weights": weights, "bias": bias}
    report = check_gradients(layer, random_batch(5, 4), parameters=parameters)
    assert report.ok, f"\n{report}"
    assert {row[0] for row in report.rows} == {"input", "weights", "bias"}
    gamma = random_batch(3, seed=2)
    norm = openbnns.NormalizationLayer("batch", input=(3,), gamma=gamma)
    assert check_gradients(norm, random_batch(6, 3), parameters={"gamma": gamma}).ok
    with pytest.raises(ArrayError, match="got alpha"):
        check_gradients(layer, random_batch(5, 4), parameters={"alpha": bias})
    with pytest.raises(ArrayError, match="expected float32"):
        check_gradients(layer, np.zeros((5, 4)))


def test_wrong_gradients_are_found():
    block = Scale()
    block.slope = 1.1
    report = check_gradients(block, random_batch(4, 6))
    assert not report.ok
    assert "wrong" in str(report)
    wrong = {row[0] for row in report.rows if row[4] > report.tolerance}
    assert wrong == {"scale_1.factor"}


def test_checking_leaves_everything_as_it_was():
    network = Network([Dense(4, "relu", normalization="batch"), Dense(2)], input=(3,))
    before = {name: array.copy() for name, array in network.state().items()}
    x = random_batch(5, 3)
    kept = x.copy()
    check_gradients(network, x)
    assert_same_bits(x, kept)
    for name, array in network.state().items():
        assert_same_bits(array, before[name])


def test_frozen_blocks_and_dropout_are_set_aside_while_gradients_are_checked():
    def network():
        made = Network([Attention(2, dropout=0.5), Dense(3), Dense(2)], input=(4, 6), seed=1)
        made.freeze("dense_1")
        return made

    checked, other = network(), network()
    x, labels = random_batch(3, 4, 6), np.arange(3) % 2
    losses = [[], []]
    for step in range(4):
        if step == 2:
            report = check_gradients(checked, x, entries=4)
            assert report.ok, f"\n{report}"
            assert "dense_1.weights" in {row[0] for row in report.rows}
        for into, each in zip(losses, (checked, other), strict=True):
            into.append(each.train_step(x, labels))
    assert losses[0] == losses[1]
    assert "dense_1.weights" not in checked.gradients()


def test_targets_that_draw_random_numbers_cannot_be_checked():
    class Noise(Scale):
        def forward(self, x, y, *, training, saved):
            y[...] = x + np.random.default_rng().normal()

    with pytest.raises(openbnns.LayerApplyError, match="same result from the same x"):
        check_gradients(Noise(), random_batch(4, 6))


# ---- the digit program ----


def test_the_digit_program_gives_the_same_losses():
    program = digits.DigitNetwork(seed=3)
    network = Network(
        [
            Convolution(32, 3, padding=1, normalization="batch", epsilon=1e-7, activation="relu"),
            Pool("max", 2),
            Dense(10, bias=False),
        ],
        input=(1, 20, 20),
        optimizer=AdamOptimizer(0.01, l2=0.01, gradient_clipping=ClipByValue(-0.5, 0.5)),
    )
    network.load_state(
        network.state()
        | {
            "convolution_1.weights": program.parameters["weights"],
            "dense_1.weights": program.parameters["fc_weights"],
        }
    )
    for step in range(10):
        images, labels = digits.make_batch(0, step)
        assert network.train_step(images, labels) == program.step(images, labels)
    images, labels = digits.make_batch(1, 0, count=300)
    assert (network.predict(images).argmax(axis=1) == program.predict(images)).all()


# ---- plans ----


BUFFERS = st.tuples(st.integers(1, 40), st.integers(0, 30), st.integers(0, 12))


@given(st.lists(BUFFERS, min_size=1, max_size=20))
def test_arrays_in_use_at_the_same_time_lie_apart(triples):
    buffers = [_Buffer(str(i), size, a, a + n) for i, (size, a, n) in enumerate(triples)]
    total = _place(buffers)
    for i, one in enumerate(buffers):
        assert one.offset >= 0
        assert one.offset + one.size <= total
        for other in buffers[:i]:
            if one.first <= other.last and other.first <= one.last:
                apart = one.offset + one.size <= other.offset
                assert apart or other.offset + other.size <= one.offset


def test_plans_share_memory_and_say_so():
    network = Network([Dense(64, "relu") for _ in range(6)] + [Dense(4)], input=(64,))
    training, inference = network.plan(32), network.plan(32, training=False)
    assert inference.nbytes < 3 * 32 * 64 * 4 + 64 < training.nbytes
    text = str(training)
    assert "dense_7" in text
    assert str(training.nbytes) in text
    assert "dense_7" in network.summary()
    assert f"{6 * (64 * 64 + 64) + 4 * 64 + 4:,} parameters" in network.summary()


def test_normalizations_borrow_from_the_arena():
    block = Normalize("batch")
    network = Network([Dense(64), block, Dense(4)], input=(64,))
    x, y = random_batch(32, 64), np.arange(32) % 4
    losses = [network.train_step(x, y) for _ in range(3)]
    assert losses[2] < losses[0]
    assert block._layer.kept_bytes(32) < 32 * 64 * 4


def test_paths_write_side_by_side_without_copies():
    network = Network(
        [Branch([Dense(3)], [Dense(4)], join="concatenate"), Dense(2)], input=(5,), loss="mse"
    )
    labels = [buffer.label for buffer in network.plan(8)._buffers]
    assert "branch_1" in labels
    assert not {"dense_1", "dense_2"} & set(labels)


def test_batch_sizes_do_not_disturb_each_other():
    network = Network([Dense(7, "tanh"), Dense(3)], input=(5,))
    x = random_batch(23, 5)
    whole = network.predict(x)
    for size in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1):  # more than are kept
        np.testing.assert_allclose(network.predict(x, batch_size=size), whole, rtol=1e-5, atol=1e-6)


def test_a_step_allocates_no_arrays():
    import tracemalloc

    network = Network([Dense(32, "relu"), Dense(10)], input=(64,))
    x, y = random_batch(32, 64), np.arange(32) % 10
    for _ in range(3):
        network.train_step(x, y)
    tracemalloc.start()
    try:
        network.train_step(x, y)
        first = tracemalloc.get_traced_memory()[0]
        for _ in range(100):
            network.train_step(x, y)
        assert tracemalloc.get_traced_memory()[0] - first < 500
    finally:
        tracemalloc.stop()


# ---- steps ----


def test_frozen_parameters_stay_and_others_learn():
    x, y = blobs()
    network = Network([Dense(8, "tanh"), Dense(3)], input=(8,))
    before = {name: array.copy() for name, array in network.parameters().items()}
    network.freeze("dense_1", "dense_2.bias")
    assert set(network.gradients()) == {"dense_2.weights"}
    assert "frozen" in network.summary()
    network.fit(x, y)
    changed = {n for n, a in network.parameters().items() if not np.array_equal(a, before[n])}
    assert changed == {"dense_2.weights"}
    network.freeze()
    network.fit(x, y)
    assert not np.array_equal(network.parameters()["dense_1.weights"], before["dense_1.weights"])
    with pytest.raises(LayerCreationError, match="got 'dense_9'"):
        network.freeze("dense_9")


@pytest.mark.parametrize(
    ("spoil", "where"),
    [
        (lambda n, x, y: x.__setitem__((3, 0), np.nan), "the data"),
        (lambda n, x, y: n.parameters()["dense_1.weights"].fill(np.inf), "the result of dense_1"),
        (lambda n, x, y: n.parameters()["dense_2.bias"].fill(np.nan), "the result of dense_2"),
        (lambda n, x, y: y.__setitem__((0, 0), np.nan), "the labels"),
    ],
)
def test_numbers_that_are_not_finite_are_named(spoil, where):
    network = Network([Dense(8, "tanh"), Dense(3)], input=(8,), loss="mse")
    x, y = random_batch(16, 8), random_batch(16, 3)
    network.train_step(x, y)
    spoil(network, x, y)
    kept = {name: array.copy() for name, array in network.parameters().items()}
    with pytest.raises(TrainingError, match=f"step 2: .*{where}"):
        network.train_step(x, y)
    for name, array in network.parameters().items():
        assert_same_bits(array, kept[name])


# ---- files ----


def deep_network(**options):
    return Network(
        [
            Convolution(4, (3, 3), padding=1, normalization="batch", activation="relu"),
            Pool("max", 2),
            Branch([Convolution(4, 1), Activate("gelu")], [], join="concatenate"),
            Normalize("layer"),
            Dense(5),
        ],
        input=(1, 6, 6),
        optimizer=AdamOptimizer(0.01),
        **options,
    )


def test_saved_networks_go_on_to_the_same_bits(tmp_path):
    x, y = random_batch(20, 1, 6, 6), np.arange(20) % 5
    whole, first = deep_network(seed=4), deep_network(seed=4)
    whole.fit(x, y, epochs=4, batch_size=8)
    first.fit(x, y, epochs=2, batch_size=8)
    path = tmp_path / "network.safetensors"
    first.save(path, optimizer=True)
    again = Network.load(path, optimizer=AdamOptimizer(0.01))
    assert (again.steps, again.seed) == (first.steps, 4)
    again.fit(x, y, epochs=2, batch_size=8)
    for name, array in whole.state().items():
        assert_same_bits(again.state()[name], array)
    assert_same_bits(Network.load(path).predict(x), first.predict(x))


def letters_network(**options):
    return Network(
        [
            Embedding(7, 8),
            Position(),
            Branch([Rows(Normalize("layer")), Attention(2, causal=True)], []),
            Rows(Normalize("layer"), Dense(7)),
        ],
        input=(6,),
        optimizer=AdamOptimizer(0.01),
        **options,
    )


def test_sequences_are_learned_saved_and_frozen(tmp_path):
    letters = np.random.default_rng(0).integers(7, size=(40, 7))
    letters[:, 1:] = (letters[:, :1] + np.arange(1, 7)) % 7  # each follows from the one before
    x, y = letters[:, :-1], letters[:, 1:]
    whole, first = letters_network(seed=2), letters_network(seed=2)
    whole.fit(x, y, epochs=60, batch_size=10)
    assert whole.evaluate(x, y)["accuracy"] > 0.99
    first.fit(x, y, epochs=30, batch_size=10)
    first.save(tmp_path / "n", optimizer=True)
    again = Network.load(tmp_path / "n", optimizer=AdamOptimizer(0.01))
    again.fit(x, y, epochs=30, batch_size=10)
    for name, array in whole.state().items():
        assert_same_bits(again.state()[name], array)
    before = {name: array.copy() for name, array in again.parameters().items()}
    again.freeze("embedding_1", "attention_1.query_weights")
    again.fit(x, y)
    same = {name for name, array in again.parameters().items() if (array == before[name]).all()}
    assert {"embedding_1.table", "attention_1.query_weights"} <= same
    assert "attention_1.value_weights" not in same


def test_attention_drops_in_training_alone_and_can_be_repeated():
    def made(dropout, seed=1):
        return Network([Attention(2, dropout=dropout), Dense(2)], input=(6, 4), seed=seed)

    random = np.random.default_rng(0)
    x, labels = random.normal(size=(8, 6, 4)).astype(np.float32), random.integers(2, size=8)
    plain, first, again, other = made(0.0), made(0.5), made(0.5), made(0.5, seed=2)
    plain.load_state(first.state())
    assert_same_bits(plain.predict(x), first.predict(x))
    losses = [[network.train_step(x, labels) for _ in range(5)] for network in (first, again)]
    assert losses[0] == losses[1]
    assert losses[0] != [plain.train_step(x, labels) for _ in range(5)]
    assert losses[0][0] != other.train_step(x, labels)
    one, two = (first.forward(x, training=True).copy() for _ in range(2))
    assert not np.array_equal(one, two)
    assert_same_bits(first.predict(x), first.predict(x))

    # what backward gives belongs to what was dropped: two new networks drop the same
    weights = random.normal(size=(8, 2)).astype(np.float32)
    one, two = made(0.5), made(0.5)
    before = np.vdot(one.forward(x, training=True), weights)
    gradient = one.backward(weights)
    length = np.linalg.norm(gradient)
    after = np.vdot(two.forward(x + 0.01 * gradient / length, training=True), weights)
    assert after - before == pytest.approx(0.01 * length, rel=0.05)


def test_the_loss_behind_rows_is_that_of_rows():
    x, y = random_batch(4, 5, 3), np.arange(20).reshape(4, 5) % 2
    by_rows, flat = (
        Network([b], input=s, seed=3) for b, s in ((Rows(Dense(2)), (5, 3)), (Dense(2), (3,)))
    )
    weights = random_batch(4, seed=1) ** 2
    pairs = [
        ({}, {}),
        ({"weights": 0.5}, {"weights": 0.5}),
        ({"weights": weights}, {"weights": np.repeat(weights, 5)}),
        ({"micro_batches": 2}, {"micro_batches": 2}),
    ]
    for ours, theirs in pairs:
        expected = flat.train_step(x.reshape(20, 3), y.reshape(-1), **theirs)
        assert by_rows.train_step(x, y, **ours) == expected
    one = Network([Rows(Dense(2))], input=(1, 3), seed=3)
    assert one.train_step(x[:, :1], y[:, :1]) > 0
    assert by_rows.fit(x, y, class_weights=[1, 0]).losses[0] > 0


def test_saved_networks_keep_loss_and_frozen_parts(tmp_path):
    network = Network([Dense(3), Dense(2)], input=(4,), loss=openbnns.Loss.huber(0.5))
    network.freeze("dense_1.weights")
    network.save(tmp_path / "n")
    again = Network.load(tmp_path / "n")
    assert again.loss == network.loss
    assert "dense_1.weights" not in again.gradients()


def test_own_blocks_are_given_at_loading(tmp_path):
    network = Network([Scale()], input=(3,), loss="mse")
    network.save(tmp_path / "n")
    with pytest.raises(CheckpointError, match="a class for 'Scale'"):
        Network.load(tmp_path / "n")
    x = random_batch(2, 3)
    assert_same_bits(Network.load(tmp_path / "n", blocks=[Scale]).predict(x), network.predict(x))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda about: about.pop("blocks"),
        lambda about: about["blocks"].append({"block": "os.system", "command": "true"}),
        lambda about: about["blocks"].append({"block": "initial"}),
        lambda about: about["blocks"][0].update(units=-3),
        lambda about: about["blocks"][0].update(units=7),
        lambda about: about.update(loss="nothing"),
        lambda about: about.update(input=[10**9, 10**9, 10**9]),
    ],
)
def test_files_that_are_no_networks_are_refused(tmp_path, spoil):
    network = Network([Dense(3)], input=(4,))
    network.save(tmp_path / "n")
    arrays, notes = openbnns.io.load_checkpoint(tmp_path / "n")
    about = json.loads(notes["network"])
    spoil(about)
    openbnns.io.save_checkpoint(tmp_path / "n", arrays, notes | {"network": json.dumps(about)})
    with pytest.raises(CheckpointError, match="not a network"):
        Network.load(tmp_path / "n")
    openbnns.io.save_checkpoint(tmp_path / "n", arrays, {"format": "other"})
    with pytest.raises(CheckpointError, match=r"expected openbnns\.Network 1; got 'other'"):
        Network.load(tmp_path / "n")


def test_settings_that_are_no_plain_values_cannot_be_saved(tmp_path):
    network = Network([Dense(3, initializer=lambda shape, random: np.ones(shape))], input=(4,))
    with pytest.raises(LayerCreationError, match="initializer: expected a plain value"):
        network.save(tmp_path / "n")
    assert not (tmp_path / "n").exists()


# ---- words ----


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Network([], input=(3,)), "expected one that computes"),
        (lambda: Network([Flatten()], input=(3,)), "expected one that computes"),
        (lambda: Network([3], input=(3,)), "expected openbnns.blocks; got int"),
        (lambda: Network([Convolution(3)], input=(3,)), r"convolution_1 on \(3,\): .*height"),
        (lambda: Network([Convolution(4, groups=2)], input=(3, 5, 5)), "divisor of 3 channels"),
        (
            lambda: Network([Convolution(4, groups=2, normalization="batch")], input=(2, 5, 5)),
            "put Normalize behind it",
        ),
        (lambda: Network([Dense(3, initializer="zero")], input=(3,)), "got 'zero'"),
        (lambda: Network([Branch([Dense(2)], [])], input=(3,)), r"add; got \(2,\), \(3,\)"),
        (lambda: Branch([], join="multiply"), "got 'multiply'"),
        (lambda: Branch([]), "at least two; got 1"),
        (lambda: Network([Dense(2)]).parameters(), "expected the shape of a sample"),
        (lambda: Network([Pool("max", 9)], input=(1, 3, 3)), "pool_1 on"),
        (lambda: Network([Rows(Dense(2))], input=(3,)), "rows_1: expected samples of at least two"),
        (lambda: Network([Attention(2)], input=(4, 3)), "2 heads divide"),
        (lambda: Network([Attention(2)], input=(4,)), r"\(length, width\)"),
        (lambda: Network([Embedding(0, 3)], input=(4,)), r"got \(0, 3\)"),
    ],
)
def test_impossible_networks_are_refused(make, sentence):
    with pytest.raises(LayerCreationError, match=sentence):
        make()


def test_a_block_belongs_to_one_place():
    block = Dense(3)
    with pytest.raises(LayerCreationError, match="the same Dense twice"):
        Network([block, Branch([block], [])], input=(3,))


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda n: n.predict(np.zeros((2, 5))), r"expected \(N, 4\); got \(2, 5\)"),
        (lambda n: n.predict(np.float32(3)), r"expected \(N, 4\); got \(\)"),
        (lambda n: n.backward(np.zeros((2, 3))), "last training forward"),
        (lambda n: n.evaluate(np.zeros((2, 4)), np.zeros(3)), "as many samples as labels"),
        (lambda n: n.fit(np.zeros((2, 4)), np.zeros(2, int), validation=0.1), "leaves a sample"),
        (lambda n: n.fit([], validation=0.1), "beside an iterator"),
        (lambda n: n.load_state({}), "expected the entries"),
        (lambda n: n.load_state(n.state() | {"dense_1.bias": np.zeros(9)}), r"got \(9,\)"),
        (lambda n: n.train_step(np.zeros((2, 4)), np.zeros((2, 9))), "labels"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(call, sentence):
    network = Network([Dense(3)], input=(4,))
    with pytest.raises(ArrayError, match=sentence):
        call(network)


def test_closed_networks_say_so():
    network = Network([Dense(3)], input=(4,))
    network.close()
    with pytest.raises(openbnns.LayerApplyError, match="closed"):
        network.predict(np.zeros((1, 4)))


def test_first_values():
    random = np.random.default_rng(0)
    xavier = initial("xavier", (300, 200), random)
    assert abs(xavier).max() <= np.sqrt(6 / 500)
    assert xavier.std() == pytest.approx(np.sqrt(2 / 500), rel=0.02)
    he = initial("he", (64, 32, 3, 3), random)
    assert he.std() == pytest.approx(np.sqrt(2 / (32 * 9)), rel=0.02)
    for shape in ((8, 20), (20, 8), (6, 2, 3, 3)):
        flat = initial("orthogonal", shape, random).reshape(shape[0], -1).astype(float)
        small = flat @ flat.T if flat.shape[0] <= flat.shape[1] else flat.T @ flat
        np.testing.assert_allclose(small, np.eye(len(small)), atol=1e-5)
    with pytest.raises(LayerCreationError, match="of shape"):
        initial(lambda shape, random: np.ones(3), (2, 2), random)


def test_the_command_checks_every_block(capsys):
    assert main(["check", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) > 15
    assert all(row["ok"] for row in rows.values())
    assert main(["check"]) == 0
    assert "WRONG" not in capsys.readouterr().out
    assert len(rows) == len(check_all())


# ---- steps as one native call ----


class Doubled(Dense):
    """A native block with something in NumPy behind it."""

    def forward(self, x, y, *, training, saved):
        super().forward(x, y, training=training, saved=saved)
        y *= 2

    def backward(self, x, y, grad_output, input_gradient, gradients, *, saved):
        grad_output *= 2
        super().backward(x, y, grad_output, input_gradient, gradients, saved=saved)


IMAGES = (2, 9, 9)
RECORDED = {
    "dense": ([Dense(7, "relu"), Dense(4, "tanh", normalization="batch"), Dense(3)], (5,)),
    "images": (
        [
            Convolution(4, padding=1, normalization="batch", activation="relu"),
            Pool(),
            Convolution(3, bias=False),
            Normalize("layer", "sigmoid"),
            Pool("average"),
            Dense(3),
        ],
        IMAGES,
    ),
    "paths": (
        [
            Branch(
                [Convolution(3, padding=1)],
                [Convolution(2, 1), Activate("silu")],
                [],
                join="concatenate",
            ),
            Branch([Convolution(7, padding=1), Activate("gelu")], []),
            Dense(3),
        ],
        IMAGES,
    ),
    "own block between": ([Dense(6, "relu"), Scale(), Dense(5), Doubled(4), Dense(3)], (5,)),
    "rows": ([Position(), Attention(2), Rows(Dense(8, "gelu"), Dense(4)), Dense(3)], (3, 4)),
}
OPTIMIZERS = {
    "adam": lambda: AdamOptimizer(0.01, gradient_clipping=ClipByValue(-0.1, 0.1)),
    "sgd": lambda: openbnns.SGDMomentumOptimizer(0.01, momentum=0.9, l2=0.01),
}


def _losses(make, shape, optimizer, loss, frozen=()):
    """Losses and parameters of some steps: two batch sizes, two learning rates."""
    network = Network(make(), input=shape, loss=loss, optimizer=OPTIMIZERS[optimizer](), seed=3)
    network.freeze(*frozen)
    random = np.random.default_rng(0)
    losses = []
    for step in range(6):
        size = 4 if step % 3 else 6
        x = random.normal(size=(size, *shape)).astype(np.float32)
        labels = random.normal(size=(size, 3)) if loss == "mse" else random.integers(3, size=size)
        if step == 4:
            network.optimizer.learning_rate /= 3
        losses.append(network.train_step(x, labels))
    return losses, network


@pytest.mark.parametrize("loss", ["softmax_cross_entropy", "mse"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", RECORDED)
def test_recorded_steps_give_the_bits_of_single_calls(monkeypatch, name, optimizer, loss):
    blocks, shape = RECORDED[name]
    frozen = ["dense_1.weights"]
    copies = [lambda: copy.deepcopy(blocks)] * 2
    recorded, network = _losses(copies[0], shape, optimizer, loss, frozen)
    monkeypatch.setattr("openbnns._core.record", lambda calls: None)
    single, other = _losses(copies[1], shape, optimizer, loss, frozen)
    assert recorded == single
    for key, value in network.state().items():
        assert_same_bits(value, other.state()[key])
    for key, value in network.gradients().items():
        assert_same_bits(value, other.gradients()[key])


def test_a_native_step_is_one_call_and_own_blocks_split_it():
    def calls(blocks, shape):
        network = Network(copy.deepcopy(blocks), input=shape)
        x = np.zeros((2, *shape), np.float32)
        network.train_step(x, np.zeros(2, int))
        [(_, made)] = network.plan(2).steps.values()
        return [type(call).__name__ for call in made]

    assert calls(*RECORDED["dense"]) == ["Program"]
    assert calls(*RECORDED["images"]) == ["Program"]
    assert calls(*RECORDED["own block between"]) == [
        "Program",
        "partial",
        "Program",
        "partial",
        "Program",
        "partial",
        "Program",
        "partial",
        "Program",
    ]


def test_a_recorded_call_that_fails_names_its_block():
    network = Network([Dense(4, "relu"), Dense(3)], input=(5,))
    x, labels = np.zeros((2, 5), np.float32), np.zeros(2, int)
    network.train_step(x, labels)
    before = {name: array.copy() for name, array in network.state().items()}
    with pytest.raises(openbnns.LayerApplyError, match=r"\[LossLayer\] loss: labels"):
        network.train_step(x, labels + 3)
    network.blocks[1]._layer.close()
    with pytest.raises(openbnns.LayerApplyError, match=r"\[FullyConnectedLayer\] dense_2: .*open"):
        network.train_step(x, labels)
    for name, array in network.state().items():
        assert_same_bits(array, before[name])
    assert network.steps == 1


def test_what_cannot_be_recorded_is_left_as_it_is():
    layer = openbnns.FullyConnectedLayer(np.ones((1, 2), np.float32))
    x, y = np.ones((1, 2), np.float32), np.zeros((1, 1), np.float32)
    for call in (
        lambda: layer.apply(x),  # a new array every time
        lambda: layer.apply(np.ones((1, 4), np.float32)[:, ::2], out=y),  # a copy every time
        lambda: openbnns.clip(x, 0, 1, out=x),  # no layer of a network
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert _core.record([("call", call)]) is None
    program = _core.record([("call", lambda: layer.apply(x, out=y))])
    assert y[0, 0] == 0
    x *= 2
    program()
    assert y[0, 0] == 4
    with pytest.raises(ZeroDivisionError):
        _core.record([("call", lambda: 1 / 0)])
    assert layer.apply(x)[0, 0] == 4  # nothing is recorded any more


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x,
        lambda x: x.astype(np.float64),
        lambda x: x.astype(">f4"),
        lambda x: np.asfortranarray(x),
        lambda x: np.repeat(x, 2, axis=1)[:, ::2],
        lambda x: x.tolist(),
        lambda x: np.frombuffer(x.tobytes(), np.float32).reshape(x.shape),  # read only
    ],
)
@pytest.mark.parametrize("width", [3, 5000])
def test_samples_are_taken_from_any_array(change, width):
    network = Network([Dense(2)], input=(width,))
    x = random_batch(8, width)
    expected = network.forward(x).copy()
    assert_same_bits(network.forward(change(x)), expected)
    with pytest.raises(ArrayError, match="expected"):
        network.forward(x[0])
