"""What an experiment left running, found in rows as a watch over a container writes them."""

from orchestrator.domain.process import ProcessFacts
from orchestrator.domain.roles import Phase
from orchestrator.domain.telemetry import AnyRow, Begin, Processes
from orchestrator.evidence.orphans import MOST, orphans
from orchestrator.evidence.process_watch import ProcessWatch

OF = "0123456789ab"
INIT, KEEPER = 100, 101
SHIM = 50


class Exploration:
    """A container's processes over time; ``at`` looks at them."""

    def __init__(self) -> None:
        self.watch = ProcessWatch(0, commands=True)
        self.rows: list[AnyRow] = [
            Begin(utc="", at=0.0, of=OF, phase=Phase.EXPLORE, container=OF, boot_id="", every=10.0)
        ]
        self.alive: dict[int, ProcessFacts] = {}
        self.start(INIT, SHIM, 0.0, "docker-init -- sleep infinity", user="keeper", inner=1)
        self.start(KEEPER, INIT, 0.0, "sleep infinity", user="keeper")

    def start(
        self,
        pid: int,
        ppid: int,
        at: float,
        command: str,
        *,
        user: str = "agent",
        inner: int | None = None,
        cpu_s: float = 0.0,
    ) -> None:
        self.alive[pid] = ProcessFacts(
            pid=pid,
            ppid=ppid,
            started_ns=int(at * 1e9),
            command=command,
            user=user,
            inner_pid=inner or pid - 90,
            cpu_s=cpu_s,
        )

    def end(self, *pids: int, adopted_by: int = INIT) -> None:
        for pid in pids:
            del self.alive[pid]
        for pid, facts in self.alive.items():
            if facts.ppid in pids:
                known = {name: getattr(facts, name) for name in facts.__dataclass_fields__}
                self.alive[pid] = ProcessFacts(**{**known, "ppid": adopted_by})

    def at(self, at: float) -> None:
        found = self.watch.look(self.alive.values(), at)
        if found:
            self.rows.append(
                Processes(
                    utc="",
                    at=at,
                    of=OF,
                    started=found.started,
                    changed=found.changed,
                    ended=found.ended,
                    more=found.more,
                )
            )


def test_a_process_left_behind_beside_a_later_command_is_named() -> None:
    run = Exploration()
    run.start(200, SHIM, 1.0, "bash -c ./first.sh")
    run.start(201, 200, 1.1, "python train.py --wide", cpu_s=7.5)
    run.at(2.0)
    run.end(200)
    run.at(10.0)
    run.start(300, SHIM, 12.0, "bash -c ./second.sh")
    run.start(301, 300, 12.1, "python train.py --deep")
    run.at(13.0)
    run.at(20.0)
    run.end(201)
    run.at(25.0)
    run.end(300, 301)
    run.at(30.0)
    (found,) = orphans(run.rows)
    assert (found.pid, found.command, found.cpu_s) == (201, "python train.py --wide", 7.5)
    assert (found.started, found.orphaned) == (1.1, 10.0)
    assert (found.beside_pid, found.beside, found.others) == (300, "bash -c ./second.sh", 0)
    assert found.overlap == 8.0  # until it was seen last


def test_one_that_had_ended_before_the_next_began_is_nothing() -> None:
    run = Exploration()
    run.start(200, SHIM, 1.0, "first")
    run.start(201, 200, 1.1, "left")
    run.at(2.0)
    run.end(200)
    run.at(10.0)
    run.end(201)
    run.at(11.0)
    run.start(300, SHIM, 12.0, "second")
    run.at(13.0)
    assert orphans(run.rows) == ()


def test_what_its_own_experiment_goes_on_with_is_no_later_one() -> None:
    run = Exploration()
    run.start(200, SHIM, 1.0, "experiment")
    run.start(201, 200, 1.1, "helper")
    run.start(202, 201, 1.2, "left")
    run.at(2.0)
    run.end(201)
    run.at(3.0)
    run.start(203, 202, 4.0, "child of what was left")
    run.at(5.0)
    assert orphans(run.rows) == ()


