"""PyTorch: eager autograd in both memory layouts, and its raw operations with preallocated outputs.

Autograd allocates its results, as training does; the raw operations ("out=") do not, so that
allocation is no excuse.
"""

import math
import os

import torch
import torch.nn.functional as F
from oracles.blocks import Blocks, Training
from oracles.characters import Writer

from benchmarks.harness import ROUGH, Contender, Learner, Trainer
from benchmarks.peers import padding_pair

VERSIONS = {"torch": torch.__version__}
torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
aten = torch.ops.aten

LAYOUTS = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}


def pooling(case, x, dy, compiled):
    """Contenders for max and average pooling."""
    contenders = []
    for layout, memory_format in LAYOUTS.items():
        tx = torch.from_numpy(x).contiguous(memory_format=memory_format)
        tdy = torch.from_numpy(dy).contiguous(memory_format=memory_format)
        contenders += _autograd(layout, _pooling_function(case), (tx,), tdy, compiled)
        raw = _raw_max if case.function == "max" else _raw_average
        contenders.append(raw(f"torch {layout} out=", case, tx, tdy))
    return contenders


def activation(case, x, dy, compiled):
    """Contenders for the activations of the case list."""
    tx, tdy = torch.from_numpy(x), torch.from_numpy(dy)
    function, forward, backward = _ACTIVATIONS[case.function]
    y, dx = torch.empty_like(tx), torch.empty_like(tx)
    forward(tx, y)
    raw = Contender(
        "torch out=",
        lambda: forward(tx, y),
        lambda: backward(tx, y, tdy, dx),
        lambda: _plain(forward(tx, y), backward(tx, y, tdy, dx)),
    )
    return [*_autograd("eager", function, (tx,), tdy, compiled), raw]


def convolution(case, x, w, dy, compiled):
    """The operations behind autograd, in both layouts; both gradients also in one call, as
    autograd does."""
    return [_convolution(case, x, w, dy, layout) for layout in LAYOUTS]


def _convolution(case, x, w, dy, layout):
    tx, tw, tdy = (
        torch.from_numpy(array).contiguous(memory_format=LAYOUTS[layout]) for array in (x, w, dy)
    )
    surplus = [0, 0]
    if case.transposed:
        axes = zip(case.output_shape[2:], case.image[2:], strict=True)
        surplus = [
            out
            - (case.stride[k] * (size - 1) + case.dilation[k] * (case.kernel[k] - 1) + 1)
            + sum(case.padding[k])
            for k, (out, size) in enumerate(axes)
        ]
    window = (case.stride, padding_pair(case), case.dilation, case.transposed, surplus, case.groups)

    def forward():
        return aten.convolution(tx, tw, None, *window)

    def gradients(*mask):
        return aten.convolution_backward(tdy, tx, tw, None, *window, [*mask, False])

    def result():
        dx, dw, _ = gradients(True, True)
        return tuple(array.contiguous().numpy() for array in (forward(), dx, dw))

    return Trainer(
        f"torch {layout}",
        forward,
        lambda: gradients(True, False),
        lambda: gradients(False, True),
        result,
        both_gradients=lambda: gradients(True, True),
    )


def fully_connected(case, x, w, dy, compiled):
    """Matrix products into given arrays; for one sample also as matrix times vector."""
    tx, tw, tdy = map(torch.from_numpy, (x, w, dy))
    y, dx, dw = torch.empty_like(tdy), torch.empty_like(tx), torch.empty_like(tw)
    forms = {
        "torch out=": (
            lambda: torch.mm(tx, tw.t(), out=y),
            lambda: torch.mm(tdy, tw, out=dx),
            lambda: torch.mm(tdy.t(), tx, out=dw),
        ),
        "torch linear": (lambda: F.linear(tx, tw), lambda: tdy.mm(tw), lambda: tdy.t().mm(tx)),
    }
    if case.batch == 1:
        forms["torch mv out="] = (
            lambda: torch.mv(tw, tx[0], out=y[0]),
            lambda: torch.mv(tw.t(), tdy[0], out=dx[0]),
            lambda: torch.outer(tdy[0], tx[0], out=dw),
        )
    return [
        Trainer(name, *steps, lambda steps=steps: tuple(_matrix(step()) for step in steps))
        for name, steps in forms.items()
    ]


def _matrix(array):
    """A vector is the only row of its matrix."""
    return array.reshape(1, -1).numpy() if array.ndim == 1 else array.numpy()


