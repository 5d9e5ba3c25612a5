"""What runs can be asked: `Layer.describe`, and the lines of OPENBNNS_VERBOSE."""

import dataclasses
import os
import re
import subprocess
import sys

import numpy as np
import openbnns
import pytest
from openbnns import c

f32 = np.float32


def numbers(*shape):
    return np.linspace(-1, 1, int(np.prod(shape)), dtype=f32).reshape(shape)


def attention(length, width):
    each = openbnns.Projection(numbers(2, width, width))
    output = openbnns.Projection(numbers(width, 2 * width))
    return openbnns.MultiheadAttention(each, each, each, output, length)


LAYERS = {
    "activation": lambda: openbnns.ActivationLayer("relu", input=(5,)),
    "arithmetic": lambda: openbnns.BinaryArithmeticLayer("add", input_a=(5,), input_b=(5,)),
    "attention": lambda: attention(6, 4),
    "convolution": lambda: openbnns.ConvolutionLayer(numbers(4, 2, 3, 3), input=(2, 9, 9)),
    "transposed_convolution": lambda: openbnns.TransposedConvolutionLayer(
        numbers(2, 4, 3, 3), input=(2, 9, 9)
    ),
    "fully_connected": lambda: openbnns.FullyConnectedLayer(numbers(3, 5), input=(5,)),
    "fused": lambda: openbnns.FusedParametersLayer(
        openbnns.FusedConvolutionParameters(numbers(4, 2, 3, 3)),
        openbnns.FusedNormalizationParameters("batch", np.zeros(4, f32), np.ones(4, f32)),
        input=(2, 9, 9),
    ),
    "loss": lambda: openbnns.LossLayer("mean_square_error", input=(5,)),
    "matrix_product": lambda: openbnns.BroadcastMatrixMultiplyLayer(input_a=(3, 4), input_b=(4, 5)),
    "normalization": lambda: openbnns.NormalizationLayer("layer", input=(5,)),
    "pooling": lambda: openbnns.PoolingLayer("max", kernel_size=2, input=(2, 8, 8)),
}


@pytest.mark.parametrize("family", LAYERS)
def test_every_layer_says_what_it_runs(family):
    layer = LAYERS[family]()
    found = layer.describe(batch=3)
    assert found.family == family
    assert found.target == openbnns.isa()
    assert found.threads == openbnns.get_num_threads()
    assert found.batch == 3
    assert found.workspace_bytes == c.obn_filter_work_bytes(layer.handle, 3)
    assert found.saved_bytes == c.obn_filter_kept_bytes(layer.handle, 3)
    assert found.forward
    assert found.input_gradient
    assert found.weight_gradient
    assert found.input.endswith(":float32")
    assert found.output.endswith(":float32")
    for name in ("family", "forward", "target", "threads", "workspace_bytes"):
        assert f"{name}={getattr(found, name)}" in str(found).split()
    assert found == layer.describe(3)
    assert found != layer.describe(4)
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.forward = "faster"


def test_algorithms_are_those_that_were_chosen():
    image = (16, 12, 12)
    wide = openbnns.ConvolutionLayer(numbers(16, 16, 3, 3), input=image)
    c.obn_filter_set_winograd(wide.handle, 1)
    assert wide.describe().forward == "winograd"
    c.obn_filter_set_winograd(wide.handle, 0)
    assert wide.describe().forward == wide.describe().weight_gradient == "direct"
    depthwise = openbnns.ConvolutionLayer(numbers(16, 1, 3, 3), input=image, groups=16)
    assert depthwise.describe().input_gradient == "depthwise"
    assert openbnns.NormalizationLayer("instance", input=image).describe().kind == "instance_norm"
    assert LAYERS["activation"]().describe().kind == "rectified_linear"
    assert attention(6, 4).describe().input_gradient == "saved_scores"
    assert attention(600, 4).describe().input_gradient == "blocks"
    assert LAYERS["fused"]().describe().kind == "convolution+batch_norm"
    one = openbnns.PoolingLayer("max", kernel_size=2, input=(2, 8, 8), num_threads=1)
    assert one.describe().threads == 1


