"""What a call costs before it does anything: smallest calls from Python and C, import."""

import json
import subprocess
import sys
from collections.abc import Iterator
from timeit import Timer

import numpy as np
import openbnns

from benchmarks.harness import OURS, Row, Run, Timing, build, race

POOLING = "max pooling 1x1x4x4"
RELU = "relu 16 values"
DENSE = "fully connected 1x4 to 4"
CONVOLUTION = "convolution 3x3 1x1x4x4"
FUSED = "fully connected, batch norm, relu 2x4 to 4, training"


def rows(run: Run) -> Iterator[Row]:
    """Calls are timed as statements, so that no lambda is counted."""
    cases = {
        f"{POOLING}, Python": lambda: race(_pooling_statements(run), run),
        f"{RELU}, Python": lambda: race(_relu_statements(run), run),
        f"{DENSE}, Python": lambda: race(_dense_statements(run), run),
        f"{CONVOLUTION}, Python": lambda: race(_convolution_statements(run), run),
        f"{FUSED}, Python": lambda: race(_fused_statements(run), run),
        f"{POOLING}, C": lambda: _from_c("pooling"),
        f"{RELU}, C": lambda: _from_c("activation"),
        f"{DENSE}, C": lambda: _from_c("fully_connected"),
        f"{CONVOLUTION}, C": lambda: _from_c("convolution"),
        "import on top of NumPy": lambda: _imports(run),
    }
    for name, measure in cases.items():
        if run.wants("calls", name):
            yield Row("calls", name, "forward" if "import" not in name else "import", 1, measure())


def _pooling_statements(run: Run) -> dict[str, Timer]:
    x = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
    layer = openbnns.PoolingLayer("max", input=(1, 4, 4), kernel_size=2, num_threads=1)
    names = {"x": x, "y": np.empty((1, 1, 2, 2), np.float32), "apply": layer.apply}
    timers = {OURS: Timer("apply(x, out=y)", globals=names)}
    if "numpy" in run.peers:
        names["windows"] = x.reshape(1, 1, 2, 2, 2, 2)
        timers["numpy"] = Timer("windows.max(axis=(3, 5), out=y)", globals=names)
    if "torch" in run.peers:
        import torch

        raw = torch.ops.aten.max_pool2d_with_indices.out
        tensors = {"x": torch.from_numpy(x), "pool": torch.nn.functional.max_pool2d, "raw": raw}
        tensors |= {"y": torch.empty(1, 1, 2, 2), "i": torch.empty(1, 1, 2, 2, dtype=torch.int64)}
        timers["torch eager"] = Timer("pool(x, 2)", globals=tensors)
        timers["torch out="] = Timer("raw(x, (2, 2), (2, 2), out=y, indices=i)", globals=tensors)
    if "jax" in run.peers:
        import jax

        function = jax.jit(lambda x: x.reshape(1, 1, 2, 2, 2, 2).max((3, 5)))
        arrays = {"x": jax.numpy.asarray(x), "f": function}
        timers["jax"] = Timer("f(x).block_until_ready()", globals=arrays)
    return timers


def _relu_statements(run: Run) -> dict[str, Timer]:
    x = np.linspace(-1.0, 1.0, 16, dtype=np.float32).reshape(1, 16)
    layer = openbnns.ActivationLayer("rectified_linear", input=(16,), num_threads=1)
    names = {"x": x, "y": np.empty_like(x), "apply": layer.apply, "maximum": np.maximum}
    timers = {OURS: Timer("apply(x, out=y)", globals=names)}
    if "numpy" in run.peers:
        timers["numpy"] = Timer("maximum(x, 0.0, out=y)", globals=names)
    if "torch" in run.peers:
        import torch

        tensors = {"x": torch.from_numpy(x), "y": torch.empty(1, 16)}
        tensors |= {"relu": torch.relu, "clamp_min": torch.clamp_min}
        timers["torch eager"] = Timer("relu(x)", globals=tensors)
        timers["torch out="] = Timer("clamp_min(x, 0.0, out=y)", globals=tensors)
    if "jax" in run.peers:
        import jax

        arrays = {"x": jax.numpy.asarray(x), "f": jax.jit(jax.nn.relu)}
        timers["jax"] = Timer("f(x).block_until_ready()", globals=arrays)
    return timers


