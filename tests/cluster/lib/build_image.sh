#!/bin/bash
# Builds /scratch/img/verl-cpu.sif as alice on the login node, if its inputs changed: by singularity.build, from a Debian 12
# and the wheels that .venv was installed from. No network is needed but for the Debian base.
# The toolkit is not one of the inputs: the image's copy may be older, and a test that wants the present one builds an image
# from this one (built_from in image_builds.py), which takes seconds.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
. "$(dirname "${BASH_SOURCE[0]}")/debian.sh"

IMAGES=$LAB/shared/scratch/img
WHEELS=$CHECKOUT/.cache/wheels/cpu
BASE_PACKAGES=python3,python3-venv,curl,ca-certificates,iproute2,procps,hostname,tzdata
base=$IMAGES/base-$(printf '%s' "$BASE_PACKAGES" | sha256sum | cut -c1-8)

build() { # OPTION...
  # lz4: the image lives on this machine only, so time counts and size does not.
  # shellcheck disable=SC2016 # expanded on the login node
  "$CLUSTER/on" login -u alice sh -c 'cd "$0" && exec python3 -m singularity.build "$@"' "$CHECKOUT" \
    --stack cpu --from "localimage:///scratch/img/${base##*/}" --mksquashfs-args '-comp lz4' "$@"
}

inputs=$(build --print-def | cat - "$CHECKOUT"/singularity/{inside,installed}.py | sha256sum)
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
rm -rf "$IMAGES/wheels" "$IMAGES/verl-cpu.inputs"
cp -rl "$WHEELS" "$IMAGES/wheels" 2>/dev/null || cp -r "$WHEELS" "$IMAGES/wheels" # links, on one file system
# What it prints is kept for a test.
build --force --wheels /scratch/img/wheels -o /scratch/img/verl-cpu.sif --json >"$IMAGES/verl-cpu.json" 2>"$IMAGES/verl-cpu.log" || {
  tail -n 30 "$IMAGES/verl-cpu.log" >&2
  die "verl-cpu.sif cannot be built; all of it: $IMAGES/verl-cpu.log"
}
rm -rf "$IMAGES/wheels"
printf '%s\n' "$inputs" >"$IMAGES/verl-cpu.inputs"
