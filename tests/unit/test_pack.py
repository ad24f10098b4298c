import os
from pathlib import Path

import pytest

from orchestrator.config import bundled
from orchestrator.domain.container import Mount
from orchestrator.errors import TaskPackError, UsageError
from orchestrator.storage.pack import (
    bundled_name,
    bundled_packs,
    examine,
    find_pack,
    load_pack,
    pack_digest,
)
from tests.unit.pack_help import TASK, line_of, make_pack


def _faults(tmp_path: Path, text: str) -> list[str]:
    return [str(fault) for fault in examine(make_pack(tmp_path / "pack", text))[1]]


def test_a_pack_loads_from_its_file_its_folder_and_a_bundled_name(tmp_path: Path) -> None:
    task = make_pack(tmp_path / "pack")
    assert load_pack(task) == load_pack(task.parent)
    assert load_pack(Path("digits_class0")).folder == bundled("tasks") / "digits_class0"
    assert find_pack(Path("digits_class0")) in bundled_packs()
    names = [bundled_name(source) for source in bundled_packs()]
    assert names.index("mls_unlearning") < names.index("mls_unlearning/cifar10.yaml")


def test_a_pack_may_have_several_task_files_each_a_task_of_its_own(tmp_path: Path) -> None:
    usual = make_pack(tmp_path / "pack")
    other = usual.with_name("other.yaml")
    other.write_text(TASK)
    first, second = load_pack(usual), load_pack(other)
    assert first.digest != second.digest
    assert load_pack(tmp_path / "pack").source == usual
    assert (first.argument, second.argument) == (tmp_path / "pack", other)
    other.write_text(TASK.replace("metric: score", "metric: another"))
    assert load_pack(usual).digest == first.digest
    assert load_pack(other).digest not in {first.digest, second.digest}
    usual.write_text(TASK + "# a lock\n")
    assert load_pack(usual).digest != first.digest
    (tmp_path / "pack/script.yaml").write_text("- run: ls\n")
    assert load_pack(other).digest != second.digest


def test_FS_03_names_and_paths_with_spaces_colons_and_unicode_load(tmp_path: Path) -> None:
    name = "Täsk 1/β: final"
    task = make_pack(
        tmp_path / "my tasks:v1" / "ünï", TASK.replace("name: tiny", f'name: "{name}"')
    )
    assert load_pack(task).spec.name == name


def test_no_such_task_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no task at"):
        load_pack(tmp_path / "nothing")
    with pytest.raises(UsageError, match=r"has no task\.yaml") as empty:
        load_pack(tmp_path)
    assert empty.value.remedy == "orch task new NAME makes a pack"


def test_what_is_no_mapping_is_told_in_words_of_yaml(tmp_path: Path) -> None:
    for text in ("- a\n", TASK + "validate: {validator: numpi}\n"):
        _, faults = examine(make_pack(tmp_path / str(len(text)), text))
        assert [fault.message for fault in faults if "a mapping of keys" in fault.message]
        assert not [fault for fault in faults if "instance" in str(fault)]


def test_a_digest_that_is_none_is_told_without_a_pattern(tmp_path: Path) -> None:
    hub = "source: {hub: {repo: a/b, kind: model, revision: main, files: {x: 0}}}"
    old = next(line for line in TASK.splitlines() if "source:" in line)
    text = TASK.replace(old, f"    {hub}", 1)
    _, faults = examine(make_pack(tmp_path, text))
    (fault,) = (fault for fault in faults if "revision" in str(fault))
    assert fault.message == "must be 40 hex digits in lower case"


@pytest.mark.parametrize(
    ("old", "new", "where", "message"),
    [
        ("metric: score", "metrik: score", "score.metrik", "unknown key (did you mean metric?)"),
        ("  metric: score\n", "", "score.metric", "missing key"),
        ("name: tiny", "name: tiny\nname: twice", "name", "duplicate key (first on line 2)"),
        ("role: anchor", "role: ankor", "assets.models/start.role", "must be 'anchor'"),
        ("role: anchor", "role: anchor\n    also: [replay]", "assets.models/start", "may not"),
        ("role: final", "role: final\n    also: [score]", "assets.data/final", "may not"),
        ("models/start:", "weights/start:", "assets.weights/start", "must lie under models/"),
        ("data/final:", "../final:", "assets.../final", "must be a relative path"),
        ("solution/", "/etc", "workspace.from", "must be a relative path"),
        ("schema: orch.task/1", "schema: orch.task/9", "schema", "must be 'orch.task/1'"),
        ("name: tiny", "name: *alias", "", "aliases are not supported"),
        ("name: tiny", "name: !!python/name:os.system x", "name", "could not determine"),
        ("name: tiny", "name: tiny\n12: x", "", "keys must be plain text"),
        ("name: tiny", 'name: "tiny', "", "while scanning"),
        ("name: tiny", "name: tiny\ndefaults: {memory: 1x}", "defaults.memory", "not a size"),
        ("name: tiny", "name: tiny\nexplore: {wal: 4h}", "explore.wal", "(did you mean wall?)"),
        ("name: tiny", "name: tiny\npatch: of", "patch", "must be 'off'"),
        ("name: tiny", "name: tiny\npatch: {refus: []}", "patch.refus", "did you mean refuse?"),
        ("evaluator/final_eval.py", "evaluator/x.py", "score.command", "no such file"),
        ("evaluator/final_eval.py", "proxy/fast_eval.py", "score.command", "exploration sees"),
        ("prepare: prepare.py", "prepare: solution/run.sh", "assets.models/start", "the workspace"),
        ("data/final:", "data/train/more:", "assets.data/train/more", "inside another asset"),
        (
            "role: final",
            "role: final\n    overlap: [data/x]",
            "assets.data/final.overlap",
            "no oth",
        ),
    ],
)
def test_a_fault_is_named_with_its_line(
    tmp_path: Path, old: str, new: str, where: str, message: str
) -> None:
    text = TASK.replace(old, new)
    faults = _faults(tmp_path, text)
    assert any(message in fault and where in fault for fault in faults), faults