def gemm(case, x, w, compiled):
    tx, tw = torch.from_numpy(x), torch.from_numpy(w)
    y = torch.empty(case.output_shape)

    def forward():
        return torch.mm(tx, tw.t(), out=y)

    return [Trainer("torch out=", forward, None, None, lambda: (forward().numpy(),))]


def matmul(case, a, b, dy, compiled):
    """Batched products into given arrays, and autograd."""
    ta, tb, tdy = map(torch.from_numpy, (a, b, dy))
    y, da, db = torch.empty_like(tdy), torch.empty_like(ta), torch.empty_like(tb)

    def whole(a, b):
        return a.mT if case.transpose[0] else a, b.mT if case.transpose[1] else b

    left, right = whole(ta, tb)

    def forward():
        return torch.bmm(left, right, out=y)

    def backward():
        if case.transpose[0]:
            torch.bmm(right, tdy.mT, out=da)
        else:
            torch.bmm(tdy, right.mT, out=da)
        if case.transpose[1]:
            torch.bmm(tdy.mT, left, out=db)
        else:
            torch.bmm(left.mT, tdy, out=db)

    def result():
        forward()
        backward()
        return _plain(y, da, db)

    raw = Contender("torch out=", forward, backward, result)
    return [*_autograd("eager", lambda a, b: torch.bmm(*whole(a, b)), (ta, tb), tdy, compiled), raw]


def normalization(case, x, dy, compiled):
    """Running statistics are updated too; ReLU works in place, as models have it."""
    tx, tdy, gamma, beta = map(torch.from_numpy, (x, dy, case.gamma_values(), case.beta_values()))
    norm, still = _Norm(case), _Norm(case, moving=False)
    if case.kind != "batch":
        found = _autograd("eager", norm, (tx, gamma, beta), tdy, compiled)
        return [*found, norm.raw("torch out=", tx, gamma, beta, tdy)]
    found = []
    for layout, memory_format in LAYOUTS.items():
        image, gradient = (array.contiguous(memory_format=memory_format) for array in (tx, tdy))
        found += _autograd(layout, norm, (image, gamma, beta), gradient, compiled, still)
        found.append(norm.raw(f"torch {layout} out=", image, gamma, beta, gradient))
    return found


def arithmetic(case, a, b, dy, compiled):
    """Gradients in arrays of their own. Autograd does not do that for a sum, it hands dy on; so
    sums have no eager backward pass here."""
    ta, tb, tdy = map(torch.from_numpy, (a, b, dy))
    function = {"add": torch.add, "multiply": torch.mul}[case.function]
    y, da, db = torch.empty_like(tdy), torch.empty_like(ta), torch.empty_like(tb)
    axes = [k for k, extent in enumerate(tb.shape) if extent != tdy.shape[k]]

    def forward():
        return function(ta, tb, out=y)

    def backward():
        if case.function == "add":
            da.copy_(tdy)
            whole = tdy
        else:
            torch.mul(tdy, tb, out=da)
            whole = torch.mul(tdy, ta, out=None if axes else db)
        if axes:
            torch.sum(whole, dim=axes, keepdim=True, out=db)
        elif case.function == "add":
            db.copy_(tdy)

    def result():
        forward()
        backward()
        return _plain(y, da, db)

    found = _autograd("eager", function, (ta, tb), tdy, compiled)
    if case.function == "add":
        forwards = {contender.name: contender.forward for contender in found}
        found = [Contender(name, f, None, lambda f=f: _plain(f())) for name, f in forwards.items()]
    return [*found, Contender("torch out=", forward, backward, result)]


def attention(case, p, dy, compiled):
    """Linear layers around the fused kernel of the scores, and PyTorch's own layer."""
    names = ("q", "k", "v", "wq", "wk", "wv", "wo", "bq", "bk", "bv", "bo")
    given = [torch.from_numpy(getattr(p, name)) for name in names]
    given[3:6] = [w.reshape(-1, w.shape[-1]) for w in given[3:6]]
    given[7:10] = [b.reshape(-1) for b in given[7:10]]
    samples, heads = case.batch, case.heads

    def kernel(q, k, v, wq, wk, wv, wo, bq, bk, bv, bo):
        rows = [
            F.linear(x, w, b).view(samples, x.shape[1], heads, -1).transpose(1, 2)
            for x, w, b in ((q, wq, bq), (k, wk, bk), (v, wv, bv))
        ]
        a = F.scaled_dot_product_attention(*rows, is_causal=case.causal).transpose(1, 2)
        return F.linear(a.reshape(samples, case.targets, -1), wo, bo)

    def layer(q, k, v, wq, wk, wv, wo, bq, bk, bv, bo):
        y, _ = F.multi_head_attention_forward(
            q.transpose(0, 1),
            k.transpose(0, 1),
            v.transpose(0, 1),
            case.model,
            heads,
            None,
            torch.cat([bq, bk, bv]),
            None,
            None,
            False,
            0.0,
            wo,
            bo,
            need_weights=False,
            use_separate_proj_weight=True,
            q_proj_weight=wq,
            k_proj_weight=wk,
            v_proj_weight=wv,
        )
        return y.transpose(0, 1)

    tdy = torch.from_numpy(dy)
    found = _autograd("sdpa", kernel, given, tdy, compiled)
    return found if case.causal else [*found, *_autograd("layer", layer, given, tdy, compiled)]


