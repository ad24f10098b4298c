"""The gate: what it checks, what it keeps as evidence, and that it lets go of what it held."""

from pathlib import Path
from typing import Any

import pytest

from orchestrator.domain.records import GpuPlan
from orchestrator.domain.roles import Phase
from orchestrator.domain.task import GateSpec, GpuSpec
from orchestrator.errors import (
    AssetMismatchError,
    GateRefusedError,
    InterruptedByOperator,
    StorageFullError,
)
from orchestrator.evidence import ownership
from tests.unit.gate_help import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_an_open_gate_holds_a_reservation_and_lets_it_go(bench: Bench) -> None:
    with bench.open(bench.plan()) as held:
        assert [holder.run_id for holder in bench.ledger.held()] == ["r1"]
        assert held.cpuset
    assert bench.ledger.held() == ()
    record = bench.record()
    assert record["passed"] is True
    assert [check["name"] for check in record["checks"]] == [
        "engine",
        "image image",
        "asset data/train",
        "reservation",
    ]


def test_what_is_raised_inside_gives_the_reservation_back(bench: Bench) -> None:
    with pytest.raises(ZeroDivisionError), bench.open(bench.plan()):
        raise ZeroDivisionError
    assert bench.ledger.held() == ()
    assert bench.record()["passed"] is True


def test_evidence_that_cannot_be_kept_gives_the_reservation_back(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise StorageFullError("full")

    monkeypatch.setattr(ownership, "save", full)
    with pytest.raises(StorageFullError), bench.open(bench.plan()):
        pytest.fail("the gate is open")
    assert bench.ledger.held() == ()


def test_an_engine_that_is_down_or_another_is_refused(bench: Bench) -> None:
    plan = bench.plan()
    bench.engine.go_down()
    assert bench.refused(plan, GateRefusedError)["checks"][-1]["name"] == "engine"
    bench.engine.come_back()
    other = plan.engine.model_copy(update={"engine_id": "another"})
    assert "another" in bench.refused(bench.plan(engine=other), GateRefusedError)["reason"]


def test_another_image_under_the_same_name_is_refused(bench: Bench) -> None:
    image = bench.plan().image.model_copy(update={"digest": "image:v1:sha256:" + "1" * 64})
    assert (
        bench.refused(bench.plan(image=image), GateRefusedError)["checks"][-1]["name"]
        == "image image"
    )


def test_a_device_that_nobody_can_prove_is_refused(bench: Bench) -> None:
    gpu = GpuPlan(counts={Phase.REPLAY: 1}, qualify=GpuSpec(), gate=GateSpec())
    record = bench.refused(bench.plan(gpu=gpu), GateRefusedError)
    assert record["checks"][-1]["name"] == "GPU driver"
    assert record["reason"].startswith("gpu_absent: the task asks for 1 GPU(s)")


def test_a_missing_or_changed_asset_is_refused_before_anything_is_held(bench: Bench) -> None:
    rows = Path(bench.assets["data/train"].source) / "rows"
    rows.write_text("changed")
    assert "data/train" in bench.refused(bench.plan(), AssetMismatchError)["reason"]
    rows.unlink()
    rows.parent.rmdir()
    assert "missing" in bench.refused(bench.plan(), AssetMismatchError)["reason"]


def test_only_what_the_phase_sees_is_checked(bench: Bench) -> None:
    (Path(bench.assets["data/final"].source) / "rows").write_text("changed")
    with bench.open(bench.plan(), Phase.REPLAY, Phase.VALIDATE):
        pass
    assert "data/final" in bench.refused(bench.plan(), AssetMismatchError, Phase.SCORE)["reason"]


def test_more_than_the_host_has_is_refused(bench: Bench) -> None:
    need = bench.plan().resources.model_copy(update={"memory": 1 << 40})
    record = bench.refused(bench.plan(resources=need), GateRefusedError)
    assert record["checks"][-1]["name"] == "reservation"


def test_a_stop_ends_the_checks(bench: Bench) -> None:
    bench.stop.ask()
    bench.refused(bench.plan(), InterruptedByOperator)
