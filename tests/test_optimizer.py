"""Optimizers: the closed form in float64 over 100 steps, PyTorch, words and failures."""

import itertools

import numpy as np
import openbnns
import pytest
from cases.optimizer import CASES, KINDS
from hypothesis import given
from hypothesis import strategies as st
from openbnns import (
    AdamOptimizer,
    AdamWOptimizer,
    ArrayError,
    ClipByGlobalNorm,
    ClipByNorm,
    ClipByValue,
    DTypeError,
    OptimizerStepError,
    RMSPropOptimizer,
    SGDMomentumOptimizer,
)
from oracles.optimizer import Judge
from oracles.tolerance import assert_same_bits

STEPS = 100


def assert_parameters_close(ours, theirs, steps):
    """Each step may lose a few units in the last place of a parameter and of its change."""
    for got, want in zip(ours, theirs, strict=True):
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-6 * steps, atol=2e-7 * steps)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_many_steps_follow_the_closed_form(case):
    parameters, optimizer = case.parameters(), case.optimizer()
    judge = Judge(case.kind, optimizer, parameters)
    bound = optimizer.bind(parameters)
    steps = 5 if "split" in case.tags else STEPS
    for i in range(steps):
        gradients = case.gradients(i)
        kept = [g.copy() for g in gradients]
        bound.step(gradients)
        judge.step(gradients)
        for g, before in zip(gradients, kept, strict=True):
            assert_same_bits(g, before)
    assert bound.time_step == steps + 1
    assert_parameters_close(parameters, judge.w, steps)


@pytest.mark.parametrize("case", CASES[::5], ids=str)
def test_bound_steps_are_the_steps_of_the_c_interface(case):
    ours, theirs = case.parameters(), case.parameters()
    optimizer = case.optimizer()
    bound = case.optimizer().bind(ours)
    roles = optimizer.accumulator_count_multiplier
    accumulators = [np.zeros_like(p) for _ in range(roles) for p in theirs]
    for i in range(3):
        bound.step(case.gradients(i))
        if hasattr(optimizer, "time_step"):
            optimizer.time_step = i + 1
        optimizer.step(theirs, case.gradients(i), accumulators)
    for a, b in zip([*ours, *bound.accumulators], [*theirs, *accumulators], strict=True):
        assert_same_bits(a, b)


@pytest.mark.parametrize("threads", [1, 2, 7])
@pytest.mark.parametrize("case", [case for case in CASES if "split" in case.tags], ids=str)
def test_same_bits_for_any_number_of_threads(case, threads):
    results = []
    for limit in (1, threads):
        before = openbnns.get_num_threads()
        openbnns.set_num_threads(8)
        try:
            parameters = case.parameters()
            bound = case.optimizer().bind(parameters, num_threads=limit)
            bound.step(case.gradients())
            results.append([*parameters, *bound.accumulators])
        finally:
            openbnns.set_num_threads(before)
    for a, b in zip(*results, strict=True):
        assert_same_bits(a, b)


# ---- vectors of the specification ----


def test_plain_gradient_descent():
    w = np.float32([1, 2, 3, 4])
    SGDMomentumOptimizer(0.1).step([w], [np.float32([0.5, -1, 2, 0])])
    np.testing.assert_allclose(w, [0.95, 2.1, 2.8, 4], rtol=1e-6)


def test_variant_1_is_momentum_over_gradients():
    w, v = np.float32([10]), np.zeros(1, np.float32)
    sgd = SGDMomentumOptimizer(0.1, momentum=0.9, variant=1)
    for want, velocity in ((9.8, 2), (9.42, 3.8)):
        sgd.step([w], [np.float32([2])], [v])
        np.testing.assert_allclose([w[0], v[0]], [want, velocity], rtol=1e-6)


def test_gradient_scale_defaults_to_one():
    for kind, optimizer in KINDS.items():
        assert optimizer(0.1).gradient_scale == 1.0, kind


