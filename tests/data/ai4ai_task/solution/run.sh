#!/usr/bin/env bash
# Guess twice. What AI4AI-Bench's runner promises a run is checked first.
set -euo pipefail

is() {
  [ "$1" = "$2" ] || { echo "run.sh: '$1' is not '$2'" >&2; exit 7; }
}

export OUTPUT_DIR=${OUTPUT_DIR:-/out/work}
root=${OUTPUT_DIR%/*}
is "$HOME ${XDG_CACHE_HOME:-none} $WANDB_MODE" "/tmp none disabled"
is "$START" /assets/models/first-guess
if [ "$root" = /out ]; then  # the formal run
  is "$TRAIN_DATA $(ls /assets/data)" "/assets/data/rows.jsonl answer
rows.jsonl"
  is "$MAX_WALL_TIME_SECONDS $DEADLINE_RESERVE_SECONDS" "13800 600"
fi
mkdir -p "$OUTPUT_DIR"
for progress in 2 3; do
  python3 /workspace/train.py "$START" /assets/data/rows.jsonl "$progress" > "$OUTPUT_DIR/guess"
  python3 /opt/harness/save_checkpoint.py --output "$root" --progress "$progress" \
    --source "$OUTPUT_DIR/guess" --payload-name model.pt
done
