"""Normalization layers: right values, right statistics, right gradients, right refusals."""

import pickle
import weakref
from dataclasses import replace

import numpy as np
import openbnns
import pytest
from cases import (
    dtype_of,
    gaps_untouched,
    generator,
    has_bfloat16,
    in_threads,
    is_sentinel,
    sentinel_array,
    unforeseen_refusals,
)
from cases import normalization as cases
from cases.marks import marked, small
from cases.normalization import NormalizationCase
from hypothesis import given
from hypothesis import strategies as st
from openbnns import (
    ArrayError,
    ArraySpec,
    LayerApplyError,
    LayerCreationError,
    Normalization,
    NormalizationLayer,
    c,
)
from oracles import normalization as oracle
from oracles.differences import STEP, assert_gradient_matches
from oracles.tolerance import assert_close, assert_same_bits

# A float32 mean of squares is off by this against its size; it comes back in every result.
UNIT = 2e-6


CASES = [marked(case) for case in cases.CASES]


def check_training(case):
    """Values of the closed form, running statistics moved; gaps, input, parameters left alone."""
    x, (mean, variance) = case.input(), case.moving_values()
    gamma, beta, before = case.gamma_values(), case.beta_values(), x.copy()
    parameters = {"gamma": gamma, "beta": beta}
    layer = case.layer(moving_mean=mean, moving_variance=variance, **parameters)
    y, owner = case.empty_output()
    assert layer.apply(x, training=True, out=y) is y
    assert_close(y, case.expected(x), case.stored, case.forward_terms(x), UNIT)
    assert gaps_untouched(y, owner)
    assert_same_bits(x, before)
    for array, values in ((gamma, case.gamma_values()), (beta, case.beta_values())):
        if array is not None:
            assert_same_bits(array, values)
    if case.moving:
        expected = case.expected_moving(x, *case.moving_values())
        for array, moved in zip((mean, variance), expected, strict=True):
            assert_close(array, moved, terms=np.abs(moved) + 1)


def check_inference(case):
    """The running statistics where there are any, otherwise those of the batch; nothing moves."""
    x, (mean, variance) = case.input(), case.moving_values()
    layer = case.layer(moving_mean=mean, moving_variance=variance)
    y, owner = case.empty_output()
    layer.apply(x, training=False, out=y)
    expected = case.expected(x, mean, variance)
    assert_close(y, expected, case.stored, case.forward_terms(x, mean, variance), UNIT)
    assert gaps_untouched(y, owner)
    if case.moving:
        for array, old in zip((mean, variance), case.moving_values(), strict=True):
            assert_same_bits(array, old)


def check_backward(case):
    """All gradients into arrays with gaps, then each alone with the same values."""
    x, dy = case.input(), case.output_gradient()
    layer, (y, _), (dx, dx_owner) = case.layer(), case.empty_output(), case.empty_input()
    layer.apply(x, training=True, out=y)
    grads = layer.apply_backward(x, y, dy, input_gradient=dx)
    assert grads.input is dx
    expected = case.expected_gradients(x, y, dy)
    assert_close(dx, expected.dx, case.dtype, expected.dx_terms, UNIT)
    assert gaps_untouched(dx, dx_owner)
    for name, has in (("beta", case.has_beta), ("gamma", case.has_gamma)):
        found = getattr(grads, name)
        if not has:
            assert found is None
            continue
        assert found.dtype == dtype_of(case.parameter_dtype)
        values, terms = getattr(expected, f"d{name}"), getattr(expected, f"d{name}_terms")
        assert_close(found, values, case.parameter_dtype, terms, UNIT)

    nothing = {"input_gradient": None, "beta_gradient": None, "gamma_gradient": None}
    needs_y = None if case.activation == "identity" else y
    alone = layer.apply_backward(None, needs_y, dy, **nothing | {"input_gradient": True})
    assert_same_bits(alone.input, dx)
    assert alone.beta is alone.gamma is None
    for name, has in (("beta", case.has_beta), ("gamma", case.has_gamma)):
        dtype = case.parameter_dtype if has else case.dtype
        target = np.zeros(case.parameter_shape, dtype_of(dtype))  # asked for, parameter or not
        alone = layer.apply_backward(None, needs_y, dy, **nothing | {f"{name}_gradient": target})
        assert getattr(alone, name) is target
        values, terms = getattr(expected, f"d{name}"), getattr(expected, f"d{name}_terms")
        assert_close(target, values, dtype, terms, UNIT)
        if has:
            assert_same_bits(target, getattr(grads, name))


# ---- the case list ----


@pytest.mark.parametrize("case", CASES)
def test_training_matches_closed_form(case):
    check_training(case)


@pytest.mark.parametrize("case", CASES)
def test_inference_matches_closed_form(case):
    check_inference(case)


