"""The transformer of examples/characters.py: against PyTorch, and whether it learns."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from openbnns import AdamOptimizer, Network
from openbnns.blocks import Attention, Branch, Dense, Embedding, Normalize, Position, Rows

PATH = Path(__file__).parent.parent / "examples" / "characters.py"


@pytest.fixture(scope="module")
def characters():
    spec = importlib.util.spec_from_file_location("characters", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_losses_follow_pytorch(characters):
    oracle = pytest.importorskip("oracles.characters", exc_type=ImportError)
    torch = pytest.importorskip("torch")
    letters, numbers = characters.load_text()
    ours = characters.Writer(len(letters), seed=1)
    theirs = oracle.Writer(ours.parameters, characters.HEADS, characters.BLOCKS, 2e-3)
    for step in range(50):
        batch = characters.make_batch(numbers, 0, step)
        expected = theirs.step(*map(torch.from_numpy, batch))
        assert ours.step(*batch) == pytest.approx(expected, rel=1e-3)


def test_it_learns_and_the_same_seed_gives_the_same_bits(characters):
    letters, numbers = characters.load_text()

    def run():
        writer = characters.Writer(len(letters), seed=2)
        return [writer.step(*characters.make_batch(numbers, 2, step)) for step in range(40)]

    losses = run()
    assert losses[0] == pytest.approx(np.log(len(letters)), rel=0.05)
    assert losses[-1] < 2.6
    assert run() == losses


def test_nothing_is_seen_ahead(characters):
    letters, numbers = characters.load_text()
    writer = characters.Writer(len(letters))
    pieces = np.stack([numbers[: characters.LENGTH]] * 2)
    pieces[1, 40:] = 0
    found = writer.logits(pieces).reshape(2, characters.LENGTH, -1)
    np.testing.assert_array_equal(found[0, :40], found[1, :40])
    assert (found[0, 40:] != found[1, 40:]).any()


def test_the_same_network_of_blocks_learns_the_same(characters):
    """Only the letters' gradients are added up in another order."""
    letters, numbers = characters.load_text()
    width, writer = characters.WIDTH, characters.Writer(len(letters), seed=3)

    def block():
        return [
            Branch([Rows(Normalize("layer")), Attention(characters.HEADS, causal=True)], []),
            Branch([Rows(Normalize("layer"), Dense(4 * width, "gelu"), Dense(width))], []),
        ]

    blocks = [part for _ in range(characters.BLOCKS) for part in block()]
    network = Network(
        [
            Embedding(len(letters), width),
            Position(),
            *blocks,
            Rows(Normalize("layer"), Dense(len(letters))),
        ],
        input=(characters.LENGTH,),
        optimizer=AdamOptimizer(2e-3),
    )
    network.load_state(as_state(network, writer.parameters, characters))
    for step in range(20):
        batch = characters.make_batch(numbers, 0, step)
        assert network.train_step(*batch) == pytest.approx(writer.step(*batch), rel=2e-5)


def as_state(network, given, characters):
    """The parameters of the program under the names of the network."""
    state = dict(network.state())
    state |= {"embedding_1.table": given["table"], "position_1.table": given["positions"]}
    places = [f"block{i}." for i in range(characters.BLOCKS)]
    for i, name in enumerate(places):
        parts = zip(
            ("query", "key", "value"),
            given[name + "attention.in_proj_weight"].reshape(3, characters.HEADS, -1, 64),
            given[name + "attention.in_proj_bias"].reshape(3, characters.HEADS, -1),
            strict=True,
        )
        for word, weights, bias in parts:
            state[f"attention_{i + 1}.{word}_weights"] = weights
            state[f"attention_{i + 1}.{word}_bias"] = bias
        state[f"attention_{i + 1}.output_weights"] = given[name + "attention.out_proj.weight"]
        state[f"attention_{i + 1}.output_bias"] = given[name + "attention.out_proj.bias"]
    norms = [f"{name}norm{i}" for name in places for i in (1, 2)] + ["norm"]
    dense = [f"{name}{word}" for name in places for word in ("up", "down")] + ["head"]
    for i, name in enumerate(norms, 1):
        state |= {f"normalize_{i}.{word}": given[f"{name}.{word}"] for word in ("beta", "gamma")}
    for i, name in enumerate(dense, 1):
        state |= {f"dense_{i}.{word}": given[f"{name}.{word}"] for word in ("weights", "bias")}
    return state
