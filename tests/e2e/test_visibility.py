"""What each phase's container can see, read off real containers while they exist."""

import json
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import docker
import pytest

from orchestrator.domain.roles import VISIBLE_ROLES, WIDENABLE, DataRole, Phase
from orchestrator.sandbox import INSTANCE_LABEL, PHASE_LABEL
from tests.e2e.rig import FINAL_TOKEN, PUBLISH, Rig

HEAD, TAIL = FINAL_TOKEN[:9], FINAL_TOKEN[9:]
SEARCH = f"""\
t={HEAD}; t="${{t}}{TAIL}"
grep -rls "$t" / --exclude-dir=proc --exclude-dir=sys 2> /dev/null | sed 's/^/FOUND /'
find / -name '*final*' -path '/assets/*' 2> /dev/null | sed 's/^/FOUND /'
env; cat /proc/*/environ 2> /dev/null | tr '\\0' '\\n'
cat /proc/self/mounts
find / -name docker.sock -not -path '/proc/*' 2> /dev/null | sed 's/^/FOUND /'
echo SEARCHED
"""
"""Never holds the token in one piece, so that it cannot find itself."""

VALIDATOR = SEARCH + "echo '{\"valid\": true}' > /out/validation.json\n"
SCORER = (
    SEARCH
    + """\
for folder in $(find /assets /ckpt /opt/evaluator); do
  touch "$folder" 2> /dev/null && echo "WRITABLE $folder"
done
echo '{"status": "scored", "metrics": {"score": 1}}' > /out/summary.json
"""
)
ASSETS = {
    "data/proxy": {"role": "proxy", "source": {"prepare": "prepare.py"}},
    "models/reference": {"role": "reference", "source": {"prepare": "prepare.py"}},
}
ROLES = {
    "/assets/models/start": DataRole.ANCHOR,
    "/assets/data/train": DataRole.TRAIN,
    "/assets/data/proxy": DataRole.PROXY,
    "/assets/models/reference": DataRole.REFERENCE,
    "/assets/data/final": DataRole.FINAL,
}
SECRETS = {
    "OPENAI_API_KEY": "sk-test-1f9c0e77aa",
    "ANTHROPIC_API_KEY": "sk-ant-test-55d1",
    "AWS_SECRET_ACCESS_KEY": "wJalr-test-0b1",
    "ORCH_UNKNOWN_SECRET": "hush-test-77e",
}


@dataclass
class Watcher:
    """Inspects every container of one runs folder as soon as it is made."""

    instance: str
    seen: dict[Phase, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))

    @contextmanager
    def watching(self) -> Iterator[None]:
        client = docker.APIClient()
        made = client.events(decode=True, filters={"type": "container", "event": "create"})
        follower = threading.Thread(target=self._follow, args=(made,))
        follower.start()
        try:
            yield
        finally:
            made.close()
            follower.join()
            client.close()

    def _follow(self, made: Any) -> None:
        client = docker.APIClient()
        for event in made:
            labels: Mapping[str, str] = event["Actor"]["Attributes"]
            if labels.get(INSTANCE_LABEL) == self.instance:
                found = client.inspect_container(event["Actor"]["ID"])
                self.seen[Phase(labels[PHASE_LABEL])].append(found)
        client.close()


@dataclass(frozen=True)
class Seen:
    """A whole run: where it lies and what its containers were."""

    rig: Rig
    attempt: Path
    containers: Mapping[Phase, list[dict[str, Any]]]

    def said(self, phase: Phase) -> str:
        """What the search printed in a phase."""
        if phase is Phase.EXPLORE:
            lines = (self.attempt / "transcript.jsonl").read_text().splitlines()
            return "".join(json.loads(line).get("output", "") for line in lines)
        where = {
            Phase.REPLAY: [self.attempt / "replay-001/logs/stdout.log"],
            Phase.VALIDATE: list((self.attempt / "replay-001/logs/validate").rglob("stdout.log")),
            Phase.SCORE: list((self.attempt / "replay-001/score-001/logs").rglob("stdout.log")),
        }[phase]
        return "".join(path.read_text() for path in where)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    rig = Rig(tmp_path_factory.mktemp("seen"), dict(SECRETS))
    steps = ({"run": SEARCH}, {"run": "echo '# x' >> run.sh"}, {"run": "/opt/harness/submit.sh"})
    pack = rig.pack(
        SEARCH + PUBLISH + "publish 10 1\n",
        steps=steps,
        validator=VALIDATOR,
        scorer=SCORER,
        assets=ASSETS,
    )
    with rig.context() as ctx:
        watcher = Watcher(ctx.instance)
    with watcher.watching():
        attempt = rig.explore(pack)
        rig.replay(attempt)
    assert rig.orch("report", attempt).code == 0
    return Seen(rig, attempt, watcher.seen)


HIDDEN_FROM = (Phase.EXPLORE, Phase.REPLAY, Phase.VALIDATE)


@pytest.mark.parametrize("phase", HIDDEN_FROM)
def test_SC_10_the_final_data_is_found_nowhere(seen: Seen, phase: Phase) -> None:
    said = seen.said(phase)
    assert "SEARCHED" in said
    assert "FOUND" not in said
    assert FINAL_TOKEN not in said
    assert "/assets/data/final" not in said
    assert "/assets/models/reference" not in said


