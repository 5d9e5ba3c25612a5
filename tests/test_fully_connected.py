"""Fully connected layers: right values, right gradients, right refusals; sparse weights."""

import numpy as np
import openbnns
import pytest
from cases import assert_refused, has_bfloat16, sentinel_array
from cases import fully_connected as cases
from cases.descriptors import first_major, matrix, misaligned, vector
from cases.fully_connected import FullyConnectedCase
from cases.marks import marked, small
from cases.weighted import (
    check_accumulation,
    check_backward,
    check_differences,
    check_forward,
    check_torch,
    has_smooth_slope,
)
from hypothesis import given
from hypothesis import strategies as st
from openbnns import ArrayError, ArraySpec, FullyConnectedLayer, LayerCreationError, c
from oracles import fully_connected as oracle
from oracles.tolerance import assert_close, assert_same_bits

CASES = [marked(case) for case in cases.CASES]


# ---- the case list ----


@pytest.mark.parametrize("case", CASES)
def test_forward_matches_closed_form(case):
    check_forward(case)


@pytest.mark.parametrize("case", CASES)
def test_backward_matches_closed_form(case):
    check_backward(case)


@pytest.mark.parametrize("case", small(cases.CASES))
def test_backward_accumulates(case):
    check_accumulation(case)


@pytest.mark.parametrize("case", small(cases.CASES, has_smooth_slope))
def test_gradients_match_central_differences(case):
    check_differences(case)


@pytest.mark.parametrize("case", small(cases.CASES, lambda case: case.dtype == "float32"))
def test_values_and_gradients_match_torch(case):
    check_torch(case, "fully_connected")


# ---- numbers from the specification ----


def test_vector_one_output():
    layer = FullyConnectedLayer(np.float32([[3, 4]]), bias=np.float32([5]))
    x = np.float32([[1, 2], [10, 20]])
    np.testing.assert_array_equal(layer(x), [[16], [115]])
    grads = layer.apply_backward(x, None, np.float32([[1], [2]]))
    np.testing.assert_array_equal(grads.input, [[3, 4], [6, 8]])
    np.testing.assert_array_equal(grads.weights, [[21, 42]])
    np.testing.assert_array_equal(grads.bias, [3])


def test_vector_dummy_between_samples():
    layer = FullyConnectedLayer(np.float32([[3, 4]]), bias=np.float32([5]))
    x = np.float32([[1, 2, -99], [10, 20, -99]])[:, :2]
    np.testing.assert_array_equal(layer(x), [[16], [115]])


def test_vector_two_outputs():
    w, b = np.float32([[1, 2, 3], [4, 5, 6]]), np.float32([0.5, -1])
    y = FullyConnectedLayer(w, bias=b)(np.float32([[1, 1, 1], [1, 0, -1]]))
    np.testing.assert_array_equal(y, [[6.5, 14], [-1.5, -3]])


# ---- shapes and keywords ----


def test_specs_are_inferred():
    layer = FullyConnectedLayer(np.zeros((3, 5), np.float16))
    assert layer.input_spec == ArraySpec((5,), "float16")
    assert layer.output_spec == ArraySpec((3,), "float16")
    assert FullyConnectedLayer(np.zeros((3, 5), np.int8)).output_spec == ArraySpec((3,))


def test_result_is_a_convolution_of_single_pixels():
    layer = FullyConnectedLayer(np.ones((1, 1), np.float32))
    assert isinstance(layer, openbnns.ConvolutionLayer)
    assert repr(layer).startswith("FullyConnectedLayer(input=")


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_shared_parameters_are_read_at_every_call(order, dtype):
    w, b = np.ones((2, 3), dtype, order=order), np.zeros(2, dtype)
    layer, x = FullyConnectedLayer(w, bias=b), np.ones((1, 3), dtype)
    assert layer.weights is w
    assert layer.bias is b
    np.testing.assert_array_equal(layer(x), [[3, 3]])
    w[1], b[:] = 2, 0.5
    np.testing.assert_array_equal(layer(x), [[3.5, 6.5]])
    grads = layer.apply_backward(x, None, np.ones((1, 2), dtype))
    np.testing.assert_array_equal(grads.input, [[3, 3, 3]])
    assert grads.weights.strides == w.strides


