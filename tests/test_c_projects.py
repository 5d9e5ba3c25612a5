"""Projects of other people: found by CMake, by pkg-config and by hand, built, and started.

From the installed package always, from a prefix where OPENBNNS_PREFIX names one that
`cmake --install` filled (`make test-prefix`).
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import openbnns
import pytest

PROJECTS = Path(__file__).parent / "c_projects"
COMPILER = shutil.which("cc")
CMAKE = shutil.which("cmake", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
PREFIX = os.environ.get("OPENBNNS_PREFIX")
SAID = f"version {openbnns.__version__}, loss 15.5, then 0.000000; w = 2.000 -1.000\n"

pytestmark = pytest.mark.skipif(not COMPILER, reason="needs a C compiler")


class Place:
    """An installation: where its parts are."""

    def __init__(self, library, include, cmake):
        self.library, self.include, self.cmake = library, include, cmake
        self.pkgconfig = library.parent / "pkgconfig"


@pytest.fixture(params=["package", "prefix"])
def place(request):
    if request.param == "package":
        library = openbnns.library_path()
        return Place(library, openbnns.include_dir(), openbnns.cmake_dir())
    if not PREFIX:
        pytest.skip("OPENBNNS_PREFIX names no prefix: make test-prefix")
    library = next(Path(PREFIX).glob("lib*/**/libopenbnns.so"))
    return Place(library, Path(PREFIX, "include"), library.parent / "cmake" / "openbnns")


@pytest.fixture
def project(tmp_path):
    """A copy of the projects, so that nothing is written beside the sources."""
    return Path(shutil.copytree(PROJECTS, tmp_path / "projects"))


def run(*command, **variables):
    environment = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"}
    done = subprocess.run(
        [*map(str, command)], capture_output=True, text=True, env=environment | variables
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def test_plain(place, project):
    folder = project / "plain"
    run("make", "-C", folder, f"INCLUDE={place.include}", f"LIBRARY={place.library}")
    assert run(folder / "train") == SAID


@pytest.mark.skipif(not shutil.which("pkg-config"), reason="needs pkg-config")
def test_pkg_config(place, project):
    folder, known = project / "pkgconfig", {"PKG_CONFIG_PATH": str(place.pkgconfig)}
    run("make", "-C", folder, **known)
    assert run(folder / "train") == SAID
    version = run("pkg-config", "--modversion", "openbnns", **known)
    assert version.strip() == openbnns.__version__


@pytest.mark.skipif(not CMAKE, reason="needs cmake")
def test_cmake(place, project, tmp_path):
    build = tmp_path / "build"
    source = ("-S", project / "cmake", "-G", "Unix Makefiles")
    run(CMAKE, *source, "-B", build, f"-Dopenbnns_DIR={place.cmake}")
    run(CMAKE, "--build", build)
    assert run(build / "train") == SAID


@pytest.mark.skipif(not CMAKE, reason="needs cmake")
def test_cmake_refuses_another_version(place, project, tmp_path):
    lists = project / "cmake" / "CMakeLists.txt"
    lists.write_text(lists.read_text().replace("openbnns 0.1", "openbnns 0.0"))
    with pytest.raises(AssertionError, match="compatible with requested"):
        run(CMAKE, "-S", lists.parent, "-B", tmp_path, f"-Dopenbnns_DIR={place.cmake}")


@pytest.mark.skipif(not shutil.which("readelf"), reason="needs readelf")
def test_names_for_the_loader(place):
    """A program asks for the library by its major version where links can be had, and for each
    function by the version that brought it."""
    dynamic = run("readelf", "-d", place.library)
    is_package = place.library == openbnns.library_path()
    soname = "libopenbnns.so" if is_package else "libopenbnns.so.0"
    assert f"soname: [{soname}]" in dynamic
    assert (place.library.parent / soname).exists()
    symbols = run("readelf", "--dyn-syms", "--wide", place.library)
    assert " BNNSFilterApply@@OPENBNNS_0.1" in symbols
