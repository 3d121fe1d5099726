#!/bin/bash
# Runs on a TPU VM at each start of it: sets a timer that deletes the machine, whatever became of whoever asked for it.
# Needs the role TPU Admin for the machine's service account; without it the machine is only shut down.

attribute() {
  curl --silent --fail --header 'Metadata-Flavor: Google' "http://metadata.google.internal/computeMetadata/v1/instance/$1"
}

name=$(attribute attributes/launch-name)
seconds=$(attribute attributes/launch-seconds)
zone=$(attribute zone)
systemd-run --on-active="$seconds" /bin/bash -lc "gcloud compute tpus queued-resources delete $name --zone=${zone##*/} \
--force --quiet --async || shutdown --poweroff now"
