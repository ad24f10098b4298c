"""What docs/gpus.md and the README say of the gate is what it does."""

import re
from pathlib import Path

from orchestrator import wiring
from orchestrator.config import Settings
from orchestrator.domain.gate import WORTH_WAITING, Refusal

ROOT = Path(__file__).parents[2]


def test_every_reason_is_in_the_table_with_whether_waiting_helps() -> None:
    text = (ROOT / "docs" / "gpus.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(gpu_[a-z_]+)` \| .+ \| (waits|ends) \|$", text, re.MULTILINE))
    assert rows == {
        reason.value: "waits" if reason in WORTH_WAITING else "ends" for reason in Refusal
    }


def test_the_example_of_permitted_holders_is_one(tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```toml\n(\[gpu\]\n.+?)```", readme, re.DOTALL)
    (tmp_path / "orch.toml").write_text(example)
    settings = Settings.from_environment({"ORCH_HOME": str(tmp_path)})
    (holder,) = wiring.permitted_holders(settings)
    assert holder.memory == 100 * 1024**2
