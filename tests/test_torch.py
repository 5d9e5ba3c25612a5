"""The bridge to PyTorch: gradients against autograd's, training beside its layers, weights."""

import copy
import doctest

import numpy as np
import openbnns
import pytest
from openbnns import ArrayError, LayerApplyError, LayerCreationError, Network
from openbnns.blocks import Activate, Branch, Convolution, Dense, Flatten, Normalize, Pool

torch = pytest.importorskip("torch")
bridge = pytest.importorskip("openbnns.torch")

nn = torch.nn
IMAGES = (2, 3, 7, 6)
LAYERS = {
    "dense": ((5, 4), Dense(3, "tanh"), lambda: nn.Sequential(nn.Linear(4, 3), nn.Tanh())),
    "convolution": (
        IMAGES,
        Convolution(4, 3, stride=2, padding=1, activation="sigmoid"),
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.Sigmoid()),
    ),
    "grouped": (IMAGES, Convolution(6, 3, groups=3), lambda: nn.Conv2d(3, 6, 3, groups=3)),
    "fused dense": (
        (6, 4),
        Dense(3, "sigmoid", normalization="batch"),
        lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Sigmoid()),
    ),
    "fused convolution": (
        IMAGES,
        Convolution(4, 3, padding=1, normalization="batch", activation="relu"),
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()),
    ),
    "max": (IMAGES, Pool("max", 2), lambda: nn.MaxPool2d(2)),
    "average": (IMAGES, Pool("average", 3, 2, 1), lambda: nn.AvgPool2d(3, 2, 1)),
    "batch norm": (IMAGES, Normalize("batch"), lambda: nn.BatchNorm2d(3)),
    "layer norm": (IMAGES, Normalize("layer"), lambda: nn.LayerNorm((3, 7, 6))),
    "group norm": (
        (2, 4, 3, 3),
        Normalize(openbnns.Normalization.group(2)),
        lambda: nn.GroupNorm(2, 4),
    ),
    "gelu": ((5, 4), Activate("gelu"), nn.GELU),
    "silu": ((5, 4), Activate("silu"), nn.SiLU),
    "flatten": (
        IMAGES, [Flatten(), Dense(2)], lambda: nn.Sequential(nn.Flatten(), nn.Linear(126, 2)),
    ),
}  # fmt: skip


def tensor(*shape, seed=0):
    values = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    return torch.from_numpy(values).requires_grad_()


def copied(module, x):
    """Another x with the same values."""
    return x.detach().clone().requires_grad_()


@pytest.mark.parametrize("name", LAYERS)
def test_gradients_are_autograds(name):
    shape, block, make = LAYERS[name]
    ours = bridge.Module(copy.deepcopy(block), input=shape[1:])
    theirs = make()
    arrays = list(bridge.to_torch(ours.network).state_dict().values())
    theirs.load_state_dict(dict(zip(theirs.state_dict(), arrays, strict=True)))
    x, y = tensor(*shape), None
    x2 = copied(ours, x)
    y, y2 = ours(x), theirs(x2)
    weights = tensor(*y.shape, seed=1).detach()
    (y * weights).sum().backward()
    (y2 * weights).sum().backward()
    torch.testing.assert_close(y, y2, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(x.grad, x2.grad, rtol=1e-3, atol=1e-4)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=2e-4)
    ours.eval(), theirs.eval()
    torch.testing.assert_close(ours(x), theirs(x2), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", LAYERS)
def test_weights_go_there_and_back(name):
    shape, block, _ = LAYERS[name]
    blocks = block if isinstance(block, list) else [block]
    network = Network(copy.deepcopy(blocks), input=shape[1:], loss="mse", seed=5)
    for array in network.parameters().values():
        array += np.float32(0.1)
    there = bridge.to_torch(network).eval()
    again = bridge.from_torch(there, input=shape[1:])
    x = tensor(*shape).detach()
    np.testing.assert_allclose(network.predict(x.numpy()), there(x).detach(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(network.predict(x.numpy()), again.predict(x.numpy()), atol=1e-5)


def test_a_model_of_both_kinds_learns():
    torch.manual_seed(0)
    model = nn.Sequential(
        bridge.Module([Dense(16, "relu", normalization="batch")], input=(2,)),
        nn.Linear(16, 16),
        nn.Tanh(),
        bridge.Module(Branch([Dense(16, "tanh"), Dense(16)], []), input=(16,)),
        nn.Linear(16, 2),
    )
    x = torch.randn(128, 2)
    labels = (x[:, 0] * x[:, 1] > 0).long()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    loss_of, losses = bridge.Loss("softmax_cross_entropy"), []
    for _ in range(150):
        optimizer.zero_grad()
        loss = loss_of(model(x), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] > 0.6
    assert losses[-1] < 0.1
    model.eval()
    assert (model(x).argmax(1) == labels).float().mean() > 0.95


@pytest.mark.parametrize("name", ["mse", "huber", "softmax_cross_entropy"])
def test_losses_are_pytorchs(name):
    theirs = {
        "mse": nn.MSELoss(),
        "huber": nn.HuberLoss(),
        "softmax_cross_entropy": nn.CrossEntropyLoss(),
    }[name]
    x = tensor(6, 5)
    x2 = copied(None, x)
    labels = tensor(6, 5, seed=1).detach().softmax(1)
    a, b = bridge.Loss(name)(x, labels), theirs(x2, labels)
    (3 * a).backward()
    (3 * b).backward()
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(x.grad, x2.grad, rtol=1e-5, atol=1e-6)


def test_memory_is_shared_and_state_is_kept():
    module = bridge.Module(Dense(3, normalization="batch"), input=(4,))
    with torch.no_grad():
        module.dense_1_weights.fill_(2.0)
    assert (module.network.parameters()["dense_1.weights"] == 2).all()
    module(tensor(5, 4))
    assert "dense_1_moving_mean" in module.state_dict()
    other = bridge.Module(Dense(3, normalization="batch"), input=(4,), seed=1)
    other.load_state_dict(module.state_dict())
    x = tensor(5, 4)
    torch.testing.assert_close(module.eval()(x), other.eval()(x), rtol=0, atol=0)


def test_frozen_tensors_get_no_gradient():
    module = bridge.Module(Dense(3), input=(4,))
    module.dense_1_bias.requires_grad_(False)
    module(tensor(2, 4).detach()).sum().backward()
    assert module.dense_1_bias.grad is None
    assert module.dense_1_weights.grad is not None


def test_words():
    module = bridge.Module(Dense(3), input=(4,))
    x = tensor(2, 4)
    first = module(x)
    module(x)
    with pytest.raises(LayerApplyError, match="an earlier one"):
        first.sum().backward()
    with pytest.raises(ArrayError, match="expected float32"):
        module(x.double())
    with pytest.raises(ArrayError, match="expected those of the network"):
        module.double()(x)
    with pytest.raises(LayerCreationError, match="got LSTM"):
        bridge.from_torch(nn.LSTM(3, 4), input=(3,))
    with pytest.raises(LayerCreationError, match="blocks that PyTorch has"):
        bridge.to_torch(Network([Branch([], [Dense(4)])], input=(4,)))
    with pytest.raises(LayerCreationError, match="got 'erf'"):
        bridge.to_torch(Network([Activate("erf")], input=(4,)))


def test_examples_in_docstrings():
    result = doctest.testmod(bridge)
    assert result.attempted > 0
    assert result.failed == 0
