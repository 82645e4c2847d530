#!/bin/bash
# Builds the root that all nodes share, if it is not there, and prints its path.
# usage: build_rootfs.sh SUITE
#   trixie   Slurm 24.11, with Apptainer alone from sid (stable has none)
#   sid      the newest Slurm
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
. "$(dirname "${BASH_SOURCE[0]}")/debian.sh"
SUITE=$1

PACKAGES=apptainer,slurmctld,slurmd,slurm-client,slurmdbd,mariadb-server,munge
PACKAGES+=,squashfuse,squashfs-tools,fuse3,fuse-overlayfs,fuse2fs,gocryptfs,uidmap,libseccomp2 # what Apptainer needs without setuid
PACKAGES+=,iproute2,iputils-ping,procps,psmisc,hostname,util-linux,curl,ca-certificates,tzdata
PACKAGES+=,python3,python3-jinja2,python3-pydantic,python3-yaml # what singularity.build needs

root=$LAB/rootfs/$SUITE-$(printf '%s' "$PACKAGES" | sha256sum | cut -c1-8)
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
  case $SUITE in
  trixie)
    sources+=("$(debian_source "$mirror" sid)")
    pin=$LAB/tmp/sid.pref
    printf '%s\n' 'Package: *' 'Pin: release n=sid' 'Pin-Priority: -1' '' \
      'Package: apptainer' 'Pin: release n=sid' 'Pin-Priority: 990' >"$pin"
    # shellcheck disable=SC2016 # $1 is for mmdebstrap's shell
    options+=(--setup-hook='mkdir -p "$1/etc/apt/preferences.d"' --setup-hook="copy-in $pin /etc/apt/preferences.d")
    ;;
  sid) ;;
  *) die "SUITE=$SUITE is not known; one of: trixie sid" ;;
  esac
  mmdebstrap --quiet --mode=root --variant=apt --components=main "${SLIM[@]}" "${options[@]}" \
    --include="$PACKAGES" "$SUITE" "$root.part" "${sources[@]}" >&2

  # Apptainer gives root all capabilities and fails where this machine's root lacks one, as in a container.
  sed -i 's/^root default capabilities = full/root default capabilities = file/' "$root.part/etc/apptainer/apptainer.conf"
  chroot "$root.part" useradd -u "$ALICE" -M -d /home/alice -s /bin/bash alice
  for file in subuid subgid; do
    printf 'root:300000:65536\nalice:100000:65536\n' >"$root.part/etc/$file" # ids for image builds without root
  done
  mv "$root.part" "$root"
fi
printf '%s\n' "$root"
