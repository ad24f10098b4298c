"""What the global options say, as every command receives it."""

from dataclasses import dataclass

import typer

from orchestrator.config import Settings


@dataclass(frozen=True, slots=True)
class Invocation:
    """The settings of this call, after ``--runs``, and whether ``-v`` was given."""

    settings: Settings
    verbose: bool = False


def invocation(context: typer.Context) -> Invocation:
    """Return the invocation that the root command put into ``context``.

    A command takes ``context: typer.Context`` as its first parameter to be able to ask.
    """
    found = context.obj
    if not isinstance(found, Invocation):
        raise TypeError(f"the root command left {found!r} in the context")
    return found
