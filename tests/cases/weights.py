"""What convolution and fully connected cases share: weights, a bias, and three gradients."""

from math import prod
from typing import NamedTuple

import numpy as np

from cases import dtype_of, generator, sentinel_array


class Gradients(NamedTuple):
    """What a backward call should give; the terms are sums of the sizes of what was added up."""

    dx: np.ndarray
    dx_terms: np.ndarray
    dw: np.ndarray
    dw_terms: np.ndarray
    db: np.ndarray
    db_terms: np.ndarray


class WeightsCase:
    """Data and results of a case with `input_shape`, `weights_shape`, `output_shape`, `outputs`,
    `dtype`, `bias` and gaps, which makes its `layer`."""

    @property
    def stored(self):
        """Type of the output."""
        return self.dtype

    def input(self):
        """x, of the case's shape, type and gaps."""
        x, _ = self.empty_input()
        x[...] = generator(self).standard_normal(self.input_shape).astype(x.dtype)
        return x

    def weights(self):
        """Scaled so that sums of products are of the size of one."""
        w, _ = self.empty_weights()
        scale = prod(self.weights_shape[1:]) ** -0.5
        w[...] = (scale * generator(self, 1).standard_normal(self.weights_shape)).astype(w.dtype)
        return w

    def bias_values(self):
        if not self.bias:
            return None
        return generator(self, 3).standard_normal(self.outputs).astype(dtype_of(self.dtype))

    def output_gradient(self):
        dy, _ = self.empty_output()
        dy[...] = generator(self, 2).standard_normal(self.output_shape).astype(dy.dtype)
        return dy

    def empty_input(self):
        """(x, its owner), all bytes sentinel."""
        return sentinel_array(self.input_shape, self.dtype, self.x_gaps, self.step)

    def empty_output(self):
        return sentinel_array(self.output_shape, self.dtype, self.y_gaps, self.step)

    def empty_weights(self):
        return sentinel_array(self.weights_shape, self.dtype, self.w_gaps)

    def results(self, num_threads=None):
        """Everything a layer of this case computes, by name."""
        layer, x, dy = self.layer(num_threads), self.input(), self.output_gradient()
        y = layer.apply(x)
        grads = layer.apply_backward(x, y, dy)
        results = {"y": y, "dx": grads.input, "dw sum": grads.weights}
        if self.bias:
            results["db sum"] = grads.bias
        return results
