"""The documentation tells the truth: Python runs, C compiles and runs, links lead somewhere."""

import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import openbnns
import pytest
from openbnns.__main__ import main

README = Path(__file__).parent.parent / "README.md"
DOCS = README.parent / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
NAMES = [str(page.relative_to(DOCS)) for page in PAGES]


def blocks(page, language):
    text = page.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


# docs/interface shows declarations, which nobody can run
RUN = [page for page in (README, *PAGES) if page.parent.name != "interface"]
SHOW_PYTHON = [page for page in RUN if blocks(page, "python")]


@pytest.mark.parametrize("page", SHOW_PYTHON, ids=lambda page: page.name)
def test_python_runs(page, tmp_path, monkeypatch):
    code = blocks(page, "python")
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "page"}
    for number, block in enumerate(code, 1):
        try:
            exec(compile(block, f"{page.name}, block {number}", "exec"), namespace)
        except Exception as error:
            pytest.fail(f"block {number} of {page.name}: {error!r}\n{block}")


@pytest.mark.parametrize("page", [p for p in RUN[1:] if blocks(p, "c")], ids=lambda p: p.name)
def test_c_compiles_and_runs(page, tmp_path):
    """By the commands that the page shows, without a warning."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    shown = compile_commands(page)
    for block in blocks(page, "c"):
        (tmp_path / "program.c").write_text(block)
        run = subprocess.run(
            ["sh", "-ec", f"{shown}\n./program"],
            cwd=tmp_path,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 0, run.stderr
        assert run.stderr == ""


def compile_commands(page):
    """What a page shows to compile program.c."""
    text = page.read_text(encoding="utf-8")
    [shown] = re.findall(r"^    library=.*?-o program$", text, re.DOTALL | re.MULTILINE)
    return textwrap.dedent(shown)


def test_the_readme_compiles_c_the_same_way():
    assert compile_commands(README) == compile_commands(DOCS / "howto" / "port_c.md")


def test_pages_that_the_sources_cite_are_there():
    cited = set()
    for folder in ("src", "include", "bindings", "python"):
        for source in (README.parent / folder).rglob("*.*"):
            if source.suffix in (".cpp", ".h", ".py", ".inc"):
                text = source.read_text(encoding="utf-8")
                cited |= set(re.findall(r"(?:[\w./]+/)?\w+\.md\b", text)) - {"README.md"}
    assert "docs/interface/loss.md" in cited
    assert not [name for name in cited if not (README.parent / name).is_file()]


def test_pages_that_show_python_are_found():
    assert {"README.md", "tutorial.md", "transformer.md"} <= {page.name for page in SHOW_PYTHON}


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_lead_somewhere(page):
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    for target in targets:
        if "://" not in target:
            assert (page.parent / target).is_file(), f"{page.name} links to {target}"


def test_every_page_is_in_the_index_of_the_site():
    index = (DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8")
    for name in NAMES:
        assert name in index


def test_every_public_module_is_in_the_reference():
    named = set()
    for page in (DOCS / "reference").glob("*.md"):
        named |= set(re.findall(r"^::: openbnns\.?(\w*)", page.read_text(), re.MULTILINE))
    modules = {p.stem for p in Path(openbnns.__file__).parent.glob("*.py")}
    commands = {"bench", "demo"}  # their page is "The command"
    public = {name for name in modules if not name.startswith("_")} - commands - {"c"}
    assert public <= named


def commands():
    """Every call of the command in the README and on the site, without its comment."""
    pages = [README, DOCS.parent / "benchmarks" / "README.md", *PAGES]
    found = set()
    for page in pages:
        text = page.read_text(encoding="utf-8")
        shown = re.findall(r"`(openbnns \w[^`\n]*)`", text)
        shown += re.findall(r"^    (openbnns \w[^#\n]*)", text, re.MULTILINE)
        found |= {call.strip() for call in shown}
    return sorted(found)


@pytest.mark.parametrize("call", commands())
def test_commands_are_there(call, capsys):
    """The demo is run by its own tests; bench here only quickly."""
    _, word, *options = call.split()
    if word in ("demo", "bench"):
        with pytest.raises(SystemExit, match="0"):
            main([word, *options, "--help"])
        assert word in capsys.readouterr().out
    else:
        assert main([word, *options]) == 0


def test_the_commands_of_the_package_are_all_shown():
    shown = {call.split()[1] for call in commands()}
    assert shown == {"bench", "check", "demo", "doctor"}


def test_make_targets_are_there():
    makefile = (DOCS.parent / "Makefile").read_text(encoding="utf-8")
    named = set()
    for page in (README, DOCS.parent / "CONTRIBUTING.md", *PAGES):
        text = page.read_text(encoding="utf-8")
        named |= set(re.findall(r"(?:`|^    )make ([a-z0-9-]+)", text, re.MULTILINE))
    assert {"demo", "test", "docs", "bench", "lint"} <= named
    for word in named:
        assert re.search(rf"^{word}:", makefile, re.MULTILINE), f"make {word}"
