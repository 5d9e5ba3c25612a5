"""Arithmetic layers: every function, broadcasting, roles of operands, gradients, refusals."""

import warnings
from dataclasses import replace

import numpy as np
import openbnns
import pytest
from cases import arithmetic as cases
from cases import (
    assert_refused,
    gaps_untouched,
    generator,
    has_bfloat16,
    is_sentinel,
    sentinel_array,
)
from cases.arithmetic import ArithmeticCase
from cases.descriptors import image, matrix, misaligned, vector
from cases.marks import marked, small
from hypothesis import given
from hypothesis import strategies as st
from openbnns import (
    ArrayError,
    ArraySpec,
    BinaryArithmeticLayer,
    LayerApplyError,
    LayerCreationError,
    TernaryArithmeticLayer,
    UnaryArithmeticLayer,
    arithmetic,
    c,
)
from oracles import arithmetic as oracle
from oracles.differences import assert_gradient_matches
from oracles.tolerance import assert_close, assert_same_bits

CASES = [marked(case) for case in cases.CASES]


def targets_of(case, values):
    """Gradient keywords, one value each."""
    return {f"{name}_gradient": value for name, value in zip(case.names, values, strict=True)}


def check_forward(case):
    """Values of the closed form; gaps and inputs left alone."""
    inputs, (y, owner) = case.inputs(), case.empty_output()
    before = [array.copy() for array in inputs]
    assert case.layer().apply(*inputs, out=y) is y
    assert_close(y, case.expected(inputs), case.dtype)
    assert gaps_untouched(y, owner)
    for array, old in zip(inputs, before, strict=True):
        assert_same_bits(array, old)


def check_backward(case):
    """All gradients into arrays with gaps, then each alone with the same values."""
    inputs, dy, layer = case.inputs(), case.output_gradient(), case.layer()
    y, _ = case.empty_output()
    layer.apply(*inputs, out=y)
    arrays = [case.empty_input(k) for k in range(case.arity)]
    constant = [kind == "constant" for kind in case.kinds[: case.arity]]
    wanted = [None if c_ else array for c_, (array, _) in zip(constant, arrays, strict=True)]
    grads = layer.apply_backward(*inputs, y, dy, **targets_of(case, wanted))
    expected = case.expected_gradients(inputs, y, dy)
    for found, (array, owner), pair in zip(grads, arrays, expected, strict=True):
        if pair is None:
            assert found is None
            assert is_sentinel(owner)
            continue
        assert found is array
        assert_close(array, pair[0], case.dtype, pair[1])
        assert gaps_untouched(array, owner)

    made = layer.apply_backward(*inputs, y, dy)
    for k, (found, (array, _)) in enumerate(zip(made, arrays, strict=True)):
        if constant[k]:
            assert found is None
            continue
        assert_same_bits(found, array)
        only = targets_of(case, [True if i == k else None for i in range(case.arity)])
        alone = layer.apply_backward(*inputs, y, dy, **only)
        assert_same_bits(alone[k], array)
        assert all(alone[i] is None for i in range(case.arity) if i != k)


# ---- the case list ----


@pytest.mark.parametrize("case", CASES)
def test_forward_matches_closed_form(case):
    check_forward(case)


@pytest.mark.parametrize("case", CASES)
def test_backward_matches_closed_form(case):
    check_backward(case)


@pytest.mark.parametrize(
    "case", small(cases.CASES, lambda case: "constant" not in case.kinds[: case.arity])
)
def test_backward_accumulates(case):
    inputs, dy, layer = case.inputs(), case.output_gradient(), case.layer()
    y, _ = case.empty_output()
    layer.apply(*inputs, out=y)
    arrays, before = [case.empty_input(k) for k in range(case.arity)], []
    for salt, (array, _) in enumerate(arrays):
        array[...] = generator(case, 7 + salt).standard_normal(array.shape).astype(array.dtype)
        before.append(array.astype(np.float64))
    wanted = targets_of(case, [array for array, _ in arrays])
    layer.apply_backward(*inputs, y, dy, **wanted, accumulate=True)
    expected = case.expected_gradients(inputs, y, dy)
    for (array, owner), old, (added, terms) in zip(arrays, before, expected, strict=True):
        assert_close(array, old + added, case.dtype, terms + np.abs(old))
        assert gaps_untouched(array, owner)


