# shellcheck shell=bash
# A run beside its bucket: what is there comes first, what is made goes there, a stop is passed on. To be sourced.
#
# A checkpoint is named in checkpoints.sent once all of it is in the bucket; one that is not named is not taken back.
# Checkpoints go before the rest, and the list after both: metrics and records are never older than what is resumed from.

FOLDER=runs/$LAUNCH_NAME

# mirror FROM TO [checkpoint|rest]: copies a folder. checkpoint: what TO has beyond it goes; rest: all but checkpoints.
mirror() {
  case $LAUNCH_BUCKET:${3:-} in
    gs:*:checkpoint) run gcloud storage rsync --recursive --delete-unmatched-destination-objects "$1" "$2" ;;
    gs:*:rest) run gcloud storage rsync --recursive '--exclude=^checkpoints.*|.*\.unfinished$' "$1" "$2" ;;
    gs:*) run gcloud storage rsync --recursive "$1" "$2" ;;
    s3:*:checkpoint) run aws s3 sync --delete "$1" "$2" ;;
    s3:*:rest) run aws s3 sync '--exclude=checkpoints*' '--exclude=*.unfinished' "$1" "$2" ;;
    s3:*) run aws s3 sync "$1" "$2" ;;
  esac
}

put() {
  case $LAUNCH_BUCKET in
    gs:*) run gcloud storage cp "$1" "$2" ;;
    s3:*) run aws s3 cp "$1" "$2" ;;
  esac
}

# Copies what is new to the bucket. Only process 0 has what is to be kept.
push() {
  local path step failed=0 there=$LAUNCH_BUCKET/$LAUNCH_NAME sent=$FOLDER/checkpoints.sent
  if [ -z "$LAUNCH_BUCKET" ] || [ "${LAUNCH_PROCESS:-0}" != 0 ]; then return 0; fi
  if [ -n "$DRY_RUN" ]; then
    printf '# of each new checkpoint, here step 4:\n' >&3
    mirror "$FOLDER/checkpoints/4" "$there/checkpoints/4" checkpoint
  else
    [ -d "$FOLDER" ] || return 0
    touch "$sent" || return 1
    for path in "$FOLDER"/checkpoints/*; do
      step=${path##*/}
      case $step in "" | *[!0-9]*) continue ;; esac # a checkpoint's name is its step; others are not whole
      if grep -qx "$step" "$sent"; then continue; fi
      if mirror "$path" "$there/checkpoints/$step" checkpoint; then
        printf '%s\n' "$step" >> "$sent"
      elif [ -d "$path" ]; then # it may have been deleted while it was copied: no newer one lacks then
        failed=1
      fi
    done
  fi
  mirror "$FOLDER" "$there" rest || failed=1
  if [ "$failed" = 0 ]; then put "$sent" "$there/checkpoints.sent" || failed=1; fi
  if [ "$failed" != 0 ]; then
    note "the copy to $there failed; it is tried again"
    return 1
  fi
}

# Makes sure of the bucket, so that a run whose results cannot be kept does not start.
open_bucket() {
  local mark=runs/.launch-$LAUNCH_NAME.txt
  if [ -z "$DRY_RUN" ]; then
    mkdir -p runs
    printf '%s\n' "$LAUNCH_NAME $LAUNCH_CONFIG" > "$mark"
  fi
  put "$mark" "$LAUNCH_BUCKET/$LAUNCH_NAME/launch.txt" || die "$LAUNCH_BUCKET cannot be written to (above)"
}

# Takes back what an earlier machine left. A run folder that is here already is newer, and stays as it is. Only process 0
# reads it.
pull() {
  local part=runs/.pull-$LAUNCH_NAME there=$LAUNCH_BUCKET/$LAUNCH_NAME path step
  if [ -z "$LAUNCH_BUCKET" ] || [ "${LAUNCH_PROCESS:-0}" != 0 ]; then return 0; fi
  open_bucket
  if [ -z "$DRY_RUN" ] && [ -d "$FOLDER" ]; then return 0; fi
  run rm -rf "$part"
  run mkdir -p "$part/checkpoints"
  mirror "$there" "$part" || die "$there cannot be read (above); nothing was started"
  if [ -n "$DRY_RUN" ]; then
    printf '# checkpoints that are not named in checkpoints.sent are left out\n' >&3
    run mv "$part" "$FOLDER"
    return 0
  fi
  touch "$part/checkpoints.sent"
  for path in "$part"/checkpoints/*; do
    step=${path##*/}
    if ! grep -qx -e "$step" "$part/checkpoints.sent"; then rm -rf "$path"; fi
  done
  mv "$part" "$FOLDER"
}

# Builds the index of the corpus, unless it is there.
build_index() {
  [ -z "$LAUNCH_CORPUS" ] || run "$LAUNCH_PYTHON" -m jaxsearchrl.search build "$LAUNCH_CORPUS"
}

# SIGTERM goes to this process alone (docker stop, kill) or to all of a machine or group (a shutdown). The program takes a
# second one as "at once", so it is passed on only if a bystander that does nothing has not got it.
pass_on() {
  STOPPED=1
  sleep 1
  if kill -0 "$BYSTANDER" 2> /dev/null; then kill -TERM "$PROGRAM" 2> /dev/null || true; fi
}

# Runs a command to its end, copies on the way and afterwards. Ctrl-C and SIGTERM ask it to save and stop; a second one
# ends it at once. Returns its status; 124 when the time was over, 143 when it was asked to stop.
supervise() {
  local limit every next status=0 pusher="" over=""
  if [ -n "$DRY_RUN" ]; then
    run "$@"
    [ -z "$LAUNCH_BUCKET" ] || printf '# every %s minutes, and at the end:\n' "$LAUNCH_SYNC_MINUTES" >&3
    push
    return 0
  fi
  limit=$(seconds "$LAUNCH_MAX_HOURS" 3600)
  every=$(seconds "$LAUNCH_SYNC_MINUTES" 60)
  limit=$((SECONDS + limit)) next=$((SECONDS + every))
  STOPPED=
  set -m # a process group of its own: Ctrl-C reaches this script only
  sleep $((limit - SECONDS + 3600)) > /dev/null 2>&1 &
  BYSTANDER=$!
  disown "$BYSTANDER"
  "$@" < /dev/null &
  PROGRAM=$!
  set +m
  trap pass_on TERM INT HUP
  while kill -0 "$PROGRAM" 2> /dev/null; do
    sleep 1 &
    wait $! || true
    if [ "$SECONDS" -ge "$limit" ]; then
      note "the time is over (--max_hours=$LAUNCH_MAX_HOURS): the run is asked to save and stop"
      over=1 limit=$((SECONDS + 900)) # a second request, should it not follow the first
      kill -TERM "$PROGRAM" 2> /dev/null || true
    fi
    if [ -n "$pusher" ] && ! kill -0 "$pusher" 2> /dev/null; then pusher=""; fi
    if [ -z "$pusher" ] && [ "$SECONDS" -ge "$next" ]; then
      next=$((SECONDS + every))
      push &
      pusher=$!
    fi
  done
  wait "$PROGRAM" || status=$?
  kill "$BYSTANDER" 2> /dev/null || true
  if [ -n "$pusher" ]; then wait "$pusher" || true; fi
  push || push || {
    note "$FOLDER is here, but not all of it is in $LAUNCH_BUCKET"
    [ "$status" != 0 ] || status=1
  }
  if [ -n "$over" ]; then return 124; fi
  if [ -n "$STOPPED" ]; then return 143; fi
  return "$status"
}
