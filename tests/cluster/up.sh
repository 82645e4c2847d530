#!/bin/bash
# Brings up a Slurm + Apptainer cluster on this machine: login and n1..nN. Builds what is missing; does nothing for what is up.
# usage: up.sh [NODES]     (default 3)
#   SUITE=bookworm|trixie|sid  CPUS=16 MEMORY=64000 GPUS=4 (a node, as Slurm sees it)  BINDS="/folder ..." (read-only on all nodes)
#   SMALL=1 (Slurm alone: no Apptainer, no image, no accounting)  MORE_PACKAGES="lmod ..."  MORE_SLURM_CONF="more lines of slurm.conf"
. "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
NODES=${1:-3}

check_machine() {
  local filesystem
  require_root
  mkdir -p "$LAB"
  filesystem=$(stat -f -c %T "$LAB")
  [ "$filesystem" != overlayfs ] || die "$LAB is on overlayfs, which takes no second overlay; set LAB to a folder on ext4, xfs or btrfs"
  [ -c /dev/fuse ] || modprobe fuse 2>/dev/null || grep -q 'fuse$' /proc/filesystems || die "this kernel has no FUSE; images cannot be mounted without root"
  for path in "$CHECKOUT" "$CHECKOUT/launch"; do
    [ "$(stat -c %A "$path" | cut -c8,10)" = rx ] ||
      die "$path ($(stat -c %A "$path")) is closed to the cluster's unprivileged user; run: chmod -R a+rX $CHECKOUT"
  done
}

# Nodes of another root, or that have lost the login node and with it their bridge, cannot be joined.
stop_outdated() { # ROOTFS
  local node
  if node_pid login >/dev/null && grep -qxF "ROOTFS=$1" "$LAB/run/settings"; then return 0; fi
  for node in $(running_nodes); do stop_node "$node"; done
  find "$LAB/rootfs" -mindepth 1 -maxdepth 1 ! -path "$1" -exec rm -rf {} +
}

wait_for_idle() {
  local state='' tries
  for ((tries = 0; tries < 720; tries++)); do
    state=$("$CLUSTER/on" login sinfo -h -n "n[1-$NODES]" -o '%D %t' 2>/dev/null || true)
    if [ "$state" = "$NODES idle" ]; then return 0; fi
    sleep 0.25
  done
  tail -n 20 "$LAB"/nodes/*/console.log >&2
  die "waited 180 s for '$NODES idle', sinfo says '$state'"
}

check_machine
take_lock
started=$SECONDS
ROOTFS=$("$CLUSTER/lib/build_rootfs.sh" "${SUITE:-trixie}")
stop_outdated "$ROOTFS"
mkdir -p "$LAB/run" "$LAB/shared/scratch" "$LAB/shared/home/alice" "$LAB/nodes"
chmod 755 "$LAB/shared" "$LAB/shared/home"
chmod 1777 "$LAB/shared/scratch"
chown "$ALICE:$ALICE" "$LAB/shared/home/alice"

if ! node_pid login >/dev/null; then
  "$CLUSTER/lib/slurm_conf.sh" "$NODES" "${CPUS:-16}" "${MEMORY:-64000}" "${GPUS:-4}" "$ROOTFS"
  printf 'ROOTFS=%q\nNODES=%q\nGPUS=%q\nBINDS=%q\n' "$ROOTFS" "$NODES" "${GPUS:-4}" "$CHECKOUT ${BINDS:-}" >"$LAB/run/settings"
  start_node login
  wait_for_node login
  # A slurmd that finds no controller waits 10 s before it asks again.
  for _ in {1..1800}; do
    if "$CLUSTER/on" login scontrol ping 2>/dev/null | grep -q UP; then break; fi
    sleep 0.1
  done
fi
# shellcheck source=/dev/null
. "$LAB/run/settings" # what runs may have been started with another number
for ((i = 1; i <= NODES; i++)); do start_node "n$i"; done
for ((i = 1; i <= NODES; i++)); do wait_for_node "n$i"; done
wait_for_idle
echo "cluster: $NODES nodes with $("$CLUSTER/on" login sinfo -V) after $((SECONDS - started)) s, state in $LAB"

[ -z "${SMALL:-}" ] || exit 0
started=$SECONDS
"$CLUSTER/lib/build_image.sh"
echo "cluster: image /scratch/img/verl-cpu.sif after $((SECONDS - started)) s; try: $CLUSTER/on n1 -u alice hostname"
