#!/usr/bin/env bash
# Everything that must hold before a change goes in: lint, format, types, tests. Further arguments go to pytest.
#   bash scripts/test.sh -k plan
# Without a GPU the GPU tests are skipped; with FAIL_WITHOUT_CUDA=1 they fail instead.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
setup dev
export PATH=$PWD/.venv/bin:$PATH
ruff check .
ruff format --check .
mypy
pytest "$@"
