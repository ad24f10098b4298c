"""What the real container of each phase sees: exactly the roles of the table, by what it reads."""

import fcntl
from pathlib import Path
from typing import Any

import pytest

from orchestrator.adapters.loop_volumes import may_mount
from orchestrator.adapters.overlay_views import OverlayViews, PlainViews, open_views
from orchestrator.domain.roles import VISIBLE_ROLES, DataRole, Phase
from orchestrator.errors import InfrastructureError
from orchestrator.evidence.rooms import views_of
from tests.e2e.rig import FINAL_TOKEN, Rig
from tests.integration.real_phases import Held, Run, run_held

needs_mount = pytest.mark.skipif(not may_mount(), reason="needs root")
HALF = len(FINAL_TOKEN) // 2
SEARCH = f"""\
t={FINAL_TOKEN[:HALF]}; t="$t{FINAL_TOKEN[HALF:]}"; a=data; a=$a/final
exec 2> /dev/null
grep -rls "$t" / --exclude-dir=proc --exclude-dir=sys
find / -xdev -name "*$t*"; find /assets -name '*final*'
for f in /proc/[0-9]*/environ /proc/[0-9]*/cmdline /proc/[0-9]*/mountinfo; do
  tr '\\0' '\\n' < $f | grep -e "$t" -e $a
done
"""
"""Find, grep, environments, command lines and mount tables; the token is never in one piece."""
ASSETS = {
    "models/start": {"also": []},
    "data/proxy": {"role": "proxy", "source": {"prepare": "prepare.py"}},
    "models/reference": {"role": "reference", "source": {"prepare": "prepare.py"}},
}
PATHS = {
    "/assets/models/start": DataRole.ANCHOR,
    "/assets/data/train": DataRole.TRAIN,
    "/assets/data/proxy": DataRole.PROXY,
    "/assets/models/reference": DataRole.REFERENCE,
    "/assets/data/final": DataRole.FINAL,
}
HIDDEN = {DataRole.FINAL, DataRole.REFERENCE}


def mounts(held: Held) -> dict[str, list[str]]:
    """Target to options and type, from the container's own mount table."""
    rows = [line.split() for line in held.sh("cat /proc/self/mountinfo").splitlines()]
    return {row[4]: [*row[5].split(","), row[row.index("-") + 1], *row] for row in rows}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    rig = Rig(tmp_path_factory.mktemp("roles"))

    def look(held: Held) -> dict[str, Any]:
        sources = sorted((rig.root / "assets").rglob("weights.txt"))
        with _all_locked(sources):
            locked = held.sh(
                "for f in /assets/*/*/weights.txt; do flock -n $f true || echo $f; done"
            )
        return {
            "mounts": mounts(held),
            "texts": held.sh("for f in /assets/*/*; do echo $f $(cat $f/weights.txt); done"),
            "search": held.sh(SEARCH),
            "locked": locked,
            "listed": held.sh("find /assets -type f"),
        }

    return run_held(rig, look, assets=ASSETS)


class _all_locked:  # noqa: N801 - reads as a with statement
    def __init__(self, paths: list[Path]) -> None:
        self._files = [path.open("rb") for path in paths]

    def __enter__(self) -> None:
        assert self._files
        for file in self._files:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def __exit__(self, *_: object) -> None:
        for file in self._files:
            file.close()


pytestmark = pytest.mark.docker


@pytest.mark.parametrize("phase", Phase)
def test_a_phase_reads_exactly_the_roles_of_the_table(run: Run, phase: Phase) -> None:
    texts = dict(line.split(" ", 1) for line in run.found[phase]["texts"].splitlines())
    expected = {
        path: FINAL_TOKEN if role in HIDDEN else f"role {role}"
        for path, role in PATHS.items()
        if role in VISIBLE_ROLES[phase]
    }
    assert texts == expected


