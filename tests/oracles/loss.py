"""Losses in float64, from the formulas of the specification. x, labels and weights are (b, n)."""

from typing import NamedTuple

import numpy as np

EPSILON = float(np.float32(1e-7))  # of the log loss
PER_SAMPLE = ("softmax_cross_entropy", "cosine_distance", "categorical_cross_entropy")


class Result(NamedTuple):
    """Losses (b, n), or (b,) where a sample has one; slopes (b, n) with their weights; terms are
    the sizes of what was added up for a loss."""

    y: np.ndarray
    slopes: np.ndarray
    terms: np.ndarray


def forward(function, x, labels, weights, smoothing=0.0, delta=1.0):
    """Every loss and its gradient, nothing reduced."""
    x, labels, weights = (np.asarray(a, np.float64) for a in (x, labels, weights))
    if function in PER_SAMPLE:
        return _samples(function, x, labels, weights, smoothing)
    y, slopes = _values(function, x, labels, smoothing, delta)
    return Result(weights * y, weights * slopes, np.abs(weights) * (1 + np.abs(y)))


def _values(function, x, labels, smoothing, delta):
    e = x - labels
    if function == "sigmoid_cross_entropy":
        labels = labels * (1 - smoothing) + smoothing / 2
        y = np.maximum(x, 0) - x * labels + np.log1p(np.exp(-np.abs(x)))
        return y, 1 / (1 + np.exp(-x)) - labels
    if function == "mean_square_error":
        return e**2, 2 * e
    if function == "mean_absolute_error":
        return np.abs(e), np.where(x >= labels, 1.0, -1.0)
    if function == "huber":
        inside = np.abs(e) <= delta
        y = np.where(inside, e**2 / 2, delta * (np.abs(e) - delta / 2))
        return y, np.where(inside, e, delta * np.sign(e))
    if function == "hinge":
        sign = 2 * labels - 1
        return np.maximum(0, 1 - sign * x), np.where(sign * x <= 1, -sign, 0.0)
    assert function == "log"
    p, q = x + EPSILON, 1 - x + EPSILON
    return -labels * np.log(p) - (1 - labels) * np.log(q), (p - labels) / (p * q)


def _samples(function, x, labels, weights, smoothing):
    if function == "cosine_distance":
        product = (weights * labels * x).sum(axis=1)
        slopes = product[:, None] * x - weights * labels
        return Result(1 - product, slopes, 1 + np.abs(weights * labels * x).sum(axis=1))
    shifted = x - x.max(axis=1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    p = np.exp(log_p)
    if function == "softmax_cross_entropy":
        labels = labels * (1 - smoothing) + smoothing / x.shape[1]
        weighted = weights * labels
        slopes = p * weighted.sum(axis=1, keepdims=True) - weighted
    else:
        count = np.maximum((labels != 0).sum(axis=1, keepdims=True), 1)
        weighted = weights * labels / count
        slopes = np.where(labels != 0, weights * (p - 1 / count), p)
        slopes[(labels == 0).all(axis=1)] = 0
    with np.errstate(invalid="ignore"):
        parts = np.where(weighted == 0, 0.0, -weighted * log_p)
    return Result(parts.sum(axis=1), slopes, 1 + np.abs(parts).sum(axis=1))


def divisor(function, reduction, weights):
    """What a sum of losses is divided by; weights (b, n)."""
    if reduction in ("none", "sum"):
        return 1.0
    weights = np.asarray(weights, np.float64)
    each = weights.mean(axis=1) if function in PER_SAMPLE else weights
    return {
        "mean": float(each.size),
        "weighted_mean": float(each.sum()),
        "non_zero_weight_mean": float((each != 0).sum()),
    }[reduction]


def reduce(function, reduction, result, weights):
    """(loss, factor of the gradient)."""
    if reduction == "none":
        return result.y, 1.0
    by = divisor(function, reduction, weights)
    return (0.0, 0.0) if by == 0 else (result.y.sum() / by, 1 / by)


def yolo(x, truth, anchors, parameters):
    """(loss, gradient) of (b, rows, columns, anchors, box); parameters is a YoloParameters."""
    x, truth = np.asarray(x, np.float64), np.asarray(truth, np.float64)
    p, anchors = parameters, np.asarray(anchors, np.float64)

    def sigmoid(v):
        return 1 / (1 + np.exp(-v))

    def cross_entropy(v, target):
        return np.maximum(v, 0) - v * target + np.log1p(np.exp(-np.abs(v)))

    place, confidence = sigmoid(x[..., :2]), x[..., 4]
    iou = _overlap(
        place, anchors * np.exp(x[..., 2:4]), truth[..., :2], anchors * np.exp(truth[..., 2:4])
    )
    has_object = truth[..., 4] > 0
    iou = np.where(has_object, iou, 0.0)
    best = np.where(has_object, iou, -1.0).argmax(axis=-1)
    is_best = np.arange(len(anchors)) == best[..., None]
    object_ = has_object & (is_best | (iou >= np.float32(p.object_min_iou)))
    nothing = ~object_ & (~has_object | (iou <= np.float32(p.no_object_max_iou)))

    e_place, e_size = place - truth[..., :2], x[..., 2:4] - truth[..., 2:4]
    inside = np.abs(e_size) <= p.huber_delta
    huber = np.where(inside, e_size**2 / 2, p.huber_delta * (np.abs(e_size) - p.huber_delta / 2))
    target = iou if p.rescore else np.ones_like(iou)
    loss = p.xy_scale * (e_place**2).sum(-1) + p.wh_scale * huber.sum(-1)
    loss += p.object_scale * cross_entropy(confidence, target)
    dx = np.zeros_like(x)
    dx[..., :2] = 2 * p.xy_scale * e_place * place * (1 - place)
    dx[..., 2:4] = p.wh_scale * np.clip(e_size, -p.huber_delta, p.huber_delta)
    dx[..., 4] = p.object_scale * (sigmoid(confidence) - target)
    if p.anchor_box_size > 5:
        logits, labels = x[..., 5:], truth[..., 5:]
        shifted = logits - logits.max(-1, keepdims=True)
        log_p = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
        loss -= p.classification_scale * (labels * log_p).sum(-1)
        total = labels.sum(-1, keepdims=True)
        dx[..., 5:] = p.classification_scale * (np.exp(log_p) * total - labels)
    background = np.zeros_like(x)
    background[..., 4] = p.no_object_scale * sigmoid(confidence)
    dx = np.where(object_[..., None], dx, np.where(nothing[..., None], background, 0.0))
    empty = p.no_object_scale * cross_entropy(confidence, 0.0)
    return loss[object_].sum() + empty[nothing].sum(), dx


def _overlap(a, a_size, b, b_size):
    """Intersection over union of boxes given by their middles and sizes (…, 2)."""
    first = np.maximum(a - a_size / 2, b - b_size / 2)
    last = np.minimum(a + a_size / 2, b + b_size / 2)
    shared = np.maximum(last - first, 0).prod(-1)
    return shared / (a_size.prod(-1) + b_size.prod(-1) - shared)
