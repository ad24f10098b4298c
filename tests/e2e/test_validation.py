"""Checkpoints are judged in containers that trust nothing in them."""

import json
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from typing_extensions import override

from tests.e2e.rig import Rig
from tests.unit.weights_help import safetensors, tensor

SCORER = 'echo \'{"status": "scored", "metrics": {"score": 0.5}}\' > /out/summary.json\n'
Verdicts = Mapping[str, tuple[str, str, str]]


def judge(rig: Rig, pack: Path, makers: Mapping[int, Callable[[Path], object]]) -> Verdicts:
    """Hand checkpoints in as they are and return status, reason and detail of each."""
    words: list[str] = []
    for number, make in makers.items():
        folder = rig.root / f"made-{number}"
        folder.mkdir()
        make(folder)
        words += ["--checkpoint", f"{number}={folder}"]
    done = rig.orch("score", pack, *words, timeout=240)
    assert done.code == 0, done.err
    artifacts = next(rig.runs.glob("checkpoint__*/attempt-001/replay-001/artifacts.json"))
    found = json.loads(artifacts.read_text())["artifacts"]
    return {a["name"].removeprefix("checkpoint-"): _verdict(a) for a in found}


def _verdict(artifact: Mapping[str, str]) -> tuple[str, str, str]:
    return artifact["status"], artifact["reason"], artifact["detail"]


class ArrayRig(Rig):
    """A bench whose models are NumPy arrays."""

    @override
    def fill(self, folder: Path, role: str) -> None:
        save(folder)


def save(folder: Path) -> Path:
    """Write a whole array like the anchor's."""
    path = folder / "w.npy"
    np.save(path, np.ones((8, 8), np.float32))
    return path


class _Payload:
    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return eval, ("print('PWNED', flush=True) or open('/tmp/pwned', 'w')",)


def _pickled(folder: Path) -> None:
    header = b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }"
    header += b" " * (118 - len(header) - 1) + b"\n"
    start = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little")
    (folder / "w.npy").write_bytes(start + header + pickle.dumps(_Payload()))


def _claims_too_much(folder: Path) -> None:
    path = save(folder)
    path.write_bytes(path.read_bytes().replace(b"(8, 8), }      ", b"(%d, 8), }" % (1 << 40)))


def _huge_header(folder: Path) -> None:
    (folder / "w.npy").write_bytes(b"\x93NUMPY\x02\x00" + b"\xff\xff\xff\xff{")


def _cut(folder: Path) -> None:
    path = save(folder)
    path.write_bytes(path.read_bytes()[:-1])


def _with_code(folder: Path) -> None:
    save(folder)
    (folder / "config.json").write_text('{"auto_map": {"AutoModel": "modeling.Model"}}')
    (folder / "modeling.py").write_text("import os; print('PWNED', os.environ)")


@pytest.fixture(scope="module")
def arrays(tmp_path_factory: pytest.TempPathFactory) -> tuple[Rig, Verdicts]:
    rig = ArrayRig(tmp_path_factory.mktemp("arrays"))
    pack = rig.pack(scorer=SCORER, validate={"validator": "numpy"})
    makers: dict[int, Callable[[Path], object]] = {
        90: _pickled,
        80: _with_code,
        70: _claims_too_much,
        60: _huge_header,
        50: lambda folder: (folder / "w.npy").touch(),
        40: _cut,
        30: lambda folder: (folder / "config.json").write_text("{}"),
        20: save,
        10: save,
    }
    return rig, judge(rig, pack, makers)


@pytest.mark.parametrize("number", ["40", "50", "60", "70"])
def test_CK_09_a_broken_file_is_invalid_and_the_rest_is_still_judged(
    arrays: tuple[Rig, Verdicts], number: str
) -> None:
    status, reason, detail = arrays[1][number]
    assert (status, reason) in {("rejected", "corrupt_file"), ("rejected", "shape_mismatch")}
    assert "w.npy" in detail
    assert arrays[1]["20"][0] == arrays[1]["10"][0] == "accepted"


def test_CK_09_the_validator_itself_ends_well_every_time(arrays: tuple[Rig, Verdicts]) -> None:
    for path in arrays[0].runs.rglob("validation.json"):
        assert json.loads(path.read_text())["attempts"] == 1


def test_CK_06_a_checkpoint_without_weights_is_missing_them(
    arrays: tuple[Rig, Verdicts],
) -> None:
    assert arrays[1]["30"] == ("rejected", "missing_weights", "w.npy: not in the checkpoint")


