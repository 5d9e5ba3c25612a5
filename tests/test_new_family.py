"""`make new-family`: what it lays out is whole and fails its tests; nothing else is touched."""

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "tools" / "new_family.py"

pytestmark = pytest.mark.skipif(not SCRIPT.is_file(), reason="not in the source tree")

LISTS = (
    "CMakeLists.txt",
    "bindings/CMakeLists.txt",
    "bindings/array.h",
    "bindings/module.cpp",
    "benchmarks/__main__.py",
    "tests/test_module.py",
)


@pytest.fixture
def copy(tmp_path):
    """The few files that name families, and the folder of one."""
    for path in LISTS:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    (tmp_path / "src" / "pooling").mkdir(parents=True)
    return tmp_path


def files(folder):
    return {p.relative_to(folder).as_posix(): p.read_text() for p in folder.rglob("*.*")}


def run(name, folder):
    return subprocess.run(
        [sys.executable, SCRIPT, name, "--root", folder], capture_output=True, text=True
    )


def added(before, after):
    """The lines that are in one text and not in the other, which has all of its own in order."""
    rest = iter(after.splitlines())
    new = []
    for line in before.splitlines():
        for other in rest:
            if other == line:
                break
            new.append(other)
        else:
            pytest.fail(f"lost: {line}")
    return new + list(rest)


def test_every_file_is_there(copy):
    before = files(copy)
    done = run("two_words", copy)
    assert done.returncode == 0, done.stderr
    after = files(copy)
    assert set(after) - set(before) == {
        "src/two_words/two_words.h",
        "src/two_words/two_words.cpp",
        "src/two_words/two_words_ref.cpp",
        "src/two_words/two_words_kernels.cpp",
        "src/two_words/two_words_test.cpp",
        "bindings/two_words.cpp",
        "python/openbnns/two_words.py",
        "tests/cases/two_words.py",
        "tests/oracles/two_words.py",
        "tests/test_two_words.py",
        "benchmarks/bench_two_words.py",
    }
    for path in set(after) - set(before):
        text = after[path]
        assert text.startswith(("// ", '"""')), path
        assert "NAME" not in text, path
        assert "CLASS" not in text, path
        assert text.endswith("\n"), path
        assert max(map(len, text.splitlines())) <= (100 if path.endswith(".py") else 120), path
        if path.endswith(".py"):
            ast.parse(text)


def test_lists_name_it(copy):
    before = files(copy)
    assert run("resizing", copy).returncode == 0
    after = files(copy)
    assert added(before["CMakeLists.txt"], after["CMakeLists.txt"]) == [
        "add_family(resizing)",
        "    src/resizing/resizing_test.cpp",
    ]
    assert "            resizing.cpp)" in after["bindings/CMakeLists.txt"]
    assert added(before["bindings/array.h"], after["bindings/array.h"]) == [
        "extern PyMethodDef resizing_methods[];"
    ]
    assert "        resizing_methods})" in after["bindings/module.cpp"]
    for path, line in (
        ("benchmarks/__main__.py", '    "resizing",'),
        ("tests/test_module.py", '    ".resizing",'),
    ):
        assert added(before[path], after[path]) == [line]


def test_a_second_family_stands_beside_the_first(copy):
    assert run("resizing", copy).returncode == 0
    assert run("padding", copy).returncode == 0
    text = (copy / "CMakeLists.txt").read_text()
    assert "add_family(resizing)\nadd_family(padding)\n" in text
    text = (copy / "bindings/module.cpp").read_text()
    assert "resizing_methods,\n        padding_methods})" in text


def test_its_tests_fail_until_it_is_filled_in(copy):
    assert run("resizing", copy).returncode == 0
    assert "CHECK(false" in (copy / "src/resizing/resizing_test.cpp").read_text()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/test_resizing.py"],
        cwd=copy,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "4 failed" in done.stdout
    assert "has an oracle and no layer" in done.stdout


BAD = ("", "a b", "a-b", "_a", "a_", "a__b", "../a", "2d", "Pool", "class", "int", "ref", "a_test")


@pytest.mark.parametrize("name", [*BAD, "pooling"])
def test_bad_names_are_refused(copy, name):
    before = files(copy)
    done = run(name, copy)
    assert done.returncode == 1
    assert done.stderr.startswith("NAME: expected ")
    assert files(copy) == before


def test_nothing_is_written_where_a_list_is_not_found(copy):
    (copy / "tests" / "test_module.py").write_text("")
    before = files(copy)
    done = run("resizing", copy)
    assert done.returncode == 1
    assert done.stderr.startswith("tests/test_module.py: expected ")
    assert files(copy) == before
