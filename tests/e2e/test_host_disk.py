"""What a candidate may write is counted once more where the host copies it: holes, second names."""

from pathlib import Path

import pytest

from tests.e2e.rig import PUBLISH, Rig, final, last

DISK = 32 * 1024**2
HOLES = "for i in $(seq 40); do truncate -s 30M f$i; done"
NAMES = "head -c 20M /dev/urandom > f0; for i in $(seq 40); do ln f0 f$i; done"
PUBLISH_HOLES = f"""\
{PUBLISH}
publish 100 0.1
for i in 1 2 3 4; do
  publish $i 0.1; truncate -s 20M /out/checkpoints/checkpoint-$i/hole
done
"""


def _size(folder: Path) -> int:
    return sum(p.lstat().st_size for p in folder.rglob("*") if p.is_file())


@pytest.mark.parametrize("grow", [HOLES, NAMES])
def test_what_is_kept_of_a_workspace_is_no_larger_than_the_workspace_could_be(
    rig: Rig, grow: str
) -> None:
    attempt = rig.explore(rig.pack(steps=({"run": grow},)))
    assert last(attempt, "declined")["message"] == "policy"
    assert 0 < _size(attempt / "kept") <= DISK


def test_all_that_is_collected_is_no_larger_than_out_could_be(rig: Rig) -> None:
    replay = rig.run(PUBLISH_HOLES)
    assert final(replay) == "validated"
    rows = {row["name"]: row.get("refused") for row in last(replay, "collected")["checkpoints"]}
    assert rows == {
        "checkpoint-100": None,
        "checkpoint-4": None,
        "checkpoint-3": "too_large",
        "checkpoint-2": "too_large",
        "checkpoint-1": "too_large",
    }
    assert _size(replay / "checkpoints") <= DISK
