#!/usr/bin/env bash
# Everything that only a GPU can show, in less than ten minutes: checks, tests, settings, comparisons, training. docs/gpu-check.md
#   bash scripts/gpu_check.sh OUT data.train=IMAGES [parts=[loader,suite]] [minutes=4]
# Runs with the Python that PYTHON names, or python3, and what that finds: it installs nothing and needs no network.
set -euo pipefail
if [ $# -lt 2 ]; then
  echo "usage: bash scripts/gpu_check.sh OUT data.train=IMAGES [option=value …]; OUT is a new folder for the results" >&2
  exit 2
fi
out=$1
shift
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export PYTHONPATH=$root:$root/scripts${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
python=${PYTHON:-python3}
if ! missing=$("$python" -c 'import hydra, nvidia.dali, torch' 2>&1); then
  echo "error: $python lacks a package (${missing##*$'\n'}); PYTHONPATH may name a folder that holds DALI and Hydra" >&2
  exit 2
fi
exec "$python" -m gpu_check "out=$out" "$@"
