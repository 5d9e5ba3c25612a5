"""The binary interface against recorded facts: values, layouts, signatures, symbols, failures."""

import ctypes
import json
import re
import shutil
import subprocess
from pathlib import Path

import openbnns
import pytest
from openbnns import c

FACTS = json.loads((Path(__file__).parent / "data" / "abi.json").read_text())
INCLUDE = Path(openbnns.include_dir())
LIBRARY = Path(openbnns.library_path())

COMPILERS = [name for name in ("gcc", "clang") if shutil.which(name)]
STANDARDS = ("c99", "c11", "c++17", "c++20")
WARNINGS = ("-Wall", "-Wextra", "-pedantic", "-Werror")
HEADERS = sorted(path.relative_to(INCLUDE).as_posix() for path in INCLUDE.rglob("*.h"))

SCALARS = {
    "bool": ctypes.c_bool,
    "char": ctypes.c_char,
    "int": ctypes.c_int,
    "unsigned int": ctypes.c_uint,
    "float": ctypes.c_float,
    "size_t": ctypes.c_size_t,
    "ssize_t": ctypes.c_ssize_t,
    "uint8_t": ctypes.c_uint8,
    "uint16_t": ctypes.c_uint16,
    "int32_t": ctypes.c_int32,
    "uint32_t": ctypes.c_uint32,
    "int64_t": ctypes.c_int64,
    "uint64_t": ctypes.c_uint64,
    **dict.fromkeys(FACTS["enums"], ctypes.c_uint32),
    **dict.fromkeys(("BNNSFilter", "BNNSRandomGenerator", "BNNSNearestNeighbors"), ctypes.c_void_p),
}


def ctype(name):
    """The ctypes type of a C type that is neither a pointer nor an array."""
    return SCALARS[name] if name in SCALARS else getattr(c, name)


def compile_text(compiler, standard, text, *options):
    """Compiles without linking; the text of all diagnostics, "" when there are none."""
    language = "c++" if "+" in standard else "c"
    command = [compiler, f"-std={standard}", *WARNINGS, f"-I{INCLUDE}", "-x", language]
    result = subprocess.run(
        [*command, *options, "-fsyntax-only", "-"], input=text, text=True, capture_output=True
    )
    return result.stdout + result.stderr + (f"exit {result.returncode}" * bool(result.returncode))


# ---- through ctypes ----


def test_facts_are_complete():
    counts = {kind: len(FACTS[kind]) for kind in ("enums", "structs", "typedefs", "functions")}
    assert counts == {"enums": 34, "structs": 53, "typedefs": 9, "functions": 139}
    assert sum(map(len, FACTS["enums"].values())) == 264


def test_constants():
    for name, value in FACTS["constants"].items():
        assert getattr(c, name) == value


@pytest.mark.parametrize("enum", FACTS["enums"])
def test_enum(enum):
    assert getattr(c, enum) is ctypes.c_uint32
    for member, value in FACTS["enums"][enum].items():
        assert getattr(c, member) == value, member


@pytest.mark.parametrize("struct", FACTS["structs"])
def test_struct_layout(struct):
    facts, type_ = FACTS["structs"][struct], getattr(c, struct)
    assert ctypes.sizeof(type_) == facts["size"]
    assert ctypes.alignment(type_) == facts["align"]
    for field in facts["fields"]:
        assert getattr(type_, field["name"]).offset == field["offset"], field
    assert len(list(leaves(type_))) == len(facts["fields"])


def leaves(type_):
    """Names of the fields, those of the anonymous union included."""
    for name, field_type in type_._fields_:
        yield from leaves(field_type) if name == "_union" else [name]


@pytest.mark.parametrize("function", FACTS["functions"])
def test_signature(function):
    facts, bound = FACTS["functions"][function], getattr(c, function)
    assert len(bound.argtypes) == len(facts["parameters"])
    for actual, expected in zip(bound.argtypes, facts["parameters"], strict=True):
        check_parameter(actual, expected)
    check_result(bound.restype, facts["returns"])


def check_parameter(actual, expected):
    declared = expected["type"]
    if "*" in declared:
        assert isinstance(actual, c.Pointer), expected
        assert actual.name == expected["name"]
        assert actual.depth == declared.count("*"), expected
        assert actual.const == declared.startswith("const "), expected
        base = declared.removeprefix("const ").rstrip(" *")
        assert actual.target is (None if base == "void" else ctype(base)), expected
    elif "(*)" in FACTS["typedefs"].get(declared, ""):
        assert isinstance(actual, c.Callback), expected
        assert actual.field_type is getattr(c, declared)
    else:
        assert actual is ctype(declared), expected


def check_result(actual, declared):
    if declared == "void":
        assert actual is None
    elif declared == "const char *":
        assert actual is ctypes.c_char_p
    else:
        assert actual is ctype(declared)


