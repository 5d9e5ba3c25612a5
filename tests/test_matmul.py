"""Matrix products, contractions, Gram matrices: values, gradients, types, refusals."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from cases import dtype_of, gaps_untouched, generator, has_bfloat16, is_sentinel
from cases import matmul as cases
from cases.descriptors import image, matrix
from cases.marks import marked
from cases.matmul import A, B
from hypothesis import given
from hypothesis import strategies as st
from openbnns import (
    ArrayError,
    ArraySpec,
    BroadcastMatrixMultiplyLayer,
    CopyWarning,
    DTypeError,
    GramLayer,
    LayerApplyError,
    LayerCreationError,
    TensorContractionLayer,
    c,
    matmul,
    matmul_workspace_size,
)
from oracles.differences import assert_gradient_matches
from oracles.tolerance import assert_close, assert_same_bits

CASES = [marked(case) for case in cases.CASES]
FLOATS = [marked(case) for case in cases.CASES if case.is_float]
NOT_LARGE = [marked(case) for case in cases.CASES if case.is_float and "large" not in case.tags]
SMALL = [
    marked(case)
    for case in cases.CASES
    if case.is_float and not case.tags & {"split", "large"} and case.dtypes == ("float32",) * 3
]
PACKED = [
    marked(case)
    for case in cases.PRODUCTS + cases.WEIGHTS + cases.SQUARES + cases.SUMS + cases.GRAMS
    if case.gap == 0 and case.step == 1
]


# ---- the case list ----


@pytest.mark.parametrize("case", CASES)
def test_forward_matches_closed_form(case):
    layer, inputs, (y, owner) = case.layer(), case.inputs(), case.output_before()
    before = [None if array is None else array.copy() for array in inputs]
    assert case.apply(layer, inputs, y) is y
    expected, terms = case.expected()
    assert_close(y, expected, case.dtypes[2], terms)
    assert owner is None or gaps_untouched(y, owner)
    for array, old in zip(inputs, before, strict=True):
        assert array is old is None or array.tobytes() == old.tobytes()


@pytest.mark.parametrize("case", FLOATS)
def test_backward_matches_closed_form(case):
    """All gradients into arrays with gaps, then each alone with the same bits."""
    layer, inputs, dy = case.layer(), case.inputs(), case.output_gradient()
    arrays = [case.empty_gradient(k) if k in case.gradients else (None, None) for k in (A, B)]
    grads = case.backward(layer, inputs, dy, [array for array, _ in arrays])
    for k in case.gradients:
        array, owner = arrays[k]
        assert grads[k] is array
        expected, terms = case.expected_gradient(k)
        assert_close(array, expected, case.dtypes[k], terms)
        assert owner is None or gaps_untouched(array, owner)
    made = case.backward(layer, inputs, dy)
    for k in case.gradients:
        assert_same_bits(np.ascontiguousarray(made[k]), np.ascontiguousarray(arrays[k][0]))
        alone = case.backward(layer, inputs, dy, [True if t == k else None for t in (A, B)])
        assert_same_bits(np.ascontiguousarray(alone[k]), np.ascontiguousarray(arrays[k][0]))
        assert alone[1 - k] is None


@pytest.mark.parametrize("case", NOT_LARGE)
def test_backward_accumulates(case):
    layer, inputs, dy = case.layer(), case.inputs(), case.output_gradient()
    targets, before = [None, None], [None, None]
    for k in case.gradients:
        targets[k], _ = case.empty_gradient(k)
        values = generator(case, 7 + k).standard_normal(targets[k].shape)
        targets[k][...] = values.astype(targets[k].dtype)
        before[k] = targets[k].astype(np.float64)
    case.backward(layer, inputs, dy, targets, accumulate=True)
    for k in case.gradients:
        expected, terms = case.expected_gradient(k)
        assert_close(targets[k], before[k] + expected, case.dtypes[k], terms + np.abs(before[k]))


@pytest.mark.parametrize("case", SMALL)
def test_gradients_match_central_differences(case):
    """Products are bilinear: differences of our own forward pass are exact but for rounding."""
    layer, inputs = case.layer(), case.inputs()
    data = B if inputs[A] is None else A

    def forward(x):
        inputs[data] = x
        return case.apply(layer, inputs, case.output_before()[0]).copy()

    def gradient(x, dy):
        inputs[data] = x
        return case.backward(layer, inputs, dy)[data]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CopyWarning)  # differences have no gaps
        assert_gradient_matches(forward, gradient, inputs[data], generator(case, 4))


@pytest.mark.parametrize("case", PACKED)
def test_layer_finds_its_output_shape(case):
    specs = {}
    for k, name in enumerate(("input_a", "input_b")):
        if k == A or case.b is not None:
            specs[name] = case.operand(k) if k == case.weights_operand else case.shape(k)
    if case.gram:
        layer = GramLayer(input=case.a)
    elif case.equation is not None:
        layer = TensorContractionLayer(case.equation, **specs)
    else:
        layer = BroadcastMatrixMultiplyLayer(
            **specs,
            transpose_a=case.transpose[A],
            transpose_b=case.transpose[B],
            a_is_weights=case.weights == A,
            b_is_weights=case.weights == B,
            quadratic=case.b is None,
        )
    assert (case.batch, *layer.output_spec.shape) == case.full_output
    if not case.adds:
        y = case.apply(layer, case.inputs())
        assert_close(y, case.expected()[0] / case.alpha, terms=case.expected()[1])


# ---- PyTorch ----


def test_torch_agrees():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    a = rng.standard_normal((2, 3, 17, 23), dtype=np.float32)
    b = rng.standard_normal((2, 1, 23, 19), dtype=np.float32)
    dy = rng.standard_normal((2, 3, 17, 19), dtype=np.float32)
    layer = BroadcastMatrixMultiplyLayer(input_a=a, input_b=b)
    ta, tb = (torch.from_numpy(x.copy()).requires_grad_() for x in (a, b))
    y = torch.matmul(ta, tb)
    y.backward(torch.from_numpy(dy))
    assert_close(layer(a, b), y.detach().numpy(), terms=np.full(y.shape, 23.0))
    grads = layer.apply_backward(a, b, None, dy)
    assert_close(grads.a, ta.grad.numpy(), terms=np.full(a.shape, 19.0))
    assert_close(grads.b, tb.grad.numpy(), terms=np.full(b.shape, 60.0))


# ---- direct products ----


@st.composite
def products(draw):
    extents = st.integers(1, 9)
    m, k, n = (draw(extents) for _ in range(3))
    lead = draw(st.lists(st.integers(1, 4), max_size=3))
    a_lead = [draw(st.sampled_from([1, extent])) for extent in lead]
    b_lead = [draw(st.sampled_from([1, extent])) for extent in lead[draw(st.integers(0, 3)) :]]
    return (*a_lead, m, k), (*b_lead, k, n), draw(st.booleans()), draw(st.booleans())


@given(products())
def test_matmul_is_numpys(product):
    a_shape, b_shape, turn_a, turn_b = product
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal(a_shape, np.float32), rng.standard_normal(b_shape, np.float32)
    expected = np.matmul(a.astype(np.float64), b.astype(np.float64))
    terms = np.matmul(np.abs(a), np.abs(b))
    stored_a = a.swapaxes(-1, -2).copy() if turn_a else a
    stored_b = b.swapaxes(-1, -2).copy() if turn_b else b
    y = matmul(stored_a, stored_b, transpose_a=turn_a, transpose_b=turn_b)
    assert_close(y, expected, terms=terms)
    assert_close(matmul(a, b, alpha=-0.5), -0.5 * expected, terms=terms)
    # Views with their last axes exchanged are read in place, or copied where that cannot be.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CopyWarning)
        view_a = stored_a.swapaxes(-1, -2) if turn_a else stored_a
        assert_close(matmul(view_a, b), expected, terms=terms)


def test_matmul_reads_transposed_views_in_place():
    a, b = np.ones((4, 3, 2), np.float32), np.ones((3, 5), np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error", CopyWarning)
        assert_same_bits(matmul(a.swapaxes(1, 2), b), np.full((4, 2, 5), 3, np.float32))
        assert_same_bits(matmul(b.T, b), np.full((5, 5), 3, np.float32))


@pytest.mark.skipif(not has_bfloat16(), reason="needs ml_dtypes")
def test_matmul_of_bfloat16():
    a = np.float32([[1, 2], [3, 4]]).astype(dtype_of("bfloat16"))
    y = matmul(a, a)
    assert y.dtype == a.dtype
    np.testing.assert_array_equal(y.astype(np.float32), [[7, 10], [15, 22]])
    wide = matmul(a, np.eye(2, dtype=np.float32))
    np.testing.assert_array_equal(wide, np.float32([[1, 2], [3, 4]]))


def test_matmul_writes_where_it_is_told():
    a, b = np.float32([[1, 2], [3, 4]]), np.float32([[5, 6], [7, 8]])
    room = np.zeros((2, 5), np.float32)
    out = room[:, :4:2]
    assert matmul(a, b, out=out) is out
    np.testing.assert_array_equal(room, [[19, 0, 22, 0, 0], [43, 0, 50, 0, 0]])
    with pytest.raises(LayerApplyError, match=r"out: expected memory apart from a"):
        matmul(a, b, out=a)


def test_matmul_uses_a_workspace():
    rng = np.random.default_rng(2)
    a = rng.standard_normal((3, 60, 70)).astype(np.float16)
    b = rng.standard_normal((70, 80)).astype(np.float16)
    size = matmul_workspace_size(a, b)
    assert size > 0
    spec = ArraySpec((3, 60, 70), "float16")
    assert size == matmul_workspace_size(spec, ArraySpec((70, 80), "float16"))
    room = np.full(size + 64, 0xA5, np.uint8)
    assert_same_bits(matmul(a, b, workspace=room[:size]), matmul(a, b))
    assert is_sentinel(room[size:])
    with pytest.raises(LayerApplyError, match=rf"workspace: expected {size} bytes; got {size - 1}"):
        matmul(a, b, workspace=room[: size - 1])


def test_matmul_refuses_what_does_not_multiply():
    a = np.ones((2, 3), np.float32)
    with pytest.raises(ArrayError, match=r"b: expected 3 rows for the columns of a; got 2"):
        matmul(a, a)
    with pytest.raises(LayerApplyError, match=r"b: expected extent 3 along k"):
        matmul(a, a, out=np.empty((2, 3), np.float32))
    with pytest.raises(ArrayError, match=r"a: expected at least two axes; got \(3,\)"):
        matmul(a[0], a.T)
    with pytest.raises(ArrayError, match=r"before the last two"):
        matmul(np.ones((2, 1, 1), np.float32), np.ones((3, 1, 1), np.float32))
    with pytest.raises(LayerApplyError, match=r"do not meet"):
        matmul_workspace_size(ArraySpec((2, 2), "float16"), ArraySpec((2, 2), "bfloat16"))
    with pytest.raises(LayerApplyError, match=r"out: expected float32, float16 or bfloat16"):
        matmul(a, a.T, out=np.empty((2, 2), np.int8))
    with pytest.raises(LayerApplyError, match=r"a: expected float32"):
        matmul(a.astype(np.int64), a.T)
    with pytest.raises(DTypeError, match=r"\[matmul\] b: expected float16.*; got float64"):
        matmul(a, a.T.astype(np.float64))


# ---- layers ----


def test_weights_are_shared_or_copied():
    w = np.eye(2, dtype=np.float32)
    a = np.ones((1, 1, 2), np.float32)
    shared = BroadcastMatrixMultiplyLayer(input_a=(1, 2), input_b=w, b_is_weights=True)
    copied = BroadcastMatrixMultiplyLayer(
        input_a=(1, 2), input_b=w, b_is_weights=True, copy_parameters=True
    )
    assert shared.weights is w
    w *= 3
    np.testing.assert_array_equal(shared(a), [[[3, 3]]])
    np.testing.assert_array_equal(copied(a), [[[1, 1]]])


def test_weights_may_have_their_columns_side_by_side():
    rng = np.random.default_rng(3)
    w = rng.standard_normal((5, 4), dtype=np.float32).T
    a = rng.standard_normal((2, 3, 4), dtype=np.float32)
    dy = rng.standard_normal((2, 3, 5), dtype=np.float32)
    layer = BroadcastMatrixMultiplyLayer(input_a=(3, 4), input_b=w, b_is_weights=True)
    assert_close(layer(a), a.astype(np.float64) @ w, terms=np.abs(a) @ np.abs(w))
    dw = layer.apply_backward(a, None, None, dy).b
    assert dw.shape == w.shape
    expected = np.einsum("nik,nij->kj", a.astype(np.float64), dy)
    assert_close(dw, expected, terms=np.einsum("nik,nij->kj", np.abs(a), np.abs(dy)))


def test_layer_adds_to_its_output():
    layer = BroadcastMatrixMultiplyLayer(input_a=(1, 2), input_b=(2, 1), accumulate_to_output=True)
    a, b, y = np.float32([[[1, 2]]]), np.float32([[[3], [4]]]), np.float32([[[10]]])
    assert layer(a, b, out=y) is y
    assert y.item() == 21
    with pytest.raises(ArrayError, match=r"out: expected an array to add to; got None"):
        layer(a, b)


def test_arguments_that_a_layer_does_not_take_are_refused():
    w, a = np.eye(2, dtype=np.float32), np.ones((1, 2, 2), np.float32)
    layer = BroadcastMatrixMultiplyLayer(input_a=(2, 2), input_b=w, b_is_weights=True)
    with pytest.raises(LayerApplyError, match=r"b: expected None, since it was given at creation"):
        layer(a, a)
    square = TensorContractionLayer("a_ij, a_kj -> c_ik", input_a=(2, 2))
    with pytest.raises(LayerApplyError, match=r"b: expected None, since there is one input"):
        square(a, a)
    with pytest.raises(LayerApplyError, match=r"b_gradient: expected None, since there is one"):
        square.apply_backward(a, None, None, a, b_gradient=np.empty_like(a))
    two = BroadcastMatrixMultiplyLayer(input_a=(2, 2), input_b=(2, 2))
    with pytest.raises(DTypeError, match=r"b: expected an array"):
        two(a)


def test_gradients_say_what_they_need():
    a = np.ones((1, 2, 2), np.float32)
    layer = BroadcastMatrixMultiplyLayer(input_a=(2, 2), input_b=(2, 2))
    np.testing.assert_array_equal(
        layer.apply_backward(None, a, None, a, b_gradient=None).a, np.full((1, 2, 2), 2)
    )
    with pytest.raises(LayerApplyError, match=r"input_a: .* which b_gradient needs; got NULL"):
        layer.apply_backward(None, a, None, a)
    integers = BroadcastMatrixMultiplyLayer(
        input_a=ArraySpec((2, 2), "int8"), input_b=ArraySpec((2, 2), "int8")
    )
    eight = a.astype(np.int8)
    np.testing.assert_array_equal(integers(eight, eight), np.full((1, 2, 2), 2))
    with pytest.raises(LayerApplyError, match="floating-point types for gradients"):
        integers.apply_backward(eight, eight, None, a)


@pytest.mark.parametrize(
    ("equation", "message"),
    [
        ("a_ij, b_jk", "expected a text like"),
        ("a_ij, b_jk, d_kl -> c_il", "expected a text like"),
        ("aij, b_jk -> c_ik", "expected a text like"),
        ("a_ij, b_jk -> c_il", "letters of the inputs"),
        ("a_ijk, b_jk -> c_ik", "expected 3 axes"),
        ("a_ij, b_ik -> c_ik", "expected extent"),
        ("w_ij, w_jk -> c_ik", "input_b: expected None"),
        ("a_*ij*, b_jk -> c_ik", "one star at most"),
    ],
)
def test_equations_are_checked(equation, message):
    with pytest.raises(LayerCreationError, match=message):
        TensorContractionLayer(equation, input_a=(2, 3), input_b=(3, 4))


def test_creation_is_checked():
    with pytest.raises(LayerCreationError, match="expected 3 rows"):
        BroadcastMatrixMultiplyLayer(input_a=(2, 3), input_b=(4, 5))
    with pytest.raises(LayerCreationError, match="at most"):
        BroadcastMatrixMultiplyLayer(input_a=(2, 2), quadratic=True, a_is_weights=True)
    with pytest.raises(LayerCreationError, match="input_b: expected None with quadratic"):
        BroadcastMatrixMultiplyLayer(input_a=(2, 2))
    with pytest.raises(LayerCreationError, match=r"beta: expected 0 or 1; got 0\.5"):
        TensorContractionLayer("a_i -> c_i", input_a=(2,), beta=0.5)
    with pytest.raises(LayerCreationError, match=r"images \(C, H, W\)"):
        GramLayer(input=(2, 3))
    with pytest.raises(LayerCreationError, match="output: expected extent 2 along f"):
        GramLayer(input=(2, 3, 3), output=(3, 2))
    with pytest.raises(LayerCreationError, match="do not meet in one product"):
        BroadcastMatrixMultiplyLayer(
            input_a=ArraySpec((2, 2), "float16"),
            input_b=ArraySpec((2, 2), "bfloat16"),
            output=(2, 2),
        )


def test_words_about_layers():
    layer = BroadcastMatrixMultiplyLayer(input_a=(2, 3), input_b=(3, 4))
    assert repr(layer).startswith("BroadcastMatrixMultiplyLayer(input_a=ArraySpec((2, 3)")
    assert [spec.shape for spec in layer.input_specs] == [(2, 3), (3, 4)]
    assert layer.weights is None
    contraction = TensorContractionLayer("a_ij -> c_i", input_a=(2, 3))
    assert contraction.equation == "a_ij -> c_i"
    assert "input_b" not in repr(contraction)
    assert repr(GramLayer(input=(2, 3, 3))) == (
        "GramLayer(input=ArraySpec((2, 3, 3), 'float32'), alpha=1.0)"
    )


def test_empty_batches_are_fine():
    layer = BroadcastMatrixMultiplyLayer(input_a=(2, 3), input_b=(3, 4))
    assert layer(np.empty((0, 2, 3), "f4"), np.empty((0, 3, 4), "f4")).shape == (0, 2, 4)


def test_infinities_pass_through():
    a, b = np.float32([[np.inf, 1], [0, 1]]), np.float32([[1, 0], [1, 1]])
    y = matmul(a, b)
    assert np.isposinf(y[0, 0])
    assert np.isnan(y[0, 1])
    np.testing.assert_array_equal(y[1], [1, 1])


def test_old_output_is_not_read():
    y = np.full((2, 2), np.nan, np.float32)
    matmul(np.eye(2, dtype="f4"), np.eye(2, dtype="f4"), out=y)
    np.testing.assert_array_equal(y, np.eye(2))


# ---- the C interface ----


def test_images_multiply_their_last_two_indices():
    """(x, y, c) of an image: a matrix (y, c) for every x, as documented with b_is_weights."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal((4, 3, 2), dtype=np.float32)  # c, y, x in memory
    w = rng.standard_normal((4, 5), dtype=np.float32)
    y = np.empty((5, 3, 2), np.float32)
    parameters = c.BNNSLayerParametersBroadcastMatMul(
        alpha=1,
        b_is_weights=True,
        iA_desc=image((4, 3, 2)),
        iB_desc=matrix((4, 5), data=w),
        o_desc=image((5, 3, 2)),
    )
    f = c.BNNSFilterCreateLayerBroadcastMatMul(parameters, None)
    assert f, c.last_error()
    assert c.BNNSFilterApply(f, x, y) == 0, c.last_error()
    assert c.BNNSFilterApplyTwoInput(f, x, w, y) == -1
    assert "one input" in c.last_error()
    expected = np.einsum("cyx,cj->jyx", x.astype(np.float64), w)
    assert_close(y, expected, terms=np.full(y.shape, 4.0))
    c.BNNSFilterDestroy(f)


def test_products_hold_no_more_than_they_say():
    case = replace(cases.SPLIT[0], dtype="float16")
    layer = case.layer()
    assert 0 < c.obn_filter_work_bytes(layer.handle, 1) <= c.obn_filter_work_bytes(layer.handle, 64)
