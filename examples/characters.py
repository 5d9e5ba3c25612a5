"""A small transformer that learns to write, one letter at a time, layer by layer.

Letters become vectors, four blocks of attention and two dense layers change them, and from the last
vectors the next letter is guessed:

    x = table[letters] + positions
    four times:  x += attention(norm(x));  x += down(gelu(up(norm(x))))
    logits = head(norm(x))
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import openbnns as bnns

WIDTH, HEADS, BLOCKS, LENGTH, BATCH = 64, 4, 4, 64, 16
TEXT = Path(__file__).with_name("characters.txt")


def load_text() -> tuple[str, np.ndarray]:
    """The letters that occur, in order, and the text as their numbers."""
    text = TEXT.read_text(encoding="utf-8")
    letters = "".join(sorted(set(text)))
    return letters, np.array([letters.index(letter) for letter in text])


def make_batch(numbers: np.ndarray, seed: int, step: int) -> tuple[np.ndarray, np.ndarray]:
    """Pieces of the text (N, T), and the letters that follow, (N, T)."""
    random = np.random.default_rng((seed, step))
    starts = random.integers(len(numbers) - LENGTH, size=BATCH)
    places = starts[:, None] + np.arange(LENGTH)
    return numbers[places], numbers[places + 1]


def make_parameters(letters: int, seed: int) -> dict[str, np.ndarray]:
    """All parameters by name. Attention has those of PyTorch's layer, under its names."""
    random = bnns.RandomGenerator(seed)

    def normal(*shape: int, scale: float = 0.02) -> np.ndarray:
        return random.normal(0, scale, shape)

    def zeros(*shape: int) -> np.ndarray:
        return np.zeros(shape, np.float32)

    parameters = {"table": normal(letters, WIDTH), "positions": normal(LENGTH, WIDTH)}
    for name in [f"block{i}." for i in range(BLOCKS)]:
        parameters |= {
            name + "norm1.gamma": zeros(WIDTH) + 1,
            name + "norm1.beta": zeros(WIDTH),
            name + "attention.in_proj_weight": normal(3 * WIDTH, WIDTH, scale=WIDTH**-0.5),
            name + "attention.in_proj_bias": zeros(3 * WIDTH),
            name + "attention.out_proj.weight": normal(WIDTH, WIDTH),
            name + "attention.out_proj.bias": zeros(WIDTH),
            name + "norm2.gamma": zeros(WIDTH) + 1,
            name + "norm2.beta": zeros(WIDTH),
            name + "up.weights": normal(4 * WIDTH, WIDTH, scale=WIDTH**-0.5),
            name + "up.bias": zeros(4 * WIDTH),
            name + "down.weights": normal(WIDTH, 4 * WIDTH),
            name + "down.bias": zeros(WIDTH),
        }
    parameters |= {
        "norm.gamma": zeros(WIDTH) + 1,
        "norm.beta": zeros(WIDTH),
        "head.weights": normal(letters, WIDTH),
        "head.bias": zeros(letters),
    }
    return parameters


class Norm:
    """Layer normalization of rows (M, WIDTH)."""

    def __init__(self, parameters: dict, gradients: dict, name: str) -> None:
        self.layer = bnns.NormalizationLayer(
            "layer",
            input=(WIDTH,),
            beta=parameters[name + ".beta"],
            gamma=parameters[name + ".gamma"],
        )
        self.beta, self.gamma = gradients[name + ".beta"], gradients[name + ".gamma"]

    def forward(self, x: np.ndarray) -> np.ndarray:
        return self.layer.apply(x, training=True)

    def backward(self, grad: np.ndarray) -> np.ndarray:
        return self.layer.apply_backward(
            None, None, grad, beta_gradient=self.beta, gamma_gradient=self.gamma
        ).input


class Dense:
    """A fully connected layer on rows (M, inputs)."""

    def __init__(self, parameters: dict, gradients: dict, name: str) -> None:
        self.layer = bnns.FullyConnectedLayer(
            parameters[name + ".weights"], bias=parameters[name + ".bias"]
        )
        self.weights, self.bias = gradients[name + ".weights"], gradients[name + ".bias"]

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.x = x
        return self.layer.apply(x)

    def backward(self, grad: np.ndarray) -> np.ndarray:
        return self.layer.apply_backward(
            self.x, None, grad, weights_gradient=self.weights, bias_gradient=self.bias
        ).input


