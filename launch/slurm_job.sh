#!/usr/bin/env bash
# The job that launch/slurm.sh submits: copies and index on the first node, the program on all. JAX finds coordinator and
# processes by Slurm's variables. Its default is a GPU a process; JAX_LOCAL_DEVICE_IDS gives each process all of its node.

# shellcheck source=launch/common.sh
. "$(dirname "$0")/common.sh"

read_settings "slurm" "" "$@"
check_run
check SLURM_GPUS '[1-9][0-9]{0,3}' "a whole number from 1 on"
# shellcheck source=launch/supervise.sh
. launch/supervise.sh

run export JAX_LOCAL_DEVICE_IDS="$(seq -s , 0 $((LAUNCH_SLURM_GPUS - 1)))"
if [ "${SLURM_JOB_NUM_NODES:-1}" != 1 ]; then run export JAXSEARCHRL_HOSTS=auto; fi
set_main
pull
build_index
supervise srun --kill-on-bad-exit=1 --cpus-per-task="$LAUNCH_SLURM_CPUS" "${MAIN[@]}"
