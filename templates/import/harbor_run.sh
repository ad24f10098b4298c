#!/usr/bin/env bash
# Publish what the task declares as its artifacts, as it lies in the workspace, for the tests.
set -euo pipefail

published=/out/checkpoints/checkpoint-1
mkdir -p "$published"
cd /workspace
while IFS= read -r path; do
  [ -e "$path" ] || [ -L "$path" ] || continue
  mkdir -p "$published/$(dirname "$path")"
  cp -a "$path" "$published/$path"
done <<'ARTIFACTS'
@ARTIFACTS@
ARTIFACTS