JUMPS = ("ceil", "floor", "round", "sign", "abs", "minimum", "maximum", "select")
JUMPS += ("floor_divide", "trunc_divide", "trunc_remainder")


def is_smooth(case):
    smooth = case.function not in JUMPS and case.activation in ("identity", "tanh")
    return smooth and case.dtype == "float32"


@pytest.mark.parametrize("case", small(cases.CASES, is_smooth))
def test_gradients_match_central_differences(case):
    """Every gradient against differences of our own forward pass."""
    rng, layer = generator(case, 4), case.layer()
    inputs, (y, _), spaced_dy = case.inputs(), case.empty_output(), case.output_gradient()

    def forward_in(array):
        def forward(values):
            array[...] = values
            layer.apply(*inputs, out=y)
            return y.copy()

        return forward

    def gradient_of(array, k):
        def gradient(values, dy):
            array[...] = values
            spaced_dy[...] = dy
            layer.apply(*inputs, out=y)
            return layer.apply_backward(*inputs, y, spaced_dy)[k]

        return gradient

    for k, array in enumerate(inputs):
        if case.kinds[k] == "constant":
            continue
        start = np.array(array)
        assert_gradient_matches(forward_in(array), gradient_of(array, k), start, rng)
        array[...] = start


@pytest.mark.parametrize("case", small(cases.CASES, lambda case: case.dtype == "float32"))
def test_values_and_gradients_match_torch(case):
    """PyTorch's autograd in float64 as a second opinion."""
    torch_judge = pytest.importorskip("oracles.torch_judge", exc_type=ImportError)
    inputs, dy, layer = case.inputs(), case.output_gradient(), case.layer()
    y = case.empty_output()[0]
    layer.apply(*inputs, out=y)
    grads = layer.apply_backward(*inputs, y, dy)
    theirs, gradients = torch_judge.arithmetic(inputs, dy, case)
    assert_close(y, theirs)
    expected = case.expected_gradients(inputs, y, dy)
    for found, gradient, pair in zip(grads, gradients, expected, strict=True):
        if found is not None:
            assert_close(found, gradient, terms=pair[1] + 1)


# ---- numbers from the specification ----


def test_vector_add():
    layer = BinaryArithmeticLayer("add", input_a=(3,), input_b=(3,))
    y = layer(np.float32([[1, 2, 3]]), np.float32([[10, 20, 30]]))
    np.testing.assert_array_equal(y, [[11, 22, 33]])
    y = layer(np.float32([[1, 2, 3], [10, 20, 30]]), np.float32([[0.5] * 3, [-1, -2, -3]]))
    np.testing.assert_array_equal(y, [[1.5, 2.5, 3.5], [9, 18, 27]])
    grads = layer.apply_backward(None, None, None, np.float32([[1, 2, 3]]))
    np.testing.assert_array_equal(grads.a, [[1, 2, 3]])
    np.testing.assert_array_equal(grads.b, [[1, 2, 3]])


def test_vector_square():
    layer = UnaryArithmeticLayer("square", input=(4,))
    np.testing.assert_array_equal(layer(np.float32([[-3, -1, 2, 4]])), [[9, 1, 4, 16]])


def test_vector_broadcast():
    layer = BinaryArithmeticLayer("add", input_a=(1, 3, 4), input_b=(2, 3, 1))
    assert layer.output_spec == ArraySpec((2, 3, 4))


# ---- functions ----


def test_every_function_of_the_c_interface_has_a_name():
    for arity, functions in arithmetic.FUNCTIONS.items():
        judges = {1: oracle.UNARY, 2: oracle.BINARY, 3: oracle.TERNARY}[arity]
        assert functions == {name: judge.number for name, judge in judges.items()}
    numbers = [number for group in arithmetic.FUNCTIONS.values() for number in group.values()]
    assert sorted(numbers) == list(range(41))
    assert c.BNNSArithmeticErf == 40


def unary(name, values):
    values = np.float32(values)
    return UnaryArithmeticLayer(name, input=(values.size,))(values[None])[0]


def binary(name, a, b):
    a, b = np.float32(a), np.float32(b)
    return BinaryArithmeticLayer(name, input_a=(a.size,), input_b=(b.size,))(a[None], b[None])[0]