@pytest.mark.parametrize("case", CASES)
def test_backward_matches_closed_form(case):
    check_backward(case)


@pytest.mark.parametrize("case", small(cases.CASES))
def test_backward_accumulates(case):
    x, dy, layer = case.input(), case.output_gradient(), case.layer()
    y, _ = case.empty_output()
    layer.apply(x, training=True, out=y)
    dx, dx_owner = case.empty_input()
    types = [case.parameter_dtype if has else case.dtype for has in (case.has_beta, case.has_gamma)]
    dbeta, dgamma = (np.zeros(case.parameter_shape, dtype_of(dtype)) for dtype in types)
    before = []
    for salt, array in enumerate((dx, dbeta, dgamma)):
        array[...] = generator(case, 7 + salt).standard_normal(array.shape).astype(array.dtype)
        before.append(array.astype(np.float64))
    layer.apply_backward(
        x, y, dy, input_gradient=dx, beta_gradient=dbeta, gamma_gradient=dgamma, accumulate=True
    )
    e = case.expected_gradients(x, y, dy)
    for array, old, added, terms, dtype in zip(
        (dx, dbeta, dgamma),
        before,
        (e.dx, e.dbeta, e.dgamma),
        (e.dx_terms, e.dbeta_terms, e.dgamma_terms),
        (case.dtype, *types),
        strict=True,
    ):
        assert_close(array, old + added, dtype, terms + np.abs(old), UNIT)
    assert gaps_untouched(dx, dx_owner)


def is_smooth(case):
    """float32, no kink, and variances that stay away from 0, where r has a pole."""
    x = case.input().astype(float)
    flat = oracle.statistics(x, case.split)[1].min() < 0.1
    smooth = case.activation in ("identity", "tanh")
    return smooth and not flat and case.dtype == case.stored == "float32"


@pytest.mark.parametrize("case", small(cases.CASES, is_smooth))
def test_gradients_match_central_differences(case):
    """Gradients of input, gamma and beta against differences of our own forward pass."""
    rng = generator(case, 4)
    x, gamma, beta = case.input(), case.gamma_values(), case.beta_values()
    layer, spaced_dy = case.layer(gamma=gamma, beta=beta), case.output_gradient()
    y, _ = case.empty_output()

    def forward_in(array):
        def forward(values):
            array[...] = values
            layer.apply(x, training=True, out=y)
            return y.copy()

        return forward

    def gradient_of(array, name):
        def gradient(values, dy):
            array[...] = values
            spaced_dy[...] = dy
            layer.apply(x, training=True, out=y)
            return getattr(layer.apply_backward(None, y, spaced_dy), name)

        return gradient

    for array, name in ((x, "input"), (gamma, "gamma"), (beta, "beta")):
        if array is None:
            continue
        start = np.array(array)
        step = np.float32(STEP / 4)
        assert_gradient_matches(forward_in(array), gradient_of(array, name), start, rng, step)
        array[...] = start


@pytest.mark.parametrize(
    "case", small(cases.CASES, lambda case: case.dtype == case.stored == "float32")
)
def test_values_and_gradients_match_torch(case):
    """PyTorch's autograd in float64 as a second opinion, running statistics included."""
    torch_judge = pytest.importorskip("oracles.torch_judge", exc_type=ImportError)
    single = case.kind == "instance" and np.prod(case.shape[2:]) == 1
    if single or (case.kind == "batch" and np.prod(case.shape) == case.channels):
        pytest.skip("PyTorch refuses groups of one value")
    if case.epsilon == 0 and case.kind == "batch":
        pytest.skip("PyTorch refuses epsilon 0")
    x, dy, (mean, variance) = case.input(), case.output_gradient(), case.moving_values()
    layer, (y, _) = case.layer(moving_mean=mean, moving_variance=variance), case.empty_output()
    layer.apply(x, training=True, out=y)
    grads = layer.apply_backward(None, y, dy)
    theirs = torch_judge.normalization(
        x, case.gamma_values(), case.beta_values(), dy, case, case.moving_values()
    )
    expected = case.expected_gradients(x, y, dy)
    assert_close(y, theirs.y, terms=case.forward_terms(x), unit=UNIT)
    assert_close(grads.input, theirs.dx, terms=expected.dx_terms, unit=UNIT)
    if case.has_gamma:
        assert_close(grads.gamma, theirs.dgamma, terms=expected.dgamma_terms, unit=UNIT)
    if case.has_beta:
        assert_close(grads.beta, theirs.dbeta, terms=expected.dbeta_terms, unit=UNIT)
    if case.moving:
        assert_close(mean, theirs.mean, terms=np.abs(theirs.mean) + 1)
        assert_close(variance, theirs.variance, terms=np.abs(theirs.variance) + 1)


# ---- numbers from the specification ----


