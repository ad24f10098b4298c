"""What the TOFU packs' torch code must do; runs in the image hf-cpu, see test_tofu_mini.py.

``tofu_checks.py PACK ASSETS SCRATCH`` runs every ``check_`` function and prints a line of JSON for
each: its name, and what was wrong with it.
"""

import json
import math
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

PACK, ASSETS, SCRATCH = (Path(word) for word in sys.argv[1:4])
sys.dont_write_bytecode = True
sys.path[:0] = [str(PACK / "solution"), str(PACK / "evaluator")]

import batches  # noqa: E402
import final_eval  # noqa: E402
import losses  # noqa: E402
import machine  # noqa: E402
import measure  # noqa: E402
import readings  # noqa: E402
import rows  # noqa: E402
import settings  # noqa: E402
import torch  # noqa: E402
import train  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

ANCHOR, REFERENCE = ASSETS / "models/training_start", ASSETS / "models/retain_reference"
RECIPE = settings.load(PACK / "solution/settings.toml")


@cache
def model() -> Any:
    return AutoModelForCausalLM.from_pretrained(ANCHOR, dtype="auto").eval()


@cache
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(ANCHOR)


@cache
def start() -> dict[str, torch.Tensor]:
    return load_file(ANCHOR / "model.safetensors")


def checkpoint(name: str, weights: dict[str, torch.Tensor]) -> Path:
    folder = SCRATCH / name
    folder.mkdir()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def noisy(scale: float = 0.02) -> dict[str, torch.Tensor]:
    torch.manual_seed(5)
    return {name: value + scale * torch.randn_like(value) for name, value in start().items()}


def score(folder: Path, *, reference_run: bool = False) -> dict[str, Any]:
    found: dict[str, Any] = final_eval.evaluate(ASSETS, folder, reference_run=reference_run)
    return found


def verdict(folder: Path) -> tuple[str, str]:
    found = score(folder)
    return found["status"], found["reason"]


@contextmanager
def refused(
    kind: type[BaseException] | tuple[type[BaseException], ...], words: str
) -> Iterator[None]:
    """Assert that something raises, as pytest would: it is not in the image."""
    try:
        yield
    except kind as fault:
        if words not in str(fault):
            raise
    else:
        raise AssertionError(f"nothing was raised that says {words!r}")


def examples() -> list[Any]:
    found = measure.questions(ASSETS / "data/final" / measure.FORGET)[:9]
    return [readings.encode(tokenizer(), row.question, row.answer) for row in found]


def check_the_start_handed_in_is_invalid_and_scores_nothing_as_a_reference() -> None:
    halved = {name: value.double() for name, value in start().items()}  # the same in its precision
    folder = checkpoint("start", halved)
    assert verdict(folder) == ("invalid", "start_weights")
    found = score(folder, reference_run=True)
    assert found["status"] == "scored"
    assert found["metrics"]["balanced_unlearning_score"] == 0.0
    assert found["metrics"]["model_utility"] == found["baselines"]["start"]["model_utility"]
    assert found["baselines"]["start"]["extraction_strength"] > 0.9
    assert found["baselines"]["reference"]["extraction_strength"] < 0.6


def check_the_reference_has_made_all_progress() -> None:
    found = score(REFERENCE)["metrics"]
    assert found["forget_progress"] == 1.0
    assert found["utility_retention"] > 0.95
    assert len([name for name in found if name.startswith(("retain_", "real_", "world_"))]) == 9


def check_a_checkpoint_gives_tensors_and_nothing_else() -> None:
    weights = noisy()
    plain = score(checkpoint("plain", weights))
    names = sorted(weights)
    loaded = SCRATCH / "loaded"
    loaded.mkdir()
    for at, part in enumerate((names[:3], names[3:]), 1):
        save_file(
            {name: weights[name] for name in part}, loaded / f"model-0000{at}-of-00002.safetensors"
        )
    save_file(
        {"lm_head.weight": torch.zeros_like(weights["model.embed_tokens.weight"])},
        loaded / "model-x.safetensors",
    )
    (loaded / "config.json").write_text(
        '{"model_type": "llama", "hidden_size": 7, "auto_map": {"AutoModel": "evil.Evil"}}'
    )
    (loaded / "evil.py").write_text("raise SystemExit('code of a checkpoint was run')\n")
    (loaded / "generation_config.json").write_text('{"max_new_tokens": 1, "do_sample": true}')
    (loaded / "tokenizer_config.json").write_text('{"chat_template": "{{ 1 / 0 }}"}')
    assert score(loaded) == plain
    assert plain["status"] == "scored"