def test_copied_parameters_stay():
    w = np.ones((2, 3), np.float32)
    layer = FullyConnectedLayer(w, copy_parameters=True)
    w[...] = 9
    np.testing.assert_array_equal(layer(np.ones((1, 3), np.float32)), [[3, 3]])


@pytest.mark.parametrize(
    ("shape", "options", "sentence"),
    [
        ((3,), {}, r"\[FullyConnectedLayer\] weights: expected two axes, .* got \(3,\)"),
        ((2, 3), {"input": (4,)}, r"\[FullyConnectedLayer\] "),
        ((2, 3), {"input": (1, 3)}, r"input: expected samples \(inputs,\); got \(1, 3\)"),
        ((2, 3), {"output": (5,)}, r"\[FullyConnectedLayer\] "),
        ((2, 3), {"input": ArraySpec((3,), "int64")}, r"\[FullyConnectedLayer\] "),
        ((2, 3), {"activation": "nothing"}, "activation: expected one of"),
        ((2, 3), {"num_threads": -1}, "num_threads: expected a whole number"),
    ],
)
def test_impossible_layers_are_refused_with_a_sentence(shape, options, sentence):
    with pytest.raises(LayerCreationError, match=sentence):
        FullyConnectedLayer(np.zeros(shape, np.float32), **options)


def test_wrong_arrays_are_refused_with_a_sentence():
    layer = FullyConnectedLayer(np.zeros((2, 3), np.float32))
    x, dy = np.zeros((4, 3), np.float32), np.zeros((4, 2), np.float32)
    for call, sentence in [
        (lambda: layer(x[:, :2]), r"x: expected \(N, 3\); got \(4, 2\)"),
        (lambda: layer(x, out=dy[:1]), r"out: expected \(4, 2\); got \(1, 2\)"),
        (lambda: layer.apply_backward(x, None, x), r"grad_output: expected \(4, 2\)"),
        (
            lambda: layer.apply_backward(x, None, dy, weights_gradient=np.zeros((3, 2), "f4")),
            r"weights_gradient: expected \(2, 3\); got \(3, 2\)",
        ),
    ]:
        with pytest.raises(ArrayError, match=rf"^\[FullyConnectedLayer\] {sentence}"):
            call()


# ---- types ----


@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_integers_with_scales(dtype):
    rng = np.random.default_rng(3)
    x = rng.integers(-100, 100, (4, 50)).astype(dtype)
    w = rng.integers(-100, 100, (7, 50)).astype(dtype)
    layer = FullyConnectedLayer(
        w,
        input=ArraySpec((50,), dtype, scale=0.5),
        weights_spec=ArraySpec((7, 50), dtype, scale=0.125, offset=1.0),
    )
    expected = (0.5 * x.astype(float)) @ (0.125 * w.astype(float) + 1.0).T
    np.testing.assert_allclose(layer(x), expected, rtol=1e-5, atol=1e-3)


def test_indexed_weights():
    table = np.linspace(-1, 1, 256).astype(np.float32)
    codes = np.random.default_rng(4).integers(0, 256, (4, 30)).astype(np.uint8)
    x = np.random.default_rng(5).standard_normal((2, 30)).astype(np.float32)
    layer = FullyConnectedLayer(codes, weights_spec=ArraySpec((4, 30), "uint8", table=table))
    expected = oracle.fully_connected(x.astype(float), table[codes].astype(float))
    assert_close(layer(x), expected, terms=np.full(expected.shape, 30.0))


