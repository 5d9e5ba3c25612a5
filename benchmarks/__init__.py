"""Benchmarks: ours beside the installed peers and beside what the machine can do at best.

`python -m benchmarks --help`; README.md says how the numbers come about.
"""

import sys
from pathlib import Path

# The cases to race are those of the tests: tests/cases, found as `cases` there and here.
sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))
