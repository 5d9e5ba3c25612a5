"""PyTorch autograd in float64 as a judge. Import only where torch is installed."""

from types import SimpleNamespace

import torch
import torch.nn.functional as F

LOG_EPSILON = float(torch.tensor(1e-7))  # of the log loss, a float32

ACTIVATIONS = {
    "identity": lambda x, a, b: x,
    "rectified_linear": lambda x, a, b: F.relu(x),
    "leaky_rectified_linear": lambda x, a, b: F.leaky_relu(x, a),
    "sigmoid": lambda x, a, b: torch.sigmoid(x),
    "tanh": lambda x, a, b: torch.tanh(x),
    "scaled_tanh": lambda x, a, b: a * torch.tanh(b * x),
    "abs": lambda x, a, b: torch.abs(x),
    "linear": lambda x, a, b: a * x,
    "clamp": lambda x, a, b: torch.clamp(x, a, b),
    "gelu_approximation": lambda x, a, b: F.gelu(x, approximate="tanh"),
    "hard_sigmoid": lambda x, a, b: torch.clamp(a * x + b, 0.0, 1.0),
    "softplus": lambda x, a, b: a * b * F.softplus(x, beta=b, threshold=1e9),
    "softsign": lambda x, a, b: F.softsign(x),
    "elu": lambda x, a, b: F.elu(x, a),
    "clamped_leaky_rectified_linear": lambda x, a, b: torch.clamp(F.leaky_relu(x, a), max=b),
    "linear_with_bias": lambda x, a, b: a * x + b,
    "log_sigmoid": lambda x, a, b: F.logsigmoid(x),
    "selu": lambda x, a, b: F.selu(x),
    "celu": lambda x, a, b: F.celu(x, a),
    "hard_shrink": lambda x, a, b: F.hardshrink(x, a),
    "soft_shrink": lambda x, a, b: F.softshrink(x, a),
    "tanh_shrink": lambda x, a, b: F.tanhshrink(x),
    "threshold": lambda x, a, b: F.threshold(x, a, b),
    "prelu_per_channel": lambda x, a, b: F.leaky_relu(x, a),
    "gelu_approximation_2": lambda x, a, b: F.hardswish(x),
    "hard_swish": lambda x, a, b: F.hardswish(x),
    "silu": lambda x, a, b: F.silu(x),
    "relu6": lambda x, a, b: F.relu6(x),
    "erf": lambda x, a, b: torch.erf(x),
    "gelu": lambda x, a, b: F.gelu(x),
    "gelu_approximation_sigmoid": lambda x, a, b: x * torch.sigmoid(1.702 * x),
}


def activation(name, x, dy, alpha=0.0, beta=0.0):
    """y and dx, float64 arrays of the shape of x."""
    x = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    y = ACTIVATIONS[name](x, alpha, beta)
    y.backward(torch.tensor(dy, dtype=torch.float64))
    return y.detach().numpy(), x.grad.numpy()


def softmax(x, dy, axes, log):
    """y and dx of a joint softmax over `axes`: those are moved last and flattened for torch."""
    x = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    last = list(range(x.ndim - len(axes), x.ndim))
    moved = torch.movedim(x, list(axes), last)
    rows = moved.reshape((*moved.shape[: x.ndim - len(axes)], -1))
    rows = F.log_softmax(rows, dim=-1) if log else F.softmax(rows, dim=-1)
    y = torch.movedim(rows.reshape(moved.shape), last, list(axes))
    y.backward(torch.tensor(dy, dtype=torch.float64))
    return y.detach().numpy(), x.grad.numpy()


def pooling(function, x, dy, geometry, indices=None, bias=None, fused=("identity", 0.0, 0.0)):
    """y, dx and dbias of one pooling layer; x (n, c, h, w), or (n, c, oh, ow) for unmax."""
    x = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    bias = torch.tensor(bias if bias is not None else [0.0] * x.shape[1], dtype=torch.float64)
    bias.requires_grad_()
    name, alpha, beta = fused
    z = _pool(function, x, geometry, indices) + bias[:, None, None]
    y = ACTIVATIONS[name](z, alpha, beta)
    y.backward(torch.tensor(dy, dtype=torch.float64))
    return y.detach().numpy(), x.grad.numpy(), bias.grad.numpy()


