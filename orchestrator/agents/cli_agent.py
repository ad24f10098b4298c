"""What agents that come as a program have in common: start, read along, resume.

A program that ends by itself while there is time, and without a submission, is told so in its own
session, in neutral words, a few times; one that ends because its provider failed is resumed. Both
are noted in the lifecycle. Then it is an early exit, like any other agent's.
"""

import contextlib
import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from typing_extensions import override

from orchestrator.domain.agent_package import PackageSource
from orchestrator.domain.container import ExecResult
from orchestrator.domain.model import Dialect
from orchestrator.errors import AgentUnstartedError
from orchestrator.ports import Agent, AgentSession
from orchestrator.storage.pack import Pack

NUDGES = 3
"""How often an agent that ends by itself is asked whether it means it."""
RESUMPTIONS = 20
_FIRST_PAUSE, _LONGEST_PAUSE = 5.0, 60.0
_ENDED, _CUT_OFF = 2.0, 60.0
"""For so long a program that has ended may have ended with its container. It is cut off also where
it could not be started, because the container stood still for a submission."""
_MAX_TOLD = 64 * 1024
_UNSTARTED = frozenset({126, 127})
"""How shells, loaders and the relay end a program that could not be run."""
_SHOWN = 300

_SESSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,199}")
"""What a program may call its session. Whatever runs beside it can print on its output as well."""
_WRITE = 'mkdir -p "$(dirname "$1")" && printf %s "$2" > "$1"'
_NUDGE = (
    "You have ended your turn, and nothing is submitted yet. {minutes} minutes are left. If you "
    "are done, hand in with /opt/harness/submit.sh, or say why there is nothing to hand in with "
    "/opt/harness/no_candidate.sh REASON. Otherwise go on."
)
_GO_ON = "The connection to the model was lost and is tried again. Go on with what you were doing."


class Reader(ABC):
    """Turns what a program prints, a JSON object a line, into lines of the transcript.

    ``session_id`` is the program's own name for its session, once it has said it; ``begun`` tells
    whether it has said anything, ``last`` is the last line that came.
    """

    def __init__(self, session: AgentSession) -> None:
        self.session = session
        self.session_id = ""
        self.begun = False
        self.last = ""

    def take(self, line: str) -> None:
        """Take one line; what is no JSON object stays in the raw log alone."""
        self.last = line[:_SHOWN]
        if not line.startswith("{"):
            return
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            return
        if isinstance(event, dict):
            self.begun = True
            with contextlib.suppress(RecursionError):  # it could just be read, and not be written
                self.event(event)

    @abstractmethod
    def event(self, event: Mapping[str, Any]) -> None:
        """Take one event of the program's stream; it may hold anything."""


@dataclass(frozen=True)
class CliAgent(Agent, ABC):
    """An agent whose program runs inside the container, beside a relay to its model."""

    pack: Pack

    source: ClassVar[PackageSource]
    speaks: ClassVar[Dialect]
    driver: ClassVar[str] = ""
    """A file of ours beside this one that runs in its place."""

    @property
    @override
    def name(self) -> str:
        return self.source.agent

    @property
    @override
    def digest(self) -> str:
        """Of how we start it and read it: this file, and its own. The package has its own."""
        digest = hashlib.sha256()
        own = type(self).__module__.rpartition(".")[2] + ".py"
        for name in filter(None, (Path(__file__).name, own, self.driver)):
            digest.update(Path(__file__).with_name(name).read_bytes())
        return f"sha256:{digest.hexdigest()}"

    @property
    @override
    def interactive(self) -> bool:
        return False

    @property
    @override
    def dialect(self) -> Dialect | None:
        return self.speaks

    @property
    @override
    def package(self) -> PackageSource | None:
        return self.source

    @abstractmethod
    def arguments(self, session: AgentSession, words: str, resumed: str | None) -> tuple[str, ...]:
        """Say with which arguments the program runs.

        Args:
            words: what it is told.
            resumed: its own name for the session that it goes on with ("" for the latest); None
                for a new one.
        """

    def command(self, session: AgentSession) -> tuple[str, ...]:
        """Say how the program is run, up to its arguments."""
        return session.program

    @abstractmethod
    def environment(self, session: AgentSession) -> Mapping[str, str]:
        """Name the variables it gets."""

    @abstractmethod
    def reader(self, session: AgentSession) -> Reader:
        """Make the reader of what it prints."""

    def files(self, session: AgentSession) -> Mapping[str, str]:  # noqa: ARG002 - most need none
        """Name files that it reads its settings from, by their path in the container."""
        return {}

    @override
    def run(self, session: AgentSession) -> None:
        env = self.environment(session)
        for path, text in self.files(session).items():
            session.run_program(("bash", "-c", _WRITE, "bash", path, text), {}, _unheard)
        reader = self.reader(session)
        words, resumed = session.instruction, None
        nudges = failures = 0
        while not session.stopping.is_set():
            arguments = self.arguments(session, words, resumed)
            done = session.run_program((*self.command(session), *arguments), env, reader.take)
            if session.stopping.wait(_CUT_OFF if done.exit_code is None else _ENDED):
                return  # with its container
            self._require_start(done, reader)
            resumed = reader.session_id if _SESSION.fullmatch(reader.session_id) else ""
            if session.provider_failed() and failures < RESUMPTIONS:
                pause = min(_FIRST_PAUSE * 2**failures, _LONGEST_PAUSE)
                failures += 1
                words = _GO_ON
                session.note("agent_resumed", exit_code=done.exit_code, resumption=failures)
                session.stopping.wait(pause)
            elif nudges < NUDGES:
                nudges += 1
                words = _NUDGE.format(minutes=int(session.time_left() // 60))
                session.note("agent_nudged", exit_code=done.exit_code, nudge=nudges)
            else:
                return

    def _require_start(self, done: ExecResult, reader: Reader) -> None:
        """Tell a program that this container cannot run from one that ended by itself.

        What the host itself started ended as shells and loaders end what cannot be run, and nothing
        was ever asked of the model: so there is nothing yet that a candidate could have done.

        Raises:
            AgentUnstartedError: it could not be run.
        """
        if done.exit_code not in _UNSTARTED or reader.begun or reader.session.model_asked():
            return
        said = f": {reader.last}" if reader.last else ""
        raise AgentUnstartedError(
            f"agent {self.name} cannot run in this task's image: exit {done.exit_code}{said}",
            remedy="choose another version or image; see docs/agents.md, Packages",
        )


def _unheard(_line: str) -> None:
    """Listen to nothing."""


def told(value: object) -> str:
    """Make text of what a stream holds where text is expected, bounded."""
    text = value if isinstance(value, str) else json.dumps(value)
    return text[:_MAX_TOLD]


def mapping(value: object) -> Mapping[str, Any]:
    """Read an object out of a stream; anything else is an empty one."""
    return value if isinstance(value, dict) else {}
