"""Networks of openbnns.blocks in PyTorch, with the same parameters: what the benchmark's networks
are made of."""

import math
from itertools import count

import torch
import torch.nn.functional as F
from openbnns import blocks as ours

ACTIVATIONS = {"relu": F.relu, "gelu": F.gelu, "identity": lambda x: x, None: lambda x: x}


class Blocks(torch.nn.Module):
    """blocks: ours. parameters: of their network, by name; both are only read."""

    def __init__(self, blocks, parameters):
        super().__init__()
        self.p = torch.nn.ParameterDict()
        for name, array in parameters.items():
            self.p[name.replace(".", "-")] = torch.tensor(array)
        self._numbers = {}
        self._run = self._chain(blocks, in_rows=False)

    def forward(self, x):
        return self._run(x)

    def _own(self, block):
        """What a block's parameters are called: blocks of a class are numbered."""
        word = type(block).__name__.lower()
        number = next(self._numbers.setdefault(word, count(1)))
        return lambda name: self.p[f"{word}_{number}-{name}"]

    def _chain(self, blocks, in_rows):
        steps = [self._step(block, in_rows) for block in blocks]

        def run(x):
            for step in steps:
                x = step(x)
            return x

        return run

    def _step(self, block, in_rows):
        match block:
            case ours.Convolution():
                return self._convolution(block, self._own(block))
            case ours.Dense():
                own, act = self._own(block), ACTIVATIONS[block.activation]
                return lambda x: act(
                    F.linear(x if in_rows else x.flatten(1), own("weights"), own("bias"))
                )
            case ours.Normalize(kind="layer"):
                own = self._own(block)
                return lambda x: F.layer_norm(
                    x, own("gamma").shape, own("gamma"), own("beta"), block.epsilon
                )
            case ours.Attention():
                return self._attention(block, self._own(block))
            case ours.Embedding():
                own = self._own(block)
                return lambda x: F.embedding(x, own("table"))
            case ours.Position():
                own = self._own(block)
                return lambda x: x + own("table")
            case ours.Activate():
                return ACTIVATIONS[block.activation]
            case ours.Pool():
                pool = {"max": F.max_pool2d, "average": F.avg_pool2d}[block.kind]
                return lambda x: pool(x, block.kernel_size)
            case ours.Rows():
                return self._chain(block.blocks, in_rows=True)
            case ours.Branch():
                first, second = [self._chain(path, in_rows) for path in block.paths]
                return lambda x: first(x) + second(x)
        raise NotImplementedError(f"{block} in PyTorch")

    def _convolution(self, block, own):
        act = ACTIVATIONS[block.activation]

        def run(x):
            z = F.conv2d(x, own("weights"), None, block.stride, block.padding)
            return act(
                F.batch_norm(z, None, None, own("gamma"), own("beta"), True, eps=block.epsilon)
            )

        return run

    def _attention(self, block, own):
        words = ("query", "key", "value")

        def run(x):
            n, length, width = x.shape
            weights = torch.cat([own(f"{word}_weights").flatten(0, 1) for word in words])
            bias = torch.cat([own(f"{word}_bias").flatten() for word in words])
            rows = F.linear(x, weights, bias).view(n, length, 3, block.heads, width // block.heads)
            heads = rows.permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(*heads, is_causal=block.causal)
            y = y.transpose(1, 2).reshape(n, length, width)
            return F.linear(y, own("output_weights"), own("output_bias"))

        return run


class Training:
    """Steps: autograd and fused Adam, ε where ours is."""

    def __init__(self, model, rate):
        self.model = model
        self.start = {key: array.clone() for key, array in model.state_dict().items()}
        self.adam = torch.optim.Adam(model.parameters(), rate, fused=True)
        self.taken = 0

    def restart(self):
        self.model.load_state_dict(self.start)
        self.adam.state.clear()
        self.taken = 0

    def step(self, x, labels):
        self.taken += 1
        self.adam.param_groups[0]["eps"] = 1e-8 / math.sqrt(1 - 0.999**self.taken)
        self.adam.zero_grad()
        y = self.model(x)
        loss = F.cross_entropy(y.reshape(-1, y.shape[-1]), labels.reshape(-1))
        loss.backward()
        self.adam.step()
        return loss.item()
