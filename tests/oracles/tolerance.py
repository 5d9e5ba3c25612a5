"""How close is close: the one place where tolerances are stated."""

import numpy as np

# Relative error of one stored value. The half types compute in float32 and round once, so half a
# unit in the last place is all they may lose; float32 functions may be a few units off.
RELATIVE = {"float32": 2e-6, "float16": 0.51 * 2.0**-10, "bfloat16": 0.51 * 2.0**-7}

# Absolute error for results near zero of inputs near one: cancellation for float32 (computed
# there for all types), and half the spacing of the smallest float16.
ABSOLUTE = {"float32": 1e-6, "float16": 1e-6, "bfloat16": 1e-6}

# Relative error of a float32 sum against the sum of the sizes of its terms.
SUM = 1e-6

# The same where Winograd's algorithm may have done the sum: its errors come from all values of a
# tile, also those that a result at the border hardly uses.
WINOGRAD = 8e-6


def assert_close(actual, expected, dtype="float32", terms=None, unit=SUM):
    """Compares an array of ours with float64 values.

    actual, expected (same shape); dtype: the type `actual` was stored in; terms: for sums, the
    sum of the absolute values of the terms, broadcast to the shape, of which `unit` may be wrong.
    """
    actual = np.asarray(actual).astype(np.float64)
    expected = np.asarray(expected, dtype=np.float64)
    assert actual.shape == expected.shape
    if dtype == "float16":  # values beyond the largest half are infinite in both
        expected = np.where(np.abs(expected) >= 65520.0, np.copysign(np.inf, expected), expected)
    absolute = ABSOLUTE[dtype] if terms is None else ABSOLUTE[dtype] + unit * np.asarray(terms)
    with np.errstate(invalid="ignore"):
        allowed = absolute + RELATIVE[dtype] * np.abs(expected)
        wrong = ~(np.abs(actual - expected) <= allowed)
    wrong &= ~((actual == expected) | (np.isnan(actual) & np.isnan(expected)))
    if wrong.any():
        first = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise AssertionError(
            f"{int(wrong.sum())} of {wrong.size} values differ; at {first}: "
            f"got {actual[first]!r}, expected {expected[first]!r}"
        )


def assert_same_bits(actual, expected):
    """Compares two arrays bit by bit, NaN included."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    assert actual.tobytes() == expected.tobytes()
