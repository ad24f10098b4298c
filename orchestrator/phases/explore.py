"""Explore: an agent works in an offline container against the clock, until one of six endings.

The host decides every ending by its own clock. A submission is a request: the container is frozen,
its workspace captured from outside and proven to round-trip, and only then is it accepted.
"""

import threading
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from orchestrator.domain.attempt import SubmissionOrigin, TerminationReason
from orchestrator.domain.container import ContainerSpec
from orchestrator.domain.outcome import HostFact, StopReason
from orchestrator.domain.records import AttemptPlan
from orchestrator.domain.roles import Phase
from orchestrator.errors import ContainerLostError, EngineUnavailableError, InfrastructureError
from orchestrator.evidence.apply import copy_pristine
from orchestrator.evidence.capped_log import CappedLog
from orchestrator.evidence.capture import Capture, PolicyRefused, ProofFailed
from orchestrator.evidence.context import Context, Outcome, container_name, save
from orchestrator.evidence.desk import Desk, desk_mounts, harness_of, record_size
from orchestrator.evidence.observer import Subject
from orchestrator.evidence.ownership import claim_of, devices_of, owned, require_driver
from orchestrator.evidence.requests import Action, Answer, Request, RequestBox
from orchestrator.evidence.rooms import (
    Rooms,
    control_mounts,
    harness_mounts,
    host_mounts,
    writable_mounts,
)
from orchestrator.evidence.session import ContainerSession
from orchestrator.evidence.supervise import TICK, Ending, Watch
from orchestrator.evidence.taking import (
    Taken,
    captured,
    declined,
    keep,
    left_out,
    problem_with,
    submission,
    take,
    take_at_the_end,
    violations,
)
from orchestrator.evidence.trial import Trials, environment, harness_scripts, proxy_mounts
from orchestrator.lifecycle.machine import Event
from orchestrator.ports import Agent, Container
from orchestrator.sandbox import KEEP_ALIVE, asset_mounts, container_spec
from orchestrator.storage.durable import write_file
from orchestrator.storage.journal import Journal
from orchestrator.storage.layout import AttemptFolder
from orchestrator.storage.ledger import Reservation
from orchestrator.storage.pack import Pack

_NS = 1_000_000_000
_READING_NS = 2 * _NS
_END_S = 0.5
_FREE_REFUSALS = 20
_SPACING_NS = 10 * _NS
_BY_STOP = {StopReason.DEADLINE: TerminationReason.PHASE_DEADLINE}
_ORIGIN = {
    TerminationReason.AGENT_EXPLICIT_SUBMIT: SubmissionOrigin.AGENT,
    TerminationReason.AGENT_EARLY_EXIT: SubmissionOrigin.HOST_EARLY_EXIT_CAPTURE,
    TerminationReason.PHASE_DEADLINE: SubmissionOrigin.HOST_DEADLINE_CAPTURE,
}


