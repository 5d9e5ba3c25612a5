"""How errors grow in two layers: z = first(x) with errors e, then a normalization of z.

A change e of z changes x̂ = (z - μ)·r by r·(e - mean e - x̂·mean(x̂·e)), the same form as its
gradient, so the bounds below are sums of sizes of that form. Everything is float64 and broadcast as
in oracles/normalization.py.
"""

import numpy as np

from oracles import normalization as oracle


def standard_error(xhat, r, error, split):
    """Bound of the error of x̂ where z is off by at most `error`."""
    return oracle.backward_terms(xhat, r, 1.0, error, split)


def gradient_error(xhat, r, gamma, dz, error, split):
    """Bound of the error of u = r·(g - mean g - x̂·mean(g·x̂)), g = γ·dz, from the same cause: that
    of x̂, and that of r, which is r·mean(x̂·e) against its size."""
    shape, axes = split

    def mean(values):
        return values.reshape(shape).mean(axis=axes, keepdims=True)

    def spread(values):
        return np.broadcast_to(values, xhat.reshape(shape).shape).reshape(xhat.shape)

    g, size = np.abs(gamma * dz), np.abs(xhat)
    moved = standard_error(xhat, r, error, split)
    by_standard = r * (moved * spread(mean(g * size)) + size * spread(mean(g * moved)))
    by_scale = r * spread(mean(size * error)) * oracle.backward_terms(xhat, r, gamma, dz, split)
    return by_standard + by_scale
