"""Networks of this library inside PyTorch programs, and weights both ways. Imports PyTorch.

``Module`` is a ``torch.nn.Module``: its parameters are PyTorch's and this library's at once, the
same memory, so any PyTorch optimizer trains it, and it sits beside ``torch.nn`` layers. ``apply``
is a single layer, of any number of inputs, as a function that autograd differentiates.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ._errors import ArrayError, LayerApplyError, LayerCreationError
from ._layer import Layer
from ._plan import Each, Fork, Stage
from .blocks import (
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
)
from .loss import LossLayer, LossLike
from .network import Network
from .normalization import Normalization

__all__ = [
    "AddPosition",
    "Branches",
    "EachRow",
    "Loss",
    "Module",
    "SelfAttention",
    "apply",
    "from_torch",
    "to_torch",
]


class _Run(torch.autograd.Function):  # type: ignore[misc]
    """One forward call of a module, and the way back."""

    @staticmethod
    def forward(ctx: Any, module: Module, x: torch.Tensor, *parameters: torch.Tensor) -> Any:
        network = ctx.network = module.network
        ctx.names = module._names
        with network._turn.alone:  # until the result is copied
            ctx.pending = network._forward(_array(x))
            return torch.from_numpy(ctx.pending.plan.output.copy())

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> Any:
        network = ctx.network
        with network._turn.alone:
            gradient = network._backward(ctx.pending, _array(grad_outputs[0]))
            found = network.gradients()
            return (
                None,
                torch.from_numpy(gradient.copy()) if ctx.needs_input_grad[1] else None,
                *(
                    torch.from_numpy(found[name].copy()) if wanted else None
                    for name, wanted in zip(ctx.names, ctx.needs_input_grad[2:], strict=True)
                ),
            )


class Module(torch.nn.Module):  # type: ignore[misc]
    """Blocks of this library as a ``torch.nn.Module``.

    In training mode the values of the last forward call are kept, and only its gradients can be
    had. In evaluation mode normalizations use their running statistics, without gradients.

    Args:
        blocks: one block of ``openbnns.blocks``, a list of them, or a ``Network``.
        input: shape of one sample.
        seed: of the first parameters.

    Examples:
        >>> import torch
        >>> from openbnns.blocks import Dense
        >>> from openbnns.torch import Module
        >>> model = torch.nn.Sequential(Module(Dense(4, "relu"), input=(3,)), torch.nn.Linear(4, 1))
        >>> model(torch.zeros(2, 3)).sum().backward()
        >>> [tuple(p.grad.shape) for p in model[0].parameters()]
        [(4, 3), (4,)]
    """

    def __init__(
        self,
        blocks: Block | Sequence[Block] | Network,
        *,
        input: Sequence[int] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if isinstance(blocks, Network):
            self.network = blocks
        else:
            listed = [blocks] if isinstance(blocks, Block) else list(blocks)
            self.network = Network(listed, input=input, loss="mse", seed=seed)
        state, parameters = self.network.state(), self.network.parameters()
        self._names = tuple(parameters)
        for name, array in state.items():
            tensor = torch.from_numpy(array)
            if name in parameters:
                self.register_parameter(name.replace(".", "_"), torch.nn.Parameter(tensor))
            else:
                self.register_buffer(name.replace(".", "_"), tensor)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The result for a batch (N, *input shape): float32 on the CPU, or numbers of entries."""
        self._check()
        has_numbers = not (x.dtype.is_floating_point or x.dtype.is_complex)
        if (x.dtype != torch.float32 and not has_numbers) or x.device.type != "cpu":
            raise ArrayError(
                f"[openbnns.torch.Module] x: expected float32 on the CPU; got {x.dtype} on "
                f"{x.device}"
            )
        if self.training and torch.is_grad_enabled():
            return _Run.apply(self, x, *self.parameters())
        if not self.training:
            return torch.from_numpy(self.network.forward(_array(x)))
        with self.network._turn.alone:
            return torch.from_numpy(self.network.forward(_array(x), training=True).copy())

    def _check(self) -> None:
        """PyTorch can give a module other memory: ``.to()``, ``.double()``."""
        for tensor, array in zip(
            (*self.parameters(), *self.buffers()), self.network.state().values(), strict=True
        ):
            if tensor.data_ptr() != array.__array_interface__["data"][0]:
                raise ArrayError(
                    "[openbnns.torch.Module] parameters: expected those of the network; got others "
                    "(moved or converted, or a deep copy)"
                )