def test_vector_layer_norm():
    layer = NormalizationLayer("layer", input=(4,), epsilon=0)
    x, sigma = np.float32([[1, 2, 3, 4]]), np.sqrt(1.25)
    xhat = (x - 2.5) / sigma
    np.testing.assert_allclose(layer(x, training=True), xhat, rtol=1e-6)
    dx = layer.apply_backward(None, None, np.float32([[1, 0, 0, 0]])).input
    expected = (np.float32([1, 0, 0, 0]) - 0.25 - xhat * (-1.5 / (4 * sigma))) / sigma
    np.testing.assert_allclose(dx, expected, rtol=1e-5, atol=1e-6)
    assert abs(dx.sum()) < 1e-6


def test_vector_instance_norm():
    layer = NormalizationLayer("instance", input=(3, 1, 9), epsilon=0)
    x = np.outer([1, 10, 100], np.arange(1, 10)).astype(np.float32).reshape(1, 3, 1, 9)
    row = [-1.549, -1.162, -0.775, -0.387, 0, 0.387, 0.775, 1.162, 1.549]
    np.testing.assert_allclose(layer(x, training=False)[0, :, 0], [row] * 3, atol=5e-4)


def test_vector_batch_norm():
    layer = NormalizationLayer(
        "batch", input=(2,), beta=np.zeros(2, np.float32), gamma=np.ones(2, np.float32)
    )
    y = layer(np.float32([[1, 2], [3, 4]]), training=True)
    np.testing.assert_allclose(y, [[-1, -1], [1, 1]], atol=1e-5)
    grads = layer.apply_backward(None, None, np.float32([[1, 0], [0, 2]]))
    np.testing.assert_array_equal(grads.beta, [1, 2])
    np.testing.assert_allclose(grads.gamma, [-1, 2], atol=2e-5)
    assert np.abs(grads.input).max() <= 1e-4


# ---- running statistics ----


def test_momentum_is_what_stays():
    x = np.float32([[1], [3]])
    for momentum, mean, variance in ((0.0, 2, 2), (1.0, 7, 5), (0.5, 4.5, 3.5)):
        moving = np.float32([7]), np.float32([5])
        layer = NormalizationLayer(
            "batch", input=(1,), moving_mean=moving[0], moving_variance=moving[1], momentum=momentum
        )
        layer(x, training=True)
        assert (moving[0].item(), moving[1].item()) == (mean, variance)


@pytest.mark.parametrize("kind", ["batch", "instance"])
def test_one_running_statistic_is_used_and_the_other_computed(kind):
    case = NormalizationCase(kind, (3, 2, 4, 5), moving=True)
    x, (mean, variance) = case.input(), case.moving_values()
    for one in ({"moving_mean": mean}, {"moving_variance": variance}):
        alone = {"moving_mean": None, "moving_variance": None} | one
        y = case.layer(**alone)(x, training=False)
        expected = case.expected(x, alone["moving_mean"], alone["moving_variance"])
        assert_close(y, expected, terms=case.forward_terms(x), unit=UNIT)
    layer = case.layer(moving_variance=None, moving_mean=mean)
    layer(x, training=True)
    assert_close(mean, case.expected_moving(x, *case.moving_values())[0], terms=1 + np.abs(mean))


def test_running_statistics_with_gaps():
    case = NormalizationCase("batch", (4, 5, 3, 3), moving=True)
    x, (mean, variance) = case.input(), case.moving_values()
    spaced = np.full((2, 5, 3), 9, np.float32)
    spaced[0, :, 0], spaced[1, :, 0] = mean, variance
    case.layer(moving_mean=spaced[0, :, 0], moving_variance=spaced[1, :, 0])(x, training=True)
    case.layer(moving_mean=mean, moving_variance=variance)(x, training=True)
    np.testing.assert_array_equal(spaced[0, :, 0], mean)
    np.testing.assert_array_equal(spaced[1, :, 0], variance)
    assert (spaced[:, :, 1:] == 9).all()


def test_running_statistics_are_never_copied():
    mean = np.zeros(2, np.float32)
    layer = NormalizationLayer("batch", input=(2,), moving_mean=mean, copy_parameters=True)
    layer(np.float32([[1, 2], [3, 4]]), training=True)
    np.testing.assert_array_equal(mean, [2, 3])
    frozen = np.zeros(2, np.float32)
    frozen.flags.writeable = False
    with pytest.raises(ArrayError, match="moving_mean: expected a writable array"):
        NormalizationLayer("batch", input=(2,), moving_mean=frozen)
    with pytest.raises(openbnns.DTypeError, match="moving_variance: expected float32; got float16"):
        NormalizationLayer("batch", input=(2,), moving_variance=np.ones(2, np.float16))


# ---- calls ----


