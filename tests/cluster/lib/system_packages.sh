#!/bin/bash
# Installs shellcheck and mmdebstrap where root on a Debian lacks them; elsewhere says what will be skipped.
set -euo pipefail

missing=()
for tool in shellcheck mmdebstrap; do
  command -v "$tool" >/dev/null || missing+=("$tool")
done
[ ${#missing[@]} -gt 0 ] || exit 0

if [ "$(id -u)" != 0 ] || [ ! -e /etc/debian_version ]; then
  echo "note: no ${missing[*]} here, and only root on a Debian can install them by make: checks that need them are skipped"
  exit 0
fi
echo "setup: apt-get install ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
