"""What the library promises beside right numbers: no allocation when warm, the same bits for any
number of threads, shared memory, outputs left alone by failing calls, no uninvited imports."""

import ctypes
import os
import platform
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import openbnns
import ports
import pytest
from cases import activation as activation_cases
from cases import arithmetic as arithmetic_cases
from cases import attention as attention_cases
from cases import convolution as convolution_cases
from cases import dtype_of, in_threads, is_sentinel
from cases import fully_connected as fully_connected_cases
from cases import fused as fused_cases
from cases import loss as loss_cases
from cases import matmul as matmul_cases
from cases import normalization as normalization_cases
from cases import pooling as pooling_cases
from cases import quantization as quantization_cases
from cases.descriptors import (
    activation_layer,
    convolution_parameters,
    image,
    matrix,
    pooling_parameters,
    vector,
    weights,
)
from cases.marks import marked
from openbnns import c
from oracles.tolerance import assert_close, assert_same_bits

TESTS = Path(__file__).parent

WEIGHTED = convolution_cases.CASES + fully_connected_cases.CASES
FAMILIES = (
    pooling_cases,
    activation_cases,
    convolution_cases,
    fully_connected_cases,
    normalization_cases,
    arithmetic_cases,
    quantization_cases,
    loss_cases,
    fused_cases,
    attention_cases,
    matmul_cases,
)
SPLIT = [
    marked(case) for family in FAMILIES for case in family.CASES if case.tags & {"split", "large"}
]


def assert_same_results(ours, theirs):
    """Compares what two runs of a case gave, bit by bit."""
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        assert_same_bits(array, theirs[name])


def run_python(code, **environment):
    """Runs code in a fresh interpreter that finds the cases; its standard output."""
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# ---- memory ----


@pytest.mark.skipif(sys.platform != "linux", reason="counts through the GNU C library")
@pytest.mark.skipif(not ports.COMPILERS[".c"], reason="needs a C compiler")
def test_warm_calls_allocate_nothing(tmp_path):
    source = ports.FOLDER / "allocations.c"
    program = ports.build(ports.COMPILERS[".c"][0], source, tmp_path)
    assert ports.run([program]) == ports.expected(source)


