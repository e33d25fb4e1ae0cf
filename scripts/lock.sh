#!/usr/bin/env bash
# Regenerates the hash-locked requirements from pyproject.toml with the newest versions that its ranges allow, for every Python
# from 3.11 on:
#   bash scripts/lock.sh
# Needs uv (https://docs.astral.sh/uv/); `.venv/bin/uv` will do.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PATH:$PWD/.venv/bin

compile() {
  local out=requirements/$1.txt
  shift
  uv pip compile "$@" --output-file "$out" --universal --python-version 3.11 --generate-hashes \
    --quiet --no-emit-index-url --custom-compile-command "bash scripts/lock.sh"
}

lock() { compile "$@" --upgrade; }

# NAME-VARIANT.txt is NAME.txt but for what requirements/VARIANT.in replaces, and what follows from that.
lock_variant() {
  local name=$1 variant=$2
  shift 2
  cp "requirements/$name.txt" "requirements/$name-$variant.txt"
  compile "$name-$variant" pyproject.toml "requirements/$variant.in" --overrides "requirements/$variant.in" "$@"
}

lock uv - <<<uv
lock build requirements/build.in
lock container requirements/container.in
lock base pyproject.toml --constraints requirements/constraints.in
for extra in dev train tf s3 cluster coco; do
  lock "$extra" pyproject.toml --extra "$extra" --constraints requirements/base.txt
done

lock_variant base cu13
lock_variant train cu13 --extra train
lock_variant dev cu13 --extra dev
lock_variant dev dali24 --extra dev
