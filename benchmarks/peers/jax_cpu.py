"""JAX on the CPU: jitted forward that keeps what backward needs, its pullback, and both in one."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.harness import Contender, Trainer
from benchmarks.peers import padding_pair

VERSIONS = {"jax": jax.__version__}


def pooling(case, x, dy, compiled):
    """Images are NHWC, the layout XLA likes."""
    vertical, horizontal = padding_pair(case)
    window, stride = (1, *case.kernel, 1), (1, *case.stride, 1)
    padding = ((0, 0), (vertical, vertical), (horizontal, horizontal), (0, 0))

    def maximum(x):
        return lax.reduce_window(x, -jnp.inf, lax.max, window, stride, padding)

    def average(x):
        return lax.reduce_window(x, 0.0, lax.add, window, stride, padding) / np.prod(case.kernel)

    def plain(array):
        return np.asarray(array).transpose(0, 3, 1, 2)

    inputs = (jnp.asarray(np.ascontiguousarray(array.transpose(0, 2, 3, 1))) for array in (x, dy))
    return [_contender(maximum if case.function == "max" else average, *inputs, plain)]


def activation(case, x, dy, compiled):
    function = {
        "rectified_linear": jax.nn.relu,
        "tanh": jnp.tanh,
        "sigmoid": jax.nn.sigmoid,
        "gelu": lambda x: jax.nn.gelu(x, approximate=False),
        "gelu_approximation": lambda x: jax.nn.gelu(x, approximate=True),
        "silu": jax.nn.silu,
        "softmax": lambda x: jax.nn.softmax(x, axis=-1),
    }[case.function]
    return [_contender(function, jnp.asarray(x), jnp.asarray(dy), np.asarray)]


def convolution(case, x, w, dy, compiled):
    """Images NHWC, weights HWIO, the layouts XLA likes."""
    geometry = case.geometry

    def plain_convolution(image, w):
        return lax.conv_general_dilated(
            image,
            w,
            window_strides=case.stride,
            padding=case.padding,
            rhs_dilation=case.dilation,
            feature_group_count=case.groups,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )

    def transposed_convolution(x, w):  # the adjoint of the convolution back to x
        image = jnp.zeros((case.image[0], *geometry.image, case.outputs), jnp.float32)
        return jax.vjp(lambda image: plain_convolution(image, w), image)[1](x)[0]

    function = transposed_convolution if case.transposed else plain_convolution
    inputs = [jnp.asarray(np.ascontiguousarray(array.transpose(0, 2, 3, 1))) for array in (x, dy)]
    weights = jnp.asarray(np.ascontiguousarray(w.transpose(2, 3, 1, 0)))

    def plain_image(array):
        return np.asarray(array).transpose(0, 3, 1, 2)

    def plain_weights(array):
        return np.asarray(array).transpose(3, 2, 0, 1)

    plain = (plain_image, plain_image, plain_weights)
    return [_trainer(function, inputs[0], weights, inputs[1], plain)]


def fully_connected(case, x, w, dy, compiled):
    arrays = map(jnp.asarray, (x, w, dy))
    return [_trainer(lambda x, w: x @ w.T, *arrays, (np.asarray,) * 3)]


def gemm(case, x, w, compiled):
    stored = jnp.asarray(w.T if case.column_major else w)  # row-major as it lies
    function = jax.jit(lambda x, w: x @ (w if case.column_major else w.T))
    x = jnp.asarray(x)

    def forward():
        return jax.block_until_ready(function(x, stored))

    return [Trainer("jax", forward, None, None, lambda: (np.asarray(forward()),))]


def _trainer(function, x, w, dy, plain):
    """The function is linear in x and in w, so each gradient runs without the forward pass."""
    forward = jax.jit(function)
    by_x = jax.jit(lambda x, w, dy: jax.vjp(lambda x: function(x, w), x)[1](dy)[0])
    by_w = jax.jit(lambda x, w, dy: jax.vjp(lambda w: function(x, w), w)[1](dy)[0])

    @jax.jit
    def both(x, w, dy):
        return jax.vjp(function, x, w)[1](dy)

    @jax.jit
    def everything(x, w, dy):
        y, pullback = jax.vjp(function, x, w)
        return y, *pullback(dy)

    def result():
        return tuple(to(a) for to, a in zip(plain, everything(x, w, dy), strict=True))

    return Trainer(
        "jax",
        lambda: jax.block_until_ready(forward(x, w)),
        lambda: jax.block_until_ready(by_x(x, w, dy)),
        lambda: jax.block_until_ready(by_w(x, w, dy)),
        result,
        both_gradients=lambda: jax.block_until_ready(both(x, w, dy)),
        both_gradients_and_forward=lambda: jax.block_until_ready(everything(x, w, dy)),
    )


def _contender(function, x, dy, plain):
    """`both` returns y as well: XLA would drop forward work that nobody asks for."""
    forward = jax.jit(lambda x: jax.vjp(function, x))
    backward = jax.jit(lambda pullback, dy: pullback(dy))

    @jax.jit
    def both(x, dy):
        y, pullback = jax.vjp(function, x)
        return y, pullback(dy)

    _, kept = jax.block_until_ready(forward(x))

    def result():
        y, (dx,) = both(x, dy)
        return plain(y), plain(dx)

    return Contender(
        "jax",
        lambda: jax.block_until_ready(forward(x)),
        lambda: jax.block_until_ready(backward(kept, dy)),
        result,
        both=lambda: jax.block_until_ready(both(x, dy)),
    )
