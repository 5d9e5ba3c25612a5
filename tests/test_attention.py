"""Multi-head attention: right values, right gradients, right refusals, memory that stays small."""

import ctypes
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import openbnns
import pytest
from cases import attention as cases
from cases import generator
from cases.attention import NAMES, AttentionCase, by_name, only
from cases.marks import marked
from openbnns import (
    ArrayError,
    AttentionCache,
    LayerApplyError,
    LayerCreationError,
    MultiheadAttention,
    Projection,
    c,
)
from oracles import attention as oracle
from oracles.differences import assert_gradient_matches
from oracles.tolerance import assert_close, assert_same_bits

CASES = [marked(case) for case in cases.CASES]
TRAINED = [marked(case) for case in cases.CASES if case.dtype == "float32"]
FIRST = cases.OPTIONS[11]  # everything at once
UNIT = 3e-6  # of the size of a result: every value passes through four sums and a softmax


def assert_near(actual, expected, dtype="float32", rows=1):
    """Against the largest value of the result, and against the root of the number of rows that
    were added up: the size of a value says nothing about its terms. (A bias of the keys moves all
    scores of a row alike: its gradient is 0.)"""
    expected = np.asarray(expected)
    size = max(rows**0.5, np.nanmax(np.abs(expected)))
    assert_close(actual, expected, dtype, size, UNIT)


def rows_of(case):
    return case.batch * max(case.targets, case.sources)


# ---- values ----


@pytest.mark.parametrize("case", CASES)
def test_forward(case):
    p = case.parameters()
    y = case.layer(p).apply(p.q, p.k, p.v, **case.masks())
    assert y.dtype == p.q.dtype
    assert_near(y, case.expected(p).y, case.dtype)


@pytest.mark.parametrize("case", TRAINED)
def test_backward(case):
    p, dy, masks = case.parameters(), case.output_gradient(), case.masks()
    layer = case.layer(p)
    grads = by_name(layer.apply_backward(p.q, p.k, p.v, None, dy, **masks))
    expected = case.expected_gradients(dy, p)
    if not case.bias:
        biases = ("query_bias", "key_bias", "value_bias", "output_bias")
        expected = {name: array for name, array in expected.items() if name not in biases}
    assert grads.keys() == expected.keys()
    for name, array in grads.items():
        assert array.shape == expected[name].shape
        assert_near(array, expected[name], rows=rows_of(case))
    _, cache = layer.apply(p.q, p.k, p.v, cache=True, **masks)
    for _ in range(2):  # the cache survives
        cached = by_name(layer.apply_backward(p.q, p.k, p.v, None, dy, cache=cache, **masks))
        for name, array in grads.items():
            assert_same_bits(cached[name], array)


@pytest.mark.parametrize("case", [FIRST, cases.ODD[3], cases.OPTIONS[3]], ids=str)
def test_gradients_are_limits_of_differences(case):
    """Of the library's own forward pass, in every input and every parameter."""
    p, masks = case.parameters(), case.masks()
    fields = {
        "query": "q",
        "query_weights": "wq",
        "query_bias": "bq",
        "key": "k",
        "key_weights": "wk",
        "key_bias": "bk",
        "value": "v",
        "value_weights": "wv",
        "value_bias": "bv",
        "output_weights": "wo",
        "output_bias": "bo",
        "key_attention_bias": "key_bias",
        "value_attention_bias": "value_bias",
    }
    for name, field in fields.items():
        if getattr(p, field) is None:
            continue

        def moved(x, field=field):
            return SimpleNamespace(**{**vars(p), field: x.astype(np.float32)})

        def forward(x):
            at = moved(x)
            return case.layer(at).apply(at.q, at.k, at.v, **masks)

        def gradient(x, dy, name=name):
            at = moved(x)
            layer = case.layer(at)
            grads = layer.apply_backward(at.q, at.k, at.v, None, dy, **only(name), **masks)
            return getattr(grads, name)

        assert_gradient_matches(forward, gradient, getattr(p, field), generator(case, 9))


