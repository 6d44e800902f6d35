#!/usr/bin/env bash
# Makes .venv-sdk/<name> for each list of tests/moto_harness/environments: the oldest and newest SageMaker Python SDK of
# each major version, in which emitted cells are run. What is there already and still as listed is kept.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
lists=tests/moto_harness/environments
release=$("$python" -c 'import sys; print(sys.base_prefix, sys.version)')

for list in "$lists"/v*.txt; do
  name=$(basename "$list" .txt)
  venv=.venv-sdk/$name
  # An environment can neither change its Python nor move to another folder.
  wanted=$(echo "$PWD $release" | cat - "$lists/shared.txt" "$list" | cksum)
  [ "$(cat "$venv/.installed" 2>/dev/null)" = "$wanted" ] && continue
  echo "making $venv"
  rm -rf "$venv"
  "$python" -m venv --without-pip "$venv"
  # pip of the test environment: one for all, and none of them holds what cells do not need.
  "$1" -m pip --python "$venv/bin/python" install --quiet --no-deps --no-compile -r "$lists/shared.txt" -r "$list"
  echo "$wanted" >"$venv/.installed"
done
