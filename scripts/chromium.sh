#!/usr/bin/env bash
# The browser that the tests drive, from Debian, with a font to draw text in.
set -euo pipefail
[ -x /usr/bin/chromium ] && exit

as_root=()
[ "$(id -u)" -eq 0 ] || as_root=(sudo -n)
if ! command -v apt-get >/dev/null || ! "${as_root[@]}" true 2>/dev/null; then
  echo "the browser tests need /usr/bin/chromium: install the packages chromium and fonts-dejavu-core" >&2
  exit 1
fi
echo "installing chromium"
export DEBIAN_FRONTEND=noninteractive
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" apt-get install -qq --yes --no-install-recommends chromium fonts-dejavu-core >/dev/null