def _dense_statements(run: Run) -> dict[str, Timer]:
    x, w = np.ones((1, 4), np.float32), np.eye(4, dtype=np.float32)
    layer = openbnns.FullyConnectedLayer(w, num_threads=1)
    names = {"x": x, "wt": w.T, "y": np.empty_like(x), "apply": layer.apply, "matmul": np.matmul}
    timers = {OURS: Timer("apply(x, out=y)", globals=names)}
    if "numpy" in run.peers:
        timers["numpy"] = Timer("matmul(x, wt, out=y)", globals=names)
    if "torch" in run.peers:
        import torch

        tensors = {"x": torch.from_numpy(x), "w": torch.from_numpy(w), "y": torch.empty(1, 4)}
        tensors |= {"linear": torch.nn.functional.linear, "mm": torch.mm, "wt": tensors["w"].t()}
        timers["torch eager"] = Timer("linear(x, w)", globals=tensors)
        timers["torch out="] = Timer("mm(x, wt, out=y)", globals=tensors)
    if "jax" in run.peers:
        import jax

        arrays = {"x": jax.numpy.asarray(x), "w": jax.numpy.asarray(w)}
        arrays["f"] = jax.jit(lambda x, w: x @ w.T)
        timers["jax"] = Timer("f(x, w).block_until_ready()", globals=arrays)
    return timers


def _convolution_statements(run: Run) -> dict[str, Timer]:
    x, w = np.ones((1, 1, 4, 4), np.float32), np.ones((1, 1, 3, 3), np.float32)
    layer = openbnns.ConvolutionLayer(w, input=(1, 4, 4), padding=1, num_threads=1)
    names = {"x": x, "y": np.empty_like(x), "apply": layer.apply}
    timers = {OURS: Timer("apply(x, out=y)", globals=names)}
    if "torch" in run.peers:
        import torch

        tensors = {"x": torch.from_numpy(x), "w": torch.from_numpy(w)}
        tensors["conv"] = torch.nn.functional.conv2d
        timers["torch eager"] = Timer("conv(x, w, None, 1, 1)", globals=tensors)
    if "jax" in run.peers:
        import jax

        arrays = {"x": jax.numpy.asarray(x), "w": jax.numpy.asarray(w)}
        sides = ((1, 1), (1, 1))
        arrays["f"] = jax.jit(lambda x, w: jax.lax.conv_general_dilated(x, w, (1, 1), sides))
        timers["jax"] = Timer("f(x, w).block_until_ready()", globals=arrays)
    return timers


def _fused_statements(run: Run) -> dict[str, Timer]:
    x, w = np.ones((2, 4), np.float32), np.ones((4, 4), np.float32)
    layer = openbnns.FusedFullyConnectedNormalizationLayer(
        w, normalization="batch", activation="relu", num_threads=1
    )
    names = {"x": x, "y": np.empty_like(x), "apply": layer.apply}
    timers = {OURS: Timer("apply(x, training=True, out=y)", globals=names)}
    if "torch" in run.peers:
        import torch

        functions = torch.nn.functional
        tensors = {"x": torch.from_numpy(x), "w": torch.from_numpy(w)}
        tensors |= {name: getattr(functions, name) for name in ("linear", "batch_norm", "relu")}
        statement = "relu(batch_norm(linear(x, w), None, None, training=True), inplace=True)"
        timers["torch eager"] = Timer(statement, globals=tensors)
    return timers


def _from_c(call: str) -> dict[str, Timing]:
    """Timings of call_c.c, built against the installed headers and library."""
    library = openbnns.library_path()
    flags = ["-O2", f"-I{openbnns.include_dir()}", str(library), f"-Wl,-rpath,{library.parent}"]
    program = build("call_c.c", "call_c", flags)
    if program is None:
        return {}
    return {f"{OURS} C": Timing.of(json.loads(subprocess.check_output([program]))[call])}


def _imports(run: Run) -> dict[str, Timing]:
    """Each sample in a fresh interpreter that has NumPy already."""
    modules = {OURS: "openbnns"} | {peer: peer for peer in ("torch", "jax") if peer in run.peers}
    seconds: dict[str, list[float]] = {name: [] for name in modules}
    for _ in range(run.rounds):
        for name, module in modules.items():
            seconds[name].append(_import_seconds(module))
    return {name: Timing.of(values) for name, values in seconds.items()}


def _import_seconds(module: str) -> float:
    script = (
        "import time, numpy; start = time.perf_counter(); "
        f"import {module}; print(time.perf_counter() - start)"
    )
    return float(subprocess.check_output([sys.executable, "-c", script]))
