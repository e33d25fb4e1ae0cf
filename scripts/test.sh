#!/usr/bin/env bash
# What must hold before a change goes in. Sets up .venv first, if it is not there.
#   bash scripts/test.sh                # lint, types, the book, and the quick tests of everything users rely on: minutes
#   bash scripts/test.sh -k plan        # only pytest, with these arguments, in one process; -n logical takes all cores
#   bash scripts/test.sh book           # only the book of docs/, into book/
#   bash scripts/test.sh all            # with what is slow by nature: whole programs, pages in a browser, SLURM, planted causes; and
#                                         image and newest, if what they depend on has changed since they last passed
#   bash scripts/test.sh release        # by hand, before a release: all, the dry run of gpu_check, and each of the following
#   bash scripts/test.sh image          # builds and runs the container image
#   bash scripts/test.sh cu13           # the contracts on the packages of requirements/dev-cu13.txt, in .venv-cu13
#   bash scripts/test.sh dali24         # likewise: DALI 2.4 with nvImageCodec 0.9
#   bash scripts/test.sh newest         # likewise: the newest PyTorch, DALI, CuPy and the libraries that people train with
#   bash scripts/test.sh python3.13     # likewise: another Python, in .venv-python3.13
# Without a GPU the GPU tests run on a simulated one (tests/simulated_gpu), but for those marked gpu_pixels; with FAIL_WITHOUT_CUDA=1
# they fail instead.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
unset PYTHONDONTWRITEBYTECODE  # the next run starts seconds earlier

# What other versions of Python, DALI, nvImageCodec, PyTorch and CuPy could break.
CONTRACTS=(
  tests/backends/test_contract.py tests/backends/test_dali.py tests/backends/test_dali_graph.py tests/loader/test_mixing_kernels.py
  tests/backends/test_decoding.py tests/backends/test_dali_kernels.py tests/backends/test_nvimagecodec_regions.py
  tests/backends/test_jpeg_decoders.py tests/tools/doctor/test_decoding_check.py tests/system/test_provenance.py tests/tools/doctor/test_doctor_software.py
  tests/simulated_gpu/test_fat_binaries.py
)
# Likewise, of what runs on a GPU: minutes.
SIMULATED_CONTRACTS=(
  tests/gpu/test_{streams,lifetimes,transfer,waiting,exact,mixing,running_graph,routes}_on_gpu.py tests/backends/test_contract.py
  -k "not kernels_make"
)
VARIANTS=(cu13 dali24 python3.12 python3.13)  # those that only a release tries; `all` has newest

# The functions below join their commands by `&&`: bash ignores `set -e` in a function that is called before one.

# Runs a command, and says at the end of its output how long it took.
step() {
  local start=$SECONDS status=0
  "$@" || status=$?
  echo "$((SECONDS - start)) s: $*" | cut -c 1-120
  return $status
}

use() {
  setup "$@" && PATH=$PWD/$(environment "$1")/bin:$PATH
}

contracts() (
  use "dev-$1" && step pytest "${CONTRACTS[@]}" || return
  if [[ $1 == newest ]]; then
    note_passed newest
    return  # the simulated GPU refuses versions that it was not tried with
  fi
  # nvImageCodec 0.9, which DALI 2.4 has, is refused regions
  [[ $1 == dali24 ]] && SIMULATED_CONTRACTS+=(-k "not regions and not kernels_make")
  simulated "${SIMULATED_CONTRACTS[@]}" -m "needs_cuda and not gpu_pixels and not slow and not alone and not release"
)

# The GPU tests that a GPU without kernels can run; with a real GPU they have run already.
simulated() {
  [[ -e /dev/nvidiactl || -n ${FAIL_WITHOUT_CUDA:-} ]] && return
  step python -m tests.simulated_gpu pytest "$@"
}

# Those of streams, memory, waiting, the contract and bad files: a minute. Here PyTorch's memory is poisoned when it is given back;
# `all` has its own allocator.
simulated_soon() {
  SIMULATED_GPU_POISON=1 simulated tests/gpu/test_{streams,lifetimes,waiting,transfer,mixing}_on_gpu.py tests/loader/test_bad_samples.py \
    tests/backends/test_contract.py -k "not kernels_make" -m "needs_cuda and not gpu_pixels and not compares_pixels and not slow and not alone"
}

lint() {
  step ruff check . && step ruff format --check . && step mypy
}