def test_SC_10_the_scorer_finds_it_and_can_change_nothing(seen: Seen) -> None:
    said = seen.said(Phase.SCORE)
    assert "FOUND /assets/data/final/weights.txt" in said
    assert "WRITABLE" not in said
    assert "docker.sock" not in said


@pytest.mark.parametrize("phase", Phase)
def test_SC_10_real_mounts_are_those_of_the_one_table(seen: Seen, phase: Phase) -> None:
    assert seen.containers[phase]
    # The anchor says ``also: [score]`` in this pack.
    allowed = VISIBLE_ROLES[phase] | (WIDENABLE.get(phase, frozenset()) & {DataRole.ANCHOR})
    for found in seen.containers[phase]:
        targets = {m["Destination"] for m in found["Mounts"]}
        assets = {target for target in targets if target.startswith("/assets")}
        assert assets == {target for target, role in ROLES.items() if role in allowed}
        assert not {t for t in targets if "docker" in t}
        assert found["HostConfig"]["NetworkMode"] == "none"
        assert found["HostConfig"]["Privileged"] is False
        assert found["HostConfig"]["CapDrop"] == ["ALL"]
        assert found["HostConfig"]["ReadonlyRootfs"] is True
        assert not found["HostConfig"]["Binds"]
        assert not found["HostConfig"]["VolumesFrom"]
        assert found["HostConfig"]["PidMode"] == ""


WRITABLE = {
    Phase.EXPLORE: {"/workspace", "/out", "/run/orch", "/logs/agent"},
    Phase.REPLAY: {"/workspace", "/out"},
    Phase.VALIDATE: {"/out"},
    Phase.SCORE: {"/out"},
}


@pytest.mark.parametrize("phase", Phase)
def test_SC_10_only_these_mounts_can_be_written(seen: Seen, phase: Phase) -> None:
    for found in seen.containers[phase]:
        assert {m["Destination"] for m in found["Mounts"] if m["RW"]} == WRITABLE[phase]


@pytest.mark.parametrize("phase", Phase)
def test_SC_10_no_mount_shows_more_than_it_should(seen: Seen, phase: Phase) -> None:
    """Nothing is bound that holds the pack, the runs folder or another phase's secrets."""
    pack, runs = seen.rig.root / "pack", seen.rig.runs
    for found in seen.containers[phase]:
        sources = [Path(m["Source"]) for m in found["Mounts"]]
        assert not [s for s in sources if s in {pack, runs, *pack.parents, *runs.parents}]
        assert not [s for s in sources if s.is_relative_to(pack)]  # views, or the host's own files
        targets = [m["Destination"] for m in found["Mounts"]]
        shown = {t.split("/")[2] for t in targets if t.startswith("/opt/")} - {"harness"}
        assert shown == {Phase.VALIDATE: {"validator"}, Phase.SCORE: {"evaluator"}}.get(
            phase, set()
        )
        home = Path(seen.rig.variables["ORCH_HOME"])
        assert not [s for s in sources if s.is_relative_to(home)]


ENVIRONMENT = {
    "HF_DATASETS_OFFLINE",
    "HF_HUB_OFFLINE",
    "HOME",
    "LANG",
    "NVIDIA_VISIBLE_DEVICES",
    "PATH",
    "PIP_NO_INDEX",
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONUNBUFFERED",
    "TRANSFORMERS_OFFLINE",
    "TZ",
    "USER",
    "WANDB_MODE",
    "XDG_CACHE_HOME",
}
OWN = {
    Phase.EXPLORE: {"OUTPUT_DIR"},
    Phase.REPLAY: {"OUTPUT_DIR", "MAX_WALL_TIME_SECONDS", "DEADLINE_RESERVE_SECONDS"},
    Phase.VALIDATE: {"ORCH_ANCHOR", "ORCH_ALLOW_NONFINITE"},
    Phase.SCORE: set(),
}


@pytest.mark.parametrize("phase", Phase)
def test_LG_07_the_environment_is_an_allow_list(seen: Seen, phase: Phase) -> None:
    for found in seen.containers[phase]:
        names = {entry.partition("=")[0] for entry in found["Config"]["Env"]}
        assert OWN[phase] <= names
        assert names <= ENVIRONMENT | OWN[phase]


@pytest.mark.parametrize("secret", SECRETS.values())
def test_LG_07_a_secret_of_the_host_is_found_nowhere(seen: Seen, secret: str) -> None:
    assert secret not in json.dumps(dict(seen.containers))
    files = [path for path in seen.rig.root.rglob("*") if path.is_file()]
    assert any(path.name == "report.html" for path in files)
    assert [path for path in files if secret.encode() in path.read_bytes()] == []


def test_the_deadline_and_the_owner_are_on_every_container(seen: Seen) -> None:
    for phase, containers in seen.containers.items():
        for found in containers:
            labels = found["Config"]["Labels"]
            assert labels[PHASE_LABEL] == phase
            assert labels["orch.run"]
            assert int(labels["orch.deadline_boottime_ns"]) > 0
            assert found["HostConfig"]["AutoRemove"] is False
