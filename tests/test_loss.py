"""Loss layers: right values, right gradients, right refusals."""

import pickle
from dataclasses import replace

import numpy as np
import openbnns
import pytest
from cases import gaps_untouched, generator, has_bfloat16, is_sentinel
from cases import loss as cases
from cases.descriptors import vector
from cases.loss import LossCase
from cases.marks import marked, small
from hypothesis import example, given
from hypothesis import strategies as st
from openbnns import ArrayError, Loss, LossLayer, YoloParameters, c
from oracles import loss as oracle
from oracles.differences import assert_gradient_matches
from oracles.tolerance import assert_close, assert_same_bits

CASES = [marked(case) for case in cases.CASES]
SMALL = [marked(case) for case in cases.CASES if not case.tags & {"large", "split"}]


def arguments(case):
    return case.input(), case.label_values(), case.weight_values()


# ---- the case list ----


@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradient_match_closed_form(case):
    x, labels, weights = arguments(case)
    before = x.copy(), labels.copy()
    dx, owner = case.empty_gradient()
    y, same = case.layer().apply(x, labels, weights=weights, input_gradient=dx)
    assert same is dx
    expected, gradient, terms = case.expected(x, labels, weights)
    assert_close(y, expected, case.stored, terms=terms)
    assert_close(dx, gradient, case.dtype, terms=gradient_terms(case, gradient))
    assert gaps_untouched(dx, owner)
    assert_same_bits(x, before[0])
    assert_same_bits(labels, before[1])


def gradient_terms(case, gradient):
    """A slope is a difference of parts of the size of one, times a factor; that of the log loss
    divides by as little as 0.02."""
    scale = np.abs(gradient).max(initial=0.0) + 1e-30
    return 60 * scale if case.function == "log" else 2 * scale


@pytest.mark.parametrize("case", SMALL)
def test_loss_alone_has_the_same_bits(case):
    layer = case.layer()
    x, labels, weights = arguments(case)
    y, _ = layer.apply(x, labels, weights=weights, input_gradient=True)
    assert_same_bits(layer(x, labels, weights=weights), y)


@pytest.mark.parametrize("case", CASES)
def test_backward_matches_closed_form(case):
    x, labels, weights = arguments(case)
    dy = case.output_gradient()
    dx, owner = case.empty_gradient()
    grads = case.layer().apply_backward(x, labels, dy, weights=weights, input_gradient=dx)
    assert grads.input is dx
    _, expected, _ = case.expected(x, labels, weights, dy)
    assert_close(dx, expected, case.dtype, terms=gradient_terms(case, expected))
    assert gaps_untouched(dx, owner)


@pytest.mark.parametrize("case", SMALL)
def test_gradients_accumulate(case):
    x, labels, weights = arguments(case)
    layer, dy = case.layer(), case.output_gradient()
    for upstream in (None, dy):
        dx, owner = case.empty_gradient()
        dx[...] = generator(case, 7).standard_normal(case.shape).astype(dx.dtype)
        before = dx.astype(np.float64)
        options = {"weights": weights, "input_gradient": dx, "accumulate": True}
        if upstream is None:
            layer.apply(x, labels, **options)
        else:
            layer.apply_backward(x, labels, upstream, **options)
        _, expected, _ = case.expected(x, labels, weights, upstream)
        terms = gradient_terms(case, expected) + 1
        assert_close(dx, before + expected, case.dtype, terms=terms)
        assert gaps_untouched(dx, owner)


@pytest.mark.parametrize("case", SMALL)
def test_backward_with_one_is_the_gradient_of_apply(case):
    x, labels, weights = arguments(case)
    layer = case.layer()
    _, dx = layer.apply(x, labels, weights=weights, input_gradient=True)
    for one in (None, 1, 1.0):
        back = layer.apply_backward(x, labels, one, weights=weights).input
        assert_close(back, dx.astype(np.float64), case.dtype)