def test_wild_values_stay_where_they_belong():
    """A row of x touches its own row of y, a weight its own column; nothing else."""
    for batch in (2, 9, 70):
        case = FullyConnectedCase(batch, 90, 50)
        layer, x, dy = case.layer(), case.input(), case.output_gradient()
        clean, clean_grads = layer(x), layer.apply_backward(x, None, dy)
        for value in (np.inf, np.nan, 1e38):
            wild_x, wild_dy = x.copy(), dy.copy()
            wild_x[1, 7] = wild_dy[1, 7] = value
            rest = np.arange(batch) != 1
            assert_same_bits(layer(wild_x)[rest], clean[rest])
            grads = layer.apply_backward(x, None, wild_dy)
            assert_same_bits(grads.input[rest], clean_grads.input[rest])
            others = np.arange(50) != 7
            assert_same_bits(grads.weights[others], clean_grads.weights[others])
            assert_same_bits(grads.bias[others], clean_grads.bias[others])


@pytest.mark.parametrize("batch", [1, 4, 100])
def test_errors_are_no_more_than_four_times_those_of_plain_loops(batch):
    case = FullyConnectedCase(batch, 500, 60, bias=False)
    x, w = case.input(), case.weights()
    plain = np.zeros(case.output_shape, np.float32)
    for k in range(case.inputs):
        plain += x[:, k, None] * w[None, :, k]
    exact = case.expected(x, w)
    ours, theirs = np.abs(case.layer()(x) - exact), np.abs(plain - exact)
    assert np.sqrt((ours**2).mean()) <= 4 * np.sqrt((theirs**2).mean())
    assert ours.max() <= 4 * theirs.max()


# ---- precision ----


@pytest.fixture
def precision():
    """Restores the setting after a test has changed it."""
    before = openbnns.get_matmul_precision()
    yield openbnns.set_matmul_precision
    openbnns.set_matmul_precision(before)


def test_precision_reads_back(precision):
    for word in ("high", "medium", "highest"):
        precision(word)
        assert openbnns.get_matmul_precision() == word
    with pytest.raises(ValueError, match="expected one of highest, high, medium; got 'low'"):
        precision("low")
    assert openbnns.get_matmul_precision() == "highest"


@pytest.mark.parametrize(
    ("word", "error"), [("highest", 1e-6), ("high", 2.0**-14), ("medium", 2.0**-6)]
)
def test_precision_allows_no_more_than_it_says(precision, word, error):
    precision(word)
    case = FullyConnectedCase(130, 300, 257)
    x, w, dy = case.input(), case.weights(), case.output_gradient()
    layer = case.layer()
    y = layer(x)
    assert_close(y, case.expected(x, w), terms=case.forward_terms(x, w), unit=error)
    grads, expected = layer.apply_backward(x, y, dy), case.expected_gradients(x, w, y, dy)
    assert_close(grads.input, expected.dx, terms=expected.dx_terms, unit=error)
    assert_close(grads.weights, expected.dw, terms=expected.dw_terms, unit=error)


def test_precision_of_a_layer_comes_before_the_library(precision):
    case = FullyConnectedCase(130, 300, 257)
    x, w = case.input(), case.weights()
    exact, rough = (openbnns.FullyConnectedLayer(w, precision=p) for p in ("highest", "medium"))
    follows = openbnns.FullyConnectedLayer(w)
    y, z = exact(x), rough(x)
    np.testing.assert_array_equal(follows(x), y)
    precision("medium")
    np.testing.assert_array_equal(follows(x), z)
    np.testing.assert_array_equal(exact(x), y)
    precision("highest")
    np.testing.assert_array_equal(rough(x), z)
    with pytest.raises(LayerCreationError, match="one of highest, high, medium; got 'low'"):
        openbnns.FullyConnectedLayer(w, precision="low")


# ---- sparse weights ----


def random_sparse(rows, columns, share, seed=0):
    """(dense float64 matrix, rows, columns, float32 values) of a coordinate list."""
    rng = np.random.default_rng(seed)
    places = np.flatnonzero(rng.random(rows * columns) < share)
    values = rng.standard_normal(places.size).astype(np.float32)
    order = rng.permutation(places.size)
    r, k = np.divmod(places[order], columns)
    return oracle.dense((rows, columns), r, k, values[order].astype(float)), r, k, values[order]