def test_a_daemon_whose_parent_was_never_seen_counts_once_its_command_is_over() -> None:
    run = Exploration()
    run.start(200, SHIM, 1.0, "bash -c '(setsid bench &); python train.py'")
    run.start(201, INIT, 1.1, "bench")
    run.start(202, 200, 1.2, "python train.py")
    run.at(2.0)
    run.start(203, 200, 3.0, "python eval.py")
    run.at(4.0)
    assert orphans(run.rows) == ()
    run.end(200, 202, 203)
    run.at(5.0)
    run.start(300, SHIM, 6.0, "second")
    run.at(7.0)
    (found,) = orphans(run.rows)
    assert (found.pid, found.beside, found.overlap) == (201, "second", 1.0)


def test_a_command_of_an_agent_in_the_container_is_told_from_the_agent() -> None:
    run = Exploration()
    run.start(200, SHIM, 0.5, "agent")
    run.start(210, 200, 1.0, "bash -c first")
    run.start(211, 210, 1.1, "left")
    run.at(2.0)
    run.end(210)
    run.at(3.0)
    run.start(220, 200, 4.0, "bash -c second")
    run.start(221, 220, 4.1, "python second.py")
    run.at(9.0)
    (found,) = orphans(run.rows)
    assert (found.command, found.beside, found.others) == ("left", "bash -c second", 0)


def test_a_subreaper_takes_in_orphans_too() -> None:
    run = Exploration()
    run.start(200, SHIM, 0.5, "agent that reaps")
    run.start(210, 200, 1.0, "bash -c first")
    run.start(211, 210, 1.1, "left")
    run.at(2.0)
    run.end(210, adopted_by=200)
    run.at(3.0)
    run.start(220, 200, 4.0, "bash -c second")
    run.at(9.0)
    assert [it.command for it in orphans(run.rows)] == ["left"]


def test_neither_the_keeper_nor_another_leftover_is_an_experiment() -> None:
    run = Exploration()
    run.start(200, SHIM, 1.0, "first")
    run.start(201, 200, 1.1, "left")
    run.start(202, 200, 1.1, "left too")
    run.at(2.0)
    run.end(200)
    run.at(3.0)
    run.start(203, 202, 4.0, "child of the other")
    run.at(5.0)
    assert orphans(run.rows) == ()


def test_a_command_that_becomes_another_is_named_by_what_it_became() -> None:
    run = Exploration()
    run.start(200, SHIM, 1.0, "bash")
    run.start(201, 200, 1.1, "bash")
    run.at(2.0)
    run.start(201, 200, 1.1, "python serve.py")
    run.at(3.0)
    run.end(200)
    run.at(4.0)
    run.start(300, SHIM, 5.0, "runc init")
    run.at(6.0)
    run.start(300, 60, 5.0, "python train.py")  # its parent outside is none of ours
    run.at(7.0)
    (found,) = orphans(run.rows)
    assert (found.command, found.beside) == ("python serve.py", "python train.py")


def test_rows_of_a_second_supervisor_lose_nothing() -> None:
    run = Exploration()
    run.start(200, SHIM, 1.0, "first")
    run.start(201, 200, 1.1, "left")
    run.at(2.0)
    run.end(200)
    run.at(3.0)
    run.watch = ProcessWatch(0, commands=True)
    run.at(4.0)
    run.start(300, SHIM, 5.0, "second")
    run.at(6.0)
    (found,) = orphans(run.rows)
    assert (found.command, found.orphaned, found.overlap) == ("left", 3.0, 1.0)


def test_so_many_are_named_and_no_more() -> None:
    run = Exploration()
    run.start(200, SHIM, 1.0, "first")
    for number in range(2 * MOST):
        run.start(1000 + number, 200, 2.0, f"left {number}")
    run.at(3.0)
    run.end(200)
    run.at(4.0)
    run.start(300, SHIM, 5.0, "second")
    run.at(6.0)
    found = orphans(run.rows)
    assert [it.pid for it in found] == list(range(1000, 1000 + MOST))


def test_nothing_is_found_in_nothing() -> None:
    assert orphans(()) == ()
