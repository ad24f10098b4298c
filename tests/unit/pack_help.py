"""A small task pack for tests, and ways to spoil it."""

from pathlib import Path

TASK = """\
schema: orch.task/1
name: tiny
workspace: {from: solution/}
assets:
  models/start:
    role: anchor
    source: {prepare: prepare.py}
  data/train: {role: train, source: {prepare: prepare.py}}
  data/final:  # held out
    role: final
    source: {prepare: prepare.py}
score:
  command: evaluator/final_eval.py
  metric: score
proxy: {command: proxy/fast_eval.py, metric: guess}
"""


def make_pack(folder: Path, text: str = TASK) -> Path:
    """Write a whole pack and return its ``task.yaml``."""
    for name in ("solution/run.sh", "evaluator/final_eval.py", "proxy/fast_eval.py", "prepare.py"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n")
    (folder / "solution/run.sh").chmod(0o755)
    (folder / "instruction.md").write_text("Do it.\n")
    task = folder / "task.yaml"
    task.write_text(text)
    return task


def line_of(text: str, part: str) -> int:
    """The line, from 1, on which ``part`` first stands."""
    return text[: text.index(part)].count("\n") + 1
