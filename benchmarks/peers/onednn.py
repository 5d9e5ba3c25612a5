"""oneDNN without a framework: the wheel `onednn-devel-cpu-gomp`, called through onednn.cpp.

Its buffers stay in the layout it is given, so this is what a framework built on it could reach: no
Python worth mentioning, no allocation, no conversion at the edges.
"""

import ctypes
import importlib.metadata
from pathlib import Path

import numpy as np

from benchmarks.harness import ROUGH, Contender, Learner, Trainer, build

LAYOUTS = ("nchw", "nhwc", "nChw16c")
IMAGE_LAYOUTS = ("nchw", "nhwc", "any")  # any: what oneDNN likes best, blocked where it can
FROM_Y = ("rectified_linear", "tanh", "sigmoid")  # those with a second form for backward


def _folder_of(distribution: str, name: str) -> Path:
    """The folder that holds the file `name` of an installed distribution."""
    for file in importlib.metadata.files(distribution) or ():
        if file.name == name:
            return Path(file.locate()).resolve().parent
    raise ImportError(f"{distribution} does not contain {name}")


def _load() -> ctypes.CDLL:
    include = _folder_of("onednn-devel-cpu-gomp", "dnnl.hpp")
    libraries = _folder_of("onednn-cpu-gomp", "libdnnl.so")
    flags = ["-O3", "-march=native", "-fno-math-errno", "-fPIC", "-shared", "-fopenmp"]
    flags += [f"-I{include}", f"-L{libraries}", "-ldnnl", f"-Wl,-rpath,{libraries}"]
    path = build("onednn.cpp", "onednn", flags)
    if path is None:
        raise ImportError("onednn.cpp needs g++")
    library = ctypes.CDLL(str(path))
    floats = np.ctypeslib.ndpointer(np.float32, flags="C_CONTIGUOUS")
    sizes = ctypes.POINTER(ctypes.c_int64)
    library.onednn_error.restype = ctypes.c_char_p
    library.onednn_pooling.restype = ctypes.c_void_p
    library.onednn_pooling.argtypes = [ctypes.c_char_p] * 2 + [sizes] * 6
    library.onednn_activation.restype = ctypes.c_void_p
    library.onednn_activation.argtypes = [ctypes.c_char_p, ctypes.c_int] + [ctypes.c_int64] * 2
    library.onednn_set.argtypes = [ctypes.c_void_p, floats, floats]
    library.onednn_get.argtypes = [ctypes.c_void_p, floats, floats]
    number, text = ctypes.c_int64, ctypes.c_char_p
    makers = {
        "onednn_convolution": [text, ctypes.c_int] + [sizes] * 7 + [number],
        "onednn_fully_connected": [text] + [number] * 3,
        "onednn_matmul": [ctypes.c_int] + [number] * 3,
    }
    for name, types in makers.items():
        getattr(library, name).restype = ctypes.c_void_p
        getattr(library, name).argtypes = types
    real, flag = ctypes.c_float, ctypes.c_int
    chains = {
        "onednn_normalization": [text, flag, sizes, number, real, flag],
        "onednn_fused_convolution": [text] + [sizes] * 7 + [number, real, flag],
        "onednn_fused_fully_connected": [text] + [number] * 3 + [real, flag],
        "onednn_fused_add": [text, sizes, real, flag],
        "onednn_arithmetic": [text, flag, sizes, sizes],
        "onednn_batched_matmul": [flag, flag] + [number] * 4,
        "onednn_attention": [number] * 5 + [flag],
    }
    for name, types in chains.items():
        getattr(library, name).restype = ctypes.c_void_p
        getattr(library, name).argtypes = types
    for name in ("onednn_chain_set", "onednn_chain_get"):
        getattr(library, name).argtypes = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)]
    library.onednn_chain_run.argtypes = [ctypes.c_void_p, ctypes.c_int]
    library.onednn_chain_free.argtypes = [ctypes.c_void_p]
    library.onednn_network.restype = ctypes.c_void_p
    library.onednn_network.argtypes = [text, sizes, number, sizes, number, flag, flag, real]
    pointers = ctypes.POINTER(ctypes.c_void_p)
    library.onednn_network_set.argtypes = [ctypes.c_void_p, pointers] + [real] * 4
    library.onednn_network_step.restype = real
    library.onednn_network_step.argtypes = [ctypes.c_void_p] * 3
    library.onednn_network_free.argtypes = [ctypes.c_void_p]
    for name in ("onednn_trainer_set", "onednn_trainer_get"):
        getattr(library, name).argtypes = [ctypes.c_void_p] * 4
    library.onednn_trainer_run.argtypes = [ctypes.c_void_p, ctypes.c_int]
    library.onednn_trainer_free.argtypes = [ctypes.c_void_p]
    for name in ("onednn_forward", "onednn_backward", "onednn_free"):
        getattr(library, name).argtypes = [ctypes.c_void_p]
    return library


