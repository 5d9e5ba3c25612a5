"""What each wheel in dist/ holds, and whether it is what it should be: the end of `make wheels`.

File names are compared with the source tree, exported names with the headers, imported ones with
what the platform of the tag is sure to have.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LARGEST = 3.5e6  # bytes of a wheel
OLDEST_GLIBC = (2, 17)
OLDEST_MACOS = [11, 0, 0]
CORE = {"windows": "openbnns/_core.pyd"}
LIBRARY = {
    "linux": "openbnns/lib/libopenbnns.so",
    "macos": "openbnns/lib/libopenbnns.dylib",
    "windows": "openbnns/libopenbnns.dll",
}
# Beside these a file imports names from the Python that loads it.
NEEDED = {
    "manylinux": {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1"},
    "musllinux": {"libc.musl-x86_64.so.1", "libc.musl-aarch64.so.1"},
    "macos": {"/usr/lib/libSystem.B.dylib"},
    "windows": {"kernel32.dll", "ntdll.dll", "advapi32.dll"},
}
# zig's linker keeps no list of exports for macOS: of the C++ library in the file, `operator new`
# and `delete` stay visible, weak and like everybody's.
MACH_RUNTIME = re.compile(r"_Z(da|dl|na|nw)\w+|__dso_handle|_mh_dylib_header")
MACH_ANYWHERE = -2
LOADERS = {"ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}


def tree(folder: str) -> set[str]:
    """Files of a folder of the source, as they are named in a wheel."""
    root = ROOT / folder
    return {
        path.relative_to(root).as_posix()
        for path in root.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def family(wheel: str) -> str:
    """linux, macos or windows, from the name of the wheel."""
    tag = wheel.removesuffix(".whl").split("-")[-1]
    return "linux" if "linux" in tag else "macos" if tag.startswith("macosx") else "windows"


def content_problems(wheel: str, names: Iterable[str]) -> list[str]:
    """The rules of what is in a wheel: the package, headers, library and licence, all of them and
    nothing else."""
    system = family(wheel)
    info = "-".join(wheel.split("-")[:2]) + ".dist-info"
    needed = {f"openbnns/include/{name}" for name in tree("include")} | tree("python")
    needed |= {CORE.get(system, "openbnns/_core.abi3.so"), LIBRARY[system]}
    needed |= {"openbnns/examples/digits.py", "openbnns/lib/pkgconfig/openbnns.pc"}
    if system == "windows":
        needed.add("openbnns/lib/libopenbnns.dll.a")
    parts = ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")
    needed |= {f"{info}/{part}" for part in parts}
    found = {name for name in names if not name.startswith("openbnns/lib/cmake/openbnns/")}
    return [f"{name} is missing" for name in sorted(needed - found)] + [
        f"{name} does not belong there" for name in sorted(found - needed)
    ]


def record_problems(files: dict[str, bytes]) -> list[str]:
    """RECORD names every file with its digest."""
    name = next(name for name in files if name.endswith(".dist-info/RECORD"))
    rows = {row[0]: row[1] for row in csv.reader(files[name].decode().splitlines())}
    wrong = [f"RECORD and files differ: {odd}" for odd in sorted(rows.keys() ^ files.keys())]
    for path, digest in rows.items():
        if path == name or path not in files:
            continue
        actual = base64.urlsafe_b64encode(hashlib.sha256(files[path]).digest()).rstrip(b"=")
        if digest != f"sha256={actual.decode()}":
            wrong.append(f"RECORD has another digest of {path}")
    return wrong


def declared_names() -> set[str]:
    """What the headers declare: the linker names of the interface."""
    names = set()
    for path in (ROOT / "include" / "openbnns").rglob("*.h"):
        text = re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.DOTALL)
        for declaration in re.findall(r"^OBN_API\s[^;]+;", text, flags=re.MULTILINE):
            symbol = re.search(r"OBN_SYMBOL\((\w+)\)", declaration)
            names.add((symbol or re.search(r"\b((?:BNNS|obn_)\w+)\s*\(", declaration))[1])
    return names


def same(what: str, found: set[str], expected: set[str]) -> list[str]:
    return [f"{what} lacks {name}" for name in sorted(expected - found)] + [
        f"{what} has {name}" for name in sorted(found - expected)
    ]


def elf_problems(wheel: str, path: str, binary, exports: set[str]) -> list[str]:
    kind = "musllinux" if "musllinux" in wheel else "manylinux"
    found = {s.name for s in binary.exported_symbols if s.name not in ("_init", "_fini")}
    wrong = same(f"{path}: exports", found, exports)
    own = {"libopenbnns.so"} if "_core" in path else set()
    wrong += [
        f"{path} needs {name}"
        for name in binary.libraries
        if name not in NEEDED[kind] | LOADERS | own
    ]
    for version in binary.symbols_version_requirement:
        if version.name in own:
            continue
        for entry in version.get_auxiliary_symbols():
            numbers = re.fullmatch(r"GLIBC_(\d+)\.(\d+)(?:\.\d+)?", entry.name)
            if not numbers or (int(numbers[1]), int(numbers[2])) > OLDEST_GLIBC:
                wrong.append(f"{path} needs {entry.name} of {version.name}")
    if "_core" in path:
        paths = [
            e.runpath if hasattr(e, "runpath") else e.rpath
            for e in binary.dynamic_entries
            if type(e).__name__ in ("DynamicEntryRunPath", "DynamicEntryRpath")
        ]
        wrong += [] if paths == ["$ORIGIN/lib"] else [f"{path}: its rpath is {paths}"]
    if any(section.name == ".symtab" for section in binary.sections):
        wrong.append(f"{path} is not stripped")
    return wrong


def mach_problems(wheel: str, path: str, fat, exports: set[str]) -> list[str]:
    wrong = [] if len(fat) == 1 else [f"{path} holds {len(fat)} architectures"]
    binary = fat.at(0)
    found = {s.name.removeprefix("_") for s in binary.exported_symbols}
    wrong += same(f"{path}: exports", {n for n in found if not MACH_RUNTIME.fullmatch(n)}, exports)
    processor = "ARM64" if wheel.endswith("arm64.whl") else "X86_64"
    if processor not in str(binary.header.cpu_type):
        wrong.append(f"{path} is for {binary.header.cpu_type}")
    needed = {
        library.name
        for library in binary.libraries
        if type(library.command).__name__ and "ID_DYLIB" not in str(library.command)
    }
    own = {"@rpath/libopenbnns.dylib"} if "_core" in path else set()
    wrong += same(f"{path}: libraries", needed, NEEDED["macos"] | own)
    names = [lib.name for lib in binary.libraries if "ID_DYLIB" in str(lib.command)]
    if "_core" not in path and names != ["@rpath/libopenbnns.dylib"]:
        wrong.append(f"{path}: its install name is {names}")
    if "_core" in path:
        paths = [command.path for command in binary.rpaths]
        wrong += [] if paths == ["@loader_path/lib"] else [f"{path}: its rpath is {paths}"]
    oldest = (
        list(binary.build_version.minos)
        if binary.has_build_version
        else (list(binary.version_min.version) if binary.has_version_min else None)
    )
    if oldest != OLDEST_MACOS:
        wrong.append(f"{path} wants macOS {oldest}")
    if processor == "ARM64" and not binary.has_code_signature:
        wrong.append(f"{path} is not signed")
    # Python's names, and no others, are looked up in the process that loads the file.
    for symbol in binary.imported_symbols:
        is_open = symbol.has_binding_info and symbol.binding_info.library_ordinal == MACH_ANYWHERE
        if not is_open and symbol.library_ordinal < 1:
            wrong.append(f"{path} needs {symbol.name} of itself")
        if is_open and not ("_core" in path and symbol.name.startswith(("_Py", "__Py"))):
            wrong.append(f"{path} needs {symbol.name} of no library")
    return wrong


def pe_problems(wheel: str, path: str, binary, exports: set[str]) -> list[str]:
    found = {entry.name for entry in binary.get_export().entries}
    wrong = same(f"{path}: exports", found, exports)
    processor = "ARM64" if wheel.endswith("arm64.whl") else "AMD64"
    if processor not in str(binary.header.machine):
        wrong.append(f"{path} is for {binary.header.machine}")
    own = {"libopenbnns.dll", "python3.dll"} if "_core" in path else set()
    for library in binary.imports:
        name = library.name.lower()
        if name not in NEEDED["windows"] | own and not name.startswith("api-ms-win-crt-"):
            wrong.append(f"{path} needs {library.name}")
    return wrong


def problems(wheel: Path) -> list[str]:
    """Everything that is wrong with a wheel, as sentences."""
    import lief

    with zipfile.ZipFile(wheel) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    wrong = content_problems(wheel.name, files) + record_problems(files)
    if wheel.stat().st_size > LARGEST:
        wrong.append(f"{wheel.stat().st_size} bytes are more than {LARGEST:.0f}")
    system = family(wheel.name)
    core = CORE.get(system, "openbnns/_core.abi3.so")
    for path, exports in ((LIBRARY[system], declared_names()), (core, {"PyInit__core"})):
        if path not in files:
            continue
        data = list(files[path])
        if system == "linux":
            wrong += elf_problems(wheel.name, path, lief.ELF.parse(data), exports)
        elif system == "macos":
            wrong += mach_problems(wheel.name, path, lief.MachO.parse(data), exports)
        else:
            wrong += pe_problems(wheel.name, path, lief.PE.parse(data), exports)
    return wrong


def audit_problems(wheel: Path) -> list[str]:
    """What those say who know the rules of tags: auditwheel for Linux, abi3audit for Python."""

    def said(*words: str) -> tuple[int, str]:
        command = [str(Path(sys.executable).parent / words[0]), *words[1:], str(wheel)]
        done = subprocess.run(command, text=True, capture_output=True)
        return done.returncode, " ".join((done.stdout + done.stderr).split())

    status, text = said("abi3audit", "--strict", "--summary")
    wrong = [] if status == 0 else [f"abi3audit: {text}"]
    if family(wheel.name) == "linux":
        # Libraries of this machine say nothing about those of the wheel's.
        status, text = said("auditwheel", "show", "--ldpaths", "/none")
        tag = wheel.name.removesuffix(".whl").split("-")[-1].split(".")[0]
        if status != 0 or f'consistent with the following platform tag: "{tag}"' not in text:
            wrong.append(f"auditwheel: {text}")
    return wrong


def main() -> int:
    wheels = sorted(Path(name) for name in sys.argv[1:]) or sorted((ROOT / "dist").glob("*.whl"))
    if not wheels:
        print("dist/ has no wheels: nothing to check")
        return 1
    count = 0
    for wheel in wheels:
        wrong = problems(wheel) + audit_problems(wheel)
        count += len(wrong)
        print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.2f} MB,", "wrong:" if wrong else "right")
        for sentence in wrong:
            print(f"  {sentence}")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
