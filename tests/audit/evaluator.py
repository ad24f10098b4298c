"""The pack's own modules, as its evaluator finds them beside itself."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from tests.audit.scripts import PACK

sys.path.append(str(PACK / "evaluator"))

import backdoor  # found by the line above
import code_block
import code_checks
import text_checks


def _load(path: Path) -> ModuleType:
    """Load a file whose name other packs have as well."""
    spec = importlib.util.spec_from_file_location(f"audit_{path.stem}", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


final_eval = _load(PACK / "evaluator/final_eval.py")
validator = _load(PACK / "validator/check.py")

__all__ = ["backdoor", "code_block", "code_checks", "final_eval", "text_checks", "validator"]
