"""The ``orch`` command: a table of commands, and the one place where errors become exit codes.

``orch --help`` imports no command. A row of ``COMMANDS`` names the module that holds the command,
and the module is imported when the command is called. There it must be one of

* a function with the command's name (``submit-patch`` is ``submit_patch``), its parameters
  annotated as typer reads them, its docstring the help text; or
* for a command with subcommands, ``app: typer.Typer``.

A command takes ``context: typer.Context`` first and its options after ``*``, and asks
``cli.context.invocation(context)`` for the settings; one that does more than read passes what it
gets to ``cli.logging.configure`` first. It prints through ``cli.render`` alone and raises
``OrchError``. To end with a code that is no error (``orch verify`` and its findings) it returns an
``Exit`` or raises ``typer.Exit``. Every option gets its variable from its name:
``--json`` of ``status`` is ``ORCH_STATUS_JSON``.
"""

import gc
import importlib
import os
import sys
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup
from typing_extensions import override

from orchestrator import __version__
from orchestrator.cli.context import Invocation
from orchestrator.cli.render import Stream, emit, forgiving, write
from orchestrator.config import Settings
from orchestrator.errors import Exit, OrchError
from orchestrator.report.text import one_line

COMMANDS: tuple[tuple[str, str, str], ...] = (
    ("explore", "orchestrator.cli.run", "Let an agent work on a task until it submits."),
    ("replay", "orchestrator.cli.run", "Run an attempt's candidate formally, then score it."),
    ("submit-patch", "orchestrator.cli.run", "Enter a patch without an exploration."),
    ("score", "orchestrator.cli.run", "Score a replay, or checkpoints that exist already."),
    ("queue", "orchestrator.cli.queue", "List, add and run jobs that wait for a worker."),
    ("status", "orchestrator.cli.read", "List attempts with their state and best score."),
    ("show", "orchestrator.cli.read", "Show everything known of one run."),
    ("lifecycle", "orchestrator.cli.read", "Tell the story of one run with its times."),
    ("logs", "orchestrator.cli.read", "Print what a run's container wrote."),
    ("report", "orchestrator.cli.read", "Write an attempt's report as one HTML file."),
    ("review", "orchestrator.cli.review", "Label a model's answers by hand, check by check."),
    ("correct", "orchestrator.cli.review", "Correct one label of one answer."),
    ("compare", "orchestrator.cli.compare", "List a task's finished runs with what they measured."),
    ("verify", "orchestrator.cli.verify", "Check receipts offline, step by step."),
    ("campaign", "orchestrator.cli.campaign", "List what was registered; print its head; end it."),
    ("task", "orchestrator.cli.task", "Start, check, prepare and measure task packs."),
    ("agents", "orchestrator.cli.agents", "List agents, and fetch those of a registry."),
    ("models", "orchestrator.cli.models", "List local models, and fetch one."),
    ("images", "orchestrator.cli.images", "List and build the images that phases run in."),
    ("gc", "orchestrator.cli.gc", "Remove what ended runs left behind."),
    ("gpus", "orchestrator.cli.gpus", "Show the GPUs, who uses them, and whether they are idle."),
    ("doctor", "orchestrator.cli.doctor", "Say what this host can and cannot do."),
)
"""Name, module and help line of every command, in the order ``--help`` lists them."""

_GARBAGE = 100_000
HIDDEN: tuple[tuple[str, str, str], ...] = (
    ("adopt", "orchestrator.cli.adopt", "Take over a run whose supervisor is gone."),
)
"""Commands that we start ourselves and ``--help`` does not list; as ``COMMANDS``."""

_BUG_NOTE = "this is a bug of orch; please report it with the lines above"


def load(name: str, module: str) -> Any:
    """Import a command and return it as typer's own command object."""
    home = importlib.import_module(module)
    function = getattr(home, name.replace("-", "_"), None)
    if function is None:
        return typer.main.get_command(home.app)
    single = typer.Typer(add_completion=False, rich_markup_mode=None)
    single.command(name=name)(function)
    return typer.main.get_command(single)


class LazyGroup(TyperGroup):
    """A group whose commands are names and help lines until one is called."""

    def __init__(self, **settings: Any) -> None:
        placeholders = {name: TyperCommand(name, help=line) for name, _, line in COMMANDS}
        placeholders |= {name: TyperCommand(name, hidden=True) for name, _, _ in HIDDEN}
        super().__init__(**{**settings, "commands": placeholders})

    @override
    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command by name, with typer's near-miss suggestions, and import it."""
        name, _placeholder, rest = super().resolve_command(ctx, args)
        module = next(module for known, module, _ in (*COMMANDS, *HIDDEN) if known == name)
        return name, load(str(name), module), rest


app = typer.Typer(
    cls=LazyGroup,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"auto_envvar_prefix": "ORCH", "help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:  # noqa: FBT001 - typer calls it with the flag
    if wanted:
        emit(f"orch {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    *,
    runs: Annotated[
        Path | None,
        typer.Option(help="The runs folder.  [default: ./runs]", show_envvar=True),
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show the log on the terminal too.")
    ] = False,
    version: Annotated[  # noqa: ARG001 - its callback has acted
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            allow_from_autoenv=False,
            help="Print the version and exit.",
        ),
    ] = False,
) -> None:
    """Run AI agents on research tasks, replay what they submit, and score it."""
    settings = Settings.from_environment()
    if runs is not None:
        settings = replace(settings, runs=runs.absolute())
    context.obj = Invocation(settings=settings, verbose=verbose)
    if context.invoked_subcommand is None:
        emit(context.get_help())


def run(arguments: list[str] | None = None) -> Exit | int:
    """Run one command line and return its exit code; the only catcher of errors.

    Args:
        arguments: without the program's name; None means the process's own.
    """
    try:
        code = typer.main.get_command(app).main(arguments, prog_name="orch", standalone_mode=False)
    except OrchError as error:
        _complain(str(error), error.remedy)
        return error.exit_code
    except typer.TyperException as error:
        _complain(error.format_message(), _usage_hint(error))
        return Exit.USAGE
    except (KeyboardInterrupt, typer.Abort):
        return Exit.INTERRUPTED
    except Exception:  # noqa: BLE001 - the last line of defence: a bug of ours
        emit(traceback.format_exc().rstrip(), to=Stream.ERR)
        _complain(_BUG_NOTE)
        return Exit.BUG
    return code if isinstance(code, int) else Exit.OK


def main() -> NoReturn:
    """Be the ``orch`` program."""
    # One start of ours makes more objects that stay than garbage: the collector would look at all
    # of them, and find next to nothing.
    gc.set_threshold(_GARBAGE)
    for stream in (sys.stdout, sys.stderr):
        forgiving(stream)
    code = run()
    try:
        for stream in (sys.stdout, sys.stderr):
            write(stream, "")
    except OSError:  # what was printed is not all there, and the ending must not say that it is
        code = code or Exit.BUG
    # All is closed and durable by now. Taking every module apart, only to give back memory that the
    # system takes anyway, would be a good part of a short command's time.
    os._exit(code)


def _complain(*messages: str) -> None:
    """Say what went wrong on stderr, each line under our name."""
    for message in messages:
        for line in message.splitlines():
            if said := one_line(line):
                emit(f"orch: {said}", to=Stream.ERR)


def _usage_hint(error: typer.TyperException) -> str:
    context = getattr(error, "ctx", None)
    return f"see '{context.command_path if context else 'orch'} --help'"
