"""``orch gc``: real leftovers go, and whatever is not provably ours and finished stays."""

import os
import secrets
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from orchestrator.adapters.loop_volumes import can_mount
from orchestrator.domain.container import ContainerSpec, Limits
from orchestrator.domain.image import OldImage
from orchestrator.evidence.context import Context
from orchestrator.pipeline import tidy
from orchestrator.ports import Container
from orchestrator.sandbox import BOOT_LABEL, DEADLINE_LABEL, INSTANCE_LABEL, RUN_LABEL
from orchestrator.storage.supervisor import is_supervised, supervising
from tests.e2e.old_images import Images
from tests.e2e.rig import PUBLISH, Rig, events, final, has, snapshot, until

SMALL = {"disk": "8m"}
MIB = 1 << 20

mounting = pytest.mark.skipif(not can_mount(), reason="mounting takes root and loop devices")


@pytest.fixture(autouse=True)
def no_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep ``orch gc`` of a test from the images of this host."""
    monkeypatch.setattr("orchestrator.wiring.old_images", lambda _: Images())


@pytest.fixture
def ended(rig: Rig) -> Path:
    """A replay that was had to its end."""
    done = rig.run("true\n", defaults=SMALL)
    until(lambda: not rig.keepers() and not is_supervised(done))
    return done


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as undo:
        yield undo


def container(rig: Rig, ctx: Context, stack: ExitStack, **labels: str | None) -> Container:
    """Make a container under a run's labels; ``labels`` change them, None takes one away."""
    usual: dict[str, str | None] = {
        "instance": ctx.instance,
        "run": "0" * 32,
        "boot": ctx.clock.boot_id(),
        "deadline": "1",
    }
    names = {
        "instance": INSTANCE_LABEL,
        "run": RUN_LABEL,
        "boot": BOOT_LABEL,
        "deadline": DEADLINE_LABEL,
    }
    given = {names[key]: value for key, value in (usual | labels).items() if value is not None}
    made = ctx.engine.create(
        ContainerSpec(
            name=f"orch-gc-{secrets.token_hex(6)}",
            image="orch/cpu-numpy:1",
            argv=("true",),
            user="10001:10001",
            workdir="/",
            mounts=(),
            tmpfs=(),
            limits=Limits(cpus=1, memory=64 * MIB, shm=MIB, pids=16),
            labels=given,
        )
    )
    stack.callback(_remove, rig, made.id)
    return made


def _remove(rig: Rig, container_id: str) -> None:
    with rig.context() as ctx:
        for left in ctx.engine.find({}):
            if left.id == container_id:
                left.remove()


def names(rig: Rig) -> set[str]:
    with rig.context() as ctx:
        return {it.name for it in ctx.engine.find({}) if it.name.startswith("orch-gc-")}


def collected(rig: Rig, *words: str) -> dict[str, dict[str, Any]]:
    """Run ``orch gc``; return what it said, by name, but for what other tests have running."""
    done = rig.call("gc", "--json", *words)
    assert done.code == 0, done.err
    told = done.json()
    assert told["freed"] == sum(item["size"] for item in told["removed"])
    ours = [
        item
        for item in told["kept"]
        if item["why"] != "of another runs folder" or item["name"].startswith("orch-gc-")
    ]
    return {item["name"]: item for item in [*told["removed"], *ours]}


def plan_id(run: Path) -> str:
    return str(events(run)[0]["id"])


