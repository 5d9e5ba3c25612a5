#!/usr/bin/env bash
# `make test` of a copy of this tree in a fresh Debian 13 (gcc 14, Python 3.13): `make debian13`. Needs root and
# debootstrap; the packages of PyPI are fetched from inside.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD/build/debian13

if [ ! -e "$root/ready" ]; then
  rm -rf "$root"
  debootstrap --include=ca-certificates,g++,git,make,python3,python3-dev,python3-venv trixie "$root"
  touch "$root/ready"
fi

rm -rf "$root/openbnns"
mkdir "$root/openbnns"
git ls-files -z | xargs -0 cp --parents -t "$root/openbnns"
cp /etc/resolv.conf /etc/hosts "$root/etc/"
cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"  # PyPI is reached as from here
mountpoint -q "$root/proc" || mount --bind /proc "$root/proc"
mountpoint -q "$root/dev" || mount --bind /dev "$root/dev"
trap 'umount "$root/proc" "$root/dev"' EXIT
chroot "$root" /usr/bin/env -C /openbnns make "${@:-test}"
