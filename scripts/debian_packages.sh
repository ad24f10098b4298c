#!/usr/bin/env bash
# Install Debian packages, as root on Debian or Ubuntu; elsewhere say what is missing, exit 69.
set -euo pipefail

missing=()
for package in "$@"; do
    if ! dpkg-query --show --showformat='${Status}' "$package" 2>/dev/null | grep -q ' installed$'; then
        missing+=("$package")
    fi
done
if [ "${#missing[@]}" -eq 0 ]; then
    exit 0
fi
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get > /dev/null; then
    echo "missing: ${missing[*]}; on Debian or Ubuntu: sudo apt-get install ${missing[*]}" >&2
    exit 69
fi
echo "installing ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
export DEBIAN_FRONTEND=noninteractive
if ! { apt-get update && apt-get install --yes --no-install-recommends "${missing[@]}"; } \
    < /dev/null > "$log" 2>&1; then
    tail -n 20 "$log" >&2
    exit 69
fi
