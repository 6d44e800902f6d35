#!/usr/bin/env bash
# Create the virtual environment $1 with the toolkit that starts training scripts in SageMaker's containers. A test
# compares rehearsals with it. An existing environment is not created again. Its C extension requires a compiler.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$1 wanted="sagemaker-training==5.1.4"

if [ "$(cat "$venv/.installed" 2>/dev/null)" = "$wanted" ]; then
  exit 0
fi
echo "creating $venv"
rm -rf "$venv"
"${PYTHON:-python3}" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet "$wanted"
echo "$wanted" >"$venv/.installed"