@pytest.mark.parametrize(
    "case", small(cases.CASES, lambda case: case.has_derivative and case.dtype == "float32")
)
def test_gradient_matches_central_differences(case):
    layer, rng = case.layer(), generator(case, 4)
    x, labels, weights = arguments(case)
    spaced = case.input()

    def forward(values):
        spaced[...] = values
        return np.asarray(layer(spaced, labels, weights=weights))

    def gradient(values, dy):
        spaced[...] = values
        return layer.apply_backward(spaced, labels, np.asarray(dy), weights=weights).input

    if case.function == "log":  # its curvature at the ends is too much for one step
        x = (0.3 + 0.4 * x).astype(np.float32)
    if case.function == "huber":  # no error near delta
        x = (labels + np.where(x > 0, 0.25, 3.0)).astype(np.float32)
    assert_gradient_matches(forward, gradient, np.ascontiguousarray(x), rng)


@pytest.mark.parametrize("case", small(cases.CASES, lambda case: case.dtype == "float32"))
def test_losses_match_torch(case):
    """All functions, reductions and weights. The documented gradient of the categorical cross
    entropy is not its derivative: there the loss alone."""
    torch_judge = pytest.importorskip("oracles.torch_judge", exc_type=ImportError)
    x, labels, weights = arguments(case)
    layer, dy = case.layer(), case.output_gradient()
    y = layer(x, labels, weights=weights)
    dx = layer.apply_backward(x, labels, dy, weights=weights).input
    expected, gradient = torch_judge.loss(case, x, labels, weights, dy)
    _, _, terms = case.expected(x, labels, weights)
    assert_close(y, expected, terms=terms)
    if case.function != "categorical_cross_entropy":
        assert_close(dx, gradient, terms=gradient_terms(case, gradient))


# ---- numbers from the specification ----


def test_vector_mean_square_error():
    x, zeros = np.float32([[1, 2, 3]]), np.zeros((1, 3), np.float32)
    layer = LossLayer("mse", input=(3,), reduction="none")
    y, dx = layer.apply(x, zeros, input_gradient=True)
    np.testing.assert_array_equal(y, [[1, 4, 9]])
    np.testing.assert_array_equal(dx, [[2, 4, 6]])
    np.testing.assert_array_equal(layer.apply_backward(x, zeros, np.ones_like(x)).input, dx)
    labels = np.float32([[0, 2, 6]])
    np.testing.assert_array_equal(layer(x, labels), [[1, 0, 9]])
    assert LossLayer("mse", input=(3,), reduction="sum")(x, labels) == 10
    assert LossLayer("mse", input=(3,))(x, labels) == np.float32(10 / 3)


def test_vector_mean_square_error_of_the_reference_page():
    x = np.float32([[9, 1, 6, 3, 4, 5, 6, 7, 8, 9]])
    labels = np.arange(10, dtype=np.float32)[None]
    layer = LossLayer("mean_square_error", input=(10,), reduction="sum")
    y, dx = layer.apply(x, labels, input_gradient=True)
    assert y == 97
    np.testing.assert_array_equal(dx, [[18, 0, 8, 0, 0, 0, 0, 0, 0, 0]])


def test_gradients_at_the_edges_are_those_documented():
    x, labels = np.float32([[1, -1, 2]]), np.float32([[1, 0, 1]])
    hinge = LossLayer("hinge", input=(3,), reduction="sum")
    np.testing.assert_array_equal(hinge.apply_backward(x, labels).input, [[-1, 1, 0]])
    mae = LossLayer("mae", input=(3,), reduction="sum")
    np.testing.assert_array_equal(mae.apply_backward(x, x).input, [[1, 1, 1]])
    huber = LossLayer(Loss.huber(1.0), input=(3,), reduction="none")
    y, dx = huber.apply(x, np.zeros_like(x), input_gradient=True)
    np.testing.assert_array_equal(y, [[0.5, 0.5, 1.5]])
    np.testing.assert_array_equal(dx, [[1, -1, 1]])
    categorical = LossLayer("categorical_cross_entropy", input=(3,), reduction="none")
    y, dx = categorical.apply(x, np.zeros_like(x), input_gradient=True)
    assert y.tolist() == [0.0]
    assert not dx.any()


