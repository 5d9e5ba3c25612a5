"""Small data sets that networks are trained on."""

import numpy as np


def random_batch(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def blobs(n=240, classes=3, seed=0):
    """Points around as many centres as there are classes."""
    random = np.random.default_rng(seed)
    labels = random.integers(classes, size=n)
    centres = random.normal(size=(classes, 8)) * 3
    return (centres[labels] + random.normal(size=(n, 8))).astype(np.float32), labels
