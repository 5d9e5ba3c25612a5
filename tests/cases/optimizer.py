"""Optimizers: every rule, with every kind of clipping and penalty, over tensors of many sizes."""

from dataclasses import dataclass, field

import numpy as np
import openbnns
from openbnns import ClipByGlobalNorm, ClipByNorm, ClipByValue

from cases import generator

KINDS = {
    "sgd": openbnns.SGDMomentumOptimizer,
    "adam": openbnns.AdamOptimizer,
    "adamw": openbnns.AdamWOptimizer,
    "rmsprop": openbnns.RMSPropOptimizer,
}
SHAPES = ((3, 4), (1,), (), (17, 5, 2))


@dataclass(frozen=True)
class OptimizerCase:
    kind: str
    options: dict
    shapes: tuple[tuple[int, ...], ...] = SHAPES
    tags: frozenset[str] = field(default_factory=frozenset)

    def __str__(self):
        options = " ".join(f"{name}={value}" for name, value in self.options.items())
        return f"{self.kind} {options} {len(self.shapes)} tensors of {self.values} values"

    @property
    def values(self):
        return sum(int(np.prod(shape)) for shape in self.shapes)

    def optimizer(self):
        return KINDS[self.kind](**self.options)

    def parameters(self):
        rng = generator(self)
        return [rng.standard_normal(shape).astype(np.float32) for shape in self.shapes]

    def gradients(self, step=0):
        """Different at every step, with a mean that is not 0."""
        rng = generator(self, step + 1)
        return [(rng.standard_normal(shape) + 0.5).astype(np.float32) for shape in self.shapes]


SGD = [
    {"learning_rate": 0.01, "momentum": momentum, "variant": variant, "nesterov": nesterov}
    for variant in (0, 1, 2)
    for nesterov in (False, True)
    for momentum in (0.0, 0.9)
]
ADAM = [{"learning_rate": 0.01, "amsgrad": amsgrad} for amsgrad in (False, True)]
ADAM += [{"beta1": 0.0, "beta2": 0.5, "epsilon": 1e-3}]
RMSPROP = [
    {"centered": centered, "momentum": momentum, "epsilon": 1e-4}
    for centered in (False, True)
    for momentum in (0.0, 0.5)
]
CLIPPING = [
    ClipByValue(-0.5, 0.25),
    ClipByNorm(1.5),
    ClipByGlobalNorm(2.0),
    ClipByGlobalNorm(2.0, 8.0),
    ClipByGlobalNorm(1e6),
]
PENALTIES = [{"l1": 0.037}, {"l2": 0.1}]

CASES = [OptimizerCase("sgd", options) for options in SGD]
CASES += [OptimizerCase(kind, options) for kind in ("adam", "adamw") for options in ADAM]
CASES += [OptimizerCase("rmsprop", options) for options in RMSPROP]
for _kind, _options in (
    ("sgd", SGD[3]),
    ("adam", ADAM[0]),
    ("adamw", ADAM[1]),
    ("rmsprop", RMSPROP[3]),
):
    CASES += [
        OptimizerCase(_kind, {**_options, "gradient_scale": 0.5, "gradient_clipping": clipping})
        for clipping in CLIPPING
    ]
# An epsilon that keeps gradients which cancel to rounding noise from becoming whole steps.
CASES += [
    OptimizerCase(kind, {**options, **penalty})
    for kind, options in (("sgd", SGD[3]), ("adam", ADAM[2]), ("rmsprop", {"epsilon": 1e-3}))
    for penalty in PENALTIES
]
CASES += [
    OptimizerCase("adamw", {"weight_decay": 0.3}),
    OptimizerCase(
        "adam",
        {"gradient_clipping": ClipByGlobalNorm(1.0)},
        ((200, 200), (5,), (100003,), (7, 7)),
        frozenset({"split"}),
    ),
    OptimizerCase("sgd", SGD[3], ((50000,), (3,), (17000,)), frozenset({"split"})),
]

# One million values in one tensor and in fifty, as benchmarks take them; epsilon is too small for
# its place in the formula to matter.
LARGE = [
    OptimizerCase(kind, options, shapes, frozenset({"large"}))
    for kind, options in (("adam", {"epsilon": 1e-20}), ("sgd", SGD[5]))
    for shapes in (((1_000_000,),), ((20_000,),) * 50)
]
