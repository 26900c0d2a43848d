#!/bin/sh
# Builds the wheel, installs it with its base dependencies alone in a fresh virtual environment, and
# trains a first agent with it: what a user gets who types `pip install`.
set -eu
project=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/env"
sh "$project/scripts/torch-cpu.sh" "$work/env/bin/python"
"$work/env/bin/pip" install --quiet --disable-pip-version-check "setuptools>=77" wheel
"$work/env/bin/pip" wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation \
  --wheel-dir "$work" "$project"
"$work/env/bin/pip" install --quiet --disable-pip-version-check \
  --constraint "$project/constraints.txt" "$work"/cclf-*.whl
cd "$work"  # away from the sources: what is imported is what was installed
env/bin/cclf --version
env/bin/cclf train toy/reach-1d --env-steps 230 --eval-every-env-steps 115 --eval-episodes 2 --out runs
env/bin/cclf evaluate "$work"/runs/toy/reach-1d/cclf/seed-* --episodes 2
env/bin/cclf evaluate pretrained/reach --episodes 2
