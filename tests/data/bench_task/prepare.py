"""Make one small file for every asset."""

import sys
from pathlib import Path

for asset in ("models/start", "data/train", "data/final"):
    folder = Path(sys.argv[1]) / asset
    folder.mkdir(parents=True)
    (folder / "content.txt").write_text(asset)
