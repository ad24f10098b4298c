#!/bin/sh
# Print the whole seconds left until the host ends this phase; with --human, in words.
# Advice only: the host keeps its own clock.
set -eu

case "${1:-}" in
  '' | --human) ;;
  *)
    echo "usage: timer.sh [--human]" >&2
    exit 64
    ;;
esac

file="${ORCH_LOGS_DIR:-/logs}/deadline.json"
# /proc/uptime counts on the clock that the deadline is given in.
deadline=$(sed -n 's/.*"deadline_boottime_ns": *"\{0,1\}\([0-9]\{1,19\}\).*/\1/p' "$file")
if [ -z "$deadline" ]; then
  echo "timer.sh: no deadline in $file" >&2
  exit 1
fi
read -r uptime _ </proc/uptime
left=$((deadline / 1000000000 - ${uptime%.*}))
if [ "$left" -lt 0 ]; then
  left=0
fi

if [ "${1:-}" = --human ]; then
  printf '%d h %02d min %02d s left\n' $((left / 3600)) $((left % 3600 / 60)) $((left % 60))
else
  echo "$left"
fi
