"""Judge whether a checkpoint of a causal language model is whole, like the anchor, and runs.

Runs in the validate container, in two steps. The first needs nothing but Python: it reads the files
that ``save_pretrained`` writes - ``config.json`` and ``model.safetensors``, or shards and
``model.safetensors.index.json`` - in /ckpt and in the anchor ($ORCH_ANCHOR), without loading them.
The second needs torch and transformers: it loads the tensors into the model that the *anchor's*
configuration describes, on a GPU where there is one, and runs it once. Then it writes
/out/validation.json::

    {"valid": bool, "reason": "<slug>", "detail": str, "arrays": n, "parameters": n}

Exit status 0 for either verdict; anything else is a crash of this program or of the machine.
An anchor that holds a configuration but no weights is one that a task trains from nothing: names
and shapes are then the configuration's. Pickles are never opened. What a checkpoint brings beside
its tensors (configuration, tokenizer, code, ``auto_map``) is used by nobody; for a valid one
``detail`` names such code.
"""

import json
import re
import sys
import tempfile
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from weight_files import (
    FLOATS,
    Invalid,
    Places,
    Tensor,
    check_finite,
    header,
    leave_own_folder,
    listed,
    may_be_nonfinite,
    small_file,
    strict_json,
    write_verdict,
)

MAX_INDEX = 4 * 1024**2
MAX_CONFIG = 1024**2
MAX_PROMPT = 8
CONFIG = "config.json"
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
_PICKLES = frozenset({".bin", ".ckpt", ".joblib", ".pickle", ".pkl", ".pt", ".pth"})
_SHARD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,200}\.safetensors")
_SAME = ("architectures", "model_type", "num_hidden_layers", "hidden_size", "vocab_size")
_CODE = ("auto_map", "trust_remote_code")
_TOLD = {
    "missing_keys": "missing_tensor",
    "unexpected_keys": "unexpected_tensor",
    "mismatched_keys": "shape_mismatch",
}
"""What loading reports of names, and what that makes of a checkpoint."""


class Model(NamedTuple):
    """A model as its files describe it."""

    config: dict[str, Any]
    tensors: dict[str, Tensor]

    @property
    def tied(self) -> bool | None:
        """Whether the head is the embedding; None where the configuration does not say."""
        return self.config.get("tie_word_embeddings")

    @property
    def parameters(self) -> int:
        """How many numbers the tensors hold; a head that is the embedding is not counted twice."""
        ours = (t for name, t in self.tensors.items() if not (self.tied and name == HEAD))
        return sum(prod(tensor.shape) for tensor in ours)


def weights(files: dict[str, Path]) -> dict[str, Tensor]:
    """Read the headers of all weights and hold the index against the shards."""
    if INDEX not in files:
        if SINGLE not in files:
            raise Invalid("missing_weights", f"neither {SINGLE} nor {INDEX}")
        _only(files, {SINGLE})
        return header(files[SINGLE])
    places = _weight_map(files[INDEX])
    shards = sorted(set(places.values()))
    for shard in shards:
        if shard not in files:
            raise Invalid("missing_shard", f"{shard}: named by {INDEX}, not in the checkpoint")
    _only(files, set(shards))
    tensors: dict[str, Tensor] = {}
    for shard in shards:
        found = header(files[shard])
        for name in sorted(found):
            if places.get(name) != shard:
                raise Invalid("unexpected_tensor", f"{shard}: {name}: not there by the index")
        tensors |= found
    for name in sorted(places.keys() - tensors.keys()):
        raise Invalid("missing_tensor", f"{name}: not in {places[name]}")
    return tensors


