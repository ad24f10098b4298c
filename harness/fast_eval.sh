#!/bin/sh
# Run the task's proxy evaluator and print its JSON: fast_eval.sh [ARGS]
set -eu

if [ -z "${ORCH_PROXY_COMMAND:-}" ]; then
  echo "fast_eval.sh: this task has no proxy evaluator" >&2
  exit 64
fi
case "$ORCH_PROXY_COMMAND" in
  *.py) exec python3 "$ORCH_PROXY_COMMAND" "$@" ;;
  *) exec bash "$ORCH_PROXY_COMMAND" "$@" ;;
esac