def test_faults_carry_the_line_they_stand_on(tmp_path: Path) -> None:
    text = TASK.replace("metric: score", "metrik: score").replace("role: train", "role: trane")
    text = text.replace("role: final", "rolle: final") + "titel: x\n"
    lines = [int(fault.split(":")[1]) for fault in _faults(tmp_path, text)]
    expected = ("trane", "data/final", "rolle", "score:", "metrik", "titel")
    assert lines == [line_of(text, part) for part in expected]


def test_every_fault_of_text_and_content_comes_in_one_pass(tmp_path: Path) -> None:
    text = TASK.replace("name: tiny", "name: tiny\nname: again\ntitel: x")
    with pytest.raises(TaskPackError) as refused:
        load_pack(make_pack(tmp_path / "pack", text))
    assert str(refused.value).splitlines() == [
        "task.yaml:3: name: duplicate key (first on line 2)",
        "task.yaml:4: titel: unknown key (did you mean title?)",
    ]


def test_a_mapping_that_could_be_two_things_has_its_fault_told_once(tmp_path: Path) -> None:
    text = TASK + "patch: {refus: []}\nvalidate: {validator: {comand: x}}\n"
    assert [fault.partition(": ")[2] for fault in _faults(tmp_path, text)] == [
        "patch.refus: unknown key (did you mean refuse?)",
        "validate.validator.comand: unknown key (did you mean command?)",
        "validate.validator.command: missing key",
    ]


def test_off_is_the_word_that_it_looks_like(tmp_path: Path) -> None:
    assert load_pack(make_pack(tmp_path / "pack", TASK + "patch: off\n")).spec.patch == "off"
    assert _faults(tmp_path, TASK + "patch: on\n")


SHA = "a" * 64
REV = "b" * 40
HUB = f"hub: {{repo: o/n, kind: dataset, revision: {REV}, files: {{a/b.json: {SHA}}}}}"
URLS = f'urls: {{a.gz: {{url: "https://x.example/a.gz", sha256: {SHA}}}}}'


def _with_source(source: str, more: str = "") -> str:
    first = "role: train, source: {prepare: prepare.py}"
    return TASK.replace(first, f"role: train, source: {{{source}}}") + more


def test_assets_come_from_a_script_the_hub_or_urls(tmp_path: Path) -> None:
    for text in (
        _with_source(HUB),
        _with_source(HUB.replace(f"a/b.json: {SHA}", f"a: {{path: b, sha256: {SHA}}}")),
        _with_source(URLS),
        _with_source(
            "prepare: prepare.py, from: [x, y]", f"downloads: {{x: {{{HUB}}}, y: {{{URLS}}}}}\n"
        ),
    ):
        assert _faults(tmp_path, text) == []


ONE = "needs exactly one of the keys prepare, hub, urls and local"


