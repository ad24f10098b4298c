"""The two TOFU packs: one solution, one evaluator, one proxy; locks that are the published ones."""

import hashlib
import importlib.util
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from orchestrator.config import bundled
from orchestrator.domain.roles import DataRole
from orchestrator.domain.source import HubSource
from orchestrator.evidence.instruction import render
from orchestrator.storage.pack import Pack, load_pack
from receipts.tree import identity_of, tree_identity

FULL, MINI = (bundled("tasks") / name for name in ("tofu_npo_llama3p2_1b", "tofu_mini"))
PUBLISHED = Path(__file__).parents[3] / "shared/data/tofu"
"""TOFU's files, where somebody has laid them beside this checkout; the project carries none."""

published = pytest.mark.skipif(
    not PUBLISHED.is_dir(), reason=f"TOFU's files are not at {PUBLISHED}"
)


def _module(name: str) -> ModuleType:
    path = FULL / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"tofu_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _files(pack: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(pack)): path.read_bytes()
        for folder in ("solution", "evaluator", "proxy")
        for path in (pack / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def _hub(pack: Pack) -> Iterator[tuple[str, HubSource]]:
    for name, asset in pack.spec.assets.items():
        assert isinstance(asset.source, HubSource)
        yield name, asset.source


@pytest.fixture(scope="module")
def full() -> Pack:
    return load_pack(FULL)


@pytest.fixture(scope="module")
def mini() -> Pack:
    return load_pack(MINI)


def test_both_packs_have_the_same_code_and_other_settings() -> None:
    one, other = _files(FULL), _files(MINI)
    settings = "solution/settings.toml"
    assert one.pop(settings) != other.pop(settings)
    assert one == other
    assert len(one) > 10


def test_both_packs_are_scored_and_shown_alike(full: Pack, mini: Pack) -> None:
    for part in ("metric", "direction", "components", "command"):
        assert getattr(full.spec.score, part) == getattr(mini.spec.score, part)
    assert full.spec.proxy == mini.spec.proxy
    assert full.spec.assets.keys() == mini.spec.assets.keys()
    parts = _module("evaluator/formulas").UTILITY_PARTS
    assert set(parts) < set(full.spec.score.components)


def test_what_the_agent_is_told_can_be_rendered(full: Pack, mini: Pack) -> None:
    for pack in (full, mini):
        told = render(pack, pack.spec, pack.spec.explore.wall)
        assert f"at\nmost {pack.spec.replay.wall:.0f} seconds" in told
        assert "proxy_answer_nll_tradeoff" in told


def test_the_full_task_asks_for_what_the_published_one_has(full: Pack) -> None:
    spec = full.spec
    assert (spec.defaults.gpus, spec.defaults.cpus, spec.defaults.memory) == (1, 8, 64 * 1024**3)
    assert (spec.explore.wall, spec.replay.wall) == (4 * 3600, 12 * 3600)
    assert spec.replay.reserve == 900
    assert {name: asset.role for name, asset in spec.assets.items()} == {
        "models/training_start": DataRole.ANCHOR,
        "data/train": DataRole.TRAIN,
        "models/retain_reference": DataRole.REFERENCE,
        "data/final": DataRole.FINAL,
    }


def test_the_shipped_settings_are_the_published_recipe() -> None:
    settings = tomllib.loads((FULL / "solution/settings.toml").read_text())
    assert settings["method"] == {
        "forget": "npo", "retain": "nll", "beta": 0.1, "gamma": 1.0, "alpha": 1.0,
    }  # fmt: skip
    assert settings["training"] == {
        "learning_rate": 1.5e-5, "weight_decay": 0.01, "epochs": 10, "batch": 8, "accumulate": 4,
        "warmup_epochs": 1, "max_grad_norm": 1.0, "seed": 0, "checkpoints": 3,
    }  # fmt: skip
    assert settings["machine"] == {
        "precision": "bf16", "optimizer": "paged_adamw_32bit", "attention": "flash_attention_2",
        "deepspeed": "zero3", "gradient_checkpointing": True,
    }  # fmt: skip


def test_settings_are_read_strictly(tmp_path: Path) -> None:
    settings = _module("solution/settings")
    text = (FULL / "solution/settings.toml").read_text()
    loaded = settings.load(FULL / "solution/settings.toml")
    assert loaded.training.steps(400, 10) == 125
    assert loaded.training.steps(400, 1) == 12
    for old, new, fault in (
        ('"npo" ', '"dpo" ', ValueError),
        ("beta =", "betta =", TypeError),
        ("seed = 0", "", TypeError),
        ('deepspeed = "zero3"', 'deepspeed = "zero2"', ValueError),
    ):
        assert old in text
        changed = tmp_path / "settings.toml"
        changed.write_text(text.replace(old, new, 1))
        with pytest.raises(fault):
            settings.load(changed)


def test_a_locked_tree_is_the_tree_of_the_locked_files(full: Pack) -> None:
    sizes = {"config.json": 927, "generation_config.json": 184, "special_tokens_map.json": 325}
    sizes |= {"tokenizer_config.json": 54557, "tokenizer.json": 17209920}
    sizes["model.safetensors"] = 2471645608
    for name, source in _hub(full):
        if source.hub.kind.value == "model":
            rows = [
                {"path": path, "type": "file", "mode": "100644", "size": sizes[path], "sha256": sha}
                for path, sha in sorted(source.hub.files.items())
            ]
            assert full.spec.assets[name].digest == identity_of(rows)


def test_the_anchor_and_the_reference_differ_in_their_weights_alone(full: Pack) -> None:
    start, reference = (
        dict(source.hub.files) for name, source in _hub(full) if name.startswith("models/")
    )
    assert {name for name in start if start[name] != reference[name]} == {"model.safetensors"}


@published
def test_the_locked_digests_are_those_of_the_published_rows(full: Pack, tmp_path: Path) -> None:
    lines = (PUBLISHED / "SHA256SUMS").read_text().splitlines()
    sums = {name: digest for digest, name in map(str.split, lines)}
    for name, digest in sums.items():
        assert hashlib.sha256((PUBLISHED / name).read_bytes()).hexdigest() == digest
    for asset, source in _hub(full):
        if source.hub.kind.value != "dataset":
            continue
        for name, locked in source.hub.files.items():
            assert locked == sums[name]
            place = tmp_path / asset / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes((PUBLISHED / name).read_bytes())
        assert tree_identity(tmp_path / asset) == full.spec.assets[asset].digest
    final = dict(_hub(full))["data/final"].hub.files
    assert final.keys() == sums.keys()


@published
def test_our_loaders_read_the_published_rows() -> None:
    rows, questions = _module("solution/rows"), _module("evaluator/questions")
    forget = rows.read(PUBLISHED / "forget10.json")
    assert (len(forget), len(rows.read(PUBLISHED / "retain90.json"))) == (400, 3600)
    assert forget[0][1] == "The author's full name is Hsiao Yun-Hwa."
    found = questions.questions(PUBLISHED / "forget10_perturbed.json")
    assert [(row.question, row.answer) for row in found] == forget
    assert {len(row.wrong) for row in found} == {5}
    assert all(row.paraphrase != row.answer for row in found[:5])
    known = questions.questions(PUBLISHED / "real_authors_perturbed.json")
    assert (len(known), {len(row.wrong) for row in known}) == (100, {3})
    assert all(row.paraphrase == row.answer for row in known)
    assert len(questions.questions(PUBLISHED / "world_facts_perturbed.json")) == 117
    assert len(questions.questions(PUBLISHED / "retain_perturbed.json")) == 400


def test_broken_rows_are_errors(tmp_path: Path) -> None:
    questions = _module("evaluator/questions")
    path = tmp_path / "rows.json"
    for text in (
        "",
        '{"question": "a", "answer": "b", "perturbed_answer": []}\n',
        '{"question": "a", "answer": 1, "perturbed_answer": ["c"]}\n',
        '{"question": "a", "answer": "b", "perturbed_answer": [null]}\n',
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match="row"):
            questions.questions(path)
    path.write_text('{"question": "a", "answer": "b", "perturbed_answer": ["c\\u2028d"]}\n\n')
    assert questions.questions(path) == [("a", "b", "b", ("c\u2028d",))]


def test_the_published_points_stand_in_the_pack(full: Pack) -> None:
    points = {point.name: point for point in full.spec.reference}
    assert points["start"].components == {
        "extraction_strength": 0.707805,
        "model_utility": 0.597131,
    }
    assert points["shipped"].components["model_utility"] == 0.478673
    assert max(point.value or 0.0 for point in full.spec.reference) == 0.9772397102


@published
def test_no_text_of_tofu_is_in_the_replica() -> None:
    script = (MINI / "prepare.py").read_text()
    rows = _module("solution/rows")
    for name in ("forget10", "retain90"):
        for row in rows.read(PUBLISHED / f"{name}.json"):
            assert not [text for text in row if text in script]
