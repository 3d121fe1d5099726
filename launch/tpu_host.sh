#!/usr/bin/env bash
# Runs on a host of a TPU VM, called by launch/tpu.sh: a step and the settings. A run goes on when the
# connection breaks; `start` leaves a live one alone, `follow`, `busy` and `alive` look at it.

step=$1
shift
# shellcheck source=launch/common.sh
. "$(dirname "$0")/common.sh"

WORDS=("$@")
read_settings "tpu" "" "$@"
check_run
STATE=runs/.launch/$LAUNCH_NAME # pid, log and status of the run here
[ -n "$DRY_RUN" ] || mkdir -p "$STATE"

attribute() {
  curl --silent --fail --header 'Metadata-Flavor: Google' \
    "http://metadata.google.internal/computeMetadata/v1/instance/attributes/$1"
}

# After a reboot another process may have its number.
lives() { [ -f "$STATE/pid" ] && grep -qs tpu_host.sh "/proc/$(cat "$STATE/pid")/cmdline"; }

case $step in
  install) # uv brings its own Python: the machine's may be too old
    run python3 -m pip install --user --quiet uv
    run "$HOME/.local/bin/uv" venv --quiet --allow-existing --python 3.11 .venv
    run "$HOME/.local/bin/uv" pip install --quiet --python .venv/bin/python -e '.[tpu]'
    ;;
  data)
    run mkdir -p data
    run gcloud storage rsync --recursive "$LAUNCH_TPU_DATA" data
    ;;
  start)
    if lives; then
      note "the run is at work here already"
      exit 0
    fi
    rm -f "$STATE/status"
    # Its own session: nothing of it ends with the connection.
    setsid nohup "$SELF" work "${WORDS[@]}" < /dev/null > "$STATE/log" 2>&1 &
    echo $! > "$STATE/pid"
    ;;
  work)
    status=0
    several=()
    case $(attribute worker-network-endpoints) in
      *,*) # JAX finds the other hosts
        export JAXSEARCHRL_HOSTS=auto
        several=(--process="$(attribute agent-worker-number)")
        ;;
    esac
    launch/run.sh --name="$LAUNCH_NAME" --config="$LAUNCH_CONFIG" --bucket="$LAUNCH_BUCKET" --corpus="$LAUNCH_CORPUS" \
      --max_hours="$LAUNCH_MAX_HOURS" --sync_minutes="$LAUNCH_SYNC_MINUTES" --python=.venv/bin/python \
      ${several[@]+"${several[@]}"} -- ${ARGUMENTS[@]+"${ARGUMENTS[@]}"} || status=$?
    echo "$status" > "$STATE/status"
    ;;
  follow)
    [ -f "$STATE/pid" ] || die "no run of the name $LAUNCH_NAME was started here"
    until=()
    if lives; then until=(--follow --pid="$(cat "$STATE/pid")"); fi
    number=$(attribute agent-worker-number)
    tail --lines=+1 "${until[@]}" "$STATE/log" | sed --unbuffered "s/^/[$number] /"
    status=$(cat "$STATE/status" 2> /dev/null || echo 1)
    if [ "$status" != 0 ]; then note "the run ended with status $status"; fi
    exit "$status"
    ;;
  busy) lives ;;
  alive) lives || [ "$(cat "$STATE/status" 2> /dev/null)" = 0 ] ;; # or ended well
  *) die "unknown step $step" ;;
esac