def check_tensors_of_other_names_or_shapes_are_an_error() -> None:
    weights = start()
    first = next(iter(weights))
    for changed in (
        {name: value for name, value in weights.items() if name != first},
        {**weights, "model.extra.weight": torch.zeros(1)},
        {**weights, first: weights[first][:1]},
    ):
        with refused((ValueError, RuntimeError), ""):
            final_eval.copy_into(AutoModelForCausalLM.from_pretrained(ANCHOR), changed)


def check_what_is_not_finite_is_invalid() -> None:
    weights = {name: value.clone() for name, value in start().items()}
    weights["model.norm.weight"][0] = math.nan
    assert verdict(checkpoint("nan", weights)) == ("invalid", "nonfinite_weights")
    weights = {name: value.clone() for name, value in start().items()}
    weights["model.norm.weight"] *= 1e38
    assert verdict(checkpoint("huge", weights)) == ("invalid", "nonfinite_loss")


def check_an_answer_without_tokens_is_an_error() -> None:
    for answer in ("", "  "):
        with refused(ValueError, "empty after tokenising"):
            readings.encode(tokenizer(), "Where ?", answer)


def check_readings_are_what_the_model_itself_says() -> None:
    for example, reading in zip(examples(), readings.read(model(), examples()), strict=True):
        ids = torch.tensor([[*example.prompt, *example.answer]])
        labels = ids.clone()
        labels[0, : len(example.prompt)] = -100
        with torch.no_grad():
            own = model()(input_ids=ids, labels=labels)
        assert abs(float(own.loss) - reading.loss) < 1e-5
        said = own.logits[0].argmax(-1).tolist()
        assert list(reading.predicted) == said[len(example.prompt) - 1 : -1]
        assert example.answer[-1] == tokenizer().eos_token_id


def check_neither_side_of_filling_changes_an_answer() -> None:
    found = examples()
    together = readings.generate(model(), tokenizer(), found)
    alone = [readings.generate(model(), tokenizer(), [one])[0] for one in found]
    assert together == alone
    texts = measure.load(tokenizer(), ASSETS / "data/final" / measure.FORGET).texts[: len(found)]
    assert sum(said == text for said, text in zip(together, texts, strict=True)) >= 8


