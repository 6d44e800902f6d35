#!/usr/bin/env bash
# Makes the virtual environment $1 with the toolkit that SageMaker's containers start a training script with: a test
# holds our local runs against it. What is there already stays. Its C extension needs a compiler.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$1 wanted="sagemaker-training==5.1.4"

if [ "$(cat "$venv/.installed" 2>/dev/null)" = "$wanted" ]; then
  exit 0
fi
echo "making $venv"
rm -rf "$venv"
"${PYTHON:-python3}" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet "$wanted"
echo "$wanted" >"$venv/.installed"
