"""Whatever is given for an argument of a public function, it works or raises the package's own
error: every argument, one at a time, is replaced by values that it may not expect."""

import math

import numpy as np
import openbnns as bnns
import pytest
from openbnns import blocks, io, training

X = np.linspace(-1, 1, 24, dtype="f4").reshape(4, 6)
IMAGES = np.linspace(-1, 1, 2 * 3 * 6 * 6, dtype="f4").reshape(2, 3, 6, 6)
W = np.linspace(-1, 1, 12, dtype="f4").reshape(2, 6)
KERNEL = np.linspace(-1, 1, 2 * 3 * 3 * 3, dtype="f4").reshape(2, 3, 3, 3)
ROWS = np.linspace(-1, 1, 2 * 5 * 4, dtype="f4").reshape(2, 5, 4)
HEADS = np.linspace(-1, 1, 16, dtype="f4").reshape(2, 2, 4)
ONES = np.ones(3, "f4")

VALUES = {
    "0": 0,
    "-1": -1,
    "2**31": 1 << 31,
    "2**63": 1 << 63,
    "10**400": 10**400,
    "half": 0.5,
    "NaN": math.nan,
    "infinite": math.inf,
    "word": "word",
    "no word": "",
    "bytes": b"bytes",
    "None": None,
    "True": True,
    "nothing": (),
    "one": (1,),
    "zeros": (0, 0, 0),
    "negative": (-1, -1),
    "large": (1 << 40, 1 << 40),
    "nine": (1,) * 9,
    "words": ("a", "b"),
    "nested": [[1, 2], [3]],
    "dictionary": {"a": 1},
    "object": object(),
    "class": int,
    "complex": 1j,
    "empty array": np.zeros(0, "f4"),
    "scalar": np.float32(2),
    "array": np.zeros((2, 2, 2), "f8"),
    "words in an array": np.array(["a", "b"]),
    "objects": np.array([object(), None]),
}


def batches():
    return [(X, np.zeros(4, "i8"))]


def network(**given):
    given = {"blocks": [blocks.Dense(3)], "input": (6,), "loss": "mse", "seed": 1} | given
    return bnns.Network(given.pop("blocks"), **given)


def classifier():
    return network(loss="softmax_cross_entropy")


def trained(method, make=network, first=None):
    """A method of a new network each time."""

    def call(**given):
        target = make()
        if first is not None:
            first(target)
        return getattr(target, method)(**given)

    return call


def method(make, name):
    return lambda **given: getattr(make(), name)(**given)


def built(kind, shape):
    """A block is a description until it is built."""
    return lambda **given: bnns.Network([kind(**given)], input=shape).predict(np.zeros((1, *shape)))


def with_spread(kind):
    def call(xs, **given):
        return kind(*(xs if isinstance(xs, (tuple, list)) else (xs,)), **given)

    return call


def step(kind):
    """An optimizer's numbers are read when it steps."""

    def call(**given):
        w = np.ones(3, "f4")
        optimizer = kind(**given)
        optimizer.bind([w]).step([ONES])

    return call


def scheduled(schedule):
    def call(at=3, **given):
        return float(schedule(**given)(at))

    return call


def normalization():
    return bnns.NormalizationLayer(
        "batch",
        input=IMAGES,
        beta=np.zeros(3, "f4"),
        gamma=np.ones(3, "f4"),
        moving_mean=np.zeros(3, "f4"),
        moving_variance=np.ones(3, "f4"),
    )


def applied(layer):
    layer.apply(IMAGES, training=True)
    return layer


def fused():
    layer = bnns.FusedFullyConnectedNormalizationLayer(
        W, normalization="batch", beta=np.zeros(2, "f4"), gamma=np.ones(2, "f4")
    )
    layer.apply(X, training=True)
    return layer


def fused_parameters():
    layer = bnns.FusedParametersLayer(
        bnns.FusedFullyConnectedParameters(W),
        bnns.FusedNormalizationParameters("batch", np.zeros(2, "f4"), np.ones(2, "f4")),
        input=X,
    )
    layer.apply(X, training=True)
    return layer


