#!/bin/bash
# Builds /scratch/img/verl-cpu.sif as alice on the login node, if its inputs changed: a Debian 12 with the CPU stack from
# the wheels that .venv was installed from. No network is needed but for the Debian base.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
. "$(dirname "${BASH_SOURCE[0]}")/debian.sh"

IMAGES=$LAB/shared/scratch/img
STACK=singularity/stacks/cpu
WHEELS=.cache/wheels/cpu
BASE_PACKAGES=python3,python3-venv,curl,ca-certificates,iproute2,procps,hostname,tzdata

cd "$CHECKOUT" || exit
inputs=$(cat "$STACK"/requirements*.txt "$STACK/cpu.def" - <<<"$BASE_PACKAGES" | sha256sum)
if [ -e "$IMAGES/verl-cpu.sif" ] && [ "$(cat "$IMAGES/verl-cpu.inputs" 2>/dev/null)" = "$inputs" ]; then
  exit 0
fi

[ -e "$WHEELS/.complete" ] || die "no wheels in $WHEELS; run: make setup"
for wheel in "$WHEELS"/torch-*; do
  case $wheel in
  *-cp311-*) ;;
  *) die "the image has Debian 12's Python 3.11, and .venv's wheels are for another ($wheel);" \
    "make the environment again: rm -r .venv $WHEELS && make setup PYTHON=python3.11" ;;
  esac
done

mkdir -p "$IMAGES" "$LAB/tmp"
chown "$ALICE:$ALICE" "$IMAGES"
base=$IMAGES/base-$(printf '%s' "$BASE_PACKAGES" | sha256sum | cut -c1-8)
if [ ! -d "$base" ]; then
  require_root
  require_mmdebstrap
  echo "cluster: building the image's Debian 12 base" >&2
  rm -rf "$IMAGES"/base-*
  TMPDIR=$LAB/tmp mmdebstrap --quiet --mode=root --variant=minbase --components=main "${SLIM[@]}" \
    --include="$BASE_PACKAGES" bookworm "$base.part" "$(debian_source "$(debian_mirror)" bookworm)" >&2
  find "$base.part/dev" -mindepth 1 -delete # an unprivileged build cannot copy device nodes
  chown -R "$ALICE:$ALICE" "$base.part"     # root inside alice's user namespace
  chmod -R u+rwX "$base.part"
  mv "$base.part" "$base"
fi

echo "cluster: building verl-cpu.sif" >&2
# In /scratch, because a build shows the builder's home as /root and hides a checkout that lies there.
build=$IMAGES/build
rm -rf "$build" "$IMAGES/verl-cpu.inputs"
mkdir -p "$build/$STACK"
cp "$STACK"/requirements*.txt "$STACK/cpu.def" "$build/$STACK/"
cp -rl "$WHEELS" "$build/wheels" 2>/dev/null || cp -r "$WHEELS" "$build/wheels" # links, on one file system
# lz4: the image lives on this machine only, so time counts and size does not.
"$CLUSTER/on" login -u alice sh -ec "
  cd /scratch/img/build
  export APPTAINER_TMPDIR=\$(mktemp -d) APPTAINER_CACHEDIR=\$HOME/.cache/apptainer
  trap 'rm -rf \"\$APPTAINER_TMPDIR\"' EXIT
  singularity --quiet build --force --notest --mksquashfs-args '-comp lz4' \
    --bind /scratch/img/build/wheels:/mnt --build-arg bootstrap=localimage \
    --build-arg from='/scratch/img/${base##*/}' --build-arg pip_options='--no-index --find-links /mnt' \
    /scratch/img/verl-cpu.sif '$STACK/cpu.def'" >&2
rm -rf "$build"
printf '%s\n' "$inputs" >"$IMAGES/verl-cpu.inputs"
