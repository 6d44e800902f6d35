#!/usr/bin/env bash
# Create .venv-sdk/<name> for each list of tests/moto_harness/environments: the oldest and newest SageMaker Python SDK of
# each major version, in which exported cells are run. Environments that match their list are not created again.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
lists=tests/moto_harness/environments
release=$("$python" -c 'import sys; print(sys.base_prefix, sys.version)')

for list in "$lists"/v*.txt; do
  name=$(basename "$list" .txt)
  venv=.venv-sdk/$name
  # An environment cannot change its Python or move to another folder.
  wanted=$(echo "$PWD $release" | cat - "$lists/shared.txt" "$list" | cksum)
  [ "$(cat "$venv/.installed" 2>/dev/null)" = "$wanted" ] && continue
  echo "creating $venv"
  rm -rf "$venv"
  "$python" -m venv --without-pip "$venv"
  # The pip of the test environment installs into all of them, so that they contain only packages that cells need.
  "$1" -m pip --python "$venv/bin/python" install --quiet --no-deps -r "$lists/shared.txt" -r "$list"
  echo "$wanted" >"$venv/.installed"
done