# Warnings are errors: links that lead nowhere, docstrings that are not understood, pages in no chapter.
book() { step sphinx-build -W --keep-going -q -E docs book; }

# Runs a function beside a command, and shows what it wrote when both have ended.
beside() {
  local function=$1 log status=0 job
  shift
  log=$(mktemp)
  "$function" >"$log" 2>&1 &
  job=$!
  "$@" || status=$?
  wait "$job" || status=$?
  cat "$log"
  rm "$log"
  return $status
}

# What the checks that take many minutes depend on.
depends() {
  case $1 in
    image) echo Dockerfile .dockerignore requirements/{train,build,uv}.txt scripts/container tests/container ;;
    newest) echo requirements/dev-newest.txt dali_pipes/backends ;;
  esac
}

hash_of() {
  find $(depends "$1") -type f -not -path "*/__pycache__/*" | LC_ALL=C sort | xargs sha256sum | sha256sum
}

# Whether a check is due: tests/checked has the hash of the files with which it last passed.
is_due() {
  [[ -n ${RELEASE:-} || $(hash_of "$1") != "$(cat "tests/checked/$1" 2>/dev/null)" ]] && return
  echo "$1: nothing that it depends on has changed since it last passed"
  return 1
}

note_passed() { hash_of "$1" >"tests/checked/$1"; }

# Its tests are skipped where there is no room or no engine, and then none of them says how large the image is.
image() {
  local log
  log=$(mktemp)
  step pytest -n 0 -m "container and not release" $(files_with container) | tee "$log"
  [[ ${PIPESTATUS[0]} == 0 ]] || return
  if grep -q '"image_gb"' "$log"; then note_passed image; fi
}

# Beside the other tests, in one process: every set of the contract of loaders, and what waits for the disk (the image writes 30 GB to
# it, and the environment 9 GB).
contract_image_and_newest() {
  step pytest -n 0 -m "not release" tests/backends/test_contract.py || return
  if is_due image; then image || return; fi
  if is_due newest; then setup dev-newest; fi
}

SETS=(--few 4)  # the most sets of a test with many; a release takes every one
SIMULATED="needs_cuda and not gpu_pixels and not release"
MEMORY_TESTS="gpu/test_memory_on_gpu\|loader/test_cleanup"  # for grep

# What a process holds does not depend on what runs beside it, nor does the memory of a GPU that is simulated in it. One arena of malloc:
# those of threads that come and go stay in pieces, and memory seems to leak (and what other tests have left in a process is counted as
# grown).
simulated_memory() {
  local files
  files=$(files_with alone | grep "$MEMORY_TESTS")
  MALLOC_ARENA_MAX=1 simulated -n 0 -m "$SIMULATED and alone" -k "failed_pipeline" $files &&
    simulated -n 0 -m "$SIMULATED and alone" -k "not failed_pipeline" $files
}

simulated_and_newest() {
  simulated "${SETS[@]}" -m "$SIMULATED and not alone" || return
  if is_due newest; then contracts newest; fi
}

# The files of tests with a mark: importing all others takes half a minute.
files_with() {
  grep -rl --include="test_*.py" "mark\.$1" tests
}

all() {
  # what opens pages in Chromium is skipped on other machines; FAIL_WITHOUT_BROWSER=0 skips it here as well
  export FAIL_WITHOUT_BROWSER=${FAIL_WITHOUT_BROWSER:-1}
  beside book lint
  beside contract_image_and_newest step pytest "${SETS[@]}" -m "not alone and not container and not release"
  MALLOC_ARENA_MAX=1 step pytest -n 0 -m "alone and not release" $(files_with alone | grep "$MEMORY_TESTS")  # as in `simulated_memory`
  step pytest -n 0 -m "alone and not release" $(files_with alone | grep -v "$MEMORY_TESTS")  # they measure what the machine does
  beside simulated_memory simulated_and_newest
  simulated -n 0 -m "$SIMULATED and alone" $(files_with alone | grep -v "$MEMORY_TESTS")
}

release() {
  export RELEASE=1
  SETS=()
  all
  step pytest -m release
  for variant in "${VARIANTS[@]}"; do contracts "$variant"; done
}

case ${1:-} in
  cu13 | dali24 | newest | python3.*) contracts "$1" ;;
  image) use dev && image ;;
  all | release | book) use dev && "$1" ;;
  "") use dev && beside book lint && step pytest --few 2 && simulated_soon ;;
  *) use dev && pytest -n 0 "$@" ;;
esac
