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
# shellcheck source=launch/supervise.sh
. launch/supervise.sh

others=$LAUNCH_COORDINATOR$LAUNCH_PROCESSES
if [ -z "$others" ] && [ "${JAXSEARCHRL_HOSTS:-}" = auto ]; then # JAX finds them; --process says only who copies
  [ -z "$LAUNCH_PROCESS" ] || check_count PROCESS
elif [ -n "$others$LAUNCH_PROCESS" ]; then
  missing=
  [ -n "$LAUNCH_COORDINATOR" ] || missing="$missing --coordinator=ADDRESS:PORT (of process 0)"
  [ -n "$LAUNCH_PROCESSES" ] || missing="$missing --processes=N (of all machines)"
  [ -n "$LAUNCH_PROCESS" ] || missing="$missing --process=I (of this machine, from 0)"
  [ -z "$missing" ] || die "--coordinator, --processes and --process go together; missing:$missing"
  check COORDINATOR '[A-Za-z0-9._-]+:[0-9]+' "address:port of process 0"
  check_count PROCESSES
  check_count PROCESS
  [ "$LAUNCH_PROCESS" -lt "$LAUNCH_PROCESSES" ] || die "--process=$LAUNCH_PROCESS: from 0 to --processes minus 1"
  run export "JAX_COORDINATOR_ADDRESS=$LAUNCH_COORDINATOR" "JAX_NUM_PROCESSES=$LAUNCH_PROCESSES" "JAX_PROCESS_ID=$LAUNCH_PROCESS"
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