def convolution(x, w, dy, case, bias=None):
    """y, dx, dw and db of one convolution layer; `case` has its sizes and its activation."""
    x, w, bias = (_leaf(x), _leaf(w), _leaf([0.0] * case.outputs if bias is None else bias))
    return _judged(_convolved(x, w, bias, case), dy, case, x, w, bias)


def _convolved(x, w, bias, case):
    (up, down), (left, right) = case.padding
    steps = {"stride": case.stride, "dilation": case.dilation, "groups": case.groups}
    if case.transposed:  # all that the taps reach, then the part that the padding leaves
        z = F.conv_transpose2d(x, w, **steps)
        height, width = case.output_shape[2:]
        down, right = up + height - z.shape[2], left + width - z.shape[3]
        z = F.pad(z, (-left, right, -up, down))
    else:
        z = F.conv2d(F.pad(x, (left, right, up, down)), w, **steps)
        z = z[:, :, : case.output_shape[2], : case.output_shape[3]]
    return z + bias[:, None, None]


def fully_connected(x, w, dy, case, bias=None):
    """The same of one fully connected layer."""
    x, w, bias = (_leaf(x), _leaf(w), _leaf([0.0] * case.outputs if bias is None else bias))
    return _judged(_connected(x, w, bias, case), dy, case, x, w, bias)


def _connected(x, w, bias, case):
    return F.linear(x, w, bias)


def loss(case, x, labels, weights, dy):
    """y, and dx for dy (an array like y): PyTorch's own function where it has one, its autograd
    for all. `case` has the function, its parameter and the reduction; weights may be None."""
    x, dy = _leaf(x.astype("float64")), torch.tensor(dy.astype("float64"))
    rows = x.reshape(x.shape[0], -1)
    if case.labels == "dense":
        truth = torch.tensor(labels.astype("float64")).reshape(rows.shape)
    else:
        truth = torch.tensor(labels.astype("int64"))
    w = torch.ones((), dtype=torch.float64) if weights is None else torch.tensor(weights).double()
    w = w.reshape(len(rows) if w.numel() > 1 else 1, -1).expand(rows.shape)
    each = _losses(case, rows, truth, w)
    y = _reduced(case, each, w).reshape(dy.shape)
    (y * dy).sum().backward()
    return y.detach().numpy(), x.grad.numpy()


def _losses(case, x, truth, w):
    """Every loss with its weights: (b, n), or (b,) where a sample has one."""
    function, smooth, each = case.function, case.parameter, {"reduction": "none"}
    if case.is_per_sample:
        if function == "softmax_cross_entropy" and bool((w == w[:, :1]).all()):
            return w[:, 0] * F.cross_entropy(x, truth, label_smoothing=smooth, **each)
        if truth.ndim == 1:
            truth = F.one_hot(truth, x.shape[1]).double()
        if function == "cosine_distance":
            return 1 - (w * truth * F.normalize(x)).sum(1)
        share = (truth != 0).sum(1, keepdim=True).clamp(min=1)
        if function == "softmax_cross_entropy":
            truth, share = truth * (1 - smooth) + smooth / x.shape[1], 1
        return -(w * truth / share * F.log_softmax(x, 1)).sum(1)
    if function == "sigmoid_cross_entropy":
        truth = truth * (1 - smooth) + smooth / 2
        return F.binary_cross_entropy_with_logits(x, truth, weight=w, **each)
    if function == "log":
        p, q = x + LOG_EPSILON, 1 - x + LOG_EPSILON
        return -w * (truth * p.log() + (1 - truth) * q.log())
    if function == "hinge":
        return w * F.relu(1 - (2 * truth - 1) * x)
    if function == "huber":
        return w * F.huber_loss(x, truth, delta=smooth or 1.0, **each)
    return w * (F.mse_loss if function == "mean_square_error" else F.l1_loss)(x, truth, **each)


def _reduced(case, losses, w):
    if case.reduction in ("none", "sum"):
        return losses.sum() if case.reduction == "sum" else losses
    each = w.mean(1) if case.is_per_sample else w
    divisor = {
        "mean": each.numel(),
        "weighted_mean": each.sum(),
        "non_zero_weight_mean": (each != 0).sum(),
    }[case.reduction]
    return losses.sum() / divisor if divisor != 0 else 0 * losses.sum()


