#!/usr/bin/env bash
# The one command of a formal replay: train, and publish checkpoints under $OUTPUT_DIR/checkpoints.
set -euo pipefail
cd "$(dirname "$0")"
exec python3 train.py
