#!/usr/bin/env bash
# Trains on this machine, all of its GPUs in one process. Started again, the run goes on.
#
#   launch/run.sh --name=first-run --config=configs/demo.py -- --config.train.steps=4
#
# With --bucket=gs://... or s3://... the run folder is copied there, and taken from there where it is missing. On several
# machines: the same command on each, with --coordinator=ADDRESS:PORT of process 0, --processes=N and --process=I.
# --dry-run prints the commands. Settings and defaults: launch/defaults.sh.

# shellcheck source=launch/common.sh
. "$(dirname "$0")/common.sh"

read_settings "" "" "$@"
check_run
check_count PROCESSES
check_count PROCESS
# shellcheck source=launch/supervise.sh
. launch/supervise.sh

if [ -n "$LAUNCH_COORDINATOR" ]; then
  check COORDINATOR '[A-Za-z0-9._-]+:[0-9]+' "address:port of process 0"
  [ "$LAUNCH_PROCESS" -lt "$LAUNCH_PROCESSES" ] || die "--process=$LAUNCH_PROCESS: from 0 to --processes minus 1"
  run export "JAX_COORDINATOR_ADDRESS=$LAUNCH_COORDINATOR" "JAX_NUM_PROCESSES=$LAUNCH_PROCESSES" "JAX_PROCESS_ID=$LAUNCH_PROCESS"
elif [ "$LAUNCH_PROCESSES" != 1 ]; then
  die "--processes=$LAUNCH_PROCESSES needs --coordinator=ADDRESS:PORT of process 0"
fi
case $LAUNCH_BUCKET in
  gs:*) needs gcloud "the bucket needs the Google Cloud SDK" ;;
  s3:*) needs aws "the bucket needs the AWS command line" ;;
esac
needs "$LAUNCH_PYTHON" "activate the environment, or name it by --python="
set_main
pull
build_index
supervise "${MAIN[@]}"
