"""Lays out the files of a new family, and names it where lists name families.

    make new-family NAME=resize

What comes out builds, and its kernels copy, y = x; its tests fail until it is filled in. What is
left to do by hand is what CONTRIBUTING.md says.
"""

from __future__ import annotations

import argparse
import keyword
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# ---- the files: NAME is the family's word, CLASS its Python class ----

FILES = {
    "src/NAME/NAME.h": """\
// NAME: what desk, kernels and reference loops share. Say here what is computed, as formulas, and
// what every letter stands for.
//
//   x, y    input and output, n values       dx, dy    their gradients
#pragma once

#include <cstddef>

#include "base/targets.h"

namespace obn::NAME {

// One target's loops, on packed rows of float32. A bench neither checks nor chooses.
struct Kernels {
  void (*forward)(const float* x, float* y, size_t n);
  void (*backward)(const float* dy, float* dx, size_t n);
};

struct Compiled {
  static const Kernels portable, avx2, avx512;
};
inline constexpr Targets<Kernels> targets = targets_of<Compiled>();

// ---- the obvious loops (NAME_ref.cpp), sums in double ----

namespace ref {

void forward(const float* x, double* y, size_t n);
void backward(const float* dy, double* dx, size_t n);

}  // namespace ref

}  // namespace obn::NAME
""",
    "src/NAME/NAME.cpp": """\
// The desk: a class derived from Filter (base/filter.h), and the functions of the C interface. All
// that can fail fails here, before the first write; what shapes decide is decided at creation.
//
//   prepare      descriptors to views (base/view.h), or fail("argument: expected …; got …")
//   apply        checks the arrays, then cuts them into pieces (base/pool.h) for targets.best()
//   describe     the algorithm that was chosen, for obn_filter_describe
//   extern "C"   find_filter, then call_filter (base/describe.h)
#include "NAME/NAME.h"

namespace obn::NAME {}
""",
    "src/NAME/NAME_ref.cpp": """\
// The obvious loops, each backward directly below its forward: what kernels are compared with.
#include <cstddef>

#include "NAME/NAME.h"

namespace obn::NAME::ref {

void forward(const float* x, double* y, size_t n) {
  for (size_t i = 0; i < n; ++i) y[i] = static_cast<double>(x[i]);
}

void backward(const float* dy, double* dx, size_t n) {
  for (size_t i = 0; i < n; ++i) dx[i] = static_cast<double>(dy[i]);
}

}  // namespace obn::NAME::ref
""",
    "src/NAME/NAME_kernels.cpp": """\
// The loops, once per target (OBN_TARGET); letters as in the header. Nothing here may become a
// function that targets share: helpers are OBN_INLINE or in the unnamed namespace.
#include <cstddef>

#include "NAME/NAME.h"

namespace obn::OBN_TARGET::NAME {
namespace {

void forward(const float* x, float* y, size_t n) {
  for (size_t i = 0; i < n; ++i) y[i] = x[i];
}

void backward(const float* dy, float* dx, size_t n) {
  for (size_t i = 0; i < n; ++i) dx[i] = dy[i];
}

constexpr obn::NAME::Kernels kernels = {forward, backward};

}  // namespace
}  // namespace obn::OBN_TARGET::NAME

constinit const obn::NAME::Kernels obn::NAME::Compiled::OBN_TARGET =
    obn::OBN_TARGET::NAME::kernels;
""",
    "src/NAME/NAME_test.cpp": """\
// Kernels of every target against the obvious loops; then the C interface: what it refuses, and
// what it leaves alone.
#include <cstddef>
#include <vector>

#include "NAME/NAME.h"
#include "base/test.h"

using namespace obn;
using namespace obn::NAME;

TEST(NAME_kernels_agree_with_the_reference) {
  for (const auto& target : test::all_targets(targets)) {
    for (size_t n : {0, 1, 7, 16, 100}) {
      test::Random random(n);
      std::vector<float> x(n), y(n), dx(n);
      std::vector<double> want(n);
      for (float& v : x) v = static_cast<float>(random.value());
      ref::forward(x.data(), want.data(), n);
      target.kernels->forward(x.data(), y.data(), n);
      for (size_t i = 0; i < n; ++i)
        CHECK(static_cast<double>(y[i]) == want[i], "%s: y[%zu] of %zu", target.name, i, n);
      ref::backward(x.data(), want.data(), n);
      target.kernels->backward(x.data(), dx.data(), n);
      for (size_t i = 0; i < n; ++i)
        CHECK(static_cast<double>(dx[i]) == want[i], "%s: dx[%zu] of %zu", target.name, i, n);
    }
  }
}

TEST(NAME_is_filled_in) {
  CHECK(false, "NAME computes a copy: write the family, then delete this test");
}
""",
    "bindings/NAME.cpp": """\
// The door: arrays of Python to descriptors, -1 to an exception with the library's sentence. It
// decides nothing. activation.cpp is a family with filters, which has a word in `Family` (array.h),
// clip.cpp one without.
#include "array.h"

namespace obn::door {

PyMethodDef NAME_methods[] = {
    {},
};

}  // namespace obn::door
""",
    "python/openbnns/NAME.py": '''\
"""NAME: classes, defaults, docstrings with an example. Nothing is computed here."""

from __future__ import annotations

__all__: list[str] = []
''',
    "tests/oracles/NAME.py": '''\
"""NAME in float64: each function directly above its gradient.

Say what the letters stand for, as src/NAME/NAME.h does.
"""

import numpy as np


def forward(x):
    return np.asarray(x, np.float64)


def backward(grad_output):
    return np.asarray(grad_output, np.float64)
''',
    "tests/cases/NAME.py": '''\
"""NAME cases: the one list for tests, promises and benchmarks.

Small and odd shapes of every kind; ``tags`` say "split" for one that several threads share and
"large" for one worth a benchmark.
"""

from dataclasses import dataclass

import numpy as np
from oracles import NAME as oracle


@dataclass(frozen=True)
class CLASSCase:
    """One layer with a batch."""

    shape: tuple[int, ...]  # of the batch
    tags: frozenset[str] = frozenset()
    dtype: str = "float32"  # of the layer; `stored`: of the arrays, as NumPy has it
    stored: str = "float32"

    def __str__(self):
        return "x".join(map(str, self.shape))

    # Lists of test_promises, test_specials and test_hostile call what is below: the names stay.

    def input(self):
        return np.random.default_rng(0).standard_normal(self.shape, dtype=np.float32)

    def layer(self, num_threads=None):
        raise NotImplementedError

    def results(self, num_threads=None):
        """Everything a layer of this case computes, by name."""
        raise NotImplementedError

    def expected(self, x):
        return oracle.forward(x)


CASES = [CLASSCase(shape) for shape in ((1, 1), (3, 7), (64, 33))]
CASES += [CLASSCase((64, 4096), frozenset({"split", "large"}))]
''',
    "tests/test_NAME.py": '''\
"""NAME against its oracle: forward, gradients against differences, and what is refused."""

import pytest
from cases import NAME as cases


@pytest.mark.parametrize("case", cases.CASES, ids=str)
def test_NAME_is_filled_in(case):
    x = case.input()
    assert case.expected(x).shape == x.shape
    pytest.fail("NAME has an oracle and no layer: compare the two here")
''',
    "benchmarks/bench_NAME.py": '''\
"""NAME: forward into `out=`, backward into a given gradient, beside the installed peers."""

from collections.abc import Iterator

from benchmarks.harness import Row, Run


def rows(run: Run) -> Iterator[Row]:
    """One row per phase of every case that matches; see bench_pooling.py."""
    return iter(())
''',
}

