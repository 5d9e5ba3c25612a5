#!/usr/bin/env bash
# The Python tests by an interpreter without a global lock: `make free-threaded`. Builds CPython 3.13 so, from the source
# package of Debian 13, in the folder FREE_THREADED (build/free_threaded), and installs this tree there; nothing else on the
# machine changes. Needs apt, dpkg-dev, a C compiler and the headers of libssl, libffi and zlib; NumPy, pytest and others
# come from PyPI. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
place=$(realpath -m "${FREE_THREADED:-build/free_threaded}")
python=$place/python/bin/python3.13t
ready=$place/python/ready
jobs=$(getconf _NPROCESSORS_ONLN)

if [ ! -e "$ready" ]; then
  mkdir -p "$place/lists/partial"
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' | sed -n 1p)  # this machine's own
  echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror trixie main" >"$place/sources.list"
  apt="apt-get -q -o Dir::Etc::sourcelist=$place/sources.list -o Dir::Etc::sourceparts=/dev/null
       -o Dir::State::lists=$place/lists -o APT::Sandbox::User=root"
  $apt update
  (cd "$place" && $apt source --tar-only python3.13)
  rm -rf "$place/source"
  mkdir "$place/source"
  tar -xf "$place"/python3.13_*.orig.tar.* -C "$place/source" --strip-components=1
  cd "$place/source"
  ./configure --quiet --disable-gil --prefix="$place/python" --with-ensurepip=install
  make --silent -j "$jobs"
  make --silent install
  cd - >/dev/null
  touch "$ready"
fi

"$python" -m venv "$place/venv"
bin=$place/venv/bin
# wheels alone: the newest NumPy may have none for this interpreter, and would be compiled
"$bin/pip" install -q --disable-pip-version-check --only-binary :all: cmake ninja scikit-build-core numpy pytest \
  hypothesis ml_dtypes
CMAKE_BUILD_PARALLEL_LEVEL=$jobs "$bin/pip" install -q --disable-pip-version-check --no-build-isolation --no-deps \
  --config-settings=build-dir=build/python-free-threaded --config-settings=cmake.define.OPENBNNS_TESTS=OFF .
"$bin/python" -c 'import sys, numpy, openbnns; assert not sys._is_gil_enabled(), "an import brought the lock back"'
exec "$bin/python" -m pytest "${@:-tests}"
