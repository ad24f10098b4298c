"""The cache of agents' packages, with stand-ins for npm and pip."""

import json
import os
import stat
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.adapters import agent_store
from orchestrator.adapters.agent_store import AgentStore
from orchestrator.adapters.fake_clock import FakeClock
from orchestrator.cli import app
from orchestrator.domain.agent_package import InstalledAgent, PackageSource, Registry
from orchestrator.errors import AssetMismatchError, Exit, InfrastructureError, UsageError
from orchestrator.evidence.tree import tree_digest
from orchestrator.storage.assets import discard

SOURCE = PackageSource(
    agent="codex",
    registry=Registry.NPM,
    package="@some/agent",
    version="1.2.3",
    program=("node_modules/@some/agent-*/bin/agent",),
    beside=("node-{machine}@22",),
)
PYPI = replace(
    SOURCE,
    registry=Registry.PYPI,
    package="some-agent",
    program=("agent/__init__.py",),
    beside=(),
)
CLIENT = """\
#!{python}
import json, os, re, sys
from pathlib import Path
with open({calls!r}, "a") as log:
    log.write(" ".join(sys.argv[1:]) + "\\n")
flag = "--prefix" if "--prefix" in sys.argv else "--target"
target = Path(sys.argv[sys.argv.index(flag) + 1])
(asked,) = (word for word in sys.argv if word.startswith(("@some/agent", "some-agent")))
version = re.fullmatch("@?[a-z/-]+(?:==|@)?(.*)", asked)[1]
version = {{"latest": "3.0.1", "": "3.0.1", "2.0": "2.0.4"}}.get(version, version)
files = dict({files!r})
files["node_modules/@some/agent/package.json"] = json.dumps({{"version": version}})
about = f"some_agent-{{version}}.dist-info/METADATA"
files[about] = f"Name: some-agent\\nVersion: {{version}}\\n"
for name, text in files.items():
    path = target / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755 if name.endswith("agent") else 0o664)
sys.stderr.write({said!r})
sys.exit({code})
"""
FILES = {
    "package.json": "{}",
    "package-lock.json": "https://a.mirror.of.this.host",
    "node_modules/.package-lock.json": "{}",
    "node_modules/.bin/agent": "a link, as a rule",
    "bin/agent": "#!/this/host/python",
    "node_modules/@some/agent-linux-x64/bin/agent": "the program",
    "agent/__init__.py": "x = 1\n",
}


