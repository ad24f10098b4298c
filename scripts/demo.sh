#!/usr/bin/env bash
# The main job on digits_class0: explore with the scripted agent, replay, score, report.
set -euo pipefail
cd "$(dirname "$0")/.."

task=digits_class0

orch() {
    printf '\n$ orch %s\n' "$*" >&2
    .venv/bin/orch "$@"
}

first_id() {  # of a JSON list on standard input
    .venv/bin/python -c 'import json, sys; print(json.load(sys.stdin)[0]["id"])'
}

orch images build
orch task prepare "$task"
explored=$(orch explore "$task" --agent scripted --model none --json)
attempt=$(first_id <<< "$explored")
orch replay "$attempt"
orch status
orch report "$attempt"
printf '\nto look further: .venv/bin/orch show %s\n' "$attempt"