def attention(**given):
    projection = bnns.Projection(HEADS, None)
    output = bnns.Projection(np.ones((4, 4), "f4"), None)
    words = {"query": projection, "key": projection, "value": projection, "output": output}
    return bnns.MultiheadAttention(**(words | {"lengths": 5} | given))


def optimizer(**given):
    base = {"learning_rate": 0.1, "gradient_scale": 1.0, "l2": 0.1, "gradient_clipping": None}
    return base | given


ADAM = optimizer(beta1=0.9, beta2=0.99, epsilon=1e-8, time_step=1, amsgrad=False)
NORM = {
    "input": IMAGES,
    "beta": np.zeros(3, "f4"),
    "gamma": ONES,
    "moving_mean": np.zeros(3, "f4"),
    "moving_variance": ONES.copy(),
    "momentum": 0.9,
    "epsilon": 1e-5,
    "activation": None,
    "num_threads": None,
}
CONVOLUTION = {
    "weights": KERNEL,
    "bias": None,
    "input": IMAGES,
    "stride": 1,
    "padding": 0,
    "dilation": 1,
    "activation": None,
    "num_threads": None,
}
FIT = {
    "x": X,
    "y": np.zeros((4, 3), "f4"),
    "epochs": 1,
    "batch_size": 2,
    "validation": None,
    "shuffle": True,
    "learning_rate": None,
    "callbacks": (),
    "micro_batches": 1,
    "progress": False,
}

