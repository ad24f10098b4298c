from orchestrator.domain.process import ProcessFacts
from orchestrator.evidence.process_watch import AT_MOST, AT_SIGHT, ProcessWatch


def process(pid: int, ppid: int = 1, started: int = 5, **more: object) -> ProcessFacts:
    return ProcessFacts(pid, ppid, started * 10**9, **{"command": f"p{pid}", **more})  # type: ignore[arg-type]


def test_a_look_tells_what_began_changed_and_ended() -> None:
    watch = ProcessWatch(0, commands=True)
    first = watch.look([process(10, 5), process(11, 10)], 20.0)
    assert [(it.pid, it.ppid, it.root) for it in first.started] == [(10, 5, True), (11, 10, False)]
    assert not watch.look([process(10, 5), process(11, 10)], 21.0)
    second = watch.look([process(11, 1, cpu_s=1.5)], 22.0)
    assert [(it.pid, it.last) for it in second.ended] == [(10, 21.0)]
    assert [(it.pid, it.ppid) for it in second.changed] == [(11, 1)]
    third = watch.look([], 23.0)
    assert [(it.pid, it.cpu_s) for it in third.ended] == [(11, 1.5)]


def test_a_pid_that_is_used_again_is_another_process() -> None:
    watch = ProcessWatch(0, commands=True)
    watch.look([process(10, started=5)], 6.0)
    found = watch.look([process(10, started=7)], 8.0)
    assert [it.started for it in found.started] == [7.0]
    assert [it.started for it in found.ended] == [5.0]


def test_one_that_has_ended_or_is_gone_is_not_there() -> None:
    watch = ProcessWatch(0, commands=True)
    assert not watch.look([ProcessFacts(10), process(11, ended=True)], 6.0)


def test_what_a_process_says_of_itself_may_be_left_out() -> None:
    watch = ProcessWatch(0, commands=False)
    (started,) = watch.look([process(10)], 6.0).started
    assert started.command is None
    assert not watch.look([process(10, command="secret rows")], 7.0)
    (changed,) = watch.look([process(10, 7, command="secret rows")], 8.0).changed
    assert changed.command is None


def test_floods_are_counted_and_what_stays_is_listed_all_the_same() -> None:
    watch = ProcessWatch(0, commands=True)
    flood = [process(number, started=1) for number in range(1, AT_SIGHT + 101)]
    first = watch.look(flood, 2.0)
    assert len(first.started) == AT_SIGHT
    assert first.more == 100
    watch.look([], 3.0)
    assert watch.more == 100
    lasting = process(7, started=4)
    assert watch.look([lasting], 5.0).more == 1
    assert [it.pid for it in watch.look([lasting], 6.0).started] == [7]


def test_no_more_than_so_many_are_listed_in_all() -> None:
    watch = ProcessWatch(0, commands=True)
    listed = 0
    for look in range(100):
        there = [process(number, look, started=1) for number in range(1, AT_SIGHT + 1)]
        found = watch.look(there, float(look))
        listed += len(found.started) + len(found.changed)
    assert listed == AT_MOST
    again = ProcessWatch(listed, commands=True)  # of another supervisor, or container
    assert not again.look([process(1)], 1.0)


def test_processes_that_are_known_to_be_still_there_were_seen() -> None:
    watch = ProcessWatch(0, commands=True)
    watch.look([process(10)], 6.0)
    watch.still(9.0)
    assert [it.last for it in watch.look([], 10.0).ended] == [9.0]
