"""Options that mean the same in every command that has them."""

from typing import Annotated

import typer

Agent = Annotated[str, typer.Option(help="Who explores; orch agents lists them.")]
Gpu = Annotated[
    str,
    typer.Option(
        metavar="auto|UUID|N",
        envvar="ORCH_GPU",
        help="Which GPU, where the task asks for one; orch gpus lists them.",
    ),
]
Official = Annotated[
    bool, typer.Option("--official", help="Refuse whatever would make the result local.")
]
Wait = Annotated[
    str, typer.Option(metavar="DURATION", help="Wait so long for GPUs, CPUs and memory in use.")
]
