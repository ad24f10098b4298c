#!/usr/bin/env bash
# The image's own proxy: how close a checkpoint is to the hint.
set -euo pipefail
python3 -c 'import sys; print("{\"closeness_to_hint\": %.3f}" % -abs(
    float(open(sys.argv[1] + "/model.pt").read()) - float(open("/assets/data/peek/hint.txt").read())
))' "$1"