def test_rounding_and_signs():
    np.testing.assert_array_equal(unary("round", [0.5, 1.5, 2.5, -0.5, -1.5]), [0, 2, 2, 0, -2])
    np.testing.assert_array_equal(unary("ceil", [0.25, -0.25, 3]), [1, 0, 3])
    np.testing.assert_array_equal(unary("floor", [0.25, -0.25, 3]), [0, -1, 3])
    np.testing.assert_array_equal(unary("sign", [-2, 0, 3, np.nan]), [-1, 0, 1, np.nan])
    np.testing.assert_array_equal(unary("abs", [-2, 0, np.inf]), [2, 0, np.inf])
    np.testing.assert_array_equal(unary("negative", [-2, 0, np.inf]), [2, 0, -np.inf])


def test_no_nan_functions():
    a, b = [np.nan, np.inf, 6, 0], [0, 0, 2, 3]
    np.testing.assert_array_equal(binary("multiply_no_nan", a, b), [0, 0, 12, 0])
    np.testing.assert_array_equal(binary("divide_no_nan", a, b), [0, 0, 3, 0])
    layer = BinaryArithmeticLayer("divide_no_nan", input_a=(4,), input_b=(4,))
    a, b = np.float32([a]), np.float32([b])
    grads = layer.apply_backward(a, b, None, np.ones((1, 4), np.float32))
    np.testing.assert_allclose(grads.a, [[0, 0, 0.5, 1 / 3]], rtol=1e-6)
    np.testing.assert_allclose(grads.b, [[0, 0, -1.5, 0]], rtol=1e-6)
    layer = BinaryArithmeticLayer("multiply_no_nan", input_a=(4,), input_b=(4,))
    grads = layer.apply_backward(a, b, None, np.float32([[0, 0, 1, 1]]))
    np.testing.assert_array_equal(grads.b, [[0, 0, 6, 0]])


def test_minimum_and_maximum_of_ties_and_nan():
    a, b = [1, 2, np.nan, 3], [2, 2, 1, np.nan]
    np.testing.assert_array_equal(binary("maximum", a, b), [2, 2, np.nan, np.nan])
    np.testing.assert_array_equal(binary("minimum", a, b), [1, 2, np.nan, np.nan])
    layer = BinaryArithmeticLayer("maximum", input_a=(2,), input_b=(2,))
    a, b = np.float32([[1, 2]]), np.float32([[2, 2]])
    grads = layer.apply_backward(a, b, None, np.float32([[8, 8]]))
    np.testing.assert_array_equal(grads.a, [[0, 4]])
    np.testing.assert_array_equal(grads.b, [[8, 4]])


def test_divisions_of_whole_numbers():
    a, b = [7, -7, 7, -7], [2, 2, -2, -2]
    np.testing.assert_array_equal(binary("floor_divide", a, b), [3, -4, -4, 3])
    np.testing.assert_array_equal(binary("trunc_divide", a, b), [3, -3, -3, 3])
    np.testing.assert_array_equal(binary("trunc_remainder", a, b), [1, -1, 1, -1])


def test_powers():
    np.testing.assert_array_equal(binary("pow", [0, 0, 2, -2], [0, 2, -1, 3]), [1, 0, 0.5, -8])
    layer = BinaryArithmeticLayer("pow", input_a=(3,), input_b=(3,))
    a, b = np.float32([[0, 0, 3]]), np.float32([[2, 0, 0]])
    grads = layer.apply_backward(a, b, None, np.ones((1, 3), np.float32))
    np.testing.assert_array_equal(grads.a, [[0, 0, 0]])
    np.testing.assert_allclose(grads.b, [[0, 0, np.log(3)]], rtol=1e-6)


def test_select_tests_for_zero():
    layer = TernaryArithmeticLayer("select", input_a=(4,), input_b=(4,), input_c=(1,))
    a, b = np.float32([[0, -1, np.nan, 2]]), np.float32([[1, 2, 3, 4]])
    np.testing.assert_array_equal(layer(a, b, np.float32([[9]])), [[9, 2, 3, 4]])


