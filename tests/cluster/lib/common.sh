# Sourced by every script of the cluster: where things are, and which processes are ours.
# shellcheck shell=bash

set -euo pipefail
umask 022

CLUSTER=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
CHECKOUT=$(cd "$CLUSTER/../.." && pwd -P)
LAB=$("$CLUSTER/lib/lab_dir.sh")
SUBNET=10.77.0 # lives in network namespaces of the nodes only: clusters of several checkouts do not meet
ALICE=2001
export CLUSTER CHECKOUT LAB SUBNET ALICE

die() {
  echo "cluster: $*" >&2
  exit 1
}

require_root() {
  [ "$(id -u)" = 0 ] || die "root is needed for namespaces and mounts; this is uid $(id -u)"
}

# The start time of a process, in clock ticks since boot: with it a recorded pid cannot be taken for a later process.
process_start() {
  local stat fields
  stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
  read -ra fields <<<"${stat##*) }" # after the name, which may hold blanks: state, ppid, ...
  printf '%s\n' "${fields[19]}"
}

# Pid 1 of a running node, seen from this machine; fails where the node is not up.
node_pid() {
  local pid start
  { read -r pid start <"$LAB/run/$1.pid"; } 2>/dev/null || return 1
  [ "$(process_start "$pid")" = "$start" ] || return 1
  printf '%s\n' "$pid"
}

node_address() { # n3 -> 10.77.0.13
  if [ "$1" = login ]; then printf '%s.1\n' "$SUBNET"; else printf '%s.%d\n' "$SUBNET" "$((10 + ${1#n}))"; fi
}

running_nodes() {
  local file node
  for file in "$LAB"/run/*.pid; do
    node=$(basename "$file" .pid)
    if node_pid "$node" >/dev/null; then printf '%s\n' "$node"; fi
  done
}

# One at a time for each lab. Nodes are started with the descriptor closed, or they would hold the lock.
take_lock() {
  mkdir -p "$LAB/run"
  exec 9>"$LAB/run/lock"
  flock -w 900 9 || die "another script has held $LAB/run/lock for 15 minutes"
}

# Boots a node: fresh namespaces and a fresh root over the common one. Reads $LAB/run/settings.
start_node() {
  local node=$1 address supervisor pid='' login
  if node_pid "$node" >/dev/null; then return 0; fi
  address=$(node_address "$node")
  rm -rf "$LAB/nodes/$node"
  mkdir -p "$LAB/nodes/$node"
  setsid unshare --mount --uts --ipc --net --pid --fork --kill-child \
    "$CLUSTER/lib/node_root.sh" "$node" "$address" >"$LAB/nodes/$node/console.log" 2>&1 </dev/null 9>&- &
  supervisor=$!
  for _ in {1..1500}; do
    pid=$(cat "/proc/$supervisor/task/$supervisor/children" 2>/dev/null || true)
    pid=${pid%% *}
    [ -z "$pid" ] || break
    sleep 0.02
  done
  [ -n "$pid" ] || die "node $node did not start: $(cat "$LAB/nodes/$node/console.log")"
  printf '%s %s\n' "$pid" "$(process_start "$pid")" >"$LAB/run/$node.pid"
  if [ "$node" = login ]; then
    nsenter -t "$pid" -n sh -c "ip link add br0 type bridge && ip addr add $address/24 dev br0 && ip link set br0 up"
  else
    login=$(node_pid login) || die "node $node needs the login node, whose bridge joins the nodes; it is not up"
    ip link add name "to-$node" netns "$login" type veth peer name eth0 netns "$pid"
    nsenter -t "$login" -n sh -c "ip link set to-$node master br0 && ip link set to-$node up"
    nsenter -t "$pid" -n sh -c "ip addr add $address/24 dev eth0 && ip link set eth0 up"
  fi
}

# A node is ready when its daemons have been started; before, it may not even have its root.
wait_for_node() {
  local pid
  for _ in {1..1800}; do
    pid=$(node_pid "$1") || die "node $1 ended while it booted: $(cat "$LAB/nodes/$1/console.log")"
    if nsenter -t "$pid" --mount --root test -e /run/node-ready 2>/dev/null; then return 0; fi
    sleep 0.1
  done
  die "node $1 is not ready after 180 s: $(cat "$LAB/nodes/$1/console.log")"
}

# Power-off: the end of pid 1 ends every process of the node; mounts, network and namespaces go with them.
stop_node() {
  local node=$1 pid
  if pid=$(node_pid "$node"); then
    kill -KILL "$pid"
    for _ in {1..1200}; do
      node_pid "$node" >/dev/null || break
      sleep 0.05
    done
    if node_pid "$node" >/dev/null; then die "node $node (pid $pid) is still there 60 s after SIGKILL"; fi
  fi
  rm -f "$LAB/run/$node.pid"
}
