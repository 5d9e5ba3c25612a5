"""A transformer that learns to continue a text, character by character, forward and backward.

Four blocks, each with two branches that are added to what they read:

    x = x + attention(layer norm(x))
    x = x + fully connected(GELU(fully connected(layer norm(x))))

Attention is causal: a place sees itself and what lies before it. In front of the blocks are
a vector per character and one per place, behind them a layer norm and the scores of the next
character; softmax cross-entropy, Adam.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import openbnns as bnns

BATCH, LENGTH, WIDTH, HEADS, BLOCKS = 16, 32, 64, 4, 4

TEXT = """
The mill stood where the brook met the river, and the miller knew both of them by their voices. In
spring the brook was loud and the river was slow; in autumn the river was loud and the brook was
gone. When the brook was loud he opened the upper gate, and the great wheel turned, and the stones
turned with the wheel, and the flour came down white and warm. When the river was loud he closed
the lower gate, and the great wheel stood still, and the miller sat at the door and mended sacks.
A traveller came by in autumn and asked why the wheel stood still. The wheel stands still because
the river is loud, said the miller. And when does it turn, asked the traveller. It turns when the
brook is loud, said the miller, and the brook is loud in spring. Then I shall come back in spring,
said the traveller, and he came back in spring, and the wheel turned, and the flour was warm.
"""
LETTERS = sorted(set(TEXT))
CODES = np.array([LETTERS.index(letter) for letter in TEXT])


def make_batch(seed: int, step: int) -> tuple[np.ndarray, np.ndarray]:
    """Places of the text (N, length), and the characters that follow each."""
    starts = np.random.default_rng((seed, step)).integers(len(CODES) - LENGTH, size=BATCH)
    windows = CODES[starts[:, None] + np.arange(LENGTH + 1)]
    return windows[:, :-1], windows[:, 1:]


def first_parameters(seed: int) -> dict[str, np.ndarray]:
    """Small random weights, gamma 1, all else 0; weights are (outputs, inputs)."""
    random = bnns.RandomGenerator(seed=seed)
    shapes = {"letters": (len(LETTERS), WIDTH), "places": (LENGTH, WIDTH)}
    for b in range(BLOCKS):
        shapes[f"{b}.first.gamma"] = shapes[f"{b}.first.beta"] = (WIDTH,)
        shapes[f"{b}.in.weights"], shapes[f"{b}.in.bias"] = (3 * WIDTH, WIDTH), (3 * WIDTH,)
        shapes[f"{b}.out.weights"], shapes[f"{b}.out.bias"] = (WIDTH, WIDTH), (WIDTH,)
        shapes[f"{b}.second.gamma"] = shapes[f"{b}.second.beta"] = (WIDTH,)
        shapes[f"{b}.up.weights"], shapes[f"{b}.up.bias"] = (4 * WIDTH, WIDTH), (4 * WIDTH,)
        shapes[f"{b}.down.weights"], shapes[f"{b}.down.bias"] = (WIDTH, 4 * WIDTH), (WIDTH,)
    shapes["last.gamma"] = shapes["last.beta"] = (WIDTH,)
    shapes["scores.weights"] = (len(LETTERS), WIDTH)
    parameters = {}
    for name, shape in shapes.items():
        if name.endswith(("bias", "beta")):
            parameters[name] = np.zeros(shape, np.float32)
        elif name.endswith("gamma"):
            parameters[name] = np.ones(shape, np.float32)
        else:
            parameters[name] = random.normal(0.0, 0.08, shape)
    return parameters


class Block:
    """The layers of one block; they read their parameters where they lie."""

    def __init__(self, p: dict[str, np.ndarray], b: int) -> None:
        def norm(word: str) -> bnns.NormalizationLayer:
            gamma, beta = p[f"{b}.{word}.gamma"], p[f"{b}.{word}.beta"]
            return bnns.NormalizationLayer("layer", input=(WIDTH,), gamma=gamma, beta=beta)

        state = {
            "in_proj_weight": p[f"{b}.in.weights"], "in_proj_bias": p[f"{b}.in.bias"],
            "out_proj.weight": p[f"{b}.out.weights"], "out_proj.bias": p[f"{b}.out.bias"],
        }  # fmt: skip
        self.name = b
        self.first, self.second = norm("first"), norm("second")
        self.attention = bnns.MultiheadAttention.from_torch(state, HEADS, LENGTH, causal=True)
        self.up = bnns.FullyConnectedLayer(p[f"{b}.up.weights"], bias=p[f"{b}.up.bias"])
        self.gelu = bnns.ActivationLayer("gelu", input=(4 * WIDTH,))
        self.down = bnns.FullyConnectedLayer(p[f"{b}.down.weights"], bias=p[f"{b}.down.bias"])
        self.cache = bnns.AttentionCache()

    def forward(self, x: np.ndarray) -> np.ndarray:
        """x (N · length, width)"""
        rows = self.first.apply(x, training=True)
        self.seen = rows.reshape(-1, LENGTH, WIDTH)
        mixed, _ = self.attention.apply(self.seen, self.seen, self.seen, cache=self.cache)
        x = x + mixed.reshape(x.shape)
        self.normed = self.second.apply(x, training=True)
        self.wide = self.up.apply(self.normed)
        self.bent = self.gelu.apply(self.wide)
        return x + self.down.apply(self.bent)

    def backward(self, dx: np.ndarray, gradients: dict[str, np.ndarray]) -> np.ndarray:
        """The gradient of what forward read, from that of what it gave."""
        b = self.name
        down = self.down.apply_backward(self.bent, None, dx)
        bent = self.gelu.apply_backward(self.wide, None, down.input)
        up = self.up.apply_backward(self.normed, None, bent.input)
        second = self.second.apply_backward(None, None, up.input)
        dx = dx + second.input
        dy = dx.reshape(-1, LENGTH, WIDTH)
        mixed = self.attention.apply_backward(
            self.seen, self.seen, self.seen, dy, cache=self.cache
        )
        total = mixed.query.input + mixed.key.input + mixed.value.input
        first = self.first.apply_backward(None, None, total.reshape(dx.shape))
        state = self.attention.to_torch(mixed)
        gradients |= {
            f"{b}.first.gamma": first.gamma, f"{b}.first.beta": first.beta,
            f"{b}.in.weights": state["in_proj_weight"], f"{b}.in.bias": state["in_proj_bias"],
            f"{b}.out.weights": mixed.output.weights, f"{b}.out.bias": mixed.output.bias,
            f"{b}.second.gamma": second.gamma, f"{b}.second.beta": second.beta,
            f"{b}.up.weights": up.weights, f"{b}.up.bias": up.bias,
            f"{b}.down.weights": down.weights, f"{b}.down.bias": down.bias,
        }  # fmt: skip
        return dx + first.input


class Writer:
    """The whole network with its parameters and optimizer."""

    def __init__(self, seed: int = 0, learning_rate: float = 0.002) -> None:
        self.parameters = p = first_parameters(seed)
        self.blocks = [Block(p, b) for b in range(BLOCKS)]
        self.last = bnns.NormalizationLayer(
            "layer", input=(WIDTH,), gamma=p["last.gamma"], beta=p["last.beta"]
        )
        self.scores = bnns.FullyConnectedLayer(p["scores.weights"])
        self.loss = bnns.LossLayer("softmax_cross_entropy", input=(len(LETTERS),), reduction="mean")
        self.adam = bnns.AdamOptimizer(learning_rate).bind(list(p.values()))

    def forward(self, letters: np.ndarray) -> np.ndarray:
        """Scores of the next character at every place: (N · length, letters)."""
        x = self.parameters["letters"][letters] + self.parameters["places"]
        x = x.reshape(-1, WIDTH)
        for block in self.blocks:
            x = block.forward(x)
        self.normed = self.last.apply(x, training=True)
        return self.scores.apply(self.normed)

    def step(self, letters: np.ndarray, following: np.ndarray) -> float:
        """One step of training. Returns its loss."""
        scores, gradients = self.forward(letters), {}
        loss, dscores = self.loss.apply(scores, following.reshape(-1), input_gradient=True)
        last = self.scores.apply_backward(self.normed, None, dscores)
        norm = self.last.apply_backward(None, None, last.input)
        gradients |= {
            "scores.weights": last.weights, "last.gamma": norm.gamma, "last.beta": norm.beta
        }  # fmt: skip
        dx = norm.input
        for block in reversed(self.blocks):
            dx = block.backward(dx, gradients)
        dx = dx.reshape(-1, LENGTH, WIDTH)
        gradients["places"] = dx.sum(axis=0)
        gradients["letters"] = np.zeros_like(self.parameters["letters"])
        np.add.at(gradients["letters"], letters, dx)
        self.adam.step([gradients[name] for name in self.parameters])
        return float(loss)

    def write(self, start: str, count: int) -> str:
        """Continues a text of at least `LENGTH` characters, always with the likeliest one."""
        text = start
        for _ in range(count):
            letters = np.array([[LETTERS.index(letter) for letter in text[-LENGTH:]]])
            text += LETTERS[int(self.forward(letters)[-1].argmax())]
        return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    writer = Writer(given.seed)
    start = time.perf_counter()
    for step in range(given.steps):
        loss = writer.step(*make_batch(given.seed, step))
        if step % 50 == 0 or step + 1 == given.steps:
            print(f"step {step:4}   loss {loss:7.4f}")
    print(f"{given.steps} steps in {time.perf_counter() - start:.1f} s")
    print(writer.write(TEXT[1 : LENGTH + 1], 120))


if __name__ == "__main__":
    main()
