#!/usr/bin/env bash
# Build js/ into smp_advisor/static and smp_advisor/labextension, unless they exist and js/ has not changed.
# Requires npm, and jupyter-builder on PATH.
set -euo pipefail
cd "$(dirname "$0")/../js"

# The bundler of the extension requires this version; an older Node fails there without a useful message.
recent='const [major, minor] = process.versions.node.split(".").map(Number);
  process.exit(major > 22 || (major === 22 && minor >= 12) || (major === 20 && minor >= 19) ? 0 : 1)'
if ! command -v npm >/dev/null || ! node -e "$recent"; then
  echo "building the front end requires npm and Node 20.19, 22.12 or newer; installed: $(node --version 2>/dev/null || echo none)" >&2
  exit 1
fi

locked=$(cat package.json package-lock.json | cksum)
if [ "$(cat node_modules/.locked 2>/dev/null)" != "$locked" ]; then
  echo "installing the front end's packages"
  npm ci --no-audit --no-fund --loglevel=error
  echo "$locked" >node_modules/.locked
fi

sources=$(find . \( -name node_modules -o -name lib \) -prune -o -type f -print | LC_ALL=C sort | xargs cksum | cksum)
if [ "$(cat node_modules/.built 2>/dev/null)" != "$sources" ] || [ ! -s ../smp_advisor/static/widget.css ] || [ ! -e ../smp_advisor/labextension/package.json ]; then
  echo "building the front end"
  npm run --silent build:prod
  echo "$sources" >node_modules/.built
fi
