"""Normalization in float64: x̂ = (x - μ)·r, y = γ·x̂ + β, with μ and r = 1/sqrt(v + ε) of groups of
values, v divided by their number. Below the forward its gradients.

x, x̂, y: (n, c, h, w) or (n, c). Groups are written as a split: the shape into which x falls, and
the axes of it that one group spans.
"""

import numpy as np


def split_of(kind, shape, axis=0, groups=1):
    """(shape, axes) of the groups of a batch; axis counts those of a sample."""
    n, c = shape[:2]
    if kind in ("batch", "instance"):
        return (n, c, -1), (0, 2) if kind == "batch" else (2,)
    if kind == "layer":
        return (n, int(np.prod(shape[1 : 1 + axis])), -1), (2,)
    return (n, groups, -1), (2,)


def statistics(x, split):
    """Mean and population variance of every group, of a shape that broadcasts to the split."""
    shape, axes = split
    values = x.reshape(shape)
    return values.mean(axis=axes, keepdims=True), values.var(axis=axes, keepdims=True)


def standardize(x, split, mean, variance, epsilon):
    """x̂, and r of the shape of x."""
    values = x.reshape(split[0])
    r = np.broadcast_to(1.0 / np.sqrt(variance + epsilon), values.shape)
    return ((values - mean) * r).reshape(x.shape), r.reshape(x.shape)


def affine(xhat, gamma, beta):
    """γ and β broadcast to a sample."""
    return gamma * xhat + beta


def backward(xhat, r, gamma, dz, split):
    """dx for dz, the gradient of γ·x̂ + β."""
    shape, axes = split
    g = (gamma * dz).reshape(shape)
    xhat_ = xhat.reshape(shape)
    mean_g = g.mean(axis=axes, keepdims=True)
    mean_g_xhat = (g * xhat_).mean(axis=axes, keepdims=True)
    return r * (g - mean_g - xhat_ * mean_g_xhat).reshape(xhat.shape)


def backward_terms(xhat, r, gamma, dz, split):
    """Sums of the sizes of what a value of dx adds up."""
    shape, axes = split
    g, xhat_ = np.abs(gamma * dz).reshape(shape), np.abs(xhat).reshape(shape)
    mean_g = g.mean(axis=axes, keepdims=True)
    mean_g_xhat = (g * xhat_).mean(axis=axes, keepdims=True)
    return r * (g + mean_g + xhat_ * mean_g_xhat).reshape(xhat.shape)


def summed_to(values, shape):
    """A gradient of the shape of a batch, added up to that of a parameter which broadcasts to a
    sample."""
    total = values.sum(axis=0)
    while total.ndim > len(shape):
        total = total.sum(axis=0)
    axes = tuple(k for k, extent in enumerate(shape) if extent == 1)
    return total.sum(axis=axes, keepdims=True) if axes else total


def moved(moving, current, momentum):
    return momentum * moving + (1.0 - momentum) * current


def running(x, kind):
    """What goes into the running statistics, (c) each: means, and variances divided by one less
    than their number, averaged over the samples of instance normalization."""
    shape, axes = split_of(kind, x.shape)
    values = x.reshape(shape)
    count = values.shape[2] * (values.shape[0] if kind == "batch" else 1)
    mean = values.mean(axis=axes).reshape(-1, x.shape[1]).mean(axis=0)
    variance = values.var(axis=axes).reshape(-1, x.shape[1]).mean(axis=0)
    return mean, variance * (count / (count - 1) if count > 1 else 1.0)