@pytest.mark.parametrize(
    ("source", "more", "expected"),
    [
        ("prepar: x", "", [f"data/train.source: {ONE}"]),
        (f"prepare: prepare.py, {HUB}", "", [f"data/train.source: {ONE}"]),
        (
            f"prepare: prepare.py, {HUB}".replace("hub", "hob"),
            "",
            ["data/train.source.hob: unknown key"],
        ),
        (HUB.replace(REV, "main"), "", ["data/train.source.hub.revision: "]),
        (HUB.replace(SHA, "a" * 63), "", ["data/train.source.hub.files.a/b.json: "]),
        (HUB.replace("a/b.json", "../b.json"), "", ["must be a relative path inside"]),
        (HUB.replace("a/b.json", "a//b.json"), "", ["must be written as 'a/b.json'"]),
        (
            HUB.replace("a/b.json:", f"a: {SHA}, a/b:"),
            "",
            ["source.hub.files: 'a' cannot be a file and the folder of 'a/b'"],
        ),
        (HUB.replace("kind:", "kindd:"), "", ["kind: missing key", "(did you mean kind?)"]),
        (HUB.replace("dataset", "space"), "", ["kind: must be 'model' or 'dataset'"]),
        (URLS.replace("https://", "https://me:secret@"), "", ["a.gz.url: "]),
        (URLS.replace("https://x.example/", "file:///"), "", ["a.gz.url: "]),
        ("prepare: prepare.py, from: [x]", "", ["source.from: 'x' is none of the downloads"]),
        (
            "prepare: prepare.py",
            f"downloads: {{x: {{{URLS}}}}}\n",
            ["x: no asset is made from it"],
        ),
    ],
)
def test_a_faulty_source_is_named_once_with_its_line(
    tmp_path: Path, source: str, more: str, expected: list[str]
) -> None:
    text = _with_source(source, more)
    faults = _faults(tmp_path, text)
    assert len(faults) == len(expected), faults
    for fault, part in zip(faults, expected, strict=True):
        assert part in fault
    line = line_of(text, "downloads:" if more else "data/train")
    assert {fault.split(":")[1] for fault in faults} == {str(line)}


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"name: x\nbad: \xff\n", 2),
        (b"name: x\n\nbad: \x01\n", 3),
        (b"", 1),
        (b"a: " + b"[" * 2000, 1),
        (b"a" * (1024**2 + 1), 1),
    ],
)
def test_bytes_that_are_no_yaml_are_refused_with_a_line(
    tmp_path: Path, content: bytes, line: int
) -> None:
    task = make_pack(tmp_path / "pack")
    task.write_bytes(content)
    with pytest.raises(TaskPackError, match=rf"^task\.yaml:{line}: "):
        load_pack(task)


def test_a_pack_needs_an_executable_run_script(tmp_path: Path) -> None:
    task = make_pack(tmp_path / "pack")
    (task.parent / "solution/run.sh").chmod(0o644)
    with pytest.raises(TaskPackError, match=r"task\.yaml:3: .*executable run\.sh"):
        load_pack(task)


def test_a_link_that_leads_out_of_the_pack_is_refused(tmp_path: Path) -> None:
    task = make_pack(tmp_path / "pack")
    (task.parent / "instruction.md").unlink()
    (task.parent / "instruction.md").symlink_to("/etc/hostname")
    with pytest.raises(TaskPackError, match="leads out of the pack"):
        load_pack(task)


def test_an_evaluator_reached_through_a_link_is_still_seen(tmp_path: Path) -> None:
    task = make_pack(tmp_path / "pack")
    (task.parent / "proxy/hidden.py").write_text("\n")
    (task.parent / "evaluator/final_eval.py").unlink()
    (task.parent / "evaluator/final_eval.py").symlink_to("../proxy/hidden.py")
    with pytest.raises(TaskPackError, match="which the exploration sees"):
        load_pack(task)


def test_the_digest_sees_bytes_names_modes_and_links_but_no_bytecode(tmp_path: Path) -> None:
    folder = make_pack(tmp_path / "pack").parent
    seen = {pack_digest(folder)}
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__/x.pyc").write_bytes(b"x")
    (folder / "proxy/x.pyc").write_bytes(b"x")
    assert pack_digest(folder) in seen
    for change in (
        lambda: (folder / "proxy/fast_eval.py").write_text("2\n"),
        lambda: (folder / "proxy/fast_eval.py").chmod(0o755),
        lambda: (folder / "proxy/fast_eval.py").rename(folder / "proxy/other.py"),
        lambda: (folder / "proxy/link").symlink_to("other.py"),
        lambda: (folder / "proxy/folder").symlink_to(folder, target_is_directory=True),
    ):
        change()
        assert pack_digest(folder) not in seen
        seen.add(pack_digest(folder))


def test_the_digest_refuses_a_special_file(tmp_path: Path) -> None:
    folder = make_pack(tmp_path / "pack").parent
    os.mkfifo(folder / "pipe")
    with pytest.raises(TaskPackError, match="pipe"):
        load_pack(folder)


def test_a_script_is_shown_with_its_folder_but_never_with_the_pack(tmp_path: Path) -> None:
    pack = load_pack(make_pack(tmp_path / "pack"))
    shown = pack.script_mount("evaluator/final_eval.py", "/opt/evaluator")
    assert shown == Mount(pack.folder / "evaluator", "/opt/evaluator")
    alone = pack.script_mount("prepare.py", "/opt/evaluator")
    assert alone == Mount(pack.folder / "prepare.py", "/opt/evaluator/prepare.py")
