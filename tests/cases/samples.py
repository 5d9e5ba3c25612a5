"""Small things many tests begin with: data to train on, a layer and its images."""

import numpy as np
from openbnns import PoolingLayer


def random_batch(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def blobs(n=240, classes=3, seed=0):
    """Points around as many centres as there are classes."""
    random = np.random.default_rng(seed)
    labels = random.integers(classes, size=n)
    centres = random.normal(size=(classes, 8)) * 3
    return (centres[labels] + random.normal(size=(n, 8))).astype(np.float32), labels


def pool(**options):
    return PoolingLayer("max", **{"input": (1, 4, 4), "kernel_size": 2} | options)


def images(n=2, dtype=np.float32):
    return np.arange(n * 16).reshape(n, 1, 4, 4).astype(dtype)
