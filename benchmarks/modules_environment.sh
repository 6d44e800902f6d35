#!/usr/bin/env bash
# modules_environment.sh DIR: an environment with the libraries of profiling_modules.txt, on top of the test environment.
# Then: DIR/bin/python benchmarks/profiling_coverage.py --results results.jsonl
set -euo pipefail
cd "$(dirname "$0")/.."
base=$PWD/.venv-test
"$base/bin/python" -m venv --without-pip "$1"
packages=$("$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
"$base/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$packages/base.pth"
"$1/bin/python" -m pip install --no-deps -r benchmarks/profiling_modules.txt
# The compiled extensions on PyPI are for CUDA and cannot be loaded next to a CPU build of torch.
rm -rf "$packages"/torchvision/*.so "$packages"/torchaudio/lib
echo "$PWD" > "$packages/smp_advisor.pth"
