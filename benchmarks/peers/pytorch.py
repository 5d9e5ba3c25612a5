"""PyTorch: eager autograd in both memory layouts, and its raw operations with preallocated outputs.

Autograd allocates its results, as training does; the raw operations ("out=") do not, so that
allocation is no excuse.
"""

import os

import torch
import torch.nn.functional as F

from benchmarks.harness import Contender, Trainer
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
        contenders += _autograd(layout, _pooling_function(case), tx, tdy, compiled)
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
        lambda: _both(forward(tx, y), backward(tx, y, tdy, dx)),
    )
    return [*_autograd("eager", function, tx, tdy, compiled), raw]


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
            out - (case.stride[k] * (size - 1) + case.dilation[k] * (case.kernel[k] - 1) + 1)
            + sum(case.padding[k])
            for k, (out, size) in enumerate(axes)
        ]  # fmt: skip
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


def _autograd(variant, function, x, dy, compiled):
    """Eager training steps, and with `compiled` the same through torch.compile.

    retain_graph keeps what forward saved, so that backward can be timed alone.
    """
    x = x.detach().requires_grad_()
    functions = {variant: function}
    if compiled:
        functions[f"{variant} compiled"] = torch.compile(function, dynamic=False, fullgraph=True)
    return [_autograd_contender(f"torch {name}", f, x, dy) for name, f in functions.items()]


def _autograd_contender(name, function, x, dy):
    y = function(x)
    return Contender(
        name,
        lambda: function(x),
        lambda: torch.autograd.grad(y, x, dy, retain_graph=True),
        lambda: _both(y.detach(), torch.autograd.grad(y, x, dy, retain_graph=True)[0]),
        both=lambda: torch.autograd.grad(function(x), x, dy),
    )


def _both(y, dx):
    """y and dx in plain order."""
    return y.contiguous().numpy(), dx.contiguous().numpy()


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
        return _both(y, dx)

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
        return _both(y, dx)

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
    return _autograd("eager", lambda x: function(x, truth), tx, one, compiled)


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


def random(kind, count):
    y = torch.empty(count, dtype=torch.int32 if kind == "integers" else torch.float32)
    rng = torch.Generator().manual_seed(1)
    fills = {
        "uniform": lambda: y.uniform_(0, 1, generator=rng),
        "normal": lambda: y.normal_(0, 1, generator=rng),
        "integers": lambda: y.random_(0, 1000, generator=rng),
    }
    return {"torch": (fills[kind], y.numpy)}