def _version(library: ctypes.CDLL) -> str:
    numbers = (ctypes.c_int * 3)()
    library.onednn_version(numbers)
    return ".".join(map(str, numbers))


_library = _load()
VERSIONS = {"onednn": _version(_library)}


class _Layer:
    """Owns a layer of onednn.cpp."""

    def __init__(self, handle, x, dy):
        if not handle:
            raise RuntimeError("oneDNN: " + _library.onednn_error().decode())
        self._handle, self._shapes = handle, (dy.shape, x.shape)
        _library.onednn_set(handle, x, dy)
        self.forward()

    def __del__(self):
        _library.onednn_free(self._handle)

    def forward(self):
        _library.onednn_forward(self._handle)

    def backward(self):
        _library.onednn_backward(self._handle)

    def result(self):
        self.forward()
        self.backward()
        y, dx = (np.empty(shape, np.float32) for shape in self._shapes)
        _library.onednn_get(self._handle, y, dx)
        return y, dx

    def contender(self, name):
        return Contender(name, self.forward, self.backward, self.result)


class _Trainer:
    """Owns a trainer of onednn.cpp; without dy it has a forward pass alone."""

    def __init__(self, handle, x, w, y_shape, dy=None):
        if not handle:
            raise RuntimeError("oneDNN: " + _library.onednn_error().decode())
        self._handle, self._shapes = handle, (y_shape, x.shape, w.shape)
        self._has_gradients = dy is not None
        pointers = (None if array is None else array.ctypes.data for array in (x, w, dy))
        _library.onednn_trainer_set(handle, *pointers)

    def __del__(self):
        _library.onednn_trainer_free(self._handle)

    def _run(self, number):
        handle, run = self._handle, _library.onednn_trainer_run
        return lambda: run(handle, number)

    def result(self):
        count = 3 if self._has_gradients else 1
        for number in range(count):
            _library.onednn_trainer_run(self._handle, number)
        arrays = [np.empty(shape, np.float32) for shape in self._shapes[:count]]
        pointers = [array.ctypes.data for array in arrays] + [None] * (3 - count)
        _library.onednn_trainer_get(self._handle, *pointers)
        return tuple(arrays)

    def trainer(self, name):
        gradients = [self._run(number) for number in (1, 2)] if self._has_gradients else [None] * 2
        return Trainer(name, self._run(0), *gradients, self.result)


class _Chain:
    """Owns a chain of onednn.cpp; `given` and `shapes` in the order its maker says."""

    def __init__(self, handle, given, shapes):
        self._handle, self._shapes = handle, shapes
        if not handle:
            raise RuntimeError("oneDNN: " + _library.onednn_error().decode())
        _library.onednn_chain_set(handle, _pointers(given))
        self.forward()

    def __del__(self):
        _library.onednn_chain_free(self._handle)

    def forward(self):
        _library.onednn_chain_run(self._handle, 0)

    def backward(self):
        _library.onednn_chain_run(self._handle, 1)

    def arrays(self):
        self.forward()
        self.backward()
        found = [np.empty(shape, np.float32) for shape in self._shapes]
        _library.onednn_chain_get(self._handle, _pointers(found))
        return tuple(found)


def _pointers(arrays):
    return (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))