@pytest.mark.parametrize("name", ["sqrt", "log", "acosh", "asin", "log2"])
def test_outside_of_their_range_functions_are_nan(name):
    assert np.isnan(unary(name, [-2.0])).all()


# ---- roles ----


def test_parameters_and_constants_have_no_batch_axis():
    layer = TernaryArithmeticLayer(
        input_a=(3,), input_b=(3,), input_c=(1,), b_kind="parameter", c_kind="constant"
    )
    a, b, offset = np.ones((5, 3), np.float32), np.float32([1, 2, 3]), np.float32([10])
    np.testing.assert_array_equal(layer(a, b, offset), [[11, 12, 13]] * 5)
    grads = layer.apply_backward(a, b, None, None, np.ones((5, 3), np.float32))
    assert grads.a.shape == (5, 3)
    np.testing.assert_array_equal(grads.b, [5, 5, 5])
    assert grads.c is None


def test_examples_of_parameters_are_the_arrays_themselves():
    a, b = np.zeros((7, 2, 3), np.float16), np.zeros((1, 3), np.float16)
    layer = BinaryArithmeticLayer("add", input_a=a, input_b=b, b_kind="parameter")
    assert layer.input_specs == (ArraySpec((2, 3), "float16"), ArraySpec((1, 3), "float16"))
    assert layer.input_spec == layer.output_spec == ArraySpec((2, 3), "float16")
    assert layer(a, b).shape == (7, 2, 3)


def test_output_without_a_batch():
    layer = BinaryArithmeticLayer(
        "multiply",
        input_a=(2,),
        input_b=(2,),
        a_kind="parameter",
        b_kind="constant",
        output_kind="parameter",
    )
    a, b = np.float32([2, 3]), np.float32([5, 7])
    np.testing.assert_array_equal(layer(a, b), [10, 21])
    grads = layer.apply_backward(a, b, None, np.float32([1, 10]))
    np.testing.assert_array_equal(grads.a, [5, 70])
    assert grads.b is None


def test_samples_out_of_parameters():
    """The output has a batch, no input has: one sample, or as many as out has."""
    layer = UnaryArithmeticLayer("square", input=(2,), input_kind="parameter")
    a = np.float32([2, 3])
    np.testing.assert_array_equal(layer(a), [[4, 9]])
    np.testing.assert_array_equal(layer(a, out=np.zeros((3, 2), np.float32)), [[4, 9]] * 3)
    gradient = layer.apply_backward(a, None, np.ones((3, 2), np.float32)).input
    np.testing.assert_array_equal(gradient, [12, 18])


def test_gradient_of_a_constant_is_refused():
    layer = BinaryArithmeticLayer("add", input_a=(2,), input_b=(2,), b_kind="constant")
    target, _ = sentinel_array((2,), "float32")
    with pytest.raises(LayerApplyError, match="b_gradient: expected None, since a constant has"):
        layer.apply_backward(None, None, None, np.ones((1, 2), np.float32), b_gradient=target)
    assert is_sentinel(target)


# ---- one array in several places ----


def test_shared_inputs_share_a_gradient():
    layer = BinaryArithmeticLayer("multiply", input_a=(3,), input_b=(3,))
    x, dy = np.float32([[1, -2, 3]]), np.float32([[1, 10, 100]])
    np.testing.assert_array_equal(layer(x, x), [[1, 4, 9]])
    dx = np.full((1, 3), 5, np.float32)
    grads = layer.apply_backward(x, x, None, dy, a_gradient=dx, b_gradient=dx)
    assert grads.a is dx
    assert grads.b is dx
    np.testing.assert_array_equal(dx, [[2, -40, 600]])
    layer.apply_backward(x, x, None, dy, a_gradient=dx, b_gradient=dx, accumulate=True)
    np.testing.assert_array_equal(dx, [[4, -80, 1200]])
    apart = layer.apply_backward(x, x, None, dy)
    np.testing.assert_array_equal(apart.a, apart.b)


def test_three_shared_inputs():
    layer = TernaryArithmeticLayer(input_a=(2,), input_b=(2,), input_c=(2,))
    x, dx = np.float32([[2, 3]]), np.zeros((1, 2), np.float32)
    np.testing.assert_array_equal(layer(x, x, x), [[6, 12]])
    targets = {f"{name}_gradient": dx for name in "abc"}
    layer.apply_backward(x, x, None, None, np.ones((1, 2), np.float32), **targets)
    np.testing.assert_array_equal(dx, [[5, 7]])  # 2x + 1


