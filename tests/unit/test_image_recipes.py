"""Recipes, their digests, and what the locks may and may not hold."""

import re
import subprocess
from pathlib import Path

import pytest

from orchestrator.adapters.image_builder import Recipe, read_recipes
from orchestrator.config import bundled
from orchestrator.domain.image import image_reference

ROOT = Path(__file__).parents[2]
RECIPES = read_recipes(bundled("containers"))
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
    candidates = RECIPES.keys() - {"debian", "prepare-sklearn"}
    assert candidates == {"cpu-numpy", "torch-cpu", "hf-cpu", "torch-cuda", "torch-cuda-deepspeed"}
    for name in candidates:
        assert not [package for package in locked(RECIPES[name]) if "scikit" in package]


def test_what_is_large_is_built_only_by_its_name() -> None:
    by_name = {recipe.name for recipe in RECIPES.values() if recipe.by_name}
    assert by_name == {name for name in RECIPES if re.match("torch|hf", name)}


def locked(recipe: Recipe) -> dict[str, str]:
    """Read the releases of a recipe's lock by their packages."""
    path = recipe.folder / "requirements.lock"
    text = path.read_text() if path.exists() else ""
    return dict(re.findall(r"^([a-z0-9._-]+)==(\S+)", text, re.MULTILINE))


def with_what_it_builds_on(recipe: Recipe) -> dict[str, str]:
    below = with_what_it_builds_on(RECIPES[recipe.parent]) if recipe.parent else {}
    return below | locked(recipe)


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=lambda recipe: recipe.name)
def test_a_lock_holds_what_is_asked_for_and_nothing_of_the_image_below(recipe: Recipe) -> None:
    asked = recipe.folder / "requirements.in"
    assert asked.exists() == (recipe.folder / "requirements.lock").exists()
    if not asked.exists():
        return
    assert f"-c ../{recipe.parent}/requirements.lock\n" in asked.read_text() or (
        recipe.parent == "debian"
    )
    for line in asked.read_text().splitlines():
        match = re.match(r"([a-z][a-z0-9-]*)(?:==(\S+))?$", line)
        if match:
            found = with_what_it_builds_on(recipe)[match.group(1)]
            assert match.group(2) in {None, found}
    assert recipe.parent is not None
    assert not locked(recipe).keys() & with_what_it_builds_on(RECIPES[recipe.parent]).keys()


@pytest.mark.parametrize("name", ["torch-cpu", "hf-cpu"])
def test_an_image_for_cpus_takes_no_wheel_of_cuda(name: str) -> None:
    packages = with_what_it_builds_on(RECIPES[name])
    assert packages["torch"].endswith("+cpu")
    assert not [package for package in packages if re.match("nvidia|cuda|triton", package)]


def test_the_images_with_torch_agree_on_their_releases() -> None:
    cpu = with_what_it_builds_on(RECIPES["hf-cpu"])
    cuda = with_what_it_builds_on(RECIPES["torch-cuda"])
    assert not cpu.keys() - cuda.keys()
    assert not [p for p in cpu if cpu[p].removesuffix("+cpu") != cuda[p]]


INSTRUCTIONS = {"FROM", "ARG", "COPY", "RUN", "ENV", "LABEL", "WORKDIR", "CMD"}


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=lambda recipe: recipe.name)
def test_a_dockerfile_is_instructions_whose_commands_are_shell(recipe: Recipe) -> None:
    text = re.sub(r"(?m)^#.*\n", "", (recipe.folder / "Dockerfile").read_text())
    for line in text.replace("\\\n", "").splitlines():
        word, _, rest = line.partition(" ")
        assert not line or word in INSTRUCTIONS, line
        if word == "RUN":
            subprocess.run(["bash", "-n", "-c", rest], check=True)
        if word == "COPY":
            sources = [part for part in rest.split()[:-1] if not part.startswith("--")]
            assert all(
                source == "wheels" or source.startswith("/") or (recipe.folder / source).exists()
                for source in sources
            ), line


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_lock_pins_every_release_by_hash_and_names_no_host(lock: Path) -> None:
    text = lock.read_text()
    assert "://" not in text
    entries = re.split(r"\n(?=[a-z])", re.sub(r"(?m)^--no-binary [a-z-]+\n", "", text).strip())
    for entry in entries:
        assert re.match(r"[a-z0-9._-]+==\S+", entry), entry
        assert "--hash=sha256:" in entry, entry


def test_there_are_locks_to_check() -> None:
    assert len(LOCKS) >= 8


@pytest.mark.parametrize(("ends", "holds"), [(0, True), (75, True), (65, False), (70, False)])
def test_make_does_without_an_image_only_where_its_wheels_cannot_be_had(
    tmp_path: Path, ends: int, *, holds: bool
) -> None:
    fakes = {"orch": f'[ "$3" != hf-cpu ] || exit {ends}', "pytest": "echo tested"}
    for name, ending in fakes.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{ending}\n")
        (tmp_path / name).chmod(0o755)
    argv = ["make", "--old-file=check", "everything", f"BIN={tmp_path}"]
    made = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (made.returncode == 0) is holds, made.stdout + made.stderr
    said = made.stdout.splitlines()
    assert ("tested" in said) is holds
    assert ("its wheels cannot be had; tests that need it are skipped" in said) is (ends == 75)
