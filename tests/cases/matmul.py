"""Matrix products, contractions and Gram matrices. Shapes are those of one sample; weights have no
batch in front of them."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from oracles import matmul as oracle

from cases import generator, sentinel_array

A, B, OUT = 0, 1, 2
NAMES = ("a", "b")


@dataclass(frozen=True)
class MatmulCase:
    """One layer with a batch. A contraction has an equation, a product has none."""

    a: tuple[int, ...]
    b: tuple[int, ...] | None = None  # None: one input
    equation: str | None = None
    gram: bool = False
    transpose: tuple[bool, bool] = (False, False)
    weights: int | None = None  # A or B, of a product
    batch: int = 2
    alpha: float = 1.0
    adds: bool = False  # to the output
    dtype: str = "float32"  # of a
    b_dtype: str | None = None  # None: as a
    out_dtype: str | None = None  # None: what the layer chooses
    gap: int = 0  # values skipped after the last axis of every array
    step: int = 1  # distance of neighbours along it
    tags: frozenset[str] = frozenset()

    def __str__(self):
        words = ["gram" if self.gram else self.equation or "matmul", f"n{self.batch}"]
        words = [word.replace(" ", "").replace("->", "=") for word in words]
        words += ["x".join(map(str, shape)) for shape in (self.a, self.b) if shape]
        words += ["t" + "".join(name for name, on in zip(NAMES, self.transpose, strict=True) if on)]
        words += [] if self.weights is None else [f"w{NAMES[self.weights]}"]
        words += [] if self.alpha == 1 else [f"alpha{self.alpha}"]
        words += ["adds"] if self.adds else []
        types = (self.dtype, self.b_dtype, self.out_dtype)
        words += [name for name in types if name not in ("float32", None)]
        words += [f"gap{self.gap}step{self.step}"] if self.gap or self.step != 1 else []
        return "-".join(words)

    @property
    def stored(self):
        return self.dtypes[OUT]

    @cached_property
    def dtypes(self):
        second = self.dtype if self.b is None else self.b_dtype or self.dtype
        both = self.dtype == second and self.dtype in ("float16", "bfloat16")
        return (self.dtype, second, self.out_dtype or (self.dtype if both else "float32"))

    @property
    def is_float(self):
        return "float" in self.dtype and "float" in self.dtypes[B]

    @cached_property
    def words(self):
        """The letters of a, b (None for a single operand) and the output, stars and all; name of b
        equal to that of a: a square."""
        if self.gram:
            return ["fij", "cij", "fc"]
        if self.equation is None:
            ta, tb = self.transpose
            return ["*ki" if ta else "*ik", "*jk" if tb else "*kj", "*ij"]
        left, right = self.equation.replace(" ", "").split("->")
        words = [operand.split("_")[1] for operand in left.split(",")]
        return [words[0], words[1] if len(words) == 2 else None, right.split("_")[1]]

    @property
    def is_single(self):
        """One operand, not multiplied with anything."""
        return self.words[B] is None

    @property
    def weights_operand(self):
        if self.equation is not None:
            operands = self.equation.split("->")[0].split(",")
            names = [operand.split("_")[0].strip() for operand in operands]
            return names.index("w") if "w" in names else None
        return self.weights

    def shape(self, k):
        return self.a if k == A or self.b is None else self.b

    def full_shape(self, k):
        return self.shape(k) if k == self.weights_operand else (self.batch, *self.shape(k))

    @cached_property
    def spelled(self):
        """Letters of a, b and the output with the batch, N, where it is."""
        words = [word for word in self.words if word is not None]
        if self.is_single:
            ranks = [len(self.a), self._star_rank + len(words[-1].strip("*"))]
        else:
            ranks = [len(self.a), len(self.shape(B)), self._star_rank + len(words[-1].strip("*"))]
        letters = oracle.spell(words, ranks)
        if self.is_single:
            letters.insert(B, None)
        return [
            letters[k] if letters[k] is None or k == self.weights_operand else "N" + letters[k]
            for k in (A, B, OUT)
        ]

    @property
    def _star_rank(self):
        if "*" not in self.words[OUT]:
            return 0
        found = [
            len(self.shape(k)) - len(self.words[k].strip("*"))
            for k in (A, B)
            if self.words[k] and "*" in self.words[k]
        ]
        return max(found, default=0)

    @cached_property
    def full_output(self):
        extents = {"N": self.batch}
        for k in (A, B):
            if self.spelled[k] is not None:
                for letter, extent in zip(self.spelled[k], self.full_shape(k), strict=True):
                    extents[letter] = max(extent, extents.get(letter, 1))
        return tuple(extents[letter] for letter in self.spelled[OUT])

    # ---- data ----

    def _empty(self, shape, dtype):
        if not shape:
            return sentinel_array((1,), dtype)[0].reshape(()), None
        return sentinel_array(shape, dtype, (0,) * (len(shape) - 1) + (self.gap,), self.step)

    def _filled(self, shape, dtype, salt):
        array, _ = self._empty(shape, dtype)
        rng = generator(self, salt)
        if "int" in dtype:
            low = 0 if dtype.startswith("u") else -100
            array[...] = rng.integers(low, 100, shape)
        else:
            array[...] = rng.standard_normal(shape).astype(array.dtype)
        return array

    def operand(self, k):
        return self._filled(self.full_shape(k), self.dtypes[k], k)

    def inputs(self):
        """What a call takes for a and b: None for weights and where there is one input."""
        return [
            None if k == self.weights_operand or (k == B and self.b is None) else self.operand(k)
            for k in (A, B)
        ]

    def output_before(self):
        """(y with what the layer adds to, its owner)."""
        y, owner = self._empty(self.full_output, self.dtypes[OUT])
        if self.adds:
            y[...] = generator(self, 6).standard_normal(y.shape).astype(y.dtype)
        return y, owner

    def output_gradient(self):
        return self._filled(self.full_output, self.dtypes[OUT], 5)

    def empty_gradient(self, k):
        """(gradient of an operand, its owner), all bytes sentinel."""
        return self._empty(self.full_shape(k), self.dtypes[k])

    # ---- the library ----

    def layer(self, num_threads=None, weights=None, **more):
        import openbnns

        def spec(array, dtype):
            if array.ndim == 1:
                return openbnns.ArraySpec((), dtype)
            return openbnns.ArraySpec(array.shape[1:], dtype, array.strides[1:])

        given = {}
        for k, name in enumerate(("input_a", "input_b")):
            if k == B and self.b is None:
                continue
            if k == self.weights_operand:
                given[name] = self.operand(k) if weights is None else weights
            else:
                given[name] = spec(self.operand(k), self.dtypes[k])
        output = spec(self.output_before()[0], self.dtypes[OUT])
        if self.gram:
            return openbnns.GramLayer(
                input=given["input_a"], output=output, alpha=self.alpha, num_threads=num_threads
            )
        if self.equation is not None:
            return openbnns.TensorContractionLayer(
                self.equation,
                **given,
                output=output,
                alpha=self.alpha,
                beta=float(self.adds),
                num_threads=num_threads,
                **more,
            )
        return openbnns.BroadcastMatrixMultiplyLayer(
            **given,
            output=output,
            alpha=self.alpha,
            accumulate_to_output=self.adds,
            transpose_a=self.transpose[A],
            transpose_b=self.transpose[B],
            a_is_weights=self.weights == A,
            b_is_weights=self.weights == B,
            quadratic=self.b is None,
            num_threads=num_threads,
            **more,
        )

    def apply(self, layer, inputs, out=None):
        return layer.apply(inputs[A], out=out) if self.gram else layer.apply(*inputs, out=out)

    def backward(self, layer, inputs, dy, targets=(True, True), accumulate=False):
        """Gradients of a and b."""
        if self.gram:
            grads = layer.apply_backward(
                inputs[A], None, dy, input_gradient=targets[A], accumulate=accumulate
            )
            return grads.input, None
        wanted = {f"{name}_gradient": targets[k] for k, name in enumerate(NAMES)}
        return tuple(layer.apply_backward(*inputs, None, dy, **wanted, accumulate=accumulate))

    @property
    def gradients(self):
        """Operands that have one."""
        return (A,) if self.b is None else (A, B)

    def results(self, num_threads=None):
        """Everything a layer of this case computes, by name."""
        layer, inputs = self.layer(num_threads), self.inputs()
        results = {"y": self.apply(layer, inputs, self.output_before()[0])}
        if self.is_float:
            grads = self.backward(layer, inputs, self.output_gradient())
            results |= {f"d{NAMES[k]} sum": grads[k] for k in self.gradients}
        return results

    # ---- the oracle ----

    def _tensors(self, absolute):
        """(letters, values) of a and b; b is a where there is one input."""
        found = []
        for k in (A, B):
            if self.spelled[k] is None:
                continue
            values = self.operand(A if self.b is None else k).astype(np.float64)
            found.append((self.spelled[k], np.abs(values) if absolute else values))
        return found

    def expected(self):
        """(y, sum of the sizes of its terms) in float64."""
        sums = []
        for absolute in (False, True):
            total = oracle.contract(self._tensors(absolute), self.spelled[OUT], self.full_output)
            total = total * (abs(self.alpha) if absolute else self.alpha)
            if self.adds:
                before = self.output_before()[0].astype(np.float64)
                total = total + (np.abs(before) if absolute else before)
            sums.append(total)
        return tuple(sums)

    def expected_gradient(self, k):
        """The same for the gradient of an operand, which for a square is that of both."""
        sums = []
        roles = (A, B) if self.b is None and not self.is_single else (k,)
        for absolute in (False, True):
            tensors = self._tensors(absolute)
            dy = self.output_gradient().astype(np.float64)
            dy = (self.spelled[OUT], np.abs(dy) if absolute else dy)
            total = 0.0
            for role in roles:
                others = [tensors[1 - role]] if not self.is_single else []
                total = total + oracle.contract(
                    [dy, *others], self.spelled[role], self.full_shape(k)
                )
            sums.append(total * (abs(self.alpha) if absolute else self.alpha))
        return tuple(sums)


def _case(*shapes, tags=("odd",), **more):
    return MatmulCase(*shapes, tags=frozenset(tags), **more)


def _sum(equation, *shapes, tags=("odd",), **more):
    return MatmulCase(*shapes, equation=equation, tags=frozenset(tags), **more)


_TINY, _SPLIT, _LARGE = ("tiny",), ("typical", "split"), ("typical", "large")

PRODUCTS = [
    _case((2, 2), (2, 2), tags=_TINY),
    _case((1, 1), (1, 1), tags=_TINY, batch=1),
    _case((5, 7), (7, 3)),
    _case((7, 5), (7, 3), transpose=(True, False), alpha=0.5),
    _case((5, 7), (3, 7), transpose=(False, True)),
    _case((7, 5), (3, 7), transpose=(True, True), gap=3),
    _case((5, 7), (7, 3), gap=2, step=2),
    _case((5, 7), (7, 1), batch=3),
    _case((1, 7), (7, 4), batch=3),
    _case((9, 1), (1, 8)),
    _case((4, 1, 5, 6), (3, 6, 7)),
    _case((5, 6), (3, 6, 7)),
    _case((2, 3, 5, 6), (6, 7), adds=True),
    _case((2, 1, 3, 6, 5), (4, 1, 7, 6), transpose=(True, True)),
    _case((33, 40), (40, 50), adds=True, alpha=-2.0),
]
WEIGHTS = [
    _case((5, 7), (7, 3), weights=B),
    _case((5, 7), (7, 3), weights=A),
    _case((4, 5, 7), (7, 3), weights=B, gap=1),
    _case((7, 5), (4, 7, 3), weights=A, transpose=(True, False)),
    _case((6, 20), (9, 20), weights=B, transpose=(False, True), batch=5),
]
SQUARES = [
    _case((6, 6)),
    _case((5, 7), transpose=(False, True)),
    _case((5, 7), transpose=(True, False), alpha=2.0, batch=1),
    _case((3, 5, 7), transpose=(True, False), adds=True),
]
SUMS = [
    _sum("a_ij -> c_ji", (2, 3), tags=_TINY),
    _sum("a_ip, b_iq -> o_pq", (1, 2), (1, 2), tags=_TINY, alpha=10.0),
    _sum("a_ijk, b_kl -> c_ijl", (3, 4, 5), (5, 6)),
    _sum("a_jki, b_lik -> c_lj", (3, 4, 5), (6, 5, 4)),
    _sum("a_ikb, b_kjb -> c_ijb", (3, 4, 5), (4, 6, 5), gap=2),
    _sum("a_ij, b_ij -> c_ij", (3, 600), (3, 600)),
    _sum("a_ij, b_ij -> c_i", (3, 40), (3, 40)),
    _sum("a_ji, b_ji -> c_i", (3, 40), (3, 40)),
    _sum("a_ij, b_ij -> c_", (3, 40), (3, 40)),
    _sum("a_ij, b_k -> c_i", (3, 4), (5,)),
    _sum("a_i, b_j -> c_ji", (30,), (50,)),
    _sum("a_ij -> c_i", (7, 50)),
    _sum("a_ij -> c_j", (7, 50), adds=True),
    _sum("a_ijk -> c_", (3, 4, 5)),
    _sum("a_ijk -> c_kij", (3, 40, 50), gap=1),
    _sum("a_ii -> c_i", (6, 6)),
    _sum("a_ii -> c_", (6, 6)),
    _sum("a_i -> c_ii", (6,)),
    _sum("a_iij, b_j -> c_i", (6, 6, 5), (5,)),
    _sum("a_ij, b_jk -> c_iik", (3, 4), (4, 5)),
    _sum("a_ij, b_jk -> c_ik", (3, 1), (4, 5)),
    _sum("a_*ij, b_*jk -> c_*ik", (2, 3, 4), (5, 1, 4, 6)),
    _sum("a_i*, b_j* -> c_ij*", (4, 3, 2), (5, 3, 2)),
    _sum("a_ij, a_kj -> c_ik", (5, 7)),
    _sum("a_ij, a_ij -> c_", (5, 7)),
    _sum("w_ij, b_jk -> c_ik", (3, 4), (4, 5)),
    _sum("a_*ij, w_jk -> c_*ik", (2, 3, 4), (4, 5)),
    _sum("a_kij, w_lk -> c_jil", (4, 2, 3), (5, 4)),
]
GRAMS = [
    _case((2, 1, 2), gram=True, tags=_TINY),
    _case((5, 6, 7), gram=True, alpha=0.5),
    _case((9, 4, 4), gram=True, gap=1, batch=3),
]
TYPES = [
    _case((5, 7), (7, 3), dtype="float16"),
    _case((5, 7), (7, 3), dtype="bfloat16"),
    _case((5, 7), (7, 3), dtype="float16", out_dtype="float32", adds=True),
    _case((5, 7), (7, 3), b_dtype="bfloat16"),
    _case((5, 7), (7, 3), b_dtype="float16", weights=B),
    _case((40, 5, 7), (7, 3), dtype="float16", weights=B, gap=1),
    _case((5, 7), (7, 3), dtype="int8"),
    _case((5, 7), (7, 3), dtype="uint16", b_dtype="int8", weights=B),
    _case((6, 6), dtype="float16"),
    _case((5, 6, 7), gram=True, dtype="bfloat16"),
    _sum("a_ijk -> c_kij", (3, 4, 5), dtype="bfloat16"),
    _sum("a_ij, b_jk -> c_ik", (30, 40), (40, 50), dtype="float16", gap=1),
]
SPLIT = [
    _case((4, 70, 90), (4, 90, 80), tags=_SPLIT),
    _case((130, 200), (200, 150), weights=B, batch=4, tags=_SPLIT),
    _case((200, 130), (8, 200, 30), transpose=(True, False), tags=_SPLIT),
    _sum("a_bshd, b_bthd -> c_bhst", (2, 60, 4, 32), (2, 70, 4, 32), tags=_SPLIT),
    _sum("a_ijk -> c_kij", (60, 70, 80), tags=_SPLIT),
    _case((64, 28, 28), gram=True, tags=_SPLIT),
]
LARGE = [
    _case((128, 64), (64, 128), batch=64, tags=_LARGE),
    _case((512, 512), (512, 512), batch=8, tags=_LARGE),
]
CASES = PRODUCTS + WEIGHTS + SQUARES + SUMS + GRAMS + TYPES + SPLIT + LARGE
