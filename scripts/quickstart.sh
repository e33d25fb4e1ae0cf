#!/usr/bin/env bash
# From nothing to a measured comparison: makes a demo set of JPEGs and times DALI against the CPU DataLoader on it.
#   bash scripts/quickstart.sh                          the demo set
#   bash scripts/quickstart.sh data.train=/my/images    your own folder, one subfolder for each class
#   bash scripts/quickstart.sh pairs=6                  with a control and intervals, a few minutes
# Further arguments go to dali-pipes benchmark: arms=[torch,dali], batch_size=128, …
set -euo pipefail
here=$PWD
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
root=$PWD
setup base
case " $* " in
  *" data."*) data=() ;;
  *) data=(data=demo) ;;
esac
cd "$here"
# as many workers and threads as cores: the search for the fastest numbers takes minutes
quick=(pairs=1 min_seconds=3 max_warmup_seconds=8 "loaders.torch.num_workers=$(nproc)")
case " $* " in
  *" loader="*) ;;
  *) quick+=("loader.num_threads=$(nproc)") ;;
esac
"$root/.venv/bin/dali-pipes" benchmark "${data[@]}" "${quick[@]}" "out=$root/runs/quickstart" "$@" >/dev/null
case " $* " in
  *" pairs="*) ;;
  *) echo "One pair, to be quick: a first impression. With a control and intervals: bash scripts/quickstart.sh pairs=6" >&2 ;;
esac