# function, arguments it works with; what is left out cannot be wrong
CALLS = {
    "ArraySpec": (
        bnns.ArraySpec,
        {
            "shape": (2, 3),
            "dtype": "float32",
            "strides": (12, 4),
            "scale": 1.0,
            "offset": 0.0,
            "table": None,
            "bits": None,
            "layout": None,
        },
    ),
    "ArraySpec table": (
        bnns.ArraySpec,
        {"shape": (6,), "dtype": "uint8", "table": np.arange(16, dtype="f4"), "bits": 4},
    ),
    "ArraySpec.like": (bnns.ArraySpec.like, {"array": X}),
    "with_layout": (bnns.ArraySpec((2, 3)).with_layout, {"layout": "column_major"}),
    "dtype": (bnns.dtype, {"value": "float32"}),
    "empty": (bnns.empty, {"shape": (2, 3), "dtype": "float32"}),
    "set_num_threads": (bnns.set_num_threads, {"n": None}),
    "set_matmul_precision": (bnns.set_matmul_precision, {"precision": "highest"}),
    "set_seed": (bnns.set_seed, {"seed": 1}),
    "Activation.linear": (bnns.Activation.linear, {"alpha": 0.5}),
    "Activation.clamp": (bnns.Activation.clamp, {"low": 0.0, "high": 1.0}),
    "Activation.integers": (
        bnns.Activation.integer_linear_saturate,
        {"scale": 1, "offset": 0, "shift": 0},
    ),
    "Activation.channels": (
        bnns.Activation.integer_linear_saturate_per_channel,
        {"scale": (1,), "offset": (0,), "shift": (0,)},
    ),
    "Activation.of": (bnns.Activation.of, {"value": "relu"}),
    "ActivationLayer": (
        bnns.ActivationLayer,
        {"activation": "relu", "input": X, "output": None, "axes": None, "num_threads": None},
    ),
    "ActivationLayer softmax": (
        bnns.ActivationLayer,
        {"activation": "softmax", "input": X, "axes": -1},
    ),
    "ActivationLayer.apply": (bnns.ActivationLayer("relu", input=X).apply, {"x": X, "out": None}),
    "ActivationLayer.apply_backward": (
        bnns.ActivationLayer("relu", input=X).apply_backward,
        {"x": X, "y": X, "grad_output": X, "input_gradient": True, "accumulate": False},
    ),
    "activation": (
        bnns.activation,
        {"activation": "relu", "x": X, "out": None, "axes": None, "num_threads": None},
    ),
    "convert": (
        bnns.convert,
        {"x": X, "dtype": "float16", "scale": 1.0, "offset": 0.0, "out": None},
    ),
    "UnaryArithmeticLayer": (
        bnns.UnaryArithmeticLayer,
        {"function": "abs", "input": X, "output": None, "activation": None, "num_threads": None},
    ),
    "BinaryArithmeticLayer": (
        bnns.BinaryArithmeticLayer,
        {
            "function": "add",
            "input_a": X,
            "input_b": X,
            "output": None,
            "a_kind": "sample",
            "b_kind": "sample",
            "activation": None,
            "num_threads": None,
        },
    ),
    "BinaryArithmeticLayer.apply": (
        bnns.BinaryArithmeticLayer("add", input_a=X, input_b=X).apply,
        {"a": X, "b": X, "out": None},
    ),
    "BinaryArithmeticLayer.apply_backward": (
        bnns.BinaryArithmeticLayer("multiply", input_a=X, input_b=X).apply_backward,
        {
            "a": X,
            "b": X,
            "y": X,
            "grad_output": X,
            "a_gradient": True,
            "b_gradient": True,
            "accumulate": False,
        },
    ),
    "TernaryArithmeticLayer": (
        bnns.TernaryArithmeticLayer,
        {"function": "multiply_add", "input_a": X, "input_b": X, "input_c": X, "output": None},
    ),
    "ConvolutionLayer": (
        bnns.ConvolutionLayer,
        CONVOLUTION
        | {"groups": 1, "winograd": None, "weights_spec": None, "copy_parameters": False},
    ),
    "ConvolutionLayer.apply": (
        bnns.ConvolutionLayer(KERNEL, input=IMAGES).apply,
        {"x": IMAGES, "out": None},
    ),
    "ConvolutionLayer.apply_backward": (
        bnns.ConvolutionLayer(KERNEL, input=IMAGES).apply_backward,
        {
            "x": IMAGES,
            "y": None,
            "grad_output": np.ones((2, 2, 4, 4), "f4"),
            "input_gradient": True,
            "weights_gradient": True,
            "bias_gradient": None,
            "accumulate": False,
        },
    ),
    "ConvolutionLayer.work_bytes": (
        bnns.ConvolutionLayer(KERNEL, input=IMAGES).work_bytes,
        {"batch": 2},
    ),
    "ConvolutionLayer.describe": (
        bnns.ConvolutionLayer(KERNEL, input=IMAGES).describe,
        {"batch": 2},
    ),
    "TransposedConvolutionLayer": (
        bnns.TransposedConvolutionLayer,
        CONVOLUTION | {"weights": KERNEL.reshape(3, 2, 3, 3), "output_padding": 0},
    ),
    "FullyConnectedLayer": (
        bnns.FullyConnectedLayer,
        {
            "weights": W,
            "bias": None,
            "input": X,
            "output": None,
            "activation": None,
            "num_threads": None,
            "precision": None,
        },
    ),
    "FullyConnectedLayer.sparsify": (
        bnns.FullyConnectedLayer.sparsify,
        {
            "values": np.ones(2, "f4"),
            "coo": np.array([[0, 0], [1, 1]]),
            "csr": None,
            "dense_shape": (2, 6),
            "sparsity": None,
        },
    ),
    "FusedConvolutionNormalizationLayer": (
        bnns.FusedConvolutionNormalizationLayer,
        CONVOLUTION
        | {
            "beta": np.zeros(2, "f4"),
            "gamma": np.ones(2, "f4"),
            "moving_mean": np.zeros(2, "f4"),
            "moving_variance": np.ones(2, "f4"),
            "normalization": "batch",
            "momentum": 0.9,
            "epsilon": 1e-5,
        },
    ),
    "FusedFullyConnectedNormalizationLayer": (
        bnns.FusedFullyConnectedNormalizationLayer,
        {
            "weights": W,
            "beta": np.zeros(2, "f4"),
            "gamma": np.ones(2, "f4"),
            "moving_mean": np.zeros(2, "f4"),
            "moving_variance": np.ones(2, "f4"),
            "normalization": "batch",
            "momentum": 0.9,
            "epsilon": 1e-5,
        },
    ),
    "FusedParametersLayer": (
        with_spread(bnns.FusedParametersLayer),
        {
            "xs": (
                bnns.FusedFullyConnectedParameters(W),
                bnns.FusedNormalizationParameters("batch", np.zeros(2, "f4"), np.ones(2, "f4")),
            ),
            "input": X,
            "num_threads": None,
        },
    ),
    "FusedLayer.apply_backward": (
        lambda **given: fused().apply_backward(**given),
        {
            "x": X,
            "y": None,
            "grad_output": np.ones((4, 2), "f4"),
            "input_gradient": True,
            "weights_gradient": True,
            "bias_gradient": True,
            "beta_gradient": True,
            "gamma_gradient": True,
            "accumulate": False,
        },
    ),
    "FusedParametersLayer.apply_backward": (
        lambda **given: fused_parameters().apply_backward(**given),
        {
            "x": X,
            "y": None,
            "grad_output": np.ones((4, 2), "f4"),
            "input_gradient": True,
            "weights_gradient": True,
            "bias_gradient": True,
            "beta_gradient": True,
            "gamma_gradient": True,
            "accumulate": False,
        },
    ),
    "LossLayer": (
        bnns.LossLayer,
        {"loss": "mse", "input": X, "reduction": "mean", "num_threads": None},
    ),
    "LossLayer.apply": (
        bnns.LossLayer("mse", input=X).apply,
        {
            "x": X,
            "labels": X,
            "weights": None,
            "out": None,
            "input_gradient": None,
            "accumulate": False,
        },
    ),
    "LossLayer.apply classes": (
        bnns.LossLayer("softmax_cross_entropy", input=X).apply,
        {"x": X, "labels": np.zeros(4, "i4"), "weights": np.ones(4, "f4")},
    ),
    "LossLayer.apply_backward": (
        bnns.LossLayer("mse", input=X).apply_backward,
        {"x": X, "labels": X, "grad_output": 1.0, "weights": None, "input_gradient": True},
    ),
    "Loss.huber": (bnns.Loss.huber, {"delta": 1.0}),
    "Loss.of": (bnns.Loss.of, {"value": "mse"}),
    "YoloParameters": (
        lambda **given: bnns.LossLayer(
            bnns.Loss.yolo(bnns.YoloParameters(**given)), input=(2, 2, 2, 7), reduction="sum"
        ),
        {
            "grid": (2, 2),
            "anchor_box_size": 7,
            "anchors": np.ones((2, 2), "f4"),
            "rescore": True,
            "xy_scale": 1.0,
            "huber_delta": 1.0,
            "object_min_iou": 0.5,
        },
    ),
    "NormalizationLayer": (
        bnns.NormalizationLayer,
        NORM | {"normalization": "batch", "borrow_input": False},
    ),
    "Normalization.layer": (
        lambda **given: bnns.NormalizationLayer(bnns.Normalization.layer(**given), input=(3, 4, 4)),
        {"axis": 0},
    ),
    "Normalization.group": (
        lambda **given: bnns.NormalizationLayer(bnns.Normalization.group(**given), input=(3, 4, 4)),
        {"groups": 3},
    ),
    "Normalization.of": (bnns.Normalization.of, {"value": "batch"}),
    "NormalizationLayer.apply": (
        normalization().apply,
        {"x": IMAGES, "training": True, "out": None},
    ),
    "NormalizationLayer.apply_backward": (
        applied(normalization()).apply_backward,
        {
            "x": IMAGES,
            "y": IMAGES,
            "grad_output": IMAGES,
            "input_gradient": True,
            "beta_gradient": True,
            "gamma_gradient": True,
            "accumulate": False,
        },
    ),
    "NormalizationLayer.kept_bytes": (normalization().kept_bytes, {"batch": 2}),
    "PoolingLayer": (
        bnns.PoolingLayer,
        {
            "pooling": "max",
            "input": IMAGES,
            "kernel_size": 2,
            "stride": None,
            "padding": 0,
            "dilation": 1,
            "activation": None,
            "bias": None,
            "num_threads": None,
        },
    ),
    "PoolingLayer.apply": (
        bnns.PoolingLayer("max", input=IMAGES, kernel_size=2).apply,
        {"x": IMAGES, "out": None, "indices": None},
    ),
    "PoolingLayer.apply_backward": (
        bnns.PoolingLayer("average", input=IMAGES, kernel_size=2).apply_backward,
        {
            "x": IMAGES,
            "y": None,
            "grad_output": np.ones((2, 3, 3, 3), "f4"),
            "indices": None,
            "input_gradient": True,
            "bias_gradient": None,
            "accumulate": False,
        },
    ),
    "Pooling.of": (bnns.Pooling.of, {"value": "max"}),
    "Pooling.average": (bnns.Pooling.average, {"count_include_padding": True}),
    "BroadcastMatrixMultiplyLayer": (
        bnns.BroadcastMatrixMultiplyLayer,
        {
            "input_a": (2, 3),
            "input_b": (3, 4),
            "output": None,
            "transpose_a": False,
            "transpose_b": False,
            "alpha": 1.0,
            "accumulate_to_output": False,
            "quadratic": False,
            "a_is_weights": False,
            "num_threads": None,
            "copy_parameters": False,
        },
    ),
    "TensorContractionLayer": (
        bnns.TensorContractionLayer,
        {
            "equation": "a_ij, b_jk -> c_ik",
            "input_a": (2, 3),
            "input_b": (3, 4),
            "output": None,
            "alpha": 1.0,
            "beta": 0.0,
            "num_threads": None,
        },
    ),
    "GramLayer": (bnns.GramLayer, {"input": (2, 3, 3), "alpha": 1.0, "num_threads": None}),
    "matmul": (
        bnns.matmul,
        {
            "a": W,
            "b": W.T.copy(),
            "transpose_a": False,
            "transpose_b": False,
            "alpha": 1.0,
            "out": None,
            "workspace": None,
        },
    ),
    "matmul_workspace_size": (bnns.matmul_workspace_size, {"a": W, "b": W.T.copy()}),
    "quantize": (
        bnns.quantize,
        {
            "x": X,
            "dtype": "int8",
            "scale": 0.1,
            "bias": 0.0,
            "axis": None,
            "out": None,
            "num_threads": None,
        },
    ),
    "dequantize": (
        bnns.dequantize,
        {
            "x": np.ones((2, 3), "i1"),
            "dtype": "float32",
            "scale": 0.1,
            "bias": 0.0,
            "axis": None,
            "out": None,
        },
    ),
    "clip": (bnns.clip, {"x": X, "low": -1.0, "high": 1.0, "out": None}),
    "clip_by_norm": (bnns.clip_by_norm, {"x": X, "threshold": 1.0, "axes": None, "out": None}),
    "clip_by_global_norm": (
        bnns.clip_by_global_norm,
        {"xs": [X], "threshold": 1.0, "global_norm": None, "out": None},
    ),
    "norm": (bnns.norm, {"x": X, "axes": None, "out": None}),
    "norm_backward": (
        bnns.norm_backward,
        {
            "x": X,
            "y": bnns.norm(X),
            "grad_output": np.ones((), "f4"),
            "axes": None,
            "input_gradient": True,
            "accumulate": False,
        },
    ),
    "RandomGenerator": (
        bnns.RandomGenerator,
        {"seed": 1, "method": "aes_ctr", "num_threads": None},
    ),
    "RandomGenerator.state": (
        lambda state: setattr(bnns.RandomGenerator(1), "state", state),
        {"state": bnns.RandomGenerator(1).state},
    ),
    "RandomGenerator.uniform": (
        bnns.RandomGenerator(1).uniform,
        {"low": 0.0, "high": 1.0, "shape": 3, "dtype": "float32", "out": None},
    ),
    "RandomGenerator.normal": (
        bnns.RandomGenerator(1).normal,
        {"mean": 0.0, "std": 1.0, "shape": 3, "dtype": "float32", "out": None},
    ),
    "RandomGenerator.integers": (
        bnns.RandomGenerator(1).integers,
        {"low": 0, "high": 9, "shape": 3, "dtype": "int32", "out": None},
    ),
    "RandomGenerator.categorical": (
        bnns.RandomGenerator(1).categorical,
        {"probabilities": ONES, "shape": 3, "log": False, "out": None},
    ),
    "Projection": (
        lambda **given: attention(query=bnns.Projection(**given)),
        {"weights": HEADS, "bias": None},
    ),
    "MultiheadAttention": (
        attention,
        {
            "query": bnns.Projection(HEADS, None),
            "lengths": 5,
            "dtype": None,
            "add_zero_attention": False,
            "key_attention_bias": None,
            "value_attention_bias": None,
            "causal": False,
            "dropout": 0.0,
            "seed": 1,
            "num_threads": None,
        },
    ),
    "MultiheadAttention.apply": (
        attention().apply,
        {
            "query": ROWS,
            "key": ROWS,
            "value": ROWS,
            "key_mask": None,
            "attention_bias": None,
            "out": None,
            "cache": False,
        },
    ),
    "MultiheadAttention.apply_backward": (
        attention().apply_backward,
        {
            "query": ROWS,
            "key": ROWS,
            "value": ROWS,
            "y": None,
            "grad_output": ROWS,
            "key_mask": None,
            "attention_bias": None,
            "cache": None,
            "query_gradient": True,
            "key_weights_gradient": True,
            "key_bias_gradient": True,
            "output_weights_gradient": True,
            "accumulate": False,
        },
    ),
    "MultiheadAttention.cache_bytes": (attention().cache_bytes, {"batch": 2}),
    "SGDMomentumOptimizer": (
        step(bnns.SGDMomentumOptimizer),
        optimizer(momentum=0.9, nesterov=False, variant=0),
    ),
    "AdamOptimizer": (step(bnns.AdamOptimizer), ADAM),
    "AdamWOptimizer": (
        step(bnns.AdamWOptimizer),
        {k: v for k, v in ADAM.items() if k != "l2"} | {"weight_decay": 0.1},
    ),
    "RMSPropOptimizer": (
        step(bnns.RMSPropOptimizer),
        optimizer(alpha=0.9, epsilon=1e-8, centered=False, momentum=0.0),
    ),
    "Optimizer.step": (
        bnns.SGDMomentumOptimizer(0.1, momentum=0.9).step,
        {
            "parameters": [ONES.copy()],
            "gradients": [ONES],
            "accumulators": [ONES.copy()],
            "num_threads": None,
        },
    ),
    "Optimizer.bind": (
        bnns.AdamOptimizer().bind,
        {"parameters": [ONES.copy()], "num_threads": None},
    ),
    "BoundOptimizer.step": (bnns.AdamOptimizer().bind([ONES.copy()]).step, {"gradients": [ONES]}),
    "BoundOptimizer.load_state_dict": (
        bnns.AdamOptimizer().bind([ONES.copy()]).load_state_dict,
        {"state": bnns.AdamOptimizer().bind([ONES.copy()]).state_dict()},
    ),
    "BoundOptimizer.load_state_dict entry": (
        lambda entry, time: (
            bnns.RMSPropOptimizer()
            .bind([ONES.copy()])
            .load_state_dict({"time_step": time, "mean_square.0": entry})
        ),
        {"entry": ONES, "time": np.array(3)},
    ),
    "ClipByValue": (
        lambda **given: step(bnns.AdamOptimizer)(gradient_clipping=bnns.ClipByValue(**given)),
        {"low": -1.0, "high": 1.0},
    ),
    "ClipByGlobalNorm": (
        lambda **given: step(bnns.AdamOptimizer)(gradient_clipping=bnns.ClipByGlobalNorm(**given)),
        {"threshold": 1.0, "global_norm": None},
    ),
    "Dense": (
        built(blocks.Dense, (6,)),
        {
            "units": 3,
            "activation": None,
            "bias": True,
            "normalization": None,
            "momentum": 0.9,
            "epsilon": 1e-5,
            "initializer": "xavier",
        },
    ),
    "Dense normalized": (
        built(blocks.Dense, (6,)),
        {"units": 3, "normalization": "batch", "momentum": 0.9, "epsilon": 1e-5},
    ),
    "Convolution": (
        built(blocks.Convolution, (3, 6, 6)),
        {
            "channels": 2,
            "kernel_size": 3,
            "stride": 1,
            "padding": 0,
            "dilation": 1,
            "activation": None,
            "bias": True,
            "normalization": None,
            "groups": 1,
            "initializer": "he",
        },
    ),
    "Normalize": (
        built(blocks.Normalize, (3, 4, 4)),
        {"kind": "batch", "activation": None, "momentum": 0.9, "epsilon": 1e-5},
    ),
    "Activate": (built(blocks.Activate, (6,)), {"activation": "relu"}),
    "Pool": (
        built(blocks.Pool, (3, 4, 4)),
        {"kind": "max", "kernel_size": 2, "stride": None, "padding": 0},
    ),
    "Embedding": (built(blocks.Embedding, (6,)), {"entries": 3, "width": 2, "scale": 0.1}),
    "Position": (built(blocks.Position, (6,)), {"scale": 0.1}),
    "Attention": (
        built(blocks.Attention, (5, 4)),
        {"heads": 2, "causal": False, "bias": True, "initializer": "xavier", "dropout": 0.0},
    ),
    "Branch": (
        lambda first, join: network(blocks=[blocks.Branch(first, [], join=join)], input=(6,)),
        {"first": [blocks.Activate("relu")], "join": "add"},
    ),
    "Rows": (
        lambda **given: network(blocks=[blocks.Rows(*given.values())], input=(2, 6)),
        {"first": blocks.Activate("relu")},
    ),
    "initial": (
        blocks.initial,
        {"how": "xavier", "shape": (2, 3), "random": np.random.default_rng(0)},
    ),
    "Network": (
        network,
        {
            "blocks": [blocks.Activate("relu")],
            "input": (6,),
            "loss": "mse",
            "optimizer": None,
            "seed": 1,
        },
    ),
    "Network.forward": (trained("forward"), {"x": X, "training": False}),
    "Network.backward": (
        trained("backward", first=lambda network: network.forward(X, training=True)),
        {"grad_output": np.ones((4, 3), "f4")},
    ),
    "Network.train_step": (
        trained("train_step"),
        {"x": X, "labels": np.zeros((4, 3), "f4"), "weights": None, "micro_batches": 1},
    ),
    "Network.train_step weighted": (
        trained("train_step", classifier),
        {"x": X, "labels": np.zeros(4, "i8"), "weights": np.ones(4, "f4"), "micro_batches": 2},
    ),
    "Network.fit": (trained("fit"), FIT),
    "Network.fit scheduled": (
        lambda rate: network().fit(**(FIT | {"learning_rate": lambda _: rate})),
        {"rate": 0.1},
    ),
    "Network.fit classes": (
        trained("fit", classifier),
        {"x": X, "y": np.zeros(4, "i8"), "class_weights": (1.0, 2.0, 3.0)},
    ),
    "Network.fit batches": (trained("fit", classifier), {"x": batches, "epochs": 1}),
    "Network.fit batch": (
        lambda **given: network(loss="softmax_cross_entropy").fit([tuple(given.values())]),
        {"x": X, "y": np.zeros(4, "i8")},
    ),
    "Network.predict": (trained("predict"), {"x": X, "batch_size": 2}),
    "Network.evaluate": (
        trained("evaluate"),
        {"x": X, "y": np.zeros((4, 3), "f4"), "batch_size": 2},
    ),
    "Network.freeze": (lambda name: network().freeze(name), {"name": "dense_1"}),
    "Network.load_state": (trained("load_state"), {"state": network().state()}),
    "Network.load_state entry": (
        lambda entry: network().load_state(network().state() | {"dense_1.bias": entry}),
        {"entry": ONES},
    ),
    "Network.summary": (trained("summary"), {"batch": 2}),
    "Network.plan": (trained("plan"), {"batch": 2, "training": True}),
    "save_checkpoint": (io.save_checkpoint, {"path": "file", "arrays": {"w": ONES}, "notes": None}),
    "load_checkpoint": (lambda path: path is None or io.load_checkpoint(path), {"path": None}),
    "Network.save": (trained("save"), {"path": "file", "optimizer": False}),
    "Network.load": (lambda path: path is None or bnns.Network.load(path), {"path": None}),
    "Checkpoint": (
        lambda **given: network().fit(**(FIT | {"callbacks": [training.Checkpoint(**given)]})),
        {"path": "file", "every": 1},
    ),
    "EarlyStopping": (
        lambda **given: network().fit(**(FIT | {"callbacks": [training.EarlyStopping(**given)]})),
        {"patience": 1, "monitor": None, "restore": True},
    ),
    "cosine": (scheduled(training.cosine), {"rate": 0.1, "steps": 5, "warmup": 1, "last": 0.0}),
    "exponential": (scheduled(training.exponential), {"rate": 0.1, "factor": 0.5, "every": 2}),
    "piecewise": (lambda piece: float(training.piecewise((0, 0.1), piece)(3)), {"piece": (2, 0.1)}),
    "check_gradients": (
        bnns.check_gradients,
        {
            "target": bnns.ActivationLayer("tanh", input=X),
            "x": X,
            "parameters": None,
            "entries": 2,
            "worst": 1,
            "step": 1e-2,
            "tolerance": 1e-2,
            "seed": 0,
        },
    ),
}