# ---- PyTorch ----


def torch_optimizers():
    """Ours, and how torch makes the same."""
    sgd, adam = SGDMomentumOptimizer, AdamOptimizer
    return {
        "sgd": (sgd(0.1), lambda t, w: t.optim.SGD(w, 0.1)),
        "momentum": (
            sgd(0.1, momentum=0.9, variant=1),
            lambda t, w: t.optim.SGD(w, 0.1, momentum=0.9),
        ),
        "nesterov": (
            sgd(0.1, momentum=0.9, variant=1, nesterov=True, l2=0.01),
            lambda t, w: t.optim.SGD(w, 0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
        ),
        "adam": (adam(0.01, epsilon=0.0), lambda t, w: t.optim.Adam(w, 0.01, eps=0.0)),
        "adam l2": (
            adam(0.01, epsilon=0.0, l2=0.1),
            lambda t, w: t.optim.Adam(w, 0.01, eps=0.0, weight_decay=0.1),
        ),
        "adamw": (
            AdamWOptimizer(0.01, epsilon=0.0, weight_decay=0.2),
            lambda t, w: t.optim.AdamW(w, 0.01, eps=0.0, weight_decay=0.2),
        ),
        "rmsprop": (
            RMSPropOptimizer(0.01, epsilon=1e-3),
            lambda t, w: t.optim.RMSprop(w, 0.01, eps=1e-3),
        ),
        "rmsprop centered": (
            RMSPropOptimizer(0.01, epsilon=1e-3, centered=True),
            lambda t, w: t.optim.RMSprop(w, 0.01, eps=1e-3, centered=True),
        ),
    }


@pytest.mark.parametrize("name", torch_optimizers())
def test_agrees_with_torch(name):
    torch = pytest.importorskip("torch")
    ours, make = torch_optimizers()[name]
    rng = np.random.default_rng(0)
    shapes = [(3, 5), (40,)]
    start = [rng.standard_normal(shape) for shape in shapes]
    parameters = [w.astype(np.float32) for w in start]
    theirs = [torch.nn.Parameter(torch.tensor(w.astype(np.float32)).double()) for w in start]
    bound, judge = ours.bind(parameters), make(torch, theirs)
    for _ in range(20):
        gradients = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
        bound.step(gradients)
        for p, g in zip(theirs, gradients, strict=True):
            p.grad = torch.tensor(g).double()
        judge.step()
    # betas and rates are float32 here: 0.999 is 0.99900001, and 1 - 0.999 five digits of 0.001
    assert_parameters_close(parameters, [p.detach().numpy() for p in theirs], 60)


def test_torch_tensors_are_moved_in_place():
    torch = pytest.importorskip("torch")
    w = torch.ones(3)
    SGDMomentumOptimizer(0.5).bind([w]).step([torch.tensor([1.0, 0.0, -1.0])])
    assert w.tolist() == [0.5, 1.0, 1.5]


# ---- state ----


def test_state_goes_to_another_optimizer():
    case = CASES[-2]
    ours, theirs = case.parameters(), case.parameters()
    first = case.optimizer().bind(ours)
    first.step(case.gradients(0))
    second = case.optimizer().bind(theirs)
    for into, value in zip(theirs, ours, strict=True):
        into[...] = value
    state = first.state_dict()
    assert all(isinstance(array, np.ndarray) for array in state.values())
    second.load_state_dict(state)
    assert second.time_step == 2
    first.step(case.gradients(1))
    second.step(case.gradients(1))
    for a, b in zip(ours, theirs, strict=True):
        assert_same_bits(a, b)


def test_wrong_state_is_refused_and_changes_nothing():
    bound = AdamOptimizer().bind([np.ones(3, np.float32)])
    state = bound.state_dict()
    with pytest.raises(ArrayError, match="state: expected the entries"):
        bound.load_state_dict({"time_step": state["time_step"]})
    wrong = {**state, "time_step": np.array(9), "second_moment.0": np.ones(4, np.float32)}
    with pytest.raises(ArrayError, match=r"second_moment.0'\]: expected \(3,\); got \(4,\)"):
        bound.load_state_dict(wrong)
    assert bound.time_step == 1


def test_accumulators_share_one_block():
    parameters = [np.ones((5, 3), np.float32), np.ones(7, np.float32)]
    bound = AdamOptimizer(amsgrad=True).bind(parameters)
    assert len(bound.accumulators) == 6
    assert {id(a.base if a.base is not None else a) for a in bound.accumulators} == {
        id(bound._arena)
    }
    for a, w in zip(bound.accumulators, parameters * 3, strict=True):
        assert (a.ctypes.data - w.ctypes.data) % 64 == 0
    spans = sorted((a.ctypes.data, a.ctypes.data + a.nbytes) for a in bound.accumulators)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))


