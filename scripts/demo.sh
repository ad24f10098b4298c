#!/usr/bin/env bash
# A whole job on a task: explore, replay, score, report, verify. demo.sh TASK "IMAGES" [EXPLORE-OPTION...]
set -euo pipefail
cd "$(dirname "$0")/.."

task=$1
read -r -a images <<< "$2"
options=("${@:3}")

orch() {
    printf '\n$ orch %s\n' "$*" >&2
    .venv/bin/orch "$@"
}

field() {  # NAME: of the first object of a JSON list, or of a JSON object, on standard input
    .venv/bin/python -c '
import json, sys
found = json.load(sys.stdin)
print((found[0] if isinstance(found, list) else found)[sys.argv[1]])' "$1"
}

orch images build "${images[@]}"
orch task prepare "$task"
explored=$(orch explore "$task" "${options[@]}" --json)
attempt=$(field id <<< "$explored")
folder=$(field path <<< "$explored")
orch replay "$attempt"
orch status
orch compare "$task"
orch report "$attempt"
# A check that is to convince somebody takes the key and the task's digest from elsewhere.
keys=()
for key in "$(dirname "$(dirname "$folder")")"/keys/*.pem; do
    keys+=(--key "$key")
done
orch verify "$folder" "${keys[@]}" --task "$(field task_digest < "$folder/plan.json")"
printf '\n(here key and task come from the runs folder itself: take them from elsewhere to be sure)\n'
printf 'to look further: .venv/bin/orch show %s\n' "$attempt"
