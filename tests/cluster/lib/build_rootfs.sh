#!/bin/bash
# Builds the root that all nodes share, if it is not there, and prints its path.
# usage: build_rootfs.sh SUITE
#   bookworm Slurm 22.05, small only: no Apptainer of sid installs on it
#   trixie   Slurm 24.11, with Apptainer alone from sid (stable has none)
#   sid      the newest Slurm
# SMALL=1 leaves out Apptainer and accounting; MORE_PACKAGES="a b" adds packages.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
. "$(dirname "${BASH_SOURCE[0]}")/debian.sh"
SUITE=$1

if [ -n "${SMALL:-}" ]; then
  packages=slurmctld,slurmd,slurm-client,munge,iproute2,procps,hostname,util-linux,mount,passwd,python3
else
  packages=apptainer,slurmctld,slurmd,slurm-client,slurmdbd,mariadb-server,munge
  packages+=,squashfuse,squashfs-tools,fuse3,fuse-overlayfs,fuse2fs,gocryptfs,uidmap,libseccomp2 # what Apptainer needs without setuid
  packages+=,iproute2,iputils-ping,procps,psmisc,hostname,util-linux,curl,ca-certificates,tzdata
  packages+=,python3,python3-jinja2,python3-pydantic,python3-yaml # what singularity.build needs
fi
for package in ${MORE_PACKAGES:-}; do packages+=,$package; done

root=$LAB/rootfs/$SUITE-$(printf '%s' "$packages" | sha256sum | cut -c1-8)
if [ ! -d "$root" ]; then
  require_root
  require_mmdebstrap
  mirror=$(debian_mirror)
  echo "cluster: building the nodes' root ($SUITE)" >&2
  mkdir -p "$LAB/rootfs" "$LAB/tmp"
  export TMPDIR=$LAB/tmp
  rm -rf "$root.part"

  options=()
  sources=("$(debian_source "$mirror" "$SUITE")")
  case $SUITE${SMALL:+-small} in
  trixie)
    sources+=("$(debian_source "$mirror" sid)")
    pin=$LAB/tmp/sid.pref
    printf '%s\n' 'Package: *' 'Pin: release n=sid' 'Pin-Priority: -1' '' \
      'Package: apptainer' 'Pin: release n=sid' 'Pin-Priority: 990' >"$pin"
    # shellcheck disable=SC2016 # $1 is for mmdebstrap's shell
    options+=(--setup-hook='mkdir -p "$1/etc/apt/preferences.d"' --setup-hook="copy-in $pin /etc/apt/preferences.d")
    ;;
  sid | bookworm-small | trixie-small | sid-small) ;;
  bookworm) die "SUITE=bookworm is for SMALL=1 only: Apptainer of sid does not install on it" ;;
  *) die "SUITE=$SUITE is not known; one of: bookworm trixie sid" ;;
  esac
  mmdebstrap --quiet --mode=root --variant=apt --components=main "${SLIM[@]}" "${options[@]}" \
    --include="$packages" "$SUITE" "$root.part" "${sources[@]}" >&2

  if [ -z "${SMALL:-}" ]; then
    # Apptainer gives root all capabilities and fails where this machine's root lacks one, as in a container.
    sed -i 's/^root default capabilities = full/root default capabilities = file/' "$root.part/etc/apptainer/apptainer.conf"
  fi
  chroot "$root.part" useradd -u "$ALICE" -M -d /home/alice -s /bin/bash alice
  for file in subuid subgid; do
    printf 'root:300000:65536\nalice:100000:65536\n' >"$root.part/etc/$file" # ids for image builds without root
  done
  mv "$root.part" "$root"
fi
printf '%s\n' "$root"
