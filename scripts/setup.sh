# Sourced by the other scripts: makes .venv with the hash-locked packages of requirements/$1.txt, if it is not there yet.
# Needs Python 3.11 or newer and nothing else. PYTHON names the interpreter to use.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

find_python() {
  local python
  for python in ${PYTHON:-python3 python3.11 python3.12 python3.13}; do
    if "$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$python"
      return
    fi
  done
  echo "error: no Python 3.11 or newer with venv found; install one (Debian: apt install python3-venv), or name it: PYTHON=/path bash $0" >&2
  return 2
}

setup() {
  local lock=requirements/$1.txt stamp=.venv/.installed-$1
  if [ -f "$stamp" ] && cmp -s <(cat "$lock" pyproject.toml) "$stamp"; then
    return
  fi
  local python
  python=$(find_python) || exit 2
  echo "Setting up .venv with $("$python" --version) (about 9 GB, most of it CUDA libraries; once)" >&2
  [ -x .venv/bin/python ] || "$python" -m venv .venv
  .venv/bin/pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements/uv.txt
  export VIRTUAL_ENV=$PWD/.venv
  .venv/bin/uv pip install --quiet --require-hashes --build-constraints requirements/build.txt --requirement "$lock"
  .venv/bin/uv pip install --quiet --no-deps --build-constraints requirements/build.txt --editable .
  cat "$lock" pyproject.toml >"$stamp"
}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then setup "${1:-base}"; fi
