"""Normalization through the C interface: its calls, and what is refused."""

import numpy as np
import pytest
from cases import assert_refused, sentinel_array
from cases.descriptors import image, matrix, misaligned, vector
from openbnns import c

X = np.float32([1, 2, 3, 4])


def parameters(source=None, target=None, **fields):
    source = vector(4) if source is None else source
    return c.BNNSLayerParametersNormalization(
        i_desc=source, o_desc=source if target is None else target, **{"epsilon": 1e-5} | fields
    )


@pytest.fixture
def layer_norm():
    """Over four values."""
    f = c.BNNSFilterCreateLayerNormalization(c.BNNSLayerNorm, parameters(epsilon=0.0), None)
    assert f, c.last_error()
    yield f
    c.BNNSFilterDestroy(f)


def test_c_forward_and_backward(layer_norm):
    y, dx = np.zeros(4, np.float32), np.zeros(4, np.float32)
    dbeta, dgamma = np.zeros(4, np.float32), np.zeros(4, np.float32)
    status = c.BNNSNormalizationFilterApplyBatch(layer_norm, 1, X, 0, y, 0, True)
    assert status == 0, c.last_error()
    np.testing.assert_allclose(y, (X - 2.5) / np.sqrt(1.25), rtol=1e-6)
    dy = np.float32([1, 0, 0, 0])
    status = c.BNNSNormalizationFilterApplyBackwardBatch(
        layer_norm,
        1,
        vector(4, data=dx),
        0,
        None,
        0,
        vector(4, data=dy),
        0,
        vector(4, data=dbeta),
        vector(4, data=dgamma),
    )
    assert status == 0, c.last_error()
    np.testing.assert_array_equal(dbeta, dy)
    np.testing.assert_allclose(dgamma, dy * y, rtol=1e-6)
    assert abs(dx.sum()) < 1e-6


def test_c_generic_calls_are_refused(layer_norm):
    y, _ = sentinel_array((4,), "float32")
    assert_refused(c.BNNSFilterApply(layer_norm, X, y), y)
    assert_refused(c.BNNSFilterApplyBatch(layer_norm, 1, X, 0, y, 0), y)


def test_c_bad_pointers_are_refused(layer_norm):
    y, _ = sentinel_array((4,), "float32")
    apply = c.BNNSNormalizationFilterApplyBatch
    assert_refused(apply(None, 1, X, 0, y, 0, True), y)
    assert_refused(apply(layer_norm, 1, None, 0, y, 0, True), y)
    assert_refused(apply(layer_norm, 1, X, 0, None, 0, True))
    assert_refused(apply(layer_norm, 1, misaligned((4,), np.float32), 0, y, 0, True), y)
    memory = np.arange(8, dtype=np.float32)
    assert_refused(apply(layer_norm, 1, memory[:4], 0, memory[2:6], 0, True))
    np.testing.assert_array_equal(memory, np.arange(8))
    for batch, stride in ((2**63, 0), (2**60, 0), (2, 2**63), (2, 3)):
        assert_refused(apply(layer_norm, batch, X, stride, y, stride, True), y)


def test_c_backward_refuses_what_does_not_fit(layer_norm):
    backward = c.BNNSNormalizationFilterApplyBackwardBatch
    dx, dbeta, room = (sentinel_array((n,), "float32")[0] for n in (4, 4, 16))
    delta = vector(4, data=np.ones(4, np.float32))
    good = (vector(4, data=dx), 0, None, 0, delta, 0, vector(4, data=dbeta), None)
    assert_refused(backward(layer_norm, 1, *good), dx, dbeta)  # nothing to go back from
    y = np.zeros(4, np.float32)
    assert c.BNNSNormalizationFilterApplyBatch(layer_norm, 1, X, 0, y, 0, True) == 0
    for position, bad in (
        (0, vector(5, data=room)),
        (0, image((4, 1, 1), data=room)),
        (0, vector(4)),
        (0, vector(4, "int32", data=room)),
        (4, None),
        (4, vector(3, data=room)),
        (6, vector(5, data=room)),
        (6, matrix((3, 1), data=room)),
        (6, vector(4, data=dx)),
    ):
        arguments = list(good)
        arguments[position] = bad
        assert_refused(backward(layer_norm, 1, *arguments), dx, dbeta, room)
    assert_refused(backward(layer_norm, 2, *good), dx, dbeta)
    assert backward(layer_norm, 1, None, 0, None, 0, delta, 0, None, None) == 0


CORRUPTIONS = {
    "no such type": (c.BNNSConvolution, {}),
    "another layout": (c.BNNSBatchNorm, {"source": matrix((2, 2))}),
    "another output": (c.BNNSBatchNorm, {"target": vector(5)}),
    "integers": (c.BNNSBatchNorm, {"source": vector(4, "int8")}),
    "no channels": (c.BNNSBatchNorm, {"source": vector(0)}),
    "momentum": (c.BNNSBatchNorm, {"momentum": 2.0}),
    "momentum NaN": (c.BNNSBatchNorm, {"momentum": float("nan")}),
    "epsilon": (c.BNNSBatchNorm, {"epsilon": -1.0}),
    "axis": (c.BNNSLayerNorm, {"normalization_axis": 3}),
    "groups": (c.BNNSGroupNorm, {"num_groups": 3}),
    "huge groups": (c.BNNSGroupNorm, {"num_groups": 2**63}),
    "softmax": (c.BNNSBatchNorm, {"activation": c.BNNSActivation(function=11)}),
    "unknown activation": (c.BNNSBatchNorm, {"activation": c.BNNSActivation(function=99)}),
    "beta of another size": (c.BNNSBatchNorm, {"beta_desc": vector(3, data=X)}),
    "gamma of integers": (c.BNNSBatchNorm, {"gamma_desc": vector(4, "int32", data=X)}),
    "half statistics": (c.BNNSBatchNorm, {"moving_mean_desc": vector(4, "float16", data=X)}),
}


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_c_corrupted_parameters_are_refused(kind):
    type_, fields = CORRUPTIONS[kind]
    c.obn_clear_error()
    assert c.BNNSFilterCreateLayerNormalization(type_, parameters(**fields), None) is None
    assert c.last_error()


def test_c_random_parameter_blocks_never_crash():
    rng = np.random.default_rng(12)
    size = c.ctypes.sizeof(c.BNNSLayerParametersNormalization)
    for number in range(1000):
        block = c.BNNSLayerParametersNormalization.from_buffer_copy(rng.bytes(size))
        for name in ("beta", "gamma", "moving_mean", "moving_variance"):
            getattr(block, f"{name}_desc").data = None
        c.obn_clear_error()
        assert c.BNNSFilterCreateLayerNormalization(2 + number % 4, block, None) is None
        assert c.last_error()
    assert c.BNNSFilterCreateLayerNormalization(2, None, None) is None


def test_c_statistics_are_not_for_layer_norm():
    """Ignored there, as documented; Python refuses them."""
    mean = np.float32([5, 5, 5, 5])
    block = parameters(epsilon=0.0, moving_mean_desc=vector(4, data=mean))
    f = c.BNNSFilterCreateLayerNormalization(c.BNNSLayerNorm, block, None)
    y = np.zeros(4, np.float32)
    assert c.BNNSNormalizationFilterApplyBatch(f, 1, X, 0, y, 0, True) == 0, c.last_error()
    c.BNNSFilterDestroy(f)
    np.testing.assert_array_equal(mean, 5)
    np.testing.assert_allclose(y, (X - 2.5) / np.sqrt(1.25), rtol=1e-6)
