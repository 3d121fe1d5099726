#!/usr/bin/env bash
# Trains on Kaggle (GPU T4): GSM8K with Qwen2.5-0.5B, within a session. launch/kaggle.ipynb has the same commands. Add this
# project as a data set called jaxsearchrl, choose the accelerator "GPU T4 x2", switch the internet on, and run
#
#   bash /kaggle/input/jaxsearchrl/launch/kaggle.sh --name=gsm8k
#
# The run folder is in the session's output. A later session goes on from there: add that output as an input, and
# --kaggle_resume=/kaggle/input/.../runs/gsm8k. --dry-run prints the commands. Settings and defaults: launch/defaults.sh.

# shellcheck source=launch/common.sh
. "$(dirname "$0")/common.sh"

read_settings "kaggle" "" "$@"
LAUNCH_CONFIG=$LAUNCH_KAGGLE_CONFIG LAUNCH_MAX_HOURS=$LAUNCH_KAGGLE_HOURS
check_run
for key in KAGGLE_CODE KAGGLE_WORKING; do check $key '/[A-Za-z0-9_./-]+' "a full path without spaces"; done
check KAGGLE_RESUME '(/[A-Za-z0-9_./-]+)?' "a full path without spaces"

# Input folders are read-only, and what lies in the working folder is kept: the code and its data go elsewhere.
run mkdir -p "$LAUNCH_KAGGLE_CODE" "$LAUNCH_KAGGLE_WORKING/runs"
run cp -R "$ROOT/." "$LAUNCH_KAGGLE_CODE"
run cd "$LAUNCH_KAGGLE_CODE"
run ln -sfn "$LAUNCH_KAGGLE_WORKING/runs" runs
if [ -n "$LAUNCH_KAGGLE_RESUME" ] && [ ! -e "$LAUNCH_KAGGLE_WORKING/runs/$LAUNCH_NAME" ]; then
  run cp -R "$LAUNCH_KAGGLE_RESUME" "$LAUNCH_KAGGLE_WORKING/runs/$LAUNCH_NAME"
fi
run "$LAUNCH_PYTHON" -m pip install --quiet -e '.[cuda12]'
run "$LAUNCH_PYTHON" -m jaxsearchrl.data gsm8k --input=openai/gsm8k --output=data/gsm8k
run hf download Qwen/Qwen2.5-0.5B-Instruct --local-dir data/Qwen2.5-0.5B-Instruct
run bash launch/run.sh --name="$LAUNCH_NAME" --config="$LAUNCH_CONFIG" --max_hours="$LAUNCH_MAX_HOURS" -- \
  ${ARGUMENTS[@]+"${ARGUMENTS[@]}"}
