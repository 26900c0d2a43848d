#!/bin/sh
# usage: torch-cpu.sh PYTHON
# Installs PyTorch's CPU build (about 200 MB) where there is no NVIDIA GPU. On Linux pip's default is the CUDA build with several
# gigabytes of libraries. Where PyTorch's index cannot be reached, pip's default is installed later with the other packages.
set -eu
[ "$(uname)" = Linux ] && [ ! -e /proc/driver/nvidia ] && [ ! -e /dev/dxg ] || exit 0
"$1" -c 'import importlib.metadata as m; m.version("torch")' 2>/dev/null && exit 0
version=$(sed -n 's/^torch==//p' "$(dirname "$0")/../constraints.txt")
"$1" -m pip install --quiet --disable-pip-version-check --retries 0 --timeout 15 --no-deps \
  --index-url https://download.pytorch.org/whl/cpu "torch==$version" 2>/dev/null && exit 0
echo "PyTorch's index of CPU builds cannot be reached: pip installs its default build" >&2
