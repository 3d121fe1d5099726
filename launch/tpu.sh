#!/usr/bin/env bash
# Trains on a TPU VM of one or several hosts: asks for it, installs, runs, shows the log, and deletes it at the end. When
# it is preempted, another one is asked for, and the run goes on from its bucket.
#
#   launch/tpu.sh --name=first-run --bucket=gs://mine/runs --config=configs/demo.py -- --config.train.steps=4
#
# The machine is deleted however this script ends, but for --keep. The same command finds what it started before. Copied
# is what is committed to git. --dry-run prints the commands; --delete deletes the machine of that name and does nothing
# else. Settings and defaults: launch/defaults.sh.

# shellcheck source=launch/common.sh
. "$(dirname "$0")/common.sh"

read_settings "tpu" "keep delete" "$@"
check_run
matches "$LAUNCH_BUCKET" 'gs://.*' || die "--bucket=gs://... is needed: the machine is deleted, what is to stay goes there"
check TPU_DATA '(gs://[a-z0-9][A-Za-z0-9._/-]*)?' "gs://bucket/folder; copy yours there first: gcloud storage rsync --recursive data gs://..."
for key in TPU_TYPE TPU_RUNTIME TPU_ZONE; do check_word $key; done
check TPU_PROJECT '([a-z][a-z0-9:.-]*)?' "a project's id"
check TPU_SERVICE_ACCOUNT '([A-Za-z0-9][A-Za-z0-9@._-]*)?' "an e-mail address"
check TPU_CAPACITY 'spot|on-demand|flex-start' "spot, on-demand or flex-start"
check_hours TPU_QUEUE_HOURS
check_count TPU_MACHINES
check_count TPU_POLL_SECONDS
needs gcloud "install the Google Cloud SDK"

NAME=$LAUNCH_NAME
STATE=runs/.launch/$NAME
PLACE=(--zone="$LAUNCH_TPU_ZONE" ${LAUNCH_TPU_PROJECT:+--project="$LAUNCH_TPU_PROJECT"} --quiet)
LIFE=$(seconds "$LAUNCH_MAX_HOURS" 3600)
CHILD="" # what is waited for
OWNED="" # there may be a machine of ours
ASKING="" # a request is on its way, and may not be seen yet
FOUND="" # the machine was there before
RAN=""   # there may be results

# Runs a command that takes long: a signal ends the wait at once, and the command with it.
patient() {
  local status=0
  if [ -n "$DRY_RUN" ]; then run "$@" && return; fi
  set -m
  "$@" < /dev/null &
  CHILD=$!
  set +m
  wait "$CHILD" || status=$?
  CHILD=""
  return "$status"
}

pause() { [ -n "$DRY_RUN" ] || patient sleep "$LAUNCH_TPU_POLL_SECONDS" || true; }

# states queued-resources|tpu-vm: the state of the request or of its machine; empty where there is none. Fails if unknown.
states() {
  local field=state
  if [ "$1" = queued-resources ]; then field=state.state; fi
  ask gcloud compute tpus "$1" list "${PLACE[@]}" "--filter=name~/$NAME\$" "--format=value($field)"
}

# Sets STATE_NOW to what `states` says; asks again while it cannot be told.
look() {
  local tries=0
  until STATE_NOW=$(states "$1"); do
    tries=$((tries + 1))
    [ $tries -lt 20 ] || die "gcloud cannot tell the state of $NAME (above)"
    pause
  done
}

ready() {
  look queued-resources
  [ "$STATE_NOW" = ACTIVE ] || return 1
  look tpu-vm
  [ "$STATE_NOW" = READY ]
}

# Deletes the request and its machine, and makes sure of it.
remove() {
  local tries=0 left
  DRY_ANSWER=
  while [ $tries -lt 10 ]; do
    tries=$((tries + 1))
    patient gcloud compute tpus queued-resources delete "$NAME" "${PLACE[@]}" --force || true
    if left=$(states queued-resources) && [ -z "$left" ]; then
      OWNED=""
      return 0
    fi
    pause
  done
  return 1
}

create() {
  local release="" kind=()
  case $LAUNCH_TPU_CAPACITY in
    spot) kind=(--spot) ;;
    flex-start) # known to gcloud alpha only
      release=alpha
      kind=(--provisioning-model=flex-start --max-run-duration="${LIFE}s")
      ;;
  esac
  OWNED=1 ASKING=1 FOUND=""
  patient gcloud ${release:+"$release"} compute tpus queued-resources create "$NAME" --node-id="$NAME" "${PLACE[@]}" \
    --accelerator-type="$LAUNCH_TPU_TYPE" --runtime-version="$LAUNCH_TPU_RUNTIME" ${kind[@]+"${kind[@]}"} \
    --valid-until-duration="$(seconds "$LAUNCH_TPU_QUEUE_HOURS" 3600)s" \
    ${LAUNCH_TPU_SERVICE_ACCOUNT:+--service-account="$LAUNCH_TPU_SERVICE_ACCOUNT"} \
    --metadata="launch-name=$NAME,launch-seconds=$((LIFE + 3600))" --metadata-from-file=startup-script=launch/tpu_startup.sh
}

