"""Optimizers in float64, as the specification writes them, for lists of arrays."""

import numpy as np
from openbnns import ClipByGlobalNorm, ClipByNorm, ClipByValue


def single(value):
    """What the C interface gets to see of a number."""
    return float(np.float32(value))


def clipped(gradients, clipping):
    """Clipping (section 2); a norm of 0 changes nothing."""
    gradients = [np.asarray(g, np.float64) for g in gradients]
    match clipping:
        case ClipByValue(low, high):
            return [np.clip(g, single(low), single(high)) for g in gradients]
        case ClipByNorm(threshold):
            norms = [np.sqrt((g**2).sum()) for g in gradients]
        case ClipByGlobalNorm(threshold, known):
            joint = single(known) if known else np.sqrt(sum((g**2).sum() for g in gradients))
            norms = [joint] * len(gradients)
        case _:
            return gradients
    threshold = single(threshold)
    pairs = zip(gradients, norms, strict=True)
    return [g * (threshold / norm if norm > threshold else 1.0) for g, norm in pairs]


class Judge:
    """An optimizer and its state."""

    def __init__(self, kind, optimizer, parameters):
        self.kind, self.optimizer, self.time = kind, optimizer, 1
        self.w = [np.asarray(p, np.float64) for p in parameters]
        self.state = [[np.zeros_like(w) for _ in range(3)] for w in self.w]

    def step(self, gradients):
        o = self.optimizer
        for p, g in enumerate(clipped(gradients, o.gradient_clipping)):
            g = single(o.gradient_scale) * g
            if o.l1 is not None:
                g = g + single(o.l1) * np.sign(self.w[p])
            if o.l2 is not None:
                g = g + single(o.l2) * self.w[p]
            self.w[p] = getattr(self, self.kind)(self.w[p], g, self.state[p])
        self.time += 1

    def sgd(self, w, g, state):
        o = self.optimizer
        lr, m, before = single(o.learning_rate), single(o.momentum), state[0]
        if m == 0:
            return w - lr * g
        if o.variant == 0:
            v = state[0] = m * before - lr * g
            return w + v + (m * (v - before) if o.nesterov else 0)
        if o.variant == 2 and not o.nesterov:
            v = state[0] = m * before + lr * g
            return w - v
        v = state[0] = m * before + g
        return w - lr * (g + m * v if o.nesterov else v)

    def adam(self, w, g, state):
        o = self.optimizer
        beta1, beta2 = single(o.beta1), single(o.beta2)
        state[0] = beta1 * state[0] + (1 - beta1) * g
        state[1] = beta2 * state[1] + (1 - beta2) * g**2
        square = state[1]
        if o.amsgrad:
            square = state[2] = np.maximum(state[2], square)
        rate = single(o.learning_rate) * np.sqrt(1 - beta2**self.time) / (1 - beta1**self.time)
        return w - rate * state[0] / (np.sqrt(square) + single(o.epsilon))

    def adamw(self, w, g, state):
        o = self.optimizer
        return self.adam(w - single(o.learning_rate) * single(o.weight_decay) * w, g, state)

    def rmsprop(self, w, g, state):
        o = self.optimizer
        alpha = single(o.alpha)
        state[0] = alpha * state[0] + (1 - alpha) * g**2
        square = state[0]
        if o.centered:
            state[1] = alpha * state[1] + (1 - alpha) * g
            square = np.maximum(0, square - state[1] ** 2)
        change = -single(o.learning_rate) * g / (np.sqrt(square) + single(o.epsilon))
        if o.momentum:
            change = state[2] = single(o.momentum) * state[2] + change
        return w + change