def test_every_name_is_listed():
    names = set(dir(c))
    for kind in ("enums", "structs", "typedefs", "functions"):
        assert set(FACTS[kind]) <= names
    for members in FACTS["enums"].values():
        assert set(members) <= names


# ---- through the C compiler ----


def assertions():
    """Every fact as a line of C that does not compile when it is wrong."""
    checks, probes = [], []
    for enum, members in FACTS["enums"].items():
        checks.append(f"sizeof({enum}) == 4")
        checks.extend(f"{member} == {value}" for member, value in members.items())
    for name, value in FACTS["constants"].items():
        checks.append(f"{name} == {value}")
    for struct, facts in FACTS["structs"].items():
        probes.append(f"struct align_{struct} {{ char first; {struct} second; }};")
        checks.append(f"sizeof({struct}) == {facts['size']}")
        checks.append(f"offsetof(struct align_{struct}, second) == {facts['align']}")
        for field in facts["fields"]:
            checks.append(f"offsetof({struct}, {field['name']}) == {field['offset']}")
    for name, declared in FACTS["typedefs"].items():
        variable = declared.replace("(*)", f"(*check_{name})")
        if variable == declared:
            variable = f"{declared} check_{name}"
        probes.append(f"extern {variable};")
        probes.append(f"void take_{name}({name} value) {{ check_{name} = value; }}")
    for function, facts in FACTS["functions"].items():
        parameters = ", ".join(p["type"] for p in facts["parameters"]) or "void"
        probes.append(f"extern {facts['returns']} (*check_{function})({parameters});")
        probes.append(f"void take_{function}(void) {{ check_{function} = {function}; }}")
    lines = [f"typedef char check_{i}[({check}) ? 1 : -1];" for i, check in enumerate(checks)]
    return "\n".join([*probes, *lines, ""])


@pytest.mark.skipif(not COMPILERS, reason="no C compiler")
@pytest.mark.parametrize("standard", STANDARDS)
@pytest.mark.parametrize("compiler", COMPILERS)
def test_headers_state_the_facts(compiler, standard):
    text = "#include <stddef.h>\n#include <openbnns/bnns.h>\n" + assertions()
    if "+" in standard:
        text = text.replace("extern ", 'extern "C" ')
    assert compile_text(compiler, standard, text) == ""


def test_a_wrong_fact_does_not_compile():
    if not COMPILERS:
        pytest.skip("no C compiler")
    text = "#include <openbnns/bnns.h>\n" + assertions().replace(
        "sizeof(BNNSNDArrayDescriptor) == 176", "sizeof(BNNSNDArrayDescriptor) == 184"
    )
    assert compile_text(COMPILERS[0], "c11", text) != ""


@pytest.mark.skipif(not COMPILERS, reason="no C compiler")
@pytest.mark.parametrize("standard", STANDARDS)
@pytest.mark.parametrize("compiler", COMPILERS)
def test_each_header_compiles_alone(compiler, standard):
    assert len(HEADERS) == 27
    for header in HEADERS:
        assert compile_text(compiler, standard, f"#include <{header}>\n") == "", header


# clang in the part of Microsoft's compiler, without the words that one does not know.
MICROSOFT = ("--target=x86_64-pc-windows-msvc", "-ffreestanding", "-nostdlibinc", "-U__clang__")
MICROSOFT += tuple(f"-D{word}=no_such_word" for word in ("__extension__", "__asm__"))
MICROSOFT += ("-D__attribute__(x)=no_such_word", "-Wno-c11-extensions")  # unnamed unions are fine