def yolo(x, truth, anchors, parameters):
    """(loss, gradient). Who predicts an object, and the overlap that its confidence is to have,
    count as constants."""
    p, x = parameters, _leaf(x.astype("float64"))
    truth, anchors = torch.tensor(truth).double(), torch.tensor(anchors).double()
    place = torch.sigmoid(x[..., :2])
    with torch.no_grad():
        sizes = [anchors * v[..., 2:4].exp() for v in (x, truth)]
        edges = [
            torch.cat([middle - size / 2, middle + size / 2], -1)
            for middle, size in zip((place, truth[..., :2]), sizes, strict=True)
        ]
        first, last = torch.maximum(*edges)[..., :2], torch.minimum(*edges)[..., 2:]
        shared = (last - first).clamp(min=0).prod(-1)
        overlap = shared / (sizes[0].prod(-1) + sizes[1].prod(-1) - shared)
        there = truth[..., 4] > 0
        overlap = torch.where(there, overlap, 0.0)
        is_best = F.one_hot(overlap.argmax(-1), len(anchors)).bool()
        found = there & (is_best | (overlap >= p.object_min_iou))
        empty = ~found & (~there | (overlap <= p.no_object_max_iou))
    confidence, target = x[..., 4], overlap if p.rescore else torch.ones_like(overlap)
    entropy = F.binary_cross_entropy_with_logits
    each = p.xy_scale * F.mse_loss(place, truth[..., :2], reduction="none").sum(-1)
    sizes = F.huber_loss(x[..., 2:4], truth[..., 2:4], delta=p.huber_delta, reduction="none")
    each = each + p.wh_scale * sizes.sum(-1)
    each = each + p.object_scale * entropy(confidence, target, reduction="none")
    if p.anchor_box_size > 5:
        logs = F.log_softmax(x[..., 5:], -1)
        each = each - p.classification_scale * (truth[..., 5:] * logs).sum(-1)
    nothing = entropy(confidence[empty], torch.zeros_like(confidence[empty]), reduction="sum")
    y = each[found].sum() + p.no_object_scale * nothing
    y.backward()
    return y.detach().numpy(), x.grad.numpy()


def normalization(x, gamma, beta, dy, case, moving=(None, None)):
    """y, dx, dgamma, dbeta of one training call, and the running mean and variance after it."""
    x = _leaf(x)
    shape = (case.channels,) if case.kind != "layer" else case.parameter_shape
    gamma = _leaf(torch.ones(shape).numpy() if gamma is None else gamma)
    beta = _leaf(torch.zeros(shape).numpy() if beta is None else beta)
    mean, variance = (None if m is None else torch.tensor(m, dtype=torch.float64) for m in moving)
    z = _normalized(x, gamma, beta, case, mean, variance)
    y = ACTIVATIONS[case.activation](z, case.alpha, case.beta)
    y.backward(torch.tensor(dy, dtype=torch.float64))
    return SimpleNamespace(
        y=y.detach().numpy(),
        dx=x.grad.numpy(),
        dgamma=gamma.grad.numpy(),
        dbeta=beta.grad.numpy(),
        mean=None if mean is None else mean.numpy(),
        variance=None if variance is None else variance.numpy(),
    )


def _normalized(x, gamma, beta, case, mean=None, variance=None):
    if case.kind == "batch":
        return F.batch_norm(x, mean, variance, gamma, beta, True, 1 - case.momentum, case.epsilon)
    if case.kind == "instance":
        return F.instance_norm(
            x, mean, variance, gamma, beta, True, 1 - case.momentum, case.epsilon
        )
    if case.kind == "group":
        return F.group_norm(x, case.groups, gamma, beta, case.epsilon)
    # gamma and beta may be as large as a sample
    return F.layer_norm(x, case.shape[1 + case.axis :], eps=case.epsilon) * gamma + beta


ARITHMETIC = {
    "negative": torch.neg,
    "minimum": torch.minimum,
    "maximum": torch.maximum,
    "multiply_no_nan": lambda a, b: torch.where(b == 0, torch.zeros_like(a * b), a * b),
    "divide_no_nan": lambda a, b: torch.where(b == 0, torch.zeros_like(a * b), a / b),
    "floor_divide": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "trunc_divide": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "trunc_remainder": torch.fmod,
    "multiply_add": lambda a, b, c: a * b + c,
    "select": lambda a, b, c: torch.where(a != 0, b, c),
}  # the others have their names in torch