def fused(case, inputs, w, dy, compiled):
    """Autograd in both layouts, and the operations behind it without autograd."""
    norm, still, first = _Norm(case.norm), _Norm(case.norm, moving=False), case.first
    tensors = [torch.from_numpy(array) for array in inputs]
    gamma, beta = map(torch.from_numpy, (case.norm.gamma_values(), case.norm.beta_values()))
    tdy = torch.from_numpy(dy)
    if case.word == "fully_connected":
        given = (*tensors, torch.from_numpy(w), gamma, beta)

        def linear_with(norm):
            return lambda x, w, gamma, beta: norm(F.linear(x, w), gamma, beta)

        functions = linear_with(norm), linear_with(still)
        return _autograd("eager", functions[0], given, tdy, compiled, functions[1])
    found = []
    for layout, memory_format in LAYOUTS.items():
        images = [array.contiguous(memory_format=memory_format) for array in (*tensors, tdy)]
        *images, gradient = images
        if case.word == "arithmetic":

            def add_with(norm):
                return lambda a, b, gamma, beta: norm(a + b, gamma, beta)

            given, functions = (*images, gamma, beta), (add_with(norm), add_with(still))
            found += _autograd(layout, functions[0], given, gradient, compiled, functions[1])
            continue
        weights = torch.from_numpy(w).contiguous(memory_format=memory_format)
        window = (first.stride, padding_pair(first), first.dilation, first.groups)

        def convolution_with(norm, window=window):
            return lambda x, w, gamma, beta: norm(F.conv2d(x, w, None, *window), gamma, beta)

        given = (*images, weights, gamma, beta)
        functions = convolution_with(norm), convolution_with(still)
        found += _autograd(layout, functions[0], given, gradient, compiled, functions[1])
        found.append(_raw_fused(f"torch {layout} raw", first, norm, *given, gradient))
    return found


def _raw_fused(name, first, norm, x, w, gamma, beta, dy):
    """What autograd calls for a convolution, a norm and ReLU."""
    window = (first.stride, padding_pair(first), first.dilation, False, [0, 0], first.groups)
    kept = []

    def forward():
        z = aten.convolution(x, w, None, *window)
        kept[:] = z, *norm.forward(z, gamma, beta)
        return kept[1]

    def backward():
        z, y, *statistics = kept
        dz, dgamma, dbeta = norm.backward(z, y, gamma, dy, statistics)
        dx, dw, _ = aten.convolution_backward(dz, x, w, None, *window, [True, True, False])
        return dx, dw, dgamma, dbeta

    forward()
    return Contender(name, forward, backward, lambda: _plain(forward(), *backward()))