def attention(case, p, dy, compiled):
    """A chain of products and softmax, which keeps the probabilities."""
    sizes = (case.batch, case.targets, case.sources, case.heads, case.width)
    handle = _library.onednn_attention(*sizes, case.causal)
    parameters = (p.wq, p.bq, p.wk, p.bk, p.wv, p.bv, p.wo, p.bo)
    hidden = np.triu(np.full((case.targets, case.sources), -np.inf, np.float32), 1)
    given = (p.q, p.k, p.v, *parameters, dy, *([hidden] if case.causal else []))
    square = (case.model, case.model)
    shapes = (dy.shape, p.q.shape, p.k.shape, p.v.shape, *[square] * 4, *[(case.model,)] * 4)
    chain = _Chain(handle, given, shapes)
    return [Contender("onednn", chain.forward, chain.backward, chain.arrays)]


def normalization(case, x, dy, compiled):
    """One contender per layout of images. Running statistics are not updated."""
    gamma, beta = case.gamma_values(), case.beta_values()
    relu = case.activation == "rectified_linear"
    groups = case.groups if case.kind == "group" else 0
    found = []
    for layout in ("plain",) if x.ndim == 2 else LAYOUTS:
        handle = _library.onednn_normalization(
            layout.encode(), x.ndim, *_sizes(x.shape), groups, case.epsilon, relu
        )
        if not handle and case.kind == "group":
            return []  # older ones do not have it
        chain = _Chain(handle, (x, gamma, beta, dy), (dy.shape, x.shape, gamma.shape, beta.shape))
        found.append(Contender(f"onednn {layout}", chain.forward, chain.backward, chain.arrays))
    return found


def arithmetic(case, a, b, dy, compiled):
    """Forward only."""
    handle = _library.onednn_arithmetic(case.function.encode(), a.ndim, *_sizes(a.shape, b.shape))
    chain = _Chain(handle, (a, b), (dy.shape,))
    return [Contender("onednn", chain.forward, None, chain.arrays)]


def matmul(case, a, b, dy, compiled):
    _, m, n = dy.shape
    k = a.shape[1 if case.transpose[0] else 2]
    handle = _library.onednn_batched_matmul(*case.transpose, case.batch, m, n, k)
    chain = _Chain(handle, (a, b, dy), (dy.shape, a.shape, b.shape))
    return [Contender("onednn", chain.forward, chain.backward, chain.arrays)]


def fused(case, inputs, w, dy, compiled):
    """A chain of primitives, ReLU inside the norm. Weights are plain and converted in every pass.
    Running statistics are not updated."""
    first, epsilon = case.first, case.norm.epsilon
    relu = case.norm.activation == "rectified_linear"
    parameters = (case.norm.gamma_values(), case.norm.beta_values())
    weights = () if case.word == "arithmetic" else (w,)
    given = (*inputs, *weights, *parameters, dy)
    shapes = [array.shape for array in (dy, inputs[0], *weights, *parameters)]

    def handle(layout):
        if case.word == "arithmetic":
            return _library.onednn_fused_add(layout, *_sizes(dy.shape), epsilon, relu)
        if case.word == "fully_connected":
            sizes = (first.batch, first.inputs, first.outputs)
            return _library.onednn_fused_fully_connected(layout, *sizes, epsilon, relu)
        before, after = zip(*first.padding, strict=True)
        shapes = (first.image, first.output_shape, first.kernel, first.stride, first.dilation)
        sizes = _sizes(*shapes, before, after)
        return _library.onednn_fused_convolution(layout, *sizes, first.groups, epsilon, relu)

    def contender(layout):
        chain = _Chain(handle(layout.encode()), given, shapes)

        def result():
            y, dx, *others = chain.arrays()
            return y, *(dx for _ in inputs), *others

        name = f"onednn {'blocked' if layout == 'any' else layout}"
        return Contender(name, chain.forward, chain.backward, result)

    layouts = {"fully_connected": ("plain", "any"), "arithmetic": LAYOUTS}
    return [contender(layout) for layout in layouts.get(case.word, IMAGE_LAYOUTS)]


def _sizes(*lists):
    return [(ctypes.c_int64 * len(numbers))(*numbers) for numbers in lists]


