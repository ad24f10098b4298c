import json
import logging as standard
from pathlib import Path

import pytest

from orchestrator.cli import logging
from orchestrator.cli.context import Invocation
from orchestrator.config import Settings
from tests.unit.sample_runs import HOSTILE

LOGGER = standard.getLogger(logging.LOGGER)


@pytest.fixture(autouse=True)
def _defaults() -> object:
    yield
    LOGGER.handlers = []
    LOGGER.propagate = True


def _configure(folder: Path, *, verbose: bool) -> Path:
    settings = Settings.from_environment({"ORCH_RUNS": str(folder)})
    logging.configure(Invocation(settings, verbose=verbose))
    return folder / logging.LOG_NAME


def test_nothing_is_made_before_something_is_logged(tmp_path: Path) -> None:
    path = _configure(tmp_path / "runs", verbose=True)
    assert not path.parent.exists()


@pytest.mark.parametrize("verbose", [False, True])
def test_LG_01_a_log_line_is_escaped_in_the_file_and_cleaned_on_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *, verbose: bool
) -> None:
    path = _configure(tmp_path / "runs", verbose=verbose)
    LOGGER.warning("odd", extra={logging.FACTS: {"said": HOSTILE}})
    raw = path.read_bytes()
    assert all(0x20 <= byte < 0x7F for byte in raw.removesuffix(b"\n"))
    entry = json.loads(raw)
    assert (entry["event"], entry["level"], entry["said"]) == ("odd", "warning", HOSTILE)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert ("warning odd said=" in captured.err) is verbose
    assert len(captured.err.splitlines()) == int(verbose)
    assert "\x1b" not in captured.err


def test_an_exception_is_logged_with_its_traceback(tmp_path: Path) -> None:
    path = _configure(tmp_path, verbose=False)
    try:
        int("why")
    except ValueError:
        LOGGER.exception("failed")
    assert "ValueError: invalid literal" in json.loads(path.read_text())["exception"]
