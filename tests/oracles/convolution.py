"""Convolution in float64: each pass directly above its gradients.

Letters: n samples, c input channels, o output channels, g groups; an image of h rows and w
columns, an output of p rows and q columns, a kernel of kh x kw taps. Weights are (o, c/g, kh, kw).
Transposed convolution is the input gradient of a convolution, so its image is the output; its
weights are (c, o/g, kh, kw), as PyTorch has them.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Geometry:
    """Where the taps lie. Pairs are (vertical, horizontal)."""

    image: tuple[int, int]  # h, w
    output: tuple[int, int]  # p, q
    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    before: tuple[int, int]  # padding above, padding to the left
    groups: int

    def padded(self, image):
        """The image inside zeros, so wide that every tap reads inside."""
        sides = [(0, 0), (0, 0)]
        for k in range(2):
            reach = self.stride[k] * (self.output[k] - 1) + self.dilation[k] * (self.kernel[k] - 1)
            sides += [(self.before[k], max(reach + 1 - self.before[k] - self.image[k], 0))]
        return np.pad(image, sides)

    def taps(self):
        """Every tap and the part of the padded image it reads: (ky, kx), (rows, columns)."""
        for ky in range(self.kernel[0]):
            for kx in range(self.kernel[1]):
                starts = (self.dilation[0] * ky, self.dilation[1] * kx)
                part = tuple(
                    slice(first, first + step * (count - 1) + 1, step)
                    for first, step, count in zip(starts, self.stride, self.output, strict=True)
                )
                yield (ky, kx), part

    def inside(self, padded):
        """The image back out of its zeros."""
        up, left = self.before
        return padded[:, :, up : up + self.image[0], left : left + self.image[1]]


def convolution(x, w, geometry):
    """y(n, o, p, q) = sum of w(o, c, ky, kx) x(n, c, s p + d ky - up, s q + d kx - left)."""
    padded, parts = geometry.padded(x), _grouped_weights(w, geometry)
    y = np.zeros((x.shape[0], geometry.groups, parts.shape[1], *geometry.output))
    for (ky, kx), (rows, columns) in geometry.taps():
        seen = _grouped(padded[:, :, rows, columns], geometry)
        y += np.einsum("ngcpq,goc->ngopq", seen, parts[..., ky, kx], optimize=True)
    return _ungrouped(y)


def convolution_input_gradient(dz, w, geometry):
    """dx gets w dz wherever the forward pass read; zero where it never did."""
    parts, dz = _grouped_weights(w, geometry), _grouped(dz, geometry)
    channels = w.shape[1] * geometry.groups
    padded = geometry.padded(np.zeros((dz.shape[0], channels, *geometry.image)))
    for (ky, kx), (rows, columns) in geometry.taps():
        share = np.einsum("ngopq,goc->ngcpq", dz, parts[..., ky, kx], optimize=True)
        padded[:, :, rows, columns] += _ungrouped(share)
    return geometry.inside(padded)


def convolution_weight_gradient(x, dz, geometry):
    """dw(o, c, ky, kx) = sum over n, p, q of dz(n, o, p, q) times what the tap read."""
    padded, dz = geometry.padded(x), _grouped(dz, geometry)
    channels, outputs = x.shape[1] // geometry.groups, dz.shape[2]
    dw = np.zeros((geometry.groups, outputs, channels, *geometry.kernel))
    for (ky, kx), (rows, columns) in geometry.taps():
        seen = _grouped(padded[:, :, rows, columns], geometry)
        dw[..., ky, kx] = np.einsum("ngopq,ngcpq->goc", dz, seen, optimize=True)
    return dw.reshape(-1, channels, *geometry.kernel)


# Transposed: the geometry is that of the convolution from this layer's output to its input.


def transposed(x, w, geometry):
    """y gets w(c, o, ky, kx) x(n, c, p, q) at (s p + d ky - up, s q + d kx - left)."""
    return convolution_input_gradient(x, w, geometry)


def transposed_input_gradient(dz, w, geometry):
    return convolution(dz, w, geometry)


def transposed_weight_gradient(x, dz, geometry):
    return convolution_weight_gradient(dz, x, geometry)


def _grouped(image, geometry):
    """(n, c, ...) -> (n, g, c/g, ...)."""
    n, c = image.shape[:2]
    return image.reshape(n, geometry.groups, c // geometry.groups, *image.shape[2:])


def _ungrouped(image):
    return image.reshape(image.shape[0], -1, *image.shape[3:])


def _grouped_weights(w, geometry):
    """(o, c/g, kh, kw) -> (g, o/g, c/g, kh, kw)."""
    return w.reshape(geometry.groups, w.shape[0] // geometry.groups, *w.shape[1:])
