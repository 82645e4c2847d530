#!/bin/bash
# Prints the interpreter for a new environment: $PYTHON, or the first of 3.11, 3.12, 3.10 that runs.
# 3.11 comes first because the image of the test cluster is a Debian 12 and takes the same wheels.
set -euo pipefail

runs_310_to_312() {
  "$1" -c 'import sys, venv, ensurepip; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))' >/dev/null 2>&1
}

if [ -n "${PYTHON:-}" ]; then
  candidates=("$PYTHON")
else
  candidates=(python3.11 python3.12 python3.10 python3)
fi
for candidate in "${candidates[@]}"; do
  if runs_310_to_312 "$candidate"; then
    "$candidate" -c 'import sys; print(sys.executable)'
    exit 0
  fi
done
echo "setup: none of ${candidates[*]} is a Python 3.10 to 3.12 with the venv module;" \
  "install one, or name it: make setup PYTHON=/path/to/python3.11" >&2
exit 1