@mounting
def test_what_an_ended_run_left_goes_and_its_records_stay(
    rig: Rig, ended: Path, stack: ExitStack
) -> None:
    before = snapshot(rig.runs)
    name = "/".join(ended.parts[-3:])
    with rig.context() as ctx:
        left = container(rig, ctx, stack, run=plan_id(ended))
        ctx.volumes.create(ended / "scratch", 4 * MIB, owner=(10001, 10001))
        image = ended / ".control.img"
        image.write_bytes(b"\1" * 8192)
        ctx.views.open(ended / "receipts", ended / "logs" / "host-views" / "001")
    (ended / "receipts" / ".ab12.tmp").write_bytes(b"half")
    (ended / ".ballast").write_bytes(b"\0" * 4096)
    (rig.root / "host" / "0123.reservation").write_bytes(b"{}")
    things = {
        left.name: "container",
        f"{name}/scratch": "volume",
        f"{name}/control": "volume",
        f"{name}/logs/host-views": "views",
        f"{name}/receipts/.ab12.tmp": "file",
        f"{name}/.ballast": "file",
        str(rig.root / "host" / "0123.reservation"): "reservation",
    }

    looked = collected(rig, "--dry-run")
    assert {key: item["kind"] for key, item in looked.items() if "why" not in item} == things
    assert rig.mounts()
    assert image.exists()
    assert left.name in names(rig)

    told = collected(rig)
    assert {key: item["kind"] for key, item in told.items() if "why" not in item} == things
    assert told[f"{name}/scratch"]["size"] >= 4 * MIB
    (ended / "scratch").rmdir()
    after = snapshot(rig.runs)
    assert {key: after[key] for key in before if key != "orch.log"} == {
        key: value for key, value in before.items() if key != "orch.log"
    }
    assert after.keys() == before.keys()
    rig.nothing_left()
    assert collected(rig) == {}


def test_whatever_is_not_provably_ours_and_over_stays_with_the_reason(
    rig: Rig, ended: Path, stack: ExitStack
) -> None:
    with rig.context() as ctx:
        late = str(ctx.clock.boottime_ns() + 600 * 10**9)
        kept = {
            container(rig, ctx, stack, instance="0123456789ab").name: "another runs folder",
            container(rig, ctx, stack, boot="another").name: "another host",
            container(rig, ctx, stack, deadline=late).name: "not over",
            container(rig, ctx, stack, deadline=None).name: "until when",
            container(rig, ctx, stack, deadline="soon").name: "until when",
            container(rig, ctx, stack, deadline="²").name: "until when",
        }
        over = container(rig, ctx, stack).name
    told = collected(rig)
    assert "why" not in told.pop(over)
    ours = {key: item for key, item in told.items() if key.startswith("orch-gc-")}
    assert ours.keys() >= kept.keys()
    for name, why in kept.items():
        assert why in told[name]["why"], name
    assert kept.keys() <= names(rig)
    assert over not in names(rig)
    text = rig.call("gc")
    assert text.code == 0
    assert "of another runs folder" in text.out
    assert "removed 0" in text.out


def test_no_container_goes_while_a_plan_cannot_be_read(
    rig: Rig, ended: Path, stack: ExitStack
) -> None:
    with rig.context() as ctx:
        unknown = container(rig, ctx, stack).name
    plan = ended / "plan.json"
    plan.write_text(plan.read_text().replace('"format": 1', '"format": 2'))
    told = collected(rig)
    assert "has format 2, this orch reads format 1" in told[unknown]["why"]
    assert "has format 2" in told["/".join(ended.parts[-3:])]["why"]
    assert unknown in names(rig)


def test_a_run_whose_supervisor_lives_keeps_everything(rig: Rig, ended: Path) -> None:
    ballast = ended / ".ballast"
    ballast.write_bytes(b"\0" * 4096)
    with supervising(ended):
        told = collected(rig)
    assert told == {
        "/".join(ended.parts[-3:]): {
            "kind": "run",
            "name": "/".join(ended.parts[-3:]),
            "size": 0,
            "why": "its supervisor is alive",
        }
    }
    assert ballast.exists()


@pytest.fixture
def outside(rig: Rig) -> Iterator[Path]:
    """A folder of somebody else, which has to be the same afterwards."""
    folder = rig.root / "outside"
    (folder / "views" / "001").mkdir(parents=True)
    (folder / "precious.tmp").write_text("mine")
    (folder / ".x.tmp").write_text("mine too")
    before = snapshot(folder)
    yield folder
    assert snapshot(folder) == before
    assert (folder / "views" / "001").is_dir()