@pytest.mark.parametrize("case", cases.EACH, ids=str)
@pytest.mark.parametrize("activation", ["identity", "rectified_linear"])
def test_in_place(case, activation):
    """Forward and backward in the memory of their arguments."""
    case = replace(case, activation=activation)
    apart, together = case.layer(), case.layer()
    x, dy = case.input(), case.output_gradient()
    y = apart(x, training=True)
    grads = apart.apply_backward(x, y, dy)
    inference = apart(x, training=False)
    memory = x.copy()
    assert_same_bits(together(memory, training=True, out=memory), y)
    assert_same_bits(together.apply_backward(None, y, dy, input_gradient=dy).input, grads.input)
    memory[...] = x
    assert_same_bits(together(memory, training=False, out=memory), inference)


def test_gradients_are_those_of_the_last_training_call():
    case = replace(cases.BATCH, epsilon=0.0, moving=False)
    layer = case.layer()
    x, dy = case.input(), case.output_gradient()
    layer(x, training=True)
    first = layer.apply_backward(None, None, dy)
    layer(2 * x + 1, training=False)
    again = layer.apply_backward(None, None, dy)  # any number of times, inference in between
    assert_same_bits(again.input, first.input)
    layer(3 * x, training=True)
    third = layer.apply_backward(None, None, dy).input
    assert_close(third, first.input / 3.0, terms=1.0, unit=1e-5)


def test_gradients_need_a_training_call_of_the_same_batch():
    layer = NormalizationLayer("batch", input=(2,))
    dy, (dx, _) = np.ones((3, 2), np.float32), sentinel_array((3, 2), "float32")
    with pytest.raises(LayerApplyError, match="expected an apply in training mode before"):
        layer.apply_backward(None, None, dy, input_gradient=dx)
    layer(dy, training=False)
    with pytest.raises(LayerApplyError, match="expected an apply in training mode before"):
        layer.apply_backward(None, None, dy, input_gradient=dx)
    layer(dy[:2], training=True)
    with pytest.raises(LayerApplyError, match=r"batch: expected 2 samples, .* got 3"):
        layer.apply_backward(None, None, dy, input_gradient=dx)
    assert is_sentinel(dx)


def test_other_batches_may_follow():
    case = replace(cases.GROUP, shape=(6, 4, 5, 7))
    layer, x, dy = case.layer(), case.input(), case.output_gradient()
    for n in (2, 6, 1, 5):
        part = replace(case, shape=(n, 4, 5, 7))
        y = layer(x[:n], training=True)
        grads = layer.apply_backward(None, None, dy[:n])
        fresh = case.layer()
        assert_same_bits(y, fresh(x[:n], training=True))
        assert_same_bits(grads.input, fresh.apply_backward(None, None, dy[:n]).input)
        assert part.shape[0] == n


def test_batch_of_nothing():
    layer = NormalizationLayer("layer", input=(3,), gamma=np.ones(3, np.float32))
    x = np.zeros((0, 3), np.float32)
    assert layer(x, training=True).shape == (0, 3)
    assert layer(x, training=False).shape == (0, 3)


def test_training_has_no_default():
    layer = NormalizationLayer("batch", input=(2,))
    with pytest.raises(TypeError, match="training"):
        layer(np.zeros((1, 2), np.float32))
    with pytest.raises(TypeError, match="training"):
        layer.apply(np.zeros((1, 2), np.float32))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_shared_parameters_are_read_at_every_call(dtype):
    for kind in ("batch", "layer"):
        gamma, beta = np.ones(2, dtype), np.zeros(2, dtype)
        layer = NormalizationLayer(kind, input=(2,), gamma=gamma, beta=beta, epsilon=0)
        x = np.float32([[-1, 1], [1, -1]])
        np.testing.assert_array_equal(layer(x, training=True), x)
        gamma[...], beta[...] = 2, 5
        np.testing.assert_array_equal(layer(x, training=True), 2 * x + 5)


@pytest.mark.parametrize("has_beta", [True, False])
def test_bits_do_not_depend_on_where_parameters_lie(has_beta):
    # many rows: parameters across cache lines are copied, at every call anew
    case = NormalizationCase("layer", (70, 37), has_beta=has_beta)
    x, dy = case.input(), case.output_gradient()
    found = []
    for offset in (0, 4, 16, 32):
        places = [np.zeros(37 * 4 + 128, np.uint8) for _ in range(2)]
        gamma, beta = (
            place[-place.ctypes.data % 64 + offset :][: 37 * 4].view(np.float32) for place in places
        )
        layer = case.layer(gamma=gamma, beta=beta if has_beta else None)
        gamma[:] = case.gamma_values().ravel()
        if has_beta:
            beta[:] = case.beta_values().ravel()
        y = layer.apply(x, training=True)
        gamma *= 2
        found.append((y, *layer.apply_backward(x, y, dy)))
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            if a is not None or b is not None:
                assert_same_bits(a, b)


