"""The README says what the program says."""

import re
from pathlib import Path

from orchestrator.cli.app import COMMANDS
from orchestrator.config import Settings
from orchestrator.errors import Exit

README = Path(__file__).parents[2].joinpath("README.md").read_text(encoding="utf-8")


def test_every_command_is_in_the_table_with_its_own_help_line() -> None:
    rows = dict(re.findall(r"^\| `orch ([a-z-]+)` \| (.+?) \|$", README, re.MULTILINE))
    assert rows == {name: line for name, _module, line in COMMANDS}


def test_every_exit_code_is_in_the_table() -> None:
    codes = {int(code) for code in re.findall(r"^\| ([0-9]+) \|", README, re.MULTILINE)}
    assert codes == {int(code) for code in Exit}


def test_every_setting_is_in_the_table_with_its_default() -> None:
    settings = Settings.from_environment({"HOME": "/home/somebody"})
    rows = dict(re.findall(r"^\| `(ORCH_[A-Z]+)` \| `([^`]+)` \|", README, re.MULTILINE))
    fields = ("runs", "home", "assets", "host", "runtime")
    assert rows.keys() == {f"ORCH_{name.upper()}" for name in fields}
    for name in fields:
        shown = rows[f"ORCH_{name.upper()}"].replace("~", "/home/somebody").removeprefix("./")
        assert str(getattr(settings, name)).endswith(shown), name
