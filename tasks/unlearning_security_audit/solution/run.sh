#!/usr/bin/env bash
# The one command of a formal replay: run the code of every answer, and publish what each one gave.
set -euo pipefail
cd "$(dirname "$0")"
exec python3 run_answers.py