def arithmetic(inputs, dy, case):
    """y, and the gradients of all inputs as they came: what has no batch beside samples gets it."""
    leaves = [_leaf(array) for array in inputs]
    z = _computed(leaves, case)
    y = ACTIVATIONS[case.activation](z, case.alpha, case.beta).expand(case.full_output)
    y.backward(torch.tensor(dy, dtype=torch.float64))
    gradients = [
        torch.zeros_like(leaf).numpy() if leaf.grad is None else leaf.grad.numpy()
        for leaf in leaves
    ]
    return y.detach().numpy(), gradients


def _computed(leaves, case):
    lead = case.output_kind == "sample"
    wide = [
        leaf[None] if lead and case.kinds[k] != "sample" else leaf for k, leaf in enumerate(leaves)
    ]
    function = ARITHMETIC.get(case.function) or getattr(torch, case.function)
    return function(*wide)


def fused(inputs, w, dy, case):
    """{name: array} of y and all gradients of one fused layer after a training call."""
    first, norm = case.first, case.norm
    leaves = [_leaf(array) for array in inputs]
    named = dict(zip(case.input_names, leaves, strict=True))
    if case.is_weighted:
        bias = first.bias_values()
        named["dw"] = _leaf(w)
        named["db"] = _leaf([0.0] * first.outputs if bias is None else bias)
        run = _convolved if case.word == "convolution" else _connected
        z = run(leaves[0], named["dw"], named["db"], first)
    else:
        z = _computed(leaves, first)
    gamma, beta = norm.gamma_values(), norm.beta_values()
    named["dgamma"] = _leaf(torch.ones(norm.parameter_shape).numpy() if gamma is None else gamma)
    named["dbeta"] = _leaf(torch.zeros(norm.parameter_shape).numpy() if beta is None else beta)
    z = _normalized(z, named["dgamma"], named["dbeta"], norm)
    y = ACTIVATIONS[case.activation](z, case.alpha, case.beta)
    y.backward(torch.tensor(dy, dtype=torch.float64))
    gradients = {name: leaf.grad.numpy() for name, leaf in named.items() if leaf.grad is not None}
    return {"y": y.detach().numpy(), **gradients}


def _leaf(values):
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def _judged(z, dy, case, *leaves):
    if case.activation == "softmax":
        y = F.softmax(z, dim=-1)
    else:
        y = ACTIVATIONS[case.activation](z, case.alpha, case.beta)
    y.backward(torch.tensor(dy, dtype=torch.float64))
    return y.detach().numpy(), *(leaf.grad.numpy() for leaf in leaves)


def _pool(function, x, geometry, indices):
    n, c = x.shape[:2]
    if function == "unmax":
        planes = torch.zeros((n, c, geometry.image[0] * geometry.image[1]), dtype=torch.float64)
        where = torch.tensor(indices.astype("int64")).reshape(n, c, -1)
        return planes.scatter(2, where, x.reshape(n, c, -1)).reshape((n, c, *geometry.image))
    if function == "max":
        padded = _padded(x, geometry, -torch.inf)
        y = F.max_pool2d(padded, geometry.kernel, geometry.stride, 0, geometry.dilation)
        y = y[:, :, : geometry.windows[0], : geometry.windows[1]]
        return torch.where(_inside_counts(geometry) > 0, y, torch.zeros_like(y))
    if function == "l2_norm":
        return torch.sqrt(_sums(x**2, geometry))
    if function == "average":
        return _sums(x, geometry) / (geometry.kernel[0] * geometry.kernel[1])
    return _sums(x, geometry) / torch.clamp(_inside_counts(geometry), min=1.0)


def _padded(x, geometry, value):
    """x with borders so wide that every window, overhanging or not, lies inside."""
    after = [
        geometry.stride[k] * (geometry.windows[k] - 1)
        + geometry.dilation[k] * (geometry.kernel[k] - 1)
        + 1
        - geometry.before[k]
        - geometry.image[k]
        for k in range(2)
    ]
    up, left = geometry.before
    return F.pad(x, (left, max(after[1], 0), up, max(after[0], 0)), value=value)


def _sums(x, geometry):
    """Window sums as a depthwise convolution with ones."""
    ones = torch.ones((x.shape[1], 1, *geometry.kernel), dtype=torch.float64)
    padded = _padded(x, geometry, 0.0)
    y = F.conv2d(padded, ones, None, geometry.stride, 0, geometry.dilation, x.shape[1])
    return y[:, :, : geometry.windows[0], : geometry.windows[1]]


def _inside_counts(geometry):
    return _sums(torch.ones((1, 1, *geometry.image), dtype=torch.float64), geometry)
