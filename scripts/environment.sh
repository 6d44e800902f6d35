#!/usr/bin/env bash
# Create or update the virtual environment $1 with this package (editable), its extras $2 and dependency group $3, and
# build the front end, except for the group `unit`, whose tests need none. Parts that are up to date are not built again.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$1 extras=$2 group=$3
python=${PYTHON:-python3}

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
  echo "smp_advisor needs Python 3.11 or newer, and $python is older: select another, for example make PYTHON=python3.12" >&2
  exit 1
fi

# An environment cannot change its Python or move to another folder.
home="$PWD $("$python" -c 'import sys; print(sys.base_prefix, sys.version)')"
if [ "$(cat "$venv/.home" 2>/dev/null)" != "$home" ]; then
  echo "creating $venv"
  rm -rf "$venv"
  "$python" -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet --upgrade 'pip>=25.1' # the first with dependency groups
  echo "$home" >"$venv/.home"
fi

# Compared by content: a fresh clone, or a switch of branches, touches the times of files that did not change.
wanted=$(echo "$extras $group" | cat - pyproject.toml constraints.txt smp_advisor/_version.py | cksum)
installed=$(cat "$venv/.installed" 2>/dev/null || true)
if [ "$installed" != "$wanted" ]; then
  echo "installing the packages of $venv"
  "$venv/bin/python" -m pip install --quiet --constraint constraints.txt --group "$group"
fi

if [ "$group" = unit ]; then
  # The widget reads its files when it is imported; empty ones until the front end is built.
  mkdir -p smp_advisor/static
  touch smp_advisor/static/widget.js smp_advisor/static/widget.css
  if [ "$installed" != "$wanted" ]; then
    SKIP_JUPYTER_BUILDER=1 "$venv/bin/python" -m pip install --quiet --constraint constraints.txt --editable ".${extras:+[$extras]}"
    echo "$wanted" >"$venv/.installed"
  fi
  exit
fi

PATH="$PWD/$venv/bin:$PATH" scripts/frontend.sh

if [ "$installed" != "$wanted" ]; then
  extension="$venv/share/jupyter/labextensions/smp-advisor"
  rm -rf "$extension" # before pip could follow the link below and replace what was built
  SKIP_JUPYTER_BUILDER=1 "$venv/bin/python" -m pip install --quiet --no-build-isolation --constraint constraints.txt --editable ".${extras:+[$extras]}"
  # A link instead of pip's copy, so that JupyterLab loads the front end that was built last.
  rm -rf "$extension" && ln -s "$PWD/smp_advisor/labextension" "$extension"
  echo "$wanted" >"$venv/.installed"
fi
