"""Random generators: the stream by the book, distributions, states, words and failures."""

import numpy as np
import openbnns
import pytest
from cases import dtype_of, gaps_untouched, has_bfloat16, in_threads, sentinel_array
from hypothesis import given
from hypothesis import strategies as st
from openbnns import ArrayError, LayerApplyError, LayerCreationError, RandomGenerator
from oracles import random as judge
from oracles.tolerance import assert_same_bits

HALF = ["float16"] + (["bfloat16"] if has_bfloat16() else [])


def test_the_judge_knows_the_published_vectors():
    zero = judge.round_keys(bytes(16))
    assert judge.encrypt(zero, bytes(16)).hex() == "66e94bd4ef8a2c3b884cfa59ca342b2e"
    keys = judge.round_keys(bytes(range(16)))  # FIPS 197, appendix C.1
    block = bytes.fromhex("00112233445566778899aabbccddeeff")
    assert judge.encrypt(keys, block).hex() == "69c4e0d86a7b0430d8cdb78070b4c55a"


@pytest.mark.parametrize("seed", [0, 1, 42, 2**63 + 12345, 2**64 - 1])
def test_uniform_is_the_stream_of_the_seed(seed):
    rng = RandomGenerator(seed)
    values = judge.stream(seed, 90)
    np.testing.assert_array_equal(rng.uniform(0, 1, 33), judge.uniform(values[:33], 0, 1))
    np.testing.assert_array_equal(rng.uniform(-2, 3, 57), judge.uniform(values[33:], -2, 3))


def test_other_distributions_are_made_of_the_same_stream():
    values = judge.stream(9, 200)
    np.testing.assert_allclose(
        RandomGenerator(9).normal(1, 2, 101), judge.normal(values[:102], 1, 2)[:101], atol=2e-6
    )
    np.testing.assert_array_equal(
        RandomGenerator(9).integers(-7, 100, 200), judge.integers(values, -7, 100)
    )
    weights = np.float32([1, 0, 3, 0.5, 0])
    np.testing.assert_array_equal(
        RandomGenerator(9).categorical(weights, 200), judge.categories(values, weights)
    )


def test_an_odd_number_of_normals_uses_up_its_pair():
    rng = RandomGenerator(9)
    rng.normal(0, 1, 3)
    np.testing.assert_array_equal(
        rng.uniform(0, 1, 4), judge.uniform(judge.stream(9, 4, start=4), 0, 1)
    )


@given(st.lists(st.integers(1, 40), min_size=1, max_size=12))
def test_pieces_of_a_stream_fit_together(sizes):
    rng = RandomGenerator(5)
    pieces = np.concatenate([rng.uniform(0, 1, n) for n in sizes])
    assert_same_bits(pieces, RandomGenerator(5).uniform(0, 1, sum(sizes)))


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_same_bits_for_any_number_of_threads(threads):
    before = openbnns.get_num_threads()
    openbnns.set_num_threads(8)
    try:
        ours, one = RandomGenerator(3, num_threads=threads), RandomGenerator(3, num_threads=1)
        p = np.float32(np.arange(20).reshape(4, 5) + 1)
        for a, b in zip(
            *(
                (
                    rng.uniform(-1, 1, (300, 301)),
                    rng.normal(0, 1, 100_001),
                    rng.integers(0, 2**40, 70_000, "int64"),
                    rng.categorical(p, 30_000),
                )
                for rng in (ours, one)
            ),
            strict=True,
        ):
            assert_same_bits(a, b)
    finally:
        openbnns.set_num_threads(before)


def test_state_replays():
    rng = RandomGenerator(1)
    rng.uniform(0, 1, 7)
    state = rng.state
    assert isinstance(state, bytes)
    first = [rng.normal(0, 1, 9), rng.integers(0, 9, 5)]
    rng.state = state
    again = [rng.normal(0, 1, 9), rng.integers(0, 9, 5)]
    other = RandomGenerator(2)
    other.state = state
    for a, b, c in zip(first, again, [other.normal(0, 1, 9), other.integers(0, 9, 5)], strict=True):
        assert_same_bits(a, b)
        assert_same_bits(a, c)
    with pytest.raises(LayerApplyError, match="state: expected 40 bytes; got 3"):
        rng.state = b"abc"
    with pytest.raises(LayerApplyError, match="state: expected bytes that a generator gave"):
        rng.state = b"x" * 39 + b"y"


@given(
    st.integers(0, 2**64 - 1),
    st.lists(
        st.tuples(
            st.sampled_from(["uniform", "normal", "integers", "categorical"]),
            st.one_of(st.integers(1, 70), st.integers(3000, 40_000)),
            st.integers(1, 5),  # threads
            st.booleans(),  # the rest comes from another generator that took over the state
        ),
        min_size=1,
        max_size=6,
    ),
)
def test_a_stream_survives_threads_chunks_and_restores(seed, draws):
    """What a generator gives depends on its seed and on what was drawn before, on nothing else."""

    def draw(rng, kind, n):
        if kind == "categorical":
            return rng.categorical(np.float32([1, 3, 0, 4]), n)
        bounds = (0, 2**40, n, "int64") if kind == "integers" else (-1, 2, n)
        return getattr(rng, kind)(*bounds)

    before = openbnns.get_num_threads()
    openbnns.set_num_threads(8)
    try:
        plain, moved = RandomGenerator(seed, num_threads=1), RandomGenerator(seed, num_threads=1)
        for kind, n, threads, restores in draws:
            if restores:
                state = moved.state
                moved = RandomGenerator(n, num_threads=threads)
                moved.state = state
            assert_same_bits(draw(moved, kind, n), draw(plain, kind, n))
        assert moved.state == plain.state
    finally:
        openbnns.set_num_threads(before)