def test_CK_18_loading_a_checkpoint_runs_nothing_of_it(arrays: tuple[Rig, Verdicts]) -> None:
    rig, verdicts = arrays
    assert verdicts["90"][:2] == ("rejected", "object_dtype")
    assert verdicts["80"][:2] == ("rejected", "unexpected_file")
    logs = [path.read_bytes() for path in rig.runs.rglob("validate/*/std*.log")]
    assert logs
    assert not [text for text in logs if b"PWNED" in text]


SHARDS = """\
python3 - <<'PY'
import json, os
reason = detail = ""
if os.path.exists("/ckpt/index.json"):
    shards = json.load(open("/ckpt/index.json"))["weight_map"].values()
    missing = [name for name in shards if not os.path.exists(f"/ckpt/{name}")]
    reason, detail = ("missing_shard", missing[0]) if missing else ("", "")
record = {"valid": not reason, "reason": reason, "detail": detail}
open("/out/validation.json", "w").write(json.dumps(record))
PY
case $(cat /ckpt/weights.txt) in
crash) exit 3 ;;
link) ln -sf /etc/passwd /out/validation.json ;;
fifo) rm /out/validation.json; mkfifo /out/validation.json ;;
huge) head -c 2M /dev/zero > /out/validation.json ;;
twice) echo '{"valid": true, "valid": true}' > /out/validation.json ;;
deep) head -c 500000 /dev/zero | tr '\\0' '[' > /out/validation.json ;;
extra) echo '{"valid": true, "score": 1}' > /out/validation.json ;;
esac
"""
WORDS = ("crash", "link", "fifo", "huge", "twice", "deep", "extra")


def _shards(folder: Path, count: int) -> None:
    names = [f"shard-0000{number}.bin" for number in (1, 2, 3)]
    (folder / "index.json").write_text(
        json.dumps({"weight_map": dict(zip("abc", names, strict=True))})
    )
    for name in (names[0], names[2], names[1])[:count]:
        (folder / name).write_bytes(b"w")
    (folder / "weights.txt").write_text("shards")


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Verdicts:
    """A validator of the task's own that fails in every way on some checkpoints."""
    rig = Rig(tmp_path_factory.mktemp("own"))
    makers: dict[int, Callable[[Path], object]] = {
        20: lambda folder: _shards(folder, 2),
        10: lambda folder: _shards(folder, 3),
    }
    for number, word in enumerate(WORDS, start=100):
        makers[number] = lambda folder, word=word: (folder / "weights.txt").write_text(word)  # type: ignore[misc]
    return judge(rig, rig.pack(scorer=SCORER, validator=SHARDS), makers)


def test_CK_07_a_missing_shard_is_named(own: Verdicts) -> None:
    assert own["20"] == ("rejected", "missing_shard", "shard-00002.bin")
    assert own["10"] == ("accepted", "", "")


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("crash", "validator_crashed"),
        ("link", "validator_no_output"),
        ("fifo", "validator_no_output"),
        ("huge", "validator_no_output"),
        ("twice", "validator_bad_output"),
        ("deep", "validator_bad_output"),
        ("extra", "validator_bad_output"),
    ],
)
def test_a_validator_that_fails_on_it_but_not_on_the_anchor_rejects_it(
    own: Verdicts, word: str, reason: str
) -> None:
    number = str(100 + WORDS.index(word))
    status = 3 if word == "crash" else 0
    detail = f"exit status {status}; see logs/validate/checkpoint-{number}-try2"
    assert own[number] == ("rejected", reason, detail)


class ModelRig(Rig):
    """A bench whose models are those of language."""

    @override
    def fill(self, folder: Path, role: str) -> None:
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(safetensors({"w": tensor("F32", 2)}))


def test_an_image_without_what_the_validator_needs_is_never_the_candidates_doing(
    tmp_path: Path,
) -> None:
    rig = ModelRig(tmp_path)
    pack = rig.pack(scorer=SCORER, validate={"validator": "hf-causal-lm"})
    checkpoint = tmp_path / "given"
    checkpoint.mkdir()
    rig.fill(checkpoint, "made")
    done = rig.orch("score", pack, "--checkpoint", f"1={checkpoint}")
    assert done.code == 75, done.err
    assert "validator_crashed twice, and the control on the anchor does not pass" in done.err
    logs = rig.runs.rglob("validate/checkpoint-1-try*/stderr.log")
    assert [log.read_text().splitlines()[-1] for log in logs] == [
        "ModuleNotFoundError: No module named 'torch'"
    ] * 2
    assert not list(rig.runs.rglob("artifacts.json"))
