# Sourced by the other scripts: makes .venv with the hash-locked packages of requirements/$1.txt, if it is not there yet.
#   bash scripts/setup.sh train             # CUDA 12, into .venv; base without a name
#   bash scripts/setup.sh train-cu13        # CUDA 13, into .venv-cu13: a lock NAME-VARIANT goes into .venv-VARIANT
#   bash scripts/setup.sh train-python3.13  # the lock of train on this Python, into .venv-python3.13
# Needs Python 3.11, 3.12, 3.13 or 3.14 and nothing else. PYTHON names the interpreter to use.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

find_python() {
  local python
  for python in ${PYTHON:-python3 python3.11 python3.12 python3.13 python3.14}; do
    if "$python" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null; then
      echo "$python"
      return
    fi
  done
  echo "error: no Python 3.11, 3.12, 3.13 or 3.14 with venv found; install one (Debian: apt install python3-venv), or name it: PYTHON=/path bash $0" >&2
  return 2
}

# The folder of a lock's packages: .venv of dev, .venv-cu13 of dev-cu13.
environment() {
  case $1 in
    *-*) echo ".venv-${1#*-}" ;;
    *) echo .venv ;;
  esac
}

# What a lock installs; markers of Python's version differ between locks of the same package.
locked() {
  sed 's/ ; .*/ \\/' "$1" | grep -v '^ *#' | cat - pyproject.toml
}

setup() {
  local lock=requirements/${1%-python3.*}.txt venv stamp python
  if [ ! -f "$lock" ]; then
    echo "error: there is no $lock; take the name of a lock in requirements/: base, train, train-cu13, …" >&2
    exit 2
  fi
  venv=$(environment "$1")
  stamp=$venv/.installed
  if [ -f "$stamp" ] && ! grep -qvxFf "$stamp" <(locked "$lock"); then
    return  # this lock, or a larger one: dev holds all of train, and train all of base
  fi
  case $1 in *-python3.*) PYTHON=${1#*-} ;; esac
  python=$(find_python) || exit 2
  echo "Setting up $venv with $("$python" --version) (about 9 GB, most of it CUDA libraries; once)" >&2
  # each step by `&&`: bash ignores `set -e` where setup itself stands before one
  if [ ! -x "$venv/bin/python" ]; then "$python" -m venv "$venv" || return; fi
  export VIRTUAL_ENV=$PWD/$venv
  "$venv/bin/pip" install --quiet --disable-pip-version-check --require-hashes --requirement requirements/uv.txt &&
    "$venv/bin/uv" pip install --quiet --compile-bytecode --require-hashes --build-constraints requirements/build.txt --requirement "$lock" &&
    "$venv/bin/uv" pip install --quiet --no-deps --build-constraints requirements/build.txt --editable . &&
    locked "$lock" >"$stamp"
}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then setup "${1:-base}"; fi
