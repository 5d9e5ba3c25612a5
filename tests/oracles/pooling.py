"""Pooling in float64: each function directly above its gradient.

Letters: n samples, c channels, image of h rows and w columns, oh x ow windows of kh x kw values.
An image is (n, c, h, w), a pooled array (n, c, oh, ow). Max keeps one index y*w + x per window.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Geometry:
    """Where the windows lie. Pairs are (vertical, horizontal)."""

    image: tuple[int, int]  # h, w
    windows: tuple[int, int]  # oh, ow
    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    before: tuple[int, int]  # padding above, padding to the left

    def positions(self):
        """Flat image position of every window value and whether it is inside: (oh, ow, kh*kw)."""
        h, w = self.image
        y, x = (
            self.stride[axis] * np.arange(self.windows[axis])[:, None]
            + self.dilation[axis] * np.arange(self.kernel[axis])
            - self.before[axis]
            for axis in range(2)
        )
        y, x = y[:, None, :, None], x[None, :, None, :]  # (oh, ow, kh, kw) once combined
        inside = (y >= 0) & (y < h) & (x >= 0) & (x < w)
        flat = np.where(inside, y * w + x, 0)
        shape = (*self.windows, self.kernel[0] * self.kernel[1])
        return flat.reshape(shape), inside.reshape(shape)


def window_values(image, geometry, outside):
    """(n, c, h, w) -> (n, c, oh, ow, kh*kw), `outside` where a window leaves the image."""
    flat, inside = geometry.positions()
    planes = image.reshape((*image.shape[:2], -1))
    return np.where(inside, planes[:, :, flat], outside)


def add_to_image(values, where, geometry):
    """Adds values (n, c, ...) at the flat positions `where` (broadcast to them), zero elsewhere."""
    n, c = values.shape[:2]
    planes = np.zeros((n, c, geometry.image[0] * geometry.image[1]))
    where = np.broadcast_to(where, values.shape)
    sample = np.arange(n).reshape((n,) + (1,) * (values.ndim - 1))
    channel = np.arange(c).reshape((1, c) + (1,) * (values.ndim - 2))
    np.add.at(planes, (sample, channel, where), values)
    return planes.reshape((n, c, *geometry.image))


def max_pool(x, geometry):
    """The largest value inside the image and its index; the first wins a tie, a NaN wins all.
    A window without any value inside gives 0 at index 0."""
    flat, inside = geometry.positions()
    values = window_values(x, geometry, -np.inf)
    winner = values.argmax(axis=-1)
    # when everything inside is -inf, a padding position may have come first
    first_inside = np.broadcast_to(inside.argmax(axis=-1), winner.shape)
    inside, flat = np.broadcast_to(inside, values.shape), np.broadcast_to(flat, values.shape)
    winner = np.where(_take(inside, winner), winner, first_inside)
    empty = ~inside.any(axis=-1)
    y = np.where(empty, 0.0, _take(values, winner))
    return y, np.where(empty, 0, _take(flat, winner))


def max_pool_backward(dz, indices, geometry):
    """y = x[index], so dx[index] += dz; windows without a value inside pass nothing."""
    _, inside = geometry.positions()
    return add_to_image(np.where(inside.any(axis=-1), dz, 0.0), indices, geometry)


def average_pool(x, geometry, count_include_padding):
    """Sum over kh*kw, or over the positions inside; 0 when there are none."""
    total = window_values(x, geometry, 0.0).sum(axis=-1)
    return total / _count(geometry, count_include_padding)


def average_pool_backward(dz, geometry, count_include_padding):
    """y = sum(x)/count, so dx[p] += dz/count for every position inside."""
    flat, inside = geometry.positions()
    share = dz / _count(geometry, count_include_padding)
    return add_to_image(np.where(inside, share[..., None], 0.0), flat, geometry)


def l2_norm_pool(x, geometry):
    return np.sqrt((window_values(x, geometry, 0.0) ** 2).sum(axis=-1))


def l2_norm_pool_backward(x, dz, geometry):
    """r = sqrt(sum(x^2)), so dx[p] += dz x[p]/r, and 0 where r = 0."""
    flat, inside = geometry.positions()
    r = l2_norm_pool(x, geometry)
    scaled = np.divide(dz, r, out=np.zeros_like(dz), where=r != 0)
    shares = scaled[..., None] * window_values(x, geometry, 0.0)
    return add_to_image(np.where(inside, shares, 0.0), flat, geometry)


def max_unpool(x, indices, geometry):
    """x (n, c, oh, ow) back to its positions in a zero image; the last one wins a position."""
    n, c = x.shape[:2]
    planes = np.zeros((n, c, geometry.image[0] * geometry.image[1]))
    for sample in range(n):
        for channel in range(c):
            values = x[sample, channel].reshape(-1)
            for k, index in enumerate(indices[sample, channel].reshape(-1)):
                planes[sample, channel, index] = values[k]
    return planes.reshape((n, c, *geometry.image))


def max_unpool_backward(dz, indices, geometry):
    """image[index] = x, so dx = dz[index]."""
    n, c = dz.shape[:2]
    planes, flat = dz.reshape(n, c, -1), indices.reshape(n, c, -1)
    return np.take_along_axis(planes, flat, axis=-1).reshape(indices.shape)


def forward(function, x, geometry, indices=None):
    """(values, indices or None) of any of the five functions."""
    if function == "max":
        return max_pool(x, geometry)
    if function == "unmax":
        return max_unpool(x, indices, geometry), None
    if function == "l2_norm":
        return l2_norm_pool(x, geometry), None
    return average_pool(x, geometry, function == "average"), None


def backward(function, x, dz, geometry, indices=None):
    """dx of any of the five functions; `indices` of max are recomputed when not given."""
    if function == "max":
        found = max_pool(x, geometry)[1] if indices is None else indices
        return max_pool_backward(dz, found, geometry)
    if function == "unmax":
        return max_unpool_backward(dz, indices, geometry)
    if function == "l2_norm":
        return l2_norm_pool_backward(x, dz, geometry)
    return average_pool_backward(dz, geometry, function == "average")


def _count(geometry, count_include_padding):
    if count_include_padding:
        return geometry.kernel[0] * geometry.kernel[1]
    return np.maximum(geometry.positions()[1].sum(axis=-1), 1)


def _take(values, where):
    return np.take_along_axis(values, where[..., None], axis=-1)[..., 0]
