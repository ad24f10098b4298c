"""Let the validators of weights judge what torch and transformers write; prints the verdicts.

Runs in the image hf-cpu, with the harness where a validate container has it.
"""

import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

HARNESS = Path("/opt/harness/validators")
sys.path.append(str(HARNESS))

import hf_causal_lm  # noqa: E402
import torch  # noqa: E402
import torch_state  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402

ROOT = Path(tempfile.mkdtemp())
PWNED = Path("/tmp/pwned")
WEIGHTS = "model.safetensors"
Verdict = dict[str, Any]


def fresh() -> Path:
    return Path(tempfile.mkdtemp(dir=ROOT))


def places(checkpoint: Path, anchor: Path | None, out: Path, *, finite: bool) -> dict[str, str]:
    return {
        "ORCH_CHECKPOINT_DIR": str(checkpoint),
        "ORCH_ANCHOR": str(anchor or ""),
        "OUTPUT_DIR": str(out),
        "ORCH_ALLOW_NONFINITE": "0" if finite else "1",
    }


def judge(
    validator: ModuleType, checkpoint: Path, anchor: Path | None, *, finite: bool = True
) -> Verdict:
    out = fresh()
    os.environ.update(places(checkpoint, anchor, out, finite=finite))
    validator.main()
    verdict: Verdict = json.loads((out / "validation.json").read_text())
    return verdict


def as_a_container_does(validator: ModuleType, checkpoint: Path, anchor: Path) -> Verdict:
    out = fresh()
    env = {**os.environ, **places(checkpoint, anchor, out, finite=True)}
    script = HARNESS / f"{validator.__name__}.py"
    subprocess.run(["python3", script], env=env, check=True, cwd="/")
    verdict: Verdict = json.loads((out / "validation.json").read_text())
    return verdict


def llama(*, tied: bool = True, layers: int = 1) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=19, hidden_size=16, intermediate_size=24, num_hidden_layers=layers,
        num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=tied,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def saved(model: LlamaForCausalLM, **how: Any) -> Path:
    folder = fresh()
    model.save_pretrained(folder, **how)
    return folder


def changed(folder: Path, tensors: dict[str, torch.Tensor | None]) -> Path:
    """Change, add or (with None) remove tensors of a model saved in one file."""
    state = load_file(folder / WEIGHTS) | tensors
    kept = {name: tensor for name, tensor in state.items() if tensor is not None}
    save_file(kept, folder / WEIGHTS, metadata={"format": "pt"})
    return folder


def with_code() -> Path:
    """A whole checkpoint that asks, in every way there is, for its code to be run."""
    folder = saved(llama())
    code = f"open({str(PWNED)!r}, 'w')\n"
    for name in ("modeling_x.py", "configuration_x.py", "custom_generate/generate.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(code)
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {
        "AutoConfig": "configuration_x.Config",
        "AutoModelForCausalLM": "modeling_x.Model",
    }
    config["hidden_act"] = "one that there is not"
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text("not even JSON")
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "elsewhere"}')
    return folder