def test_copied_parameters_stay():
    gamma, beta = np.ones(2, np.float32), np.zeros(2, np.float32)
    layer = NormalizationLayer(
        "batch", input=(2,), gamma=gamma, beta=beta, epsilon=0, copy_parameters=True
    )
    gamma[...], beta[...] = 2, 5
    x = np.float32([[-1, 1], [1, -1]])
    np.testing.assert_array_equal(layer(x, training=True), x)


def test_mixed_shapes_of_layer_norm_parameters():
    """gamma as large as a sample, beta as its normalized part, and the other way round."""
    rng = np.random.default_rng(3)
    x, dy = (rng.standard_normal((2, 3, 4, 5)).astype(np.float32) for _ in range(2))
    full, part = rng.standard_normal((3, 4, 5)), rng.standard_normal((4, 5))
    full, part = full.astype(np.float32), part.astype(np.float32)
    for gamma, beta in ((full, part), (part, full)):
        layer = NormalizationLayer(Normalization.layer(1), input=(3, 4, 5), gamma=gamma, beta=beta)
        xhat, _ = oracle.standardize(
            x.astype(float),
            split := oracle.split_of("layer", x.shape, 1),
            *oracle.statistics(x.astype(float), split),
            1e-5,
        )
        assert_close(layer(x, training=True), gamma * xhat + beta, terms=4.0, unit=UNIT)
        grads = layer.apply_backward(None, None, dy)
        assert_close(grads.gamma, oracle.summed_to(dy * xhat, gamma.shape), terms=9.0)
        assert_close(grads.beta, oracle.summed_to(dy.astype(float), beta.shape), terms=9.0)


def test_half_parameter_gradients_round_once():
    case = replace(cases.BATCH, parameter_dtype="float16")
    layer, x, dy = case.layer(), case.input(), case.output_gradient()
    y = layer(x, training=True)
    grads = layer.apply_backward(None, y, dy)
    wide = np.zeros(case.channels, np.float32)
    single = case.layer(
        gamma=case.gamma_values().astype(np.float32), beta=case.beta_values().astype(np.float32)
    )
    single(x, training=True)
    single.apply_backward(None, y, dy, gamma_gradient=wide)
    assert grads.gamma.dtype == np.float16
    assert_same_bits(grads.gamma, wide.astype(np.float16))


# ---- values that are difficult ----


def test_constant_values():
    x = np.full((2, 3), 7, np.float32)
    np.testing.assert_array_equal(NormalizationLayer("layer", input=(3,))(x, training=True), 0)
    assert np.isnan(NormalizationLayer("layer", input=(3,), epsilon=0)(x, training=True)).all()


def test_nan_stays_in_its_group():
    x = np.random.default_rng(1).standard_normal((2, 4, 3, 3)).astype(np.float32)
    x[1, 2, 0, 0] = np.nan
    y = NormalizationLayer("instance", input=(4, 3, 3))(x, training=True)
    assert np.isnan(y[1, 2]).all()
    y[1, 2] = 0
    assert np.isfinite(y).all()
    y = NormalizationLayer("batch", input=(4, 3, 3))(x, training=True)
    assert np.isnan(y[:, 2]).all()
    assert np.isfinite(y[:, [0, 1, 3]]).all()


def test_far_from_zero():
    """Values of which only the last bits differ keep their variance."""
    rng = np.random.default_rng(2)
    x = (4096 + rng.integers(-8, 8, (8, 3, 16, 16)) / 8).astype(np.float32)
    y = NormalizationLayer("batch", input=(3, 16, 16), epsilon=0)(x, training=True)
    np.testing.assert_allclose(y.astype(float).mean(axis=(0, 2, 3)), 0, atol=1e-5)
    np.testing.assert_allclose(y.astype(float).var(axis=(0, 2, 3)), 1, rtol=1e-5)


@pytest.mark.parametrize("kind", ["batch", "instance", "layer"])
def test_tiny_values_have_gradients(kind):
    """1 / deviation is beyond the root of the largest float32."""
    rng = np.random.default_rng(5)
    x = np.float32(1e-20) * rng.standard_normal((7, 3, 50), np.float32)
    dy = rng.standard_normal(x.shape).astype(np.float32)
    gradients = []
    for scale in (1, 2.0**64):
        layer = NormalizationLayer(kind, input=(3, 1, 50), epsilon=0)
        scaled = (x * np.float32(scale)).reshape(7, 3, 1, 50)
        y = layer.apply(scaled, training=True)
        dx = layer.apply_backward(None, y, dy.reshape(scaled.shape)).input
        gradients.append(dx * (scale / 2.0**64))
    assert np.isfinite(gradients[0]).all()
    np.testing.assert_allclose(gradients[0], gradients[1], rtol=1e-5, atol=1e-5)


