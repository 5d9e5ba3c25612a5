"""oneDNN without a framework: the wheel `onednn-devel-cpu-gomp`, called through onednn.cpp.

Its buffers stay in the layout it is given, so this is what a framework built on it could reach: no
Python worth mentioning, no allocation, no conversion at the edges.
"""

import ctypes
import importlib.metadata
from pathlib import Path

import numpy as np

from benchmarks.harness import Contender, build

LAYOUTS = ("nchw", "nhwc", "nChw16c")
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
    flags = ["-O2", "-fPIC", "-shared", "-fopenmp", f"-I{include}", f"-L{libraries}"]
    flags += ["-ldnnl", f"-Wl,-rpath,{libraries}"]
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


def pooling(case, x, dy, compiled):
    """One contender per layout."""
    before, after = zip(*case.padding, strict=True)
    geometry = (case.image, case.pooled[2:], case.kernel, case.stride, before, after)
    sizes = [(ctypes.c_int64 * len(numbers))(*numbers) for numbers in geometry]
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
