"""The life of a layer: its parameters, its end, threads that share it, nothing left behind."""

import contextlib
import gc
import pickle
import sys
import threading
import time
import tracemalloc
import weakref

import numpy as np
import openbnns
import pytest
from cases import in_threads
from cases.samples import images, pool
from openbnns import (
    Activation,
    ActivationLayer,
    ArrayError,
    ArraySpec,
    BinaryArithmeticLayer,
    LayerApplyError,
    LayerCreationError,
    NormalizationLayer,
    PoolingLayer,
)

# ---- parameters ----


def test_alpha_is_live():
    layer = ActivationLayer("leaky_relu", input=(2,))
    x = np.float32([[-2, 2]])
    assert layer.alpha.dtype == np.float32
    assert layer.alpha.tolist() == [np.float32(0.01)]
    layer.alpha[:] = 0.5
    np.testing.assert_array_equal(layer(x), [[-1, 2]])
    grads = layer.apply_backward(x, None, np.ones_like(x))
    assert grads.alpha.tolist() == [-2]
    assert np.shares_memory(layer.alpha, layer.alpha)


def test_alpha_of_prelu_has_one_value_per_channel():
    layer = ActivationLayer("prelu", input=(3, 2, 2))
    assert layer.alpha.tolist() == [0.25] * 3
    layer.alpha[1] = 2
    y = layer(np.full((1, 3, 2, 2), -1, np.float32))
    np.testing.assert_array_equal(y[0, :, 0, 0], [-0.25, -2, -0.25])
    grads = layer.apply_backward(-np.ones_like(y), None, np.ones_like(y))
    assert grads.alpha.tolist() == [-4, -4, -4]


def test_beta_is_live():
    layer = ActivationLayer(Activation.clamp(-1, 1), input=(2,))
    layer.beta[:] = 3
    np.testing.assert_array_equal(layer(np.float32([[-5, 5]])), [[-1, 3]])


def test_alpha_outlives_its_layer():
    layer = ActivationLayer("leaky_relu", input=(2,))
    alpha = layer.alpha
    layer.close()
    del layer
    gc.collect()
    alpha[:] = 7
    assert alpha.tolist() == [7]


def test_bias_is_shared_unless_copied():
    bias = np.zeros(1, np.float32)
    shared, copied = pool(bias=bias), pool(bias=bias, copy_parameters=True)
    bias[0] = 100
    np.testing.assert_array_equal(shared(images()), pool()(images()) + 100)
    np.testing.assert_array_equal(copied(images()), pool()(images()))


def test_layers_keep_their_bias_alive_and_let_it_go():
    class Owned(np.ndarray):
        pass

    bias = np.full(1, 5, np.float32).view(Owned)
    watch = weakref.ref(bias)
    layer = pool(bias=bias)
    del bias
    gc.collect()
    assert watch() is not None
    np.testing.assert_array_equal(layer(images()), pool()(images()) + 5)
    layer.close()
    gc.collect()
    assert watch() is None


def test_layers_keep_their_statistics_alive_and_let_them_go():
    class Array(np.ndarray):
        pass

    arrays = [np.ones(2, "f4").view(Array) for _ in range(4)]
    watches = [weakref.ref(array) for array in arrays]
    names = ("beta", "gamma", "moving_mean", "moving_variance")
    layer = NormalizationLayer("batch", input=(2,), **dict(zip(names, arrays, strict=True)))
    del arrays
    gc.collect()
    assert all(watch() is not None for watch in watches)
    layer(np.zeros((3, 2), "f4"), training=True)
    assert watches[2]()[0] == 0
    layer.close()
    gc.collect()
    assert all(watch() is None for watch in watches)


def test_strided_bias_is_shared():
    bias = np.zeros(6, np.float32)
    layer = PoolingLayer("max", input=(3, 4, 4), kernel_size=2, bias=bias[::2])
    bias[2] = 9
    y = layer(np.zeros((1, 3, 4, 4), np.float32))
    np.testing.assert_array_equal(y[0, :, 0, 0], [0, 9, 0])


# ---- life of a layer ----


def test_close_twice_and_use_afterwards():
    layer = pool()
    assert layer.handle != 0
    assert not layer.closed
    layer.close()
    layer.close()
    assert layer.closed
    assert layer.handle == 0
    for call in (
        lambda: layer(images()),
        lambda: layer.apply_backward(images(), None, np.ones((2, 1, 2, 2), "f4")),
    ):
        with pytest.raises(
            LayerApplyError, match=r"\[PoolingLayer\] layer: expected an open layer"
        ):
            call()
    activation = ActivationLayer("relu", input=(2,))
    with activation as entered:
        assert entered is activation
    with pytest.raises(LayerApplyError, match=r"\[ActivationLayer\] layer: expected an open layer"):
        activation.alpha  # noqa: B018


