"""Whatever a candidate leaves in ``/out`` is recorded, bounded and harmless.

One candidate does one deed per seed, so that all of them share an exploration.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.rig import PUBLISH, Rig, events, final, last

PROLOGUE = (
    PUBLISH
    + """\
C=$OUTPUT_DIR/checkpoints
good() { publish $1 0.$1; }
good 10
"""
)
DEEP = """\
import os
for root in ("/workspace", "/out/checkpoints/checkpoint-20"):
    os.makedirs(root, exist_ok=True)
    os.chdir(root)
    open("n" * 255, "w").close()
    for _ in range(3000):
        os.mkdir("d")
        os.chdir("d")
    open("bottom", "w").close()
print("made")
"""
NAMES = """\
import os
os.chdir("/out/checkpoints")
for name in (b"a\\nb", b"\\x1b[2J\\x07", b"\\xff\\xfe", b"checkpoint-\\xd9\\xa1",
             b"checkpoint-1" + b"0" * 12, b"checkpoint-best", b"n" * 255):
    os.mkdir(name)
"""
FORKS = """\
import os, time
for _ in range(10000):
    try:
        if not os.fork():
            time.sleep(600)
    except OSError:
        print("refused")
        os._exit(3)
"""
DEEDS: dict[str, str] = {
    "special_files": """\
good 20; mkfifo $C/checkpoint-20/pipe
good 30; cd $C/checkpoint-30; python3 -c 'import socket as s; s.socket(s.AF_UNIX).bind("sock")'
good 40; ln -s /etc/passwd $C/checkpoint-40/passwd
good 50; ln -s ../../../../../etc $C/checkpoint-50/up
good 60; ln $C/checkpoint-60/weights.txt $C/checkpoint-60/twin.txt
good 70; chmod 000 $C/checkpoint-70
""",
    "links": """\
good 20
ln -s /out/checkpoints/checkpoint-20 $C/latest
ln -s checkpoint-20 $C/checkpoint-50
ln -s missing $C/checkpoint-60
echo 1 > $C/checkpoint-70
""",
    "cut_off": "good 20; mkdir $C/checkpoint-30; echo '{}' > $C/checkpoint-30/config.json\n",
    "names": f"python3 - <<'PY'\n{NAMES}PY\n",
    "folder_is_a_link": "mv $C /workspace/ck; ln -s /workspace/ck $C\n",
    "folder_is_a_file": "rm -r $C; echo text > $C\n",
    "sparse": """\
good 20; truncate -s 1T $C/checkpoint-20/huge || echo refused
good 30; truncate -s 31M $C/checkpoint-30/holes; truncate -s 31M $C/checkpoint-30/more
""",
    "deep": f"python3 - <<'PY'\n{DEEP}PY\n",
    "no_space": """\
for n in 1 2 3; do
  head -c 20M /dev/zero > /out/full$n; head -c 20M /dev/zero > /tmp/full$n
done
exit 28
""",
    "forks": f"python3 - <<'PY'\n{FORKS}PY\nexit $?\n",
    "memory": "python3 -c 'x = bytearray(1 << 30); x[:] = b\"1\" * (1 << 30)'; code=$?\n"
    "sleep 1; exit $code\n",
    "text": r"""
head -c 60000000 /dev/zero
printf '\377\376\033[2J\033]0;pwn\007\302\233last words'
printf 'e\nr\033[31m' >&2
exit 124
""",
    "forgery": """\
for at in /out $C/checkpoint-10; do
  for f in summary.json reward.json official-eval-receipt.json .complete; do
    echo '{"score": 1, "passed": true}' > $at/$f
  done
  mkdir $at/receipts; echo '{}' > $at/receipts/003-gate.json
done
""",
}


def _script(deeds: Mapping[str, str]) -> str:
    cases = "".join(f"{n})\n{text};;\n" for n, text in enumerate(deeds.values(), start=1))
    return f"{PROLOGUE}case $SEED in\n{cases}esac\n"


@pytest.fixture(scope="module")
def replays(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every deed done once; the command goes through all of them and ends with 0."""
    rig = Rig(tmp_path_factory.mktemp("hostile"))
    pack = rig.pack(_script(DEEDS), replay={"seed_variable": "SEED"})
    attempt = rig.explore(pack)
    repeats = ("--repeats", str(len(DEEDS)))
    done = rig.orch("replay", attempt, *repeats, "--through", "validate", timeout=400)
    assert done.code == 0, done.err
    return {name: attempt / f"replay-{n:03d}" for n, name in enumerate(DEEDS, start=1)}


def _judged(replay: Path) -> dict[str, tuple[str, str]]:
    found = json.loads((replay / "artifacts.json").read_text())["artifacts"]
    return {a["name"]: (a["status"], a["reason"]) for a in found}


def _exit(replay: Path) -> dict[str, Any]:
    return dict(last(replay, "exited")["exit"])


_GOOD = ("accepted", "")


@pytest.mark.parametrize("deed", DEEDS)
def test_it_is_the_candidates_doing_and_the_books_are_closed(
    replays: dict[str, Path], deed: str
) -> None:
    replay = replays[deed]
    assert final(replay) in {"validated", "no_checkpoint"}
    assert (replay / ".complete").is_file()
    assert last(replay, "exited")["host_facts"] == []
    assert _exit(replay)["killed_by"] == "nobody"


