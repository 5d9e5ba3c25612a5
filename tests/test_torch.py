"""The bridge to PyTorch: gradients against autograd's, training beside its layers, weights."""

import copy
import doctest

import numpy as np
import openbnns
import pytest
from openbnns import ArrayError, LayerApplyError, LayerCreationError, Network
from openbnns.blocks import (
    Activate,
    Attention,
    Branch,
    Convolution,
    Dense,
    Embedding,
    Flatten,
    Normalize,
    Pool,
    Position,
    Rows,
)

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
    "fused convolution, pooled": (
        IMAGES,
        [Convolution(4, 3, padding=1, normalization="batch", activation="relu"), Pool("max", 2)],
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)
        ),
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
        IMAGES,
        [Flatten(), Dense(2)],
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(126, 2)),
    ),
}


def tensor(*shape, seed=0):
    values = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    return torch.from_numpy(values).requires_grad_()


def copied(x):
    """Another x with the same values."""
    return x.detach().clone().requires_grad_()


def compare(y, y2, ours, theirs):
    """Results, and the gradients of what they were made from."""
    weights = tensor(*y.shape, seed=9).detach()
    (y * weights).sum().backward()
    (y2 * weights).sum().backward()
    torch.testing.assert_close(y, y2, rtol=1e-4, atol=1e-5)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=2e-4)


@pytest.mark.parametrize("name", LAYERS)
def test_gradients_are_autograds(name):
    shape, block, make = LAYERS[name]
    ours = bridge.Module(copy.deepcopy(block), input=shape[1:])
    theirs = make()
    arrays = list(bridge.to_torch(ours.network).state_dict().values())
    theirs.load_state_dict(dict(zip(theirs.state_dict(), arrays, strict=True)))
    x = tensor(*shape)
    x2 = copied(x)
    compare(ours(x), theirs(x2), [x, *ours.parameters()], [x2, *theirs.parameters()])
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


