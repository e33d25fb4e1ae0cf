#!/usr/bin/env bash
# Everything that must hold before a change goes in: lint, format, types, tests. Further arguments go to pytest.
#   bash scripts/test.sh -k plan
#   bash scripts/test.sh cu13       # instead: the contracts on the packages of requirements/dev-cu13.txt, in .venv-cu13
#   bash scripts/test.sh dali24     # likewise: DALI 2.4 with nvImageCodec 0.9
# Tests that measure what the machine does run alone at the end, if no arguments are given: pytest -n 0 -m alone
# Without a GPU the GPU tests are left out; with FAIL_WITHOUT_CUDA=1 they fail instead.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

# What other versions of DALI, nvImageCodec, PyTorch and CuPy could break.
CONTRACTS=(
  tests/backends/test_contract.py tests/backends/test_dali.py tests/backends/test_dali_graph.py tests/loader/test_mixing_kernels.py
  tests/backends/test_decoding.py tests/backends/test_dali_kernels.py tests/backends/test_nvimagecodec_regions.py
  tests/loader/test_decode_probe.py tests/system/test_provenance.py tests/tools/doctor/test_doctor_software.py -k "not tfdata"
)

use() {
  setup "$1"
  PATH=$PWD/$(environment "$1")/bin:$PATH
}

case ${1:-} in
  cu13 | dali24)
    use "dev-$1"
    pytest "${CONTRACTS[@]}" "${@:2}"
    exit
    ;;
esac

use dev
ruff check .
ruff format --check .
mypy
pytest "$@"
if [ $# = 0 ]; then pytest -n 0 -m alone; fi