@pytest.mark.parametrize("name", [*oracle.UNARY, *oracle.BINARY])
def test_in_place(name):
    case = next(case for case in cases.EVERY if case.function == name)
    inputs, layer = case.inputs(), case.layer()
    expected = layer(*inputs)
    assert layer(*inputs, out=inputs[-1]) is inputs[-1]
    assert_same_bits(inputs[-1], expected)


@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "floor", "exp", "tanh"])
def test_gradient_in_the_place_of_the_output_gradient(name):
    case = next(case for case in cases.EVERY if case.function == name)
    inputs, dy, layer = case.inputs(), case.output_gradient(), case.layer()
    y = layer(*inputs)
    expected = layer.apply_backward(*inputs, y, dy)
    first = f"{case.names[0]}_gradient"
    found = layer.apply_backward(*inputs, y, dy, **{first: dy})
    assert found[0] is dy
    assert_same_bits(dy, expected[0])
    assert_same_bits(found[-1], expected[-1])


@pytest.mark.parametrize("name", ["sqrt", "rsqrt", "tanh", "exp", "exp2"])
def test_gradients_from_the_output_alone(name):
    case = next(case for case in cases.EVERY if case.function == name)
    (x,), dy, layer = case.inputs(), case.output_gradient(), case.layer()
    y = layer(x)
    ((gradient, terms),) = case.expected_gradients([x], y, dy)
    found = layer.apply_backward(None, y, dy).input
    assert_close(found, gradient, terms=terms + np.abs(dy))
    with pytest.raises(LayerApplyError, match="input: expected data"):
        layer.apply_backward(None, None, dy)


@pytest.mark.parametrize("name", ["ceil", "floor", "round", "sign", "negative"])
def test_gradients_without_anything(name):
    layer = UnaryArithmeticLayer(name, input=(2,))
    dy = np.float32([[1, -2]])
    expected = -dy if name == "negative" else np.zeros_like(dy)
    np.testing.assert_array_equal(layer.apply_backward(None, None, dy).input, expected)


def test_inputs_that_no_wanted_gradient_reads_may_be_missing():
    layer = BinaryArithmeticLayer("multiply", input_a=(2,), input_b=(2,))
    a, dy = np.float32([[3, 4]]), np.ones((1, 2), np.float32)
    grads = layer.apply_backward(a, None, None, dy, a_gradient=None)
    assert grads.a is None
    np.testing.assert_array_equal(grads.b, a)
    with pytest.raises(LayerApplyError, match="input_b: expected data"):
        layer.apply_backward(a, None, None, dy)
    assert layer.apply_backward(None, None, None, dy, a_gradient=None, b_gradient=False) == (
        None,
        None,
    )


def test_overlaps_are_refused():
    layer = BinaryArithmeticLayer("multiply", input_a=(4,), input_b=(4,))
    memory = np.arange(8, dtype=np.float32)
    a, dy = np.ones((1, 4), np.float32), np.ones((1, 4), np.float32)
    with pytest.raises(LayerApplyError, match="output: expected memory apart from input_a"):
        layer(memory[None, :4], a, out=memory[None, 2:6])
    with pytest.raises(LayerApplyError, match="input_gradient: expected memory apart"):
        layer.apply_backward(
            a, a, None, dy, a_gradient=memory[None, :4], b_gradient=memory[None, 2:6]
        )
    np.testing.assert_array_equal(memory, np.arange(8))


# ---- words ----


def test_layers_describe_themselves():
    one = UnaryArithmeticLayer("exp", input=(2,))
    assert repr(one) == "UnaryArithmeticLayer('exp', input=ArraySpec((2,), 'float32'))"
    two = BinaryArithmeticLayer("add", input_a=(2,), input_b=(1,))
    assert two.function == "add"
    assert isinstance(two, openbnns.BinaryLayer)
    three = TernaryArithmeticLayer(input_a=(2,), input_b=(1,), input_c=(1,))
    assert three.function == "multiply_add"
    for layer in (two, three):
        assert repr(layer).startswith(f"{type(layer).__name__}('{layer.function}', input_a=Array")
        assert layer.input_spec is layer.input_specs[0]


