"""Accept whatever a candidate of a Harbor task published: its tests alone judge it."""

import json
from pathlib import Path

Path("/out/validation.json").write_text(
    json.dumps({"valid": True, "reason": "", "detail": ""}), encoding="utf-8"
)