def compressed(rows, r, k, values):
    """The same as compressed rows."""
    order = np.lexsort((k, r))
    starts = np.searchsorted(r[order], np.arange(rows + 1))
    return k[order], starts, values[order]


def test_sparse_vector():
    rows = np.append(np.arange(8), 3)
    columns = np.append(np.arange(8), 0)
    values = np.append(np.full(8, 2), 7).astype(np.float32)
    x = np.arange(1, 9, dtype=np.float32)[None]
    expected = [[2, 4, 6, 15, 10, 12, 14, 16]]
    coo = FullyConnectedLayer.sparsify(values, coo=(rows, columns), dense_shape=(8, 8))
    np.testing.assert_array_equal(FullyConnectedLayer(coo)(x), expected)
    k, starts, values = compressed(8, rows, columns, values)
    csr = FullyConnectedLayer.sparsify(values, csr=(k, starts), dense_shape=(8, 8))
    np.testing.assert_array_equal(FullyConnectedLayer(csr)(x), expected)
    assert 0 < csr.nbytes < 8 * 8 * 4 + 256
    assert csr.nonzeros == 9


@pytest.mark.parametrize("batch", [1, 3, 20])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (5, 70), (130, 33), (64, 256)])
@pytest.mark.parametrize("share", [0.0, 0.05, 0.9])
def test_sparse_forward_and_input_gradient(rows, columns, batch, share):
    dense, r, k, values = random_sparse(rows, columns, share)
    rng = np.random.default_rng(1)
    x = rng.standard_normal((batch, columns)).astype(np.float32)
    dy = rng.standard_normal((batch, rows)).astype(np.float32)
    bias = rng.standard_normal(rows).astype(np.float32)
    packed = FullyConnectedLayer.sparsify(values, coo=(r, k), dense_shape=(rows, columns))
    layer = FullyConnectedLayer(packed, bias=bias, activation="tanh")
    y = layer(x)
    z = oracle.fully_connected(x.astype(float), dense) + bias
    terms = oracle.fully_connected(np.abs(x).astype(float), np.abs(dense)) + np.abs(bias)
    assert_close(y, np.tanh(z), terms=terms)
    grads = layer.apply_backward(x, y, dy)
    dz = dy * (1 - y.astype(float) ** 2)
    assert grads.weights is None
    assert_close(grads.input, dz @ dense, terms=np.abs(dz) @ np.abs(dense))
    assert_close(grads.bias, dz.sum(axis=0), terms=np.abs(dz).sum(axis=0))


def test_sparse_values_with_the_same_place_are_added():
    packed = FullyConnectedLayer.sparsify(
        np.float32([1, 2, 4]), coo=np.array([[0, 1], [0, 1], [1, 0]]), dense_shape=(2, 2)
    )
    np.testing.assert_array_equal(FullyConnectedLayer(packed)(np.float32([[1, 10]])), [[30, 4]])


@pytest.mark.parametrize("kind", ["csr_matrix", "coo_array", "csc_array"])
def test_scipy_matrices_are_taken(kind):
    sparse = pytest.importorskip("scipy.sparse")
    dense, r, k, values = random_sparse(20, 30, 0.2)
    given = getattr(sparse, kind)((values, (r, k)), shape=(20, 30))
    x = np.random.default_rng(2).standard_normal((4, 30)).astype(np.float32)
    expected = oracle.fully_connected(x.astype(float), dense)
    for weights in (given, FullyConnectedLayer.sparsify(given)):
        assert_close(FullyConnectedLayer(weights)(x), expected, terms=np.full((4, 20), 20.0))