@pytest.mark.skipif(not shutil.which("clang"), reason="needs clang")
@pytest.mark.parametrize("standard", STANDARDS)
def test_headers_keep_to_microsofts_rules(standard, tmp_path):
    """The words of its dialect and its choice of names, with hollow headers of its library."""
    for name in ("sys/types.h", "math.h", "stdio.h", "stdlib.h", "string.h"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    options = (*MICROSOFT, f"-isystem{tmp_path}")
    for header in HEADERS:
        assert compile_text("clang", standard, f"#include <{header}>\n", *options) == "", header
    facts = "#include <stddef.h>\n#include <openbnns/bnns.h>\n" + assertions()
    if "+" in standard:
        facts = facts.replace("extern ", 'extern "C" ')
    assert compile_text("clang", standard, facts, *options) == ""
    foreign = "#include <openbnns/bnns.h>\nint taken(void) __attribute__((pure));\n"
    assert "no_such_word" in compile_text("clang", standard, foreign, *options)


@pytest.mark.skipif(not shutil.which("clang"), reason="needs clang")
def test_modules_can_be_imported(tmp_path):
    """By Swift and by clang: the maps beside the headers name modules and library."""
    source, program = tmp_path / "program.c", tmp_path / "program"
    source.write_text(
        "#pragma clang module import Accelerate\n#pragma clang module import openbnns\n"
        "int main(void) {\n"
        '    return obn_is_implemented("BNNSFilterApply") == 1 && sqrt(4.0) == 2.0 &&\n'
        "           BNNSDataLayoutGetRank(BNNSDataLayoutImageCHW) == 3 ? 0 : 1;\n}\n"
    )
    modules = ("-fmodules", f"-fmodules-cache-path={tmp_path / 'cache'}", f"-I{INCLUDE}")
    place = (f"-L{LIBRARY.parent}", f"-Wl,-rpath,{LIBRARY.parent}", "-lopenbnns", "-lm")
    subprocess.run(["clang", *WARNINGS, *modules, source, *place, "-o", program], check=True)
    subprocess.run([program], check=True)


PROGRAM = r"""
#include <Accelerate/Accelerate.h>
#include <openbnns/openbnns.h>
#include <stdio.h>
#include <string.h>

int main(void) {
    bnns_graph_compile_options_t options = BNNSGraphCompileOptionsMakeDefault();
    bnns_graph_t graph = BNNSGraphCompileFromFile("nowhere", NULL, options);
    if (graph.data != NULL) return 1;
    if (BNNSDataLayoutGetRank(BNNSDataLayoutImageCHW) != 3) return 2;
    if (strcmp(obn_last_error(), "") == 0) return 3;
    puts(obn_version());
    return 0;
}
"""


@pytest.mark.skipif(not COMPILERS, reason="no C compiler")
@pytest.mark.parametrize("standard", ["c99", "c++17"])
@pytest.mark.parametrize("compiler", COMPILERS)
def test_a_program_links_and_runs(compiler, standard, tmp_path):
    source = tmp_path / ("program.cpp" if "+" in standard else "program.c")
    source.write_text(PROGRAM)
    program = tmp_path / "program"
    command = [compiler, f"-std={standard}", *WARNINGS, f"-I{INCLUDE}", source, LIBRARY]
    subprocess.run([*command, f"-Wl,-rpath,{LIBRARY.parent}", "-o", program], check=True)
    result = subprocess.run([program], check=True, text=True, capture_output=True)
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", result.stdout)
    assert result.stdout.strip() == c.obn_version()


# ---- the shared library ----


def symbols():
    return {facts.get("symbol", name) for name, facts in FACTS["functions"].items()}


def test_all_symbols_can_be_loaded():
    library = ctypes.CDLL(str(LIBRARY))
    assert len(symbols()) == 139
    assert [name for name in sorted(symbols()) if not hasattr(library, name)] == []


@pytest.mark.skipif(not shutil.which("nm"), reason="no nm")
def test_nothing_else_is_exported():
    command = ["nm", "-D", "--defined-only", str(LIBRARY)]
    listing = subprocess.run(command, check=True, text=True, capture_output=True).stdout
    exported = {line.split()[-1].split("@")[0] for line in listing.splitlines()}
    exported.discard("OPENBNNS_0.1")  # the version of all of them
    types = {"obn_log_callback", "obn_interrupt_callback"}
    own = {name for name in dir(c) if name.startswith("obn_")} - types
    assert exported == symbols() | own


# ---- what is not built fails the way the interface says ----


def zero(parameter):
    """NULL, zero or an empty struct for a parameter."""
    declared = parameter["type"]
    if "*" in declared or "(*)" in FACTS["typedefs"].get(declared, ""):
        return None
    return ctype(declared)() if declared in FACTS["structs"] else ctype(declared)().value


def failure(function):
    """What a failing call returns."""
    if function == "BNNSRandomGeneratorStateSize":
        return 0
    if function == "BNNSGraphCompileOptionsGetOptimizationPreference":
        return c.BNNSGraphOptimizationPreferencePerformance
    returns = FACTS["functions"][function]["returns"]
    return {"int": -1, "ssize_t": -1, "size_t": c.SIZE_MAX, "bool": False}.get(returns)


def call_with_zeros(function):
    c.obn_clear_error()
    return getattr(c, function)(*map(zero, FACTS["functions"][function]["parameters"]))


UNBUILT = [name for name in FACTS["functions"] if c.obn_is_implemented(name) == 0]
BUILT = [name for name in FACTS["functions"] if c.obn_is_implemented(name) == 1]


def test_every_function_is_built_or_not():
    assert len(UNBUILT) + len(BUILT) == 139
    assert c.obn_is_implemented("BNNSNoSuchFunction") == -1
    assert c.obn_is_implemented("") == -1
    assert c.obn_is_implemented(None) == -1


@pytest.mark.parametrize("function", UNBUILT)
def test_unbuilt_function_fails_and_says_so(function):
    result = call_with_zeros(function)
    if isinstance(result, ctypes.Structure):
        assert (result.data, result.size) == (None, 0)
    else:
        assert result == failure(function)
    assert function in c.last_error()
    assert "not implemented" in c.last_error()


@pytest.mark.parametrize("function", BUILT)
def test_built_function_survives_zeros(function):
    call_with_zeros(function)
    assert "not implemented" not in c.last_error()