def test_vector_of_the_specification():
    one = Projection(np.ones((1, 1, 1), np.float32))
    layer = MultiheadAttention(
        one,
        one,
        Projection(np.full((1, 1, 1), 2, np.float32)),
        Projection(np.full((1, 1), 3, np.float32)),
        1,
    )
    q, k, v = (np.full((1, 1, 1), value, np.float32) for value in (0.5, 1.5, 3.5))
    assert layer(q, k, v).item() == 21
    grads = by_name(layer.apply_backward(q, k, v, None, np.ones((1, 1, 1), np.float32)))
    expected = {
        "value": 6,
        "value_weights": 10.5,
        "output_weights": 7,
        "query": 0,
        "key": 0,
        "query_weights": 0,
        "key_weights": 0,
    }
    assert {name: array.item() for name, array in grads.items()} == expected


@pytest.mark.parametrize("case", [cases.TINY, cases.OPTIONS[14], cases.LONG[0]], ids=str)
def test_pytorch_agrees(case):
    torch = pytest.importorskip("torch")
    case = replace(case, bias=True)
    model = case.heads * case.width
    theirs = torch.nn.MultiheadAttention(
        model,
        case.heads,
        batch_first=True,
        add_bias_kv=case.attention_bias,
        add_zero_attn=case.zero,
        dtype=torch.float64,
    )
    state = {
        name: value.detach().numpy().astype(np.float32)
        for name, value in theirs.state_dict().items()
    }
    theirs.load_state_dict({name: torch.tensor(value) for name, value in state.items()})
    p, dy = case.parameters(), case.output_gradient()
    inputs = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (p.q, p.k, p.v)]
    y, _ = theirs(*inputs, need_weights=False)
    y.backward(torch.tensor(dy, dtype=torch.float64))
    layer = MultiheadAttention.from_torch(
        state, case.heads, (case.targets, case.sources), add_zero_attention=case.zero
    )
    assert_near(layer(p.q, p.k, p.v), y.detach().numpy())
    grads = layer.apply_backward(p.q, p.k, p.v, None, dy)
    for x, ours in zip(inputs, grads[:3], strict=True):
        assert_near(ours, x.grad.numpy())
    converted = layer.to_torch(grads)
    parameters = dict(theirs.named_parameters())
    assert converted.keys() == parameters.keys() == layer.to_torch().keys()
    for name, parameter in parameters.items():
        assert_near(converted[name], parameter.grad.numpy(), rows=rows_of(case))
        assert_same_bits(layer.to_torch()[name], state[name])


# ---- options ----


def test_causal_is_the_mask_it_stands_for():
    case = AttentionCase(2, 70, 60, 2, 8)
    p = case.parameters()
    later = np.triu(np.ones((70, 60), bool), 1)
    ours = replace(case, causal=True).layer(p).apply(p.q, p.k, p.v)
    assert_near(ours, case.layer(p).apply(p.q, p.k, p.v, attention_bias=later))


def test_row_that_sees_nothing_is_nan():
    case = AttentionCase(2, 3, 4, 2, 4)
    p = case.parameters()
    mask = np.array([[False] * 4, [True] * 4])
    layer = case.layer(p)
    y = layer.apply(p.q, p.k, p.v, key_mask=mask)
    assert np.isfinite(y[0]).all()
    assert np.isnan(y[1]).all()
    grads = layer.apply_backward(p.q, p.k, p.v, None, case.output_gradient(), key_mask=mask)
    assert np.isfinite(grads.query[0]).all()
    assert np.isnan(grads.query[1]).all()
    zero = replace(case, zero=True).layer(p).apply(p.q, p.k, p.v, key_mask=mask)
    assert_near(zero[1], np.broadcast_to(p.bo, zero[1].shape))


