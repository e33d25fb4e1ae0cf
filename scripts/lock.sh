#!/usr/bin/env bash
# Regenerates the hash-locked requirements from pyproject.toml, for every Python from 3.11 on:
#   bash scripts/lock.sh            newest versions that the ranges allow
# Needs uv (https://docs.astral.sh/uv/).
set -euo pipefail
cd "$(dirname "$0")/.."

lock() {
  local out=requirements/$1.txt
  shift
  uv pip compile pyproject.toml "$@" --output-file "$out" --universal --python-version 3.11 --generate-hashes \
    --upgrade --quiet --no-emit-index-url --custom-compile-command "bash scripts/lock.sh"
}

lock base --constraints requirements/constraints.in
for extra in dev train tf cluster; do
  lock "$extra" --extra "$extra" --constraints requirements/base.txt
done
