# shellcheck shell=bash
# The common part of colocated.sbatch and separate.sbatch. The batch step sources it and calls `train`; each task that
# this starts sources it again and is a server, a worker or a trainer. It needs the programs on PATH, bash 4.4 or newer,
# an srun that knows --overlap (20.11), and a folder that all machines see, TRIBUTARY_RUN: runs/NAME-OF-THE-JOB below
# the job's working directory, unless it is set. There are keys, configurations, logs, and the servers' stores, from
# which the job continues when it is submitted again.
export TRIBUTARY_RUN=${TRIBUTARY_RUN:-$PWD/runs/$SLURM_JOB_NAME}
# How often each process is started again after a failure.
export TRIBUTARY_RESTARTS=${TRIBUTARY_RESTARTS:-3}

# train SERVERS NODES RANKS COMMAND...: the whole job: a server on each machine of the list SERVERS, a worker on each of
# NODES, and COMMAND, RANKS times in all. Ends the script: 0, trained to the end; 75, stopped cleanly before that;
# 1, a daemon failed, and its log says why; 128 or more, a trainer did.
train() {
  local hosts ranks=$3 command=("${@:4}") servers nodes steps status=0
  if [ ${#command[@]} -eq 0 ]; then
    echo "which trainer? sbatch SCRIPT COMMAND [ARGUMENTS...], as tributary-train --job job.toml" >&2
    exit 2
  fi
  hosts=$(scontrol show hostnames "$1")
  mapfile -t servers <<<"$hosts"
  hosts=$(scontrol show hostnames "$2")
  mapfile -t nodes <<<"$hosts"
  export TRIBUTARY_SERVER_0=${servers[0]} MASTER_ADDR=${nodes[0]}
  # Three ports of the job's own: the coordinator's, server 0's admin port (on loopback), and one for the trainers.
  export TRIBUTARY_PORT=${TRIBUTARY_PORT:-$((10000 + SLURM_JOB_ID % 6000 * 3))}
  export TRIBUTARY_ADMIN=127.0.0.1:$((TRIBUTARY_PORT + 1)) MASTER_PORT=$((TRIBUTARY_PORT + 2))
  (umask 077 && mkdir -p "$TRIBUTARY_RUN") # a new one is this user's alone
  mkdir -p "$TRIBUTARY_RUN/logs"
  make_keys "${#servers[@]}" "${#nodes[@]}"

  echo "servers on ${servers[*]}; workers and $ranks trainers on ${nodes[*]}; all else in $TRIBUTARY_RUN"
  echo "srun --jobid=$SLURM_JOB_ID ${SLURM_HET_SIZE:+--het-group=0 }--overlap --nodes=1 --ntasks=1" \
    "--nodelist=${servers[0]} tributary status --admin $TRIBUTARY_ADMIN"
  step 0 "${#servers[@]}" "${#servers[@]}" "$TRIBUTARY_RUN/logs/server-%t.log" server &
  steps=($!)
  step 1 "${#nodes[@]}" "${#nodes[@]}" "$TRIBUTARY_RUN/logs/worker-%t.log" worker &
  steps+=($!)
  step 1 "${#nodes[@]}" "$ranks" all trainer "${command[@]}" &
  steps+=($!)
  wait -n || true
  while [ -n "$(jobs -rp)" ]; do # once a second, because a step may only begin now
    stop_all
    sleep 1
  done
  wait "${steps[2]}" || status=$?
  wait "${steps[0]}" || status=1
  wait "${steps[1]}" || status=1
  exit "$status"
}

# stop_all: all tasks of the job stop cleanly, those that do so already undisturbed. URG, which nothing else sends
# and programs ignore, reaches them by way of `keep`.
stop_all() {
  scancel --signal=URG "$SLURM_JOB_ID" || true
}

# make_keys SERVERS NODES: those that are not there yet. Each is its owner's alone to read.
make_keys() {
  local keys=$TRIBUTARY_RUN/keys i
  if [ ! -e "$keys/admin.token" ]; then tributary keys init "$keys" >/dev/null; fi
  for ((i = 1; i < $1; ++i)); do make_key "server-$i" server; done
  for ((i = 0; i < $2; ++i)); do make_key "node-$i" worker; done
}
make_key() {
  if [ ! -e "$keys/$1.key" ]; then tributary keys new "$1" --role "$2" --dir "$keys" >/dev/null; fi
}

# step COMPONENT NODES TASKS OUTPUT FUNCTION...: a step with FUNCTION in each task, as many on every machine, and of a
# heterogeneous job on those of COMPONENT. All steps share what the job has.
step() {
  srun ${SLURM_HET_SIZE:+--het-group="$1"} --nodes="$2" --ntasks="$3" --ntasks-per-node=$(($3 / $2)) \
    --distribution=block --overlap --cpu-bind=none --mpi=none --export=ALL --kill-on-bad-exit=0 --wait=0 \
    --output="$4" --open-mode=append \
    bash -c 'set -euo pipefail; source "$0"; "$@"' "${BASH_SOURCE[0]}" "${@:5}"
}

# keep COMMAND...: starts it, and again after a failure; if that was wrong usage (2), or one too many, the job is
# stopped, because the others would only wait. Slurm sends TERM to all processes of a task or to this shell alone, so it
# is passed on; but once, because a daemon takes another one a while later for "at once".
keep() {
  local asked='' child='' restarts=0 status=143
  # Only the first signal: bash may lose the status of a child that ends while another interrupts the wait for it.
  trap 'trap "" TERM URG; asked=yes; [ -z "$child" ] || kill -TERM "$child" 2>/dev/null || true' TERM URG
  while [ -z "$asked" ]; do
    "$@" &
    child=$!
    if [ "$asked" ]; then kill -TERM "$child" || true; fi
    status=0
    wait "$child" || status=$?
    if [ "$asked" ]; then # which interrupted the wait
      while kill -0 "$child" 2>/dev/null; do wait "$child" || true; done
      status=0
      wait "$child" || status=$?
    fi
    child=''
    case $status in 0 | 75) exit $status ;; esac
    if [ "$asked" ]; then break; fi
    if [ $status -eq 2 ] || [ $((restarts++)) -ge "$TRIBUTARY_RESTARTS" ]; then
      echo "$1 on $SLURMD_NODENAME ended with status $status; the job is stopped" >&2
      stop_all
      break
    fi
    echo "$1 on $SLURMD_NODENAME ended with status $status; it is started again" >&2
    sleep 1
  done
  exit $((status < 128 ? 128 : status)) # srun reports the largest of its tasks', and a 75 must not hide this one
}

server() {
  local index=$SLURM_PROCID keys=$TRIBUTARY_RUN/keys config=$TRIBUTARY_RUN/server-$SLURM_PROCID.toml
  local key=server-$index address=$TRIBUTARY_SERVER_0 admin=127.0.0.1:0
  local trust="coordinator_key = \"$keys/coordinator.pub\""
  if [ "$index" = 0 ]; then
    key=coordinator address=0.0.0.0 admin=$TRIBUTARY_ADMIN
    trust="authorized = \"$keys/authorized\""$'\n'"admin_token = \"$keys/admin.token\""
  fi
  cat >"$config" <<EOF
[server]
index = $index
servers = $SLURM_STEP_NUM_TASKS
coordinator = "tcp://$address:$TRIBUTARY_PORT"
bind = "tcp://0.0.0.0:*"
advertise = "$SLURMD_NODENAME"
admin = "$admin"

[store]
path = "$TRIBUTARY_RUN/store-$index"
checkpoint_roots = ["$TRIBUTARY_RUN/checkpoints"]

[security]
keys = "$keys/$key.key"
$trust
EOF
  keep tributary-server --config "$config"
}

worker() {
  local index=$SLURM_PROCID keys=$TRIBUTARY_RUN/keys config=$TRIBUTARY_RUN/worker-$SLURM_PROCID.toml socket
  socket=$(worker_socket)
  cat >"$config" <<EOF
[worker]
name = "node-$index"
coordinator = "tcp://$TRIBUTARY_SERVER_0:$TRIBUTARY_PORT"
socket = "$socket"

[security]
keys = "$keys/node-$index.key"
coordinator_key = "$keys/coordinator.pub"
EOF
  keep tributary-worker --config "$config"
}

# worker_socket: its path, in a folder that only this user may enter; job numbers are no secret, and /tmp is shared.
worker_socket() {
  local folder=/tmp/tributary-$UID
  mkdir -m 700 "$folder" 2>/dev/null || true
  if [ -L "$folder" ] || [ ! -O "$folder" ] || [ "$(stat -c %a "$folder")" != 700 ]; then
    echo "$folder on $SLURMD_NODENAME is not this user's alone; remove it, as its owner or root" >&2
    return 1
  fi
  echo "$folder/$SLURM_JOB_ID-$SLURM_NODEID.sock"
}

# trainer COMMAND...: runs it with torchrun's variables.
trainer() {
  export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_STEP_NUM_TASKS
  export GROUP_RANK=$SLURM_NODEID GROUP_WORLD_SIZE=$SLURM_STEP_NUM_NODES
  export LOCAL_RANK=$SLURM_LOCALID LOCAL_WORLD_SIZE=$((SLURM_STEP_NUM_TASKS / SLURM_STEP_NUM_NODES))
  export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((SLURM_CPUS_ON_NODE / LOCAL_WORLD_SIZE))}
  TRIBUTARY_SOCKET=$(worker_socket)
  export TRIBUTARY_SOCKET
  keep "$@"
}