def test_sparse_weights_gradient_is_refused():
    packed = FullyConnectedLayer.sparsify(np.float32([1]), coo=([0], [0]), dense_shape=(2, 2))
    layer = FullyConnectedLayer(packed)
    x, dw = np.ones((1, 2), np.float32), np.zeros((2, 2), np.float32)
    with pytest.raises(openbnns.BNNSError, match="weights"):
        layer.apply_backward(x, None, x, weights_gradient=dw)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "coo, csr: expected one of them; got none"),
        ({"coo": ([0], [0]), "csr": ([0], [0])}, "coo, csr: expected one of them; got both"),
        ({"coo": ([0], [0]), "dense_shape": None}, "dense_shape: expected"),
        ({"coo": ([0, 1], [0])}, "coo: expected as many columns as rows; got 2 and 1"),
        ({"coo": ([0, 1], [0, 1])}, "coo: expected a place for each of 1 values; got 2"),
        ({"coo": ([-1], [0])}, "coo: expected whole numbers, none negative"),
        ({"coo": ([0.5], [0])}, "coo: expected whole numbers, none negative"),
        ({"coo": ([2], [0])}, "."),
        ({"coo": ([0], [2])}, "."),
        ({"csr": ([0], [0, 1])}, "csr: expected 3 row starts for 2 rows; got 2"),
        ({"csr": ([0], [0, 2, 1])}, "."),
        ({"csr": ([0], [1, 1, 1])}, "."),
        ({"csr": ([0], [0, 0, 2])}, "."),
        ({"csr": ([5], [0, 1, 1])}, "."),
    ],
)
def test_impossible_sparse_matrices_are_refused(options, sentence):
    pattern = rf"^\[FullyConnectedLayer.sparsify\] .*{sentence}"
    with pytest.raises(openbnns.BNNSError, match=pattern):
        FullyConnectedLayer.sparsify(np.float32([1]), **{"dense_shape": (2, 2)} | options)


# ---- properties ----


@st.composite
def fully_connected_cases(draw):
    types = ["float32", "float16"] + (["bfloat16"] if has_bfloat16() else [])
    gaps = st.tuples(st.just(0), st.integers(0, 3))
    return FullyConnectedCase(
        draw(st.integers(1, 40)),
        draw(st.integers(1, 90)),
        draw(st.integers(1, 90)),
        dtype=draw(st.sampled_from(types)),
        bias=draw(st.booleans()),
        activation=draw(st.sampled_from(["identity", "rectified_linear", "tanh", "softmax"])),
        column_major=draw(st.booleans()),
        x_gaps=draw(gaps),
        y_gaps=draw(gaps),
        w_gaps=draw(gaps),
        step=draw(st.integers(1, 2)),
    )


@given(fully_connected_cases())
def test_any_shape_matches_closed_form(case):
    check_forward(case)
    check_backward(case)


# ---- the C interface ----


def create(w, layout="RowMajorMatrix", **fields):
    parameters = c.BNNSLayerParametersFullyConnected(
        i_desc=vector(w.shape[1]),
        w_desc=matrix(w.shape, data=w, layout=layout),
        o_desc=vector(w.shape[0]),
        **fields,
    )
    return c.BNNSFilterCreateLayerFullyConnected(parameters, None)


W = np.float32([[1, 2, 3], [4, 5, 6]])
X = np.float32([1, 10, 100])


@pytest.mark.parametrize(
    "layout", ["RowMajorMatrix", "ColumnMajorMatrix", "2DFirstMajor", "2DLastMajor"]
)
def test_c_layouts(layout):
    """All of them hold W(row = output, column = input), and the gradient comes in the same way."""
    columns_first = layout in ("ColumnMajorMatrix", "2DLastMajor")
    w = np.asarray(W, order="F" if columns_first else "C")
    f = create(w, layout)
    assert f, c.last_error()
    y, dw = np.zeros(2, np.float32), np.zeros_like(w)
    assert c.BNNSFilterApply(f, X, y) == 0, c.last_error()
    np.testing.assert_array_equal(y, [321, 654])
    delta = vector(2, data=np.float32([1, 2]))
    target = matrix(w.shape, data=dw, layout=layout)
    status = c.BNNSFilterApplyBackwardBatch(f, 1, X, 0, None, 0, None, 0, delta, 0, target, None)
    assert status == 0, c.last_error()
    c.BNNSFilterDestroy(f)
    np.testing.assert_array_equal(dw, [[1, 10, 100], [2, 20, 200]])


