"""The same bits for any number of threads where values are no numbers: NaN of both signs with
different payloads, and infinities of both signs, in everything that a call reads. Where products
are summed, and in optimizers, NaN need only be NaN (docs/compatibility.md)."""

import sys

import numpy as np
import openbnns as bnns
import pytest
from cases import (
    activation,
    arithmetic,
    attention,
    convolution,
    fully_connected,
    fused,
    loss,
    matmul,
    normalization,
    optimizer,
    pooling,
    quantization,
)
from cases import generator as plain_generator
from cases.marks import marked
from oracles.tolerance import assert_same_bits

THREADS = (2, 3, 7)
EXACT = (activation, arithmetic, loss, normalization, pooling, quantization)
PRODUCTS = (attention, convolution, fully_connected, fused, matmul)


def split(family):
    return [marked(case) for case in family.CASES if "split" in case.tags]


# Cut by the number of threads, and written past the caches with few of them only.
NORMS = [
    marked(normalization.NormalizationCase(kind, shape, axis, activation=activation_name))
    for kind, shape, axis, activation_name in (
        ("batch", (17, 12, 33, 33), 0, "identity"),
        ("batch", (17, 12, 33, 33), 0, "rectified_linear"),
        ("batch", (17, 30, 66, 66), 0, "rectified_linear"),
        ("instance", (7, 12, 33, 33), 0, "tanh"),
        ("layer", (9, 12, 33, 35), 2, "identity"),
        ("layer", (2300, 1000), 0, "identity"),
    )
]

# float64 NaN whose upper bits, sign and payload, are left when they become float32 or float16.
NANS = np.array(
    [0x7FF8 << 48, 0xFFF8 << 48, 0x7FFC_8000 << 32, 0xFFFA_4000 << 32, 0x7FFB_C000 << 32], np.uint64
).view(np.float64)
INFINITIES = np.array([np.inf, -np.inf])
SPECIALS = {
    "nan": (NANS, 200),
    "infinite": (INFINITIES, 200),
    "rare": (np.concatenate([NANS, INFINITIES]), 20_000),
    "many": (np.concatenate([NANS, INFINITIES]), 5),
}


class Infested:
    """A generator of random numbers, one of `every` of which is something special."""

    def __init__(self, rng, specials, every):
        self._rng, self._specials, self._every = rng, specials, every

    def __getattr__(self, name):
        return getattr(self._rng, name)

    def _infest(self, values):
        values = np.array(values)
        flat = values.reshape(-1)
        count = -(-flat.size // self._every) + 1
        flat[self._rng.integers(0, flat.size, count)] = self._rng.choice(self._specials, count)
        return values

    def standard_normal(self, *arguments):
        return self._infest(self._rng.standard_normal(*arguments))

    def uniform(self, *arguments):
        return self._infest(self._rng.uniform(*arguments))

    def random(self, *arguments):
        return self._infest(self._rng.random(*arguments))


@pytest.fixture(params=SPECIALS)
def specials(request, monkeypatch):
    """Every case draws special values while a test has this."""

    def generator(case, salt=0):
        return Infested(plain_generator(case, salt), *SPECIALS[request.param])

    for name, module in list(sys.modules.items()):
        if name.startswith("cases.") and hasattr(module, "generator"):
            monkeypatch.setattr(module, "generator", generator)
    return request.param


@pytest.fixture
def threads():
    before = bnns.get_num_threads()
    yield bnns.set_num_threads
    bnns.set_num_threads(before)


def one_nan(array):
    """A copy in which every NaN has the same bits."""
    array = np.array(array)
    array[np.isnan(array)] = np.nan
    return array


@np.errstate(all="ignore")
def assert_threads_agree(results, threads, settle=np.asarray):
    threads(1)
    alone = results()
    for count in THREADS:
        threads(count)
        for name, array in results().items():
            assert_same_bits(settle(array), settle(alone[name]))


@pytest.mark.parametrize("case", [*NORMS, *(case for family in EXACT for case in split(family))])
def test_any_number_of_threads_gives_the_same_bits(case, specials, threads):
    assert_threads_agree(case.results, threads)


@pytest.mark.parametrize("case", [case for family in PRODUCTS for case in split(family)])
def test_any_number_of_threads_gives_nan_in_the_same_places(case, specials, threads):
    assert_threads_agree(case.results, threads, one_nan)


@pytest.mark.parametrize("case", [c for c in optimizer.CASES if "split" in c.tags], ids=str)
def test_any_number_of_threads_steps_the_same(case, specials, threads):
    def results():
        parameters = case.parameters()
        bound = case.optimizer().bind(parameters)
        for step in range(3):
            bound.step(case.gradients(step))
        return dict(enumerate(parameters))

    assert_threads_agree(results, threads, one_nan)