def test_weights_without_sum_give_zero():
    x, labels = np.float32([[1, 2], [3, 4]]), np.zeros((2, 2), np.float32)
    for reduction in ("weighted_mean", "non_zero_weight_mean"):
        layer = LossLayer("mse", input=(2,), reduction=reduction)
        y, dx = layer.apply(x, labels, weights=np.zeros(2, np.float32), input_gradient=True)
        assert y == 0
        assert not dx.any()
    y = LossLayer("mse", input=(2,), reduction="weighted_mean")(
        x, labels, weights=np.float32([1, -1])
    )
    assert y == 0


def test_masked_logits_count_for_nothing():
    x = np.float32([[1, -np.inf, 2], [-np.inf, 0, -np.inf]])
    layer = LossLayer("softmax_cross_entropy", input=(3,), reduction="none")
    for labels in (np.array([0, 1]), np.eye(3, dtype=np.float32)[[0, 1]]):
        y, dx = layer.apply(x, labels, input_gradient=True)
        assert_close(y, [np.log1p(np.exp(1)), 0])
        assert_close(dx[:, 1], [0, 0])


def test_far_logits_do_not_overflow():
    x, labels = np.float32([[1e4, -1e4, 1e4, -1e4]]), np.float32([[1, 0, 0, 1]])
    y, dx = LossLayer("sigmoid_cross_entropy", input=(4,), reduction="none").apply(
        x, labels, input_gradient=True
    )
    np.testing.assert_allclose(y, [[0, 0, 1e4, 1e4]], atol=1e-30)
    np.testing.assert_allclose(dx, [[0, 0, 1, -1]], atol=1e-30)
    y = LossLayer("softmax_cross_entropy", input=(4,))(x, np.array([1]))
    assert_close(y, 2e4 + np.log(2))


def test_empty_batches_lose_nothing():
    x = np.empty((0, 3), np.float32)
    y, dx = LossLayer("mse", input=(3,)).apply(x, x, input_gradient=True)
    assert (y, dx.shape) == (0.0, (0, 3))
    assert LossLayer("mse", input=(3,), reduction="none")(x, x).shape == (0, 3)
    classes = np.empty(0, np.int64)
    assert LossLayer("softmax_cross_entropy", input=(3,))(x, classes) == 0


# ---- arrays ----


def test_results_go_where_they_should():
    layer = LossLayer("softmax_cross_entropy", input=(4,))
    x, labels = np.zeros((2, 4), np.float32), np.array([1, 2])
    out, dx = np.empty((), np.float32), np.empty_like(x)
    y, gradient = layer.apply(x, labels, out=out, input_gradient=dx)
    assert y is out
    assert gradient is dx
    assert layer.apply(x, labels, out=out) is out
    assert isinstance(layer(x, labels), np.ndarray)
    assert layer.apply(x, labels, input_gradient=False).shape == ()


def test_gradient_may_take_the_place_of_the_input():
    layer = LossLayer("softmax_cross_entropy", input=(50,))
    x = generator("in place").standard_normal((3, 50)).astype(np.float32)
    labels = np.arange(3)
    expected = layer.apply_backward(x, labels).input
    layer.apply(x, labels, input_gradient=x)
    assert_same_bits(x, expected)


def test_class_numbers_of_any_stride():
    layer = LossLayer("softmax_cross_entropy", input=(4,))
    x = generator("strides").standard_normal((3, 4)).astype(np.float32)
    wide = np.array([3, -9, 0, -9, 1, -9])
    expected = layer(x, np.array([3, 0, 1]))
    assert_same_bits(layer(x, wide[::2]), expected)
    backwards = np.array([1, 0, 3])[::-1]
    with pytest.warns(openbnns.CopyWarning, match="labels: strides"):
        assert_same_bits(layer(x, backwards), expected)