@pytest.mark.skipif(sys.platform != "linux", reason="counts through the GNU C library")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="traps the system calls of x86-64")
@pytest.mark.skipif(not ports.COMPILERS[".c"], reason="needs a C compiler")
def test_warm_calls_of_one_thread_ask_nothing_of_the_system(tmp_path):
    """No system call, no lock (but for drawing random numbers), no allocation."""
    source = ports.FOLDER / "allocations.c"
    program = ports.build(ports.COMPILERS[".c"][0], source, tmp_path)
    command = [program, "quiet"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode == 77:
        pytest.skip("needs seccomp")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == ports.expected(source) + "own system call and lock: 2\n"


@pytest.mark.skipif(sys.platform != "linux", reason="counts through the GNU C library")
@pytest.mark.skipif(not ports.COMPILERS[".c"], reason="needs a C compiler")
def test_every_allocation_may_fail(tmp_path):
    """Each one of each family, once: a result that says so, outputs left alone, nothing lost."""
    program = ports.build(ports.COMPILERS[".c"][0], ports.FOLDER / "faults.c", tmp_path)
    done = subprocess.run([program], capture_output=True, text=True, timeout=540, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "count_attention" in done.stdout  # it came to its end


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for the peak")
def test_attention_of_a_long_sequence_takes_little_memory():
    """Forward and backward of 4096 rows, 512 wide, as the system sees the process: 64 MiB at most
    beside inputs, results and gradients, which all are there before."""
    peak = run_python("from cases.attention import VERY_LONG; print(VERY_LONG.peak_bytes(2))")
    assert 16 < int(peak) / 2**20 <= 64


class CountingAllocator:
    """alloc_memory and free_memory for a filter: who got what, and is all of it back."""

    def __init__(self):
        self.blocks = {}  # address -> memory
        self.calls = 0
        self.strangers = 0  # frees of what was never given
        self.alloc = c.BNNSAlloc(self._alloc)
        self.free = c.BNNSFree(self._free)

    def _alloc(self, target, alignment, size):
        self.calls += 1
        memory = ctypes.create_string_buffer(size + alignment)
        address = -(-ctypes.addressof(memory) // alignment) * alignment
        self.blocks[address] = memory
        ctypes.c_void_p.from_address(ctypes.cast(target, ctypes.c_void_p).value).value = address
        return 0

    def _free(self, address):
        if self.blocks.pop(address, None) is None:
            self.strangers += 1

    def options(self):
        return c.BNNSFilterParameters(alloc_memory=self.alloc, free_memory=self.free)


def pooling_filter(options):
    parameters = pooling_parameters(0, image((3, 40, 40)), image((3, 20, 20)), (2, 2), (2, 2))
    return c.BNNSFilterCreateLayerPooling(parameters, options)


def activation_filter(options):
    side = image((3, 40, 40))
    return activation_layer(29, side, side, filter_params=options, alpha=0.5)


def convolution_filter(options):
    w = weights((5, 3, 3, 3), "float16", data=np.ones((5, 3, 3, 3), np.float16))
    bias = vector(5, data=np.ones(5, np.float32))
    parameters = convolution_parameters(
        image((3, 40, 40)), w, image((5, 40, 40)), padding=(1, 1), bias=bias
    )
    return c.BNNSFilterCreateLayerConvolution(parameters, options)


def product_filter(options):
    w = np.ones((40, 3), np.float16)
    parameters = c.BNNSLayerParametersBroadcastMatMul(
        alpha=1,
        b_is_weights=True,
        iA_desc=matrix((120, 40)),
        iB_desc=matrix((40, 3), "float16", data=w),
        o_desc=matrix((120, 3)),
    )
    return c.BNNSFilterCreateLayerBroadcastMatMul(parameters, options)


def fully_connected_filter(options):
    parameters = c.BNNSLayerParametersFullyConnected(
        i_desc=vector(3 * 40 * 40),
        w_desc=matrix((7, 3 * 40 * 40), data=np.ones((7, 3 * 40 * 40), np.float32)),
        o_desc=vector(7),
    )
    return c.BNNSFilterCreateLayerFullyConnected(parameters, options)


FILTERS = {
    pooling_filter: 3 * 20 * 20,
    activation_filter: 3 * 40 * 40,
    convolution_filter: 5 * 40 * 40,
    fully_connected_filter: 7,
    product_filter: 120 * 3,
}


@pytest.mark.parametrize(("create", "outputs"), FILTERS.items())
def test_callers_allocator_is_used_and_balanced(create, outputs):
    allocator = CountingAllocator()
    f = create(allocator.options())
    assert f, c.last_error()
    assert allocator.calls > 0
    x, y = np.ones((8, 3, 40, 40), np.float32), np.empty((8, outputs), np.float32)
    assert c.BNNSFilterApplyBatch(f, 8, x, 0, y, 0) == 0, c.last_error()
    warm = allocator.calls
    for _ in range(5):
        assert c.BNNSFilterApplyBatch(f, 8, x, 0, y, 0) == 0
    assert allocator.calls == warm
    c.BNNSFilterDestroy(f)
    assert allocator.blocks == {}
    assert allocator.strangers == 0


@pytest.mark.parametrize("create", FILTERS)
def test_failing_allocator_gives_no_filter(create):
    given = CountingAllocator()
    create_once = create(given.options())
    needed = given.calls
    c.BNNSFilterDestroy(create_once)
    for allowed in range(needed):  # refuse the first, then the second, ... request
        allocator = CountingAllocator()
        honest = allocator._alloc

        def grudging(target, alignment, size, allocator=allocator, honest=honest, most=allowed):
            return honest(target, alignment, size) if allocator.calls < most else 12

        allocator.alloc = c.BNNSAlloc(grudging)
        assert create(allocator.options()) is None
        assert c.last_error()
        assert allocator.blocks == {}


def test_lone_allocator_callback_is_refused():
    allocator = CountingAllocator()
    for options in (
        c.BNNSFilterParameters(alloc_memory=allocator.alloc),
        c.BNNSFilterParameters(free_memory=allocator.free),
    ):
        assert pooling_filter(options) is None
        assert c.last_error()


def test_many_filters_leave_nothing_behind():
    allocator = CountingAllocator()
    for _ in range(200):
        for create in FILTERS:
            c.BNNSFilterDestroy(create(allocator.options()))
    assert allocator.blocks == {}


def test_results_share_memory_with_out():
    case = pooling_cases.CASES[0]
    y, _ = case.empty_output()
    assert case.layer().apply(case.input(), out=y) is y
    case = activation_cases.CASES[0]
    y, _ = case.empty_output()
    layer = case.layer()
    assert layer.apply(case.input(), out=y) is y
    dx = np.empty(case.shape, np.float32)
    grads = layer.apply_backward(case.input(), y, case.output_gradient(), input_gradient=dx)
    assert grads.input is dx


def test_handles_of_many_filters_are_distinct_and_reusable():
    handles = [pooling_filter(None) for _ in range(500)]
    assert None not in handles
    assert len(set(handles)) == len(handles)
    for handle in handles[::2]:
        c.BNNSFilterDestroy(handle)
    later = [pooling_filter(None) for _ in range(250)]
    assert not set(later) & set(handles)  # a dead handle never comes back to life
    for handle in later + handles[1::2]:
        c.BNNSFilterDestroy(handle)


# ---- threads ----


@pytest.fixture
def threads():
    """Restores the limit after a test has changed it."""
    before = openbnns.get_num_threads()
    yield openbnns.set_num_threads
    openbnns.set_num_threads(before)


@pytest.mark.parametrize("case", SPLIT)
def test_any_number_of_threads_gives_the_same_bits(case, threads):
    threads(1)
    alone = case.results()
    for count in (2, 7):
        threads(count)
        assert_same_results(case.results(), alone)


def test_layers_limit_their_own_threads_with_the_same_bits(threads):
    threads(2)
    for module in FAMILIES:
        if module is activation_cases:  # its cases make no layers with a limit
            continue
        case = next(p for p in module.CASES if "split" in p.tags)
        assert_same_results(case.results(num_threads=2), case.results(num_threads=1))


def test_gumbel_has_the_same_bits_for_any_number_of_threads(threads):
    layer = openbnns.ActivationLayer(openbnns.Activation.gumbel(1.0 - 2e-7, 1e-7), input=(100_000,))
    x, runs = np.zeros((1, 100_000), np.float32), []
    for count in (1, 2, 7):
        threads(count)
        openbnns.set_seed(3)
        runs.append(layer.apply(x))
    assert_same_bits(runs[1], runs[0])
    assert_same_bits(runs[2], runs[0])


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
def test_thread_limit_is_respected():
    code = """
import os, numpy as np, openbnns
limit = {limit}
openbnns.set_num_threads({setting})
before = len(os.listdir("/proc/self/task"))
layer = openbnns.ActivationLayer("tanh", input=(1 << 20,), num_threads=limit)
x = np.ones((4, 1 << 20), np.float32)
for _ in range(3):
    layer.apply(x)
print(len(os.listdir("/proc/self/task")) - before)
"""
    assert int(run_python(code.format(limit=None, setting=1))) == 0
    assert int(run_python(code.format(limit=1, setting=4))) == 0
    assert int(run_python(code.format(limit=None, setting=3))) <= 2
    assert int(run_python(code.format(limit=2, setting=4))) <= 3


def test_thread_setting_reads_back(threads):
    for count in (1, 3, 2):
        threads(count)
        assert openbnns.get_num_threads() == count
    c.obn_set_num_threads(0)
    assert openbnns.get_num_threads() >= 1


def test_many_python_threads_at_once(threads):
    """Every thread has its own layers; all of them share the pool. One layer is shared."""
    threads(2)
    case = next(p for p in pooling_cases.CASES if "split" in p.tags)
    expected = case.results()
    shared, x = case.layer(), case.input()
    activation = activation_cases.ActivationCase("tanh", (2, 3, 50, 67))
    expected_activation = activation.results()
    weighted = [next(p for p in WEIGHTED if "split" in p.tags), fully_connected_cases.WIDE]
    expected_weighted = [p.results() for p in weighted]
    together, images = weighted[0].layer(), weighted[0].input()
    others = [normalization_cases.BATCH, arithmetic_cases.KINDS[0], quantization_cases.CASES[0]]
    others += [normalization_cases.TYPICAL[0], arithmetic_cases.TYPICAL[1]]
    others += [fused_cases.PAIRS[0], *fused_cases.TYPICAL[:2], attention_cases.OPTIONS[11]]
    others += matmul_cases.SPLIT[:2]
    expected_others = [p.results() for p in others]
    inference, features = others[0].layer(), others[0].input()
    normalized = inference.apply(features, training=False)
    failures = []

    def work(_):
        try:
            for _ in range(10):
                assert_same_results(case.results(), expected)
                assert_same_results(activation.results(), expected_activation)
                assert_same_bits(shared.apply(x), expected["y"])
                for one, results in zip(weighted, expected_weighted, strict=True):
                    assert_same_results(one.results(), results)
                assert_same_bits(together.apply(images), expected_weighted[0]["y"])
                for one, results in zip(others, expected_others, strict=True):
                    assert_same_results(one.results(), results)
                assert_same_bits(inference.apply(features, training=False), normalized)
        except BaseException as error:
            failures.append(error)

    in_threads(6, work)
    assert failures == []


def test_filters_come_and_go_on_many_threads():
    failures = []

    def work(_):
        x, y = np.ones((3, 40, 40), np.float32), np.empty((3, 20, 20), np.float32)
        for _ in range(200):
            f = pooling_filter(None)
            if c.BNNSFilterApply(f, x, y) or not (y == 1.0).all():
                failures.append(c.last_error())
            c.BNNSFilterDestroy(f)
            if c.BNNSFilterApply(f, x, y) != -1:
                failures.append("a dead filter worked")

    in_threads(4, work)
    assert failures == []


def test_error_sentences_belong_to_their_thread():
    c.obn_clear_error()
    seen = []

    def fail():
        c.BNNSFilterApply(None, None, None)
        seen.append(c.last_error())

    worker = threading.Thread(target=fail)
    worker.start()
    worker.join()
    assert seen[0]
    assert c.last_error() == ""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_child_computes_after_the_parent_did():
    code = """
import multiprocessing, warnings
warnings.simplefilter("ignore", DeprecationWarning)
import numpy as np, openbnns
openbnns.set_num_threads(2)
layer = openbnns.ActivationLayer("tanh", input=(1 << 18,))
x = np.linspace(-3, 3, 4 << 18, dtype=np.float32).reshape(4, -1)
expected = layer.apply(x)

def child(queue):
    old = layer.apply(x)
    new = openbnns.ActivationLayer("tanh", input=(1 << 18,)).apply(x)
    queue.put(old.tobytes() == new.tobytes() == expected.tobytes())

context = multiprocessing.get_context("fork")
queue = context.Queue()
workers = [context.Process(target=child, args=(queue,)) for _ in range(2)]
for worker in workers:
    worker.start()
print([queue.get(timeout=60) for _ in workers])
for worker in workers:
    worker.join(30)
print([worker.exitcode for worker in workers])
print(layer.apply(x).tobytes() == expected.tobytes())
"""
    assert run_python(code).split("\n")[:3] == ["[True, True]", "[0, 0]", "True"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_child_trains_a_layer_that_another_thread_was_training():
    code = """
import os, threading, warnings
warnings.simplefilter("ignore", DeprecationWarning)
import numpy as np, openbnns
layer = openbnns.NormalizationLayer("batch", input=(8, 64, 64))
x = np.ones((16, 8, 64, 64), np.float32)
over, begun = threading.Event(), threading.Event()

def train():
    while not over.is_set():
        begun.set()
        layer.apply(x, training=True)

worker = threading.Thread(target=train)
worker.start()
begun.wait()
codes = []
for _ in range(20):
    child = os.fork()
    if child == 0:
        import signal
        signal.alarm(30)
        try:
            layer.apply(x, training=True)
            openbnns.c.BNNSFilterDestroy
        except BaseException as error:
            print(error, flush=True)
            os._exit(1)
        os._exit(0)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
over.set()
worker.join()
print(set(codes))
"""
    assert run_python(code).split("\n")[0] == "{0}"


# ---- instruction sets ----

EVERYTHING = """
import os
import platform
import numpy as np
import openbnns
from cases import activation, arithmetic, attention, convolution, fully_connected, fused
from cases import has_bfloat16, loss, matmul
from cases import normalization, pooling, quantization
arrays = {"isa": np.array(openbnns.isa())}
families = (pooling, activation, convolution, fully_connected, normalization, arithmetic, loss)
for family in (*families, quantization, fused, attention, matmul):
    for case in family.CASES:
        needs = {case.dtype, case.stored}
        if "large" in case.tags or ("bfloat16" in needs and not has_bfloat16()):
            continue
        for name, array in case.results().items():
            key = f"{family.__name__[6:]} {case} {name}"
            arrays[key] = array if array.dtype.kind in "iuf" else array.astype("f4")
np.savez(os.environ["RESULTS"], **arrays)
"""

AVAILABLE = [
    name
    for name in ("portable", "avx2", "avx512", "neon", "neon_bf16")
    if c.obn_isa_available(name) == 1
]


def results_with(isa, folder):
    """Results of the whole case list from a process that is told to use `isa`."""
    file = folder / f"{isa}.npz"
    run_python(EVERYTHING, OPENBNNS_ISA=isa, RESULTS=str(file))
    with np.load(file) as arrays:
        return dict(arrays)


RANDOM = """
import hashlib, numpy as np, openbnns
rng, digest = openbnns.RandomGenerator(7), hashlib.sha256()
for _ in range(2):
    for array in (rng.uniform(-1, 3, 10_001), rng.normal(2, 3, 50_001),
                  rng.integers(-5, 1000, 999), rng.integers(0, 2**50, 999, "int64"),
                  rng.normal(0, 1, 333, "float16"), rng.categorical(np.ones(5, "f4"), 77)):
        digest.update(array.tobytes())
print(digest.hexdigest())
"""


def test_random_numbers_have_the_same_bits_on_every_instruction_set():
    assert len({run_python(RANDOM, OPENBNNS_ISA=isa) for isa in AVAILABLE}) == 1


def test_instruction_sets_agree(tmp_path):
    assert AVAILABLE
    runs = {isa: results_with(isa, tmp_path) for isa in AVAILABLE}
    for isa, run in runs.items():
        assert str(run.pop("isa")) == isa
    reference = runs[AVAILABLE[0]]
    assert len(reference) > 500
    for run in runs.values():
        assert run.keys() == reference.keys()
        for name, array in run.items():
            if array.dtype.kind in "iu":
                np.testing.assert_array_equal(array, reference[name], err_msg=name)
            else:
                assert_close_between(array, reference[name], name)


def assert_close_between(one, two, name):
    """Two instruction sets may differ by rounding, so by one unit of the narrowest type in play;
    sums of up to 1e5 terms of both signs (bias, alpha, the gradients of log-softmax) by more, sums
    of products of the size of one by a little more, and normalized groups of single values by the
    1/sqrt(epsilon) that multiplies what should have been 0."""
    unit = 2.0**-7 if "bfloat16" in name else 2.0**-10 if "float16" in name else 4e-6
    family, rest = name.split(" ", 1)
    absolute = 4e-5 if family in ("attention", "convolution", "fully_connected") else 4e-6
    if family in ("normalization", "fused", "matmul"):
        absolute = 1e-4
    if name.endswith("sum") or rest.startswith("log_softmax"):
        absolute = 4e-4
    np.testing.assert_allclose(one, two, rtol=unit, atol=absolute, err_msg=name)


def test_unknown_instruction_set_falls_back():
    code = "import openbnns; print(openbnns.isa())"
    chosen = run_python(code, OPENBNNS_ISA="abacus").strip()
    assert c.obn_isa_available(chosen) == 1
    assert chosen == run_python(code, OPENBNNS_ISA="").strip()


# ---- failing calls and imports ----


def test_failing_calls_leave_outputs_alone():
    case = pooling_cases.CASES[0]
    layer, x = case.layer(), case.input()
    y, _ = case.empty_output()
    with pytest.raises(openbnns.BNNSError):
        layer.apply(x.astype(np.float16), out=y)
    with pytest.raises(openbnns.BNNSError):
        layer.apply(x[:, :, :-1], out=y)
    layer.close()
    with pytest.raises(openbnns.LayerApplyError):
        layer.apply(x, out=y)
    assert is_sentinel(y)


@pytest.mark.parametrize("case", [convolution_cases.ODD, fully_connected_cases.ODD], ids=str)
def test_failing_backward_calls_leave_gradients_alone(case):
    layer, x, dy = case.layer(), case.input(), case.output_gradient()
    (dx, _), (dw, _) = case.empty_input(), case.empty_weights()
    targets = {"input_gradient": dx, "weights_gradient": dw}
    with pytest.raises(openbnns.BNNSError):
        layer.apply_backward(None, None, dy, **targets)  # the weights gradient needs x
    with pytest.raises(openbnns.BNNSError):
        layer.apply_backward(x, None, dy[:1], **targets)
    with pytest.raises(openbnns.BNNSError):
        layer.apply_backward(x, None, dy, **targets, bias_gradient=np.zeros(1, np.float32))
    layer.close()
    with pytest.raises(openbnns.LayerApplyError):
        layer.apply_backward(x, None, dy, **targets)
    assert is_sentinel(dx)
    assert is_sentinel(dw)


def test_failing_loss_calls_leave_everything_alone():
    case = loss_cases.ODD
    layer, x, labels = case.layer(), case.input(), case.label_values()
    weights = case.weight_values()
    dx, _ = case.empty_gradient()
    y = np.full((), 7, np.float32)
    wrong = np.zeros(case.shape[0], np.int64)
    wrong[-1] = -1
    for given in (labels[:-1], labels.astype(np.float16), wrong):
        with pytest.raises(openbnns.BNNSError):
            layer.apply(x, given, weights=weights, input_gradient=dx, out=y)
        with pytest.raises(openbnns.BNNSError):
            layer.apply_backward(x, given, weights=weights, input_gradient=dx)
    with pytest.raises(openbnns.BNNSError):
        layer.apply(x, labels, weights=weights[:-1], input_gradient=dx, out=y)
    with pytest.raises(openbnns.LayerApplyError, match=r"out.*: expected memory apart"):
        layer.apply(x, labels, input_gradient=dx, out=dx[:1, :1].reshape(()))
    layer.close()
    with pytest.raises(openbnns.LayerApplyError):
        layer.apply(x, labels, input_gradient=dx, out=y)
    assert is_sentinel(dx)
    assert y == 7


def test_failing_normalizations_leave_everything_alone():
    """Results, gradients and running statistics."""
    case = normalization_cases.BATCH
    mean, variance = case.moving_values()
    layer = case.layer(moving_mean=mean, moving_variance=variance)
    x, dy, (y, _), (dx, _) = (
        case.input(),
        case.output_gradient(),
        case.empty_output(),
        case.empty_input(),
    )
    with pytest.raises(openbnns.BNNSError):
        layer.apply(x[:, :-1], training=True, out=y)
    with pytest.raises(openbnns.BNNSError):
        layer.apply(x, training=True, out=y[:-1])
    with pytest.raises(openbnns.BNNSError):  # neither in place nor apart
        layer.apply(x[:-1], training=True, out=x[1:])
    with pytest.raises(openbnns.BNNSError):
        layer.apply_backward(None, None, dy, input_gradient=dx)
    layer.close()
    with pytest.raises(openbnns.LayerApplyError):
        layer.apply(x, training=True, out=y)
    assert is_sentinel(y)
    assert is_sentinel(dx)
    for array, before in zip((mean, variance), case.moving_values(), strict=True):
        assert_same_bits(array, before)


def test_failing_arithmetic_leaves_everything_alone():
    case = next(p for p in arithmetic_cases.CASES if p.function == "multiply_add")
    layer, inputs, dy = case.layer(), case.inputs(), case.output_gradient()
    (y, _), (da, _) = case.empty_output(), case.empty_input(0)
    with pytest.raises(openbnns.BNNSError):
        layer.apply(*inputs[:-1], inputs[-1].astype(np.float64), out=y)
    with pytest.raises(openbnns.BNNSError):
        layer.apply_backward(None, None, None, None, dy, a_gradient=da)
    layer.close()
    with pytest.raises(openbnns.LayerApplyError):
        layer.apply(*inputs, out=y)
    assert is_sentinel(y)
    assert is_sentinel(da)


@pytest.mark.parametrize("case", [matmul_cases.PRODUCTS[2], matmul_cases.WEIGHTS[0]], ids=str)
def test_failing_products_leave_everything_alone(case):
    layer, inputs, dy = case.layer(), case.inputs(), case.output_gradient()
    (y, _), (da, _), (db, _) = (
        case.output_before(),
        case.empty_gradient(0),
        case.empty_gradient(1),
    )
    targets = {"a_gradient": da, "b_gradient": db}
    with pytest.raises(openbnns.BNNSError):
        layer.apply(inputs[0].astype(np.float64), inputs[1], out=y)
    with pytest.raises(openbnns.BNNSError):
        layer.apply(*inputs, out=y[:1])
    with pytest.raises(openbnns.LayerApplyError):  # the gradient of b needs a
        layer.apply_backward(None, inputs[1], None, dy, **targets)
    with pytest.raises(openbnns.LayerApplyError, match="overlap"):
        layer.apply_backward(*inputs, None, dy, a_gradient=inputs[0], b_gradient=db)
    layer.close()
    with pytest.raises(openbnns.LayerApplyError):
        layer.apply(*inputs, out=y)
    with pytest.raises(openbnns.LayerApplyError):
        layer.apply_backward(*inputs, None, dy, **targets)
    assert is_sentinel(y)
    assert is_sentinel(da)
    assert is_sentinel(db)


@pytest.mark.parametrize("case", [fused_cases.PAIRS[0], fused_cases.OPTIONS[8]], ids=str)
def test_failing_fused_layers_leave_everything_alone(case):
    """Results, gradients and running statistics."""
    mean, variance = case.norm.moving_values()
    layer = case.layer(moving_mean=mean, moving_variance=variance)
    (x,), dy, (y, _), (dx, _) = (
        case.inputs(),
        case.output_gradient(),
        case.empty_output(),
        case.empty_input(),
    )
    dw, _ = case.first.empty_weights()
    targets = {"input_gradient": dx, "weights_gradient": dw, "bias_gradient": None}
    with pytest.raises(openbnns.BNNSError):
        layer.apply(x[:, :-1], training=True, out=y)
    with pytest.raises(openbnns.BNNSError):
        layer.apply(x, training=True, out=y[:-1])
    with pytest.raises(openbnns.LayerApplyError):  # nothing was trained
        layer.apply_backward(x, y=y, grad_output=dy, **targets)
    assert is_sentinel(y)
    layer.apply(x, training=False)
    for array, before in zip((mean, variance), case.norm.moving_values(), strict=True):
        assert_same_bits(array, before)
    result = layer.apply(x, training=True)
    with pytest.raises(openbnns.LayerApplyError):  # the weights gradient needs x
        layer.apply_backward(None, y=result, grad_output=dy, **targets)
    with pytest.raises(openbnns.LayerApplyError):  # another batch
        layer.apply_backward(x[:1], y=result[:1], grad_output=dy[:1], input_gradient=None)
    layer.close()
    with pytest.raises(openbnns.LayerApplyError):
        layer.apply_backward(x, y=result, grad_output=dy, **targets)
    assert is_sentinel(dx)
    assert is_sentinel(dw)


@pytest.mark.parametrize("case", [convolution_cases.ODD, fully_connected_cases.ODD], ids=str)
def test_layers_say_what_their_calls_hold(case):
    halves = replace(case, dtype="float16").layer()  # float32 copies of images are needed
    assert 0 < halves.work_bytes(1) <= halves.work_bytes(64) < 1 << 24
    halves.close()
    with pytest.raises(openbnns.LayerApplyError, match="got a closed one"):
        halves.work_bytes(1)


@pytest.mark.parametrize("case", [convolution_cases.ODD, fully_connected_cases.ODD], ids=str)
def test_parameters_live_as_long_as_their_layer(case):
    """The layer keeps the memory of arrays that nobody else holds any more."""
    x, layer = case.input(), case.layer(weights=case.weights().copy())
    expected = case.layer()(x)
    noise = [np.full(case.weights_shape, 9, np.float32) for _ in range(50)]
    assert_same_bits(layer(x), expected)
    assert len(noise) == 50


def test_normalization_parameters_live_as_long_as_their_layer():
    case = normalization_cases.BATCH
    x, layer = case.input(), case.layer()  # nobody else holds what the layer was made with
    noise = [np.full(case.channels, 9, np.float32) for _ in range(50)]
    for training in (False, True):
        assert_same_bits(layer(x, training=training), case.layer()(x, training=training))
    assert len(noise) == 50


def test_fused_parameters_live_as_long_as_their_layer():
    case = fused_cases.PAIRS[0]
    inputs, layer = case.inputs(), case.layer()  # nobody else holds what the layer was made with
    noise = [np.full(case.first.weights_shape, 9, np.float32) for _ in range(50)]
    for training in (False, True):
        expected = case.layer().apply(*inputs, training=training)
        assert_same_bits(layer.apply(*inputs, training=training), expected)
    assert len(noise) == 50


def test_import_invites_no_guests():
    code = """
import sys
import numpy
before = set(sys.modules)
import openbnns
guests = {"torch", "jax", "ml_dtypes", "sklearn", "scipy", "pandas", "matplotlib"}
print(sorted(guests & set(sys.modules)))
"""
    assert run_python(code).strip() == "[]"


def test_only_numpy_is_needed():
    code = """
import sys
for guest in ("torch", "jax", "ml_dtypes", "sklearn", "scipy"):
    sys.modules[guest] = None
import numpy as np, openbnns
x = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
print(openbnns.PoolingLayer("max", input=(1, 4, 4), kernel_size=2).apply(x).tolist())
print(openbnns.ActivationLayer("relu", input=(2,)).apply(np.float32([[-1, 1]])).tolist())
ones = np.ones((1, 1, 4, 4), np.float32)
print(openbnns.ConvolutionLayer(ones, input=(1, 4, 4)).apply(x).tolist())
print(openbnns.FullyConnectedLayer(ones[0, 0]).apply(x[0, 0]).tolist()[0])
print(openbnns.LossLayer("mse", input=(4,), reduction="sum").apply(x[0, 0], ones[0, 0]).tolist())
layer = openbnns.NormalizationLayer("layer", input=(2,), epsilon=0)
print(layer.apply(np.float32([[1, 3]]), training=True).tolist())
print(openbnns.UnaryArithmeticLayer("square", input=(2,)).apply(np.float32([[2, 3]])).tolist())
print(openbnns.quantize(np.float32([1.5, 2.5])).tolist())
print(openbnns.matmul(np.float32([[1, 2]]), np.float32([[3], [4]])).tolist())
"""
    expected = ["[[[[5.0, 7.0], [13.0, 15.0]]]]", "[[0.0, 1.0]]"]
    expected += ["[[[[120.0]]]]", "[6.0, 6.0, 6.0, 6.0]", "1016.0"]
    expected += ["[[-1.0, 1.0]]", "[[4.0, 9.0]]", "[2, 2]", "[[11.0]]"]
    assert run_python(code).splitlines() == expected


def test_dtype_of_results_is_that_of_the_layer():
    for name in ("float32", "float16"):
        case = replace(pooling_cases.CASES[0], dtype=name)
        assert case.layer().apply(case.input()).dtype == dtype_of(name)


def test_large_results_agree_with_small_ones():
    """Streaming stores and other paths for large arrays change no value."""
    sample = replace(pooling_cases.TYPICAL, image=(1, 64, 112, 112), function="average")
    large = replace(sample, image=(12, 64, 112, 112))
    x, dy = large.input(), large.output_gradient()
    whole, part = large.layer(), sample.layer()
    y, dx = whole.apply(x), whole.apply_backward(x, None, dy).input
    for n in (0, 11):
        assert_same_bits(y[n : n + 1], part.apply(x[n : n + 1]))
        assert_close(
            dx[n : n + 1], part.apply_backward(None, None, dy[n : n + 1]).input.astype(np.float64)
        )


# ---- places ----


def shifted(values, floats):
    """A copy that begins so many floats past a line of 64 bytes."""
    room = np.zeros(values.size + 32, np.float32)
    first = -(room.ctypes.data // 4) % 16 + floats
    array = room[first : first + values.size].reshape(values.shape)
    array[...] = values
    return array


def results_at(floats):
    """What layers of every kind give when all their arrays begin there."""
    rng = np.random.default_rng(0)

    def random(*shape):
        return shifted(rng.standard_normal(shape, dtype=np.float32), floats)

    def room(*shape):
        return shifted(np.zeros(shape, np.float32), floats)

    image, results = (4, 6, 9, 11), []
    for layer in (
        openbnns.ActivationLayer("gelu", input=image[1:]),
        openbnns.ActivationLayer("softmax", input=image[1:], axes=-1),
        openbnns.UnaryArithmeticLayer("tanh", input=image[1:]),
        openbnns.PoolingLayer("max", input=image[1:], kernel_size=3, stride=2, padding=1),
        openbnns.ConvolutionLayer(random(8, 6, 3, 3), input=image[1:], padding=1),
        openbnns.ConvolutionLayer(random(6, 1, 3, 3), input=image[1:], padding=1, groups=6),
        openbnns.ConvolutionLayer(random(7, 6, 3, 3), input=image[1:], stride=2),
        openbnns.FullyConnectedLayer(random(10, 333)),
    ):
        x, dx = random(4, *layer.input_spec.shape), room(4, *layer.input_spec.shape)
        y = layer.apply(x, out=room(4, *layer.output_spec.shape))
        gradients = layer.apply_backward(x, y, random(*y.shape), input_gradient=dx)
        results += [y, *gradients]
    for kind in ("batch", "instance", openbnns.Normalization.group(3)):
        layer = openbnns.NormalizationLayer(
            kind, input=image[1:], beta=random(6), gamma=random(6), activation="relu"
        )
        y = layer.apply(random(*image), training=True, out=room(*image))
        gradients = layer.apply_backward(None, y, random(*image), input_gradient=room(*image))
        results += [y, *gradients]
    results.append(openbnns.matmul(random(3, 45, 61), random(61, 37), out=room(3, 45, 37)))
    layer = openbnns.TensorContractionLayer("a_ij, b_ij -> c_ij", input_a=(5, 77), input_b=(5, 77))
    results.append(layer.apply(random(3, 5, 77), random(3, 5, 77), out=room(3, 5, 77)))
    loss = openbnns.LossLayer("softmax_cross_entropy", input=(37,))
    results += loss.apply(random(13, 37), random(13, 37), input_gradient=room(13, 37))
    for optimizer in (openbnns.AdamOptimizer(0.1, l2=0.1), openbnns.RMSPropOptimizer(0.1)):
        parameters = [random(5, 101), random(33)]
        bound = optimizer.bind(parameters)
        for _ in range(4):
            bound.step([random(5, 101), random(33)])
        results += parameters
    return [None if array is None else np.array(array) for array in results]


def test_bits_do_not_depend_on_where_arrays_lie():
    expected = results_at(0)
    for floats in (1, 4, 7, 8, 15):
        for ours, theirs in zip(results_at(floats), expected, strict=True):
            if theirs is not None:
                assert_same_bits(ours, theirs)
