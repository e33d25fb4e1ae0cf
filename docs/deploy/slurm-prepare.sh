#!/usr/bin/env bash
# Prepares images by an array job of eight parts, and merges them when all have ended: bash slurm-prepare.sh
# OUT and the images lie in folders that all machines share. A part that failed is run again by `sbatch --array=3 …`; it continues.
set -euo pipefail

PARTS=8
OPTIONS="data.root=/shared/imagenet out=/shared/imagenet_shards to=shards resize=256"

array=$(sbatch --parsable --array=1-$PARTS --cpus-per-task=16 --time=04:00:00 --job-name=prepare \
  --wrap "srun dali-pipes prepare $OPTIONS part=\$SLURM_ARRAY_TASK_ID/$PARTS")
sbatch --dependency="afterok:$array" --cpus-per-task=4 --time=01:00:00 --job-name=merge \
  --wrap "srun dali-pipes prepare $OPTIONS part=merge"
