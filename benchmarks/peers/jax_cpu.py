"""JAX on the CPU: jitted forward that keeps what backward needs, its pullback, and both in one."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.harness import Contender
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
