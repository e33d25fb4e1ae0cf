#!/usr/bin/env bash
# A SLURM of one node, for tests: bash tests/cluster/slurm.sh install|start|stop FOLDER
# Debian's slurmctld, slurmd and munge, as root, with everything they write in FOLDER. Clients find it by SLURM_CONF=FOLDER/slurm.conf.
set -euo pipefail
action=$1 folder=$2
host=$(hostname -s)

install() {
  if command -v slurmctld slurmd munged sbatch > /dev/null; then return; fi
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends slurmctld slurmd slurm-client munge > /dev/null
}

configure() {
  mkdir -p "$folder/state" "$folder/spool" "$folder/munge"
  chmod 755 "$folder"
  dd if=/dev/urandom of="$folder/munge/key" bs=1024 count=1 status=none
  chmod 400 "$folder/munge/key"
  chmod 711 "$folder/munge"
  local memory ports
  memory=$(awk '/MemTotal/ {print int($2 / 1024)}' /proc/meminfo)
  read -r -a ports < <(python3 -c '
import socket
taken = [socket.socket() for _ in range(2)]
for each in taken: each.bind(("", 0))
print(*(each.getsockname()[1] for each in taken))')
  cat > "$folder/slurm.conf" <<CONF
ClusterName=test
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmdUser=root
SlurmctldPort=${ports[0]}
SlurmdPort=${ports[1]}
AuthType=auth/munge
AuthInfo=socket=$folder/munge/socket
CredType=cred/munge
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
JobRequeue=1
KillWait=30
SchedulerType=sched/builtin
SchedulerParameters=requeue_setup_env_fail
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
NodeName=$host NodeAddr=127.0.0.1 CPUs=$(nproc) RealMemory=$memory State=UNKNOWN
PartitionName=test Nodes=$host Default=YES MaxTime=INFINITE State=UP
CONF
}

start() {
  configure
  export SLURM_CONF=$folder/slurm.conf
  munged --force --key-file="$folder/munge/key" --socket="$folder/munge/socket" --pid-file="$folder/munge/pid" \
    --log-file="$folder/munge/log" --seed-file="$folder/munge/seed"
  slurmctld
  slurmd
  for _ in $(seq 60); do
    if sinfo -h -o %T 2> /dev/null | grep -q idle; then return; fi
    sleep 0.5
  done
  tail -n 5 "$folder"/slurm*.log >&2
  return 1
}

stop() {
  for file in slurmd.pid slurmctld.pid munge/pid; do
    if [[ -f $folder/$file ]]; then kill "$(cat "$folder/$file")" 2> /dev/null || true; fi
  done
}

"$action"
