"""The README tells the truth: its table is right, the examples run. Its Python: test_docs.py."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import openbnns
import pytest
from openbnns import c

README = Path(__file__).parent.parent / "README.md"
HEADERS = openbnns.include_dir() / "openbnns" / "bnns"
BEGIN, END = "<!-- support:begin -->", "<!-- support:end -->"


def text():
    assert README.is_file(), f"{README.name} is missing"
    return README.read_text(encoding="utf-8")


def built_by_family():
    """{family: (functions built, functions declared)}, one family per header."""
    counts = {}
    for header in sorted(HEADERS.glob("*.h")):
        source = re.sub(r"/\*.*?\*/", "", header.read_text(encoding="utf-8"), flags=re.DOTALL)
        names = re.findall(r"^OBN_API [\w\s*]+?\b(\w+)\(", source, re.MULTILINE)
        answers = [c.obn_is_implemented(name) for name in names]
        assert -1 not in answers, f"{header.name} declares a function the library does not know"
        if names:
            counts[header.stem] = (sum(answers), len(names))
    return counts


def table_rows():
    """{family: (built, of)} as the README states them."""
    readme = text()
    assert BEGIN in readme, f"README.md has no support table: {BEGIN} is missing"
    assert END in readme, f"README.md has no support table: {END} is missing"
    lines = readme.split(BEGIN)[1].split(END)[0].strip().splitlines()
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines]
    assert rows[0] == ["family", "functions built", "of"]
    return {row[0].strip("`"): (int(row[1]), int(row[2])) for row in rows[2:]}


def test_support_table_matches_the_library():
    """A row for every family of which something is built, one for all the others together."""
    counts = built_by_family()
    expected = {family: count for family, count in counts.items() if count[0]}
    expected["all others"] = (0, sum(of for built, of in counts.values() if not built))
    assert table_rows() == expected


def test_built_families_are_complete():
    counts = built_by_family()
    families = "activation arithmetic attention base convolution fully_connected fused legacy loss"
    families += " matmul normalization pooling quantization"
    for family in families.split():
        built, total = counts[family]
        assert built == total > 0


def test_support_agrees_with_the_library():
    support = openbnns.support()
    assert support
    for name, built in support.items():
        assert built is (c.obn_is_implemented(name) == 1)


@pytest.mark.parametrize("example", ["first_steps.py", "digits.py"])
def test_examples_run(example):
    path = README.parent / "examples" / example
    run = subprocess.run([sys.executable, path], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout


def test_version_stands_once():
    """In CMakeLists.txt; the package has it from there, and the changelog a heading per release."""
    root = README.parent
    said = re.search(r"project\(openbnns VERSION (\S+)", (root / "CMakeLists.txt").read_text())
    assert openbnns.__version__ == said[1]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    assert "version" not in project
    assert "version" in project["dynamic"]
    headings = re.findall(r"^## (.*)$", (root / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0].split(",")[0] == said[1]
    for heading in headings:
        assert re.fullmatch(r"\d+\.\d+\.\d+, (unreleased|\d{4}-\d\d-\d\d)", heading)