# ---- a borrowed input ----


@pytest.mark.parametrize("case", cases.EACH, ids=str)
@pytest.mark.parametrize("activation", ["identity", "rectified_linear"])
def test_borrowing_changes_no_bit(case, activation):
    """Nor the memory of x; what a layer keeps is less by x."""
    case = replace(case, activation=activation)
    copies, borrows = case.layer(), case.layer(borrow_input=True)
    x, dy = case.input(), case.output_gradient()
    before = x.copy()
    y = copies(x, training=True)
    assert_same_bits(borrows(x, training=True), y)
    expected, grads = (layer.apply_backward(x, y, dy) for layer in (copies, borrows))
    for one, two in zip(grads, expected, strict=True):
        assert_same_bits(one, two)
    assert_same_bits(x, before)
    assert_same_bits(borrows(x, training=False), copies(x, training=False))
    n = len(x)
    assert borrows.kept_bytes(n) + x.nbytes <= copies.kept_bytes(n)


@pytest.mark.filterwarnings("ignore::openbnns.CopyWarning")
@pytest.mark.parametrize("form", ["the array", "a view", "every other sample", "other axes"])
def test_what_is_borrowed_lives_as_long_as_it_is_needed(form):
    """Whoever made it: the layer holds on to it until the next training call or its end."""
    case = replace(cases.BATCH, moving=False)
    layer, x, dy = case.layer(borrow_input=True), case.input(), case.output_gradient()
    expected = case.layer()
    expected(x, training=True)
    given = {
        "the array": x.copy,
        "a view": lambda: np.concatenate([x, x])[: len(x)],
        "every other sample": lambda: np.repeat(x, 2, axis=0)[::2],
        "other axes": lambda: np.asfortranarray(x),
    }[form]()
    layer(given, training=True)
    alive = weakref.ref(given) if form == "the array" else None
    layer(x[:0], training=True)  # nothing happens
    del given
    noise = [np.full(x.shape, 9, np.float32) for _ in range(50)]
    assert alive is None or alive() is not None
    grads = layer.apply_backward(None, None, dy)
    assert_same_bits(grads.input, expected.apply_backward(None, None, dy).input)
    layer(noise[0], training=True)
    assert alive is None or alive() is None
    held = weakref.ref(noise[0])
    del noise
    assert held() is not None
    layer.close()
    assert held() is None


def test_halves_are_copied_all_the_same():
    case = replace(cases.BATCH, dtype="float16", stored="float32")
    layer, x, dy = case.layer(borrow_input=True), case.input(), case.output_gradient()
    layer(x, training=True)
    expected = layer.apply_backward(None, None, dy).input
    x[...] = 0
    assert_same_bits(layer.apply_backward(None, None, dy).input, expected)
    assert layer.kept_bytes(3) == case.layer().kept_bytes(3)


def test_a_borrowed_input_is_not_written_to():
    case = replace(cases.BATCH, moving=False)
    layer, x, dy = case.layer(borrow_input=True), case.input(), case.output_gradient()
    before = x.copy()
    with pytest.raises(LayerApplyError, match="output: expected memory apart from the borrowed"):
        layer(x, training=True, out=x)
    layer(x, training=True)
    with pytest.raises(LayerApplyError, match="input_gradient: expected memory apart from the bor"):
        layer.apply_backward(None, None, dy, input_gradient=x)
    assert_same_bits(x, before)
    assert_same_bits(layer(x, training=False, out=x), case.layer()(before, training=False))


def test_c_borrowing_is_chosen_before_training():
    case = cases.BATCH
    layer, x = case.layer(), case.input()
    assert c.obn_filter_set_borrow_input(layer.handle, 2) == -1
    assert c.obn_filter_set_borrow_input(None, 1) == -1
    layer(x, training=True)
    assert c.obn_filter_set_borrow_input(layer.handle, 1) == -1
    assert "before the first apply in training mode" in c.last_error()
    relu = openbnns.ActivationLayer("relu", input=(2,))
    assert c.obn_filter_set_borrow_input(relu.handle, 1) == -1
    assert "only normalization filters borrow" in c.last_error()


# ---- words ----


def test_kinds_of_normalization():
    for name, kind in (("batch", Normalization.batch), ("instance", Normalization.instance)):
        assert Normalization.of(name) is kind
        assert NormalizationLayer(name, input=(4,)).normalization == kind
    assert Normalization.of("layer") == Normalization.layer(0)
    assert Normalization.layer(1) != Normalization.layer(2)
    assert Normalization.group(2) != Normalization.group(3)
    assert Normalization.group(2) != Normalization.layer(2)
    assert len({Normalization.group(2), Normalization.group(2), Normalization.batch}) == 2