@pytest.mark.parametrize(
    "deed", [deed for deed in DEEDS if deed not in {"folder_is_a_link", "folder_is_a_file"}]
)
def test_the_good_checkpoint_beside_it_counts(replays: dict[str, Path], deed: str) -> None:
    assert _judged(replays[deed])["checkpoint-10"] == _GOOD


def test_special_files_and_links_that_leave_make_a_checkpoint_invalid(
    replays: dict[str, Path],
) -> None:
    judged = _judged(replays["special_files"])
    assert judged["checkpoint-20"] == ("rejected", "special_file")
    assert judged["checkpoint-30"] == ("rejected", "special_file")
    assert judged["checkpoint-40"] == ("rejected", "link_leaves_the_checkpoint")
    assert judged["checkpoint-50"] == ("rejected", "link_leaves_the_checkpoint")
    artifacts = json.loads((replays["special_files"] / "artifacts.json").read_text())["artifacts"]
    assert {a["name"]: a["detail"] for a in artifacts}["checkpoint-40"] == "passwd"


def test_hard_links_and_modes_do_not_matter(replays: dict[str, Path]) -> None:
    judged = _judged(replays["special_files"])
    assert judged["checkpoint-60"] == _GOOD
    assert judged["checkpoint-70"] == _GOOD


def test_CK_15_links_are_never_followed_as_checkpoints(replays: dict[str, Path]) -> None:
    assert _judged(replays["links"]) == {
        "checkpoint-20": _GOOD,
        "checkpoint-10": _GOOD,
        "checkpoint-50": ("ignored", "symlink"),
        "checkpoint-60": ("ignored", "symlink"),
        "checkpoint-70": ("ignored", "not_a_folder"),
        "latest": ("ignored", "not_a_checkpoint_name"),
    }


def test_CK_06_a_checkpoint_that_was_cut_off_is_rejected_and_the_older_ones_count(
    replays: dict[str, Path],
) -> None:
    assert _judged(replays["cut_off"]) == {
        "checkpoint-30": ("rejected", "missing_weights"),
        "checkpoint-20": _GOOD,
        "checkpoint-10": _GOOD,
    }


def test_any_name_is_recorded_by_its_bytes(replays: dict[str, Path]) -> None:
    judged = _judged(replays["names"])
    assert judged.keys() == {
        "checkpoint-10",
        "a%0Ab",
        "%1B%5B2J%07",
        "%FF%FE",
        "checkpoint-%D9%A1",
        "checkpoint-1" + "0" * 12,
        "checkpoint-best",
        "n" * 255,
    }


@pytest.mark.parametrize("deed", ["folder_is_a_link", "folder_is_a_file"])
def test_a_checkpoints_folder_that_is_none_holds_none(replays: dict[str, Path], deed: str) -> None:
    assert final(replays[deed]) == "no_checkpoint"
    assert _judged(replays[deed]).keys() == {"checkpoints"}


def test_a_sparse_file_is_bounded_by_its_apparent_size(replays: dict[str, Path]) -> None:
    assert _judged(replays["sparse"])["checkpoint-20"] == _GOOD
    assert _judged(replays["sparse"])["checkpoint-30"] == ("rejected", "too_large")
    assert not (replays["sparse"] / "checkpoints/checkpoint-30").exists()


def test_CK_22_deep_trees_and_long_names_are_survived(replays: dict[str, Path]) -> None:
    replay = replays["deep"]
    assert (replay / "logs/stdout.log").read_bytes() == b"made\n"
    assert _judged(replay)["checkpoint-20"] == ("rejected", "too_deep")
    assert list((replay / "workspace").iterdir()) == []
    assert list((replay / "out").iterdir()) == []


@pytest.mark.parametrize(("deed", "code"), [("no_space", 28), ("forks", 3), ("memory", 137)])
def test_its_own_limits_are_its_own_doing(replays: dict[str, Path], deed: str, code: int) -> None:
    assert _exit(replays[deed])["exit_code"] == code
    assert _exit(replays[deed])["stop_reason"] == "exited"
    assert _exit(replays[deed])["oom_killed"] == (deed == "memory")


def test_text_is_kept_byte_for_byte_within_a_budget(replays: dict[str, Path]) -> None:
    logs = replays["text"] / "logs"
    assert _exit(replays["text"])["exit_code"] == 124
    assert (logs / "stdout.log").stat().st_size < 10 * 1024**2
    tail = (logs / "stdout.log").read_bytes()[-200:]
    assert tail.endswith(b"\xff\xfe\033[2J\033]0;pwn\007\xc2\x9blast words")
    assert (logs / "stderr.log").read_bytes() == b"e\nr\033[31m"


def test_SC_03_forged_results_are_ignored_and_noted(replays: dict[str, Path]) -> None:
    replay = replays["forgery"]
    noted = [e["data"] for e in events(replay) if e["event"] == "noted"]
    assert {n["audit"] for n in noted} == {"result_file_forgery"}
    names = {".complete", "official-eval-receipt.json", "receipts", "reward.json", "summary.json"}
    beside = {f"checkpoints/checkpoint-10/{name}" for name in names}
    assert {n["name"] for n in noted} == names | beside
    assert not (replay / "summary.json").exists()
    assert [p.name for p in sorted((replay / "receipts").iterdir())] == [
        "003-gate.json",
        "004-replay.json",
        "005-validate.json",
    ]
