#!/bin/sh
# Print the UUID of every GPU, and of every MIG instance, that this container can use, one a line.
if command -v nvidia-smi >/dev/null 2>&1; then
    nvidia-smi -L | sed -n 's/.*UUID: \([A-Za-z0-9/-]*\)).*/\1/p'
    exit 0
fi
for facts in /proc/driver/nvidia/gpus/*/information; do
    [ -r "$facts" ] || continue
    minor=$(sed -n 's/^Device Minor:[[:space:]]*//p' "$facts")
    if [ -c "/dev/nvidia$minor" ]; then
        sed -n 's/^GPU UUID:[[:space:]]*//p' "$facts"
    fi
done