class Loss(torch.nn.Module):  # type: ignore[misc]
    """A loss of this library as a ``torch.nn.Module``: the mean over a batch.

    Args:
        loss: name or ``openbnns.Loss``.

    Examples:
        >>> import torch
        >>> from openbnns.torch import Loss
        >>> x = torch.zeros(2, 3, requires_grad=True)
        >>> Loss("softmax_cross_entropy")(x, torch.tensor([0, 2])).backward()
        >>> x.grad[0].round(decimals=3)
        tensor([-0.3330,  0.1670,  0.1670])
    """

    def __init__(self, loss: LossLike) -> None:
        super().__init__()
        self.loss = loss
        self._layers: dict[Any, LossLayer] = {}

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The loss of a batch (N, …); labels of the same shape, or class numbers (N,)."""
        shape = tuple(x.shape[1:])
        layer = self._layers.get(shape)
        if layer is None:
            layer = self._layers[shape] = LossLayer(self.loss, input=shape)
        return _Loss.apply(layer, x, labels)


class _Loss(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, layer: LossLayer, x: torch.Tensor, labels: torch.Tensor) -> Any:
        value, gradient = layer.apply(_array(x), _array(labels), input_gradient=True)
        ctx.save_for_backward(torch.from_numpy(gradient))
        return torch.from_numpy(np.array(value))

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> Any:
        return None, ctx.saved_tensors[0] * grad_outputs[0], None


def apply(
    layer: Layer, *inputs: torch.Tensor, parameters: Mapping[str, torch.Tensor] | None = None
) -> torch.Tensor:
    """A layer's result for tensors, with autograd's gradients from ``apply_backward``.

    Args:
        layer: any but normalizations and fused layers, which keep something of their last call;
            ``Module`` has those. It stays open until the gradients are had.
        inputs: as many tensors on the CPU as the layer has inputs, each with its batch.
        parameters: tensors whose memory the layer reads (``tensor.detach().numpy()`` was given to
            it), by the names of their gradients: ``"weights"``, ``"bias"``, for attention
            ``"query_weights"``. Without them parameters are constants.

    Returns:
        A new tensor.

    Raises:
        ArrayError: a tensor does not fit, or the layer has no gradient of a name.
        LayerApplyError: the layer is one of those that keep something, or it is closed.

    Examples:
        >>> import openbnns, torch
        >>> from openbnns.torch import apply
        >>> layer = openbnns.BroadcastMatrixMultiplyLayer(input_a=(2, 3), input_b=(3, 1))
        >>> a, b = torch.ones(1, 2, 3, requires_grad=True), torch.ones(1, 3, 1)
        >>> apply(layer, a, b).sum().backward()
        >>> a.grad.shape
        torch.Size([1, 2, 3])
    """
    if "training" in inspect.signature(layer.apply).parameters:  # type: ignore[attr-defined]
        raise LayerApplyError(
            "[openbnns.torch.apply] layer: expected one that keeps nothing of a call; got "
            f"{type(layer).__name__}, which openbnns.torch.Module has"
        )
    named = dict(parameters or {})
    unknown = named.keys() - _gradients_of(layer)
    if unknown:
        raise ArrayError(
            f"[openbnns.torch.apply] parameters: expected names that {type(layer).__name__} "
            f"has gradients of; got {', '.join(sorted(unknown))}"
        )
    return _Apply.apply(layer, len(inputs), tuple(named), *inputs, *named.values())


class _Apply(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any, layer: Any, count: int, names: tuple[str, ...], *tensors: torch.Tensor
    ) -> Any:
        y = torch.from_numpy(layer.apply(*(_array(tensor) for tensor in tensors[:count])))
        ctx.layer, ctx.names = layer, names
        ctx.save_for_backward(*tensors[:count], y)
        return y

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> Any:
        *inputs, y = (_array(tensor) for tensor in ctx.saved_tensors)
        grad = _array(grad_outputs[0])
        gradients = _gradients_of(ctx.layer)
        wanted = [*gradients[: len(inputs)], *ctx.names]
        targets = {f"{name}_gradient": name in wanted for name in gradients}
        given = ctx.layer.apply_backward(*inputs, y, grad, **targets)
        found = [getattr(given, name) for name in wanted]
        return None, None, None, *(None if a is None else torch.from_numpy(a) for a in found)


def _gradients_of(layer: Any) -> list[str]:
    """The names of a layer's gradients, those of its inputs first."""
    keywords = inspect.signature(layer.apply_backward).parameters
    return [word.removesuffix("_gradient") for word in keywords if word.endswith("_gradient")]


