# Sourced: Debian roots with mmdebstrap.
# shellcheck shell=bash

KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg
# Documents, manuals and translations are two fifths of the files.
SLIM=(
  --aptopt='APT::Install-Recommends "false"' --aptopt='Acquire::Check-Valid-Until "false"'
  --aptopt='Acquire::Languages "none"' --dpkgopt='path-exclude=/usr/share/doc/*'
  --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*'
)
export SLIM

debian_mirror() { # $MIRROR, or the one that this machine uses
  # shellcheck disable=SC2016 # apt-get expands it
  local found=${MIRROR:-} targets=(indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian')
  [ -n "$found" ] || found=$(apt-get "${targets[@]}" | grep -v security | head -1)
  if [ -z "$found" ]; then # no package lists yet
    apt-get update -qq
    found=$(apt-get "${targets[@]}" | grep -v security | head -1)
  fi
  [ -n "$found" ] || die "no Debian mirror in this machine's sources; set MIRROR"
  printf '%s\n' "$found"
}

debian_source() { # MIRROR SUITE
  printf 'deb [signed-by=%s] %s %s main\n' "$KEYRING" "$1" "$2"
}

require_mmdebstrap() {
  command -v mmdebstrap >/dev/null || die "mmdebstrap is missing: apt-get install mmdebstrap (make cluster-up does it)"
}
