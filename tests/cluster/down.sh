#!/bin/bash
# Ends the nodes that up.sh started, by their recorded pid and start time. What was built stays.
. "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"

# Small clusters of other Debian suites live below this one.
for lab in "$LAB"/suites/*; do [ ! -d "$lab" ] || LAB=$lab "${BASH_SOURCE[0]}"; done
[ -d "$LAB/run" ] || exit 0
[ -z "$(running_nodes)" ] || require_root
take_lock
for node in $(running_nodes); do stop_node "$node"; done
rm -f "$LAB"/run/*.pid
