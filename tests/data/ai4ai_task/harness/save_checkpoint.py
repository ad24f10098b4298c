"""Publish one file as a checkpoint: made beside its place, then renamed."""

import argparse
import shutil
from pathlib import Path

parser = argparse.ArgumentParser()
for name in ("--output", "--progress", "--source", "--payload-name"):
    parser.add_argument(name, required=True)
said = parser.parse_args()
checkpoints = Path(said.output, "checkpoints")
new = checkpoints / f".checkpoint-{said.progress}"
new.mkdir(parents=True)
shutil.copyfile(said.source, new / said.payload_name)
new.rename(checkpoints / f"checkpoint-{said.progress}")
