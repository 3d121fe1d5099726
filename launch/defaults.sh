# shellcheck shell=bash
# shellcheck disable=SC2034  # the scripts that source this file use what it sets
# The defaults of all launch scripts. Each LAUNCH_X is a flag --x=... too; a flag goes before the environment, and that
# before this file. Change them here.

# Of every run
: "${LAUNCH_NAME:=}"                   # of its folder runs/NAME, its machine, its job: a-z, 0-9 and -
: "${LAUNCH_CONFIG:=configs/demo.py}"
: "${LAUNCH_BUCKET:=}"                 # gs://... or s3://...: the run folder is copied to BUCKET/NAME, and comes back from there
: "${LAUNCH_SYNC_MINUTES:=5}"          # minutes between two copies
: "${LAUNCH_CORPUS:=}"                 # its index is built on each host before the run; needless for the demo
: "${LAUNCH_MAX_HOURS:=12}"            # then the run is asked to save and stop
: "${LAUNCH_PYTHON:=python}"

# Several plain machines (launch/run.sh on each)
: "${LAUNCH_COORDINATOR:=}"            # address:port of process 0; the three go together
: "${LAUNCH_PROCESSES:=}"              # how many machines
: "${LAUNCH_PROCESS:=}"                # this machine's number, from 0

# TPU VMs (launch/tpu.sh)
: "${LAUNCH_TPU_TYPE:=v5litepod-8}"    # v5litepod-8 is one host of eight chips, v5litepod-16 four hosts of four
: "${LAUNCH_TPU_RUNTIME:=v2-alpha-tpuv5-lite}" # v6e: v2-alpha-tpuv6e
: "${LAUNCH_TPU_ZONE:=us-west4-a}"
: "${LAUNCH_TPU_PROJECT:=}"            # empty: gcloud's own
: "${LAUNCH_TPU_CAPACITY:=spot}"       # spot, on-demand or flex-start
: "${LAUNCH_TPU_SERVICE_ACCOUNT:=}"    # of the machine; empty: the project's default
: "${LAUNCH_TPU_QUEUE_HOURS:=24}"      # how long a request may wait for its machine
: "${LAUNCH_TPU_MACHINES:=5}"          # at most so many, one after the other, when they are preempted
: "${LAUNCH_TPU_DATA:=}"               # gs://...: copied to data/ on each host
: "${LAUNCH_TPU_POLL_SECONDS:=30}"

# Slurm (launch/slurm.sh)
: "${LAUNCH_SLURM_NODES:=1}"
: "${LAUNCH_SLURM_GPUS:=1}"            # of a node
: "${LAUNCH_SLURM_CPUS:=8}"            # of a node
: "${LAUNCH_SLURM_PARTITION:=}"
: "${LAUNCH_SLURM_ACCOUNT:=}"

# A container (launch/container.sh)
: "${LAUNCH_CONTAINER_ENGINE:=docker}" # or podman
: "${LAUNCH_CONTAINER_EXTRA:=cuda12}"  # the package's extra in the image
: "${LAUNCH_CONTAINER_GPUS:=all}"      # empty: none

# Kaggle (launch/kaggle.sh, launch/kaggle.ipynb)
: "${LAUNCH_KAGGLE_CONFIG:=configs/gsm8k_0.5b_t4.py}"
: "${LAUNCH_KAGGLE_HOURS:=11}"         # a session ends after 12
: "${LAUNCH_KAGGLE_CODE:=/tmp/jaxsearchrl}"
: "${LAUNCH_KAGGLE_WORKING:=/kaggle/working}"
: "${LAUNCH_KAGGLE_RESUME:=}"          # the run folder of an earlier session, under /kaggle/input