def test_column_major_samples():
    spec = ArraySpec((3, 4), layout="column_major")
    layer = BinaryArithmeticLayer("add", input_a=spec, input_b=spec)
    a = np.zeros((2, 4, 3), np.float32).transpose(0, 2, 1)
    a[...] = np.arange(24).reshape(2, 3, 4)
    y = layer(a, a)
    assert y.strides[1] < y.strides[2]
    np.testing.assert_array_equal(y, 2 * a)


REFUSALS = [
    (UnaryArithmeticLayer, "cube", {"input": (2,)}, r"function: expected one of .* got 'cube'"),
    (UnaryArithmeticLayer, "add", {"input": (2,)}, r"function: expected one of .* got 'add'"),
    (
        UnaryArithmeticLayer,
        "exp",
        {"input": (2,), "input_kind": "weights"},
        "input_kind: expected constant, sample or parameter; got 'weights'",
    ),
    (
        UnaryArithmeticLayer,
        "exp",
        {"input": (2,), "output_kind": "weights"},
        "output_kind: expected constant, sample or parameter",
    ),
    (
        UnaryArithmeticLayer,
        "exp",
        {"input": (2,), "output": (2,), "output_kind": "weights"},
        "output_kind: expected constant, sample or parameter",
    ),
    (
        UnaryArithmeticLayer,
        "exp",
        {"input": (2,), "output_kind": "parameter"},
        "output: expected the descriptor type sample",
    ),
    (UnaryArithmeticLayer, "exp", {"input": (2,), "output": (3,)}, "output: expected the shape"),
    (
        UnaryArithmeticLayer,
        "exp",
        {"input": ArraySpec((2,), "int8")},
        "input: expected a floating-point type; got int8",
    ),
    (UnaryArithmeticLayer, "exp", {"input": (2,), "activation": "none"}, "activation: expected"),
    (
        BinaryArithmeticLayer,
        "add",
        {"input_a": (2, 3), "input_b": (3,)},
        r"input_a: expected as many axes as the others and extents equal or 1; got \(2, 3\) and",
    ),
    (
        BinaryArithmeticLayer,
        "add",
        {"input_a": (2, 3), "input_b": (2, 4)},
        "input_a: expected as many axes as the others and extents equal or 1",
    ),
    (
        BinaryArithmeticLayer,
        "add",
        {"input_a": (2,), "input_b": ArraySpec((2,), "float16")},
        "input_b: expected .* as the output; got",
    ),
    (
        BinaryArithmeticLayer,
        "add",
        {"input_a": (2,), "input_b": (2,), "b_kind": None},
        "b_kind: expected constant",
    ),
    (
        BinaryArithmeticLayer,
        "add",
        {"input_a": (1,), "input_b": (1,), "output": (2,)},
        "output: expected the shape that",
    ),
    (
        TernaryArithmeticLayer,
        "fma",
        {"input_a": (2,), "input_b": (2,), "input_c": (2,)},
        "function: expected one of multiply_add, select; got 'fma'",
    ),
]


@pytest.mark.parametrize(("make", "function", "options", "sentence"), REFUSALS)
def test_impossible_layers_are_refused_with_a_sentence(make, function, options, sentence):
    with pytest.raises(LayerCreationError, match=rf"^\[{make.__name__}\] {sentence}"):
        make(function, **options)


