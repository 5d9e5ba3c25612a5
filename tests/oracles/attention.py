"""Multi-head attention in float64: the formulas, sample by sample and head by head.

Shapes are those of openbnns.MultiheadAttention: weights (heads, width, inputs), biases
(heads, width), output weights (outputs, heads·width).
"""

from types import SimpleNamespace

import numpy as np


def _projected(x, weights, bias):
    """(N, heads, rows, width)"""
    y = np.einsum("nri,hwi->nhrw", x, weights)
    return y if bias is None else y + bias[None, :, None, :]


def _with_extra(rows, bias, zero):
    """The bias row, then the zero row, behind those of the sample."""
    n, heads, _, width = rows.shape
    extra = []
    if bias is not None:
        extra.append(np.broadcast_to(bias[None, :, None, :], (n, heads, 1, width)))
    if zero:
        extra.append(np.zeros((n, heads, 1, width)))
    return np.concatenate([rows, *extra], axis=2)


def _hidden(case, sources, key_mask, added):
    """What is added to the scores (N, heads, targets, all columns)."""
    moved = np.zeros((case.batch, case.heads, case.targets, sources))
    own = moved[..., : case.sources]
    if added is not None:
        values = np.where(added, -np.inf, 0.0) if added.dtype == bool else added.astype(np.float64)
        own += values
    if key_mask is not None:
        own[np.broadcast_to(key_mask[:, None, None, :], own.shape)] = -np.inf
    if case.causal:
        rows, columns = np.indices((case.targets, case.sources))
        own[..., columns > rows] = -np.inf
    return moved


def forward(case, p, key_mask=None, added=None, kept=None):
    """All that the gradients need. p has q, k, v, the weights wq … wo, biases bq … bo (or None)
    and key_bias, value_bias (or None); kept multiplies the probabilities (dropout)."""
    p = SimpleNamespace(
        **{
            name: None if array is None else np.asarray(array).astype(np.float64)
            for name, array in vars(p).items()
        }
    )
    q = _projected(p.q, p.wq, p.bq)
    k = _with_extra(_projected(p.k, p.wk, p.bk), p.key_bias, case.zero)
    v = _with_extra(_projected(p.v, p.wv, p.bv), p.value_bias, case.zero)
    scale = 1.0 / np.sqrt(q.shape[-1])
    scores = np.einsum("nhtw,nhsw->nhts", q, k) * scale
    scores += _hidden(case, k.shape[2], key_mask, added)
    with np.errstate(invalid="ignore"):
        e = np.exp(scores - scores.max(axis=-1, keepdims=True))
        probabilities = e / e.sum(axis=-1, keepdims=True)
    dropped = probabilities if kept is None else probabilities * kept
    a = np.einsum("nhts,nhsw->nthw", dropped, v)
    flat = a.reshape(*a.shape[:2], -1)
    y = flat @ p.wo.T
    if p.bo is not None:
        y = y + p.bo
    return SimpleNamespace(
        p=p,
        q=q,
        k=k,
        v=v,
        scale=scale,
        probabilities=probabilities,
        dropped=dropped,
        kept=kept,
        flat=flat,
        y=y,
    )


def backward(case, f, dy):
    """{name: gradient} of Σ y·dy, names as in openbnns.MultiheadAttention."""
    p, dy = f.p, np.asarray(dy).astype(np.float64)
    grads = {
        "output_weights": np.einsum("nto,ntc->oc", dy, f.flat),
        "output_bias": dy.sum(axis=(0, 1)),
    }
    da = (dy @ p.wo).reshape(*dy.shape[:2], case.heads, -1).transpose(0, 2, 1, 3)
    dv = np.einsum("nhts,nhtw->nhsw", f.dropped, da)
    dp = np.einsum("nhtw,nhsw->nhts", da, f.v)
    if f.kept is not None:
        dp = dp * f.kept
    dr = f.probabilities * (dp - (dp * f.probabilities).sum(axis=-1, keepdims=True))
    dq = np.einsum("nhts,nhsw->nhtw", dr, f.k) * f.scale
    dk = np.einsum("nhts,nhtw->nhsw", dr, f.q) * f.scale
    for word, x, w, d in (
        ("query", p.q, p.wq, dq),
        ("key", p.k, p.wk, dk),
        ("value", p.v, p.wv, dv),
    ):
        own = d[:, :, : x.shape[1]]
        grads[word] = np.einsum("nhrw,hwi->nri", own, w)
        grads[f"{word}_weights"] = np.einsum("nhrw,nri->hwi", own, x)
        grads[f"{word}_bias"] = own.sum(axis=(0, 2))
    if p.key_bias is not None:
        grads["key_attention_bias"] = dk[:, :, case.sources].sum(axis=0)
        grads["value_attention_bias"] = dv[:, :, case.sources].sum(axis=0)
    return grads