class _Norm:
    """A normalization of tests/cases with ReLU or nothing behind it, as one calls it and as the
    operations below autograd. moving: with running statistics."""

    def __init__(self, case, moving=True):
        self.case, self.relu = case, case.activation == "rectified_linear"
        self.mean = torch.zeros(case.channels) if moving else None
        self.variance = torch.ones(case.channels) if moving else None

    def __call__(self, x, gamma, beta):
        case = self.case
        if case.kind == "batch":
            statistics, momentum = (self.mean, self.variance), 1.0 - case.momentum
            y = F.batch_norm(x, *statistics, gamma, beta, True, momentum, case.epsilon)
        elif case.kind == "layer":
            y = F.layer_norm(x, gamma.shape, gamma, beta, case.epsilon)
        else:
            y = F.group_norm(x, case.groups, gamma, beta, case.epsilon)
        return F.relu(y, inplace=True) if self.relu else y

    def forward(self, x, gamma, beta, out=None):
        """y and what backward needs; out: arrays for these three."""
        case, into = self.case, {}
        if case.kind == "batch":
            if out:
                into = dict(zip(("out", "save_mean", "save_invstd"), out, strict=True))
            run = aten.native_batch_norm.out if out else aten.native_batch_norm
            statistics, momentum = (self.mean, self.variance), 1.0 - case.momentum
            y, *kept = run(x, gamma, beta, *statistics, True, momentum, case.epsilon, **into)
        else:
            if out:
                into = dict(zip(("out0", "out1", "out2"), out, strict=True))
            if case.kind == "layer":
                run = aten.native_layer_norm.out if out else aten.native_layer_norm
                y, *kept = run(x, gamma.shape, gamma, beta, case.epsilon, **into)
            else:
                run = aten.native_group_norm.out if out else aten.native_group_norm
                y, *kept = run(x, gamma, beta, *self._sizes(x), case.epsilon, **into)
        return [y.relu_() if self.relu else y, *kept]

    def backward(self, x, y, gamma, dy, kept):
        """dx, dgamma, dbeta."""
        case, wanted = self.case, [True, True, True]
        dz = aten.threshold_backward(dy, y, 0.0) if self.relu else dy
        if case.kind == "batch":
            statistics = (self.mean, self.variance, *kept)
            return aten.native_batch_norm_backward(
                dz, x, gamma, *statistics, True, case.epsilon, wanted
            )
        if case.kind == "layer":
            return aten.native_layer_norm_backward(dz, x, gamma.shape, *kept, gamma, gamma, wanted)
        return aten.native_group_norm_backward(dz, x, *kept, gamma, *self._sizes(x), wanted)

    def _sizes(self, x):
        n, c = x.shape[:2]
        return n, c, x.numel() // (n * c), self.case.groups

    def raw(self, name, x, gamma, beta, dy):
        """Forward into given arrays; there is no such form of backward that does not copy."""
        out = self.forward(x, gamma, beta)

        def forward():
            return self.forward(x, gamma, beta, out)

        def backward():
            return self.backward(x, out[0], gamma, dy, out[1:])

        return Contender(name, forward, backward, lambda: _plain(forward()[0], *backward()))


def _autograd(variant, function, inputs, dy, compiled, without_state=None):
    """Eager training steps, and with `compiled` the same through torch.compile.

    retain_graph keeps what forward saved, so that backward can be timed alone. Compiled code then
    refuses running statistics that moved in between; without_state does not have them.
    """
    inputs = [array.detach().requires_grad_() for array in inputs]
    functions = {variant: function}
    if compiled:
        functions[f"{variant} compiled"] = _compile(without_state or function)
    return [_autograd_contender(f"torch {name}", f, inputs, dy) for name, f in functions.items()]


def _compile(function):
    """For the shapes it is called with. All cases of a family are the same lines of Python, which
    count as one function that is compiled again and again."""
    torch._dynamo.config.recompile_limit = 256
    return torch.compile(function, dynamic=False, fullgraph=True)


def _autograd_contender(name, function, inputs, dy):
    y = function(*inputs)
    return Contender(
        name,
        lambda: function(*inputs),
        lambda: torch.autograd.grad(y, inputs, dy, retain_graph=True),
        lambda: _plain(y, *torch.autograd.grad(y, inputs, dy, retain_graph=True)),
        both=lambda: torch.autograd.grad(function(*inputs), inputs, dy),
    )


def _plain(*arrays):
    """Arrays in plain order."""
    return tuple(array.detach().contiguous().numpy() for array in arrays)


def _pooling_function(case):
    padding = padding_pair(case)
    if case.function == "max":
        return lambda x: F.max_pool2d(x, case.kernel, case.stride, padding)
    return lambda x: F.avg_pool2d(x, case.kernel, case.stride, padding, count_include_pad=True)


def _raw_max(name, case, x, dy):
    window = (case.kernel, case.stride, padding_pair(case), (1, 1), False)
    y, dx = torch.empty_like(dy), torch.empty_like(x)
    indices = torch.empty_like(dy, dtype=torch.int64)

    def forward():
        aten.max_pool2d_with_indices.out(x, *window, out=y, indices=indices)

    def backward():
        aten.max_pool2d_with_indices_backward.grad_input(dy, x, *window, indices, grad_input=dx)

    def result():
        forward()
        backward()
        return _plain(y, dx)

    forward()
    return Contender(name, forward, backward, result)


