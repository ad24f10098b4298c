#!/usr/bin/env bash
# Publish what the task declares as its artifacts, as it lies in the workspace, for the tests.
set -euo pipefail

published=/out/checkpoints/checkpoint-1
mkdir -p "$published"
cd /workspace
for path in @ARTIFACTS@; do
  [ -e "$path" ] || [ -L "$path" ] || continue
  mkdir -p "$published/$(dirname -- "$path")"
  cp -aT -- "$path" "$published/$path"
done