# Finds the machine or asks for it, and waits for it.
acquire() {
  local asked="" shown="" until=$((SECONDS + $(seconds "$LAUNCH_TPU_QUEUE_HOURS" 3600) + 3600))
  while [ "$SECONDS" -lt "$until" ]; do
    look queued-resources
    if [ -n "$STATE_NOW" ] && [ -z "$asked" ]; then OWNED=1 FOUND=1; fi
    case $STATE_NOW in
      "")
        if [ -z "$asked" ]; then
          asked=1
          create || die "the request was refused (above)"
          ASKING=""
          DRY_ANSWER=ACTIVE
          continue
        fi
        ;;
      ACTIVE)
        DRY_ANSWER=READY
        look tpu-vm
        case $STATE_NOW in
          READY) return 0 ;;
          PREEMPTED | TERMINATED | STOPPED) remove || die "the preempted machine cannot be deleted" ;;
        esac
        ;;
      FAILED)
        [ -z "$asked" ] || die "the request failed: gcloud compute tpus queued-resources describe $NAME $(quoted "${PLACE[@]}") tells why"
        remove || die "the failed request cannot be deleted"
        ;;
      SUSPENDED) remove || die "the preempted machine cannot be deleted" ;;
    esac
    if [ "$STATE_NOW" != "$shown" ]; then note "$NAME: ${STATE_NOW:-no state yet}"; fi
    shown=$STATE_NOW
    pause
  done
  die "there was no machine within --tpu_queue_hours=$LAUNCH_TPU_QUEUE_HOURS"
}

# on WORKERS STEP: a step of launch/tpu_host.sh on these workers.
on() {
  local settings=(--name="$NAME" --config="$LAUNCH_CONFIG" --bucket="$LAUNCH_BUCKET" --corpus="$LAUNCH_CORPUS"
    --max_hours="$LAUNCH_MAX_HOURS" --sync_minutes="$LAUNCH_SYNC_MINUTES" --tpu_data="$LAUNCH_TPU_DATA")
  patient gcloud compute tpus tpu-vm ssh "$NAME" "${PLACE[@]}" --worker="$1" --ssh-flag=-oServerAliveInterval=30 \
    --command="$(quoted jaxsearchrl/launch/tpu_host.sh "$2" "${settings[@]}" -- ${ARGUMENTS[@]+"${ARGUMENTS[@]}"})"
}

set_up() {
  if [ -n "$FOUND" ] && on all busy; then return 0; fi # files of a running program are left alone
  run git archive --format=tar.gz --prefix=jaxsearchrl/ --output="$STATE/code.tar.gz" HEAD || return 1
  patient gcloud compute tpus tpu-vm scp "$STATE/code.tar.gz" "$NAME:code.tar.gz" "${PLACE[@]}" --worker=all || return 1
  patient gcloud compute tpus tpu-vm ssh "$NAME" "${PLACE[@]}" --worker=all --command="tar xzf code.tar.gz" || return 1
  on all install || return 1
  if [ -n "$LAUNCH_TPU_DATA" ]; then on all data || return 1; fi
}

# Starts the run on all hosts, or finds it, and shows its log until it ends.
train() {
  RAN=1
  on all start || return 1
  until on all follow; do
    ready || return 1
    on all alive || return 1
    note "the connection broke, but the run is well"
    pause
  done
}

finish() {
  local status=$?
  trap - EXIT
  trap '' INT TERM HUP # a second Ctrl-C must not stop the deletion
  if [ -n "$CHILD" ]; then kill -TERM -- "-$CHILD" 2> /dev/null || true; fi
  if [ -n "$OWNED" ] && is_on keep; then
    note "kept, and to be paid for: $NAME in $LAUNCH_TPU_ZONE; launch/tpu.sh with --delete deletes it"
  elif [ -n "$OWNED" ] && { [ -z "$ASKING" ] || pause; } && ! remove; then
    note "$NAME COULD NOT BE DELETED AND MAY COST MONEY. Delete it by hand:"
    note "  $(quoted gcloud compute tpus queued-resources delete "$NAME" "${PLACE[@]}" --force)"
    [ "$status" != 0 ] || status=1
  fi
  if [ -n "$RAN" ] && [ "$status" -lt 128 ]; then # no signal
    run mkdir -p "runs/$NAME"
    run gcloud storage rsync --recursive "$LAUNCH_BUCKET/$NAME" "runs/$NAME" || note "the results stay in $LAUNCH_BUCKET/$NAME"
  fi
  [ -n "$DRY_RUN" ] || rm -rf "$STATE/lock"
  exit "$status"
}

# Two of these scripts for one run would delete each other's machine.
lock() {
  local holder
  mkdir -p "$STATE"
  if ! mkdir "$STATE/lock" 2> /dev/null; then
    holder=$(cat "$STATE/lock/pid" 2> /dev/null || true)
    if [ -n "$holder" ] && ! kill -0 "$holder" 2> /dev/null; then
      note "taking over from process $holder, which is gone"
    else
      die "launch/tpu.sh is at work for $NAME${holder:+ (process $holder)}; if it is not, delete $ROOT/$STATE/lock"
    fi
  fi
  echo $$ > "$STATE/lock/pid"
}

if [ -z "$DRY_RUN" ]; then lock; fi
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP

if is_on delete; then
  remove || die "$NAME could not be deleted"
  exit 0
fi
git cat-file -e "HEAD:$LAUNCH_CONFIG" 2> /dev/null || die "--config=$LAUNCH_CONFIG is not committed to git; the machine gets what is"
if [ -n "$(git status --porcelain --untracked-files=no)" ]; then note "changes that are not committed stay here"; fi

machine=1
while :; do
  acquire
  began=$SECONDS
  if set_up && train; then break; fi
  if ready; then die "the run failed (above); what it made is in $LAUNCH_BUCKET/$NAME"; fi
  [ $((SECONDS - began)) -lt "$LIFE" ] || die "the machine is gone after --max_hours=$LAUNCH_MAX_HOURS"
  [ "$machine" -lt "$LAUNCH_TPU_MACHINES" ] || die "machine $machine was preempted, and --tpu_machines=$LAUNCH_TPU_MACHINES"
  note "machine $machine was preempted; asking for another one"
  machine=$((machine + 1))
  remove || die "the preempted machine cannot be deleted"
done