@pytest.mark.parametrize(
    "kind", [Normalization.batch, Normalization.layer(-1), Normalization.group(4)], ids=repr
)
def test_kinds_are_frozen_and_survive_pickling(kind):
    assert pickle.loads(pickle.dumps(kind)) == kind
    assert eval(repr(kind)) == kind
    with pytest.raises(AttributeError):
        kind.axis = 1
    with pytest.raises(AttributeError):
        del kind.axis


def test_negative_axes_count_from_the_end():
    x = np.random.default_rng(1).standard_normal((2, 3, 4, 5)).astype(np.float32)
    for axis in range(3):
        one, two = (
            NormalizationLayer(Normalization.layer(a), input=(3, 4, 5))(x, training=False)
            for a in (axis, axis - 3)
        )
        assert_same_bits(one, two)
    layer = NormalizationLayer(Normalization.layer(-1), input=(7,))
    assert abs(layer(x.reshape(-1)[None, :7], training=False).sum()) < 1e-5


def test_layer_describes_itself():
    layer = NormalizationLayer(Normalization.group(2), input=(4, 2, 2))
    assert repr(layer) == (
        "NormalizationLayer(Normalization.group(groups=2), input=ArraySpec((4, 2, 2), 'float32'))"
    )
    assert layer.output_spec == layer.input_spec == ArraySpec((4, 2, 2))


@pytest.mark.parametrize(
    ("kind", "options", "sentence"),
    [
        ("group", {}, r"normalization: expected one of batch, .* got 'group'"),
        ("all", {}, r"normalization: expected one of batch, .* got 'all'"),
        (Normalization.layer(3), {}, r"normalization: expected an axis of the sample .* got 3"),
        (Normalization.layer(-4), {}, "normalization: expected an axis of the sample"),
        (Normalization.group(0), {}, "normalization: expected at least 1 group; got 0"),
        (Normalization.group(-1), {}, "normalization: expected a whole number, not negative"),
        (Normalization.group(3), {}, "num_groups: expected a divisor of 4 channels; got 3"),
        ("batch", {"input": (3, 4)}, r"input: expected samples \(channels, height, width\) or"),
        ("batch", {"output": (4, 2, 3)}, "output: expected"),
        ("batch", {"momentum": 1.5}, "momentum: expected a number from 0 to 1; got 1.5"),
        ("batch", {"momentum": -0.1}, "momentum: expected a number from 0 to 1"),
        ("batch", {"epsilon": -1e-3}, "epsilon: expected a number of at least 0"),
        ("batch", {"epsilon": float("nan")}, "epsilon: expected a number of at least 0"),
        ("batch", {"activation": "softmax"}, "activation: expected an element-wise function"),
        ("batch", {"activation": "nothing"}, "activation: expected one of"),
        (
            "layer",
            {"moving_mean": np.zeros(4, np.float32)},
            "moving_mean: expected None for layer normalization",
        ),
        (
            Normalization.group(2),
            {"moving_variance": np.zeros(4, np.float32)},
            "moving_variance: expected None for group normalization",
        ),
    ],
)
def test_impossible_layers_are_refused_with_a_sentence(kind, options, sentence):
    with pytest.raises(LayerCreationError, match=rf"^\[NormalizationLayer\] {sentence}"):
        NormalizationLayer(kind, **{"input": (4, 2, 2)} | options)


def test_parameters_that_do_not_fit_are_refused_with_a_sentence():
    three = np.zeros(3, np.float32)
    for kind, options, sentence in (
        ("batch", {"beta": three}, r"beta: expected \(4,\); got \(3,\)"),
        ("batch", {"gamma": np.zeros((4, 1), np.float32)}, r"gamma: expected \(4,\); got \(4, 1\)"),
        ("layer", {"gamma": three}, r"gamma: expected \(4, 2, 2\); got \(3,\)"),
        (
            Normalization.layer(2),
            {"beta": three},
            r"beta: expected \(2,\) or \(4, 2, 2\); got \(3,\)",
        ),
        ("batch", {"moving_mean": three}, r"moving_mean: expected \(4,\); got \(3,\)"),
    ):
        with pytest.raises(ArrayError, match=rf"^\[NormalizationLayer\] {sentence}"):
            NormalizationLayer(kind, input=(4, 2, 2), **options)
    with pytest.raises(openbnns.DTypeError, match="gamma: expected"):
        NormalizationLayer("batch", input=(4,), gamma=np.zeros(4))
    with pytest.raises(LayerCreationError, match="gamma: expected float32, float16 or bfloat16"):
        NormalizationLayer("batch", input=(4,), gamma=np.zeros(4, np.int32))
    with pytest.raises(ArrayError, match=r"gamma: .* never copied"):
        NormalizationLayer("batch", input=(4,), gamma=np.zeros(4, np.float32)[::-1])


