"""Fused layers: the values, gradients and refusals of two layers in one."""

from dataclasses import replace

import numpy as np
import openbnns
import pytest
from cases import fused as cases
from cases import (
    gaps_untouched,
    generator,
    in_threads,
    is_sentinel,
    sentinel_array,
    unforeseen_refusals,
)
from cases.convolution import ConvolutionCase
from cases.fully_connected import FullyConnectedCase
from cases.fused import FusedCase
from cases.marks import marked, small
from cases.weighted import has_smooth_slope
from hypothesis import given, settings
from hypothesis import strategies as st
from openbnns import (
    ArrayError,
    ArraySpec,
    FusedBinaryArithmeticParameters,
    FusedConvolutionNormalizationLayer,
    FusedConvolutionParameters,
    FusedDequantizationParameters,
    FusedFullyConnectedNormalizationLayer,
    FusedFullyConnectedParameters,
    FusedNormalizationParameters,
    FusedParametersLayer,
    FusedQuantizationParameters,
    FusedTernaryArithmeticParameters,
    FusedUnaryArithmeticParameters,
    LayerApplyError,
    LayerCreationError,
    Normalization,
)
from oracles.differences import STEP, assert_gradient_matches
from oracles.tolerance import assert_close, assert_same_bits

CASES = [marked(case) for case in cases.CASES]


def trained(case, **replaced):
    """(layer, inputs, w, y) after a training call into an array with gaps."""
    inputs, w = case.inputs(), case.weights()
    layer, (y, owner) = case.layer(weights=w, **replaced), case.empty_output()
    assert layer.apply(*inputs, training=True, out=y) is y
    assert gaps_untouched(y, owner)
    return layer, inputs, w, y


# ---- the case list ----


