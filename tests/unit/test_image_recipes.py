"""Recipes, their digests, and what the locks may and may not hold."""

import re
from pathlib import Path

import pytest

from orchestrator.adapters.image_builder import read_recipes
from orchestrator.config import bundled
from orchestrator.domain.image import image_reference

ROOT = Path(__file__).parents[2]
LOCKS = sorted([*ROOT.glob("requirements/*.txt"), *ROOT.glob("containers/*/requirements.lock")])


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("cpu-numpy", "orch/cpu-numpy:1"),
        ("debian:bookworm", "debian:bookworm"),
        ("team/image", "team/image"),
        ("image@sha256:00", "image@sha256:00"),
    ],
)
def test_only_a_bare_name_is_one_of_ours(name: str, reference: str) -> None:
    assert image_reference(name) == reference


def write_recipe(folder: Path, name: str, dockerfile: str) -> None:
    (folder / name).mkdir()
    (folder / name / "Dockerfile").write_text(dockerfile)


def test_a_recipe_comes_after_the_one_it_builds_on(tmp_path: Path) -> None:
    write_recipe(tmp_path, "above", "FROM orch/middle:1\n")
    write_recipe(tmp_path, "middle", "# FROM orch/above:1\nFROM orch/zero:1 AS stage\n")
    write_recipe(tmp_path, "zero", "ARG ROOTFS\nFROM ${ROOTFS}\n")
    recipes = read_recipes(tmp_path)
    assert list(recipes) == ["zero", "middle", "above"]
    assert [recipe.parent for recipe in recipes.values()] == [None, "zero", "middle"]


def test_a_digest_covers_names_contents_and_the_base(tmp_path: Path) -> None:
    write_recipe(tmp_path, "one", "FROM orch/zero:1\n")
    write_recipe(tmp_path, "zero", "FROM x\n")
    recipe = read_recipes(tmp_path)["one"]
    seen = {recipe.digest("base"), recipe.digest("other base")}
    (recipe.folder / "packages").write_text("git\n")
    seen.add(recipe.digest("base"))
    (recipe.folder / "packages").write_text("git patch\n")
    seen.add(recipe.digest("base"))
    (recipe.folder / "packages").rename(recipe.folder / "package")
    seen.add(recipe.digest("base"))
    assert len(seen) == 5


def test_the_shipped_recipes_never_give_a_candidate_scikit_learn() -> None:
    recipes = read_recipes(bundled("containers"))
    candidates = recipes.keys() - {"debian", "prepare-sklearn"}
    assert candidates == {"cpu-numpy", "torch-cpu", "hf-cpu"}
    for name in candidates:
        assert "scikit" not in (recipes[name].folder / "requirements.lock").read_text()


def test_what_is_large_is_built_only_by_its_name() -> None:
    recipes = read_recipes(bundled("containers")).values()
    assert [recipe.name for recipe in recipes if recipe.by_name] == ["torch-cpu", "hf-cpu"]


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_lock_pins_every_release_by_hash_and_names_no_host(lock: Path) -> None:
    text = lock.read_text()
    assert "://" not in text
    entries = re.split(r"\n(?=[a-z])", re.sub(r"(?m)^--no-binary [a-z-]+\n", "", text).strip())
    for entry in entries:
        assert re.match(r"[a-z0-9._-]+==\S+", entry), entry
        assert "--hash=sha256:" in entry, entry


def test_there_are_locks_to_check() -> None:
    assert len(LOCKS) == 6
