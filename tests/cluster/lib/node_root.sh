#!/bin/bash
# Runs as pid 1 of a node's fresh namespaces: builds the node's root and hands over to its init.
# usage: node_root.sh NODE ADDRESS      (LAB, CLUSTER, CHECKOUT from the environment)
set -euo pipefail
NODE=$1
ADDRESS=$2
# shellcheck source=/dev/null
. "$LAB/run/settings" # ROOTFS GPUS BINDS

state=$LAB/nodes/$NODE
root=$state/root

make_root() {
  mount --make-rprivate /
  mkdir -p "$state/upper" "$state/work" "$state/tmp" "$root"
  chmod 1777 "$state/tmp"
  mount -t overlay overlay -o "lowerdir=$ROOTFS,upperdir=$state/upper,workdir=$state/work" "$root"
  mount -t proc proc "$root/proc"
  mount -t sysfs -o ro sysfs "$root/sys"
  mount -t tmpfs -o mode=755 tmpfs "$root/sys/fs/cgroup" # slurmd 22.05 does not start when nothing is mounted here
  mount -t tmpfs -o mode=755 tmpfs "$root/run"
  mount --bind "$state/tmp" "$root/tmp"
}

device() { # NAME TYPE MAJOR MINOR MODE
  mknod -m "$5" "$root/dev/$1" "$2" "$3" "$4"
}

make_devices() {
  local i
  mount -t tmpfs -o mode=755 tmpfs "$root/dev"
  mkdir -p "$root/dev/pts" "$root/dev/shm" "$root/dev/mqueue"
  mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts "$root/dev/pts"
  mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
  device null c 1 3 666
  device zero c 1 5 666
  device full c 1 7 666
  device random c 1 8 666
  device urandom c 1 9 666
  device tty c 5 0 666
  device fuse c 10 229 666 # images of unprivileged users are mounted by FUSE
  ln -s pts/ptmx "$root/dev/ptmx"
  ln -s /proc/self/fd "$root/dev/fd"
  ln -s fd/0 "$root/dev/stdin"
  ln -s fd/1 "$root/dev/stdout"
  ln -s fd/2 "$root/dev/stderr"
  if [ "$NODE" != login ]; then
    # GPUs for Slurm to give out; they behave like /dev/null.
    for ((i = 0; i < GPUS; i++)); do device "nvidia$i" c 1 3 666; done
    device nvidiactl c 1 3 666
  fi
}

share() { # SOURCE TARGET
  mkdir -p "$root$2"
  mount --bind "$1" "$root$2"
}

# A folder of this machine at its own path, read-only. Its parents are made passable in the node only: a checkout under
# /root is of no use to an unprivileged user otherwise.
share_read_only() {
  local parent=$1
  share "$1" "$1"
  mount -o remount,bind,ro "$root$1"
  while parent=$(dirname "$parent") && [ "$parent" != / ]; do chmod a+x "$root$parent"; done
}

make_shared() {
  local folder
  share "$LAB/shared/home" /home
  share "$LAB/shared/scratch" /scratch
  share "$LAB/etc/slurm" /etc/slurm
  for folder in $BINDS; do share_read_only "$folder"; done
}

make_identity() {
  hostname "$NODE"
  echo "$NODE" >"$root/etc/hostname"
  cp "$LAB/etc/hosts" "$root/etc/hosts"
  mkdir -p "$root/etc/munge"
  install -m 400 "$LAB/etc/munge.key" "$root/etc/munge/munge.key"
  chroot "$root" chown munge:munge /etc/munge/munge.key
  install -m 755 "$CLUSTER/lib/node_init.sh" "$root/sbin/node-init"
}

make_root
make_devices
make_shared
make_identity
# Not a plain chroot: Apptainer itself calls pivot_root, which the kernel refuses under one.
mkdir -p "$root/.old"
cd "$root"
pivot_root . .old
# shellcheck disable=SC2016
exec chroot . /bin/bash -c 'umount -l /.old && rmdir /.old && exec /sbin/node-init "$@"' bash "$NODE" "$ADDRESS"
