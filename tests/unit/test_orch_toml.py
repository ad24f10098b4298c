"""``orch.toml``: who may be on a GPU, and what is said of a file that is wrong."""

from pathlib import Path

import pytest

from orchestrator import wiring
from orchestrator.config import Settings
from orchestrator.errors import UsageError


def settings(folder: Path, text: str | None) -> Settings:
    if text is not None:
        (folder / "orch.toml").write_text(text)
    return Settings.from_environment({"ORCH_HOME": str(folder)})


def test_permitted_holders_are_read_with_links_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/usr/bin/real-exporter")
    text = (
        "[gpu]\npermitted = [\n"
        '  {executable = "/usr/lib/xorg/Xorg", memory = "300MiB"},\n'
        f'  {{executable = "{tmp_path}/link", memory = "100MiB"}},\n]\n'
    )
    first, second = wiring.permitted_holders(settings(tmp_path, text))
    assert (first.executable, first.memory) == ("/usr/lib/xorg/Xorg", 300 * 1024**2)
    assert second.executable == str(Path("/usr/bin/real-exporter").resolve())


@pytest.mark.parametrize("text", [None, "", "[providers.some]\nkind = 'x'\n"])
def test_nobody_is_permitted_by_default(tmp_path: Path, text: str | None) -> None:
    assert wiring.permitted_holders(settings(tmp_path, text)) == ()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[gpu]\npermitted = 3 3\n", "at line 2"),
        ("[gpu]\npermited = []\n", "gpu.permited: "),
        ('[gpu]\npermitted = [{executable = "/x"}]\n', r"gpu\.permitted\.0\.memory: "),
        ('[gpu]\npermitted = [{executable = "x", memory = 1}]\n', "executable: .*absolute"),
        ('[gpu]\npermitted = [{executable = "/x", memory = "1 flop"}]\n', "memory: .*a size"),
        ("gpu = 3\n", "gpu: "),
        (
            "[gpuu]\npermitted = []\n",
            r"\[gpuu\] is no section of it; \[gpu\] and \[providers\] are",
        ),
        ("\udcff", "orch.toml: "),
        ("a = " + "[" * 100_000, "recursion"),
    ],
)
def test_a_bad_file_is_one_line_that_names_the_place(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "orch.toml").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(UsageError, match=says) as refusal:
        wiring.permitted_holders(settings(tmp_path, None))
    assert str(tmp_path / "orch.toml") in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert "README" in refusal.value.remedy


def test_a_file_that_cannot_be_read_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "orch.toml").mkdir()
    with pytest.raises(UsageError, match="Is a directory"):
        wiring.permitted_holders(settings(tmp_path, None))
