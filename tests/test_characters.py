"""The transformer that continues a text: the same losses as PyTorch, from the same weights."""

import importlib.util
from pathlib import Path

import pytest

PATH = Path(__file__).parent.parent / "examples" / "characters.py"


@pytest.fixture(scope="module")
def characters():
    spec = importlib.util.spec_from_file_location("characters", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def torch_losses(characters, steps):
    """The same network out of PyTorch's operations."""
    import torch
    import torch.nn.functional as F

    p = {
        name: torch.tensor(array, requires_grad=True)
        for name, array in characters.first_parameters(0).items()
    }
    adam = torch.optim.Adam(p.values(), lr=0.002)
    width, heads = characters.WIDTH, characters.HEADS

    def norm(x, word):
        return F.layer_norm(x, (width,), p[f"{word}.gamma"], p[f"{word}.beta"])

    losses = []
    for step in range(steps):
        letters, following = map(torch.tensor, characters.make_batch(0, step))
        x = p["letters"][letters] + p["places"]
        for b in range(characters.BLOCKS):
            rows = F.linear(norm(x, f"{b}.first"), p[f"{b}.in.weights"], p[f"{b}.in.bias"])
            q, k, v = (
                part.view(*part.shape[:2], heads, -1).transpose(1, 2) for part in rows.chunk(3, -1)
            )
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            mixed = mixed.transpose(1, 2).reshape(x.shape)
            x = x + F.linear(mixed, p[f"{b}.out.weights"], p[f"{b}.out.bias"])
            wide = F.linear(norm(x, f"{b}.second"), p[f"{b}.up.weights"], p[f"{b}.up.bias"])
            x = x + F.linear(F.gelu(wide), p[f"{b}.down.weights"], p[f"{b}.down.bias"])
        scores = F.linear(norm(x, "last"), p["scores.weights"])
        loss = F.cross_entropy(scores.flatten(0, 1), following.flatten())
        adam.zero_grad()
        loss.backward()
        adam.step()
        losses.append(loss.item())
    return losses


def test_losses_are_those_of_pytorch(characters):
    pytest.importorskip("torch")
    writer = characters.Writer(0)
    ours = [writer.step(*characters.make_batch(0, step)) for step in range(50)]
    assert ours == pytest.approx(torch_losses(characters, 50), rel=5e-4)
    assert ours[-1] < 0.5 * ours[0]


def test_it_learns_the_text_by_heart(characters):
    writer = characters.Writer(0)
    for step in range(300):
        loss = writer.step(*characters.make_batch(0, step))
    assert loss < 0.4
    start = characters.TEXT[1 : characters.LENGTH + 1]
    assert writer.write(start, 10) == characters.TEXT[1 : characters.LENGTH + 11]
