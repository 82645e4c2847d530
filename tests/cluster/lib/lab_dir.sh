#!/bin/bash
# Prints the folder that holds everything of this checkout's cluster: $LAB, or .cache/testcluster in the checkout, or,
# where that cannot hold an overlay root, a folder of its own under /var/tmp.
set -euo pipefail

checkout=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd -P)
if [ -n "${LAB:-}" ]; then
  printf '%s\n' "$LAB"
  exit 0
fi

lab=$checkout/.cache/testcluster
filesystem=$(stat -f -c %T "$checkout")
# overlayfs takes no upper layer on another overlay or on most network file systems, and reads ':' and ',' as separators.
if [[ $filesystem =~ ^(ext2/ext3|xfs|btrfs)$ && $lab =~ ^[A-Za-z0-9/._-]+$ ]]; then
  printf '%s\n' "$lab"
else
  printf '/var/tmp/testcluster-%s\n' "$(printf '%s' "$checkout" | sha256sum | cut -c1-12)"
fi
