#!/usr/bin/env bash
# The one command of a formal replay: pretrain, unlearn, and publish the weights of all seeds.
set -euo pipefail
cd "$(dirname "$0")"
exec python3 -m bench.harness