def test_fused_layers_name_their_layers():
    convolution = openbnns.FusedConvolutionParameters(numbers(4, 2, 3, 3))
    norm = openbnns.FusedNormalizationParameters("batch", np.zeros(4, f32), np.ones(4, f32))
    pooling = openbnns.FusedPoolingParameters("max", 2, 2, 0)
    pooled = openbnns.FusedParametersLayer(convolution, norm, pooling, input=(2, 10, 10)).describe()
    assert pooled.kind == "convolution+batch_norm+max"
    assert pooled.output == "4x4x4:float32"
    add = openbnns.FusedBinaryArithmeticParameters("add")
    images = openbnns.ArraySpec((4, 5, 5), "float32")
    added = openbnns.FusedParametersLayer(add, norm, inputs=[images, images]).describe(2)
    assert added.kind == "add+batch_norm"
    assert added.input == "4x5x5:float32+4x5x5:float32"
    assert added.saved_bytes > 0
    rounded = openbnns.FusedParametersLayer(
        convolution,
        openbnns.FusedQuantizationParameters(scale=9.0),
        input=(2, 9, 9),
        output=openbnns.ArraySpec((4, 7, 7), "int8"),
    ).describe()
    assert rounded.kind == "convolution+quantization"
    assert rounded.output == "4x7x7:int8"
    assert rounded.input_gradient == rounded.weight_gradient == "none"


def test_what_cannot_be_described_is_refused():
    layer = LAYERS["convolution"]()
    for batch in (-1, 0.5, "1", None):
        with pytest.raises(openbnns.ArgumentError, match=r"ConvolutionLayer.describe\] batch"):
            layer.describe(batch)
    with pytest.raises(openbnns.LayerApplyError, match="batch"):
        layer.describe(2**62)
    layer.close()
    with pytest.raises(openbnns.LayerApplyError, match="closed"):
        layer.describe()
    assert c.obn_filter_describe(layer.handle, 1, None, 0) == -1
    assert c.last_error().startswith("filter: ")


# ---- OPENBNNS_VERBOSE ----

CALLS = """
import numpy as np
from test_describe import LAYERS

for family, make in LAYERS.items():
    layer = make()
    sample = lambda spec: np.ones((2, *spec.shape), np.float32)
    if family == "attention":
        x = np.ones((2, 6, 4), np.float32)
        y = layer(x, x, x)
        layer.apply_backward(x, x, x, y, y)
    elif family in ("arithmetic", "matrix_product"):
        shapes = [(2, 5)] * 2 if family == "arithmetic" else [(2, 3, 4), (2, 4, 5)]
        a, b = (np.ones(shape, np.float32) for shape in shapes)
        y = layer(a, b)
        layer.apply_backward(a, b, y, y)
    elif family == "loss":
        x = sample(layer.input_spec)
        layer(x, x)
        layer.apply_backward(x, x)
    elif family in ("normalization", "fused"):
        x = sample(layer.input_spec)
        y = layer(x, training=True)
        layer.apply_backward(x, y=y, grad_output=y)
    else:
        x = sample(layer.input_spec)
        y = layer(x)
        layer.apply_backward(x, y, y)
"""
LINE = re.compile(
    r"openbnns,(?P<family>\w+)(:(?P<kind>[\w+]+))?,(?P<call>forward|backward),(?P<algorithm>[\w+]+),"
    r"batch(?P<batch>\d+)_[\dx]+:\w+(\+[\dx]+:\w+)*->[\dx]+:\w+,(?P<time>\d+\.\d+|failed)"
)


def lines(said, program=CALLS):
    environment = {name: value for name, value in os.environ.items() if name != "OPENBNNS_VERBOSE"}
    paths = [os.path.dirname(__file__), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    if said is not None:
        environment["OPENBNNS_VERBOSE"] = said
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stderr.splitlines()


def test_verbose_prints_a_line_for_every_call():
    found = [LINE.fullmatch(line) or pytest.fail(line) for line in lines("1")]
    assert [(line["family"], line["call"]) for line in found] == [
        (family, call) for family in LAYERS for call in ("forward", "backward")
    ]
    assert {line["batch"] for line in found} == {"2"}
    for line in found:
        described = LAYERS[line["family"]]().describe(2)
        of_call = {described.input_gradient, described.weight_gradient}
        if line["call"] == "forward":
            of_call = {described.forward}
        assert set(line["algorithm"].split("+")) == of_call
        assert (line["kind"] or "") == described.kind
        assert line["time"] != "failed"


@pytest.mark.parametrize("said", [None, "", "0"])
def test_nothing_is_printed_unasked(said):
    assert lines(said) == []


def test_verbose_tells_of_calls_that_fail():
    program = """
import numpy as np
from openbnns import c
from test_describe import LAYERS
layer = LAYERS["pooling"]()
assert c.BNNSFilterApplyBatch(layer.handle, 1, None, 0, np.empty(99, np.float32), 0) == -1
"""
    (line,) = lines("1", program)
    assert LINE.fullmatch(line)["time"] == "failed"
