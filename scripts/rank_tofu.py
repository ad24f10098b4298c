"""Rank four recipes on tofu_mini over three seeds, with the pack's own solution and evaluator.

``orch task prepare tofu_mini`` first. Then ``rank_tofu.py`` runs itself in a container of the image
hf-cpu, offline: it trains each recipe with each seed as ``run.sh`` does and measures every
checkpoint as the final evaluator does, start and reference measured once. It prints a line a run,
then the table: the balanced score of the best of three checkpoints, a column a seed, and the mean.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

SEEDS = (0, 1, 2)
RECIPES: dict[str, dict[str, str]] = {
    "shipped NPO": {},
    "retain weight 5": {"alpha": "5.0"},
    "NPO by token, KL": {"forget": '"npo-token"', "retain": '"kl"', "beta": "1.0", "alpha": "3.0"},
    "NPO by token, KL, twice as long": {
        "forget": '"npo-token"',
        "retain": '"kl"',
        "beta": "1.0",
        "alpha": "3.0",
        "epochs": "24",
    },
}


def main() -> None:
    """Start the container and show what it prints."""
    import docker  # noqa: PLC0415 - not in the image, where this file runs as well

    from orchestrator.config import Settings  # noqa: PLC0415
    from orchestrator.domain.image import image_reference  # noqa: PLC0415
    from orchestrator.storage.assets import AssetStore  # noqa: PLC0415
    from orchestrator.storage.pack import load_pack  # noqa: PLC0415

    settings = Settings.from_environment()
    pack, store = load_pack(Path("tofu_mini")), AssetStore(settings.assets)
    places = {store.locate(pack, name): f"/assets/{name}" for name in pack.spec.assets}
    places |= {pack.folder: "/opt/pack", Path(__file__).resolve(): "/opt/rank_tofu.py"}
    client = docker.DockerClient(base_url=settings.engine_address)
    container = client.containers.create(
        image_reference(pack.spec.defaults.image),
        ["python3", "/opt/rank_tofu.py", "inside"],
        network_mode="none",
        environment=pack.spec.defaults.env,
        volumes={str(host): {"bind": inside, "mode": "ro"} for host, inside in places.items()},
        tmpfs={"/tmp": "exec"},  # noqa: S108 - in the container
    )
    try:
        container.start()
        for chunk in container.logs(stream=True, follow=True):
            print(chunk.decode(), end="", flush=True)
        sys.exit(container.wait()["StatusCode"])
    finally:
        container.remove(force=True)


def inside() -> None:
    """Train and measure everything, and print the table."""
    sys.dont_write_bytecode = True
    sys.path.insert(0, "/opt/pack/evaluator")
    score = scorer(Path("/assets"))
    scores: dict[str, list[float]] = {name: [] for name in RECIPES}
    for name in RECIPES:
        for seed in SEEDS:
            found = [score(path) for path in train(name, seed)]
            scores[name].append(max(found))
            shown = ", ".join(f"{value:.3f}" for value in found)
            print(f"{name}, seed {seed}: {shown}", flush=True)
    print("\n| recipe | " + " | ".join(f"seed {seed}" for seed in SEEDS) + " | mean |")
    print("|---|" + "---|" * (len(SEEDS) + 1))
    for name, found in scores.items():
        cells = [*found, sum(found) / len(found)]
        print(f"| {name} | " + " | ".join(f"{value:.3f}" for value in cells) + " |")


def train(name: str, seed: int) -> list[Path]:
    """Run the solution with a recipe's settings; return its checkpoints, the newest last."""
    folder = Path("/tmp") / f"{name} {seed}"  # noqa: S108 - in the container
    shutil.copytree("/opt/pack/solution", folder / "workspace")
    settings = folder / "workspace/settings.toml"
    text = settings.read_text()
    for key, value in RECIPES[name].items():
        text, changes = re.subn(rf"(?m)^{key} = \S+", f"{key} = {value}", text)
        if changes != 1:
            sys.exit(f"settings.toml has no {key}")
    settings.write_text(text)
    env = {**os.environ, "OUTPUT_DIR": str(folder), "SEED": str(seed)}
    command = ["bash", folder / "workspace/run.sh"]
    subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL)
    found = (folder / "checkpoints").iterdir()
    return sorted(found, key=lambda path: int(path.name.rpartition("-")[2]))


def scorer(assets: Path) -> Callable[[Path], float]:
    """Measure start and reference; return what gives a checkpoint's score."""
    # What the evaluator is made of: there is no such module outside the container.
    import final_eval  # noqa: PLC0415
    from measure import Examiner  # noqa: PLC0415
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415
    from transformers.utils import logging  # noqa: PLC0415

    logging.disable_progress_bar()
    anchor = assets / "models/training_start"
    examiner = Examiner(AutoTokenizer.from_pretrained(anchor), assets / "data/final")
    model = AutoModelForCausalLM.from_pretrained(anchor, dtype="auto").eval()
    start = examiner.measure(model)
    final_eval.copy_into(model, final_eval.tensors(assets / "models/retain_reference"))
    reference = examiner.measure(model)

    def score(checkpoint: Path) -> float:
        final_eval.copy_into(model, final_eval.tensors(checkpoint))
        measured = final_eval.measure_candidate(model, examiner, start, reference)
        return float(measured["balanced_unlearning_score"])

    return score


if __name__ == "__main__":
    inside() if sys.argv[1:] == ["inside"] else main()