class Shelf:
    """A store, and a client of the registry in front of everything on the path."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.calls = root, root / "calls"
        self.store = AgentStore(root / "agents", FakeClock())
        self.client(FILES)
        monkeypatch.setenv("PATH", f"{root / 'bin'}:{os.environ['PATH']}")
        monkeypatch.setattr(agent_store.sys, "executable", str(root / "bin" / "npm"))

    def client(self, files: dict[str, str], *, said: str = "", code: int = 0) -> None:
        path = self.root / "bin" / "npm"
        path.parent.mkdir(exist_ok=True)
        python = os.path.realpath(PYTHON)
        path.write_text(
            CLIENT.format(python=python, calls=str(self.calls), files=files, said=said, code=code)
        )
        path.chmod(0o755)

    def install(self, version: str | None = None, source: PackageSource = SOURCE) -> InstalledAgent:
        return self.store.install(source, version, lambda _: None)

    def left(self) -> list[str]:
        return sorted(str(p.relative_to(self.store.root)) for p in self.store.root.glob("*/*"))


PYTHON = sys.executable


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shelf:
    return Shelf(tmp_path, monkeypatch)


def test_a_package_is_fetched_once_sealed_and_known_by_its_digest(shelf: Shelf) -> None:
    found = shelf.install()
    assert found.package.digest == tree_digest(found.folder)
    assert found.package.name == "codex@1.2.3"
    assert found.argv() == ("/opt/agent/node_modules/@some/agent-linux-x64/bin/agent",)
    shown = [path for path in found.folder.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in shown)
    assert (found.package.files, found.package.size) == (len(shown), size) == (4, size)
    modes = {stat.S_IMODE(p.stat().st_mode) for p in found.folder.rglob("*")}
    assert modes == {0o555, 0o444}
    assert shelf.install() == found
    assert len(shelf.calls.read_text().splitlines()) == 1
    assert shelf.store.installed() == (found,)


def test_it_is_asked_for_exactly_and_no_script_of_it_is_run(shelf: Shelf) -> None:
    shelf.install("9.9.1")
    (call,) = shelf.calls.read_text().splitlines()
    assert "@some/agent@9.9.1" in call.split()
    assert "--ignore-scripts" in call
    assert "{machine}" not in call


def test_what_names_this_host_is_no_part_of_it(shelf: Shelf) -> None:
    first = shelf.install().package.digest
    discard(shelf.store.root / "codex" / "1.2.3")
    other = {**FILES, "package-lock.json": "https://another.mirror", "bin/agent": "#!/elsewhere"}
    shelf.client(other)
    assert shelf.install().package.digest == first


def test_wheels_are_fetched_for_the_images_python_with_bytecode_that_has_no_times(
    shelf: Shelf, tmp_path: Path
) -> None:
    found = shelf.install(source=PYPI)
    call = shelf.calls.read_text()
    assert "--python-version 3.11" in call
    assert "some-agent==1.2.3" in call
    again = AgentStore(tmp_path / "elsewhere", FakeClock()).install(PYPI, None, lambda _: None)
    assert again.package.digest == found.package.digest
    assert list(found.folder.rglob("*.pyc")) or sys.version_info[:2] != (3, 11)


@pytest.mark.parametrize(
    ("said", "error", "told"),
    [
        ("npm error code ETARGET\nnpm error notarget No matching version", UsageError, "has no"),
        ("npm error code E404\nnpm error 404 Not Found", UsageError, "has no"),
        ("ERROR: No matching distribution found for x", UsageError, "has no"),
        ("npm error code EAI_AGAIN\nnpm error x", InfrastructureError, "cannot be reached"),
        ("npm error code ENOTFOUND\n", InfrastructureError, "cannot be reached"),
        (
            "WARNING: Retrying (Retry(total=0\nERROR: No matching distribution found",
            InfrastructureError,
            "cannot be reached",
        ),
        (
            "npm error code EACCES\nnpm error permission denied, mkdir\nnpm error more",
            InfrastructureError,
            "could not fetch @some/agent@1.2.3: permission denied, mkdir",
        ),
        ("", InfrastructureError, "it did not say why"),
    ],
)
def test_why_it_cannot_be_had_is_one_line_and_nothing_is_left(
    shelf: Shelf, said: str, error: type[Exception], told: str
) -> None:
    shelf.client(FILES, said=said, code=1)
    with pytest.raises(error, match=told) as failure:
        shelf.install()
    assert "\n" not in str(failure.value)
    assert shelf.left() == []
    assert not (shelf.store.root / ".fetching").exists()


def test_a_package_without_its_program_is_refused(shelf: Shelf) -> None:
    shelf.client({"node_modules/@some/agent/README": "for another machine"})
    with pytest.raises(InfrastructureError, match="holds no node_modules"):
        shelf.install()
    assert shelf.left() == []


def test_what_a_killed_fetch_left_goes_first_and_is_never_listed(shelf: Shelf) -> None:
    for left in (shelf.store.root / ".fetching" / "tree", shelf.store.root / "codex" / "1.2.3"):
        left.mkdir(parents=True)
        (left / "half").write_text("x")
        left.chmod(0o555)
    assert shelf.store.installed() == ()
    found = shelf.install()
    assert not (found.folder.parent / "half").exists()
    shelf.store.verify(found)


def test_a_version_is_a_version(shelf: Shelf) -> None:
    for wrong in ("../x", " ", "-rf", "a b", "1" * 99):
        with pytest.raises(UsageError, match="is no version"):
            shelf.install(wrong)


def test_one_that_was_changed_is_refused(shelf: Shelf) -> None:
    found = shelf.install()
    (file,) = found.folder.rglob("__init__.py")
    file.chmod(0o644)
    file.write_text("x = 2\n")
    with pytest.raises(AssetMismatchError, match="was changed") as refusal:
        shelf.store.verify(found)
    assert "orch agents install codex@1.2.3" in refusal.value.remedy


def test_the_tried_version_is_taken_before_a_newer_one(shelf: Shelf) -> None:
    with pytest.raises(UsageError, match="codex is not installed"):
        shelf.store.find(SOURCE, None)
    newer = shelf.install("2.0.0")
    assert shelf.store.find(SOURCE, None) == newer
    tried = shelf.install()
    assert shelf.store.find(SOURCE, None) == tried
    assert shelf.store.find(SOURCE, "2.0.0") == newer
    with pytest.raises(UsageError, match=r"codex@3.0.0 is not installed; there is 1.2.3, 2.0"):
        shelf.store.find(SOURCE, "3.0.0")


@pytest.mark.parametrize("source", [SOURCE, PYPI], ids=["npm", "PyPI"])
@pytest.mark.parametrize(("wanted", "found"), [("latest", "3.0.1"), ("2.0", "2.0.4")])
def test_what_means_another_version_tomorrow_is_pinned_to_todays(
    shelf: Shelf, source: PackageSource, wanted: str, found: str
) -> None:
    said: list[str] = []
    package = shelf.store.install(source, wanted, said.append).package
    assert (package.version, package.name) == (found, f"codex@{found}")
    assert f"{wanted} is {found} now" in said
    assert shelf.left() == [f"codex/{found}"]
    before = shelf.store.installed()
    assert shelf.store.install(source, wanted, said.append) == before[0]
    assert (shelf.store.installed(), shelf.left()) == (before, [f"codex/{found}"])
    with pytest.raises(UsageError, match=f"codex@{wanted} is not installed; there is") as refusal:
        shelf.store.find(source, wanted)
    assert "tells the version to name" in refusal.value.remedy


def test_without_npm_it_says_how_to_get_it(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(shelf.root))
    with pytest.raises(UsageError, match="comes from npm") as refusal:
        shelf.install()
    assert refusal.value.remedy == "apt-get install npm"


def test_the_command_lists_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    store = tmp_path / "orch"
    store.mkdir()
    shelf = Shelf(store, monkeypatch)
    found = shelf.install()
    assert app.run(["agents", "--json"]) == Exit.OK
    rows = {row["agent"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["codex"]["digest"] == found.package.digest
    assert rows["claude-code"]["state"] == "not installed"
    assert rows["loop"]["state"] == "comes with orch"
    assert app.run(["agents"]) == Exit.OK
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split()[:2] == ["codex", "1.2.3"] for line in lines)
    assert app.run(["agents", "install", "loop"]) == Exit.USAGE
    assert app.run(["agents", "install", "codx"]) == Exit.USAGE
    assert "try one of: codex" in capsys.readouterr().err