def _raw_average(name, case, x, dy):
    window = (case.kernel, case.stride, padding_pair(case), False, True, None)
    y, dx = torch.empty_like(dy), torch.empty_like(x)

    def forward():
        aten.avg_pool2d.out(x, *window, out=y)

    def backward():
        aten.avg_pool2d_backward.grad_input(dy, x, *window, grad_input=dx)

    def result():
        forward()
        backward()
        return _plain(y, dx)

    return Contender(name, forward, backward, result)


# function for autograd; raw forward(x, y); raw backward(x, y, dy, dx), which returns dx
_ACTIVATIONS = {
    "rectified_linear": (
        F.relu,
        lambda x, y: torch.clamp_min(x, 0.0, out=y),
        lambda x, y, dy, dx: aten.threshold_backward.grad_input(dy, y, 0.0, grad_input=dx),
    ),
    "tanh": (
        torch.tanh,
        lambda x, y: torch.tanh(x, out=y),
        lambda x, y, dy, dx: aten.tanh_backward.grad_input(dy, y, grad_input=dx),
    ),
    "sigmoid": (
        torch.sigmoid,
        lambda x, y: torch.sigmoid(x, out=y),
        lambda x, y, dy, dx: aten.sigmoid_backward.grad_input(dy, y, grad_input=dx),
    ),
    "gelu": (
        F.gelu,
        lambda x, y: aten.gelu.out(x, out=y),
        lambda x, y, dy, dx: aten.gelu_backward.grad_input(dy, x, grad_input=dx),
    ),
    "gelu_approximation": (
        lambda x: F.gelu(x, approximate="tanh"),
        lambda x, y: aten.gelu.out(x, approximate="tanh", out=y),
        lambda x, y, dy, dx: aten.gelu_backward.grad_input(
            dy, x, approximate="tanh", grad_input=dx
        ),
    ),
    "silu": (
        F.silu,
        lambda x, y: aten.silu.out(x, out=y),
        lambda x, y, dy, dx: aten.silu_backward.grad_input(dy, x, grad_input=dx),
    ),
    "softmax": (
        lambda x: F.softmax(x, dim=-1),
        lambda x, y: aten._softmax.out(x, -1, False, out=y),
        lambda x, y, dy, dx: aten._softmax_backward_data.out(dy, y, -1, dy.dtype, grad_input=dx),
    ),
}


def loss(case, x, labels, compiled):
    """Autograd: the loss is one number, its gradient starts with 1."""
    tx, truth, one = torch.from_numpy(x), torch.from_numpy(labels), torch.ones(())
    function = {
        "softmax_cross_entropy": F.cross_entropy,
        "sigmoid_cross_entropy": F.binary_cross_entropy_with_logits,
        "huber": F.huber_loss,
        "mean_square_error": F.mse_loss,
    }[case.function]
    return _autograd("eager", lambda x: function(x, truth), (tx,), one, compiled)


def optimizer(case):
    """A loop over the tensors, a few operations over all of them, and one fused kernel."""
    return [_optimizer(case, form) for form in ("plain", "foreach", "fused")]


def _optimizer(case, form):
    forms = {"plain": {"foreach": False}}.get(form, {form: True})

    def start():
        parameters = [torch.nn.Parameter(torch.from_numpy(w)) for w in case.parameters()]
        for parameter, gradient in zip(parameters, case.gradients(), strict=True):
            parameter.grad = torch.from_numpy(gradient)
        if case.kind == "adam":
            return parameters, torch.optim.Adam(parameters, eps=case.options["epsilon"], **forms)
        options = case.options
        assert options["variant"] == 1, "the variant that torch knows"
        return parameters, torch.optim.SGD(
            parameters, options["learning_rate"], options["momentum"], **forms
        )

    def result():
        parameters, judge = start()
        judge.step()
        return torch.cat([p.detach() for p in parameters]).numpy(), None

    _, moving = start()
    return Contender(f"torch {form}", moving.step, None, result)


def training(case, compiled):
    """As one writes it: modules, autograd, fused Adam; in both layouts, and with `compiled` forward
    and backward through torch.compile."""
    layouts = LAYOUTS if case.stages else ["nchw"]
    forms = [(layout, False) for layout in layouts]
    forms += [(layout, True) for layout in layouts] if compiled else []
    return [_learner(case, *form) for form in forms]


