"""A network that learns to read digits, layer by layer, forward and backward.

The program Apple published for BNNS, on this library. Images of 20 x 20 with a digit of 6 x 6
somewhere go through

    convolution 3 x 3 to 32 channels, batch normalization, ReLU, max pooling 2 x 2
    fully connected to 10 classes
    softmax cross-entropy, mean over the batch
    Adam, until the mean of the last 20 losses is below 0.125
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import openbnns as bnns

BATCH, SIZE, CHANNELS, CLASSES = 32, 20, 32, 10
MOST_STEPS = 1000

GLYPHS = """
.####. ..##.. ####.. ###### #..#.. ###### ..##.. ###### .####. .####.
###### .###.. ...##. ....#. #..#.. #..... .##... ....## #....# #...##
##..## #.##.. ...##. ..##.. #..#.. ####.. ##.... ...##. .####. ######
##..## ..##.. ..##.. ....#. ###### ....#. #####. ..##.. .####. ....##
###### ..##.. .##... ....#. ...#.. ....#. ##..## .##... #....# ....##
.####. ###### ###### ###### ...#.. ####.. .####. ##.... .####. ....##
"""
DIGITS = np.array([[list(glyph) for glyph in line.split()] for line in GLYPHS.split("\n")[1:-1]])
DIGITS = (DIGITS == "#").astype(np.float32).transpose(1, 0, 2)  # (10, 6, 6)


def make_batch(seed: int, step: int, count: int = BATCH) -> tuple[np.ndarray, np.ndarray]:
    """Images (N, 1, 20, 20) and one-hot labels (N, 10). The same seed and step, the same batch."""
    random = np.random.default_rng((seed, step))
    digits = random.integers(CLASSES, size=count)
    places = random.integers(SIZE - 6 + 1, size=(count, 2))
    images = np.zeros((count, 1, SIZE, SIZE), np.float32)
    for image, digit, (top, left) in zip(images, digits, places, strict=True):
        image[0, top : top + 6, left : left + 6] = DIGITS[digit]
    return images, np.eye(CLASSES, dtype=np.float32)[digits]


def room(*shape: int) -> np.ndarray:
    """An array that begins on a cache line, which NumPy's own do not: vectors of 64 bytes then lie
    in one line each, and a step on one thread takes a twentieth less time."""
    size = int(np.prod(shape)) * 4
    memory = np.empty(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size].view(np.float32).reshape(shape)


class DigitNetwork:
    """The layers, their parameters, and room for what passes between them in a training step."""

    def __init__(self, seed: int = 0) -> None:
        half = SIZE // 2
        random = bnns.RandomGenerator(seed=seed)
        self.parameters = {
            "fc_weights": random.uniform(-0.5, 0.5, (CLASSES, CHANNELS * half * half)),
            "weights": random.uniform(-0.5, 0.5, (CHANNELS, 1, 3, 3)),
            "bias": np.zeros(CHANNELS, np.float32),
            "beta": np.zeros(CHANNELS, np.float32),
            "gamma": np.ones(CHANNELS, np.float32),
        }
        self.statistics = {
            "moving_mean": np.zeros(CHANNELS, np.float32),
            "moving_variance": np.ones(CHANNELS, np.float32),
        }
        fc_weights, weights, bias, beta, gamma = self.parameters.values()

        # Layers read their parameters where they lie, so a step of the optimizer is seen at once.
        # Apple's program has the pooling as a layer of its own, with an array for the images before
        # it and one for their gradients. Here it is the third part of the fused layer, which never
        # makes them.
        self.conv = bnns.FusedParametersLayer(
            bnns.FusedConvolutionParameters(weights, bias, padding=1),
            bnns.FusedNormalizationParameters(
                "batch",
                beta,
                gamma,
                momentum=0.9,
                epsilon=1e-7,
                activation="relu",
                **self.statistics,
            ),
            bnns.FusedPoolingParameters("max", kernel_size=2),
            input=(1, SIZE, SIZE),
        )
        self.fc = bnns.FullyConnectedLayer(fc_weights)
        self.loss = bnns.LossLayer("softmax_cross_entropy", input=(CLASSES,), reduction="mean")
        self.adam = bnns.AdamOptimizer(
            learning_rate(0), l2=0.01, gradient_clipping=bnns.ClipByValue(-0.5, 0.5)
        ).bind(list(self.parameters.values()))

        # What passes between the layers, and the gradients on the way back.
        self.pooled = room(BATCH, CHANNELS, half, half)
        self.logits = room(BATCH, CLASSES)
        self.grad_logits = room(BATCH, CLASSES)
        self.grad_pooled = room(BATCH, CHANNELS, half, half)
        self.flat = self.pooled.reshape(BATCH, -1)
        self.grad_flat = self.grad_pooled.reshape(BATCH, -1)
        self.gradients = {name: room(*p.shape) for name, p in self.parameters.items()}
        self.gradient_list = list(self.gradients.values())

    def step(self, images: np.ndarray, labels: np.ndarray) -> float:
        """One step of training on a batch of 32. Returns its loss."""
        self.conv.apply(images, training=True, out=self.pooled)
        self.fc.apply(self.flat, out=self.logits)
        loss, _ = self.loss.apply(self.logits, labels, input_gradient=self.grad_logits)

        self.fc.apply_backward(
            self.flat,
            None,
            self.grad_logits,
            input_gradient=self.grad_flat,
            weights_gradient=self.gradients["fc_weights"],
        )
        self.conv.apply_backward(
            images,
            None,
            self.grad_pooled,
            input_gradient=None,
            weights_gradient=self.gradients["weights"],
            bias_gradient=self.gradients["bias"],
            beta_gradient=self.gradients["beta"],
            gamma_gradient=self.gradients["gamma"],
        )
        self.adam.step(self.gradient_list)
        return float(loss)

    def predict(self, images: np.ndarray) -> np.ndarray:
        """The digit each image shows, by the running statistics: (N,)."""
        pooled = self.conv.apply(images, training=False)
        return self.fc.apply(pooled.reshape(len(images), -1)).argmax(axis=1)


def accuracy(network: DigitNetwork, seed: int, count: int = 1000) -> float:
    """Share of fresh images read correctly."""
    images, labels = make_batch(seed, step=1_000_000, count=count)
    return float((network.predict(images) == labels.argmax(axis=1)).mean())


def learning_rate(step: int) -> float:
    """A tenth from step 500 on."""
    return 0.01 if step < 500 else 0.001


def is_enough(losses: list[float]) -> bool:
    """True when the mean of the last 20 losses is below 0.125."""
    return len(losses) >= 20 and sum(losses[-20:]) / 20 < 0.125


def train(network: DigitNetwork, seed: int = 0):
    """Train until it is enough; yields every loss."""
    losses: list[float] = []
    while len(losses) < MOST_STEPS and not is_enough(losses):
        network.adam.optimizer.learning_rate = learning_rate(len(losses))
        losses.append(network.step(*make_batch(seed, len(losses))))
        yield losses[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    seed = parser.parse_args().seed

    network = DigitNetwork(seed)
    start = time.perf_counter()
    for step, loss in enumerate(train(network, seed)):
        if step % 50 == 0:
            print(f"step {step:4}   loss {loss:7.4f}")
    seconds = time.perf_counter() - start
    print(f"step {step:4}   loss {loss:7.4f}   stopped after {seconds:.2f} s")
    print(f"accuracy on 1000 fresh images: {accuracy(network, seed + 1):.1%}")


if __name__ == "__main__":
    main()