def language_models() -> Iterator[tuple[str, Verdict]]:
    anchor = saved(llama())
    embedding = load_file(anchor / WEIGHTS)["model.embed_tokens.weight"]
    described = fresh()
    (described / "config.json").write_bytes((anchor / "config.json").read_bytes())

    def lm(checkpoint: Path, anchor: Path = anchor, *, finite: bool = True) -> Verdict:
        return judge(hf_causal_lm, checkpoint, anchor, finite=finite)

    yield "anchor", lm(anchor)
    shards = saved(llama(), max_shard_size="2KB")
    yield "shards", lm(shards)
    index = shards / "model.safetensors.index.json"
    index.write_text(json.dumps(json.loads(index.read_text()) | {"metadata": {"dtype": "evil"}}))
    yield "shards whose index says more", lm(shards)
    plain = saved(llama())
    save_file(load_file(plain / WEIGHTS), plain / WEIGHTS)
    yield "a file without metadata", lm(plain)
    yield "bfloat16", lm(saved(llama().bfloat16()))
    yield (
        "head that is the embedding",
        lm(changed(saved(llama()), {"lm_head.weight": embedding.clone()})),
    )
    yield (
        "head that is not the embedding",
        lm(changed(saved(llama()), {"lm_head.weight": embedding + 1})),
    )
    untied = saved(llama(tied=False))
    yield "head of its own", lm(untied, untied)
    yield (
        "large numbers",
        lm(changed(saved(llama()), {"model.embed_tokens.weight": embedding * 3e38})),
    )
    mlp = {k: v for k, v in load_file(anchor / WEIGHTS).items() if "up_proj" in k or "down_" in k}
    huge = changed(saved(llama()), {name: torch.full_like(mlp[name], 3e38) for name in mlp})
    yield "output that is not finite", lm(huge)
    yield "output that need not be finite", lm(huge, finite=False)
    yield "code", lm(with_code())
    yield "by the configuration", lm(saved(llama()), described)
    yield (
        "a layer too few",
        lm(changed(saved(llama()), {"model.layers.0.mlp.up_proj.weight": None}), described),
    )
    yield "a layer too many", lm(changed(saved(llama()), {"model.x": torch.ones(1)}), described)
    yield (
        "another shape",
        lm(changed(saved(llama()), {"model.norm.weight": torch.ones(15)}), described),
    )


class Payload:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {PWNED}",)


def state(value: object, **how: Any) -> Path:
    folder = fresh()
    torch.save(value, folder / "state.pt", **how)
    return folder


def cut(folder: Path) -> Path:
    """Write the archive again with one byte less in a tensor."""
    path = folder / "state.pt"
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data[:-1] if name.endswith("/data/0") else data)
    return folder


def states() -> Iterator[tuple[str, Verdict]]:
    whole = {"model": {"w": torch.ones(2, 3), "n": torch.tensor([1])}, "step": 3, "rates": [0.1]}
    anchor = state(whole)
    loop: list[object] = []
    loop.append(loop)

    def pt(value: object, *, finite: bool = True, **how: Any) -> Verdict:
        return judge(torch_state, state(value, **how), anchor, finite=finite)

    def weights(tensor: torch.Tensor, *, finite: bool = True) -> Verdict:
        return pt({"model": {**whole["model"], "w": tensor}}, finite=finite)  # type: ignore[dict-item]

    yield "state", pt(whole)
    yield "state as a container judges it", as_a_container_does(torch_state, anchor, anchor)
    yield "state without an anchor", judge(torch_state, state([torch.ones(4)]), None)
    yield "state of another shape", weights(torch.ones(3, 2))
    yield "state of another dtype", weights(torch.ones(2, 3).half())
    yield "state that is not finite", weights(torch.full((2, 3), torch.nan))
    yield "state that need not be finite", weights(torch.full((2, 3), torch.nan), finite=False)
    yield "state that lacks a tensor", pt({"model": {"w": torch.ones(2, 3)}})
    yield "state with one more", pt({**whole, "ema": torch.ones(1)})
    yield "CK-18 pickle", pt({**whole, "x": Payload()})
    yield "CK-18 module", pt(torch.nn.Linear(2, 2))
    yield "CK-09 tensor cut by one byte", judge(torch_state, cut(state(whole)), anchor)
    yield "CK-09 old format", pt(whole, _use_new_zipfile_serialization=False)
    yield "tensor larger than its storage", weights(torch.zeros(1).expand(10**12))
    yield "sparse tensor", weights(torch.eye(3).to_sparse())
    yield "tensor of nothing", weights(torch.ones(2, 3, device="meta"))
    yield "a list in itself", pt(loop)
    both = torch.full((9,), torch.nan)
    both[:6] = 1
    hidden = {**whole["model"], "w": both[6:]}  # type: ignore[dict-item]
    yield "two tensors of one name", pt({"model:w": both[:6].view(2, 3), **whole, "model": hidden})
    eight = torch.full((2,), 57344.0).to(torch.float8_e5m2)
    yield "eight bits", judge(torch_state, state([eight]), None)
    endless = torch.full((2,), torch.inf).to(torch.float8_e5m2)
    yield "eight bits, not finite", judge(torch_state, state([endless]), None)


if __name__ == "__main__":
    print(json.dumps(dict([*language_models(), *states(), ("pwned", PWNED.exists())])))