def test_wrong_arrays_are_refused_with_a_sentence():
    layer = BinaryArithmeticLayer("add", input_a=(2, 3), input_b=(1, 3), b_kind="parameter")
    a, b = np.zeros((4, 2, 3), np.float32), np.zeros((1, 3), np.float32)
    for call, sentence in [
        (lambda: layer(a[0], b), r"a: expected \(N, 2, 3\); got \(2, 3\)"),
        (lambda: layer(a, a), r"b: expected \(1, 3\); got \(4, 2, 3\)"),
        (lambda: layer(a, b.astype("f8")), "b: expected float32; got float64"),
        (lambda: layer(a, b, out=a[:2]), r"out: expected \(4, 2, 3\); got \(2, 2, 3\)"),
        (lambda: layer.apply_backward(a, b, None, a[:3]), "grad_output: expected"),
        (
            lambda: layer.apply_backward(a, b, None, a, b_gradient=a),
            r"b_gradient: expected \(1, 3\); got \(4, 2, 3\)",
        ),
        (
            lambda: layer.apply_backward(a, b, None, a, accumulate={"a"}),
            "accumulate: expected an array to add to as a_gradient; got True",
        ),
        (
            lambda: layer.apply_backward(a, b, None, a, accumulate={"c"}),
            "accumulate: expected names out of a, b; got 'c'",
        ),
    ]:
        with pytest.raises(ArrayError, match=rf"^\[BinaryArithmeticLayer\] {sentence}"):
            call()
    two = BinaryArithmeticLayer("add", input_a=(3,), input_b=(3,))
    with pytest.raises(ArrayError, match=r"b: expected \(2, 3\); got \(3, 3\)"):
        two(np.zeros((2, 3), np.float32), np.zeros((3, 3), np.float32))
    layer.close()
    with pytest.raises(LayerApplyError, match="got a closed one"):
        layer(a, b)
    with pytest.raises(LayerApplyError, match="got a closed one"):
        layer.apply_backward(a, b, None, a)


def test_activation_needs_its_output():
    layer = UnaryArithmeticLayer("exp", input=(2,), activation="tanh")
    x = np.ones((1, 2), np.float32)
    with pytest.raises(LayerApplyError, match="output: expected the forward output"):
        layer.apply_backward(x, None, x)


def test_softmax_over_rows():
    layer = BinaryArithmeticLayer("add", input_a=(3, 4), input_b=(3, 4), activation="softmax")
    a = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    y = layer(a, a)
    np.testing.assert_allclose(y.sum(axis=-1), 1, rtol=1e-6)
    e = np.exp(2 * a.astype(float))
    np.testing.assert_allclose(y, e / e.sum(axis=-1, keepdims=True), rtol=1e-5)


def test_batch_of_nothing():
    layer = BinaryArithmeticLayer("add", input_a=(3,), input_b=(3,), b_kind="parameter")
    y = layer(np.zeros((0, 3), np.float32), np.zeros(3, np.float32))
    assert y.shape == (0, 3)


# ---- any shape ----


@st.composite
def arithmetic_cases(draw):
    """Small layers of all functions with random broadcasting, roles, gaps and types."""
    function = draw(st.sampled_from(list(oracle.FUNCTIONS)))
    arity = oracle.FUNCTIONS[function].inputs
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=5)))
    shape = (*shape[:-1], draw(st.integers(1, 24)))

    def part():
        return tuple(extent if draw(st.integers(0, 3)) else 1 for extent in shape)

    shapes = tuple(part() for _ in range(arity))
    kind = st.sampled_from(["sample", "sample", "parameter", "constant"])
    types = ["float32", "float32", "float16"] + ["bfloat16"] * has_bfloat16()
    return ArithmeticCase(
        function,
        shapes,
        kinds=tuple(draw(kind) for _ in range(arity)),
        batch=draw(st.integers(1, 4)),
        dtype=draw(st.sampled_from(types)),
        activation=draw(st.sampled_from(["identity", "identity", "rectified_linear"])),
        gap=draw(st.integers(0, 2)),
        step=draw(st.integers(1, 2)),
    )


@given(arithmetic_cases())
def test_any_layer_matches_closed_form(case):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the judge divides where halves meet 0
        if "sample" in case.kinds:  # otherwise nothing tells the batch
            check_forward(case)
            check_backward(case)


# ---- the C interface ----

X = np.float32([1, 2, 3])


def add_parameters(first, second, output, function=0, **fields):
    pair = c.BNNSArithmeticBinary(
        in1=first,
        in1_type=c.BNNSSample,
        in2=second,
        in2_type=c.BNNSSample,
        out=output,
        out_type=c.BNNSSample,
    )
    return c.BNNSLayerParametersArithmetic(
        arithmetic_function=function, arithmetic_function_fields=pair, **fields
    )


@pytest.fixture
def add():
    parameters = add_parameters(vector(3), vector(3), vector(3))
    f = c.BNNSFilterCreateLayerArithmetic(parameters, None)
    assert f, c.last_error()
    yield f
    c.BNNSFilterDestroy(f)