def test_rates_may_change_between_steps():
    w = np.float32([1])
    bound = SGDMomentumOptimizer(0.5).bind([w])
    bound.step([np.float32([1])])
    bound.optimizer.learning_rate /= 5
    bound.step([np.float32([1])])
    np.testing.assert_allclose(w, [0.4], rtol=1e-6)
    bound.optimizer.momentum = 0.9
    with pytest.raises(OptimizerStepError, match="accumulators: expected velocity"):
        bound.step([np.float32([1])])


def test_time_step_belongs_to_the_bound_one():
    adam = AdamOptimizer(time_step=5)
    bound = adam.bind([np.ones(2, np.float32)])
    bound.step([np.ones(2, np.float32)])
    assert (adam.time_step, bound.time_step) == (5, 6)


# ---- words ----


def test_number_of_accumulators():
    assert SGDMomentumOptimizer(0.1).accumulator_count_multiplier == 0
    assert SGDMomentumOptimizer(0.1, momentum=0.9).accumulator_count_multiplier == 1
    assert AdamOptimizer().accumulator_count_multiplier == 2
    assert AdamWOptimizer(amsgrad=True).accumulator_count_multiplier == 3
    assert RMSPropOptimizer(centered=True, momentum=0.1).accumulator_count_multiplier == 3


def test_regularization_under_its_own_names():
    assert AdamOptimizer().regularization_function == "none"
    l1 = SGDMomentumOptimizer(0.1, l1=0.25)
    assert (l1.regularization_function, l1.regularization_scale) == ("l1", 0.25)
    l2 = SGDMomentumOptimizer(0.1, l2=0.5)
    assert (l2.regularization_function, l2.regularization_scale) == ("l2", 0.5)


def test_wrong_words():
    with pytest.raises(ValueError, match=r"\[AdamOptimizer\] l1, l2: expected at most one"):
        AdamOptimizer(l1=0.1, l2=0.1)
    with pytest.raises(ValueError, match="gradient_clipping: expected ClipByValue"):
        AdamOptimizer(gradient_clipping=(0, 1))


SENTENCES = [
    (AdamOptimizer(time_step=0), "time_step: expected a number of at least 1; got 0"),
    (AdamOptimizer(beta1=1.0), "beta1: expected at least 0 and below 1; got 1"),
    (AdamOptimizer(epsilon=-1.0), "epsilon: expected a finite number of at least 0; got -1"),
    (AdamOptimizer(float("nan")), "learning_rate: expected a finite number; got nan"),
    (SGDMomentumOptimizer(0.1, variant=3), "variant: expected 0, 1 or 2; got 3"),
    (RMSPropOptimizer(alpha=-0.5), "alpha: expected at least 0 and below 1; got -0.5"),
    (
        AdamOptimizer(gradient_clipping=ClipByValue(1, 0)),
        "bounds: expected low <= high; got 1 and 0",
    ),
    (AdamOptimizer(gradient_clipping=ClipByNorm(-1)), "threshold: expected at least 0; got -1"),
    (
        AdamOptimizer(gradient_clipping=ClipByGlobalNorm(1, -2)),
        "global_norm: expected at least 0; got -2",
    ),
]