def check_the_objective_is_what_its_formulas_say() -> None:
    ratio = torch.tensor([0.5, -1.0])
    expected = -20 * sum(math.log(1 / (1 + math.exp(-0.1 * one))) for one in (0.5, -1.0)) / 2
    assert abs(float(losses.npo(ratio, 0.1)) - expected) < 1e-5
    pairs = rows.read(ASSETS / "data/train/forget10.json")[:4]
    batch = batches.collate([rows.encode(tokenizer(), *pair) for pair in pairs])
    logits = model()(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits
    nll, tokens = losses.answer_nll(logits, batch.labels)
    for at, pair in enumerate(pairs):
        [reading] = readings.read(model(), [readings.encode(tokenizer(), *pair)])
        assert abs(nll[at].item() / int(tokens[at]) - reading.loss) < 1e-5
    assert abs(losses.kl(logits, logits, batch.attention_mask).item()) < 1e-6
    filled = torch.cat([logits, 9 * torch.ones_like(logits[:, :1])], 1)
    other = torch.cat([logits * 0.5, torch.zeros_like(logits[:, :1])], 1)
    mask = torch.cat([batch.attention_mask, torch.zeros(4, 1, dtype=torch.long)], 1)
    assert torch.allclose(
        losses.kl(filled, other, mask), losses.kl(logits, logits * 0.5, batch.attention_mask)
    )


def check_npo_by_token_weighs_long_and_short_answers_alike() -> None:
    method = replace(RECIPE.method, retain=settings.Retain.KL, alpha=0.0)
    moved = AutoModelForCausalLM.from_pretrained(ANCHOR)
    moved.load_state_dict(noisy(), strict=False)
    pairs = rows.read(ASSETS / "data/train/forget10.json")[:4]
    batch = batches.collate([rows.encode(tokenizer(), *pair) for pair in pairs])
    nll, tokens = losses.answer_nll(losses._logits(moved, batch), batch.labels)
    before, _ = losses.answer_nll(losses._logits(model(), batch), batch.labels)
    for forget, ratio in (("npo", nll - before), ("npo-token", (nll - before) / tokens)):
        chosen = replace(method, forget=settings.Forget(forget), gamma=2.0)
        loss, _ = losses.loss(chosen, moved, model(), batch, batch)
        assert torch.allclose(loss, 2.0 * losses.npo(ratio, method.beta))


def trained(name: str, **changes: Any) -> dict[int, Path]:
    """Train for a few steps in this process and return what was published, by steps."""
    recipe = replace(RECIPE, training=replace(RECIPE.training, **{"epochs": 1, **changes}))
    os.environ["OUTPUT_DIR"] = str(SCRATCH / name)
    train.load = lambda _: recipe
    train.main()
    folder = SCRATCH / name / "checkpoints"
    return {int(path.name.removeprefix("checkpoint-")): path for path in folder.iterdir()}


def check_checkpoints_are_whole_numbered_by_steps_and_the_same_each_time() -> None:
    left = SCRATCH / "one/checkpoints/.checkpoint-5.unfinished/left"
    left.mkdir(parents=True)
    one, two = trained("one"), trained("two")
    assert sorted(one) == [2, 3, 5]
    for step, folder in one.items():
        assert (folder / "model.safetensors").read_bytes() == (
            two[step] / "model.safetensors"
        ).read_bytes()
    again = AutoModelForCausalLM.from_pretrained(one[5])
    assert "lm_head.weight" not in load_file(one[5] / "model.safetensors")
    assert again.lm_head.weight is again.model.embed_tokens.weight
    assert AutoTokenizer.from_pretrained(one[5]).chat_template == tokenizer().chat_template
    assert score(one[5])["status"] == "scored"
    os.environ["SEED"] = "1"
    three = trained("three")
    del os.environ["SEED"]
    assert (three[5] / "model.safetensors").read_bytes() != (
        one[5] / "model.safetensors"
    ).read_bytes()


def check_batches_may_be_split_without_changing_a_step() -> None:
    forget = [
        rows.encode(tokenizer(), *pair) for pair in rows.read(ASSETS / "data/train/forget10.json")
    ]
    gradients = []
    for batch, accumulate in ((8, 1), (4, 2)):
        recipe = replace(
            RECIPE,
            method=replace(RECIPE.method, alpha=0.0),  # a mean over tokens depends on the batch
            training=replace(RECIPE.training, batch=batch, accumulate=accumulate),
        )
        trainee = machine.trainee(ANCHOR, recipe.machine, recipe.training)
        train.add_gradient(recipe, trainee, model(), batches.endless(forget, forget, batch, 0))
        gradients.append([weight.grad for weight in trainee.model.parameters()])
    assert any(float(gradient.abs().max()) > 1e-3 for gradient in gradients[0])
    for one, other in zip(*gradients, strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def check_a_run_out_of_time_publishes_what_it_has() -> None:
    os.environ |= {"MAX_WALL_TIME_SECONDS": "30", "DEADLINE_RESERVE_SECONDS": "30"}
    try:
        assert list(trained("late", epochs=12)) == [1]
    finally:
        del os.environ["MAX_WALL_TIME_SECONDS"], os.environ["DEADLINE_RESERVE_SECONDS"]


def check_a_loss_that_is_not_finite_ends_the_training() -> None:
    with refused(SystemExit, "the loss is not finite"):
        trained("burst", learning_rate=1e30)


def main() -> None:
    torch.set_num_threads(1)
    checks: dict[str, Callable[[], None]] = {
        name: value for name, value in globals().items() if name.startswith("check_")
    }
    for name, check in checks.items():
        try:
            check()
            fault = ""
        except Exception:  # noqa: BLE001 - every check is reported, whatever it meets
            fault = traceback.format_exc()
        print(json.dumps({"check": name, "fault": fault}), flush=True)


if __name__ == "__main__":
    main()
