"""Cases as pytest parameters."""

import pytest

from cases import has_bfloat16


def marked(case):
    """The case under its own name; large ones need --long, bfloat16 needs ml_dtypes."""
    marks = []
    if "large" in case.tags:
        marks.append(pytest.mark.long)
    if "bfloat16" in (case.dtype, case.stored) and not has_bfloat16():
        marks.append(pytest.mark.skip(reason="needs ml_dtypes"))
    return pytest.param(case, id=str(case), marks=marks)


def small(cases, wanted=lambda case: True):
    """The wanted cases that fit into a blink, as parameters."""
    return [marked(case) for case in cases if not case.tags & {"large", "split"} and wanted(case)]