def _weight_map(index: Path) -> dict[str, str]:
    """Read which tensor lies in which shard."""
    data = small_file(index, MAX_INDEX, "corrupt_file")
    found = strict_json(data, INDEX, "corrupt_file")
    places = found.get("weight_map")
    if not isinstance(places, dict) or not places:
        raise Invalid("corrupt_file", f"{INDEX}: no weight_map")
    if not isinstance(found.get("metadata"), dict):  # which transformers will not do without
        raise Invalid("corrupt_file", f"{INDEX}: no metadata")
    for name, shard in places.items():
        if not isinstance(shard, str) or not _SHARD.fullmatch(shard):
            raise Invalid("corrupt_file", f"{INDEX}: {name}: not the name of a shard")
    return places


def _only(files: dict[str, Path], wanted: set[str]) -> None:
    for shown in sorted(files):
        if shown.endswith(".safetensors") and shown not in wanted:
            raise Invalid("unexpected_file", f"{shown}: weights that nothing names")


def read_model(root: Path, *, may_lack_weights: bool = False) -> Model:
    """Read a model's configuration and headers."""
    files = listed(root)
    for shown in files:
        if Path(shown).suffix.lower() in _PICKLES:
            raise Invalid("pickle_refused", f"{shown}: only safetensors are read")
    described = may_lack_weights and not {SINGLE, INDEX} & files.keys()
    tensors = {} if described else weights(files)
    if CONFIG not in files:
        raise Invalid("bad_config", f"{CONFIG}: missing")
    data = small_file(files[CONFIG], MAX_CONFIG, "bad_config")
    model = Model(strict_json(data, CONFIG, "bad_config"), tensors)
    if not isinstance(model.tied, bool | None):
        raise Invalid("bad_config", f"{CONFIG}: tie_word_embeddings is no boolean")
    return model


def compare(found: Model, anchor: Model) -> None:
    """Hold a model against the anchor: configuration, names, dtypes, shapes, tied weights."""
    for key in _SAME:
        if key in anchor.config and found.config.get(key) != anchor.config[key]:
            raise Invalid("bad_config", f"{CONFIG}: {key} is not the anchor's")
    if None not in {found.tied, anchor.tied} and found.tied != anchor.tied:
        raise Invalid("bad_config", f"{CONFIG}: tie_word_embeddings is not the anchor's")
    if anchor.tensors:
        _compare_tensors(found, anchor)
        return
    for name, tensor in found.tensors.items():
        if tensor.dtype not in FLOATS:
            raise Invalid("dtype_mismatch", f"{name}: {tensor.dtype} is no float")


def _compare_tensors(found: Model, anchor: Model) -> None:
    wanted, given = dict(anchor.tensors), dict(found.tensors)
    if anchor.tied or (anchor.tied is None and HEAD not in wanted):
        _untie(wanted, anchor.tensors)
        _untie(given, found.tensors)
    for name in sorted(wanted.keys() - given.keys()):
        raise Invalid("missing_tensor", f"{name}: not in the checkpoint")
    for name in sorted(given.keys() - wanted.keys()):
        raise Invalid("unexpected_tensor", f"{name}: the anchor has no such tensor")
    for name, tensor in given.items():
        other = wanted[name]
        if tensor.shape != other.shape:
            detail = f"{name}: {list(tensor.shape)}, the anchor has {list(other.shape)}"
            raise Invalid("shape_mismatch", detail)
        # A float may be kept in more or fewer bits: a loader converts it.
        if tensor.dtype != other.dtype and not {tensor.dtype, other.dtype} <= FLOATS.keys():
            detail = f"{name}: {tensor.dtype}, the anchor has {other.dtype}"
            raise Invalid("dtype_mismatch", detail)


def _untie(tensors: dict[str, Tensor], all_of: dict[str, Tensor]) -> None:
    """Leave a head out that is the embedding; one that could not be is refused."""
    head, embedding = tensors.pop(HEAD, None), all_of.get(EMBEDDING)
    if head is not None and embedding is not None and head.shape != embedding.shape:
        raise Invalid("tied_weights", f"{HEAD}: tied to {EMBEDDING}, and of another shape")


