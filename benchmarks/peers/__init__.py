"""The libraries we measure ourselves against. Each is optional and has one module here with

    VERSIONS: name -> version
    pooling(case, x, dy, compiled) -> contenders
    activation(case, x, dy, compiled) -> contenders
    convolution(case, x, w, dy, compiled) -> trainers
    fully_connected(case, x, w, dy, compiled) -> trainers
    gemm(case, x, w, compiled) -> trainers with a forward pass alone
    matmul(case, a, b, dy, compiled) -> contenders: y, gradients of a and b
    arithmetic(case, a, b, dy, compiled) -> contenders: y, gradients of a and b
    normalization(case, x, dy, compiled) -> contenders: y, dx, gradients of gamma and beta
    fused(case, inputs, w, dy, compiled) -> contenders: y, gradients of the inputs, of w (None for
        arithmetic: then there is none), gamma and beta
    attention(case, p, dy, compiled) -> contenders: bench_attention.RESULTS; p has the inputs and
        parameters of the case
    loss(case, x, labels, compiled) -> contenders
    optimizer(case) -> contenders, forward being a step
    training(case, compiled) -> learners of a network of bench_training.py
    random(kind, count) -> name -> (what fills, what gives the numbers)

where case is one of tests/cases, and x, w and dy are NumPy arrays. A module raises ImportError when
its library is not installed. `compiled` asks for slow-to-build variants too.
"""

import importlib
from types import ModuleType

MODULES = {"torch": "pytorch", "onednn": "onednn", "jax": "jax_cpu", "numpy": "plain_numpy"}


def load(names: list[str]) -> tuple[dict[str, ModuleType], dict[str, str]]:
    """The peers that are here, and why the others are not."""
    present, absent = {}, {}
    for name in names:
        try:
            present[name] = importlib.import_module(f"{__name__}.{MODULES[name]}")
        except ImportError as reason:
            absent[name] = str(reason).splitlines()[0]
    return present, absent


def padding_pair(case) -> tuple[int, int]:
    """(vertical, horizontal) for libraries that pad both ends alike."""
    (up, down), (left, right) = case.padding
    if up != down or left != right:
        raise ValueError(f"{case}: this peer pads both ends alike")
    return up, left
