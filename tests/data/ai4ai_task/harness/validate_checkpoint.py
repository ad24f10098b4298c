"""Say whether a guess is a number within what lies open; the answer itself is not to be seen."""

import argparse
import json
from pathlib import Path

parser = argparse.ArgumentParser()
for name in ("--task", "--checkpoint", "--assets", "--output"):
    parser.add_argument(name, required=True)
said = parser.parse_args()
assets = Path(said.assets)
assert (assets / "data/answer/open.txt").is_file()  # what lies open, in the answer's place
assert not (assets / "data/answer/answer.txt").exists()
assert not (assets / "models/bounds").exists()
guess = float(Path(said.checkpoint).read_text())
verdict = {"status": "valid", "task": said.task, "details": {"guess": guess}}
if guess < 0:
    verdict = {"status": "invalid", "reason": "ValueError: a guess below zero"}
Path(said.output).write_text(json.dumps(verdict))
