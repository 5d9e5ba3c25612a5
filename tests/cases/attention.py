"""Attention cases: query (n, targets, inputs), key and value (n, sources, inputs)."""

from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from oracles import attention as oracle

from cases import dtype_of, generator

INPUTS = ("query", "key", "value")
NAMES = (
    *INPUTS,
    "query_weights",
    "query_bias",
    "key_weights",
    "key_bias",
    "value_weights",
    "value_bias",
    "output_weights",
    "output_bias",
    "key_attention_bias",
    "value_attention_bias",
)


def by_name(grads):
    """AttentionGradients as {name: array}, without what was left out."""
    return {name: array for name, array in grads._asdict().items() if array is not None}


def only(*names):
    """The keywords that ask for these gradients and no others."""
    return {f"{name}_gradient": name in names for name in NAMES}


def _resident_bytes(word):
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(word))


@dataclass(frozen=True)
class AttentionCase:
    """One layer with a batch."""

    batch: int
    targets: int
    sources: int
    heads: int
    width: int
    value_width: int = 0  # 0: as the keys
    inputs: tuple[int, int, int] = (0, 0, 0)  # of query, key, value; 0: heads·width
    outputs: int = 0  # 0: as the query
    dtype: str = "float32"
    bias: bool = True
    attention_bias: bool = False
    zero: bool = False
    causal: bool = False
    mask: bool = False
    added: str = ""  # "", or the axes: "ts", "hts", "nhts"; in capitals for booleans
    tags: frozenset[str] = frozenset()

    def __str__(self):
        words = [f"{self.batch}x{self.targets}x{self.sources}-{self.heads}h{self.width}"]
        words += [f"v{self.value_width}"] if self.value_width else []
        words += ["in" + "_".join(map(str, self.inputs))] if any(self.inputs) else []
        words += [f"out{self.outputs}"] if self.outputs else []
        words += [] if self.dtype == "float32" else [self.dtype]
        words += [] if self.bias else ["unbiased"]
        for word in ("attention_bias", "zero", "causal", "mask"):
            words += [word] if getattr(self, word) else []
        words += [f"added_{self.added}"] if self.added else []
        return "-".join(words)

    @property
    def stored(self):
        return self.dtype

    @property
    def model(self):
        return self.inputs[0] or self.heads * self.width

    @property
    def multiplications(self):
        """Of a forward pass."""
        widths = self.heads * self.width, self.heads * (self.value_width or self.width)
        qi, ki, vi = (n or self.model for n in self.inputs)
        out = self.outputs or self.model
        rows, columns = self.batch * self.targets, self.batch * self.sources
        scores = self.batch * self.targets * self.sources * sum(widths)
        projections = rows * qi * widths[0] + columns * (ki * widths[0] + vi * widths[1])
        return projections + scores + rows * widths[1] * out

    # ---- data ----

    def parameters(self):
        """q, k, v and all parameters, None where there is none."""
        rng = generator(self)
        dtype = dtype_of(self.dtype)
        qi, ki, vi = (n or self.model for n in self.inputs)
        w, vw = self.width, self.value_width or self.width
        outputs = self.outputs or self.model

        def values(*shape, size=1.0):
            return (size * rng.standard_normal(shape)).astype(dtype)

        return SimpleNamespace(
            q=values(self.batch, self.targets, qi),
            k=values(self.batch, self.sources, ki),
            v=values(self.batch, self.sources, vi),
            wq=values(self.heads, w, qi, size=qi**-0.5),
            wk=values(self.heads, w, ki, size=ki**-0.5),
            wv=values(self.heads, vw, vi, size=vi**-0.5),
            wo=values(outputs, self.heads * vw, size=(self.heads * vw) ** -0.5),
            bq=values(self.heads, w) if self.bias else None,
            bk=values(self.heads, w) if self.bias else None,
            bv=values(self.heads, vw) if self.bias else None,
            bo=values(outputs) if self.bias else None,
            key_bias=values(self.heads, w) if self.attention_bias else None,
            value_bias=values(self.heads, vw) if self.attention_bias else None,
        )

    def output_gradient(self):
        shape = (self.batch, self.targets, self.outputs or self.model)
        return generator(self, 1).standard_normal(shape).astype(np.float32)

    def masks(self):
        """{key_mask, attention_bias} for a call; every row sees the first key."""
        rng, found = generator(self, 2), {}
        if self.mask:
            found["key_mask"] = rng.random((self.batch, self.sources)) < 0.3
            found["key_mask"][:, 0] = False
        if self.added:
            extents = {"n": self.batch, "h": self.heads, "t": self.targets, "s": self.sources}
            shape = tuple(extents[axis] for axis in self.added.lower())
            if self.added.isupper():
                found["attention_bias"] = rng.random(shape) < 0.3
                found["attention_bias"][..., 0] = False
            else:
                found["attention_bias"] = rng.standard_normal(shape).astype(np.float32)
        return found

    # ---- the library ----

    def layer(self, p=None, num_threads=None, **options):
        import openbnns

        p = self.parameters() if p is None else p
        return openbnns.MultiheadAttention(
            openbnns.Projection(p.wq, p.bq),
            openbnns.Projection(p.wk, p.bk),
            openbnns.Projection(p.wv, p.bv),
            openbnns.Projection(p.wo, p.bo),
            (self.targets, self.sources),
            add_zero_attention=self.zero,
            key_attention_bias=p.key_bias,
            value_attention_bias=p.value_bias,
            causal=self.causal,
            num_threads=num_threads,
            **options,
        )

    def results(self, num_threads=None):
        """Everything a layer of this case computes, by name."""
        p, masks = self.parameters(), self.masks()
        layer = self.layer(p, num_threads)
        results = {"y": layer.apply(p.q, p.k, p.v, **masks)}
        if self.dtype != "float32":
            return results
        grads = by_name(layer.apply_backward(p.q, p.k, p.v, None, self.output_gradient(), **masks))
        sums = {name if name in INPUTS else f"{name} sum": array for name, array in grads.items()}
        return results | sums

    def peak_bytes(self, threads):
        """What forward and backward without a cache hold at most, beside inputs, results and
        gradients, which are there before: as Linux sees the process, which is to be a fresh one."""
        p, dy = self.parameters(), self.output_gradient()
        layer, y = self.layer(p, threads), np.ones_like(dy)
        arrays = {
            f"{word}_{part}_gradient": np.ones_like(getattr(p, letter + word[0]))
            for word in ("query", "key", "value", "output")
            for part, letter in (("weights", "w"), ("bias", "b"))
        } | {f"{word}_gradient": np.ones_like(dy) for word in INPUTS}
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
        before = _resident_bytes("VmRSS")
        layer.apply(p.q, p.k, p.v, out=y)
        layer.apply_backward(p.q, p.k, p.v, None, dy, **arrays)
        return _resident_bytes("VmHWM") - before

    # ---- the oracle ----

    def expected(self, p=None):
        masks = self.masks()
        p = self.parameters() if p is None else p
        return oracle.forward(self, p, masks.get("key_mask"), masks.get("attention_bias"))

    def expected_gradients(self, dy, p=None):
        return oracle.backward(self, self.expected(p), dy)


