#!/usr/bin/env bash
# Runs a part of the checks, `part.sh NAME COMMAND...`, and prints its time. Its output is printed only if it fails.
name=$1
shift
if output=$("$@" 2>&1); then
  echo "$name: $SECONDS s"
else
  status=$?
  printf '%s: failed after %s s\n%s\n' "$name" "$SECONDS" "$output"
  exit "$status"
fi