def test_labels_and_arrays_of_torch():
    torch = pytest.importorskip("torch")
    layer = LossLayer("softmax_cross_entropy", input=(4,))
    x, labels = torch.randn(5, 4), torch.tensor([0, 1, 2, 3, 0])
    y, dx = layer.apply(x, labels, input_gradient=True)
    expected, gradient = layer.apply(x.numpy(), labels.numpy(), input_gradient=True)
    assert_same_bits(y, expected)
    assert_same_bits(dx, gradient)


@pytest.mark.parametrize("weights", [2, 2.5, np.float32(3), np.full(1, 3, np.float32)])
def test_one_weight_for_all(weights):
    layer = LossLayer("mse", input=(2,), reduction="sum")
    x = np.float32([[1, 2], [3, 4]])
    assert layer(x, np.zeros_like(x), weights=weights) == 30 * float(np.asarray(weights).item())


def test_spaced_weights_are_copied_aloud():
    layer = LossLayer("mse", input=(2,), reduction="sum")
    x, wide = np.float32([[1, 2], [3, 4]]), np.float32([1, 9, 2, 9])
    with pytest.warns(openbnns.CopyWarning, match="weights: strides"):
        assert layer(x, np.zeros_like(x), weights=wide[::2]) == 5 + 50


@given(
    st.sampled_from(cases.FUNCTIONS),
    st.sampled_from(cases.REDUCTIONS),
    st.sampled_from(cases.WEIGHTS),
    st.lists(st.integers(1, 9), min_size=2, max_size=4),
    st.sampled_from([0.0, 0.25, 1.0]),
    st.integers(0, 2),
    st.integers(1, 3),
)
@example("sigmoid_cross_entropy", "none", "none", [2, 1, 2], 0.0, 0, 1)
def test_any_loss_of_any_shape(function, reduction, weights, shape, parameter, gap, step):
    gaps = (gap,) + (0,) * (len(shape) - 2) + (gap,)
    case = LossCase(
        function,
        tuple(shape),
        reduction,
        weights,
        parameter=parameter,
        x_gaps=gaps,
        step=step,
        dx_gaps=gaps[::-1],
    )
    test_loss_and_gradient_match_closed_form(case)
    test_backward_matches_closed_form(case)


# ---- YOLO ----


def yolo_case(seed, rows=3, columns=4, anchors=2, classes=3, batch=2, **options):
    rng = np.random.default_rng(seed)
    parameters = YoloParameters(
        (rows, columns), rng.uniform(0.5, 3, (anchors, 2)), 5 + classes, **options
    )
    shape = (batch, rows, columns, anchors, 5 + classes)
    x = rng.normal(0, 1, shape).astype(np.float32)
    truth = np.zeros((batch, rows, columns, 1, 5 + classes), np.float32)
    truth[..., :2] = rng.random((batch, rows, columns, 1, 2))
    truth[..., 2:4] = rng.normal(0, 0.5, (batch, rows, columns, 1, 2))
    truth[..., 4] = rng.random(truth.shape[:-1]) < 0.5
    if classes:
        chosen = rng.integers(0, classes, truth.shape[:-1])
        truth[..., 5:] = np.eye(classes)[chosen] * truth[..., 4:5]
    truth = np.broadcast_to(truth, shape).copy()
    layer = LossLayer(Loss.yolo(parameters), input=shape[1:], reduction="sum")
    return parameters, layer, x, truth


YOLO = [
    {},
    {"rescore": False},
    {"object_min_iou": 0.3, "no_object_max_iou": 0.1},
    {"xy_scale": 10, "wh_scale": 8, "object_scale": 100, "no_object_scale": 5},
    {"classification_scale": 2, "huber_delta": 0.5},
]


