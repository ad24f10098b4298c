"""An agent without a shell: a model that edits, tests and submits, as MLS-Bench has it.

For tasks with ``interface: edit-test-submit``. The conversation and the edits are kept here, on the
host; each test runs in a fresh container. What a test tested is what can be submitted.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from typing_extensions import override

from orchestrator.agents import loop
from orchestrator.agents.loop import NUDGES, next_message, shortened, told
from orchestrator.domain.interface import EditSpec, Interface
from orchestrator.domain.model import Dialect
from orchestrator.errors import TaskPackError, UsageError
from orchestrator.evidence import editing
from orchestrator.evidence.editing import MAX_FILE, Editing, Source, spans_of
from orchestrator.evidence.tree import Kind, manifest_of
from orchestrator.ports import Agent, AgentSession
from orchestrator.storage.pack import Pack

_SUBMIT = "/opt/harness/submit.sh --allow-empty"
_SYSTEM = (
    "You improve a program through the tools edit, view, test, submit and undo; there is no shell, "
    "and nobody reads your messages or answers questions. You may test {tests} times; what is "
    "tested last is submitted by itself. The files, and the lines of them that you may edit:\n"
    "{files}\nNew files may be created below: {packages}."
)
_NUDGE = (
    "You called no tool. {minutes:.0f} minutes and {left} of {tests} tests are left. "
    "Go on with edit, view, test or undo, or call submit with the number of a test."
)


def _tool(name: str, description: str, **parameters: str) -> Mapping[str, Any]:
    properties = {key: {"type": kind} for key, kind in parameters.items()}
    schema = {"type": "object", "properties": properties}
    described = {"name": name, "description": description, "parameters": schema}
    return {"type": "function", "function": described}


_TOOLS: list[Mapping[str, Any]] = [
    _tool(
        "edit",
        "Change a file. op replace puts content in place of the lines from start_line to end_line "
        "(nothing deletes them); op insert puts it after after_line; op create makes a new file.",
        op="string",
        filename="string",
        content="string",
        start_line="integer",
        end_line="integer",
        after_line="integer",
    ),
    _tool(
        "view",
        "Show a file with line numbers; a | behind the number says that the line is read-only.",
        filename="string",
        start_line="integer",
        end_line="integer",
    ),
    _tool("test", "Run the program as it is now in a fresh container and see what it prints."),
    _tool("submit", "Hand in what test n tested; this ends the task.", n="integer"),
    _tool("undo", "Take back the last n edits.", n="integer"),
]


@dataclass(frozen=True)
class EditorAgent(Agent):
    """Lets its model edit, test and submit, until it has submitted or no longer does anything."""

    pack: Pack

    def __post_init__(self) -> None:
        if self.pack.spec.edit is None:
            raise UsageError(
                f"task {self.pack.spec.name!r} is worked on in a shell, which the editor has not",
                remedy="choose another --agent",
            )
        load(self.pack, self.pack.spec.edit)

    @property
    @override
    def name(self) -> str:
        return "editor"

    @property
    @override
    def digest(self) -> str:
        parts = (Path(__file__), Path(loop.__file__), Path(editing.__file__))
        return "sha256:" + hashlib.sha256(b"".join(map(Path.read_bytes, parts))).hexdigest()

    @property
    @override
    def interactive(self) -> bool:
        return False

    @property
    @override
    def interface(self) -> Interface:
        return Interface.EDIT_TEST_SUBMIT

    @property
    @override
    def dialect(self) -> Dialect | None:
        return Dialect.CHAT

    @override
    def run(self, session: AgentSession) -> None:
        spec = self.pack.spec.edit
        assert spec is not None  # noqa: S101 - see __post_init__
        bench = _Bench(session, spec, load(self.pack, spec))
        system = _SYSTEM.format(
            tests=spec.tests,
            files=shortened(bench.editing.listing()),
            packages=", ".join(spec.packages),
        )
        messages: list[Mapping[str, Any]] = [
            {"role": "system", "content": system},
            {"role": "user", "content": session.instruction},
        ]
        nudges = 0
        while not session.stopping.is_set():
            message = next_message(session, messages, _TOOLS)
            if message is None:
                return
            messages.append(message)
            if text := message.get("content"):
                session.say(str(text))
            for call in message.get("tool_calls", ()):
                messages.append(bench.use(call))
                if session.stopping.is_set():
                    return
            if "tool_calls" not in message:
                if nudges == NUDGES:
                    return
                nudges += 1
                session.note("agent_nudged", nudge=nudges)
                messages.append({"role": "user", "content": bench.nudge()})


def load(pack: Pack, spec: EditSpec) -> Editing:
    """Read the files of the allowed packages.

    Raises:
        TaskPackError: a file that is to be edited is no text, or has not the lines.
    """
    files, taken = {}, set()
    for entry in manifest_of(pack.solution, exclude=pack.exclude).entries:
        path = entry.path.decode("utf-8", "backslashreplace")
        if path.partition("/")[0] not in spec.packages:
            continue
        text = _text(pack.solution / path) if entry.kind is Kind.FILE else None
        if text is None:
            taken.add(path)
        else:
            files[path] = Source(text, spans_of(spec.editable.get(path, ())))
    for path, ranges in spec.editable.items():
        if path not in files:
            raise TaskPackError(
                f"edit.editable: {path} is no text file of {pack.solution}",
                remedy="name files of the solution, of 256 KiB at most",
            )
        count = len(files[path].lines)
        if any(span.end > count for span in files[path].spans):
            raise TaskPackError(
                f"edit.editable: {path} has {count} lines, not {', '.join(ranges)}",
                remedy="mend the ranges in task.yaml",
            )
    return Editing(spec.packages, files, frozenset(taken))


def _text(path: Path) -> str | None:
    try:
        text = path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    return text if len(text) <= MAX_FILE else None


@dataclass(slots=True)
class _Bench:
    """What the tools do. ``tested`` holds the changed files of each test."""

    session: AgentSession
    spec: EditSpec
    editing: Editing
    tested: list[Mapping[str, str]] = field(default_factory=list)

    @property
    def left(self) -> int:
        """How many tests are left."""
        return self.spec.tests - len(self.tested)

    def nudge(self) -> str:
        minutes = self.session.time_left() / 60
        return _NUDGE.format(minutes=minutes, left=self.left, tests=self.spec.tests)

    def use(self, call: Mapping[str, Any]) -> Mapping[str, Any]:
        """Do what a call asks for, and say how it went; both go into the transcript."""
        try:
            name, written = str(call["function"]["name"]), call["function"]["arguments"]
            wanted = dict(json.loads(written)) if written else {}
            tool = _BY_NAME[name]
        except (KeyError, TypeError, ValueError, RecursionError) as fault:
            said = f"Error: the call was not understood: {fault!r}; use {', '.join(_BY_NAME)}."
        else:
            self.session.call(name, shortened(str(written)))
            said = shortened(tool(self, wanted))
            self.session.output(said)
        return {"role": "tool", "tool_call_id": str(call.get("id", "")), "content": said}

    def edit(self, wanted: Mapping[str, Any]) -> str:
        return self.editing.edit(wanted)

    def view(self, wanted: Mapping[str, Any]) -> str:
        return self.editing.view(wanted)

    def undo(self, wanted: Mapping[str, Any]) -> str:
        return self.editing.undo(wanted)

    def test(self, _wanted: Mapping[str, Any]) -> str:
        if not self.left:
            return f"Error: all {self.spec.tests} tests are used; submit one of them."
        changed = self.editing.changed()
        self.tested.append(changed)
        number = len(self.tested)
        # From now on, whatever ends the exploration, this is what the host finds.
        self.session.put(changed)
        result = self.session.test(changed)
        self.session.note(
            "edit_test",
            test=number,
            edits=self.editing.edits,
            changed=len(changed),
            exit_code=result.exit_code,
            seconds=round(result.seconds, 1),
        )
        said = f"Test {number} of {self.spec.tests}, {self.left} left:\n{told(result)}"
        if result.timed_out:
            said += "\nIts time was over."
        if self.left or self.session.stopping.is_set():
            return said
        return f"{said}\nThat was the last test; it is submitted.\n{self._hand_in(number)}"

    def submit(self, wanted: Mapping[str, Any]) -> str:
        number = wanted.get("n")
        known = range(1, len(self.tested) + 1)
        if not known:
            return "Error: nothing was tested yet; what can be submitted is what a test tested."
        if not isinstance(number, int) or isinstance(number, bool) or number not in known:
            return f"Error: n must be the number of a test, from 1 to {len(self.tested)}."
        return self._hand_in(number)

    def _hand_in(self, number: int) -> str:
        changed = self.tested[number - 1]
        self.session.note(
            "edit_submit", test=number, edits=self.editing.edits, changed=len(changed)
        )
        self.session.put(changed)
        result = self.session.execute(_SUBMIT)
        if self.session.stopping.is_set():
            return f"Test {number} is submitted."
        return f"Error: test {number} was not accepted:\n{told(result)}"


_BY_NAME: Mapping[str, Callable[[_Bench, Mapping[str, Any]], str]] = {
    "edit": _Bench.edit,
    "view": _Bench.view,
    "test": _Bench.test,
    "submit": _Bench.submit,
    "undo": _Bench.undo,
}