# A number of things to make or do that is legal and takes for ever.
LEGAL = {
    ("Network.fit", "epochs"),
    ("Network.fit batches", "epochs"),
    ("Embedding", "entries"),
    ("Dense", "units"),
    ("Dense normalized", "units"),
    ("Convolution", "channels"),
    ("Embedding", "width"),
    ("RandomGenerator.uniform", "shape"),
    ("RandomGenerator.normal", "shape"),
    ("RandomGenerator.integers", "shape"),
    ("RandomGenerator.categorical", "shape"),
}


@pytest.fixture(autouse=True)
def _settings_stay(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # "word" is a legal path
    threads, precision = bnns.get_num_threads(), bnns.get_matmul_precision()
    yield
    bnns.set_num_threads(threads)
    bnns.set_matmul_precision(precision)


def copied(value):
    """Arrays that a call may write to are the call's own."""
    if isinstance(value, np.ndarray):
        return value.copy()
    return [copied(item) for item in value] if type(value) is list else value


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("hidden", 3),
        ("hidden", ("a",)),
        ("epochs", "a"),
        ("batch_size", None),
        ("batch_size", 0),
        ("learning_rate", "a"),
        ("validation", None),
        ("patience", 0.5),
        ("l2", "a"),
        ("activation", 3),
        ("activation", "nothing"),
    ],
)
def test_estimators_raise_our_own_errors(argument, value):
    pytest.importorskip("sklearn")
    from openbnns.sklearn import BNNSClassifier, BNNSRegressor

    for kind in (BNNSClassifier, BNNSRegressor):
        with pytest.raises(bnns.BNNSError, match=r"^\["):
            kind(**{"epochs": 1, argument: value}).fit(X, np.array([0, 1, 0, 1]))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CALLS)
def test_only_our_own_errors_come_out(name):
    function, arguments = CALLS[name]
    function(**{k: copied(v) for k, v in arguments.items()})  # as it is meant
    failed = []
    for argument in arguments:
        for word, value in VALUES.items():
            if word in ("2**31", "2**63", "10**400") and (name, argument) in LEGAL:
                continue
            if word == "class" and argument in ("initializer", "how"):
                continue  # a function of the user's, whose errors are theirs
            given = {k: copied(v) for k, v in arguments.items()} | {argument: copied(value)}
            try:
                function(**given)
            except bnns.BNNSError as error:
                if not str(error).startswith("["):
                    failed.append(f"{argument}={word}: says not where: {error}")
            except Exception as error:
                failed.append(f"{argument}={word}: {type(error).__name__}: {error}")
    assert not failed, "\n".join(failed)
