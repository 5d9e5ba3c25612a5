"""Programs written for Accelerate compile unchanged and print the numbers they should."""

import shutil

import openbnns
import ports
import pytest

SOURCES = ["pooling.c", "convolution.c", "fully_connected.c", "activation.c", "legacy.c"]
SOURCES += ["normalization.c", "arithmetic.c", "quantization.c", "fused.c", "loss.c"]
SOURCES += ["matmul.c", "optimizer.c", "random.c", "attention.c"]
SOURCES += ["errors.cpp", "train.cpp"]
BUILDS = [
    (compiler, name) for name in SOURCES for compiler in ports.COMPILERS["." + name.split(".")[1]]
]


@pytest.mark.parametrize(("compiler", "name"), BUILDS)
def test_program_prints_its_numbers(compiler, name, tmp_path):
    source = ports.FOLDER / name
    program = ports.build(compiler, source, tmp_path)
    assert ports.run([program]) == ports.expected(source)


@pytest.mark.skipif(not BUILDS, reason="needs a C compiler")
@pytest.mark.skipif(not shutil.which("pkg-config"), reason="needs pkg-config")
def test_pkg_config_finds_headers_and_library(tmp_path, monkeypatch):
    folder = openbnns.library_path().parent / "pkgconfig"
    monkeypatch.setenv("PKG_CONFIG_PATH", str(folder))
    flags = ports.run(["pkg-config", "--cflags", "--libs", "openbnns"]).split()
    source = ports.FOLDER / "pooling.c"
    program = ports.build(ports.COMPILERS[".c"][0], source, tmp_path, flags)
    assert ports.run([program]) == ports.expected(source)
    assert ports.run(["pkg-config", "--modversion", "openbnns"]).strip() == openbnns.__version__


@pytest.mark.skipif(not BUILDS, reason="needs a C compiler")
@pytest.mark.parametrize("header", ["Accelerate/Accelerate.h", "vecLib/BNNS/bnns.h"])
@pytest.mark.parametrize("standard", ["-std=c11", "-std=c2x"])
def test_headers_compile_under_every_name(header, standard, tmp_path):
    source = tmp_path / "header.c"
    source.write_text(
        f"#include <{header}>\nint main(void) {{ return BNNS_MAX_TENSOR_DIMENSION; }}"
    )
    compiler = ports.COMPILERS[".c"][0]
    include = f"-I{openbnns.include_dir()}"
    ports.run([compiler, standard, *ports.WARNINGS, include, "-fsyntax-only", str(source)])


@pytest.mark.skipif(not ports.COMPILERS[".cpp"], reason="needs a C++ compiler")
@pytest.mark.parametrize("standard", ["-std=c++11", "-std=c++17", "-std=c++20"])
def test_headers_compile_as_cpp(standard, tmp_path):
    source = tmp_path / "header.cpp"
    source.write_text("#include <Accelerate/Accelerate.h>\n#include <openbnns/openbnns.h>\n")
    compiler = ports.COMPILERS[".cpp"][0]
    include = f"-I{openbnns.include_dir()}"
    ports.run([compiler, standard, *ports.WARNINGS, include, "-fsyntax-only", str(source)])
