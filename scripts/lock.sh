#!/usr/bin/env bash
# Makes the hash-locked requirements from pyproject.toml, for every Python from 3.11 on:
#   bash scripts/lock.sh            # all but `newest`, with the newest versions that pyproject.toml and requirements/*.in allow
#   bash scripts/lock.sh --added    # only adds what pyproject.toml newly asks for; all other versions stay
#   bash scripts/lock.sh --newest   # renews dev-newest.txt, which nothing holds back; says what moved, what the others hold back,
#                                   # and which contracts broke
# Needs uv (https://docs.astral.sh/uv/); `.venv/bin/uv` will do.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PATH:$PWD/.venv/bin
upgrade=--upgrade

compile() {
  local out=requirements/$1.txt
  shift
  uv pip compile "$@" --output-file "$out" --universal --python-version 3.11 --generate-hashes \
    --quiet --no-emit-index-url --custom-compile-command "bash scripts/lock.sh"
}

lock() { compile "$@" $upgrade; }

# NAME-VARIANT.txt is NAME.txt but for what requirements/VARIANT.in asks for, and what follows from that.
lock_variant() {
  local name=$1 variant=$2
  shift 2
  cp "requirements/$name.txt" "requirements/$name-$variant.txt"
  compile "$name-$variant" pyproject.toml --constraints "requirements/$variant.in" "$@"
}

lock_all() {
  local extra
  lock uv - <<<uv
  lock build requirements/build.in
  lock container requirements/container.in
  lock base pyproject.toml --extra cu12 --constraints requirements/cu12.in
  for extra in dev train s3 cluster coco docs; do
    lock "$extra" pyproject.toml --extra "$extra" --extra cu12 --constraints requirements/base.txt
  done

  lock_variant base cu13 --extra cu13
  lock_variant train cu13 --extra train --extra cu13
  lock_variant dev cu13 --extra dev --extra cu13
  lock_variant dev dali24 --extra dev --extra cu12
}

versions() { sed -n 's/^\([a-z0-9._-]*\)==\([^ ;]*\).*/\1 \2/p' "$1" | sort; }

lock_newest() {
  local old new failed
  old=$(versions requirements/dev-newest.txt 2>/dev/null || true)
  lock dev-newest pyproject.toml --extra dev --extra cu13 --extra torchcodec
  new=$(versions requirements/dev-newest.txt)
  echo "Moved (< before, > now):"
  diff <(echo "$old") <(echo "$new") | grep '^[<>]' || echo "  nothing"

  failed=0
  bash scripts/test.sh newest || failed=$?
  echo "Later versions there are, which another package of the lock holds back:"
  uv pip list --outdated --python .venv-newest/bin/python
  if [ $failed != 0 ]; then
    echo "error: with these versions the tests that are named FAILED above broke" >&2
    return $failed
  fi
  echo "Nothing broke."
}

case ${1:-} in
  "") lock_all ;;
  --added) upgrade="" && lock_all ;;
  --newest) lock_newest ;;
  *) echo "error: $1 is no option; none, --added or --newest" >&2 && exit 2 ;;
esac