@pytest.mark.parametrize("copies", [False, True])
def test_parameters_are_shared_or_copied(copies):
    p = cases.TINY.parameters()
    layer = cases.TINY.layer(p, copy_parameters=copies)
    before = layer(p.q, p.k, p.v)
    p.wv *= 2
    p.bo += 1
    assert (layer(p.q, p.k, p.v) == before).all() == copies


def test_weights_in_other_orders():
    """Every arrangement that the C interface can say gives the same numbers."""
    case = cases.ODD[3]
    p, dy = case.parameters(), case.output_gradient()
    expected = case.layer(p)(p.q, p.k, p.v)
    wide = np.zeros((*p.wk.shape[:2], 2 * p.wk.shape[2]), np.float32)
    wide[..., ::2] = p.wk
    at = SimpleNamespace(**{**vars(p), "wk": wide[..., ::2], "wo": np.asfortranarray(p.wo)})
    layer = case.layer(at)
    assert_near(layer(p.q, p.k, p.v), expected)
    grads = by_name(layer.apply_backward(p.q, p.k, p.v, None, dy))
    for name, array in case.expected_gradients(dy, p).items():
        assert_near(grads[name], array)


def test_dropout():
    case = AttentionCase(2, 40, 50, 2, 8)
    p, dy = case.parameters(), case.output_gradient()
    first, second = (case.layer(p, dropout=0.25, seed=7) for _ in range(2))
    y, cache = first.apply(p.q, p.k, p.v, cache=True)
    assert_same_bits(second(p.q, p.k, p.v), y)
    assert (first(p.q, p.k, p.v) != y).any()
    with pytest.raises(LayerApplyError, match="cache: expected what apply filled"):
        first.apply_backward(p.q, p.k, p.v, None, dy)
    # What was kept is seen through values that are unit vectors.
    seen = AttentionCase(2, 40, 50, 1, 50, inputs=(4, 4, 50), outputs=50, bias=False)
    s = seen.parameters()
    s.wv, s.wo = np.eye(50, dtype=np.float32)[None], np.eye(50, dtype=np.float32)
    s.v = np.broadcast_to(np.eye(50, dtype=np.float32), s.v.shape).copy()
    layer = seen.layer(s, dropout=0.25, seed=7)
    probabilities, cache = layer.apply(s.q, s.k, s.v, cache=True)
    kept = np.where(probabilities == 0, 0.0, 4 / 3)[:, None]
    assert 0.7 < (kept > 0).mean() < 0.8
    f = oracle.forward(seen, s, kept=kept)
    assert_near(probabilities, f.y)
    dy = seen.output_gradient()
    expected = oracle.backward(seen, f, dy)
    grads = by_name(layer.apply_backward(s.q, s.k, s.v, None, dy, cache=cache))
    for name, array in grads.items():
        assert_near(array, expected[name])


# ---- gradients that are left out, added, shared ----


def test_each_gradient_alone_has_the_same_bits():
    p, dy, masks = FIRST.parameters(), FIRST.output_gradient(), FIRST.masks()
    layer = FIRST.layer(p)
    together = by_name(layer.apply_backward(p.q, p.k, p.v, None, dy, **masks))
    for name in NAMES:
        alone = by_name(layer.apply_backward(p.q, p.k, p.v, None, dy, **only(name), **masks))
        assert alone.keys() == {name}
        assert_same_bits(alone[name], together[name])


