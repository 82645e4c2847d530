#!/bin/bash
# Powers a node off, without a warning to what runs there.   usage: node_kill.sh n3
. "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"

require_root
take_lock
node_pid "$1" >/dev/null || die "node $1 is not up"
stop_node "$1"