def test_no_seed_is_a_new_seed():
    assert RandomGenerator().state != RandomGenerator().state


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64"])
def test_integers_reach_both_ends(dtype):
    x = RandomGenerator(4).integers(10, 20, 1000, dtype)
    assert x.dtype == dtype
    assert (int(x.min()), int(x.max())) == (10, 19)


def test_integer_bounds_are_limited_to_the_type():
    x = RandomGenerator(4).integers(-1000, 1000, 5000, "uint8")
    assert (x.min(), x.max()) == (0, 255)
    wide = RandomGenerator(4).integers(-(2**63), 2**63 - 1, 5000, "int64")
    assert wide.min() < -(2**62)
    assert wide.max() > 2**62


def test_moments():
    rng = RandomGenerator(12)
    x = rng.normal(3, 0.5, 400_000).astype(np.float64)
    assert abs(x.mean() - 3) < 0.004
    assert abs(x.std() - 0.5) < 0.003
    z = (x - 3) / 0.5
    assert abs((z**3).mean()) < 0.02
    assert abs((z**4).mean() - 3) < 0.05
    assert abs(np.corrcoef(z[0::2], z[1::2])[0, 1]) < 0.01
    u = rng.uniform(-1, 1, 400_000).astype(np.float64)
    assert abs(u.mean()) < 0.004
    assert np.histogram(u, 16)[0].min() > 400_000 / 16 * 0.97


@pytest.mark.parametrize("dtype", ["float32", *HALF])
def test_strides_are_respected(dtype):
    shape = (3, 4, 50)
    view, owner = sentinel_array(shape, dtype, gaps=(0, 1, 2), step=2)
    assert RandomGenerator(6).uniform(-1, 1, out=view) is view
    assert gaps_untouched(view, owner)
    packed = RandomGenerator(6).uniform(-1, 1, shape, dtype)
    assert packed.dtype == dtype_of(dtype)
    np.testing.assert_array_equal(view.astype(np.float32), packed.astype(np.float32))
    exact = RandomGenerator(6).uniform(-1, 1, shape)
    assert_same_bits(packed, exact.astype(dtype_of(dtype)))


def test_halves_stay_finite():
    x = RandomGenerator(8).normal(0, 60000, 4000, "float16")
    assert np.isfinite(x).all()
    assert np.abs(x).max() == 65504


def test_categories_of_many_rows():
    p = np.float32([[0, 0, 1, 0], [1, 1, 0, 0]])
    x = RandomGenerator(1).categorical(p, 1000)
    assert x.shape == (2, 1000)
    assert set(x[0]) == {2.0}
    assert set(x[1]) == {0.0, 1.0}
    assert abs(x[1].mean() - 0.5) < 0.05
    logs = np.float32([[-np.inf, -np.inf, 3, -np.inf], [500, 500, -np.inf, -np.inf]])
    np.testing.assert_array_equal(RandomGenerator(1).categorical(logs, (2, 1000), log=True), x)
    with pytest.raises(LayerApplyError, match="probabilities: expected the shape of out"):
        RandomGenerator(1).categorical(p, (3, 10))


def test_empty_results():
    rng = RandomGenerator(1)
    state = rng.state
    assert rng.uniform(0, 1, (0, 3)).shape == (0, 3)
    assert rng.integers(0, 5, 0).dtype == np.int32
    assert rng.categorical(np.ones((2, 3), np.float32), 0).shape == (2, 0)
    assert rng.state == state


def test_failing_calls_leave_output_and_stream_alone():
    rng = RandomGenerator(1)
    state, y = rng.state, np.full(5, 7, np.float32)
    for call, sentence in (
        (lambda: rng.uniform(1, 0, out=y), "low: expected at most high, 0; got 1"),
        (lambda: rng.normal(0, -1, out=y), "std: expected a finite number of at least 0; got -1"),
        (lambda: rng.normal(np.inf, 1, out=y), "mean: expected a finite number; got inf"),
        (lambda: rng.integers(0, 5, out=y), "out: expected an integer type"),
        (lambda: rng.integers(5, 5, 3), "low: expected less than high"),
        (lambda: rng.uniform(0.1, 1, 3, "float16"), "low: expected a number that float16 can hold"),
        (lambda: rng.categorical(np.zeros(3, np.float32), out=y), "probabilities: expected rows"),
        (lambda: rng.categorical(np.float32([1, -1]), out=y), "probabilities: expected rows"),
    ):
        with pytest.raises(LayerApplyError) as error:
            call()
        assert sentence in str(error.value)
        assert str(error.value).startswith("[RandomGenerator.")
    with pytest.raises(ArrayError, match=r"out: expected \(4,\); got \(5,\)"):
        rng.uniform(0, 1, 4, out=y)
    with pytest.raises(ArrayError, match="shape: expected a shape, or an array as out"):
        rng.uniform(0, 1)
    assert rng.state == state
    assert (y == 7).all()


def test_wrong_words():
    with pytest.raises(LayerCreationError, match="method: expected 'aes_ctr'; got 'mt19937'"):
        RandomGenerator(method="mt19937")
    for seed in (-1, 2**64, 1.5, "1"):
        with pytest.raises(LayerCreationError, match="seed: expected None or a whole number"):
            RandomGenerator(seed)


def test_threads_share_a_generator():
    """Whoever comes first: together they get the numbers of one stream, each block to one."""
    rng, found = RandomGenerator(21), []

    def draw(_):
        for _ in range(50):
            found.append(rng.uniform(0, 1, 8).tobytes())

    in_threads(4, draw)
    expected = RandomGenerator(21).uniform(0, 1, (200, 8))
    assert sorted(found) == sorted(row.tobytes() for row in expected)