def convolution(case, x, w, dy, compiled):
    """One trainer per layout of the images; weights are plain and converted in every pass."""
    before, after = zip(*case.padding, strict=True)
    shapes = (case.image, case.output_shape, case.kernel, case.stride, case.dilation)
    trainers = []
    for layout in IMAGE_LAYOUTS:
        handle = _library.onednn_convolution(
            layout.encode(), case.transposed, *_sizes(*shapes, before, after), case.groups
        )
        name = f"onednn {'blocked' if layout == 'any' else layout}"
        trainers.append(_Trainer(handle, x, w, dy.shape, dy).trainer(name))
    return trainers


def fully_connected(case, x, w, dy, compiled):
    """Weights as they are, and as oneDNN likes them, converted in every pass."""
    sizes = (case.batch, case.inputs, case.outputs)
    return [
        _Trainer(
            _library.onednn_fully_connected(layout.encode(), *sizes), x, w, dy.shape, dy
        ).trainer(f"onednn {'blocked' if layout == 'any' else layout}")
        for layout in ("plain", "any")
    ]


def gemm(case, x, w, compiled):
    stored = w.T if case.column_major else w
    handle = _library.onednn_matmul(not case.column_major, case.batch, case.outputs, case.inputs)
    return [_Trainer(handle, x, stored, case.output_shape).trainer("onednn matmul")]


def pooling(case, x, dy, compiled):
    """One contender per layout."""
    before, after = zip(*case.padding, strict=True)
    sizes = _sizes(case.image, case.pooled[2:], case.kernel, case.stride, before, after)
    return [
        _Layer(
            _library.onednn_pooling(case.function.encode(), layout.encode(), *sizes), x, dy
        ).contender(f"onednn {layout}")
        for layout in LAYOUTS
    ]


def activation(case, x, dy, compiled):
    """Backward from x, and from y where oneDNN has that form."""
    columns = x.shape[-1]

    def layer(from_y):
        handle = _library.onednn_activation(
            case.function.encode(), from_y, x.size // columns, columns
        )
        return _Layer(handle, x, dy)

    contenders = [layer(False).contender("onednn")]
    if case.function in FROM_Y:
        contenders.append(layer(True).contender("onednn from y"))
    return contenders


def loss(case, x, labels, compiled):
    """It has none."""
    return []


def optimizer(case):
    """It has none."""
    return []


def training(case, compiled):
    """A chain of primitives, ReLU inside the norm; loss and Adam in plain C++. The layers hand on
    images in the layout of their convolution, and weights lie as it likes them."""
    if not case.stages:  # the chain begins with a convolution
        return []
    return [_Network(case, layout).learner() for layout in IMAGE_LAYOUTS]


class _Network:
    """Owns a network of onednn.cpp."""

    def __init__(self, case, layout):
        channels = [len(stage.weights) for stage in case.stages]
        has_bias = case.stages[0].bias is not None, case.fc_bias is not None
        self._handle = _library.onednn_network(
            layout.encode(),
            *_sizes(case.image),
            len(channels),
            *_sizes(channels),
            len(case.fc_weights),
            *has_bias,
            case.epsilon,
        )
        if not self._handle:
            raise RuntimeError("oneDNN: " + _library.onednn_error().decode())
        self._case, self._name = case, f"onednn {'blocked' if layout == 'any' else layout}"
        self._labels = case.one_hot
        self._batches = [
            (images.ctypes.data, labels.ctypes.data)
            for (images, _), labels in zip(case.batches, self._labels, strict=True)
        ]

    def __del__(self):
        _library.onednn_network_free(self._handle)

    def _restart(self):
        case, pointers = self._case, _pointers(self._case.parameters)
        numbers = (case.rate, case.clip or 0.0, case.l2, case.momentum)
        _library.onednn_network_set(self._handle, pointers, *numbers)

    def _step(self, number):
        return _library.onednn_network_step(self._handle, *self._batches[number])

    def learner(self):
        return Learner(self._name, self._restart, self._step, ROUGH)


def random(kind, count):
    """It has none."""
    return {}