def legacy_layer(inputs, outputs, w, **fields):
    single = c.BNNSDataTypeFloat32
    parameters = c.BNNSFullyConnectedLayerParameters(
        **{
            "in_size": w.shape[1],
            "out_size": w.shape[0],
            "weights": c.BNNSLayerData(data=w, data_type=single),
            **fields,
        }
    )
    return c.BNNSFilterCreateFullyConnectedLayer(
        c.BNNSVectorDescriptor(size=inputs, data_type=single),
        c.BNNSVectorDescriptor(size=outputs, data_type=single),
        parameters,
        None,
    )


def test_legacy_layer():
    bias = c.BNNSLayerData(data=np.float32([1, -1000]), data_type=c.BNNSDataTypeFloat32)
    f = legacy_layer(3, 2, W, bias=bias, activation=c.BNNSActivation(function=1))
    assert f, c.last_error()
    y = np.zeros((2, 2), np.float32)
    assert c.BNNSFilterApplyBatch(f, 2, np.tile(X, 2), 3, y, 2) == 0, c.last_error()
    c.BNNSFilterDestroy(f)
    np.testing.assert_array_equal(y, [[322, 0]] * 2)


def test_legacy_layer_refuses():
    for sizes, fields in (
        ((2, 2), {}),
        ((3, 3), {}),
        ((3, 2), {"in_size": 0}),
        ((3, 2), {"weights": c.BNNSLayerData()}),
        ((3, 2), {"activation": c.BNNSActivation(function=99)}),
    ):
        assert legacy_layer(*sizes, W, **fields) is None
        assert c.last_error()


@pytest.mark.parametrize("first", range(3))
def test_c_sparse_into_given_memory(first):
    """COO pairs are column, row; the packed weights go where the caller says: any float will do."""
    pairs = np.uint32([[2, 0], [0, 1]])
    out = np.zeros(64 + first, np.float32)[first:]
    packed = c.BNNSNDArrayDescriptor(
        layout=c.BNNSDataLayoutFullyConnectedSparse,
        size=[8, 8],
        data=out,
        data_type=c.BNNSDataTypeFloat32,
    )
    status = c.BNNSNDArrayFullyConnectedSparsifySparseCOO(
        matrix((8, 8)),
        first_major((2, 2), "uint32", data=pairs),
        vector(2, data=np.float32([5, 7])),
        packed,
        None,
        0,
        None,
        0,
        None,
    )
    assert status == 0, c.last_error()
    assert 0 < c.BNNSNDArrayGetDataSize(packed) < 256
    parameters = c.BNNSLayerParametersFullyConnected(
        i_desc=vector(8), w_desc=packed, o_desc=vector(8)
    )
    f = c.BNNSFilterCreateLayerFullyConnected(parameters, None)
    assert f, c.last_error()
    x, y = np.arange(1, 9, dtype=np.float32), np.full(8, -1, np.float32)
    assert c.BNNSFilterApply(f, x, y) == 0, c.last_error()
    c.BNNSFilterDestroy(f)
    np.testing.assert_array_equal(y, [15, 7, 0, 0, 0, 0, 0, 0])


CORRUPTIONS = {
    "image input": lambda p: setattr(p.i_desc, "layout", c.BNNSDataLayoutImageCHW),
    "unknown layout": lambda p: setattr(p.w_desc, "layout", 0x1234),
    "unknown type": lambda p: setattr(p.w_desc, "data_type", 7),
    "type of the input": lambda p: setattr(p.i_desc, "data_type", c.BNNSDataTypeInt64),
    "no weights": lambda p: setattr(p.w_desc, "data", None),
    "inputs": lambda p: setattr(p.i_desc, "size", [4]),
    "outputs": lambda p: setattr(p.o_desc, "size", [3]),
    "zero inputs": lambda p: setattr(p.i_desc, "size", [0]),
    "huge inputs": lambda p: setattr(p.i_desc, "size", [2**62]),
    "huge weights": lambda p: setattr(p.w_desc, "size", [2**40, 2**40]),
    "decreasing strides": lambda p: setattr(p.w_desc, "stride", [3, 1]),
    "unknown activation": lambda p: setattr(p, "activation", c.BNNSActivation(function=77)),
    "bias of another size": lambda p: setattr(p, "bias", vector(3, data=np.zeros(3, np.float32))),
    "misaligned weights": lambda p: setattr(p.w_desc, "data", misaligned((6,), np.float32)),
}


