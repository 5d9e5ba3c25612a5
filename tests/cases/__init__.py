"""The one list of cases per family. Correctness, gradients, threads, determinism and benchmarks
iterate over the same lists; a bug report becomes a new line in one of them.

Tags: "tiny" (a handful of values), "odd" (awkward on purpose), "typical" (what networks use),
"split" (big enough for several threads), "large" (for benchmarks and `--long` runs).
"""

import importlib.util
import threading
import zlib

import numpy as np

SENTINEL = 0xA5  # every byte of memory that nobody may touch


def has_bfloat16():
    return importlib.util.find_spec("ml_dtypes") is not None


def dtype_of(name):
    """NumPy type of "float32", "bfloat16", ...; bfloat16 needs ml_dtypes."""
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def generator(case, salt=0):
    """Random numbers that depend on the name of the case alone, the same in every process."""
    return np.random.default_rng([zlib.crc32(str(case).encode()), salt])


def sentinel_array(shape, dtype, gaps=None, step=1):
    """An array of `shape` inside a larger one, all bytes SENTINEL: (view, owner).

    gaps: values skipped after each axis (same length as shape); step: distance of neighbours
    along the last axis.
    """
    gaps = gaps or (0,) * len(shape)
    whole = [extent + gap for extent, gap in zip(shape, gaps, strict=True)]
    whole[-1] *= step
    owner = (
        np.full(int(np.prod(whole)) * dtype_of(dtype).itemsize, SENTINEL, dtype=np.uint8)
        .view(dtype_of(dtype))
        .reshape(whole)
    )
    inner = tuple(slice(0, extent) for extent in shape[:-1])
    return owner[(*inner, slice(0, shape[-1] * step, step))], owner


def gaps_untouched(view, owner):
    """True when every byte of owner outside the view still is SENTINEL."""
    covered = owner.copy()
    start = view.__array_interface__["data"][0] - owner.__array_interface__["data"][0]
    flat = covered.reshape(-1).view(np.uint8)
    inside = np.ndarray((*view.shape, view.itemsize), np.uint8, flat, start, (*view.strides, 1))
    inside[...] = SENTINEL
    return bool((flat == SENTINEL).all())


def is_sentinel(array):
    """True when nobody wrote to the array."""
    return bool((np.ascontiguousarray(array).view(np.uint8) == SENTINEL).all())


def assert_refused(status, *untouched):
    """A C call failed, said why, and wrote nothing."""
    from openbnns import c

    assert status == -1
    assert c.last_error()
    assert all(is_sentinel(array) for array in untouched)
    c.obn_clear_error()


def in_threads(count, work):
    """Call work(0) … work(count - 1), each in a thread of its own, at the same time."""
    workers = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def unforeseen_refusals(sentences):
    """Those that a layer shared by threads that train has no reason to say."""
    foreseen = (
        "expected one training or backward call at a time",
        "expected the gradients of the last training call; got those of an earlier one",
    )
    return [text for text in sentences if not any(known in text for known in foreseen)]


def spec_of(array, dtype):
    """The specification of one sample of a batch, strides included."""
    import openbnns

    return openbnns.ArraySpec(array.shape[1:], dtype, strides=array.strides[1:])
