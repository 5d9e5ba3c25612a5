"""The rules of what is in a wheel, on made-up ones; `make wheels` applies them to real ones."""

import importlib.util
from pathlib import Path

import pytest

FILE = Path(__file__).parents[1] / "packaging" / "check_wheels.py"
SPECIFICATION = importlib.util.spec_from_file_location("check_wheels", FILE)
check_wheels = importlib.util.module_from_spec(SPECIFICATION)
SPECIFICATION.loader.exec_module(check_wheels)

NAMES = {
    "openbnns-0.1.0-cp311-abi3-musllinux_1_2_aarch64.whl": ("_core.abi3.so", "lib/libopenbnns.so"),
    "openbnns-0.1.0-cp311-abi3-macosx_11_0_arm64.whl": ("_core.abi3.so", "lib/libopenbnns.dylib"),
    "openbnns-0.1.0-cp311-abi3-win_amd64.whl": (
        "_core.pyd",
        "libopenbnns.dll",
        "lib/libopenbnns.dll.a",
    ),
}
INFO = "openbnns-0.1.0.dist-info"


def content(wheel):
    files = {"examples/digits.py", "lib/pkgconfig/openbnns.pc", *NAMES[wheel]}
    files |= {f"include/{name}" for name in check_wheels.tree("include")}
    names = {f"openbnns/{name}" for name in files} | check_wheels.tree("python")
    parts = ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")
    return names | {f"{INFO}/{part}" for part in parts}


@pytest.mark.parametrize("wheel", NAMES)
def test_wheel_holds_what_it_should_and_nothing_else(wheel):
    names = content(wheel)
    for more in (set(), {"openbnns/lib/cmake/openbnns/openbnns-config.cmake"}):
        assert check_wheels.content_problems(wheel, names | more) == []
    for extra in ("tests/test_tiny.py", "openbnns/core_test", "openbnns/lib/libopenbnns.so.0"):
        assert check_wheels.content_problems(wheel, names | {extra}) == [
            f"{extra} does not belong there"
        ]
    for lost in (f"openbnns/{NAMES[wheel][1]}", "openbnns/py.typed", f"{INFO}/licenses/LICENSE"):
        assert check_wheels.content_problems(wheel, names - {lost}) == [f"{lost} is missing"]


def test_record_is_of_the_files():
    digest = "sha256=ungWv48Bz-pBQUDeXa4iI7ADYaOWF3qctBD_YfIAFa0"  # of b"abc"
    record = f"a,{digest},3\n{INFO}/RECORD,,\n"
    files = {"a": b"abc", f"{INFO}/RECORD": record.encode()}
    assert check_wheels.record_problems(files) == []
    changed, more = {**files, "a": b"abd"}, {**files, "b": b""}
    assert check_wheels.record_problems(changed) == ["RECORD has another digest of a"]
    assert check_wheels.record_problems(more) == ["RECORD and files differ: b"]


def test_headers_declare_the_interface():
    names = check_wheels.declared_names()
    assert sum(name.startswith("BNNS") for name in names) == 139
    assert {"obn_version", "obn_last_error"} <= names
