#!/usr/bin/env bash
# Trains in a container on this machine: builds the image of launch/Containerfile, mounts runs/ and data/, and stops the
# container with itself. The bucket is served from outside of the container.
#
#   launch/container.sh --name=first-run --config=configs/demo.py -- --config.train.steps=4
#
# Where a container of that name runs already, its log is shown. --dry-run prints the commands. Settings and defaults:
# launch/defaults.sh.

# shellcheck source=launch/common.sh
. "$(dirname "$0")/common.sh"

read_settings "container" "" "$@"
check_run
check_word CONTAINER_EXTRA
check CONTAINER_ENGINE 'docker|podman' "docker or podman"
check CONTAINER_GPUS '(all|[0-9]+|device=[0-9a-zA-Z,-]+)?' "all, a number, device=0,1 or nothing"
engine=$LAUNCH_CONTAINER_ENGINE
needs "$engine" "install it, or name another one by --container_engine="
# shellcheck source=launch/supervise.sh
. launch/supervise.sh

name=jaxsearchrl-$LAUNCH_NAME image=jaxsearchrl:$LAUNCH_CONTAINER_EXTRA
if [ -n "$(ask "$engine" ps --quiet --filter="name=^$name\$")" ]; then
  note "$name runs already; this is its log, and $engine stop $name ends it"
  exec "$engine" logs --follow "$name"
fi
run "$engine" build --file=launch/Containerfile --build-arg=EXTRA="$LAUNCH_CONTAINER_EXTRA" --tag="$image" .
pull
run mkdir -p runs data .cache
LAUNCH_PYTHON=python
set_main
# Half an hour to save: "stop" without it would kill after ten seconds. As this user, so that runs/ stays the user's own.
supervise "$engine" run --rm --init --name="$name" --stop-timeout=1800 ${LAUNCH_CONTAINER_GPUS:+--gpus="$LAUNCH_CONTAINER_GPUS"} \
  --user="$(id -u):$(id -g)" --volume="$ROOT/runs:/app/runs" --volume="$ROOT/data:/app/data" \
  --volume="$ROOT/.cache:/app/.cache" "$image" "${MAIN[@]}"
