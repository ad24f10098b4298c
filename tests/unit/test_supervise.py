"""A container under supervision, on the in-memory engine and a clock that moves when told to."""

from collections.abc import Callable
from pathlib import Path
from unittest.mock import create_autospec

import pytest

from orchestrator.adapters.fake_clock import FakeClock
from orchestrator.adapters.in_memory import InMemoryEngine, Inside, Program, run_until_killed
from orchestrator.domain.container import ContainerSpec, ContainerStatus, Limits
from orchestrator.domain.outcome import HostFact, KilledBy, Sign, StopReason, Verdict, verdict
from orchestrator.domain.roles import Phase
from orchestrator.errors import ContainerLeftRunning, EngineUnavailableError
from orchestrator.evidence.capped_log import CappedLog
from orchestrator.evidence.host_signs import host_oom_kills
from orchestrator.evidence.observer import Findings, Observer
from orchestrator.evidence.supervise import Beat, Ending, StopRequest, Watch
from orchestrator.ports import Container, MemoryUse

NAME = "orch-test"
BUDGET_NS = 10 * 10**9


class Bench:
    """One container that runs ``program``, and the watch over it."""

    def __init__(self, folder: Path, program: Program) -> None:
        self.clock = FakeClock()
        self.engine = InMemoryEngine(program, images={"image": {}}, clock=self.clock)
        self.container: Container = self.engine.create(
            ContainerSpec(
                name=NAME,
                image="image",
                argv=("true",),
                user="1:1",
                workdir="/",
                mounts=(),
                tmpfs=(),
                limits=Limits(cpus=1, memory=1 << 20, shm=0, pids=1),
                labels={},
            )
        )
        self.log = CappedLog(folder / "logs")
        self.stop = StopRequest()
        self.beats: list[Beat] = []
        self.watch = Watch(
            Phase.REPLAY,
            self.container,
            self.clock,
            BUDGET_NS,
            self.stop,
            self.log,
            self.beats.append,
        )

    def run(self, on_tick: Callable[[], bool] = lambda: False) -> Ending:
        self.watch.begin()
        self.container.start(self.log)
        try:
            return self.watch.run(on_tick)
        finally:
            self.log.close()


def test_an_exit_is_the_candidates_whatever_the_code(tmp_path: Path) -> None:
    for code in (0, 1, 75, 124, 137, 255):
        ending = Bench(tmp_path / str(code), lambda _, code=code: code).run()
        assert ending.facts.exit_code == code
        assert ending.facts.stop_reason is StopReason.EXITED
        assert ending.facts.killed_by is KilledBy.NOBODY
        assert verdict(ending.facts, ending.host_facts) is Verdict.BEHAVIOR


def test_the_deadline_kills_and_says_so(tmp_path: Path) -> None:
    def overrun(inside: Inside) -> int:
        inside.clock.advance(11)
        return inside.until_killed()

    ending = Bench(tmp_path, overrun).run()
    assert ending.facts.stop_reason is StopReason.DEADLINE
    assert ending.facts.killed_by is KilledBy.ORCHESTRATOR
    assert ending.facts.exit_code == 137
    assert ending.facts.duration_s == 11
    assert verdict(ending.facts, ending.host_facts) is Verdict.BEHAVIOR


def test_a_last_look_that_takes_long_takes_none_of_the_runs_time(tmp_path: Path) -> None:
    bench = Bench(tmp_path, lambda _: 0)

    def hang() -> Findings:
        bench.clock.advance(15)
        return Findings(signs=frozenset({Sign.OBSERVATION_GAP}))

    observer = create_autospec(Observer, instance=True, host_facts=frozenset())
    observer.spoiled.return_value = False
    observer.finish.side_effect = hang
    bench.watch.observer = observer
    ending = bench.run()
    assert ending.facts.duration_s == 0
    assert ending.started == ending.ended
    assert ending.contested == {Sign.OBSERVATION_GAP}


def test_a_phase_that_has_seen_enough_ends_it(tmp_path: Path) -> None:
    ending = Bench(tmp_path, run_until_killed).run(lambda: True)
    assert ending.facts.stop_reason is StopReason.SUBMITTED
    assert ending.facts.killed_by is KilledBy.ORCHESTRATOR


@pytest.mark.parametrize("signal", ["KILL", "TERM"])
def test_somebody_elses_kill_is_the_machines(tmp_path: Path, signal: str) -> None:
    bench = Bench(tmp_path, run_until_killed)
    ending = bench.run(lambda: bench.engine.kill_by_third_party(NAME, signal) is not None)
    assert ending.facts.killed_by is KilledBy.THIRD_PARTY
    assert HostFact.KILLED_BY_THIRD_PARTY in ending.host_facts
    assert verdict(ending.facts, ending.host_facts) is Verdict.INFRASTRUCTURE


def test_a_signal_of_somebody_else_that_did_nothing_is_not_who_killed_it(tmp_path: Path) -> None:
    def deaf(inside: Inside) -> int:
        inside.trapped.add("TERM")
        return inside.until_killed()

    bench = Bench(tmp_path, deaf)

    def nudge() -> bool:
        bench.engine.kill_by_third_party(NAME, "TERM")
        bench.clock.advance(20)
        return False

    ending = bench.run(nudge)
    assert ending.facts.killed_by is KilledBy.ORCHESTRATOR
    assert ending.host_facts == frozenset()


def test_a_container_that_vanished_is_lost(tmp_path: Path) -> None:
    bench = Bench(tmp_path, run_until_killed)
    ending = bench.run(lambda: bench.engine.lose(NAME) is not None)
    assert ending.facts.exit_code is None
    assert ending.host_facts == {HostFact.CONTAINER_LOST}