def code_in(root: Path, config: dict[str, Any]) -> str:
    """Name what of a checkpoint wants to be run; nobody runs it."""
    asked = [f"{CONFIG} {key}" for key in _CODE if key in config]
    brought = sorted(str(path.relative_to(root)) for path in root.rglob("*.py"))
    return f"ignored: {', '.join(asked + brought)}" if asked or brought else ""


def load_model(anchor: Path, found: Model) -> None:
    """Load the tensors by the anchor's configuration and run the model once.

    Raises:
        Invalid: what is loaded is not the model that the configuration describes, or does not run.
        ImportError: torch or transformers is not in this image.
    """
    leave_own_folder()
    import torch  # noqa: PLC0415 - the first step does without
    from transformers import AutoModelForCausalLM  # noqa: PLC0415

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        _lay_out(Path(folder), anchor, found)
        model, told = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype="auto",
            ignore_mismatched_sizes=True,
            local_files_only=True,
            output_loading_info=True,
            trust_remote_code=False,
            use_safetensors=True,
        )
    for key, reason in _TOLD.items():
        for name in sorted(map(str, told.get(key) or ())):
            raise Invalid(reason, f"{name}: by the anchor's configuration, when loaded")
    _check_loaded(model, found)
    model.to("cuda" if torch.cuda.is_available() else "cpu").eval()
    vocabulary = model.get_input_embeddings().weight.shape[0]
    prompt = torch.arange(min(MAX_PROMPT, vocabulary), device=model.device).unsqueeze(0)
    with torch.inference_mode():
        logits = model(input_ids=prompt, use_cache=False).logits
    if not may_be_nonfinite() and not bool(torch.isfinite(logits).all()):
        raise Invalid("nonfinite", f"its output for {prompt.shape[1]} tokens")


def _lay_out(folder: Path, anchor: Path, found: Model) -> None:
    """Lay out for loading the anchor's configuration and the checkpoint's tensors, and no more."""
    (folder / CONFIG).symlink_to(anchor / CONFIG)
    places = {name: tensor.file.name for name, tensor in found.tensors.items()}
    for file in {tensor.file for tensor in found.tensors.values()}:
        (folder / file.name).symlink_to(file)
    if set(places.values()) != {SINGLE}:
        index = {"metadata": {}, "weight_map": places}
        (folder / INDEX).write_text(json.dumps(index), encoding="utf-8")


def _check_loaded(model: Any, found: Model) -> None:
    """Hold the loaded model against its own configuration and the files it came from."""
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    tied = head is not None and head.weight is embedding.weight
    wanted = bool(model.config.get_text_config().tie_word_embeddings)
    if head is not None and tied != wanted:
        says = "is not" if wanted else "is"
        raise Invalid("tied_weights", f"{HEAD} {says} {EMBEDDING}, and {CONFIG} says otherwise")
    loaded = sum(parameter.numel() for parameter in model.parameters())
    if loaded > found.parameters:
        detail = f"{loaded} parameters, and the files hold {found.parameters}"
        raise Invalid("missing_tensor", detail)


def main(load: Callable[[Path, Model], None] = load_model) -> None:
    """Write the verdict; ``load`` is the second step."""
    places = Places.from_environment()
    if places.anchor is None:
        sys.exit("the task has no anchor, so there is no configuration to load by")
    try:
        anchor = read_model(places.anchor, may_lack_weights=True)
    except Invalid as fault:
        sys.exit(f"the anchor is not usable: {fault.reason}: {fault}")
    try:
        found = read_model(places.checkpoint)
        compare(found, anchor)
        if not may_be_nonfinite():
            for name, tensor in found.tensors.items():
                check_finite(name, tensor)
        load(places.anchor, found)
    except Invalid as verdict:
        write_verdict(places.out, reason=verdict.reason, detail=str(verdict))
        return
    write_verdict(
        places.out,
        detail=code_in(places.checkpoint, found.config),
        arrays=len(found.tensors),
        parameters=found.parameters,
    )


if __name__ == "__main__":
    main()
