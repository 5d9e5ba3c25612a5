"""The network of examples/characters.py in PyTorch, with the same parameters."""

import math

import torch
import torch.nn.functional as F


class Writer:
    """Steps of training: autograd and fused Adam, ε where ours is."""

    def __init__(self, parameters, heads, blocks, rate):
        self.p = {k: torch.tensor(v).requires_grad_() for k, v in parameters.items()}
        self.heads, self.blocks = heads, blocks
        self.adam = torch.optim.Adam(self.p.values(), rate, fused=True)
        self.taken = 0

    def logits(self, letters):
        p = self.p
        x = p["table"][letters] + p["positions"]
        for i in range(self.blocks):
            own = f"block{i}."
            x = x + self._attention(self._norm(x, own + "norm1"), own + "attention.")
            wide = F.linear(self._norm(x, own + "norm2"), p[own + "up.weights"], p[own + "up.bias"])
            x = x + F.linear(F.gelu(wide), p[own + "down.weights"], p[own + "down.bias"])
        return F.linear(self._norm(x, "norm"), p["head.weights"], p["head.bias"])

    def _norm(self, x, name):
        return F.layer_norm(x, x.shape[-1:], self.p[name + ".gamma"], self.p[name + ".beta"])

    def _attention(self, x, name):
        n, length, width = x.shape
        qkv = F.linear(x, self.p[name + "in_proj_weight"], self.p[name + "in_proj_bias"])
        parts = qkv.view(n, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(*parts, is_causal=True)
        y = y.transpose(1, 2).reshape(n, length, width)
        return F.linear(y, self.p[name + "out_proj.weight"], self.p[name + "out_proj.bias"])

    def step(self, letters, following):
        self.taken += 1
        self.adam.param_groups[0]["eps"] = 1e-8 / math.sqrt(1 - 0.999**self.taken)
        self.adam.zero_grad()
        logits = self.logits(letters)
        loss = F.cross_entropy(logits.flatten(0, 1), following.flatten())
        loss.backward()
        self.adam.step()
        return loss.item()
