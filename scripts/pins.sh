#!/usr/bin/env bash
# Write constraints.txt from the environment of the Python $1.
set -euo pipefail
cd "$(dirname "$0")/.."
{
  sed -n '/^#/p' constraints.txt
  # Without this package, and without the +cpu of a local build.
  "$1" -m pip freeze --all --exclude pip --exclude smp-advisor | sed 's/+.*//' | LC_ALL=C sort --ignore-case
} >constraints.new
mv constraints.new constraints.txt