@pytest.mark.parametrize("options", YOLO)
@pytest.mark.parametrize("sizes", [{}, {"classes": 0}, {"anchors": 5, "batch": 3}, {"rows": 1}])
def test_yolo_matches_closed_form(options, sizes):
    parameters, layer, x, truth = yolo_case(5, **sizes, **options)
    y, dx = layer.apply(x, truth, input_gradient=True)
    anchors = np.float32(parameters.anchors)
    expected, gradient = oracle.yolo(x, truth, anchors, parameters)
    assert_close(y, expected, terms=expected)
    assert_close(dx, gradient, terms=10)
    half = layer.apply_backward(x, truth, 0.5).input
    assert_close(half, gradient / 2, terms=10)


@pytest.mark.parametrize("options", YOLO)
@pytest.mark.parametrize("sizes", [{}, {"classes": 0}, {"anchors": 5, "batch": 3}, {"rows": 1}])
def test_yolo_matches_torch(options, sizes):
    torch_judge = pytest.importorskip("oracles.torch_judge", exc_type=ImportError)
    parameters, layer, x, truth = yolo_case(8, **sizes, **options)
    y, dx = layer.apply(x, truth, input_gradient=True)
    expected, gradient = torch_judge.yolo(x, truth, np.float32(parameters.anchors), parameters)
    assert_close(y, expected, terms=expected)
    assert_close(dx, gradient, terms=10)


def test_yolo_gradient_matches_central_differences():
    """In a direction that moves no box: who predicts an object stays who it was."""
    _, layer, x, truth = yolo_case(9, rescore=False)
    rng, step = np.random.default_rng(10), 1e-2
    direction = rng.standard_normal(x.shape).astype(np.float32)
    direction[..., :4] = 0
    _, dx = layer.apply(x, truth, input_gradient=True)
    ahead, behind = (float(layer(x + sign * step * direction, truth)) for sign in (1, -1))
    slope = (dx.astype(np.float64) * direction).sum()
    assert abs((ahead - behind) / (2 * step) - slope) < 2e-3 * np.abs(dx * direction).sum()


def test_yolo_refuses_what_it_cannot_do():
    parameters, layer, x, truth = yolo_case(6)
    with pytest.raises(openbnns.LayerCreationError, match="reduction: expected sum"):
        LossLayer(Loss.yolo(parameters), input=x.shape[1:])
    with pytest.raises(openbnns.LayerCreationError, match="input: expected rows"):
        LossLayer(Loss.yolo(parameters), input=(3, 4, 2, 9), reduction="sum")
    bad = replace(parameters, anchors=[1, 2, 3])
    with pytest.raises(openbnns.LayerCreationError, match=r"anchors: expected \(count, 2\)"):
        LossLayer(Loss.yolo(bad), input=x.shape[1:], reduction="sum")
    with pytest.raises(ArrayError, match="weights: expected None for yolo"):
        layer(x, truth, weights=1.0)


# ---- words ----


def test_losses_are_values():
    assert Loss.of("mse") == Loss.mean_square_error == Loss.mse
    assert Loss.of("huber") == Loss.huber(1.0) != Loss.huber(2.0)
    assert len({Loss.mae, Loss.of("mean_absolute_error")}) == 1
    for loss in (Loss.hinge, Loss.huber(0.5), Loss.softmax_cross_entropy(0.1)):
        assert pickle.loads(pickle.dumps(loss)) == loss
    with pytest.raises(AttributeError, match="frozen"):
        Loss.mse.name = "other"
    layer = LossLayer(Loss.huber(0.5), input=(3,), reduction="sum")
    assert repr(layer) == (
        "LossLayer(Loss.huber(0.5), input=ArraySpec((3,), 'float32'), reduction='sum')"
    )
    assert (layer.loss, layer.reduction) == (Loss.huber(0.5), "sum")
    assert layer.output_spec.shape == ()


