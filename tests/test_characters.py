"""The transformer of examples/characters.py: against PyTorch, and whether it learns."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

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
