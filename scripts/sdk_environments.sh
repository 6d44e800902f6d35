#!/usr/bin/env bash
# Create .venv-sdk/<name> for each list of tests/moto_harness/environments: the oldest and newest SageMaker Python SDK of
# each major version, in which exported cells are run; after the Python that installs them, names of some of them may
# follow. Environments that match their list are not created again.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
lists=tests/moto_harness/environments
release=$("$python" -c 'import sys; print(sys.base_prefix, sys.version)')

# `current FOLDER KEY`: whether the folder was made from the same lists, here, and by the same Python.
current() { [ "$(cat "$1/.installed" 2>/dev/null)" = "$2" ]; }

# An environment cannot change its Python or move to another folder.
common=$(echo "$PWD $release" | cat - "$lists/shared.txt" | cksum)
shared=$PWD/.venv-sdk/shared
# The pip of the test environment installs into all of them, so that they contain only packages that cells need.
if ! current "$shared" "$common"; then
  echo "creating .venv-sdk/shared"
  rm -rf "$shared"
  "$1" -m pip install --quiet --no-deps --target "$shared" -r "$lists/shared.txt"
  echo "$common" >"$shared/.installed"
fi

for list in "$lists"/v*.txt; do
  [ $# -eq 1 ] || [[ " ${*:2} " == *" $(basename "$list" .txt) "* ]] || continue
  venv=.venv-sdk/$(basename "$list" .txt)
  wanted=$(echo "$common" | cat - "$list" | cksum)
  current "$venv" "$wanted" && continue
  echo "creating $venv"
  rm -rf "$venv"
  "$python" -m venv --without-pip "$venv"
  "$1" -m pip --python "$venv/bin/python" install --quiet --no-deps -r "$list"
  echo "$shared" >"$(echo "$venv"/lib/python*/site-packages)/shared.pth"
  echo "$wanted" >"$venv/.installed"
done