VERY_LONG = AttentionCase(1, 4096, 4096, 8, 64)  # too slow for a case: only its memory is asked for
TINY = AttentionCase(2, 3, 3, 2, 4, tags=frozenset({"tiny"}))
ODD = [
    AttentionCase(1, 1, 1, 1, 1, bias=False),
    AttentionCase(3, 1, 5, 2, 3),
    AttentionCase(2, 5, 1, 1, 7, value_width=2),
    AttentionCase(2, 7, 5, 3, 4, value_width=6, inputs=(8, 5, 9), outputs=10),
    AttentionCase(1, 33, 47, 1, 16, value_width=20, inputs=(9, 9, 3), bias=False),
]
OPTIONS = [
    replace(base, **options)
    for base in (
        AttentionCase(2, 6, 9, 3, 5, value_width=4, inputs=(11, 7, 8), outputs=6),
        AttentionCase(1, 19, 19, 2, 16),
    )
    for options in (
        {"attention_bias": True},
        {"zero": True},
        {"attention_bias": True, "zero": True, "bias": False},
        {"causal": True},
        {"mask": True},
        {"added": "ts"},
        {"added": "hts"},
        {"added": "nhts"},
        {"added": "TS"},
        {"added": "HTS"},
        {"added": "NHTS"},
        {"attention_bias": True, "zero": True, "causal": True, "mask": True, "added": "nhts"},
        {"zero": True, "mask": True, "added": "TS"},
        {"causal": True, "added": "hts", "bias": False},
    )
]
LONG = [  # several blocks of rows and columns
    AttentionCase(1, 300, 530, 2, 16, tags=frozenset({"split"})),
    AttentionCase(1, 290, 290, 2, 20, causal=True, zero=True, tags=frozenset({"split"})),
    AttentionCase(2, 150, 270, 1, 64, mask=True, attention_bias=True, tags=frozenset({"split"})),
]
TYPICAL = [
    AttentionCase(32, 32, 32, 4, 16, tags=frozenset({"typical", "split"})),
    AttentionCase(1, 16, 16, 4, 16, tags=frozenset({"typical"})),
    AttentionCase(2, 128, 128, 8, 64, tags=frozenset({"typical", "split"})),
]
HALVES = [
    AttentionCase(2, 7, 9, 2, 8, dtype=dtype, added=added)
    for dtype, added in (("float16", ""), ("bfloat16", "ts"))
]
CASES = [TINY, *ODD, *OPTIONS, *LONG, *TYPICAL, *HALVES]
