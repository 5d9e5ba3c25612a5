"""Sums of products over letters in float64.

Tensors are (letters, array), a letter for every axis. A letter twice in one tensor is its diagonal.
Extents along a letter are equal, or 1, which is spread.
"""

import numpy as np


def spell(words, ranks):
    """Letters for every axis of tensors with `ranks` axes: what a star stands for gets capitals,
    counted from the back for a star in front and from the front for one behind."""
    spelled = []
    for word, rank in zip(words, ranks, strict=True):
        letters = word.strip("*")
        capitals = "UVWXYZ"[: rank - len(letters)]
        if word.startswith("*"):
            letters = capitals[::-1] + letters
        spelled.append(letters + capitals if word.endswith("*") else letters)
        assert len(spelled[-1]) == rank
    return spelled


def contract(tensors, letters, shape):
    """Σ of the product of the tensors over all letters that are not in `letters`, as an array of
    `shape` with an axis for each of those. It is summed where shape has 1 and a tensor more, spread
    where no tensor has the letter, and 0 off the diagonal of a letter that is there twice."""
    extents = {}
    for names, array in tensors:
        for name, extent in zip(names, array.shape, strict=True):
            extents[name] = max(extent, extents.get(name, 1))
    alone = {}
    for name, extent in zip(letters, shape, strict=True):
        if name not in extents:
            alone[name] = np.ones(extent)
    distinct = "".join(dict.fromkeys(letters))
    operands = [*tensors, *alone.items()]
    text = ",".join(names for names, _ in operands) + "->" + distinct
    total = np.einsum(text, *(array.astype(np.float64) for _, array in operands), optimize=True)
    for axis, name in enumerate(distinct):
        if shape[letters.index(name)] == 1:
            total = total.sum(axis=axis, keepdims=True)
    if len(distinct) == len(letters):
        return np.broadcast_to(total, shape)
    result = np.zeros(shape)
    places = np.indices(total.shape)
    result[tuple(places[distinct.index(name)] for name in letters)] = total
    return result