def test_precision_of_a_filter_refuses_others():
    f = create(W)
    assert [c.obn_filter_set_matmul_precision(f, p) for p in (-1, 0, 1, 2)] == [0] * 4
    assert [c.obn_filter_set_matmul_precision(f, p) for p in (-2, 3)] == [-1] * 2
    assert "expected -1 (follow the library)" in c.last_error()
    assert c.obn_filter_set_matmul_precision(None, 0) == -1
    c.BNNSFilterDestroy(f)


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_corrupted_parameters_are_refused(kind):
    parameters = c.BNNSLayerParametersFullyConnected(
        i_desc=vector(3), w_desc=matrix(W.shape, data=W.copy()), o_desc=vector(2)
    )
    CORRUPTIONS[kind](parameters)
    c.obn_clear_error()
    assert c.BNNSFilterCreateLayerFullyConnected(parameters, None) is None
    assert c.last_error()


def test_random_parameter_blocks_never_crash():
    rng = np.random.default_rng(12)
    size = c.ctypes.sizeof(c.BNNSLayerParametersFullyConnected)
    for _ in range(1000):
        parameters = c.BNNSLayerParametersFullyConnected.from_buffer_copy(rng.bytes(size))
        parameters.bias.data = parameters.w_desc.data = None
        c.obn_clear_error()
        assert c.BNNSFilterCreateLayerFullyConnected(parameters, None) is None
        assert c.last_error()
    assert c.BNNSFilterCreateLayerFullyConnected(None, None) is None


def test_bad_calls_are_refused_and_write_nothing():
    f = create(W)
    y, _ = sentinel_array((2,), "float32")
    assert_refused(c.BNNSFilterApply(f, None, y), y)
    assert_refused(c.BNNSFilterApply(f, misaligned((3,), np.float32), y), y)
    assert_refused(c.BNNSFilterApply(f, X, None))
    memory, _ = sentinel_array((8,), "float32")
    assert_refused(c.BNNSFilterApply(f, memory[:3], memory[2:4]), memory)
    for batch, stride in ((2**63, 0), (2**60, 0), (2, 2**63), (3, 1)):
        assert_refused(c.BNNSFilterApplyBatch(f, batch, X, stride, y, stride), y)

    dx, dw, db = (sentinel_array((size,), "float32")[0] for size in (3, 6, 2))
    delta = vector(2, data=np.ones(2, np.float32))
    targets = vector(3, data=dx), matrix((2, 3), data=dw), vector(2, data=db)

    def backward(x, delta, dx_, dw_, db_):
        return c.BNNSFilterApplyBackwardBatch(f, 1, x, 0, dx_, 0, None, 0, delta, 0, dw_, db_)

    untouched = (dx, dw, db)
    assert_refused(backward(None, delta, *targets), *untouched)  # dw needs x
    assert_refused(backward(X, None, *targets), *untouched)
    wrong = vector(3, data=np.ones(3, np.float32))
    assert_refused(backward(X, wrong, *targets), *untouched)
    assert_refused(backward(X, delta, vector(2, data=dx), *targets[1:]), *untouched)
    turned = matrix((3, 2), data=dw)
    assert_refused(backward(X, delta, targets[0], turned, targets[2]), *untouched)
    assert_refused(backward(X, delta, *targets[:2], vector(3, data=dx)), *untouched)
    assert_refused(backward(X, delta, targets[0], targets[1], vector(2, data=dw)), *untouched)
    assert backward(None, delta, None, None, None) == 0, c.last_error()
    c.BNNSFilterDestroy(f)
    assert_refused(c.BNNSFilterApply(f, X, y), y)
