"""What convolution and fully connected cases are checked for in the same words."""

import numpy as np
import pytest
from oracles.differences import STEP, assert_gradient_matches
from oracles.tolerance import SUM, assert_close, assert_same_bits

from cases import gaps_untouched, generator


def unit_of(case):
    return getattr(case, "unit", SUM)


def has_smooth_slope(case):
    """float32 without a kink in the activation, so that gradients are derivatives."""
    return case.dtype == "float32" and case.activation in (
        "identity",
        "sigmoid",
        "tanh",
        "softmax",
        "softplus",
    )


def check_forward(case):
    """Values of the closed form; gaps, input and weights left alone."""
    x, w = case.input(), case.weights()
    before_x, before_w = x.copy(), w.copy()
    y, owner = case.empty_output()
    assert case.layer(weights=w).apply(x, out=y) is y
    assert_close(y, case.expected(x, w), case.dtype, case.forward_terms(x, w), unit_of(case))
    assert gaps_untouched(y, owner)
    assert_same_bits(x, before_x)
    assert_same_bits(w, before_w)


def check_backward(case):
    """All gradients into arrays with gaps, then each alone with the same values."""
    x, w, dy = case.input(), case.weights(), case.output_gradient()
    layer = case.layer(weights=w)
    y, _ = case.empty_output()
    layer.apply(x, out=y)
    (dx, dx_owner), (dw, dw_owner) = case.empty_input(), case.empty_weights()
    grads = layer.apply_backward(x, y, dy, input_gradient=dx, weights_gradient=dw)
    assert grads.input is dx
    assert grads.weights is dw
    expected = case.expected_gradients(x, w, y, dy)
    assert_close(dx, expected.dx, case.dtype, expected.dx_terms, unit_of(case))
    assert_close(dw, expected.dw, case.dtype, expected.dw_terms, unit_of(case))
    assert gaps_untouched(dx, dx_owner)
    assert gaps_untouched(dw, dw_owner)
    if case.bias:
        assert_close(grads.bias, expected.db, case.dtype, expected.db_terms)
    else:
        assert grads.bias is None

    nothing = {"input_gradient": None, "weights_gradient": None, "bias_gradient": None}
    needs_y = None if case.activation == "identity" else y
    alone = layer.apply_backward(None, needs_y, dy, **nothing | {"input_gradient": True})
    assert_same_bits(alone.input, dx)
    assert alone.weights is alone.bias is None
    alone = layer.apply_backward(x, needs_y, dy, **nothing | {"weights_gradient": True})
    assert_same_bits(alone.weights, dw)
    db = np.zeros(case.outputs, dy.dtype)  # may be asked for without a bias
    layer.apply_backward(None, needs_y, dy, **nothing | {"bias_gradient": db})
    assert_close(db, expected.db, case.dtype, expected.db_terms)


def check_accumulation(case):
    """Gradients are added to what the arrays hold."""
    x, w, dy = case.input(), case.weights(), case.output_gradient()
    layer = case.layer(weights=w)
    y, _ = case.empty_output()
    layer.apply(x, out=y)
    (dx, dx_owner), (dw, dw_owner) = case.empty_input(), case.empty_weights()
    db = np.zeros(case.outputs, dy.dtype)
    before = []
    for salt, array in enumerate((dx, dw, db)):
        values = generator(case, 7 + salt).standard_normal(array.shape)
        array[...] = values.astype(array.dtype)
        before.append(array.astype(np.float64))
    layer.apply_backward(
        x, y, dy, input_gradient=dx, weights_gradient=dw, bias_gradient=db, accumulate=True
    )
    expected = case.expected_gradients(x, w, y, dy)
    sums = (expected.dx, expected.dw, expected.db)
    terms = (expected.dx_terms, expected.dw_terms, expected.db_terms)
    for array, old, added, size in zip((dx, dw, db), before, sums, terms, strict=True):
        assert_close(array, old + added, case.dtype, size + np.abs(old), unit_of(case))
    assert gaps_untouched(dx, dx_owner)
    assert gaps_untouched(dw, dw_owner)


def check_differences(case):
    """Gradients of input and weights against differences of our own forward pass."""
    rng = generator(case, 4)
    x, w, spaced_dy = case.input(), case.weights(), case.output_gradient()
    layer, y = case.layer(weights=w), case.empty_output()[0]

    def forward_in(array):
        def forward(values):
            array[...] = values
            layer.apply(x, out=y)
            return y.copy()

        return forward

    def gradient_of(array, name):
        def gradient(values, dy):
            array[...] = values
            spaced_dy[...] = dy
            layer.apply(x, out=y)
            return getattr(layer.apply_backward(x, y, spaced_dy), name)

        return gradient

    # many weights move one output together, too far for a curved activation
    summands = 1 if case.activation == "identity" else np.prod(case.weights_shape[1:])
    for array, name in ((x, "input"), (w, "weights")):
        start, step = np.array(array), np.float32(STEP / summands**0.5)
        assert_gradient_matches(forward_in(array), gradient_of(array, name), start, rng, step)
        array[...] = start


def check_torch(case, judge_name):
    """PyTorch's autograd in float64 as a second opinion."""
    torch_judge = pytest.importorskip("oracles.torch_judge", exc_type=ImportError)
    x, w, dy = case.input(), case.weights(), case.output_gradient()
    layer = case.layer(weights=w)
    y, _ = case.empty_output()
    layer.apply(x, out=y)
    grads = layer.apply_backward(x, y, dy)
    judge = getattr(torch_judge, judge_name)
    expected, dx, dw, db = judge(x, w, dy, case, case.bias_values())
    terms = case.expected_gradients(x, w, y, dy)
    unit = unit_of(case)
    assert_close(y, expected, terms=case.forward_terms(x, w), unit=unit)
    assert_close(grads.input, dx, terms=terms.dx_terms + 1, unit=unit)
    assert_close(grads.weights, dw, terms=terms.dw_terms + 1, unit=unit)
    if case.bias:
        assert_close(grads.bias, db, terms=terms.db_terms + 1)