def _learner(case, layout, compiled):
    name = f"torch {layout} compiled" if compiled else f"torch {layout}"
    model = _modules(case).to(memory_format=LAYOUTS[layout])
    start = {key: array.clone() for key, array in model.state_dict().items()}
    parameters, entropy = list(model.parameters()), torch.nn.CrossEntropyLoss()
    # Adam's weight_decay is added to the gradient, after clipping.
    adam = torch.optim.Adam(parameters, case.rate, weight_decay=case.l2, fused=True)
    batches = [
        (torch.from_numpy(x).contiguous(memory_format=LAYOUTS[layout]), torch.from_numpy(labels))
        for x, labels in case.batches
    ]

    def loss_of(x, labels):
        return entropy(model(x), labels)

    forward = _compile(loss_of) if compiled else loss_of
    taken = 0

    def restart():
        nonlocal taken
        taken = 0
        model.load_state_dict(start)
        adam.state.clear()

    def step(number):
        nonlocal taken
        taken += 1
        adam.param_groups[0]["eps"] = 1e-8 / math.sqrt(1 - 0.999**taken)  # ours lies elsewhere
        adam.zero_grad()
        loss = forward(*batches[number])
        loss.backward()
        if case.clip is not None:
            torch.nn.utils.clip_grad_value_(parameters, case.clip)
        adam.step()
        return loss.item()

    return Learner(name, restart, step, ROUGH if layout == "nhwc" else 1e-4)


def characters(parameters, heads, blocks, rate, batches):
    """The transformer of examples/characters.py, by autograd."""
    batches = [tuple(map(torch.from_numpy, batch)) for batch in batches]
    writer = Writer(parameters, heads, blocks, rate)

    def restart():
        with torch.no_grad():
            for name, array in parameters.items():
                writer.p[name].copy_(torch.from_numpy(array))
        writer.adam.state.clear()
        writer.taken = 0

    return [Learner("torch", restart, lambda number: writer.step(*batches[number]), 1e-3)]


def blocks(made, parameters, rate, batches):
    """A network of our blocks by autograd, images in both layouts."""
    given = [tuple(map(torch.from_numpy, batch)) for batch in batches]
    if given[0][0].ndim < 4:
        return [_blocks_learner("torch", Blocks(made, parameters), rate, given, 1e-3)]
    found = []
    for layout, memory_format in LAYOUTS.items():
        model = Blocks(made, parameters).to(memory_format=memory_format)
        images = [(x.contiguous(memory_format=memory_format), labels) for x, labels in given]
        tolerance = ROUGH if layout == "nhwc" else 1e-3
        found.append(_blocks_learner(f"torch {layout}", model, rate, images, tolerance))
    return found


def _blocks_learner(name, model, rate, batches, tolerance):
    training = Training(model, rate)
    return Learner(
        name, training.restart, lambda number: training.step(*batches[number]), tolerance
    )


def _modules(case):
    """The network with the parameters of the case."""
    parts, channels, side = [], *(*case.image, 1)[1:3]
    for stage in case.stages:
        outputs, bias = len(stage.weights), stage.bias is not None
        conv = torch.nn.Conv2d(channels, outputs, 3, padding=1, bias=bias)
        norm = torch.nn.BatchNorm2d(outputs, case.epsilon, 1.0 - case.momentum)
        _fill(conv, stage.weights, stage.bias)
        _fill(norm, stage.gamma, stage.beta)
        parts += [conv, norm, torch.nn.ReLU(inplace=True), torch.nn.MaxPool2d(2)]
        channels, side = outputs, side // 2
    parts.append(torch.nn.Flatten())
    for weights, bias in case.hidden:
        parts += [_linear(weights, bias), torch.nn.ReLU(inplace=True)]
    return torch.nn.Sequential(*parts, _linear(case.fc_weights, case.fc_bias))


def _linear(weights, bias):
    linear = torch.nn.Linear(*weights.shape[::-1], bias=bias is not None)
    _fill(linear, weights, bias)
    return linear


@torch.no_grad()
def _fill(module, weight, bias):
    module.weight.copy_(torch.from_numpy(weight))
    if bias is not None:
        module.bias.copy_(torch.from_numpy(bias))


def random(kind, count):
    y = torch.empty(count, dtype=torch.int32 if kind == "integers" else torch.float32)
    rng = torch.Generator().manual_seed(1)
    fills = {
        "uniform": lambda: y.uniform_(0, 1, generator=rng),
        "normal": lambda: y.normal_(0, 1, generator=rng),
        "integers": lambda: y.random_(0, 1000, generator=rng),
    }
    return {"torch": (fills[kind], y.numpy)}
