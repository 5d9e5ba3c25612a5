"""The package itself: settings, names, what is loaded when, examples in docstrings."""

import subprocess
import sys

import numpy as np
import openbnns
import pytest
from cases.samples import pool
from openbnns import Activation, ActivationLayer, CopyWarning, LayerApplyError, LayerCreationError

DOCUMENTED = (
    "",
    ".activation",
    ".arithmetic",
    ".attention",
    ".blocks",
    ".checking",
    ".clip",
    ".convolution",
    ".fully_connected",
    ".fused",
    ".loss",
    ".matmul",
    ".network",
    ".normalization",
    ".optim",
    ".pooling",
    ".quantization",
    ".random",
    ".training",
    "._activations",
    "._config",
    "._fused_parameters",
    "._layer",
    "._paths",
    "._spec",
)


# ---- one-shot functions ----


def test_activation_of_any_shape():
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 5), dtype=np.float32)
    np.testing.assert_allclose(openbnns.activation(x, "softmax").sum(axis=-1), 1, rtol=1e-6)
    np.testing.assert_allclose(openbnns.activation(x, "softmax", axes=0).sum(axis=0), 1, rtol=1e-6)
    both = openbnns.activation(x, "softmax", axes=(1, -1)).sum(axis=(1, 3))
    np.testing.assert_allclose(both, 1, rtol=1e-6)
    assert openbnns.activation(np.float32(-3).reshape(()), "abs") == 3
    np.testing.assert_array_equal(openbnns.activation(x[..., ::2], "abs"), np.abs(x[..., ::2]))
    with pytest.warns(CopyWarning, match=r"\[activation\] x"):
        turned = openbnns.activation(x.T, "abs")
    np.testing.assert_array_equal(turned, np.abs(x.T))


def test_activation_needs_floats():
    with pytest.raises(LayerApplyError, match=r"\[activation\] "):
        openbnns.activation(np.arange(3), "tanh")


# ---- the module ----


def test_threads_and_seed():
    before = openbnns.get_num_threads()
    openbnns.set_num_threads(3)
    assert openbnns.get_num_threads() == 3
    with pytest.raises(ValueError, match="n: expected None or at least 0; got -1"):
        openbnns.set_num_threads(-1)
    openbnns.set_num_threads(before)
    noise = ActivationLayer(Activation.gumbel(1 - 2e-7, 1e-7), input=(100,))
    draws = []
    for seed in (1, 2, 1):
        openbnns.set_seed(seed)
        draws.append(noise(np.zeros((1, 100), np.float32)))
    np.testing.assert_array_equal(draws[0], draws[2])
    assert (draws[0] != draws[1]).any()


def test_last_error_is_the_sentence_of_the_exception():
    with pytest.raises(LayerCreationError) as info:
        pool(output=(1, 9, 9))
    assert str(info.value) == f"[PoolingLayer] {openbnns.last_error()}"


def test_status_is_printed():
    printed = subprocess.run(
        [sys.executable, "-m", "openbnns"], capture_output=True, text=True, check=True
    ).stdout
    for word in (openbnns.version(), openbnns.isa(), str(openbnns.library_path()), "C functions"):
        assert word in printed


def test_what_layers_do_without_is_loaded_on_first_use():
    code = """
import sys, openbnns
assert not {"openbnns.c", "openbnns.network", "openbnns.training", "json"} & sys.modules.keys()
assert openbnns.Network.__module__ == "openbnns.network"
print(openbnns.c.BNNSDataLayoutGetRank(openbnns.c.BNNSDataLayoutVector))
"""
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert printed.stdout.strip() == "1", printed.stderr
    with pytest.raises(AttributeError, match="module 'openbnns' has no attribute 'nonsense'"):
        openbnns.nonsense  # noqa: B018


def test_public_names_exist_and_are_documented():
    for name in openbnns.__all__:
        value = getattr(openbnns, name)
        assert value.__doc__, name


def test_examples_in_docstrings():
    import doctest
    import importlib

    for name in DOCUMENTED:
        result = doctest.testmod(importlib.import_module(f"openbnns{name}"))
        assert result.attempted > 0
        assert result.failed == 0
