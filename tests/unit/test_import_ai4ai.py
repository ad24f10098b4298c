"""AI4AI-Bench tasks as packs: what is kept, what is told, what is refused by its name."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from orchestrator.domain.roles import Phase, is_visible
from orchestrator.domain.source import LocalSource
from orchestrator.domain.task import TaskSpec
from orchestrator.errors import TaskPackError, UsageError
from orchestrator.importing.ai4ai_assets import Lock, read_lock
from orchestrator.importing.model import Imported
from orchestrator.importing.reading import read_task
from orchestrator.importing.writing import write
from orchestrator.storage.pack import load_pack
from tests import ai4ai_stand_in as stand_in

IMAGE = "docker.io/example/ai4ai@sha256:" + "ab" * 32
SHARED = Path(__file__).parents[3] / "shared/data/ai4ai"
ENVIRONMENT = '[environment]\ndockerfile = "environment/Dockerfile"\n'


class Shelf:
    """The stand-in task, which a test spoils before it is imported."""

    def __init__(self, folder: Path) -> None:
        self.source = stand_in.task_folder(folder / "guess_a_number", IMAGE)
        self.to = folder / "pack"

    def change(self, name: str, changes: Mapping[str, str]) -> None:
        file = self.source / name
        text = file.read_text()
        for before, after in changes.items():
            assert before in text, before
            text = text.replace(before, after)
        file.write_text(text)

    def read(self, score_image: str | None = None) -> Imported:
        return read_task(self.source, score_image=score_image)

    def pack(self) -> TaskSpec:
        write(self.read(), self.to)
        return load_pack(self.to).spec

    def refusals(self) -> list[str]:
        with pytest.raises(TaskPackError) as refused:
            self.read()
        assert not self.to.exists()
        return str(refused.value).splitlines()


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path)


def places(task: TaskSpec, phase: Phase) -> dict[str, str]:
    """Where a phase sees which asset."""
    return {
        name: f"/assets/{asset.at or name}"
        for name, asset in task.assets.items()
        if is_visible(asset.role, phase, frozenset(asset.also))
    }


def test_every_phase_sees_what_its_source_mounts_but_the_validator_nothing_hidden(
    shelf: Shelf,
) -> None:
    task, source = shelf.pack(), stand_in.declared()
    assert places(task, Phase.EXPLORE) == source["explore"].assets()
    assert places(task, Phase.REPLAY) == source["retrain"].assets()
    assert places(task, Phase.SCORE) == source["score"].assets()
    theirs = source["checkpoint-validate"].assets()
    assert places(task, Phase.VALIDATE) == {
        **{name: at for name, at in theirs.items() if name not in {"models/bounds", "data/answer"}},
        "data/open": theirs["data/answer"],
    }
    roles = {name: (asset.role.value, asset.also) for name, asset in task.assets.items()}
    assert roles == {
        "models/start": ("anchor", ("score",)),
        "data/rows.jsonl": ("train", ("validate", "score")),
        "data/open": ("train", ("validate",)),
        "data/peek": ("proxy", ()),
        "models/bounds": ("reference", ()),
        "data/answer": ("final", ()),
    }
    assert [name for name, asset in task.assets.items() if asset.file] == ["data/rows.jsonl"]


def test_budgets_limits_exports_and_metrics_are_the_sources(shelf: Shelf) -> None:
    task = shelf.pack()
    assert (task.explore.wall, task.replay.wall, task.replay.reserve) == (7200, 14400, 600)
    assert (task.validate_.wall, task.validate_.total_wall, task.score.wall) == (3600, 10800, 1900)
    for phase in Phase:
        need = task.resources(phase)
        assert (need.image, need.cpus, need.memory) == (IMAGE, 1, 256 * 1024**2)
        assert (need.shm, need.pids, need.disk) == (48 * 1024**2, 96, 32 * 1024**2)
        assert need.tmp == 8 * 1024**3
        assert need.read_only is (phase is Phase.SCORE)
        assert {"HOME", "XDG_CACHE_HOME", "WANDB_MODE", "OUTPUT_DIR"} == {
            name for name, value in need.env.items() if value is None
        }
    start = {"START": "/assets/models/first-guess"}
    assert task.explore.env == start
    assert task.replay.env == {**start, "TRAIN_DATA": "/assets/data/rows.jsonl"}
    assert task.score.env is not None
    assert task.score.env["EVALUATOR_SETTING"] == "as declared"
    assert task.score.env["IMAGE_DIGEST"] == "layers:" + "1".zfill(64)
    assert task.validate_.env == {"EVALUATOR_SETTING": "as declared"}
    assert (task.score.metric, task.score.direction) == ("distance", "min")
    assert task.proxy is not None
    assert (task.proxy.metric, task.proxy.direction) == ("closeness_to_hint", "max")
    assert task.proxy.command == "/opt/harness/fast_eval.sh"
    assert (task.checkpoints.keep, task.workspace.in_image) == (3, True)
    assert task.score.scratch == ("/logs/verifier",)


def test_what_judges_gets_the_sources_own_command_and_payload(shelf: Shelf) -> None:
    shelf.pack()
    evaluator = json.loads((shelf.to / "evaluator/source.json").read_text())
    assert evaluator["argv"][:4] == [
        *("python3", "/opt/harness/final_eval.py", "--checkpoint", "/ckpt/model.pt"),
    ]
    assert evaluator["argv"][-4:] == ["--seed", "123", "--gpus", "0"]
    validator = json.loads((shelf.to / "validator/source.json").read_text())
    assert validator["argv"][4:6] == ["--checkpoint", "/ckpt/model.pt"]
    assert (validator["kind"], validator["payload"]) == ("file", "model.pt")


def test_what_is_kept_in_another_way_is_told_and_written_down(shelf: Shelf) -> None:
    differences = shelf.read().differences
    assert any("mounts models/bounds, data/answer" in said for said in differences)
    assert "validate: it finds data/open where the source's finds data/answer" in differences
    assert any("its inputs is not read after the replay" in said for said in differences)
    shelf.pack()
    notes = (shelf.to / "IMPORTED.md").read_text()
    assert all(said in notes for said in differences)
    assert "`data/peek`: one more hint, exploration only" in notes
    assert "--from DIR" in notes


def test_identities_of_assets_come_along_where_the_lock_has_them(shelf: Shelf) -> None:
    sources = {name: asset.source for name, asset in shelf.pack().assets.items()}
    locked = {
        name
        for name, source in sources.items()
        if isinstance(source, LocalSource) and source.sha256
    }
    assert locked == {"data/rows.jsonl", "models/start"}


def test_a_lock_may_list_assets_by_kind(tmp_path: Path) -> None:
    file = tmp_path / "assets.lock.yaml"
    entry = f"{{content_sha256: {'a' * 64}, hash_kind: tree_manifest_sha256}}"
    file.write_text(f"models:\n  m: {entry}\ndata: {{bad: 3}}\nsource: {entry}\n")
    assert read_lock(file) == {"models/m": Lock("a" * 64, of_file=False)}
    file.write_text("[]")
    assert read_lock(file) == {}
    assert read_lock(tmp_path / "absent") == {}


def test_the_words_of_an_instruction_stay_as_they_are(shelf: Shelf) -> None:
    from orchestrator.evidence.instruction import render  # noqa: PLC0415 - brings jinja2

    shelf.pack()
    pack = load_pack(shelf.to)
    said = (shelf.source / "instruction.md").read_text()
    assert "{{1, 2}}" in said
    assert render(pack, pack.spec, 1.0).rstrip("\n") == said.rstrip("\n")


def test_the_scripted_agent_hands_in_the_shipped_solution(shelf: Shelf) -> None:
    assert shelf.pack().script == "demo.yaml"
    assert "submit.sh --allow-empty" in (shelf.to / "demo.yaml").read_text()


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ('"no-network"', '"allowlist"', "environment.network_mode = 'allowlist': containers"),
        ('"no-network"', '"public"', "environment.network_mode = 'public': containers of orch"),
        (
            "storage_mb",
            'allowed_hosts = ["example.org"]\nstorage_mb',
            "environment.allowed_hosts = ['example.org']: containers of orch have no network",
        ),
        ("storage_mb", "ipc = true\nstorage_mb", "environment.ipc = True: not a key that is kept"),
        ("[agent]\n", '[agent]\nuser = "root"\n', "agent.user = 'root': not a key that is kept"),
        ('"1.5"', '"1.6"', "schema_version = '1.6': only format 1.5 is read"),
        ('"separate"', '"shared"', "verifier.environment_mode = 'shared'"),
        ("7200", "7100", "agent.timeout_sec = 7100: declaration.py says 7200"),
        ("= 14400", "= 1440", "retrain_budget_sec = 1440: declaration.py says 14400"),
        ("artifact_limit = 3", "artifact_limit = 2", "artifact_limit = 2: declaration.py says 3"),
        ("31500", "30000", "verifier.timeout_sec = 30000: replay, validation and scoring may take"),
        ("memory_mb = 256\n", "", "environment.memory_mb: field required"),
        ("pids_limit = 96", "pids_limit = 0", "container.pids_limit = 0"),
        ('"best_valid_of_up_to_3"', '"last"', "formal.selection_rule = 'last'"),
        ('= "min"', '= "minimize"', "metadata.final_direction = 'minimize'"),
        (
            "[metadata]",
            '[x-ai4ai.gpu]\ntype = "B300"\npeak_memory_mib = 5\n\n[metadata]',
            "x-ai4ai.gpu.type = 'B300': is none of environment.gpu_types",
        ),
    ],
)
def test_what_cannot_be_kept_of_a_task_file_is_refused_by_its_name(
    shelf: Shelf, before: str, after: str, said: str
) -> None:
    shelf.change("task.toml", {before: after})
    (line,) = [line for line in shelf.refusals() if said in line]
    assert line.startswith("task.toml: ")


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (
            "        WHOLE,\n",
            '        WHOLE, ("asset:data/peek", "/assets/data/peek", True),\n',
            "asset 'data/peek': is mounted in explore, score, validate: no role is seen so",
        ),
        ('"run:logs/agent", "/logs/agent", False', '"run:home", "/root", False', "/root"),
        (
            '("asset:data/peek", "/assets/data/peek", True)',
            '("asset:data/peek", "/assets/data/peek", False)',
            "an asset that can be written to",
        ),
        ('"asset:data/peek", "/assets/data/peek"', '"asset:peek", "/assets/peek"', "only models/"),
        (
            '("asset:data/peek", "/assets/data/peek", True)',
            '("asset:data/peek", "/assets/data/a", True), ("asset:data/peek", "/peek", True)',
            "'asset:data/peek' is mounted, or mounted upon, twice",
        ),
        (
            '("asset:data/peek", "/assets/data/peek", True)',
            '("asset:data/peek", "/assets/data/a", True), ("asset:data/b", "/assets/data/a", True)',
            "'/assets/data/a' is mounted, or mounted upon, twice",
        ),
        ('"/assets/data/peek"', '"/peek"', "only models/ and data/ below /assets are kept"),
        ('"/assets/data/peek"', '"/assets/data/../../etc"', "only models/"),
        ('hooks=("report_reward",)', 'hooks=("upload",)', "hook 'upload': is not known"),
        ('"/workspace/run.sh"', '"/workspace/other.sh"', "orch runs ('bash', '/workspace/run.sh')"),
        ('command=("bash",),', 'command=("bash", "-l"),', "orch runs ('bash',)"),
        ("apply_patch=True", "apply_patch=False", "apply_patch = False: only True is kept"),
        ('"checkpoints/checkpoint-*"', '"models/*"', "checkpoint_glob = 'models/*'"),
        ('checkpoint_kind="file"', 'checkpoint_kind="auto"', "checkpoint_kind = 'auto'"),
        ('"model.pt"', '"../model.pt"', "checkpoint_payload = '../model.pt'"),
        ("free_gib=0", "free_gib=1", "free_gib = 1: more than environment.storage_mb = 32"),
        ("read_only_root=True,", "interactive=True,", "interactive = True: only False is kept"),
        ('    "score-mock": SCORE_MOCK,', '    "serve": SCORE_MOCK,', "PHASES['serve']: a phase"),
        ('    "checkpoint-validate": VALIDATE,\n', "", "PHASES['checkpoint-validate']: is missing"),
        ('"EVALUATOR_SETTING"', '"A=B"', "export 'A=B': orch sets it, or it is no variable"),
        ('exports={"START": START}', 'exports={"OUTPUT_DIR": "/x"}', "export 'OUTPUT_DIR'"),
        ("timeout_sec=1900", "timeout_sec=0", "timeout_sec = 0: is no time"),
    ],
)
def test_what_cannot_be_kept_of_a_declaration_is_refused_by_its_name(
    shelf: Shelf, before: str, after: str, said: str
) -> None:
    shelf.change("declaration.py", {before: after})
    lines = shelf.refusals()
    assert any(said in line for line in lines), lines
    assert all(line.startswith(("declaration.py", "task.toml")) for line in lines)


@pytest.mark.parametrize("name", ["task.toml", "declaration.py", "instruction.md"])
def test_a_link_is_no_file_of_the_source(shelf: Shelf, tmp_path: Path, name: str) -> None:
    text = (shelf.source / name).rename(tmp_path / "kept")
    (shelf.source / name).symlink_to(text)
    (line,) = shelf.refusals()
    assert name in line
    assert "not a regular file" in line


def test_a_pipe_is_not_waited_for_and_what_is_huge_is_not_read(shelf: Shelf) -> None:
    (shelf.source / "instruction.md").unlink()
    os.mkfifo(shelf.source / "instruction.md")
    assert "not a regular file" in shelf.refusals()[0]
    (shelf.source / "instruction.md").unlink()
    with (shelf.source / "instruction.md").open("wb") as huge:
        huge.truncate(2**40)
    assert "larger than" in shelf.refusals()[0]


def test_a_lock_that_cannot_be_read_is_refused(shelf: Shelf) -> None:
    lock = shelf.source / "environment/assets.lock.yaml"
    lock.parent.mkdir(exist_ok=True)
    for broken in ("assets: [", "assets: " + "[" * 9000 + "]" * 9000):
        lock.write_text(broken)
        assert "assets.lock.yaml: cannot be read" in shelf.refusals()[0]


def test_a_task_file_that_nests_without_end_is_refused(shelf: Shelf) -> None:
    (shelf.source / "task.toml").write_text("a = " + "[" * 9000 + "]" * 9000)
    assert shelf.refusals() == ["task.toml: nested too deeply"]


def test_everything_that_is_refused_is_told_at_once(shelf: Shelf) -> None:
    shelf.change("task.toml", {'"no-network"': '"allowlist"', "pids_limit": "pids"})
    shelf.change("declaration.py", {'"report_reward"': '"upload"', "2 * HOUR": "hours(2)"})
    (shelf.source / "instruction.md").unlink()
    told = "\n".join(shelf.refusals())
    for said in ("network_mode", "pids", "'upload'", "hours(...)", "instruction.md: no such file"):
        assert said in told
    assert "is missing" not in told  # what could not be read may well be there


def test_what_no_pack_can_say_is_refused_and_nothing_is_left(shelf: Shelf) -> None:
    inside = '"asset:data/peek/more", "/assets/data/more"'
    shelf.change("declaration.py", {'"asset:data/peek", "/assets/data/peek"': inside})
    shelf.change(
        "declaration.py",
        {'        OPEN_HALF,\n        ("asset': "        OPEN_HALF,\n" + PEEK + '        ("asset'},
    )
    with pytest.raises(TaskPackError, match="data/peek/more: lies inside another asset"):
        shelf.pack()
    assert [path.name for path in shelf.to.parent.iterdir()] == ["guess_a_number"]


PEEK = '        ("asset:data/peek", "/assets/data/peek", True),\n'


def test_a_folder_without_a_declaration_is_refused_by_its_name(shelf: Shelf) -> None:
    (shelf.source / "declaration.py").write_text("")
    assert shelf.refusals() == ["declaration.py:1: PHASES is not written down as a dict"]
    (shelf.source / "declaration.py").write_bytes(b"\xff")
    assert "declaration.py: cannot be read" in shelf.refusals()[0]
    (shelf.source / "declaration.py").unlink()
    assert shelf.refusals() == ["declaration.py: no such file in the task's folder"]


def test_a_second_image_that_scores_is_used_or_asked_for(shelf: Shelf) -> None:
    (shelf.source / "environment/Dockerfile.eval").write_text("FROM x\n")
    (told,) = shelf.refusals()
    assert "--score-image IMAGE" in told
    note = shelf.source / "environment/README-eval-image.md"
    note.write_text("`docker.io/example/ai4ai:work-1`, then `docker.io/example/ai4ai:eval-2`\n")
    assert len(shelf.refusals()) == 1
    note.write_text("builds `docker.io/example/ai4ai:eval-2`, so `docker.io/example/ai4ai:eval-2`")
    imported = shelf.read()
    assert imported.task["score"]["image"] == "docker.io/example/ai4ai:eval-2"
    assert any("README-eval-image.md" in said for said in imported.differences)
    assert "IMAGE_DIGEST" not in imported.task["score"]["env"]  # another image's
    given = shelf.read("mine:1")
    assert given.task["score"]["image"] == "mine:1"
    assert "image" not in given.task["replay"]


def test_gpus_are_asked_for_as_the_source_does(shelf: Shelf) -> None:
    gpu = '[x-ai4ai.gpu]\ntype = "B300"\npeak_memory_mib = 1000\n\n[metadata]'
    changes = {"gpus = 0": "gpus = 2", "gpu_types = []": 'gpu_types = ["B300"]', "[metadata]": gpu}
    shelf.change("task.toml", changes)
    task = shelf.pack()
    assert task.gpu.models == ("B300",)
    assert task.gpu.min_memory == 1100 * 1024**2
    for phase in Phase:
        need = task.resources(phase)
        assert (need.gpus, need.env["CUDA_VISIBLE_DEVICES"]) == (2, "0,1")
    argv = json.loads((shelf.to / "evaluator/source.json").read_text())["argv"]
    assert argv[-2:] == ["--gpus", "2"]


def test_wall_settings_that_differ_are_told(shelf: Shelf) -> None:
    changes = {"= 14400": "= 3600", "31500": "20700"}
    shelf.change("task.toml", changes)
    shelf.change("declaration.py", {"timeout_sec=4 * HOUR": "timeout_sec=HOUR"})
    assert any("are 3420 and 180, the source's 3000 and 600" in d for d in shelf.read().differences)
    shelf.change("declaration.py", {"RESERVE_SEC = 10 * 60": "RESERVE_SEC = 0"})
    imported = shelf.read()
    assert imported.task["replay"]["env"]["MAX_WALL_TIME_SECONDS"] is None
    assert not any("MAX_WALL" in said for said in imported.differences)


def test_nothing_that_is_there_is_written_over(shelf: Shelf) -> None:
    shelf.to.mkdir()
    (shelf.to / "mine").touch()
    for place in (shelf.to, shelf.to / "mine"):
        with pytest.raises(UsageError, match="is there already"):
            write(shelf.read(), place)
    (shelf.to / "mine").unlink()
    assert shelf.pack().name == "guess_a_number"  # an empty folder is as good as none
    (shelf.to / "task.yaml").unlink()
    with pytest.raises(UsageError, match=r"has no task\.toml"):
        read_task(shelf.to)
    with pytest.raises(UsageError, match=r"has no task\.toml"):
        read_task(shelf.source / "instruction.md")


def test_a_file_of_neither_kind_is_refused(shelf: Shelf) -> None:
    (shelf.source / "task.toml").write_text("a = 1\n")
    assert "neither AI4AI-Bench's nor Harbor's" in shelf.refusals()[0]
    (shelf.source / "task.toml").write_text("a = \n")
    assert "not TOML" in shelf.refusals()[0]


SHOWN = {
    "model_soup_clip_imagenetv2": ("retrain", "data/imagenetv2_proxy"),
    "opd_math_1p5b": ("explore", "data/math500"),
    "openunlearning_tofu_npo_llama3p2_1b": ("score", "models/training_start"),
    "owl_wanda_opt6p7b_70pct": ("explore", "data/wikitext2/validation"),
    "ragen_sokoban_grpo": ("retrain", "models/policy"),
}
"""Published tasks, and an asset of each with the last phase that mounts it, as their notes say."""


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"{SHARED} is not on this host")
@pytest.mark.parametrize("name", sorted(SHOWN))
def test_published_task_files_are_read_whole(tmp_path: Path, name: str) -> None:
    """Their declarations are not ours to carry: one of the same shape stands in for each."""
    import tomllib  # noqa: PLC0415 - here alone

    text = (SHARED / f"{name}.toml").read_text()
    toml = tomllib.loads(text)
    formal = toml["x-ai4ai"]["formal"]
    score = (toml["verifier"]["timeout_sec"] - formal["retrain_budget_sec"]) // 3 - 3600
    last, asset = SHOWN[name]
    mount = f'("asset:{asset}", "/assets/{asset}", True),'
    declaration = DECLARATION.format(
        score=score,
        explore=mount,
        retrain=mount if last != "explore" else "",
        scored=mount if last == "score" else "",
    )
    source = tmp_path / name
    source.mkdir()
    for file, content in {
        "task.toml": text,
        "declaration.py": declaration,
        "instruction.md": "Improve it.\n",
    }.items():
        (source / file).write_text(content)
    write(read_task(source), tmp_path / "pack")
    task = load_pack(tmp_path / "pack").spec
    place, container = toml["environment"], toml["x-ai4ai"]["container"]
    need = task.resources(Phase.REPLAY)
    assert (need.image, need.cpus, need.gpus) == (place["image"], place["cpus"], place["gpus"])
    assert need.memory == place["memory_mb"] * 1024**2
    assert need.disk == place["storage_mb"] * 1024**2
    assert need.shm == int(container["shm_size"].removesuffix("g")) * 1024**3
    assert need.pids == container["pids_limit"]
    assert task.gpu.models == tuple(place["gpu_types"])
    assert task.score.metric == toml["metadata"]["final_metric"]
    assert task.score.direction == toml["metadata"]["final_direction"]
    roles = {"explore": ("proxy", ()), "retrain": ("train", ()), "score": ("anchor", ("score",))}
    found = task.assets[asset]
    role, also = roles[last]
    kind = "anchor" if asset.startswith("models/") and role == "train" else role
    assert (found.role, found.also) == (kind, also)


DECLARATION = """\
from container import Phase, checkpoint_validation_phase
OUT = ("run:out", "/out", False)
SCORE = Phase(name="score", timeout_sec={score}, command=("python3", "/opt/harness/final_eval.py"),
    mounts=(OUT, ("run:checkpoint", "/ckpt", True), {scored}), read_only_root=True)
PHASES = {{
    "explore": Phase("explore", 14400, ("bash",), mounts=({explore} OUT,)),
    "retrain": Phase("retrain", 43200, ("bash", "/workspace/run.sh"), mounts=({retrain} OUT,),
        apply_patch=True, reserve_sec=900, checkpoint_glob="checkpoints/checkpoint-*",
        checkpoint_kind="model", artifact_limit=3),
    "score": SCORE,
    "checkpoint-validate": checkpoint_validation_phase(SCORE, "task"),
}}
"""
