#!/usr/bin/env bash
# Regenerates the hash-locked requirements from pyproject.toml with the newest versions that its ranges allow, for every Python
# from 3.11 on:
#   bash scripts/lock.sh
# Needs uv (https://docs.astral.sh/uv/); `.venv/bin/uv` will do.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PATH:$PWD/.venv/bin

lock() {
  local out=requirements/$1.txt
  shift
  uv pip compile "$@" --output-file "$out" --universal --python-version 3.11 --generate-hashes \
    --upgrade --quiet --no-emit-index-url --custom-compile-command "bash scripts/lock.sh"
}

lock uv - <<<uv
lock build requirements/build.in
lock container requirements/container.in
lock base pyproject.toml --constraints requirements/constraints.in
for extra in dev train tf s3 cluster; do
  lock "$extra" pyproject.toml --extra "$extra" --constraints requirements/base.txt
done
