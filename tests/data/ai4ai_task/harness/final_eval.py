"""Measure how far a guess is from the answer. It writes a summary of its own, and no receipt."""

import argparse
import json
import os
from pathlib import Path

parser = argparse.ArgumentParser()
for name in ("--checkpoint", "--assets", "--output", "--reward-path", "--seed", "--gpus"):
    parser.add_argument(name, required=True)
said = parser.parse_args()
assets = Path(said.assets)
assert (said.seed, said.gpus) == ("123", "0")
assert os.environ["EVALUATOR_SETTING"] == "as declared"
assert os.environ["SCORER"] == "an image of its own"
assert (assets / "models/first-guess/guess.txt").is_file()
assert (assets / "data/rows.jsonl").is_file()
answer = float((assets / "data/answer/answer.txt").read_text())
most = float((assets / "models/bounds/most.txt").read_text())
guess = float(Path(said.checkpoint).read_text())
Path(said.reward_path).write_text(f"{-abs(guess - answer)}\n")
summary = {"metric": "distance", "direction": "min", "rows": ["a final row"], "n": 1}
if guess > most:
    summary |= {"status": "invalid", "reason": "out of bounds, says a sentence"}
else:
    summary |= {"status": "passed", "score": abs(guess - answer), "metrics": {"guess": guess}}
Path(said.output, "summary.json").write_text(json.dumps(summary))
