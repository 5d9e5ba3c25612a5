#!/usr/bin/env bash
# The Python tests against the aarch64 wheel of dist/, in a Debian 13 for ARM that qemu runs: `make wheels-arm-test`.
# Needs root, debootstrap, and qemu-user-static known to the kernel (binfmt_misc). An hour or more.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD/build/arm64
wheel=$(ls "$PWD"/dist/*-manylinux_2_17_aarch64*.whl)

if [ ! -e "$root/ready" ]; then
  rm -rf "$root"
  debootstrap --arch=arm64 --foreign --variant=minbase --include=python3 trixie "$root"
  # To run Python it is enough that packages are unpacked; what their scripts would set up is not needed.
  for package in "$root"/var/cache/apt/archives/*.deb; do dpkg-deb -x "$package" "$root"; done
  touch "$root/ready"
fi

rm -rf "$root/site" "$root/openbnns"
.venv/bin/pip install -q --target "$root/site" --python-version 3.13 --only-binary=:all: \
  --platform manylinux_2_17_aarch64 --platform manylinux2014_aarch64 --platform manylinux_2_28_aarch64 \
  "$wheel" pytest hypothesis ml_dtypes safetensors
mkdir "$root/openbnns"
git ls-files -z -- . ':!benchmarks/results' | xargs -0 cp --parents -t "$root/openbnns"

mountpoint -q "$root/proc" || mount --bind /proc "$root/proc"
mountpoint -q "$root/dev" || mount --bind /dev "$root/dev"
trap 'umount "$root/proc" "$root/dev"' EXIT
chroot "$root" /usr/bin/env -C /openbnns PYTHONPATH=/site PATH=/site/bin:/usr/bin python3 -m pytest \
  -p no:cacheprovider "${@:-tests}"
