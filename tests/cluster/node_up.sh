#!/bin/bash
# Boots a node that was powered off.   usage: node_up.sh n3
. "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"

require_root
take_lock
start_node "$1"
wait_for_node "$1"