def run(
    ctx: Context,
    plan: AttemptPlan,
    pack: Pack,
    agent: Agent,
    folder: AttemptFolder,
    journal: Journal,
) -> Outcome:
    """Run one exploration and return how it ended.

    Raises:
        InfrastructureError: the machine would not have it, or a capture could not be proven; what
            the agent left is kept under ``kept/``.
        InterruptedByOperator: a person asked for a stop before it began.
        ContainerLeftRunning: asked twice.
    """
    need, phases = plan.resources, (Phase.EXPLORE,)
    # /workspace, /out, and what is kept of a refused one; the first two again for a test.
    disk = (3 if plan.task.edit is None else 5) * need.disk + record_size(plan)
    claim = claim_of(plan, Phase.EXPLORE, disk, folder.root)
    evidence = folder.gate if devices_of(plan, phases) else None
    checks = partial(require_driver, ctx, plan, phases)
    owning = owned(ctx, plan, phases, claim, checks, evidence)
    with owning as held, Rooms(ctx, host_folder(folder)) as rooms:
        ctx.guard(folder.root, held)
        workspace = rooms.volume(folder.workspace, need.disk, "/workspace")
        rooms.volume(folder.out, need.disk, "/out")
        box = rooms.control(folder.control)
        copy_pristine(pack.solution, workspace.path, exclude=pack.exclude, owner=ctx.users.agent)
        ctx.stop.check("the exploration began")
        text = instruction(plan, pack)
        write_file(rooms.host / "instruction.md", text.encode(), replace=True)
        deadline_ns = ctx.clock.boottime_ns() + int(plan.wall * _NS)
        desk = Desk.open(ctx, plan, agent, folder, journal, deadline_ns)
        rooms.defer(desk.close)
        exploration = _Exploration(
            ctx=ctx,
            plan=plan,
            pack=pack,
            agent=agent,
            folder=folder,
            journal=journal,
            rooms=rooms,
            held=held,
            box=box,
            desk=desk,
            container=ctx.engine.create(
                rooms.shield(
                    spec(
                        *(ctx, plan, pack, folder),
                        deadline_ns=deadline_ns,
                        held=held,
                        socket=desk.socket,
                    )
                )
            ),
            deadline_ns=deadline_ns,
            text=text,
        )
        return exploration.run()


def spec(
    ctx: Context,
    plan: AttemptPlan,
    pack: Pack,
    folder: AttemptFolder,
    *,
    deadline_ns: int,
    held: Reservation | None,
    socket: Path | None = None,
) -> ContainerSpec:
    """Describe the exploration's container; nothing is made. ``held`` is None for a look.

    ``socket`` is that of the model's gateway, which there is once it is open.
    """
    return container_spec(
        name=container_name(Phase.EXPLORE, plan.run_id),
        phase=Phase.EXPLORE,
        image=plan.image.reference,
        argv=KEEP_ALIVE,
        user=ctx.users.keeper,
        agent=ctx.users.agent,
        resources=plan.resources,
        mounts=(
            *writable_mounts(folder.workspace, folder.out),
            *asset_mounts(Phase.EXPLORE, plan.materials),
            *harness_mounts(ctx.harness, *harness_scripts(plan.task), *harness_of(plan)),
            *proxy_mounts(pack),
            *host_mounts(host_folder(folder)),
            *control_mounts(folder.control),
            *desk_mounts(plan, socket),
        ),
        env=environment(plan),
        labels=ctx.labels(plan.run_id, plan.engine, deadline_ns),
        isolation=ctx.isolation.of(plan),
        cpuset="" if held is None else held.cpuset,
        # Without a shell nothing runs here: the tests get the devices.
        gpus=() if held is None or plan.task.edit else held.gpus[: plan.resources.gpus],
    )


def host_folder(folder: AttemptFolder) -> Path:
    """Where the host's files for an exploration lie."""
    return folder.logs / "host"


def instruction(plan: AttemptPlan, pack: Pack) -> str:
    """Render the task's instruction; jinja2 is imported here because only explorations need it.

    Raises:
        TaskPackError: the template does not render.
    """
    from orchestrator.evidence.instruction import render  # noqa: PLC0415

    return render(pack, plan.task, plan.wall)


