#!/bin/sh
# Print the UUID of every GPU, and of every MIG instance, that this container sees, one a line.
# The engine's own toolkit brings nvidia-smi along; without it nothing is seen.
command -v nvidia-smi >/dev/null 2>&1 || exit 0
nvidia-smi -L | sed -n 's/.*UUID: \([A-Za-z0-9/-]*\)).*/\1/p'