def test_an_end_after_a_restart_of_the_engine_proves_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path, run_until_killed)

    def restart() -> bool:
        bench.engine.go_down()
        bench.engine.come_back()
        return False

    ending = bench.run(restart)
    assert ending.facts.exit_code == 0
    assert ending.host_facts == {HostFact.ENGINE_RESTARTED}


def test_an_engine_that_is_away_at_the_deadline_is_asked_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path, run_until_killed)
    refused: list[str] = []
    kill = bench.container.kill

    def away_at_first(signal: str = "KILL") -> None:
        if not refused:
            refused.append(signal)
            raise EngineUnavailableError("away")
        kill(signal)

    bench.container.kill = away_at_first  # type: ignore[method-assign]
    bench.clock.advance(20)
    ending = bench.run()
    assert refused == ["KILL"]
    assert ending.facts.stop_reason is StopReason.DEADLINE
    assert ending.facts.exit_code == 137


def test_its_own_memory_limit_is_behaviour(tmp_path: Path) -> None:
    def eat(inside: Inside) -> int:
        inside.exhaust_memory()
        return 137

    ending = Bench(tmp_path, eat).run()
    assert ending.facts.oom_killed
    assert ending.facts.memory_limit_reached is True
    assert ending.host_facts == frozenset()


def test_an_oom_kill_below_its_own_limit_is_the_machines(tmp_path: Path) -> None:
    def victim(inside: Inside) -> int:
        inside.oom_killed = True
        inside.memory = MemoryUse(peak=1000, limit_reached=0)
        return 137

    ending = Bench(tmp_path, victim).run()
    assert ending.facts.memory_limit_reached is False
    assert ending.host_facts == {HostFact.HOST_OUT_OF_MEMORY}


def test_counters_that_cannot_be_read_prove_nothing(tmp_path: Path) -> None:
    def victim(inside: Inside) -> int:
        inside.oom_killed = True
        inside.memory = MemoryUse(peak=None, limit_reached=None)
        return 137

    ending = Bench(tmp_path, victim).run()
    assert ending.facts.memory_limit_reached is None
    assert ending.host_facts == frozenset()


def test_a_log_that_cannot_be_written_is_a_full_disk(tmp_path: Path) -> None:
    bench = Bench(tmp_path, run_until_killed)

    def fill() -> bool:
        bench.log.error = OSError(28, "No space left on device")
        return False

    ending = bench.run(fill)
    assert ending.facts.stop_reason is StopReason.HOST_FACT
    assert HostFact.HOST_DISK_FULL in ending.host_facts
    assert bench.container.state().status is ContainerStatus.EXITED


def test_an_interrupt_counts_once_there_was_time_for_a_second(tmp_path: Path) -> None:
    bench = Bench(tmp_path, run_until_killed)
    ticks: list[StopReason] = []

    def ask_once() -> bool:
        if not ticks:
            bench.stop.ask()
        ticks.append(StopReason.OPERATOR)
        bench.clock.advance(1)
        return False

    ending = bench.run(ask_once)
    assert ending.facts.stop_reason is StopReason.OPERATOR
    assert ending.facts.duration_s >= bench.watch.interrupt_grace
    assert verdict(ending.facts, ending.host_facts) is Verdict.OPERATOR


def test_a_supervisor_that_did_not_look_says_so(tmp_path: Path) -> None:
    def stopped_for(seconds: float) -> Ending:
        bench = Bench(tmp_path / str(seconds), run_until_killed)
        turns: list[float] = []

        def tick() -> bool:
            bench.clock.advance(seconds if turns else 0.3)
            turns.append(seconds)
            return len(turns) > 2

        return bench.run(tick)

    assert stopped_for(2).contested == frozenset()
    assert stopped_for(90).contested == {Sign.OBSERVATION_GAP}


def test_two_interrupts_leave_it_running(tmp_path: Path) -> None:
    bench = Bench(tmp_path, run_until_killed)
    with pytest.raises(ContainerLeftRunning):
        bench.run(lambda: bench.stop.ask() == 0)
    assert bench.container.state().status is ContainerStatus.RUNNING
    bench.container.kill()


def test_an_error_of_ours_kills_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path, run_until_killed)

    def bug() -> bool:
        raise ValueError

    with pytest.raises(ValueError):
        bench.run(bug)
    assert bench.container.state().ended


def test_beats_tell_time_and_memory(tmp_path: Path) -> None:
    bench = Bench(tmp_path, run_until_killed)

    def pass_time() -> bool:
        bench.clock.advance(2)
        return False

    bench.run(pass_time)
    assert [beat.spent + beat.left for beat in bench.beats] == [10.0] * len(bench.beats)
    assert bench.beats[-1].memory == 0


def test_an_ending_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    bench = Bench(tmp_path, run_until_killed)
    bench.watch.note(Sign.OBSERVATION_GAP)
    ending = bench.run(lambda: bench.engine.lose(NAME) is not None)
    assert ending.contested == {Sign.OBSERVATION_GAP}
    assert Ending.from_data(ending.as_data()) == ending


def test_the_kernels_count_of_oom_kills(tmp_path: Path) -> None:
    table = tmp_path / "vmstat"
    table.write_text("pgfault 12\noom_kill 3\n")
    assert host_oom_kills(table) == 3
    table.write_text("pgfault 12\n")
    assert host_oom_kills(table) is None
    assert host_oom_kills(tmp_path / "none") is None


def test_a_stop_is_refused_what_comes_next() -> None:
    stop = StopRequest()
    stop.check("anything")
    stop.ask()
    with pytest.raises(Exception, match="stopped before the run began"):
        stop.check("the run began")