@pytest.mark.parametrize("phase", Phase)
def test_every_asset_and_script_is_a_read_only_view_of_its_own(run: Run, phase: Phase) -> None:
    shared = {
        target: options
        for target, options in run.found[phase]["mounts"].items()
        if target.startswith(("/assets", "/opt"))
    }
    assert {t for t in shared if t.startswith("/assets")} == {
        path for path, role in PATHS.items() if role in VISIBLE_ROLES[phase]
    }
    for options in shared.values():
        assert "ro" in options
        assert "overlay" in options or not may_mount()


@pytest.mark.parametrize("phase", Phase)
def test_a_folder_lists_what_it_holds(run: Run, phase: Phase) -> None:
    """The host's side of each view is closed by then, and must not be missed."""
    assert sorted(run.found[phase]["listed"].split()) == [
        f"{path}/weights.txt"
        for path, role in sorted(PATHS.items())
        if role in VISIBLE_ROLES[phase]
    ]


@pytest.mark.parametrize("phase", [Phase.EXPLORE, Phase.REPLAY, Phase.VALIDATE])
def test_the_token_of_the_final_role_is_found_nowhere(run: Run, phase: Phase) -> None:
    assert run.found[phase]["search"] == ""


@needs_mount
@pytest.mark.parametrize("phase", [Phase.EXPLORE, Phase.REPLAY])
def test_no_device_and_no_other_user_comes_out_of_a_writable_folder(run: Run, phase: Phase) -> None:
    found = run.found[phase]["mounts"]
    for target in ("/out", "/workspace", "/tmp", "/dev/shm", "/home/agent"):
        assert {"rw", "nosuid", "nodev"} <= set(found[target])


def test_the_search_finds_the_token_where_it_is(run: Run) -> None:
    assert "/assets/data/final/weights.txt" in run.found[Phase.SCORE]["search"]


@needs_mount
@pytest.mark.parametrize("phase", Phase)
def test_a_lock_outside_is_not_felt_inside(run: Run, phase: Phase) -> None:
    """All files of the store were locked meanwhile; a shared inode would say so."""
    assert run.found[phase]["locked"] == ""


def test_no_view_is_left(run: Run) -> None:
    assert run.rig.mounts() == []
    assert list(run.rig.runs.rglob("*-views")) == []


def test_views_lie_beside_what_the_host_writes() -> None:
    assert views_of(Path("/r/logs/host")) == Path("/r/logs/host-views")


@needs_mount
def test_two_views_do_not_share_locks_and_a_plain_bind_does(tmp_path: Path) -> None:
    source = tmp_path / "a:b,c\\ ü"
    source.mkdir()
    (source / "file").write_text("x")
    views = OverlayViews()
    first = views.open(source, tmp_path / "v" / "1")
    second = views.open(source, tmp_path / "v" / "2")
    with (first / "file").open() as one, (second / "file").open() as two:
        fcntl.flock(one, fcntl.LOCK_EX)
        fcntl.flock(two, fcntl.LOCK_EX | fcntl.LOCK_NB)
    plain = PlainViews().open(source, tmp_path / "w" / "1")
    with (plain / "file").open() as one, (source / "file").open() as two:
        fcntl.flock(one, fcntl.LOCK_EX)
        with pytest.raises(BlockingIOError):
            fcntl.flock(two, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with pytest.raises(OSError, match="Read-only"):
        (first / "new").touch()
    views.close(tmp_path / "v")
    views.close(tmp_path / "v")
    assert not (tmp_path / "v").exists()
    assert (source / "file").read_text() == "x"


@needs_mount
def test_a_source_that_is_gone_is_the_machines_fault(tmp_path: Path) -> None:
    views = OverlayViews()
    with pytest.raises(InfrastructureError):
        views.open(tmp_path / "gone", tmp_path / "v" / "1")
    views.close(tmp_path / "v")
    assert not (tmp_path / "v").exists()


def test_who_may_not_mount_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.adapters.overlay_views.may_mount", lambda: False)
    views = open_views(tmp_path)
    assert isinstance(views, PlainViews)
    assert views.relaxations()
    assert views.open(tmp_path, tmp_path / "v" / "1") == tmp_path
    views.close(tmp_path / "v")