def test_accumulation():
    p, dy, masks = FIRST.parameters(), FIRST.output_gradient(), FIRST.masks()
    layer = FIRST.layer(p)
    first = by_name(layer.apply_backward(p.q, p.k, p.v, None, dy, **masks))
    sums = {f"{name}_gradient": np.ones_like(array) for name, array in first.items()}
    names = set(NAMES) - {"key_weights"}
    grads = layer.apply_backward(p.q, p.k, p.v, None, dy, **sums, accumulate=names, **masks)
    for name, array in by_name(grads).items():
        assert np.shares_memory(array, sums[f"{name}_gradient"])
        expected = first[name] + (0 if name == "key_weights" else 1)
        np.testing.assert_allclose(array, expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(ArrayError, match="accumulate: expected an array"):
        layer.apply_backward(p.q, p.k, p.v, None, dy, accumulate=True, **masks)


def test_one_array_receives_the_sum_of_input_gradients():
    case = AttentionCase(3, 6, 6, 2, 4)
    p, dy = case.parameters(), case.output_gradient()
    layer = case.layer(p)
    apart = layer.apply_backward(p.q, p.q, p.q, None, dy)
    shared = np.full(p.q.shape, 5, np.float32)
    targets = dict.fromkeys(("query_gradient", "key_gradient", "value_gradient"), shared)
    layer.apply_backward(p.q, p.q, p.q, None, dy, **targets)
    expected = apart.query + apart.key + apart.value
    np.testing.assert_allclose(shared, expected, rtol=1e-5, atol=1e-5)
    layer.apply_backward(p.q, p.q, p.q, None, dy, **targets, accumulate=True)
    np.testing.assert_allclose(shared, 2 * expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(LayerApplyError, match="share memory"):
        layer.apply_backward(p.q, p.q, p.q, None, dy, **targets, accumulate=["key"])


def test_cached_backward_without_inputs():
    p, dy, masks = FIRST.parameters(), FIRST.output_gradient(), FIRST.masks()
    layer = FIRST.layer(p)
    _, cache = layer.apply(p.q, p.k, p.v, cache=True, **masks)
    names = [name for name in NAMES if not name.endswith("weights") or name == "output_weights"]
    full = by_name(layer.apply_backward(p.q, p.k, p.v, None, dy, **masks))
    grads = layer.apply_backward(None, None, None, None, dy, cache=cache, **only(*names), **masks)
    for name, array in by_name(grads).items():
        assert_same_bits(array, full[name])
    with pytest.raises(LayerApplyError, match="query: expected its values"):
        layer.apply_backward(None, p.k, p.v, None, dy, cache=cache, **masks)
    with pytest.raises(LayerApplyError, match="value: expected its values"):
        layer.apply_backward(p.q, p.k, None, None, dy, **masks)


def test_cache_is_used_again():
    small, large = cases.TINY, replace(cases.TINY, batch=9)
    cache = AttentionCache()
    for case in (small, large, small):
        p = case.parameters()
        layer = case.layer(p)
        _, same = layer.apply(p.q, p.k, p.v, cache=cache)
        assert same is cache
        assert cache.nbytes >= layer.cache_bytes(case.batch)
    with pytest.raises(LayerApplyError, match="cache: expected what apply filled for 1 samples"):
        layer.apply_backward(
            p.q[:1], p.k[:1], p.v[:1], None, case.output_gradient()[:1], cache=cache
        )


# ---- refusals ----


def test_creation_refuses():
    p = cases.TINY.parameters()
    good = [Projection(p.wq), Projection(p.wk), Projection(p.wv), Projection(p.wo)]

    def make(at, projection, **options):
        parts = list(good)
        parts[at] = projection
        return MultiheadAttention(*parts, 3, **options)

    for at, projection, words in (
        (0, Projection(p.wq[:1]), "heads"),
        (1, Projection(p.wk[:, :3]), "width"),
        (2, Projection(p.wv[:1]), "heads"),
        (3, Projection(p.wo[:, :5]), r"output\.weights"),
        (0, Projection(p.wq, p.bq[:, :2]), r"query\.bias"),
        (3, Projection(p.wo, p.bo[:3]), r"output\.bias"),
        (0, Projection(p.wq.astype(np.int32)), r"query"),
    ):
        with pytest.raises(openbnns.BNNSError, match=words):
            make(at, projection)
    for options, words in (
        ({"dropout": 1.0}, "dropout"),
        ({"seed": 1 << 32}, "seed"),
        ({"key_attention_bias": p.bq}, "both or neither"),
    ):
        with pytest.raises(LayerCreationError, match=words):
            make(0, good[0], **options)
    with pytest.raises(ArrayError, match="expected \\(heads, width, inputs\\)"):
        make(0, Projection(p.wo))
    with pytest.raises(LayerCreationError, match="lengths"):
        MultiheadAttention(*good, 0)


def test_calls_refuse_and_write_nothing():
    case = replace(cases.TINY, sources=4)
    p = case.parameters()
    layer = case.layer(p)
    out = np.full((2, 3, 8), 7, np.float32)
    for options, words in (
        ({"key_mask": np.zeros((2, 3), bool)}, "key_mask"),
        ({"key_mask": np.zeros((2, 4), np.float32)}, "key_mask"),
        ({"attention_bias": np.zeros((4, 4), np.float32)}, "attention_bias"),
        ({"attention_bias": np.zeros((1, 3, 4), np.float32)}, "attention_bias"),
        ({"attention_bias": np.zeros((1, 2, 3, 4), np.float32)}, "attention_bias"),
        ({"attention_bias": np.zeros((3, 4), np.int32)}, "attention_bias"),
    ):
        with pytest.raises(openbnns.BNNSError, match=words):
            layer.apply(p.q, p.k, p.v, out=out, **options)
    with pytest.raises(ArrayError, match="key"):
        layer.apply(p.q, p.k[:1], p.v, out=out)
    with pytest.raises(LayerApplyError, match="memory apart"):
        layer.apply(out, p.k, p.v, out=out)
    assert (out == 7).all()
    given = p.q, p.k, p.v, None, case.output_gradient()
    with pytest.raises(ArrayError, match=r"key_bias_gradient: expected \(4, 2\)"):
        layer.apply_backward(*given, key_bias_gradient=np.zeros((2, 3), "f4"))
    with pytest.raises(LayerApplyError, match="key_bias gradient: expected none"):
        layer.apply_backward(*given, key_attention_bias_gradient=np.zeros((2, 4), "f4"))
    layer.close()
    with pytest.raises(LayerApplyError):
        layer.apply(p.q, p.k, p.v)


def test_gradients_need_float32():
    case = cases.HALVES[0]
    p = case.parameters()
    with pytest.raises(LayerApplyError, match="expected float32"):
        case.layer(p).apply_backward(p.q, p.k, p.v, None, case.output_gradient().astype(np.float16))


def test_c_interface_sizes_and_dead_handles():
    p = cases.TINY.parameters()
    layer = cases.TINY.layer(p)
    cache, work = ctypes.c_size_t(0), ctypes.c_size_t(0)
    nothing = (None, 0, None, 0, None, 0, None, 0, None, 0, None)
    asked = c.BNNSApplyMultiheadAttention(
        layer.handle, 2, *nothing, ctypes.byref(cache), None, ctypes.byref(work), None
    )
    assert asked == 0
    assert cache.value == layer.cache_bytes(2)
    assert work.value > 0
    huge = c.BNNSApplyMultiheadAttention(
        layer.handle, 1 << 62, *nothing, ctypes.byref(cache), None, None, None
    )
    assert huge == -1
    assert c.obn_attention_set_causal(layer.handle, 2) == -1
    handle = layer.handle
    layer.close()
    assert c.BNNSApplyMultiheadAttention(handle, 2, *nothing, None, None, None, None) == -1
    assert c.obn_attention_set_causal(handle, 1) == -1


def test_memory_is_linear_in_the_length():
    """Far below the 64 MiB of one head's scores."""
    layers = [AttentionCase(1, n, n, 8, 64, bias=False).layer() for n in (2048, 4096)]
    short, long = (c.obn_filter_work_bytes(layer.handle, 1) for layer in layers)
    assert long <= 64 << 20
    assert long <= 2.2 * short