def test_handle_belongs_to_the_c_interface():
    from openbnns import c

    layer, x, y = pool(), images(1), np.zeros((1, 1, 2, 2), np.float32)
    assert c.BNNSFilterApply(layer.handle, x, y) == 0
    np.testing.assert_array_equal(y, layer(x))


def test_filter_destroyed_behind_the_layers_back_is_noticed():
    from openbnns import c

    layer = pool()
    c.BNNSFilterDestroy(layer.handle)
    with pytest.raises(LayerApplyError, match=r"\[PoolingLayer\] filter: expected a live handle"):
        layer(images())


def test_native_side_refuses_strangers():
    from openbnns import _core

    with pytest.raises(TypeError, match="expected a filter of this family"):
        _core.pooling_apply(ActivationLayer("relu", input=(2,))._filter, None, None, None, False)
    with pytest.raises(TypeError, match="expected a filter of this family"):
        _core.pooling_apply(object(), None, None, None, False)
    with pytest.raises(TypeError, match="pooling_apply takes 5 arguments; got 1"):
        _core.pooling_apply(None)
    for function in (_core.arithmetic_apply, _core.arithmetic_backward):
        with pytest.raises(TypeError, match="takes a filter; got nothing"):
            function()
    binary = BinaryArithmeticLayer("add", input_a=(2,), input_b=(2,))._filter
    with pytest.raises(TypeError, match="arithmetic_apply takes 4 arguments; got 3"):
        _core.arithmetic_apply(binary, None, None)
    with pytest.raises(TypeError, match="expected a filter of this family"):
        _core.normalization_apply(binary, None, None, False)
    with pytest.raises(TypeError, match="fused_apply takes at least 3 arguments; got 0"):
        _core.fused_apply()
    with pytest.raises(TypeError, match="fused_backward takes at least 4 arguments; got 1"):
        _core.fused_backward(binary)
    with pytest.raises(TypeError, match="expected a filter of this family"):
        _core.fused_apply(binary, None, False)
    with pytest.raises(TypeError):
        _core.Filter()


def test_layers_close_while_other_threads_use_them():
    x = np.random.default_rng(0).standard_normal((8, 4, 64, 64), dtype=np.float32)
    expected = PoolingLayer("max", input=x, kernel_size=3)(x)
    failures = []

    def work(layer):
        try:
            while True:
                np.testing.assert_array_equal(layer(x), expected)
        except LayerApplyError:
            pass
        except BaseException as error:
            failures.append(error)

    for _ in range(10):
        layer = PoolingLayer("max", input=x, kernel_size=3)
        workers = [threading.Thread(target=work, args=(layer,)) for _ in range(4)]
        for worker in workers:
            worker.start()
        layer(x)
        layer.close()
        for worker in workers:
            worker.join()
    assert failures == []


def test_many_python_threads_share_a_layer():
    x = np.random.default_rng(0).standard_normal((4, 2, 32, 32), dtype=np.float32)
    layer = PoolingLayer("average", input=x, kernel_size=2)
    expected, failures = layer(x), []

    def work(_):
        out = np.empty_like(expected)
        for _ in range(100):
            if not np.array_equal(layer.apply(x, out=out), expected):
                failures.append("another result")
            try:
                layer(x[:, :1])
            except ArrayError as error:
                if "x: expected (N, 2, 32, 32)" not in str(error):
                    failures.append(str(error))

    in_threads(6, work)
    assert failures == []


@pytest.mark.skipif(
    not getattr(sys, "_is_gil_enabled", lambda: True)(), reason="there is no lock to hold"
)
def test_other_threads_run_during_a_call():
    x = np.zeros((1, 1 << 23), np.float32)
    out = np.zeros_like(x)
    layer = ActivationLayer("gelu", input=x, num_threads=1)

    def ran_meanwhile():
        span, ticks = [], []

        def work():
            span.append(time.perf_counter())
            layer.apply(x, out=out)
            span.append(time.perf_counter())

        worker = threading.Thread(target=work)
        worker.start()
        while worker.is_alive():
            ticks.append(time.perf_counter())
            time.sleep(0)
        start, end = span
        quarter = (end - start) / 4
        return any(start + quarter < tick < end - quarter for tick in ticks)

    # Holding the GIL would keep this thread out every time; a busy machine only now and then.
    assert any(ran_meanwhile() for _ in range(100))


def test_layers_cannot_be_pickled():
    with pytest.raises(TypeError, match="Filter"):
        pickle.dumps(pool())


def test_nothing_grows_over_many_calls():
    layer, x = pool(bias=np.zeros(1, "f4")), images()
    y, indices = layer.apply(x, return_indices=True)
    dx, db = np.zeros_like(x), np.zeros(1, np.float32)
    watched = (x, y, indices, dx, db, layer)

    def step():
        layer.apply(x, out=y, indices=indices)
        layer.apply(x)
        layer.apply_backward(
            x, y, y, indices=indices, input_gradient=dx, bias_gradient=db, accumulate=True
        )
        with contextlib.suppress(ArrayError):
            layer.apply(x[0])
        with contextlib.suppress(LayerCreationError):
            pool(output=(1, 9, 9))
        ActivationLayer("leaky_relu", input=x).alpha[:] = 1

    assert_nothing_grows(step, watched)


