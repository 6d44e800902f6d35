#!/usr/bin/env bash
# Create .venv-lab/oldest with the oldest supported JupyterLab and Notebook, as listed in tests/browser/environments.
# An environment that matches its list is not created again. $1: Python whose pip installs into it.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
list=tests/browser/environments/oldest.txt
venv=.venv-lab/oldest
key=$("$python" -c 'import os, sys; print(os.getcwd(), sys.base_prefix, sys.version)' | cat - "$list" | cksum)

[ "$(cat "$venv/.installed" 2>/dev/null)" = "$key" ] && exit
echo "creating $venv"
rm -rf "$venv"
"$python" -m venv --without-pip "$venv"
"$1" -m pip --python "$venv/bin/python" install --quiet --no-deps -r "$list"
echo "$key" >"$venv/.installed"