@pytest.mark.parametrize("case", CASES)
def test_training_matches_closed_form(case):
    """Inputs and weights are left alone, running statistics move."""
    mean, variance = case.norm.moving_values()
    _, inputs, w, y = trained(case, moving_mean=mean, moving_variance=variance)
    expected, error = case.expected(inputs, w)
    assert_close(y, expected, case.dtype, error, 1.0)
    for array, before in zip(inputs, case.inputs(), strict=True):
        assert_same_bits(array, before)
    if w is not None:
        assert_same_bits(w, case.weights())
    if case.moving:
        moved = case.expected_moving(inputs, w, *case.norm.moving_values())
        tolerance = 1e-5 if case.dtype == "float32" else 2e-2
        for array, values in zip((mean, variance), moved, strict=True):
            np.testing.assert_allclose(array, values, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("case", small(cases.CASES))
def test_inference_matches_closed_form(case):
    """Running statistics where there are any, otherwise those of the batch; nothing moves."""
    inputs, w, (mean, variance) = case.inputs(), case.weights(), case.norm.moving_values()
    layer = case.layer(weights=w, moving_mean=mean, moving_variance=variance)
    y, owner = case.empty_output()
    layer.apply(*inputs, training=False, out=y)
    expected, error = case.expected(inputs, w, mean, variance)
    assert_close(y, expected, case.dtype, error, 1.0)
    assert gaps_untouched(y, owner)
    if case.moving:
        for array, old in zip((mean, variance), case.norm.moving_values(), strict=True):
            assert_same_bits(array, old)


@pytest.mark.parametrize("case", CASES)
def test_backward_matches_closed_form(case):
    layer, inputs, w, y = trained(case)
    dy = case.output_gradient()
    targets = {name: case.empty_input(k) for k, name in enumerate(case.input_names)}
    wanted = {
        f"{case.fields[name]}_gradient": array if name in given_names(case) else None
        for name, (array, _) in targets.items()
    }
    grads = layer.apply_backward(*inputs, y, dy, **wanted)
    expected = case.expected_gradients(inputs, w, y, dy)
    found = case.named(grads)
    assert {name for name, array in found.items() if array is not None} == given_names(case)
    for name, values in expected.values.items():
        if found[name] is not None:
            assert_close(found[name], values, str(found[name].dtype), expected.errors[name], 1.0)
    for name, (array, owner) in targets.items():
        if found[name] is not None:
            assert found[name] is array
            assert gaps_untouched(array, owner)


def given_names(case):
    """The gradients that True asks for: of inputs and of parameters that were given."""
    names = set(case.input_names)
    if case.is_weighted:
        names |= {"dw"} | ({"db"} if case.first.bias else set())
    else:
        kinds = zip(case.input_names, case.first.kinds, strict=False)
        names -= {name for name, kind in kinds if kind == "constant"}
    return names | {f"d{name}" for name in ("beta", "gamma") if getattr(case, f"has_{name}")}


@pytest.mark.parametrize("case", [marked(case) for case in cases.CASES if not case.is_one_layer])
def test_same_bits_as_two_layers(case):
    found, separate = case.results(), case.separate_results()
    assert separate["y"] is not None
    for name, array in separate.items():
        if array is not None:
            key = f"{name} sum" if name.startswith("d") else name
            assert_same_bits(np.ascontiguousarray(found[key]), np.ascontiguousarray(array))


@pytest.mark.parametrize("case", small(cases.CASES, lambda case: not case.is_one_layer))
def test_same_bits_as_two_layers_without_training(case):
    layer, inputs = case.layer(), case.inputs()
    y, _ = case.empty_output()
    layer.apply(*inputs, training=False, out=y)
    assert_same_bits(y, case.separate_results(training=False)["y"])


@pytest.mark.parametrize("activation", ["identity", "rectified_linear"])
def test_pairs_done_as_one_layer_keep_no_result_between(activation):
    """The digit program's first layer: beside its input it keeps a few numbers per channel."""
    first = ConvolutionCase((4, 1, 20, 20), 32, padding=((1, 1), (1, 1)))
    case = FusedCase(first, moving=True, activation=activation)
    assert case.is_one_layer
    x, dy = case.inputs()[0], case.output_gradient()
    layer = case.layer()
    assert layer.kept_bytes(4) < x.nbytes + 8192 < dy.nbytes / 10
    found, separate = case.results(), case.separate_results()
    np.testing.assert_allclose(found["y"], separate["y"], rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("case", small(cases.CASES))
def test_each_gradient_alone(case):
    """One gradient at a time has the bits of all together; the inputs it does not need may be
    missing."""
    layer, inputs, _, y = trained(case)
    dy = case.output_gradient()
    needs_y = None if case.activation == "identity" else y
    together = case.named(layer.apply_backward(*inputs, y, dy))
    for name, array in together.items():
        if array is None:
            continue
        given = inputs if name == "dw" or not case.is_weighted else (None,)
        alone = case.named(layer.apply_backward(*given, needs_y, dy, **case.only(name)))
        assert_same_bits(alone.pop(name), array)
        assert all(other is None for other in alone.values())


@pytest.mark.parametrize("case", small(cases.CASES, lambda case: case.dtype == "float32"))
def test_backward_accumulates(case):
    layer, inputs, _, y = trained(case)
    dy = case.output_gradient()
    plain = layer.apply_backward(*inputs, y, dy)
    rng = generator(case, 9)
    targets, before = {}, {}
    for name, gradient in plain._asdict().items():
        if gradient is not None:
            array = targets[f"{name}_gradient"] = np.empty_like(gradient)  # columns stay together
            array[...] = rng.standard_normal(gradient.shape)
            before[name] = array.astype(np.float64)
    added = layer.apply_backward(*inputs, y, dy, **targets, accumulate=True)
    for name, old in before.items():
        gradient = getattr(plain, name)
        size = np.abs(gradient).max() + np.abs(old)
        assert_close(getattr(added, name), old + gradient, terms=size)


@pytest.mark.parametrize("case", small(cases.CASES, has_smooth_slope))
def test_gradients_match_central_differences(case):
    """Of our own forward pass, in every direction: inputs, weights, gamma."""
    w, inputs, spaced_dy = case.weights(), case.inputs(), case.output_gradient()
    gamma, (y, _) = case.norm.gamma_values(), case.empty_output()
    layer = case.layer(weights=w, gamma=gamma)
    rng = generator(case, 4)

    def check(array, name):
        def forward(values):
            array[...] = values
            layer.apply(*inputs, training=True, out=y)
            return y.copy()

        def gradient(values, dy):
            array[...] = values
            spaced_dy[...] = dy
            layer.apply(*inputs, training=True, out=y)
            return case.named(layer.apply_backward(*inputs, y, spaced_dy))[name]

        start = np.array(array)
        assert_gradient_matches(forward, gradient, start, rng, np.float32(STEP / 8))
        array[...] = start

    for array, name in zip(inputs, case.input_names, strict=True):
        if name in given_names(case):
            check(array, name)
    if w is not None:
        check(w, "dw")
    if gamma is not None:
        check(gamma, "dgamma")


@pytest.mark.parametrize(
    "case", small(cases.CASES, lambda case: case.dtype == "float32" and not case.full)
)
def test_values_and_gradients_match_torch(case):
    torch_judge = pytest.importorskip("oracles.torch_judge", exc_type=ImportError)
    if case.kind == "instance" and case.shape[2:] == (1, 1):
        pytest.skip("PyTorch wants more than one value")
    layer, inputs, w, y = trained(case)
    dy = case.output_gradient()
    judged = torch_judge.fused(inputs, w, dy, case)
    _, error = case.expected(inputs, w)
    assert_close(y, judged.pop("y"), terms=error, unit=1.0)
    found = case.named(layer.apply_backward(*inputs, y, dy))
    errors = case.expected_gradients(inputs, w, y, dy).errors
    for name, array in found.items():
        if array is not None:
            assert_close(array, judged[name], terms=errors[name], unit=1.0)


# ---- numbers from the specification ----


SPEC_Y = [[-1, -1], [1, 1]]
SPEC_DY = np.float32([[1, 0], [0, 2]])


def test_vector_fully_connected():
    layer = FusedFullyConnectedNormalizationLayer(
        np.eye(2, dtype="f4"),
        bias=np.zeros(2, "f4"),
        normalization="batch",
        epsilon=1e-5,
        beta=np.zeros(2, "f4"),
        gamma=np.ones(2, "f4"),
    )
    x = np.float32([[1, 2], [3, 4]])
    y = layer(x, training=True)
    np.testing.assert_allclose(y, SPEC_Y, atol=1e-4)
    grads = layer.apply_backward(x, y, SPEC_DY)
    np.testing.assert_array_equal(grads.beta, [1, 2])
    np.testing.assert_allclose(grads.gamma, [-1, 2], atol=1e-4)
    for gradient in (grads.input, grads.weights, grads.bias):
        np.testing.assert_allclose(gradient, np.zeros_like(gradient), atol=1e-4)


def test_vector_add():
    layer = FusedParametersLayer(
        FusedBinaryArithmeticParameters("add"),
        FusedNormalizationParameters("batch", np.zeros(2, "f4"), np.ones(2, "f4"), epsilon=1e-5),
        inputs=[(2,), (2,)],
    )
    a, b = np.float32([[1, 2], [2, 3]]), np.float32([[0, 0], [1, 1]])
    y = layer(a, b, training=True)
    np.testing.assert_allclose(y, SPEC_Y, atol=1e-4)
    grads = layer.apply_backward(None, None, None, SPEC_DY)
    np.testing.assert_array_equal(grads.beta, [1, 2])
    np.testing.assert_allclose(grads.gamma, [-1, 2], atol=1e-4)
    np.testing.assert_allclose(grads.a, np.zeros((2, 2)), atol=1e-4)
    assert_same_bits(grads.a, grads.b)


# ---- the named layers are the same as their descriptions ----


@pytest.mark.parametrize("options", cases.KINDS, ids=str)
def test_convolution_normalization_layer(options):
    case = FusedCase(cases.SAME, activation="rectified_linear", **options)
    first, norm = case.first_parameters(), case.norm_parameters()
    words = ("beta", "gamma", "moving_mean", "moving_variance", "momentum", "epsilon", "activation")
    layer = FusedConvolutionNormalizationLayer(
        first.weights,
        input=case.first.image[1:],
        bias=first.bias,
        padding=1,
        normalization=norm.normalization,
        **{word: getattr(norm, word) for word in words},
    )
    assert layer.output_spec.shape == case.shape[1:]
    (x,), dy = case.inputs(), case.output_gradient()
    y = layer(x, training=True)
    grads = layer.apply_backward(x, y, dy)
    expected = case.results()
    assert_same_bits(y, expected["y"])
    for name, array in case.named(grads).items():
        assert_same_bits(array, expected[f"{name} sum"])


def test_fully_connected_normalization_layer():
    case = FusedCase(cases.DENSE, activation="tanh", moving=True)
    first, norm = case.first_parameters(), case.norm_parameters()
    words = ("beta", "gamma", "moving_mean", "moving_variance", "momentum", "epsilon", "activation")
    layer = FusedFullyConnectedNormalizationLayer(
        first.weights,
        bias=first.bias,
        normalization="batch",
        **{word: getattr(norm, word) for word in words},
    )
    (x,), dy = case.inputs(), case.output_gradient()
    y = layer.apply(x, training=True)
    grads = layer.apply_backward(x, y, dy)
    expected = case.results()
    assert_same_bits(y, expected["y"])
    for name, array in case.named(grads).items():
        assert_same_bits(array, expected[f"{name} sum"])


@pytest.mark.parametrize(
    ("first", "words", "fields"),
    [
        (cases.CONVOLUTION, ("x",), ("input", "weights", "bias", "beta", "gamma")),
        (cases.ADD, ("a", "b"), ("a", "b", "beta", "gamma")),
        (cases.SCALED, ("a", "b", "c"), ("a", "b", "c", "beta", "gamma")),
    ],
)
def test_arrays_by_position_or_keyword(first, words, fields):
    case = FusedCase(first)
    layer, inputs, _, y = trained(case)
    dy = case.output_gradient()
    grads = layer.apply_backward(*inputs, y, dy)
    assert grads._fields == fields
    named = dict(zip(words, inputs, strict=True))
    expected = layer.apply(*inputs, training=False)
    assert_same_bits(layer.apply(**named, training=False), expected)
    with pytest.raises(TypeError, match="no more by name; got y"):
        layer.apply(*inputs, y=y, training=False)
    for others in (
        layer.apply_backward(*inputs, y=y, grad_output=dy),
        layer.apply_backward(**named, y=y, grad_output=dy),
    ):
        for array, other in zip(grads, others, strict=True):
            if array is not None:
                assert_same_bits(array, other)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'grad_output'"):
        layer.apply_backward(*inputs, y)
    with pytest.raises(TypeError, match="unexpected keyword argument 'nothing_gradient'"):
        layer.apply_backward(*inputs, y, dy, nothing_gradient=None)


def test_arithmetic_has_no_gradient_of_weights():
    first = replace(cases.ADD, function="square", shapes=cases.ADD.shapes[:1])
    layer, inputs, _, y = trained(FusedCase(first))
    grads = layer.apply_backward(*inputs, y, y)
    assert grads.weights is grads.bias is None
    with pytest.raises(LayerApplyError, match="weights_gradient: expected None, since arithmetic"):
        layer.apply_backward(*inputs, y, y, weights_gradient=np.zeros(3, "f4"))


# ---- quantization ----

QUANTIZED_FIRSTS = [
    replace(cases.CONVOLUTION, dtype="float32"),
    replace(cases.CONVOLUTION, dtype="float16"),
    cases.TRANSPOSED,
    cases.DENSE,
]


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32"])
@pytest.mark.parametrize("axis", [None, 0, -1])
@pytest.mark.parametrize("first", QUANTIZED_FIRSTS, ids=str)
def test_quantization_behind_a_layer(first, axis, dtype):
    """The integers of the layer by itself, quantized; training does not matter."""
    case = FusedCase(first)
    x, sample = first.input(), case.shape[1:]
    rng = np.random.default_rng(3)
    length = 1 if axis is None else sample[axis]
    scale = rng.uniform(5, 60, length).astype(np.float32)
    bias = rng.uniform(-3, 90, length).astype(np.float32)
    layer = FusedParametersLayer(
        case.first_parameters(),
        FusedQuantizationParameters(scale, bias, axis),
        input=ArraySpec(x.shape[1:], first.dtype),
        output=ArraySpec(sample, dtype),
    )
    z = first.layer().apply(x)
    of_batch = None if axis is None else axis if axis < 0 else axis + 1
    expected = openbnns.quantize(z, scale=scale, bias=bias, axis=of_batch, dtype=dtype)
    for training in (False, True):
        y = layer(x, training=training)
        assert y.dtype == dtype
        np.testing.assert_array_equal(y, expected)
    with pytest.raises(LayerApplyError, match=r"^\[FusedParametersLayer\] "):
        layer.apply_backward(x, None, y)


def test_quantization_with_a_scale_per_sample():
    case, scale = FusedCase(cases.DENSE), np.linspace(1, 50, 9, dtype=np.float32)
    layer = FusedParametersLayer(
        case.first_parameters(),
        FusedQuantizationParameters(scale, axis="batch"),
        output=ArraySpec((20,), "int16"),
    )
    (x,) = case.inputs()
    z = case.first.layer().apply(x)
    expected = openbnns.quantize(z, scale=scale, axis=0, dtype="int16")
    np.testing.assert_array_equal(layer(x, training=False), expected)
    with pytest.raises(LayerApplyError, match="batch"):
        layer(x[:8], training=False)
    with pytest.raises(ArrayError, match=r"scale: expected one value per sample; got \(3, 3\)"):
        FusedParametersLayer(
            case.first_parameters(),
            FusedQuantizationParameters(scale.reshape(3, 3), axis="batch"),
            output=ArraySpec((20,), "int16"),
        )


def test_dequantization_behind_an_integer_convolution():
    rng = np.random.default_rng(4)
    x = rng.integers(-20, 20, (2, 3, 6, 5)).astype("int8")
    w = rng.integers(-3, 3, (4, 3, 1, 1)).astype("int8")
    scale, bias = np.float32([1, 2, 4, 8]), np.float32([0, 1, -1, 3])
    layer = FusedParametersLayer(
        FusedConvolutionParameters(w),
        FusedDequantizationParameters(scale, bias, axis=0),
        input=ArraySpec((3, 6, 5), "int8"),
        output=(4, 6, 5),
    )
    z = openbnns.ConvolutionLayer(
        w, input=ArraySpec((3, 6, 5), "int8"), output=ArraySpec((4, 6, 5), "int8")
    ).apply(x)
    y = layer(x, training=False)
    np.testing.assert_array_equal(y, openbnns.dequantize(z, scale=scale, bias=bias, axis=1))


# ---- parameters ----


def test_shared_parameters_are_read_at_every_call():
    case = FusedCase(cases.DENSE, moving=True)
    first, norm = case.first_parameters(), case.norm_parameters()
    layer = FusedParametersLayer(first, norm)
    assert layer.components == (first, norm)
    (x,) = case.inputs()
    before = layer(x, training=True)
    for array in (first.weights, first.bias, norm.beta, norm.gamma):
        array += 0.25
    after = layer(x, training=True)
    assert not np.allclose(before, after)
    fresh = FusedParametersLayer(first, norm)
    assert_same_bits(after, fresh(x, training=True))


def test_copied_parameters_stay():
    case = FusedCase(cases.DENSE)
    first, norm = case.first_parameters(), case.norm_parameters()
    layer = FusedParametersLayer(first, norm, copy_parameters=True)
    (x,) = case.inputs()
    before = layer(x, training=True)
    for array in (first.weights, first.bias, norm.beta, norm.gamma):
        array += 0.25
    assert_same_bits(layer(x, training=True), before)


def test_running_statistics_are_the_callers():
    mean, variance = np.zeros(4, np.float32), np.ones(4, np.float32)
    case = FusedCase(cases.CONVOLUTION, moving=True, momentum=0.75)
    layer = case.layer(moving_mean=mean, moving_variance=variance)
    inputs, w = case.inputs(), case.weights()
    zeros, ones = np.zeros(4), np.ones(4)
    for _ in range(3):
        zeros, ones = case.expected_moving(inputs, w, zeros, ones)
        layer.apply(*inputs, training=True)
        np.testing.assert_allclose(mean, zeros, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(variance, ones, rtol=1e-5)
    y = layer.apply(*inputs, training=False)
    expected, error = case.expected(inputs, w, mean, variance)
    assert_close(y, expected, terms=error, unit=1.0)


def test_descriptions_are_frozen_and_show_themselves():
    w = np.zeros((4, 3, 3, 3), np.float32)
    first = FusedConvolutionParameters(w, stride=2)
    assert first.weights is w
    assert "stride=2" in repr(first)
    assert "weights=array (4, 3, 3, 3)" in repr(first)
    with pytest.raises(AttributeError, match="FusedConvolutionParameters is frozen"):
        first.stride = 1
    with pytest.raises(AttributeError, match="FusedConvolutionParameters is frozen"):
        del first.stride
    norm = FusedNormalizationParameters("batch")
    assert norm.normalization == Normalization.batch
    ternary = FusedTernaryArithmeticParameters(b_kind="parameter", c_kind="constant")
    assert (ternary.a_kind, ternary.b_kind, ternary.c_kind) == ("sample", "parameter", "constant")
    assert FusedUnaryArithmeticParameters("exp").input_kind == "sample"
    layer = FusedParametersLayer(first, norm, input=(3, 8, 8))
    assert "FusedConvolutionParameters, FusedNormalizationParameters" in repr(layer)
    assert layer.output_spec.shape == (4, 3, 3)


def test_shared_inputs_share_a_gradient():
    """y = norm(x·x): one target receives the sum of both gradients."""
    case = FusedCase(replace(cases.ADD, function="multiply"))
    layer, (x, _), dy = case.layer(), case.inputs(), case.output_gradient()
    y = layer.apply(x, x, training=True)
    dx, _ = sentinel_array(x.shape, "float32")
    layer.apply_backward(x, x, y, dy, a_gradient=dx, b_gradient=dx)
    square = FusedCase(replace(case.first, function="square", shapes=case.first.shapes[:1]))
    layer = square.layer(beta=case.norm.beta_values(), gamma=case.norm.gamma_values())
    y = layer.apply(x, training=True)
    grads = layer.apply_backward(x, y, dy)
    np.testing.assert_allclose(dx, grads.input, rtol=1e-5, atol=1e-5)


def test_repeated_backward_calls():
    """What a training call keeps serves any number of backward calls, an inference between them
    does not matter."""
    case = FusedCase(cases.CONVOLUTION, moving=True, activation="rectified_linear")
    layer, inputs, _, y = trained(case)
    dy = case.output_gradient()
    first = layer.apply_backward(*inputs, y, dy)
    layer.apply(*inputs, training=False)
    again = layer.apply_backward(*inputs, y, dy)
    for one, two in zip(first, again, strict=True):
        assert_same_bits(one, two)


def test_training_calls_of_one_layer_exclude_each_other():
    """A second thread is turned away or comes after; nobody reads half a state."""
    case = cases.TYPICAL[0]
    layer, (x,), dy = case.layer(), case.inputs(), case.output_gradient()
    y = layer.apply(x, training=True)
    dw = layer.apply_backward(x, y, dy).weights
    refused, wrong = [], []

    def work(_):
        for _ in range(20):
            try:
                if not np.array_equal(layer.apply(x, training=True), y):
                    wrong.append("values")
                if not np.array_equal(layer.apply_backward(x, y, dy).weights, dw):
                    wrong.append("gradients")
            except LayerApplyError as error:
                refused.append(str(error))

    in_threads(4, work)
    assert wrong == []
    assert unforeseen_refusals(refused) == []


def test_layers_say_what_they_keep():
    case = FusedCase(cases.SAME, activation="rectified_linear")
    layer = case.layer()
    assert 0 < layer.kept_bytes(1) <= layer.kept_bytes(64) < 1 << 24
    assert layer.work_bytes(4) >= 0
    assert layer.kept_bytes(8) <= 2 * case.norm.layer().kept_bytes(8)
    layer.close()
    with pytest.raises(LayerApplyError, match="got a closed one"):
        layer.kept_bytes(1)


# ---- shapes ----


@settings(deadline=None)
@given(
    image=st.tuples(*[st.integers(1, n) for n in (3, 4, 9, 9)]),
    outputs=st.integers(1, 5),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    options=st.sampled_from(cases.KINDS[:5]),
)
def test_any_convolution_shape(image, outputs, kernel, stride, options):
    first = ConvolutionCase(image, outputs, kernel, stride, ((1, 1), (1, 1)))
    case = FusedCase(first, activation="tanh", epsilon=0.1, **options)
    found, separate = case.results(), case.separate_results()
    for name, array in separate.items():
        if array is not None:
            assert_same_bits(found[f"{name} sum" if name.startswith("d") else name], array)
    expected, error = case.expected(case.inputs(), case.weights())
    assert_close(found["y"], expected, terms=error, unit=1.0)


@settings(deadline=None)
@given(
    batch=st.integers(1, 40),
    inputs=st.integers(1, 40),
    outputs=st.integers(1, 40),
    kind=st.sampled_from(("batch", "layer")),
)
def test_any_fully_connected_shape(batch, inputs, outputs, kind):
    case = FusedCase(FullyConnectedCase(batch, inputs, outputs), kind=kind, epsilon=0.1)
    found, separate = case.results(), case.separate_results()
    for name, array in separate.items():
        if array is not None:
            assert_same_bits(found[f"{name} sum" if name.startswith("d") else name], array)
    expected, error = case.expected(case.inputs(), case.weights())
    assert_close(found["y"], expected, terms=error, unit=1.0)


# ---- refusals ----

W = np.zeros((4, 3, 3, 3), np.float32)
CONVOLUTION, NORM = FusedConvolutionParameters(W), FusedNormalizationParameters("batch")
DENSE = FusedFullyConnectedParameters(np.zeros((4, 3), np.float32))
ADD, QUANTIZER = FusedBinaryArithmeticParameters("add"), FusedQuantizationParameters()


@pytest.mark.parametrize(
    ("components", "options", "sentence"),
    [
        ((), {}, "components: expected a convolution or .* got none"),
        ((CONVOLUTION,), {}, "components: .* got FusedConvolutionParameters$"),
        ((NORM, CONVOLUTION), {}, "components: .* got FusedNormalizationParameters, Fused"),
        ((CONVOLUTION, NORM, NORM), {}, "components: "),
        ((ADD, QUANTIZER), {"inputs": [(3,), (3,)]}, "components: .* then a normalization, .* got"),
        ((CONVOLUTION, NORM), {}, "input: expected the shape of a sample; got None"),
        ((CONVOLUTION, NORM), {"inputs": [(3, 8, 8)] * 2}, "inputs: expected one; got 2"),
        ((ADD, NORM), {"input": (3,)}, "inputs: expected 2 for 'add'; got 1"),
        ((ADD, NORM), {"input": (3,), "inputs": [(3,)] * 2}, "inputs: expected None beside input"),
        ((ADD, NORM), {"inputs": [(3, 4), (3, 4)]}, "input: expected samples"),
        ((CONVOLUTION, QUANTIZER), {"input": (3, 8, 8)}, "output: expected an ArraySpec with"),
        ((CONVOLUTION, QUANTIZER), {"input": (3, 8, 8), "output": (4, 6, 6)}, "output: expected"),
        (
            (CONVOLUTION, FusedNormalizationParameters(Normalization.group(3))),
            {"input": (3, 8, 8)},
            "groups",
        ),
        ((DENSE, FusedNormalizationParameters("batch", momentum=2.0)), {}, "momentum: expected"),
        ((DENSE, FusedNormalizationParameters("batch", activation="softmax")), {}, "activation"),
    ],
)
def test_impossible_pairs_are_refused_with_a_sentence(components, options, sentence):
    with pytest.raises(LayerCreationError, match=rf"^\[FusedParametersLayer\] .*{sentence}"):
        FusedParametersLayer(*components, **options)


def test_wrong_parameters_are_refused():
    with pytest.raises(ArrayError, match=r"beta: expected \(4,\); got \(3,\)"):
        FusedParametersLayer(
            CONVOLUTION, FusedNormalizationParameters("batch", np.zeros(3, "f4")), input=(3, 8, 8)
        )
    with pytest.raises(ArrayError, match=r"bias: expected \(4,\); got \(2,\)"):
        FusedConvolutionNormalizationLayer(
            W, input=(3, 8, 8), bias=np.zeros(2, "f4"), normalization="batch"
        )
    with pytest.raises(LayerCreationError, match="normalization: expected one of"):
        FusedNormalizationParameters("power")


def test_backward_needs_a_training_call_with_this_batch():
    case = FusedCase(cases.CONVOLUTION, activation="rectified_linear")
    layer, inputs, dy = case.layer(), case.inputs(), case.output_gradient()
    y = layer.apply(*inputs, training=False)
    dx, _ = case.empty_input()

    def backward(part=slice(None), **more):
        (x,) = inputs
        options = {"y": y[part], "grad_output": dy[part], "input_gradient": dx} | more
        return layer.apply_backward(x[part], **options)

    with pytest.raises(LayerApplyError, match="training"):
        backward()
    layer.apply(*inputs, training=True, out=y)
    with pytest.raises(LayerApplyError, match="batch"):
        backward(slice(2), input_gradient=None)
    with pytest.raises(LayerApplyError, match="output"):
        backward(y=None)
    with pytest.raises(ArrayError, match=r"gamma_gradient: expected \(4,\); got \(3,"):
        backward(gamma_gradient=np.zeros(3, "f4"))
    with pytest.raises(ArrayError, match="accumulate: expected names out of input, weights, bias"):
        backward(accumulate={"a"})
    assert is_sentinel(dx)
    backward()
    assert not is_sentinel(dx)


def test_wrong_arrays_are_refused_with_a_sentence():
    layer, (x,) = FusedCase(cases.CONVOLUTION).layer(), FusedCase(cases.CONVOLUTION).inputs()
    with pytest.raises(TypeError, match=r"\[FusedParametersLayer\] expected 1 arrays; got 2"):
        layer.apply(x, x, training=True)
    with pytest.raises(ArrayError, match="x: expected float32; got float64"):
        layer.apply(x.astype("f8"), training=True)
    with pytest.raises(ArrayError, match="out: expected"):
        layer.apply(x, training=True, out=x)
    with pytest.raises(TypeError):
        layer.apply(x)  # training has no default
    layer.close()
    with pytest.raises(LayerApplyError, match="got a closed one"):
        layer.apply(x, training=True)


def test_constants_have_no_gradient():
    case = FusedCase(cases.SCALED)
    layer, inputs, _, y = trained(case)
    grads = layer.apply_backward(*inputs, y, y)
    assert grads.c is None
    with pytest.raises(LayerApplyError, match="c_gradient: expected None, since a constant has"):
        layer.apply_backward(*inputs, y, y, c_gradient=inputs[2].copy())


@pytest.mark.parametrize("first", [cases.ADD, cases.MULTIPLY, cases.SCALED])
def test_calls_with_several_inputs_can_be_recorded(first):
    layer, inputs, _, y = trained(FusedCase(first))
    expected = layer.apply_backward(*inputs, y, y)._asdict()
    out = np.zeros_like(y)
    arrays = {name: np.zeros_like(array) for name, array in expected.items() if array is not None}
    targets = {f"{name}_gradient": array for name, array in arrays.items()}
    program = openbnns._core.record(
        [
            ("forward", lambda: layer.apply(*inputs, training=True, out=out)),
            ("backward", lambda: layer.apply_backward(*inputs, out, y, **targets)),
        ]
    )
    assert not out.any()
    program()
    assert_same_bits(out, y)
    for name, array in arrays.items():
        assert_same_bits(array, expected[name])
