"""Central differences of the library's own forward pass.

The forward pass computes in float32, too coarse for one difference per element. So all elements
move at once, by +-STEP in a random direction, and one number is compared: the change of a weighted
sum of the outputs against the same sum of the gradient. Inputs must keep more than STEP away from
kinks and ties.
"""

import numpy as np

STEP = 2.0**-7
TOLERANCE = 2e-3  # of the norm of the gradient; the curvature term STEP^2 f'''/6 is part of it


def assert_gradient_matches(forward, gradient, x, rng, step=STEP):
    """forward: x -> y; gradient: (x, dy) -> dx, both float32 arrays of any shape."""
    dy = rng.standard_normal(forward(x).shape).astype(np.float32)
    dx = np.asarray(gradient(x, dy), dtype=np.float64)
    for _ in range(3):
        direction = rng.choice(np.float32([-1.0, 1.0]), size=x.shape)
        ahead, behind = forward(x + step * direction), forward(x - step * direction)
        change = (dy.astype(np.float64) * (ahead.astype(np.float64) - behind)).sum() / (2 * step)
        predicted = (dx * direction).sum()
        allowed = TOLERANCE * max(1.0, float(np.linalg.norm(dx)))
        assert abs(change - predicted) <= allowed, (change, predicted, allowed)


def away_from(x, points, distance=4 * STEP):
    """Pushes the values of x that lie within `distance` of one of the points up to its edge."""
    for point in points:
        side = np.where(x < point, -1.0, 1.0)
        x = np.where(np.abs(x - point) < distance, point + side * distance, x)
    return x


def well_separated(shape, rng):
    """Distinct values, at least 4 steps apart: no maximum changes hands. Not for huge shapes."""
    count = int(np.prod(shape))
    return ((rng.permutation(count) - count / 2) * 4 * STEP).reshape(shape).astype(np.float32)
