#!/bin/bash
# Powers a node off, without a warning to what runs there.   usage: node_kill.sh n3
. "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"

require_root
take_lock
node_pid "$1" >/dev/null || die "node $1 is not up"
# Cut the network first: the kernel would close the connections of killed processes, and a dead machine says nothing.
if [ "$1" != login ] && login=$(node_pid login); then
  nsenter -t "$login" -n ip link del "to-$1"
fi
stop_node "$1"