X, LABELS = np.zeros((2, 3), np.float32), np.zeros((2, 3), np.float32)
CREATION = [
    (("median",), {}, "loss: expected a Loss or one of categorical_cross_entropy, .*'median'"),
    (("mse",), {"reduction": "max"}, "reduction: expected one of none, sum, .*got 'max'"),
    (("mse",), {"input": openbnns.ArraySpec((3,), "int8")}, "input: expected float32, .*got int8"),
    (("mse",), {"output": (3,)}, "output: expected 1 value .*got \\(3,\\)"),
    (("mse",), {"output": openbnns.ArraySpec((), "float16")}, "output: expected float32; got"),
    ((Loss.huber(0.0),), {}, "delta: expected a number above 0; got 0"),
    ((Loss.softmax_cross_entropy(2.0),), {}, "label_smoothing: expected a number from 0 to 1"),
    (("mse",), {"num_threads": -1}, "num_threads: expected a whole number"),
]


@pytest.mark.parametrize(("positional", "named", "sentence"), CREATION)
def test_layers_that_cannot_be(positional, named, sentence):
    with pytest.raises(openbnns.LayerCreationError, match=r"\[LossLayer\] " + sentence):
        LossLayer(*positional, **{"input": (3,)} | named)


CALLS = [
    ((X[:, :2], LABELS), {}, r"x: expected \(N, 3\); got \(2, 2\)"),
    ((X, LABELS[:1]), {}, r"labels: expected \(2, 3\); got \(1, 3\)"),
    ((X, LABELS.astype("f8")), {}, "labels: expected float32; got float64"),
    ((X, LABELS.astype("i8")), {}, "labels: expected float32; got int64"),
    ((X, np.array([0, 1, 2])), {}, r"labels: expected class numbers \(2,\); got \(3,\)"),
    ((X, np.array([0, 3])), {}, "labels: expected class numbers from 0 to 2; got 3 for sample 1"),
    ((X, np.array([0, -1])), {}, "labels: expected class numbers from 0 to 2; got -1"),
    ((X, np.array([0, 1], ">i4")), {}, "labels: expected the byte order of this machine; got >i4"),
    ((X, LABELS), {"weights": np.ones(3, "f4")}, r"weights: expected a number, \(2,\) or \(2, 3\)"),
    ((X, LABELS), {"weights": np.ones(2)}, "weights: expected float32; got float64"),
    ((X, LABELS), {"out": np.empty(2, "f4")}, r"out: expected \(\); got \(2,\)"),
    ((X, LABELS), {"input_gradient": X[:1].copy()}, r"input_gradient: expected \(2, 3\)"),
    ((X, LABELS), {"accumulate": True}, "accumulate: expected an array to add to"),
]


@pytest.mark.parametrize(("positional", "named", "sentence"), CALLS)
def test_calls_that_cannot_be(positional, named, sentence):
    layer = LossLayer("softmax_cross_entropy", input=(3,))
    dx, _ = LossCase("huber", (2, 3)).empty_gradient()
    named = {"input_gradient": dx} | named
    if "accumulate" in named:
        named["input_gradient"] = True
    with pytest.raises(openbnns.BNNSError, match=r"\[LossLayer\] " + sentence):
        layer.apply(*positional, **named)
    assert is_sentinel(dx)


def test_class_numbers_want_a_softmax():
    with pytest.raises(openbnns.LayerApplyError, match="values like the input for hinge"):
        LossLayer("hinge", input=(3,))(X, np.array([0, 1]))


def test_backward_calls_that_cannot_be():
    layer = LossLayer("softmax_cross_entropy", input=(3,), reduction="none")
    with pytest.raises(ArrayError, match=r"grad_output: expected \(2,\); got \(3,\)"):
        layer.apply_backward(X, LABELS, np.ones(3, np.float32))
    assert layer.apply_backward(X, LABELS, input_gradient=None).input is None
    layer.close()
    with pytest.raises(openbnns.LayerApplyError, match="closed"):
        layer.apply_backward(X, LABELS)


# ---- the C interface ----


def loss_filter(function=3, reduction=1, n=4, parameter=0.0, outputs=1):
    block = c.BNNSLayerParametersLossHuber(
        function=function,
        reduction=reduction,
        i_desc=vector(n),
        o_desc=vector(outputs),
        huber_delta=parameter,
    )
    return c.BNNSFilterCreateLayerLoss(block, None)