@pytest.mark.parametrize(("optimizer", "sentence"), SENTENCES, ids=[s for _, s in SENTENCES])
def test_wrong_numbers_fail_and_change_nothing(optimizer, sentence):
    w = np.ones(3, np.float32)
    bound = optimizer.bind([w])
    step = bound.time_step
    with pytest.raises(OptimizerStepError) as error:
        bound.step([np.ones(3, np.float32)])
    assert str(error.value) == f"[{type(optimizer).__name__}] {sentence}"
    assert w.tolist() == [1, 1, 1]
    assert bound.time_step == step


def test_wrong_arrays():
    adam = AdamOptimizer()
    w, g = np.ones((2, 3), np.float32), np.ones((2, 3), np.float32)
    with pytest.raises(DTypeError, match=r"parameters\[0\]: expected float32; got float64"):
        adam.bind([w.astype(np.float64)])
    with pytest.raises(ArrayError, match=r"parameters\[0\]: .*never copied"):
        adam.bind([np.ones((3, 4), np.float32)[:, ::2]])
    readonly = w.copy()
    readonly.flags.writeable = False
    with pytest.raises(ArrayError, match=r"parameters\[0\]: expected a writable array"):
        adam.bind([readonly])
    bound = adam.bind([w])
    with pytest.raises(OptimizerStepError, match="gradients: expected 1, as many as parameters"):
        bound.step([g, g])
    with pytest.raises(ArrayError, match=r"gradients\[0\]: expected \(2, 3\); got \(3, 2\)"):
        bound.step([g.reshape(3, 2)])
    with pytest.raises(DTypeError, match=r"gradients\[0\]: expected float32; got float16"):
        bound.step([g.astype(np.float16)])
    with pytest.raises(OptimizerStepError, match="expected arrays apart from each other"):
        bound.step([w])
    with pytest.raises(OptimizerStepError, match="accumulators: expected 2, 2 for each"):
        adam.step([w], [g])
    with pytest.raises(OptimizerStepError, match="expected arrays apart from each other"):
        adam.bind([w, w]).step([g, g])
    assert w.tolist() == [[1, 1, 1]] * 2


def test_gradients_with_strides_are_copied_and_said_so():
    w = np.zeros((2, 3), np.float32)
    bound = SGDMomentumOptimizer(1.0).bind([w])
    g = np.arange(6, dtype=np.float32).reshape(3, 2).T
    with pytest.warns(openbnns.CopyWarning):
        bound.step([g])
    np.testing.assert_array_equal(w, -g)


def test_no_parameters_are_fine():
    AdamOptimizer().bind([]).step([])


# ---- properties ----


@given(
    sizes=st.lists(st.integers(1, 70), min_size=1, max_size=12),
    kind=st.sampled_from(["sgd", "adam", "rmsprop"]),
    seed=st.integers(0, 1000),
)
def test_many_tensors_move_as_each_alone(sizes, kind, seed):
    """Where nothing but values clips, tensors do not know of each other."""
    rng = np.random.default_rng(seed)
    options = {"gradient_clipping": ClipByValue(-1, 1), "l2": 0.1}
    if kind == "sgd":
        options["momentum"] = 0.5
    together = [rng.standard_normal(n).astype(np.float32) for n in sizes]
    alone = [w.copy() for w in together]
    gradients = [rng.standard_normal(n).astype(np.float32) for n in sizes]
    KINDS[kind](0.1, **options).bind(together).step(gradients)
    for w, g in zip(alone, gradients, strict=True):
        KINDS[kind](0.1, **options).bind([w]).step([g])
    for a, b in zip(together, alone, strict=True):
        assert_same_bits(a, b)