def _array(tensor: torch.Tensor) -> Any:
    return tensor.detach().contiguous().numpy()


# ---- blocks that PyTorch has no layer for, in PyTorch ----


class SelfAttention(torch.nn.Module):  # type: ignore[misc]
    """``Attention`` in PyTorch: a ``torch.nn.MultiheadAttention`` of a sequence to itself.

    Args:
        width: of the rows.
        heads, causal, bias, dropout: as for ``Attention``.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        causal: bool = False,
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.causal = causal
        self.attention = torch.nn.MultiheadAttention(
            width, heads, dropout=dropout, bias=bias, batch_first=True
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[1]
        hidden = torch.ones(length, length, dtype=torch.bool).triu(1) if self.causal else None
        return self.attention(x, x, x, attn_mask=hidden, need_weights=False)[0]


class AddPosition(torch.nn.Module):  # type: ignore[misc]
    """``Position`` in PyTorch: a learned array of a sample's shape, added to every sample."""

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(torch.zeros(*shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.table


class Branches(torch.nn.Module):  # type: ignore[misc]
    """``Branch`` in PyTorch: several ways from the same input.

    Args:
        paths: a module each; an empty ``Sequential`` hands its input on.
        join: ``"add"`` or ``"concatenate"``.
    """

    def __init__(self, *paths: torch.nn.Module, join: str = "add") -> None:
        super().__init__()
        self.paths, self.join = torch.nn.ModuleList(paths), join

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ends = [path(x) for path in self.paths]
        return torch.cat(ends, dim=1) if self.join == "concatenate" else sum(ends[1:], ends[0])


class EachRow(torch.nn.Module):  # type: ignore[misc]
    """``Rows`` in PyTorch: a module that sees each row of a sample as a sample."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.module(x.reshape(-1, *x.shape[2:]))
        return y.reshape(*x.shape[:2], *y.shape[1:])


# ---- weights both ways ----

_ACTIVATIONS = {
    torch.nn.ReLU: "relu",
    torch.nn.Sigmoid: "sigmoid",
    torch.nn.Tanh: "tanh",
    torch.nn.SiLU: "silu",
    torch.nn.GELU: "gelu",
}


def from_torch(module: torch.nn.Module, input: Sequence[int]) -> Network:
    """A network with the layers and the weights of a PyTorch module.

    Args:
        module: ``Linear``, ``Conv2d``, ``Embedding``, batch, layer and group norms, max and average
            pooling, ``ReLU``, ``Sigmoid``, ``Tanh``, ``SiLU``, ``GELU``, ``Flatten``, the modules
            of this file, or a ``Sequential``.
        input: shape of one sample.

    Returns:
        A new network; its weights are copies.

    Raises:
        LayerCreationError: there is no block for a part of it, or its weights have other shapes:
            a ``Linear`` on the rows of samples has to be inside ``EachRow``.

    Examples:
        >>> import torch
        >>> from openbnns.torch import from_torch
        >>> linear = torch.nn.Linear(3, 2)
        >>> network = from_torch(linear, input=(3,))
        >>> x = torch.ones(1, 3)
        >>> bool(abs(network.predict(x.numpy()) - linear(x).detach().numpy()).max() < 1e-6)
        True
    """
    network = Network(_blocks_of(module), input=input, loss="mse")
    stages = [stage for stage in network._each() if stage.block.parameters]
    owners = [found for found in map(_tensors, _leaves(module)) if found]
    for stage, tensors in zip(stages, owners, strict=True):
        for name, array in {**stage.block.parameters, **stage.block.statistics}.items():
            if name not in tensors:  # a norm without running statistics
                continue
            value = tensors[name].detach().numpy()
            if value.size != array.size:
                raise LayerCreationError(
                    f"[from_torch] {stage.name}.{name}: expected {array.shape}; got {value.shape}"
                )
            array[...] = value.reshape(array.shape)
    return network


def to_torch(network: Network) -> torch.nn.Sequential:
    """The same network in PyTorch, with copies of its weights.

    Args:
        network: of blocks that PyTorch has a layer for, or this file.

    Raises:
        LayerCreationError: it has none for one of them.
    """
    return _sequential(network._stages)


def _sequential(stages: Sequence[Stage | Fork | Each]) -> torch.nn.Sequential:
    layers: list[torch.nn.Module] = []
    for stage in stages:
        if isinstance(stage, Fork):
            layers.append(Branches(*map(_sequential, stage.paths), join=stage.join))
        elif isinstance(stage, Each):
            layers.append(EachRow(_sequential(stage.stages)))
        else:
            made = _layers_of(stage.block, stage.input)
            arrays = {**stage.block.parameters, **stage.block.statistics}
            for name, tensor in (pair for layer in made for pair in _tensors(layer).items()):
                if name in arrays:
                    tensor.data.copy_(torch.from_numpy(arrays[name]).reshape(tensor.shape))
            layers += made
    return torch.nn.Sequential(*layers)


def _tensors(layer: Any) -> dict[str, torch.Tensor]:
    """The tensors of a single layer by the names they have in blocks."""
    nn = torch.nn
    named = {}
    if isinstance(layer, (nn.Linear, nn.Conv2d)):
        named = {"weights": layer.weight, "bias": layer.bias}
    elif isinstance(layer, nn.Embedding):
        named = {"table": layer.weight}
    elif isinstance(layer, AddPosition):
        named = {"table": layer.table}
    elif isinstance(layer, SelfAttention):
        inner = layer.attention
        for kind, inside, last in (
            ("weights", inner.in_proj_weight, inner.out_proj.weight),
            ("bias", inner.in_proj_bias, inner.out_proj.bias),
        ):
            parts = (*inside.chunk(3), last) if inside is not None else ()
            words = ("query", "key", "value", "output")
            named |= {f"{word}_{kind}": part for word, part in zip(words, parts, strict=False)}
    elif hasattr(layer, "eps"):
        named = {
            "gamma": layer.weight,
            "beta": layer.bias,
            "moving_mean": getattr(layer, "running_mean", None),
            "moving_variance": getattr(layer, "running_var", None),
        }
    return {name: tensor for name, tensor in named.items() if tensor is not None}


def _leaves(module: Any) -> list[Any]:
    """The single layers of a module, in the order of its blocks."""
    if isinstance(module, (torch.nn.Sequential, torch.nn.ModuleList)):
        return [leaf for child in module for leaf in _leaves(child)]
    if isinstance(module, Branches):
        return _leaves(module.paths)
    return _leaves(module.module) if isinstance(module, EachRow) else [module]


def _blocks_of(module: Any) -> list[Block]:
    if isinstance(module, torch.nn.Sequential):
        return [block for child in module for block in _blocks_of(child)]
    if isinstance(module, Branches):
        return [Branch(*map(_blocks_of, module.paths), join=module.join)]
    if isinstance(module, EachRow):
        return [Rows(*_blocks_of(module.module))]
    return [] if isinstance(module, torch.nn.Identity) else [_block_of(module)]


def _block_of(layer: Any) -> Block:
    nn = torch.nn
    if isinstance(layer, nn.Linear):
        return Dense(layer.out_features, bias=layer.bias is not None)
    if isinstance(layer, nn.Conv2d) and layer.padding_mode == "zeros":
        return Convolution(
            layer.out_channels,
            layer.kernel_size,
            layer.stride,
            layer.padding,
            layer.dilation,
            groups=layer.groups,
            bias=layer.bias is not None,
        )
    if isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d)) and layer.affine and layer.momentum:
        return Normalize("batch", momentum=1 - layer.momentum, epsilon=layer.eps)
    if isinstance(layer, nn.LayerNorm) and layer.elementwise_affine:
        return Normalize("layer", epsilon=layer.eps)
    if isinstance(layer, nn.GroupNorm) and layer.affine:
        return Normalize(Normalization.group(layer.num_groups), epsilon=layer.eps)
    if isinstance(layer, nn.MaxPool2d) and not layer.ceil_mode and layer.dilation in (1, (1, 1)):
        return Pool("max", layer.kernel_size, layer.stride, layer.padding)
    if isinstance(layer, nn.AvgPool2d) and not layer.ceil_mode and layer.count_include_pad:
        return Pool("average", layer.kernel_size, layer.stride, layer.padding)
    if isinstance(layer, nn.Embedding) and layer.max_norm is None and layer.padding_idx is None:
        return Embedding(layer.num_embeddings, layer.embedding_dim)
    if isinstance(layer, SelfAttention):
        inner = layer.attention
        has_bias = inner.in_proj_bias is not None
        return Attention(inner.num_heads, causal=layer.causal, bias=has_bias, dropout=inner.dropout)
    if isinstance(layer, AddPosition):
        return Position()
    if isinstance(layer, nn.Flatten) and layer.start_dim == 1 and layer.end_dim == -1:
        return Flatten()
    if type(layer) in _ACTIVATIONS and getattr(layer, "approximate", "none") == "none":
        return Activate(_ACTIVATIONS[type(layer)])
    raise LayerCreationError(f"[from_torch] module: expected a layer that has a block; got {layer}")


def _layers_of(block: Any, shape: tuple[int, ...]) -> list[torch.nn.Module]:
    nn = torch.nn
    made: list[torch.nn.Module] = []
    if isinstance(block, Dense):
        made = [nn.Linear(shape[0], block.units, bias="bias" in block.parameters)]
    elif isinstance(block, Convolution):
        made = [
            nn.Conv2d(
                shape[0],
                block.channels,
                block.kernel_size,
                block.stride,
                block.padding,
                block.dilation,
                block.groups,
                bias="bias" in block.parameters,
            )
        ]
    elif isinstance(block, Normalize):
        made = [_norm_of(block.kind, block, shape)]
    elif isinstance(block, Pool) and block.kind in ("max", "average"):
        kind = nn.MaxPool2d if block.kind == "max" else nn.AvgPool2d
        made = [kind(block.kernel_size, block.stride, block.padding)]
    elif isinstance(block, Embedding):
        return [nn.Embedding(block.entries, block.width)]
    elif isinstance(block, Flatten):
        return [nn.Flatten()]
    elif isinstance(block, Position):
        return [AddPosition(shape)]
    elif isinstance(block, Attention):
        return [
            SelfAttention(
                shape[1], block.heads, causal=block.causal, bias=block.bias, dropout=block.dropout
            )
        ]
    elif not isinstance(block, Activate):
        raise LayerCreationError(
            f"[to_torch] network: expected blocks that PyTorch has; got {type(block).__name__}"
        )
    if isinstance(block, (Dense, Convolution)) and block.normalization is not None:
        after = (block.units,) if isinstance(block, Dense) else (block.channels, 1, 1)
        made.append(_norm_of(block.normalization, block, after))
    activation = getattr(block, "activation", None)
    if activation is not None:
        words = {word: kind for kind, word in _ACTIVATIONS.items()}
        if activation not in words:
            raise LayerCreationError(
                f"[to_torch] activation: expected one of {', '.join(words)}; got {activation!r}"
            )
        made.append(words[activation]())
    if isinstance(block, Convolution) and block._pool is not None:
        made += _layers_of(block._pool, ())
    return made


def _norm_of(kind: Any, block: Any, shape: tuple[int, ...]) -> torch.nn.Module:
    nn, word = torch.nn, getattr(kind, "name", kind)
    if word == "batch":
        made = nn.BatchNorm2d if len(shape) == 3 else nn.BatchNorm1d
        return made(shape[0], block.epsilon, 1 - block.momentum)
    if word == "layer":
        return nn.LayerNorm(shape, block.epsilon)
    if word == "group":
        return nn.GroupNorm(kind.groups, shape[0], block.epsilon)
    raise LayerCreationError(
        f"[to_torch] normalization: expected batch, layer or group; got {kind}"
    )