def test_generic_applies_do_not_serve_losses():
    f, x, y = loss_filter(), np.zeros(4, np.float32), np.zeros(1, np.float32)
    assert c.BNNSFilterApply(f, x, y) == -1
    assert "loss filter has an apply call of its own" in c.last_error()
    dx, dy = vector(4, data=np.zeros(4, np.float32)), vector(1, data=y)
    status = c.BNNSFilterApplyBackwardBatch(f, 1, x, 0, dx, 0, None, 0, dy, 0, None, None)
    assert status == -1
    c.BNNSFilterDestroy(f)


def test_c_calls_by_class_number():
    f = loss_filter(function=1, n=3)
    x, y, dx = np.float32([[2, 0, 0], [0, 0, 2]]), np.zeros(1, np.float32), np.zeros((2, 3), "f4")
    classes = np.int16([0, 1])
    delta = vector(3, data=dx)
    status = c.obn_loss_apply_classes(
        f, 2, x, 0, classes, c.BNNSDataTypeInt16, 0, None, 0, y, delta, 0
    )
    assert status == 0, c.last_error()
    expected, gradient = LossLayer("softmax_cross_entropy", input=(3,), reduction="sum").apply(
        x, np.eye(3, dtype=np.float32)[classes], input_gradient=True
    )
    assert_close(y[0], float(expected))
    assert_close(dx, gradient)
    upstream = vector(1, data=np.float32([2]))
    status = c.obn_loss_apply_backward_classes(
        f, 2, x, 0, delta, 0, classes, c.BNNSDataTypeInt16, 0, None, 0, upstream, 0
    )
    assert status == 0, c.last_error()
    assert_close(dx, 2.0 * gradient.astype(np.float64))
    c.BNNSFilterDestroy(f)


def test_yolo_ignores_weights_in_c():
    parameters, _, x, truth = yolo_case(7)
    anchors = np.float32(parameters.anchors)
    block = c.BNNSLayerParametersLossYolo(
        function=5,
        reduction=1,
        i_desc=vector(x[0].size),
        o_desc=vector(1),
        number_of_grid_columns=4,
        number_of_grid_rows=3,
        number_of_anchor_boxes=2,
        anchor_box_size=8,
        scale_xy=1.0,
        scale_wh=1.0,
        scale_object=1.0,
        scale_no_object=1.0,
        scale_classification=1.0,
        object_minimum_iou=0.5,
        no_object_maximum_iou=0.5,
        rescore=True,
        anchors_data=anchors,
    )
    f = c.BNNSFilterCreateLayerLoss(block, None)
    assert f, c.last_error()
    y = np.zeros(1, np.float32)
    assert c.BNNSLossFilterApplyBatch(f, 2, x, 0, truth, 0, None, 17, y, None, 0) == 0
    expected, _ = oracle.yolo(x, truth, anchors, parameters)
    assert_close(y[0], expected, terms=expected)
    c.BNNSFilterDestroy(f)


@pytest.mark.skipif(not has_bfloat16(), reason="needs ml_dtypes")
def test_bfloat16_without_a_class_number_in_sight():
    """Stored as uint16, such labels must not be taken for class numbers."""
    case = LossCase("softmax_cross_entropy", (4, 9), dtype="bfloat16")
    x, labels, _ = arguments(case)
    layer = case.layer()
    assert_same_bits(layer(x.view(np.uint16), labels.view(np.uint16)), layer(x, labels))


def test_losses_of_samples_go_side_by_side_or_nowhere():
    layer = LossLayer("softmax_cross_entropy", input=(3,), reduction="none")
    x, labels = np.ones((2, 3), "f4"), np.array([0, 1])
    whole = np.full(4, 7, "f4")
    with pytest.raises(openbnns.LayerApplyError, match="side by side"):
        layer.apply(x, labels, out=whole[::2])
    assert (whole == 7).all()
    layer.apply(x, labels, out=whole[:2])
    np.testing.assert_array_equal(whole[2:], 7)