# ---- the lists: file, what is looked for, what it becomes ----

LISTS = [
    ("CMakeLists.txt", r"(?s)(.*\nadd_family\([^)]*\)\n)", r"\1add_family(NAME)\n"),
    (
        "CMakeLists.txt",
        r"(    src/base/test_main\.cpp\n    \$<TARGET)",
        r"    src/NAME/NAME_test.cpp\n\1",
    ),
    ("bindings/CMakeLists.txt", r"(set\(sources [^)]*)\)", r"\1\n            NAME.cpp)"),
    (
        "bindings/array.h",
        r"(?s)(.*\nextern PyMethodDef \w+_methods\[\];\n)",
        r"\1extern PyMethodDef NAME_methods[];\n",
    ),
    ("bindings/module.cpp", r"(_methods)\}\)\n", r"\1,\n        NAME_methods})\n"),
    ("benchmarks/__main__.py", r'(    "training",\n)', r'    "NAME",\n\1'),
    ("tests/test_module.py", r'(    "\._activations",\n)', r'    ".NAME",\n\1'),
]

LEFT = """\
NAME is laid out; its tests fail. What is left, in order: CONTRIBUTING.md, "Adding a family".
"""


# Words of C++ that are none of Python, and ours inside obn.
RESERVED = """
    auto bool case char const default delete do double enum explicit export extern float friend
    inline int long namespace new operator private public register short signed sizeof static
    struct switch template this throw typedef typename union unsigned using virtual void volatile
    door obn ref std test
"""


class Refused(Exception):
    """Why nothing was written."""


def check_name(name: str, root: Path) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name):
        raise Refused(f"NAME: expected a word like fully_connected; got {name!r}")
    if keyword.iskeyword(name) or name in RESERVED.split():
        raise Refused(f"NAME: expected a name of one's own; {name} has a meaning already")
    if re.search(r"_(kernels|ref|test)$", name):
        raise Refused(f"NAME: expected the word alone; {name} ends like one of its files")
    taken = [f"src/{name}", *(path.replace("NAME", name) for path in FILES)]
    taken = [path for path in taken if (root / path).exists()]
    if taken:
        raise Refused(f"NAME: expected a new family; {', '.join(taken)} exists")


def lay_out(name: str, root: Path = ROOT) -> None:
    """Writes all of it, or raises Refused and writes nothing."""
    check_name(name, root)
    title = "".join(word.capitalize() for word in name.split("_"))

    def filled(text: str) -> str:
        return text.replace("NAME", name).replace("CLASS", title)

    written: dict[str, str] = {filled(path): filled(text) for path, text in FILES.items()}
    for path, wanted, made in LISTS:
        text = written.get(path) or (root / path).read_text()
        written[path], count = re.subn(wanted, filled(made), text, count=1)
        if count != 1:
            raise Refused(f"{path}: expected a place for another family; {wanted} is not there")
    for path, text in written.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    print(filled(LEFT), end="")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("name", help="the family's word, as it names folders and files")
    parser.add_argument("--root", type=Path, default=ROOT, help="the source; default: this one")
    arguments = parser.parse_args()
    try:
        lay_out(arguments.name, arguments.root)
    except Refused as sentence:
        print(sentence, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