def test_c_forward_and_backward(add):
    y, da, db = (np.zeros(3, np.float32) for _ in range(3))
    assert c.BNNSArithmeticFilterApplyBatch(add, 1, 2, [X, X], [0, 0], y, 0) == 0, c.last_error()
    np.testing.assert_array_equal(y, 2 * X)
    deltas = [vector(3, data=da), vector(3, data=db)]
    status = c.BNNSArithmeticFilterApplyBackwardBatch(
        add, 1, 2, None, None, deltas, [0, 0], None, 0, vector(3, data=X), 0
    )
    assert status == 0, c.last_error()
    np.testing.assert_array_equal(da, X)
    np.testing.assert_array_equal(db, X)


def test_c_calls_that_do_not_fit_are_refused(add):
    y, _ = sentinel_array((3,), "float32")
    apply = c.BNNSArithmeticFilterApplyBatch
    assert_refused(apply(None, 1, 2, [X, X], [0, 0], y, 0), y)
    assert_refused(apply(add, 1, 1, [X], [0], y, 0), y)
    assert_refused(apply(add, 1, 3, [X, X, X], [0, 0, 0], y, 0), y)
    assert_refused(apply(add, 1, 2, [X, None], [0, 0], y, 0), y)
    assert_refused(apply(add, 1, 2, None, None, y, 0), y)
    assert_refused(apply(add, 1, 2, [X, misaligned((3,), np.float32)], [0, 0], y, 0), y)
    assert_refused(apply(add, 1, 2, [X, X], [0, 0], None, 0))
    for batch, stride in ((2**63, 0), (2**60, 0), (2, 2**63), (2, 2)):
        assert_refused(apply(add, batch, 2, [X, X], [stride, stride], y, stride), y)
    assert_refused(c.BNNSFilterApply(add, X, y), y)
    assert apply(add, 0, 2, [X, X], [0, 0], y, 0) == 0
    assert is_sentinel(y)


CORRUPTIONS = {
    "unknown function": {"function": 41},
    "another layout": {"second": matrix((3, 1))},
    "another size": {"second": vector(2)},
    "another output": {"output": vector(4)},
    "another type": {"second": vector(3, "float16")},
    "integers": {"first": vector(3, "int32"), "second": vector(3, "int32")},
    "no values": {"first": vector(0)},
    "huge": {"first": image((2**40, 2**40, 1)), "second": image((1, 1, 1))},
    "unknown activation": {"activation": c.BNNSActivation(function=99)},
}


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_c_corrupted_parameters_are_refused(kind):
    good = {"first": vector(3), "second": vector(3), "output": vector(3)}
    c.obn_clear_error()
    parameters = add_parameters(**good | CORRUPTIONS[kind])
    assert c.BNNSFilterCreateLayerArithmetic(parameters, None) is None
    assert c.last_error()


def test_c_random_parameter_blocks_never_crash():
    rng = np.random.default_rng(12)
    size = c.ctypes.sizeof(c.BNNSArithmeticTernary)
    for number in range(1000):
        fields = c.BNNSArithmeticTernary.from_buffer_copy(rng.bytes(size))
        parameters = c.BNNSLayerParametersArithmetic(
            arithmetic_function=number % 41, arithmetic_function_fields=fields
        )
        c.obn_clear_error()
        assert c.BNNSFilterCreateLayerArithmetic(parameters, None) is None
        assert c.last_error()
    assert c.BNNSFilterCreateLayerArithmetic(None, None) is None
    assert c.BNNSFilterCreateLayerArithmetic(c.BNNSLayerParametersArithmetic(), None) is None


def test_half_types_round_once():
    case = replace(cases.TYPES[0], dtype="float16")
    inputs, dy, layer = case.inputs(), case.output_gradient(), case.layer()
    wide = replace(case, dtype="float32").layer()
    exact = wide(*(array.astype(np.float32) for array in inputs))
    assert_same_bits(layer(*inputs), exact.astype(np.float16))
    grads = wide.apply_backward(*(a.astype(np.float32) for a in inputs), exact, dy.astype("f4"))
    ours = layer.apply_backward(*inputs, None, dy)
    assert_same_bits(ours.b, grads.b.astype(np.float16))
