#!/usr/bin/env bash
# Runs a command next to four busy processes, which end with it: `loaded.sh COMMAND...`. All of them are in one session
# and have one niceness, because Linux divides the processors among sessions first.
set -euo pipefail
renice -n 19 -p $$ >/dev/null
for _ in 1 2 3 4; do
  (while kill -0 $$; do :; done) >/dev/null 2>&1 &
done
"$@"