class Attention:
    """Attention of rows (N·T, WIDTH) to themselves and to those before them."""

    def __init__(self, parameters: dict, gradients: dict, name: str) -> None:
        def own(arrays: dict) -> dict:
            start = name + "."
            return {key[len(start) :]: a for key, a in arrays.items() if key.startswith(start)}

        self.layer = bnns.MultiheadAttention.from_torch(
            own(parameters), heads=HEADS, lengths=LENGTH, causal=True
        )
        self.cache = bnns.AttentionCache()
        # Where the gradients go: the parts of in_proj in the shapes of the layer's projections.
        own_gradients = own(gradients)
        weights = own_gradients["in_proj_weight"].reshape(3, HEADS, -1, WIDTH)
        biases = own_gradients["in_proj_bias"].reshape(3, HEADS, -1)
        self.targets = {
            "output_weights_gradient": own_gradients["out_proj.weight"],
            "output_bias_gradient": own_gradients["out_proj.bias"],
        }
        for part, word in enumerate(("query", "key", "value")):
            self.targets[f"{word}_weights_gradient"] = weights[part]
            self.targets[f"{word}_bias_gradient"] = biases[part]

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.x = x.reshape(-1, LENGTH, WIDTH)
        y, _ = self.layer.apply(self.x, self.x, self.x, cache=self.cache)
        return y.reshape(x.shape)

    def backward(self, grad: np.ndarray) -> np.ndarray:
        total = np.empty_like(self.x)  # one array for three inputs receives the sum
        self.layer.apply_backward(
            self.x,
            self.x,
            self.x,
            None,
            grad.reshape(self.x.shape),
            cache=self.cache,
            query_gradient=total,
            key_gradient=total,
            value_gradient=total,
            **self.targets,
        )
        return total.reshape(grad.shape)


class Block:
    """Attention, then two dense layers; each adds to what it was given."""

    def __init__(self, parameters: dict, gradients: dict, name: str) -> None:
        self.norm1, self.norm2 = (Norm(parameters, gradients, f"{name}.norm{i}") for i in (1, 2))
        self.attention = Attention(parameters, gradients, f"{name}.attention")
        self.up, self.down = (Dense(parameters, gradients, f"{name}.{w}") for w in ("up", "down"))
        self.gelu = bnns.ActivationLayer("gelu", input=(4 * WIDTH,))

    def forward(self, x: np.ndarray) -> np.ndarray:
        x = x + self.attention.forward(self.norm1.forward(x))
        self.wide = self.up.forward(self.norm2.forward(x))
        return x + self.down.forward(self.gelu.apply(self.wide))

    def backward(self, grad: np.ndarray) -> np.ndarray:
        grad_wide = self.gelu.apply_backward(self.wide, None, self.down.backward(grad)).input
        grad = grad + self.norm2.backward(self.up.backward(grad_wide))
        return grad + self.norm1.backward(self.attention.backward(grad))


class Writer:
    """The whole network, its gradients and its optimizer."""

    def __init__(self, letters: int, seed: int = 0, rate: float = 2e-3) -> None:
        self.parameters = make_parameters(letters, seed)
        self.gradients = {name: np.zeros_like(p) for name, p in self.parameters.items()}
        both = self.parameters, self.gradients
        self.blocks = [Block(*both, f"block{i}") for i in range(BLOCKS)]
        self.norm, self.head = Norm(*both, "norm"), Dense(*both, "head")
        self.loss = bnns.LossLayer("softmax_cross_entropy", input=(letters,))
        self.adam = bnns.AdamOptimizer(rate).bind(list(self.parameters.values()))

    def logits(self, letters: np.ndarray) -> np.ndarray:
        """Guesses of the next letter at every place: (N, T) to (N·T, letters)."""
        x = self.parameters["table"][letters] + self.parameters["positions"]
        x = x.reshape(-1, WIDTH)
        for block in self.blocks:
            x = block.forward(x)
        return self.head.forward(self.norm.forward(x))

    def step(self, letters: np.ndarray, following: np.ndarray) -> float:
        """One step of training. Returns the loss before it."""
        logits = self.logits(letters)
        loss, grad = self.loss.apply(logits, following.reshape(-1), input_gradient=True)

        grad = self.norm.backward(self.head.backward(grad))
        for block in reversed(self.blocks):
            grad = block.backward(grad)
        # A letter's vector was used wherever the letter stands: rows of zeros and ones add them up.
        chosen = np.eye(len(self.parameters["table"]), dtype=np.float32)[letters.reshape(-1)]
        bnns.matmul(chosen, grad, transpose_a=True, out=self.gradients["table"])
        np.sum(grad.reshape(-1, LENGTH, WIDTH), axis=0, out=self.gradients["positions"])
        self.adam.step(list(self.gradients.values()))
        return float(loss)

    def write(self, start: np.ndarray, count: int, seed: int = 0) -> list[int]:
        """Letters that follow LENGTH given ones, drawn by their probability."""
        random, text = np.random.default_rng(seed), list(start)
        for _ in range(count):
            logits = self.logits(np.array(text[-LENGTH:])[None])[-1].astype(np.float64)
            weights = np.exp((logits - logits.max()) / 0.7)
            text.append(int(random.choice(len(weights), p=weights / weights.sum())))
        return text[len(start) :]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()

    letters, numbers = load_text()
    writer = Writer(len(letters), given.seed)
    start = time.perf_counter()
    for step in range(given.steps):
        loss = writer.step(*make_batch(numbers, given.seed, step))
        if step % 50 == 0 or step == given.steps - 1:
            print(f"step {step:4}   loss {loss:.3f}")
    seconds = time.perf_counter() - start
    print(f"{1e3 * seconds / given.steps:.1f} ms a step\n")
    print("".join(letters[number] for number in writer.write(numbers[:LENGTH], 300, given.seed)))


if __name__ == "__main__":
    main()
