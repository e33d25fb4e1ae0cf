#!/usr/bin/env bash
# Everything that must hold before a change goes in: lint, format, types, tests. Further arguments go to pytest.
#   bash scripts/test.sh -k plan
# Tests that measure what the machine does run alone at the end, if no arguments are given: pytest -n 0 -m alone
# Without a GPU the GPU tests are skipped; with FAIL_WITHOUT_CUDA=1 they fail instead.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
setup dev
export PATH=$PWD/.venv/bin:$PATH
ruff check .
ruff format --check .
mypy
pytest "$@"
if [ $# = 0 ]; then pytest -n 0 -m alone; fi