def assert_nothing_grows(step, watched):
    """Neither memory nor the references to what is watched, over many steps."""
    counts = [sys.getrefcount(value) for value in watched]
    tracemalloc.start()
    try:
        for _ in range(1200):  # the interpreter itself has caches to fill
            step()
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(1000):
            step()
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 1000 * 8  # less than one pointer per step: nothing is left behind
    assert [sys.getrefcount(value) for value in watched] == counts


def test_nothing_grows_over_many_normalizations():
    x, gamma, beta, mean, variance = np.ones((2, 4), "f4"), *np.ones((4, 4), "f4")
    options = {"gamma": gamma, "beta": beta, "moving_mean": mean, "moving_variance": variance}
    layer, dx, dgamma = NormalizationLayer("batch", input=(4,), **options), x.copy(), gamma.copy()

    def step():
        y = layer(x, training=True)
        layer.apply_backward(x, y, y, input_gradient=dx, gamma_gradient=dgamma, accumulate=True)
        with contextlib.suppress(ArrayError):
            layer(x[0], training=True)
        with contextlib.suppress(LayerCreationError):
            NormalizationLayer("batch", input=(4,), momentum=2.0, **options)
        with contextlib.suppress(ArrayError):
            NormalizationLayer("batch", input=(3,), **options)
        NormalizationLayer("layer", input=(4,), gamma=gamma)(x, training=False)

    assert_nothing_grows(step, (x, gamma, beta, mean, variance, dx, dgamma, layer))


def test_nothing_grows_over_many_calculations():
    a, b = np.ones((2, 4), "f4"), np.ones(4, "f4")
    da, db, q, scale = a.copy(), b.copy(), np.ones((2, 4), "i1"), np.ones(4, "f4")
    layer = BinaryArithmeticLayer("multiply", input_a=a, input_b=b, b_kind="parameter")

    def step():
        y = layer(a, b)
        layer.apply_backward(a, b, None, y, a_gradient=da, b_gradient=db)
        layer.apply_backward(a, b, y, y, a_gradient=None)
        with contextlib.suppress(LayerApplyError):
            layer.apply_backward(None, None, None, y)
        with contextlib.suppress(LayerCreationError):
            BinaryArithmeticLayer("multiply", input_a=a, input_b=b)
        openbnns.quantize(a, scale=scale, axis=1, out=q)
        openbnns.dequantize(q, scale=2.0)
        with contextlib.suppress(ArrayError):
            openbnns.quantize(a, scale=scale, out=q)

    assert_nothing_grows(step, (a, b, da, db, q, scale, layer))


def test_nothing_grows_over_many_fused_calls():
    x, w = np.ones((2, 3), "f4"), np.ones((4, 3), "f4")
    b, gamma, beta, mean, variance = np.ones((5, 4), "f4")
    options = {"gamma": gamma, "beta": beta, "moving_mean": mean, "moving_variance": variance}
    options |= {"bias": b, "normalization": "batch", "activation": "relu"}
    make = openbnns.FusedFullyConnectedNormalizationLayer
    layer, dx, dw = make(w, **options), x.copy(), w.copy()
    add = openbnns.FusedBinaryArithmeticParameters("add")
    norm = openbnns.FusedNormalizationParameters("batch", beta)
    two = openbnns.FusedParametersLayer(add, norm, inputs=[(4,), (4,)])
    eight = openbnns.FusedQuantizationParameters(scale=gamma, axis=0)
    dense = openbnns.FusedFullyConnectedParameters(w, b)

    def step():
        y = layer(x, training=True)
        layer.apply_backward(
            x,
            y,
            y,
            input_gradient=dx,
            weights_gradient=dw,
            bias_gradient=None,
            gamma_gradient=False,
            accumulate={"weights"},
        )
        with contextlib.suppress(LayerApplyError):
            layer.apply_backward(None, y, y)
        with contextlib.suppress(LayerApplyError):
            layer.apply_backward(x[:1], y[:1], y[:1])
        with contextlib.suppress(LayerCreationError):
            make(w, **options, momentum=2.0)
        with contextlib.suppress(ArrayError):
            make(w[:3], **options)
        z = two(y, y, training=True)
        two.apply_backward(y, y, None, z, b_gradient=None)
        output = ArraySpec((4,), "int8")
        openbnns.FusedParametersLayer(dense, eight, output=output)(x, training=False)

    watched = (x, w, b, gamma, beta, mean, variance, dx, dw, layer, two, add, norm, eight, dense)
    assert_nothing_grows(step, watched)