def test_wrong_arrays_are_refused_with_a_sentence():
    layer = NormalizationLayer("batch", input=(2, 3, 3), gamma=np.ones(2, np.float32))
    x = np.zeros((5, 2, 3, 3), np.float32)
    layer(x, training=True)
    for call, sentence in [
        (lambda: layer(x[0], training=True), r"x: expected \(N, 2, 3, 3\); got \(2, 3, 3\)"),
        (lambda: layer(x.astype("f8"), training=False), "x: expected float32; got float64"),
        (
            lambda: layer(x, training=False, out=x[:4]),
            r"out: expected \(5, 2, 3, 3\); got \(4, 2, 3, 3\)",
        ),
        (lambda: layer.apply_backward(None, None, x[0]), "grad_output: expected"),
        (
            lambda: layer.apply_backward(None, None, x, gamma_gradient=x),
            r"gamma_gradient: expected \(2,\); got \(5, 2, 3, 3\)",
        ),
        (
            lambda: layer.apply_backward(None, None, x, accumulate={"beta"}),
            "accumulate: expected an array to add to as beta_gradient; got True",
        ),
        (
            lambda: layer.apply_backward(None, None, x, accumulate={"weights"}),
            "accumulate: expected names out of input, beta, gamma; got 'weights'",
        ),
    ]:
        with pytest.raises(ArrayError, match=rf"^\[NormalizationLayer\] {sentence}"):
            call()


def test_activation_needs_its_output():
    layer = NormalizationLayer("batch", input=(2,), activation="tanh")
    dy = np.ones((2, 2), np.float32)
    layer(dy, training=True)
    with pytest.raises(LayerApplyError, match="output: expected the result of apply"):
        layer.apply_backward(None, None, dy)


def test_closed_layers_are_refused():
    layer = NormalizationLayer("batch", input=(2,))
    x = np.ones((2, 2), np.float32)
    with layer:
        layer(x, training=True)
    for call in (
        lambda: layer(x, training=True),
        lambda: layer(x, training=False),
        lambda: layer.apply_backward(None, None, x),
    ):
        with pytest.raises(LayerApplyError, match="got a closed one"):
            call()


def test_training_calls_of_one_layer_exclude_each_other():
    """A second thread is turned away or waits its turn by itself; nobody reads half a state."""
    layer = NormalizationLayer("batch", input=(64, 32, 32))
    x = np.random.default_rng(0).standard_normal((8, 64, 32, 32)).astype(np.float32)
    expected = layer(x, training=True)
    refused, wrong = [], []

    def work(_):
        for _ in range(30):
            try:
                if not np.array_equal(layer(x, training=True), expected):
                    wrong.append("values")
                layer.apply_backward(None, None, x)
            except LayerApplyError as error:
                refused.append(str(error))

    in_threads(4, work)
    assert wrong == []
    assert unforeseen_refusals(refused) == []
    assert np.array_equal(layer(x, training=True), expected)  # nothing stays claimed


# ---- any shape ----


@st.composite
def normalization_cases(draw):
    """Small layers of every kind, with gaps, types and activations."""
    channels = draw(st.integers(1, 9))
    kind = draw(st.sampled_from(["batch", "instance", "layer", "group"]))
    shape = (draw(st.integers(1, 4)), channels)
    if draw(st.booleans()):
        shape += (draw(st.integers(1, 6)), draw(st.integers(1, 20)))
    gaps = st.tuples(*[st.integers(0, 2)] * 4)
    types = ["float32", "float16"] + ["bfloat16"] * has_bfloat16()
    has_beta, has_gamma = draw(st.booleans()), draw(st.booleans())
    return NormalizationCase(
        kind,
        shape,
        axis=draw(st.integers(0, len(shape) - 2)),
        groups=draw(st.sampled_from([g for g in range(1, channels + 1) if channels % g == 0])),
        epsilon=draw(st.sampled_from([1e-5, 1e-3, 0.1])),
        has_beta=has_beta,
        has_gamma=has_gamma,
        full=has_beta and has_gamma and draw(st.booleans()),
        moving=kind in ("batch", "instance") and draw(st.booleans()),
        momentum=draw(st.sampled_from([0.0, 0.5, 0.99])),
        dtype=draw(st.sampled_from(types)),
        stored=draw(st.sampled_from(types)),
        parameter_dtype=draw(st.sampled_from(types)),
        activation=draw(st.sampled_from(["identity", "rectified_linear", "tanh"])),
        x_gaps=draw(gaps),
        y_gaps=draw(gaps),
        step=draw(st.integers(1, 2)),
    )


@given(normalization_cases())
def test_any_layer_matches_closed_form(case):
    check_training(case)
    check_inference(case)
    check_backward(case)