@dataclass(slots=True)
class _Exploration:
    ctx: Context
    plan: AttemptPlan
    pack: Pack
    agent: Agent
    folder: AttemptFolder
    journal: Journal
    rooms: Rooms
    held: Reservation
    box: RequestBox
    desk: Desk
    container: Container
    deadline_ns: int
    text: str
    stopping: threading.Event = field(default_factory=threading.Event)
    putting: threading.Lock = field(default_factory=threading.Lock)
    failure: BaseException | None = None
    outcome: Outcome | None = None
    refused: int = 0
    next_ns: int = 0
    untouched: frozenset[str] = frozenset()

    def run(self) -> Outcome:
        log = CappedLog(self.folder.logs)
        self.rooms.defer(log.close)
        task = self.plan.task  # one without a shell has its GPUs, and looks at them, in its tests
        watch = self.ctx.watch(
            Phase.EXPLORE,
            self.container,
            self.deadline_ns,
            log,
            outgrown=self.rooms.outgrown,
            quiet=self.agent.interactive,
            subject=Subject.of(Phase.EXPLORE, self.folder, task, None if task.edit else self.held),
        )
        self.rooms.deadline(self.deadline_ns, self.plan.wall)
        self.journal.append(
            Event.EXPLORE_STARTED,
            container=self.container.id,
            deadline_boottime_ns=str(self.deadline_ns),
            wall_s=self.plan.wall,
            size_limits=dict(self.rooms.limits),
        )
        watch.begin()
        self.container.start(log)
        self.rooms.close_views()
        if not self.plan.resources.read_only:
            self.untouched = frozenset(self.container.changes())  # mount points, made at the start
        session = self.desk.session(self.container, self.text, self.stopping, self._trials())
        worker = threading.Thread(target=self._work, args=(session,), name="agent", daemon=True)
        worker.start()
        try:
            ending = watch.run(lambda: self._tick(watch, worker))
        finally:
            self.stopping.set()
            self.desk.hang_up()
        worker.join(timeout=30)
        self._note_orphans()
        outcome = self._outcome(ending)
        return Outcome(outcome.event, {**outcome.data, **self.desk.ended()})

    def _trials(self) -> Trials | None:
        if not (self.plan.task.edit or self.plan.task.answer):
            return None
        return Trials(
            *(self.ctx, self.plan, self.pack, self.folder),
            *(self.held, self.deadline_ns, self.stopping, self.putting),
        )

    def _work(self, session: ContainerSession) -> None:
        """The agent's thread. Whatever escapes it is raised again by the phase's own thread."""
        try:
            self.agent.run(session)
        except BaseException as failure:  # noqa: BLE001 - handed over, not swallowed
            self.failure = failure

    def _note_orphans(self) -> None:
        from orchestrator.evidence.orphans import note_orphans  # noqa: PLC0415 - needed here alone

        note_orphans(self.journal, self.folder.telemetry)

    def _tick(self, watch: Watch, worker: threading.Thread) -> bool:
        """Look at requests, the agent and the clock; True once the exploration is decided."""
        request = self.box.next()
        if request is not None:
            self._handle(request, watch)
        elif self.ctx.clock.boottime_ns() >= self.deadline_ns:
            self._take_by_host(TerminationReason.PHASE_DEADLINE, watch)
        elif not worker.is_alive() and not self.ctx.stop.asked and self._still_runs():
            if self.failure is not None and not self.stopping.is_set():
                raise self.failure
            self._take_by_host(TerminationReason.AGENT_EARLY_EXIT, watch)
        elif self.desk.provider_gone() is not None:
            watch.fail(HostFact.PROVIDER_OUTAGE)
        return self.outcome is not None

    def _still_runs(self) -> bool:
        """Tell an agent's end from its container's: the engine tells of that a moment later."""
        try:
            return self.container.wait(_END_S) is None and not self.container.state().ended
        except (ContainerLostError, EngineUnavailableError):
            return False

    def _handle(self, request: Request, watch: Watch) -> None:
        if request.action is Action.NO_CANDIDATE:
            self.box.answer(Answer(id=request.id, accepted=True, message="ended, no candidate"))
            self.stopping.set()
            self.outcome = declined(TerminationReason.AGENT_EXPLICIT_NO_CANDIDATE, request.reason)
            return
        if self.refused >= _FREE_REFUSALS and self.ctx.clock.boottime_ns() < self.next_ns:
            # Each capture stops the container: an agent must not keep the host busy with them.
            message = f"submissions are judged once in {_SPACING_NS // _NS} s by now; try again"
            self.box.answer(Answer(id=request.id, accepted=False, message=message))
            return
        taken = take(self.ctx, self.plan, self.pack, self.folder, self.container, watch)
        found = taken.found
        if isinstance(found, Capture) and (request.allow_empty or not found.is_empty):
            self._accept(TerminationReason.AGENT_EXPLICIT_SUBMIT, found, taken)
            self._tell_what_stays_behind(request, found, watch)
            return
        problem = problem_with(found)
        self.journal.append(Event.SUBMIT_REFUSED, message=problem)
        self.refused += 1
        self.next_ns = self.ctx.clock.boottime_ns() + _SPACING_NS
        self.box.answer(
            Answer(
                id=request.id,
                accepted=False,
                message=problem,
                violations=violations(found),
                left_out=left_out(found),
            )
        )
        if not watch.kills.sent:
            self.container.unpause()

    def _tell_what_stays_behind(self, request: Request, found: Capture, watch: Watch) -> None:
        """Let an accepted agent read, for a moment, what of its workspace does not cross.

        The candidate is captured: what the agent does in that moment changes nothing.
        """
        listed = left_out(found)
        if not listed or watch.kills.sent:
            return
        message = f"accepted; {len(listed)} entries of the workspace do not cross"
        self.box.answer(Answer(id=request.id, accepted=True, message=message, left_out=listed))
        self.container.unpause()
        until = self.ctx.clock.boottime_ns() + _READING_NS
        while not self.box.was_read(request.id) and self.ctx.clock.boottime_ns() < until:
            if self.container.wait(TICK) is not None:
                return

    def _take_by_host(self, reason: TerminationReason, watch: Watch | None) -> None:
        """Capture what is there because the exploration is over without a submission."""
        with self.putting:
            taken = take_at_the_end(
                self.ctx, self.plan, self.pack, self.folder, self.container, watch
            )
        found = taken.found
        match found:
            case ProofFailed():
                kept = keep(self.folder, self.plan.resources.disk)
                raise InfrastructureError(
                    f"capture_failed: {found.reason}", remedy=f"the workspace is kept in {kept}"
                )
            case PolicyRefused():
                keep(self.folder, self.plan.resources.disk)
                self.outcome = declined(reason, "policy", violations(found))
            case Capture() if found.is_empty:
                self.outcome = declined(reason, "empty")
            case Capture():
                self._accept(reason, found, taken)

    def _accept(self, reason: TerminationReason, found: Capture, taken: Taken) -> None:
        """Make the submission durable; the event that counts follows at once."""
        record = submission(reason, _ORIGIN[reason], found, taken, self._outside())
        save(self.folder.submission, record, replace=True)
        self.stopping.set()
        self.ctx.say(f"captured and proven, {record.patch_size} bytes; the container is ended now")
        self.outcome = captured(record)

    def _outside(self) -> tuple[str, ...]:
        """List what the agent changed in the image's own folders: it does not cross."""
        if self.plan.resources.read_only:
            return ()
        return tuple(path for path in self.container.changes() if path not in self.untouched)

    def _outcome(self, ending: Ending) -> Outcome:
        """Add what was seen of the container's end to what was decided, or decide by it."""
        seen = ending.as_data()
        stop = ending.facts.stop_reason
        if self.outcome is None and stop is StopReason.OPERATOR:
            reason = TerminationReason.OPERATOR_INTERRUPT.value
            message = f"interrupted after {ending.facts.duration_s:.0f} s"
            return Outcome(Event.OPERATOR, {"reason": reason, "message": message, **seen})
        if self.outcome is None and ending.host_facts:
            keep(self.folder, self.plan.resources.disk)
            facts = sorted(ending.host_facts)
            reason = TerminationReason.RUNTIME_FAILURE.value
            message = f"the exploration's container ended: {', '.join(facts)}"
            said = {"reason": reason, "fact": facts[0].value, "message": message, **seen}
            return Outcome(Event.INFRASTRUCTURE, said)
        if self.outcome is None:
            # No host sign: time was over, or the agent ended it (its own memory, say).
            self._take_by_host(_BY_STOP.get(stop, TerminationReason.AGENT_EARLY_EXIT), None)
        decided = self.outcome
        assert decided is not None  # noqa: S101 - _take_by_host decides or raises
        return Outcome(decided.event, {**decided.data, **seen})
