# shellcheck shell=bash
# What the launch scripts share: settings, refusals, the dry run. To be sourced; bash 3.2 (macOS) is enough.

set -euo pipefail

SELF=$(cd "$(dirname "$0")" && pwd)/${0##*/}
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$ROOT"
# shellcheck source=launch/defaults.sh
. launch/defaults.sh

DRY_RUN=
DRY_ANSWER=     # what a question to another program is answered in a dry run
SWITCHES=" "    # the switches that were given, between spaces
ARGUMENTS=()    # what comes after --: flags of jaxsearchrl.main

note() { printf '%s\n' "$*" >&2; }

die() {
  note "error: $*"
  exit 2
}

# The words as one line that a shell reads back as these words.
quoted() {
  local word line="" mark="'" escaped="'\\''"
  for word; do
    case $word in
      "" | *[!A-Za-z0-9_./:=@%+,-]*) word=$mark${word//$mark/$escaped}$mark ;;
    esac
    line="$line $word"
  done
  printf '%s\n' "${line# }"
}

# Runs a command; in a dry run it prints it.
run() {
  if [ -n "$DRY_RUN" ]; then quoted "$@" >&3; else "$@"; fi
}

# The output of a command; in a dry run the command is printed, and DRY_ANSWER stands for its output.
ask() {
  if [ -n "$DRY_RUN" ]; then
    quoted "$@" >&3
    printf '%s' "$DRY_ANSWER"
  else
    "$@"
  fi
}

# Whether a text matches a regular expression as a whole; letters are those of ASCII, whatever the locale.
matches() {
  local LC_ALL=C whole="^($2)\$" # in a variable: bash 3.2 cannot read it in place
  [[ $1 =~ $whole ]]
}

is_on() { case $SWITCHES in *" $1 "*) return 0 ;; *) return 1 ;; esac }

# read_settings "SECTIONS" "SWITCHES" ARGUMENTS: takes flags into LAUNCH_*, SWITCHES and ARGUMENTS. Settings of other
# sections than these (tpu, slurm, ...) are refused, since they would do nothing.
read_settings() {
  local sections=" $1 " switches=" dry-run $2 " key section
  shift 2
  while [ $# -gt 0 ]; do
    case $1 in
      --help | -h)
        sed -n '2,/^$/s/^# \{0,1\}//p' "$SELF"
        exit 0
        ;;
      --)
        shift
        ARGUMENTS=("$@")
        break
        ;;
      --config.* | --mode=*) die "$1 is a flag of jaxsearchrl.main; put it after --" ;;
      --*=*)
        key=${1%%=*}
        key=${key#--}
        if ! matches "$key" '[a-z_]+' || ! grep -q "^: \"\${LAUNCH_$(upper "$key"):=" launch/defaults.sh; then
          die "unknown setting --$key; launch/defaults.sh lists them"
        fi
        section=${key%%_*}
        case $section in
          tpu | slurm | container | kaggle)
            case $sections in *" $section "*) ;; *) die "--$key is a setting of launch/$section.sh, not of ${SELF##*/}" ;; esac
            ;;
        esac
        printf -v "LAUNCH_$(upper "$key")" '%s' "${1#*=}"
        ;;
      --*)
        case $switches in *" ${1#--} "*) SWITCHES="$SWITCHES${1#--} " ;; *) die "unknown flag $1; --help tells more" ;; esac
        ;;
      *) die "unexpected argument '$1'; a setting is written --name=value" ;;
    esac
    shift
  done
  if is_on dry-run; then
    DRY_RUN=1
    exec 3>&1 # where commands are printed, also from within $(...)
  fi
}

upper() { printf '%s' "$1" | tr '[:lower:]' '[:upper:]'; }

# check NAME REGEX WHAT: refuses the setting LAUNCH_NAME if it is not wholly of that form.
check() {
  local variable=LAUNCH_$1
  matches "${!variable}" "$2" || die "--$(printf '%s' "$1" | tr '[:upper:]' '[:lower:]')='${!variable}': $3"
}

# What every script checks before it does anything.
check_run() {
  local word
  [ -n "$LAUNCH_NAME" ] || die "--name is missing; it names the run's folder, machine and job, e.g. --name=first-run"
  check NAME '[a-z]([-a-z0-9]{0,38}[a-z0-9])?' "1 to 40 of a-z, 0-9 and -, a letter first, no - last"
  check CONFIG '[A-Za-z0-9_][A-Za-z0-9_./-]*\.py' "a Python file in the project's folder, without spaces"
  [ -f "$LAUNCH_CONFIG" ] || die "--config=$LAUNCH_CONFIG: no such file in $ROOT"
  check BUCKET '((gs|s3)://[a-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9._-]+)*)?' "gs://bucket/folder or s3://bucket/folder, without spaces and without / at its end"
  check CORPUS '([A-Za-z0-9_./][A-Za-z0-9_./-]*)?' "a path without spaces"
  check_hours MAX_HOURS
  check_hours SYNC_MINUTES
  for word in ${ARGUMENTS[@]+"${ARGUMENTS[@]}"}; do
    case $word in
      --workdir | --workdir=* | -workdir | -workdir=*) die "$word: the run folder is runs/$LAUNCH_NAME; choose another --name" ;;
      --config | --config=* | -config | -config=*) die "$word: put --config before --" ;;
    esac
  done
}

check_hours() { check "$1" '[0-9]{1,4}(\.[0-9]{1,6})?' "a number such as 12 or 0.5"; }
check_count() { check "$1" '[0-9]{1,5}' "a whole number"; }
check_word() { check "$1" '[A-Za-z0-9][A-Za-z0-9@._-]*' "letters, digits, - . _ @ and nothing else"; }

# seconds HOURS UNIT: of decimal hours (UNIT 3600) or minutes (60).
seconds() { awk "BEGIN { printf \"%d\", $1 * $2 }"; }

needs() { [ -n "$DRY_RUN" ] || command -v "$1" > /dev/null || die "$1 is not on the PATH: $2"; }

# Sets MAIN, the program's command line. The accelerator is required: a run on a CPU by mistake would cost as much.
# shellcheck disable=SC2034  # for those that source this
set_main() {
  MAIN=("$LAUNCH_PYTHON" -m jaxsearchrl.main "--config=$LAUNCH_CONFIG" "--workdir=runs/$LAUNCH_NAME" --require_accelerator
    ${ARGUMENTS[@]+"${ARGUMENTS[@]}"})
}
