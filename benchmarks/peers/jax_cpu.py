"""JAX on the CPU: jitted forward that keeps what backward needs, its pullback, and both in one."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.harness import Contender, Learner, Trainer
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

    inputs, gradient = map(_last, (x, dy))
    function = maximum if case.function == "max" else average
    return [_contender(function, (inputs,), gradient, (_plain_image,) * 2)]


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
    return [_contender(function, (jnp.asarray(x),), jnp.asarray(dy), (np.asarray,) * 2)]


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
    plain = (_plain_image, _plain_image, _plain_weights)
    return [_trainer(function, _last(x), _weights(w), _last(dy), plain)]


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


def matmul(case, a, b, dy, compiled):
    def turned(array, on):
        return array.swapaxes(-1, -2) if on else array

    def function(a, b):
        return turned(a, case.transpose[0]) @ turned(b, case.transpose[1])

    a, b, dy = map(jnp.asarray, (a, b, dy))
    return [_contender(function, (a, b), dy, (np.asarray,) * 3)]


def normalization(case, x, dy, compiled):
    """Images NHWC; running statistics are not updated."""
    given = (x, case.gamma_values(), case.beta_values())
    if x.ndim == 2:
        arrays, plain = [jnp.asarray(array) for array in (*given, dy)], np.asarray
    else:
        arrays, plain = [_last(x), *map(jnp.asarray, given[1:]), _last(dy)], _plain_image
    turned = (plain, plain, np.asarray, np.asarray)
    return [_contender(_norm(case), arrays[:-1], arrays[-1], turned)]


def attention(case, p, dy, compiled):
    names = ("q", "k", "v", "wq", "wk", "wv", "wo", "bq", "bk", "bv", "bo")
    given = [getattr(p, name) for name in names]
    given[3:6] = [w.reshape(-1, w.shape[-1]) for w in given[3:6]]
    given[7:10] = [b.reshape(-1) for b in given[7:10]]

    def function(q, k, v, wq, wk, wv, wo, bq, bk, bv, bo):
        rows = [
            (x @ w.T + b).reshape(case.batch, x.shape[1], case.heads, -1)
            for x, w, b in ((q, wq, bq), (k, wk, bk), (v, wv, bv))
        ]
        a = jax.nn.dot_product_attention(*rows, is_causal=case.causal)
        return a.reshape(case.batch, case.targets, -1) @ wo.T + bo

    arrays = [jnp.asarray(array) for array in given]
    return [_contender(function, arrays, jnp.asarray(dy), (np.asarray,) * 12)]


def arithmetic(case, a, b, dy, compiled):
    """Forward only for sums: JAX hands dy on as their gradient."""
    function = {"add": jnp.add, "multiply": jnp.multiply}[case.function]
    a, b, dy = map(jnp.asarray, (a, b, dy))
    both = _contender(function, (a, b), dy, (np.asarray,) * 3)
    if case.function == "add":
        return [Contender(both.name, both.forward, None, lambda: both.result()[:1])]
    return [both]


def fused(case, inputs, w, dy, compiled):
    """Images NHWC, weights HWIO; running statistics are not updated."""
    norm, first = _norm(case.norm), case.first
    parameters = [jnp.asarray(case.norm.gamma_values()), jnp.asarray(case.norm.beta_values())]
    if case.word == "fully_connected":
        arrays = [jnp.asarray(inputs[0]), jnp.asarray(w), *parameters]

        def function(x, w, gamma, beta):
            return norm(x @ w.T, gamma, beta)

        return [_contender(function, arrays, jnp.asarray(dy), (np.asarray,) * 5)]
    if case.word == "arithmetic":

        def function(a, b, gamma, beta):
            return norm(a + b, gamma, beta)

        arrays = [*map(_last, inputs), *parameters]
        plain = (_plain_image,) * 3 + (np.asarray,) * 2
        return [_contender(function, arrays, _last(dy), plain)]

    def function(x, w, gamma, beta):
        z = lax.conv_general_dilated(
            x,
            w,
            window_strides=first.stride,
            padding=first.padding,
            rhs_dilation=first.dilation,
            feature_group_count=first.groups,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        return norm(z, gamma, beta)

    arrays = [_last(inputs[0]), _weights(w), *parameters]
    plain = (_plain_image, _plain_image, _plain_weights, np.asarray, np.asarray)
    return [_contender(function, arrays, _last(dy), plain)]


def _norm(case):
    """Of arrays whose last axis is the channels, or of rows."""

    def function(x, gamma, beta):
        if case.kind == "group":
            n, h, w, c = x.shape
            x = x.reshape(n, h, w, case.groups, c // case.groups)
        axes = {"batch": tuple(range(x.ndim - 1)), "layer": (-1,), "group": (1, 2, 4)}[case.kind]
        mean = x.mean(axes, keepdims=True)
        variance = ((x - mean) ** 2).mean(axes, keepdims=True)
        standard = (x - mean) * lax.rsqrt(variance + case.epsilon)
        if case.kind == "group":
            standard = standard.reshape(n, h, w, c)
        y = gamma * standard + beta
        return jax.nn.relu(y) if case.activation == "rectified_linear" else y

    return function


def _last(image):
    """NHWC for NCHW."""
    return jnp.asarray(np.ascontiguousarray(image.transpose(0, 2, 3, 1)))


def _plain_image(array):
    return np.asarray(array).transpose(0, 3, 1, 2)


def _weights(w):
    """HWIO for OIHW."""
    return jnp.asarray(np.ascontiguousarray(w.transpose(2, 3, 1, 0)))


def _plain_weights(array):
    return np.asarray(array).transpose(3, 2, 0, 1)


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


def _contender(function, inputs, dy, plain):
    """`both` returns y as well: XLA would drop forward work that nobody asks for. plain: turns y
    and every gradient into plain order."""
    forward = jax.jit(lambda *inputs: jax.vjp(function, *inputs))
    backward = jax.jit(lambda pullback, dy: pullback(dy))

    @jax.jit
    def both(dy, *inputs):
        y, pullback = jax.vjp(function, *inputs)
        return y, *pullback(dy)

    _, kept = jax.block_until_ready(forward(*inputs))

    def result():
        return tuple(to(a) for to, a in zip(plain, both(dy, *inputs), strict=True))

    return Contender(
        "jax",
        lambda: jax.block_until_ready(forward(*inputs)),
        lambda: jax.block_until_ready(backward(kept, dy)),
        result,
        both=lambda: jax.block_until_ready(both(dy, *inputs)),
    )


def loss(case, x, labels, compiled):
    """Labels are an argument, not a constant that XLA could fold."""

    def cross_entropy(x, labels):
        log_p = jax.nn.log_softmax(x)
        if case.labels == "dense":
            return -(labels * log_p).sum(axis=1).mean()
        return -jnp.take_along_axis(log_p, labels[:, None], axis=1).mean()

    def sigmoid_cross_entropy(x, labels):
        return (jnp.maximum(x, 0) - x * labels + jnp.log1p(jnp.exp(-jnp.abs(x)))).mean()

    def huber(x, labels):
        size = jnp.abs(x - labels)
        return jnp.where(size <= 1, size**2 / 2, size - 0.5).mean()

    function = {
        "softmax_cross_entropy": cross_entropy,
        "sigmoid_cross_entropy": sigmoid_cross_entropy,
        "huber": huber,
        "mean_square_error": lambda x, labels: ((x - labels) ** 2).mean(),
    }[case.function]
    forward, both = jax.jit(function), jax.jit(jax.value_and_grad(function))
    gradient = jax.jit(jax.grad(function))
    arrays = jnp.asarray(x), jnp.asarray(labels)

    def result():
        y, dx = both(*arrays)
        return np.asarray(y), np.asarray(dx)

    return [
        Contender(
            "jax",
            lambda: jax.block_until_ready(forward(*arrays)),
            lambda: jax.block_until_ready(gradient(*arrays)),
            result,
            both=lambda: jax.block_until_ready(both(*arrays)),
        )
    ]


def optimizer(case):
    """One jitted function over all tensors; the arrays of a step become those of the next."""

    def adam(w, g, state, t):
        m, v = state
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        rate = 1e-3 * jnp.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        return w - rate * m / (jnp.sqrt(v) + case.options["epsilon"]), (m, v)

    def sgd(w, g, state, t):
        (v,) = state
        v = case.options["momentum"] * v + g
        return w - case.options["learning_rate"] * v, (v,)

    rule, roles = {"adam": (adam, 2), "sgd": (sgd, 1)}[case.kind]

    def step(ws, gs, states, t):
        pairs = [rule(w, g, s, t) for w, g, s in zip(ws, gs, states, strict=True)]
        return [w for w, _ in pairs], [s for _, s in pairs]

    jitted = jax.jit(step, donate_argnums=(0, 2))
    gradients = [jnp.asarray(g) for g in case.gradients()]

    def start():
        ws = [jnp.array(w) for w in case.parameters()]
        return ws, [tuple(jnp.zeros_like(w) for _ in range(roles)) for w in ws]

    def result():
        ws, _ = jitted(start()[0], gradients, start()[1], 1.0)
        return np.concatenate([np.asarray(w) for w in ws]), None

    now = start()

    def move():
        nonlocal now
        now = jax.block_until_ready(jitted(now[0], gradients, now[1], 5.0))

    return [Contender("jax", move, None, result)]


def training(case, compiled):
    """The whole step is one jitted function, whose arrays become those of the next step. Images
    NHWC, weights HWIO, those of the fully connected layer in that order too."""

    def forward(parameters, x):
        stages, hidden, (fc_weights, fc_bias) = parameters
        statistics = []
        for weights, bias, gamma, beta in stages:
            z = lax.conv_general_dilated(
                x, weights, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            z = z if bias is None else z + bias
            mean = z.mean((0, 1, 2))
            variance = ((z - mean) ** 2).mean((0, 1, 2))
            statistics.append((mean, variance))
            z = jax.nn.relu((z - mean) * lax.rsqrt(variance + case.epsilon) * gamma + beta)
            window = (1, 2, 2, 1)
            x = lax.reduce_window(z, -jnp.inf, lax.max, window, window, "VALID")
        x = x.reshape(len(x), -1)
        for weights, bias in hidden:
            x = jax.nn.relu(x @ weights + bias)
        logits = x @ fc_weights
        return (logits if fc_bias is None else logits + fc_bias), statistics

    def loss_of(parameters, x, labels):
        logits, statistics = forward(parameters, x)
        return -(labels * jax.nn.log_softmax(logits)).sum(axis=1).mean(), statistics

    def adam(w, g, m, v, t):
        if case.clip is not None:
            g = jnp.clip(g, -case.clip, case.clip)
        g = g + case.l2 * w
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        rate = case.rate * jnp.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        return w - rate * m / (jnp.sqrt(v) + 1e-8), m, v

    def move(state, x, labels):
        parameters, firsts, seconds, running, t = state
        (loss, found), gradients = jax.value_and_grad(loss_of, has_aux=True)(parameters, x, labels)
        t = t + 1
        leaves, tree = jax.tree.flatten(parameters)
        others = (jax.tree.leaves(part) for part in (gradients, firsts, seconds))
        moved = [adam(*arrays, t) for arrays in zip(leaves, *others, strict=True)]
        new = [tree.unflatten(column) for column in zip(*moved, strict=True)]
        share = case.momentum
        running = jax.tree.map(lambda old, now: share * old + (1 - share) * now, running, found)
        return loss, (*new, running, t)

    jitted = jax.jit(move, donate_argnums=0)
    xs = [_last(x) if case.stages else jnp.asarray(x) for x, _ in case.batches]
    batches = list(zip(xs, map(jnp.asarray, case.one_hot), strict=True))
    state = None

    def restart():
        nonlocal state
        parameters = _network_parameters(case)
        zeros = [jax.tree.map(jnp.zeros_like, parameters) for _ in range(2)]
        running = [(jnp.zeros(len(s.gamma)), jnp.ones(len(s.gamma))) for s in case.stages]
        state = jax.block_until_ready((parameters, *zeros, running, jnp.zeros(())))

    def step(number):
        nonlocal state
        loss, state = jitted(state, *batches[number])
        return float(loss)

    return [Learner("jax", restart, step)]


def _network_parameters(case):
    """(weights, bias, gamma, beta) of every stage, (weights, bias) of every hidden layer and of the
    last one. Hidden layers follow no stages."""

    def own(array):  # donated later on
        return None if array is None else jnp.array(array)

    stages = [(_weights(s.weights), own(s.bias), own(s.gamma), own(s.beta)) for s in case.stages]
    hidden = [(own(weights.T), own(bias)) for weights, bias in case.hidden]
    fc = case.fc_weights.T
    if stages:
        channels, side = len(case.stages[-1].weights), case.image[2] >> len(case.stages)
        fc = case.fc_weights.reshape(-1, channels, side, side).transpose(2, 3, 1, 0)
        fc = fc.reshape(-1, len(case.fc_weights))
    return stages, hidden, (own(fc), own(case.fc_bias))


def random(kind, count):
    key = jax.random.key(1)
    makes = {
        "uniform": lambda: jax.random.uniform(key, (count,)),
        "normal": lambda: jax.random.normal(key, (count,)),
        "integers": lambda: jax.random.randint(key, (count,), 0, 1000),
    }
    jitted = jax.jit(makes[kind])
    return {"jax": (lambda: jax.block_until_ready(jitted()), lambda: np.asarray(jitted()))}