SEQUENCES = (3, 5, 8)
GRAPHS = {
    "attention": (SEQUENCES, [Attention(2)]),
    "causal": (SEQUENCES, [Attention(4, causal=True, bias=False)]),
    "position": (SEQUENCES, [Position(), Dense(2)]),
    "rows": (SEQUENCES, [Rows(Dense(6, "gelu"), Normalize("layer"), Dense(2))]),
    "sum": ((4, 6), [Branch([Dense(6, "tanh"), Dense(6)], [])]),
    "side by side": (
        IMAGES,
        [
            Branch([Convolution(4, 3, padding=1)], [Activate("relu")], [], join="concatenate"),
            Dense(3),
        ],
    ),
    "transformer": (
        SEQUENCES,
        [
            Position(),
            Branch([], [Rows(Normalize("layer")), Attention(2, causal=True)]),
            Branch([], [Rows(Normalize("layer"), Dense(16, "gelu"), Dense(8))]),
            Rows(Dense(3)),
        ],
    ),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_go_there_and_back_with_their_gradients(name):
    shape, blocks = GRAPHS[name]
    network = Network(copy.deepcopy(blocks), input=shape[1:], loss="mse", seed=5)
    random = np.random.default_rng(2)
    for array in network.parameters().values():
        array += random.normal(0, 0.1, array.shape).astype(np.float32)
    there = bridge.to_torch(network)
    x = tensor(*shape)
    y = there(x)
    close = {"rtol": 1e-3, "atol": 2e-4}
    found = network.forward(x.detach().numpy(), training=True)
    np.testing.assert_allclose(found, y.detach(), **close)
    again = bridge.from_torch(there, input=shape[1:])
    for key, value in network.state().items():
        np.testing.assert_array_equal(value, again.state()[key])

    weights = tensor(*y.shape, seed=9).detach()
    (y * weights).sum().backward()
    np.testing.assert_allclose(network.backward(weights.numpy()), x.grad, **close)
    for parameter in there.parameters():
        parameter.data = parameter.grad  # gradients have the names of what they belong to
    expected = bridge.from_torch(there, input=shape[1:]).parameters()
    for key, gradient in network.gradients().items():
        np.testing.assert_allclose(gradient, expected[key], **close)


def test_dropout_goes_there_and_back():
    network = Network([Attention(2, dropout=0.25)], input=(5, 8))
    there = bridge.to_torch(network)
    assert there[0].attention.dropout == 0.25
    assert bridge.from_torch(there, input=(5, 8)).blocks[0].dropout == 0.25


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


LOSSES = {
    "mse": nn.MSELoss(),
    "mae": nn.L1Loss(),
    "huber": nn.HuberLoss(),
    "softmax_cross_entropy": nn.CrossEntropyLoss(),
    "sigmoid_cross_entropy": nn.BCEWithLogitsLoss(),
    "log": nn.BCELoss(),
    "hinge": lambda x, labels: (1 - (2 * labels - 1) * x).relu().mean(),
    "categorical_cross_entropy": nn.CrossEntropyLoss(),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses_are_pytorchs(name):
    values = tensor(6, 5).detach()
    x = (values.sigmoid() if name == "log" else values).requires_grad_()
    x2 = copied(x)
    labels = tensor(6, 5, seed=1).detach().softmax(1)
    if name == "categorical_cross_entropy":  # whose documented gradient is exact for 0 and 1 alone
        labels = (labels == labels.max(1, keepdim=True).values).float()
    a, b = bridge.Loss(name)(x, labels), LOSSES[name](x2, labels)
    (3 * a).backward()
    (3 * b).backward()
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(x.grad, x2.grad, rtol=1e-5, atol=1e-6)


def test_the_cosine_distance_is_that_of_unit_vectors():
    """Its gradient is along the sphere, as PyTorch's is of vectors that are made unit first."""
    unit = nn.functional.normalize
    x = unit(tensor(6, 5).detach()).requires_grad_()
    x2, labels = copied(x), unit(tensor(6, 5, seed=1).detach())
    a = bridge.Loss("cosine_distance")(x, labels)
    b = (1 - (unit(x2) * labels).sum(1)).mean()
    a.backward(), b.backward()
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(x.grad, x2.grad, rtol=1e-4, atol=1e-6)


# ---- layers as functions ----

FUNCTIONS = {
    "product": (
        lambda: openbnns.BroadcastMatrixMultiplyLayer(input_a=(3, 4), input_b=(4, 2), alpha=0.5),
        [(5, 3, 4), (5, 4, 2)],
        lambda a, b: 0.5 * a @ b,
    ),
    "product, transposed": (
        lambda: openbnns.BroadcastMatrixMultiplyLayer(
            input_a=(4, 3), input_b=(2, 4), transpose_a=True, transpose_b=True
        ),
        [(5, 4, 3), (5, 2, 4)],
        lambda a, b: a.mT @ b.mT,
    ),
    "contraction": (
        lambda: openbnns.TensorContractionLayer(
            "a_ij, b_jk -> c_ki", input_a=(3, 4), input_b=(4, 2)
        ),
        [(5, 3, 4), (5, 4, 2)],
        lambda a, b: torch.einsum("nij,njk->nki", a, b),
    ),
    "Gram": (
        lambda: openbnns.GramLayer(input=(3, 4, 5)),
        [(2, 3, 4, 5)],
        lambda x: torch.einsum("nchw,ndhw->ncd", x, x),
    ),
    "one argument": (lambda: openbnns.UnaryArithmeticLayer("exp", input=(4,)), [(3, 4)], torch.exp),
    "two arguments": (
        lambda: openbnns.BinaryArithmeticLayer(
            "multiply", input_a=(2, 3), input_b=(1, 3), activation="tanh"
        ),
        [(4, 2, 3), (4, 1, 3)],
        lambda a, b: (a * b).tanh(),
    ),
    "three arguments": (
        lambda: openbnns.TernaryArithmeticLayer(input_a=(3,), input_b=(3,), input_c=(3,)),
        [(4, 3)] * 3,
        lambda a, b, c: a * b + c,
    ),
    "activation": (
        lambda: openbnns.ActivationLayer("softmax", input=(4,)),
        [(3, 4)],
        lambda x: x.softmax(1),
    ),
    "pooling": (
        lambda: openbnns.PoolingLayer("max", input=(3, 7, 6), kernel_size=2),
        [IMAGES],
        nn.MaxPool2d(2),
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_layers_are_differentiated_as_functions(name):
    make, shapes, theirs = FUNCTIONS[name]
    inputs = [tensor(*shape, seed=seed) for seed, shape in enumerate(shapes)]
    others = [copied(x) for x in inputs]
    with make() as layer:
        compare(bridge.apply(layer, *inputs), theirs(*others), inputs, others)


def test_convolutions_with_parameters_are_differentiated_as_functions():
    x, w, b = tensor(*IMAGES), tensor(3, 2, 3, 3, seed=1), tensor(2, seed=2)
    weights, bias = w.detach().numpy(), b.detach().numpy()
    layer = openbnns.TransposedConvolutionLayer(
        weights, bias=bias, input=IMAGES[1:], stride=2, padding=1
    )
    ours, others = [x, w, b], [copied(t) for t in (x, w, b)]
    y = bridge.apply(layer, x, parameters={"weights": w, "bias": b})
    compare(y, nn.functional.conv_transpose2d(*others, stride=2, padding=1), ours, others)
    with pytest.raises(ArrayError, match="has gradients of; got gamma"):
        bridge.apply(layer, x, parameters={"gamma": b}).sum().backward()
    norm = openbnns.NormalizationLayer("batch", input=(3, 7, 6))
    with pytest.raises(LayerApplyError, match="keeps nothing of a call; got NormalizationLayer"):
        bridge.apply(norm, x)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_pytorchs(causal):
    """Three inputs, all parameters; then the block that attends to itself."""
    theirs = nn.MultiheadAttention(8, 2, batch_first=True)
    nn.init.normal_(theirs.in_proj_bias), nn.init.normal_(theirs.out_proj.bias)
    mask = torch.ones(5, 5, dtype=torch.bool).triu(1) if causal else None
    state = {name: value.detach().numpy() for name, value in theirs.state_dict().items()}
    layer = openbnns.MultiheadAttention.from_torch(state, heads=2, lengths=5, causal=causal)
    inputs = [tensor(3, 5, 8, seed=seed) for seed in range(3)]
    others = [copied(x) for x in inputs]
    expected, _ = theirs(*others, attn_mask=mask, need_weights=False)
    compare(bridge.apply(layer, *inputs), expected, inputs, others)

    block = bridge.Module(Attention(2, causal=causal), input=(5, 8))
    parts = dict(zip(("query", "key", "value"), np.split(state["in_proj_weight"], 3), strict=True))
    biases = dict(zip(parts, np.split(state["in_proj_bias"], 3), strict=True))
    own = {f"attention_1.{word}_weights": w.reshape(2, 4, 8) for word, w in parts.items()}
    own |= {f"attention_1.{word}_bias": b.reshape(2, 4) for word, b in biases.items()}
    own["attention_1.output_weights"] = state["out_proj.weight"]
    own["attention_1.output_bias"] = state["out_proj.bias"]
    block.network.load_state(own)
    theirs.zero_grad()
    x = tensor(3, 5, 8)
    x2 = copied(x)
    expected, _ = theirs(x2, x2, x2, attn_mask=mask, need_weights=False)
    compare(block(x), expected, [x], [x2])
    found = {name.removeprefix("attention_1_"): p.grad for name, p in block.named_parameters()}
    rows = [found[f"{word}_weights"].reshape(8, 8) for word in parts]
    close = {"rtol": 1e-3, "atol": 2e-4}
    torch.testing.assert_close(torch.cat(rows), theirs.in_proj_weight.grad, **close)
    torch.testing.assert_close(found["output_weights"], theirs.out_proj.weight.grad, **close)
    torch.testing.assert_close(found["output_bias"], theirs.out_proj.bias.grad, **close)


def test_embeddings_are_pytorchs():
    ours = bridge.Module([Embedding(6, 4), Rows(Dense(3, "tanh")), Position()], input=(5,))
    theirs = nn.Sequential(nn.Embedding(6, 4), nn.Linear(4, 3), nn.Tanh())
    table, weights, bias, places = ours.parameters()
    for own, value in zip(theirs.parameters(), (table, weights, bias), strict=True):
        own.data.copy_(value)
    numbers = torch.tensor([[0, 5, 5, 2, 0], [1, 1, 1, 1, 0]])
    places2 = copied(places)
    pairs = [table, weights, bias, places], [*theirs.parameters(), places2]
    compare(ours(numbers), theirs(numbers) + places2, *pairs)
    with pytest.raises(ArrayError, match="expected numbers from 0 to 5"):
        ours(numbers + 1)
    network = Network([Embedding(6, 4), Dense(2)], input=(5,), seed=3)
    there = bridge.to_torch(network)
    again = bridge.from_torch(there, input=(5,))
    x = numbers.numpy()
    np.testing.assert_allclose(network.predict(x), there(numbers).detach(), atol=1e-6)
    np.testing.assert_array_equal(network.predict(x), again.predict(x))


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
        bridge.to_torch(Network([Pool("l2_norm")], input=(1, 4, 4)))
    with pytest.raises(LayerCreationError, match=r"dense_1.weights: expected \(2, 20\)"):
        bridge.from_torch(nn.Linear(4, 2), input=(5, 4))
    with pytest.raises(LayerCreationError, match="got 'erf'"):
        bridge.to_torch(Network([Activate("erf")], input=(4,)))


def test_examples_in_docstrings():
    result = doctest.testmod(bridge)
    assert result.attempted > 0
    assert result.failed == 0
