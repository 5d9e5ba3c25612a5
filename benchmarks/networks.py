"""Networks of a usual size for the training and scaling benchmarks, made of our blocks.

A VGG-like one and a residual one on colour images of 32 x 32, and a transformer on sequences of
class numbers: what people train on a CPU when the tutorial is over.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import openbnns
from openbnns.blocks import (
    Activate,
    Attention,
    Block,
    Branch,
    Convolution,
    Dense,
    Embedding,
    Normalize,
    Pool,
    Position,
    Rows,
)

IMAGE_CLASSES = 10


@dataclass(frozen=True)
class Usual:
    """blocks: made anew at every call. inputs: of one sample. words: of a vocabulary, 0 for images;
    then the labels are one per row of a sample."""

    name: str
    blocks: Callable[[], list[Block]]
    batch: int
    inputs: tuple[int, ...]
    words: int = 0

    def network(self, rate: float = 1e-3) -> openbnns.Network:
        """The same parameters every time."""
        optimizer = openbnns.AdamOptimizer(rate)
        return openbnns.Network(self.blocks(), input=self.inputs, optimizer=optimizer, seed=1)

    def batches(self, count: int) -> list[tuple[np.ndarray, np.ndarray]]:
        random = np.random.default_rng(0)
        shape = (self.batch, *self.inputs)
        if self.words:
            return [tuple(random.integers(self.words, size=(2, *shape))) for _ in range(count)]
        return [
            (
                random.standard_normal(shape, np.float32),
                random.integers(IMAGE_CLASSES, size=self.batch),
            )
            for _ in range(count)
        ]


def _convolution(
    channels: int, stride: int = 1, kernel: int = 3, activation: str = "relu"
) -> Block:
    return Convolution(
        channels,
        kernel,
        stride=stride,
        padding=kernel // 2,
        bias=False,
        normalization="batch",
        activation=activation,
    )


def vgg() -> list[Block]:
    """Nine 3 x 3 convolutions, each with batch norm and ReLU, in four stages that
    halve the image."""
    blocks: list[Block] = []
    for channels, count in ((64, 2), (128, 2), (256, 3), (512, 2)):
        blocks += [_convolution(channels) for _ in range(count)]
        blocks.append(Pool("max", 2))
    return [*blocks, Dense(512, "relu"), Dense(IMAGE_CLASSES)]


def residual() -> list[Block]:
    """Two residual blocks in each of three stages; the first of a stage halves the image."""
    blocks = [_convolution(64)]
    channels_before = 64
    for channels, stride in ((64, 1), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1)):
        same = stride == 1 and channels == channels_before
        way = [] if same else [_convolution(channels, stride, 1, "identity")]
        inner = [_convolution(channels, stride), _convolution(channels, activation="identity")]
        blocks += [Branch(inner, way), Activate("relu")]
        channels_before = channels
    return [*blocks, Pool("average", 8), Dense(IMAGE_CLASSES)]


def transformer(words: int, width: int, heads: int, depth: int) -> list[Block]:
    """Causal, norms first, as examples/characters.py."""
    blocks: list[Block] = [Embedding(words, width), Position()]
    for _ in range(depth):
        blocks += [
            Branch([Rows(Normalize("layer")), Attention(heads, causal=True)], []),
            Branch([Rows(Normalize("layer"), Dense(4 * width, "gelu"), Dense(width))], []),
        ]
    return [*blocks, Rows(Normalize("layer"), Dense(words))]


NETWORKS = {
    "vgg": Usual("vgg-64x3x32x32", vgg, 64, (3, 32, 32)),
    "residual": Usual("residual-64x3x32x32", residual, 64, (3, 32, 32)),
    "transformer": Usual(
        "transformer-16x128x256", lambda: transformer(256, 256, 8, 4), 16, (128,), words=256
    ),
}
