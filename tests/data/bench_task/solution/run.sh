#!/usr/bin/env bash
set -euo pipefail
for n in 1 2 3; do
    mkdir -p "$OUTPUT_DIR/checkpoints/.new"
    echo "0.$n" > "$OUTPUT_DIR/checkpoints/.new/weights.txt"
    mv "$OUTPUT_DIR/checkpoints/.new" "$OUTPUT_DIR/checkpoints/checkpoint-$n"
done
