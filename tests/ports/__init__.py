"""Small programs against the installed headers and library. NAME.txt is what NAME.c must print."""

import shutil
import subprocess
from pathlib import Path

import openbnns

FOLDER = Path(__file__).parent
WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]
COMPILERS = {
    ".c": [name for name in ("gcc", "clang") if shutil.which(name)],
    ".cpp": [name for name in ("g++", "clang++") if shutil.which(name)],
}
STANDARDS = {".c": "-std=c11", ".cpp": "-std=c++20"}


def run(command):
    """Standard output; what the command complained about becomes the failure."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{command} gave {done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout


def build(compiler, source, folder, flags=None):
    """Compiles a program of this folder; flags replace those that find headers and library."""
    program = Path(folder) / source.stem
    library = openbnns.library_path()
    if flags is None:
        flags = [f"-I{openbnns.include_dir()}", str(library), f"-Wl,-rpath,{library.parent}"]
    standard = STANDARDS[source.suffix]
    command = [compiler, standard, "-O1", *WARNINGS, str(source), "-o", str(program)]
    run([*command, *flags, "-lm", "-pthread"])
    return program


def expected(source):
    return source.with_suffix(".txt").read_text(encoding="utf-8")
