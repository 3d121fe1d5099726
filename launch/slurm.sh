#!/usr/bin/env bash
# Submits a run to Slurm, one process a node with all of the node's GPUs. Run it on a login node, in an activated environment
# that the nodes see too. The job ends after --max_hours; five minutes before, it is asked to save. Preempted, it is queued
# again and goes on; after its end the same command goes on.
#
#   launch/slurm.sh --name=first-run --config=configs/demo.py --slurm_partition=gpu -- --config.train.steps=4
#
# A job of that name that is queued or running is left alone, and no second one submitted. --dry-run prints the commands.
# Settings and defaults: launch/defaults.sh.

# shellcheck source=launch/common.sh
. "$(dirname "$0")/common.sh"

read_settings "slurm" "" "$@"
check_run
for key in SLURM_NODES SLURM_GPUS SLURM_CPUS; do check $key '[1-9][0-9]{0,3}' "a whole number from 1 on"; done
check SLURM_PARTITION '([A-Za-z0-9_.,-]+)?' "a partition's name"
check SLURM_ACCOUNT '([A-Za-z0-9_.-]+)?' "an account's name"
needs sbatch "run this on a login node of the cluster"

jobs=$(ask squeue --me --noheader --format=%i --name="$LAUNCH_NAME")
if [ -n "$jobs" ]; then
  note "$LAUNCH_NAME is queued or running as job ${jobs//$'\n'/, }: nothing was submitted; scancel ends it"
  exit 0
fi
minutes=$(seconds "$LAUNCH_MAX_HOURS" 60)
[ "$minutes" -ge 10 ] || die "--max_hours=$LAUNCH_MAX_HOURS: at least 10 minutes, of which five are for saving"
job=(launch/slurm_job.sh --name="$LAUNCH_NAME" --config="$LAUNCH_CONFIG" --bucket="$LAUNCH_BUCKET" --corpus="$LAUNCH_CORPUS"
  --max_hours="$LAUNCH_MAX_HOURS" --sync_minutes="$LAUNCH_SYNC_MINUTES" --python="$LAUNCH_PYTHON"
  --slurm_gpus="$LAUNCH_SLURM_GPUS" --slurm_cpus="$LAUNCH_SLURM_CPUS" -- ${ARGUMENTS[@]+"${ARGUMENTS[@]}"})
run mkdir -p runs
run sbatch --job-name="$LAUNCH_NAME" --nodes="$LAUNCH_SLURM_NODES" --ntasks-per-node=1 \
  --gpus-per-node="$LAUNCH_SLURM_GPUS" --cpus-per-task="$LAUNCH_SLURM_CPUS" \
  ${LAUNCH_SLURM_PARTITION:+--partition="$LAUNCH_SLURM_PARTITION"} ${LAUNCH_SLURM_ACCOUNT:+--account="$LAUNCH_SLURM_ACCOUNT"} \
  --time="$minutes" --signal=TERM@300 --requeue --open-mode=append --output="runs/$LAUNCH_NAME.log" --chdir="$ROOT" \
  --wrap="$(quoted "${job[@]}")"