@mounting
def test_hostile_names_lead_nowhere(rig: Rig, ended: Path, outside: Path, stack: ExitStack) -> None:
    name = "/".join(ended.parts[-3:])
    (ended / "scratch").symlink_to(outside)
    (ended / ".control.img").symlink_to(outside / "precious.tmp")
    (ended / "validate-out").mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "none", ended / "validate-out"], check=True)
    stack.callback(subprocess.run, ["umount", ended / "validate-out"], check=True)
    (ended / "validate-out" / "theirs").write_text("x")
    (ended / "logs" / "host-views").symlink_to(outside / "views")
    (ended / "validate").mkdir(exist_ok=True)
    (ended / "validate" / "evil").symlink_to(outside)
    (ended / ".ballast").mkdir()
    (ended / ".y.tmp").symlink_to(outside / "precious.tmp")
    (ended.parent / "replay-077").symlink_to(outside)
    host = rig.root / "host"
    (host / "1.reservation").symlink_to(outside / "precious.tmp")
    (host / "2.reservation").mkdir()

    told = collected(rig)
    assert all("why" in item for item in told.values()), told
    assert "a link" in told[f"{name}/scratch"]["why"]
    assert "a link" in told[f"{name}/control"]["why"]
    assert "not its own image" in told[f"{name}/validate-out"]["why"]
    assert "a link" in told[f"{name}/logs/host-views"]["why"]
    assert "a link" in told[f"{name.rpartition('/')[0]}/replay-077"]["why"]
    assert (ended / "validate-out" / "theirs").exists()
    assert (ended / ".ballast").is_dir()
    assert (host / "2.reservation").is_dir()
    assert os.path.lexists(host / "1.reservation")


def test_only_images_that_nothing_needs_go(rig: Rig, ended: Path) -> None:
    with rig.context() as ctx:
        named = ctx.engine.image("orch/cpu-numpy:1").engine_id
        now = ctx.clock.utc().timestamp()
        images = Images(
            OldImage(named, 100, 0.0),
            OldImage("sha256:" + "a" * 64, 200, now - 60),
            OldImage("sha256:" + "b" * 64, 300, now - 7200),
            OldImage("sha256:" + "c" * 64, 400, now - 7200, used_by="somebodys"),
        )
        told = {item.name: item for item in tidy.collect(ctx, images, dry_run=True)}
        assert len(images.found) == 4
        tidy.collect(ctx, images, dry_run=False)
    assert "names it" in told[named.removeprefix("sha256:")[:12]].kept
    assert "within the hour" in told["a" * 12].kept
    assert told["b" * 12].kept == ""
    assert told["c" * 12].kept == "container somebodys needs it"
    assert [image.size for image in images.found] == [100, 200, 400]


@pytest.mark.slow
def test_a_killed_run_is_first_ended_and_then_cleared(rig: Rig) -> None:
    pack = rig.pack("true\n", steps=({"run": "sleep 600"},), defaults=SMALL)
    process = rig.start("explore", pack)
    attempt = until(
        lambda: [a for a in rig.runs.glob("*/attempt-001") if has(a, "explore_started")]
    )[0]
    rig.kill_for_good(process, attempt)
    (held,) = rig.containers()
    before = snapshot(attempt)

    looked = collected(rig, "--dry-run")
    assert looked[held.name]["why"] == "its run has not ended"
    assert "why" in looked["/".join(attempt.parts[-2:])]
    assert snapshot(attempt) == before
    assert [c.id for c in rig.containers()] == [held.id]

    collected(rig)
    until((attempt / ".complete").exists)
    collected(rig)
    rig.nothing_left()


@pytest.mark.slow
def test_a_replay_that_nobody_watches_is_handed_over_and_not_swept(rig: Rig) -> None:
    run = PUBLISH + "publish 10 0.5\nuntil [ -e /out/go ]; do sleep 0.1; done\n"
    attempt = rig.enter(rig.pack(run, defaults=SMALL))
    process = rig.start("replay", attempt, "--through", "validate")
    replay = attempt / "replay-001"
    until((replay / "out" / "checkpoints" / "checkpoint-10").exists)
    rig.kill_for_good(process, replay)
    (held,) = rig.containers()
    name = "/".join(replay.parts[-3:])

    told = collected(rig)
    assert "why" in told[held.name]
    assert "why" in told[name]
    until(lambda: is_supervised(replay))
    assert collected(rig)[name]["why"] == "its supervisor is alive"
    assert [c.id for c in rig.containers()] == [held.id]
    (replay / "out" / "go").touch()
    until((replay / ".complete").exists)
    assert final(replay) == "validated"
    collected(rig)
    rig.nothing_left()
