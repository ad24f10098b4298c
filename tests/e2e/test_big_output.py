"""Much of everything: time, memory and disk of the orchestrator stay bounded."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.rig import PUBLISH, Rig, final, last

pytestmark = pytest.mark.slow

MANY = 100_000
RUN = (
    PUBLISH
    + f"""\
case $SEED in
1) publish 1 0.5; cd $OUTPUT_DIR/checkpoints
   seq -f 'checkpoint-%.0f' 10 {MANY + 9} | xargs mkdir ;;
2) publish 1 0.5; publish 2 0.5; cd $OUTPUT_DIR/checkpoints/checkpoint-2
   seq {MANY + 1} | xargs touch ;;
3) publish 1 0.5; head -c 1G /dev/zero; printf 'the end' ;;
esac
"""
)


@dataclass(frozen=True)
class Big:
    """The three replays, and the most memory the orchestrator took, in bytes."""

    replays: tuple[Path, ...]
    memory: int


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Big:
    rig = Rig(tmp_path_factory.mktemp("big"))
    pack = rig.pack(
        RUN,
        defaults={"disk": "1g", "memory": "1g"},
        replay={"wall": "5m", "seed_variable": "SEED"},
    )
    attempt = rig.enter(pack)
    process = rig.start("replay", attempt, "--repeats", "3", "--through", "validate")
    out, err = process.stdout, process.stderr
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert out is not None
    assert err is not None
    with out, err:
        assert process.returncode == 0, err.read().decode()
    return Big(tuple(attempt / f"replay-00{n}" for n in (1, 2, 3)), used.ru_maxrss * 1024)


def _artifacts(replay: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((replay / "artifacts.json").read_text())["artifacts"]
    return found


def test_only_the_newest_of_very_many_bad_checkpoints_are_looked_at(big: Big) -> None:
    assert final(big.replays[0]) == "none_valid"
    assert {a["reason"] for a in _artifacts(big.replays[0])} == {"empty"}
    assert len(_artifacts(big.replays[0])) == 16
    assert last(big.replays[0], "collected")["unexamined"] == MANY + 1 - 16


def test_a_checkpoint_of_very_many_files_is_refused_and_the_one_before_counts(big: Big) -> None:
    judged = {a["name"]: (a["status"], a["reason"]) for a in _artifacts(big.replays[1])}
    assert judged["checkpoint-2"] == ("rejected", "too_many_files")
    assert judged["checkpoint-1"] == ("accepted", "")


def test_a_gigabyte_of_output_is_kept_in_a_few_megabytes(big: Big) -> None:
    log = big.replays[2] / "logs/stdout.log"
    assert log.stat().st_size < 10 * 1024**2
    assert log.read_bytes().endswith(b"the end")
    assert last(big.replays[2], "exited")["exit"]["exit_code"] == 0


def test_the_orchestrators_memory_stays_bounded(big: Big) -> None:
    assert big.memory < 512 * 1024**2
