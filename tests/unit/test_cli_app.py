import os
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer

from orchestrator.cli import app
from orchestrator.cli.context import Invocation, invocation
from orchestrator.errors import (
    EngineUnavailableError,
    Exit,
    InfrastructureError,
    InterruptedByOperator,
    OrchError,
    TaskPackError,
    UsageError,
)

Install = Callable[[Callable[..., Any]], None]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Make a function the only command of orch, under its own name."""

    def put(function: Callable[..., Any]) -> None:
        home = types.ModuleType("tests.made_up_command")
        setattr(home, function.__name__, function)
        monkeypatch.setitem(sys.modules, home.__name__, home)
        row = (function.__name__.replace("_", "-"), home.__name__, "A command.")
        monkeypatch.setattr(app, "COMMANDS", (row,))

    return put


def _raise(error: BaseException) -> Callable[[], None]:
    def work() -> None:
        raise error

    return work


def test_help_lists_every_command_and_imports_none() -> None:
    script = (
        "import sys\n"
        "from orchestrator.cli import app\n"
        "code = app.run(['--help'])\n"
        "loaded = {module for _, module, _ in app.COMMANDS} & set(sys.modules)\n"
        "heavy = {'docker', 'pydantic', 'requests', 'jinja2'} & set(sys.modules)\n"
        "sys.exit(f'{loaded} {heavy}' if loaded or heavy else int(code))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    for name, _, line in app.COMMANDS:
        assert f"  {name} " in done.stdout
        assert line in done.stdout


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_no_arguments_print_help(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(arguments) == Exit.OK
    assert "Commands:" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["status", "show", "lifecycle", "logs", "report"])
def test_help_of_a_command_says_what_the_table_says(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = next(line for known, _, line in app.COMMANDS if known == name)
    assert app.run([name, "--help"]) == Exit.OK
    assert line in capsys.readouterr().out


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("wrong"), 64),
        (TaskPackError("wrong"), 65),
        (EngineUnavailableError("wrong"), 69),
        (OrchError("wrong"), 70),
        (InfrastructureError("wrong"), 75),
        (InterruptedByOperator("wrong"), 130),
    ],
)
def test_each_error_class_has_its_code(
    install: Install, error: OrchError, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    error.remedy = "do this"
    install(_raise(error))
    assert app.run(["work"]) == code
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "orch: wrong\norch: do this\n")


def test_error_text_is_cleaned_and_every_line_is_ours(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install(_raise(UsageError("one\x1b[31m\rtwo\nthree\u202e", remedy="")))
    app.run(["work"])
    assert capsys.readouterr().err == "orch: one[31m\norch: two\norch: three\n"


def test_a_bug_shows_its_traceback(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install(_raise(LookupError("nobody thought of \x1b[2J")))
    assert app.run(["work"]) == Exit.BUG
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert "nobody thought of [2J" in err


@pytest.mark.parametrize("error", [KeyboardInterrupt(), typer.Abort(), typer.Exit(130)])
def test_an_interrupt_ends_with_130(install: Install, error: BaseException) -> None:
    install(_raise(error))
    assert app.run(["work"]) == Exit.INTERRUPTED


@pytest.mark.parametrize(("returned", "code"), [(None, 0), (Exit.UNAUTHENTICATED, 3), ("text", 0)])
def test_a_returned_exit_is_passed_on(install: Install, returned: object, code: int) -> None:
    def work() -> object:
        return returned

    install(work)
    assert app.run(["work"]) == code


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["statsu"], "Did you mean 'status'"),
        (["--nope"], "No such option: --nope"),
        (["show"], "Missing argument 'ID'"),
        (["show", "--nope", "x"], "see 'orch show --help'"),
        (["sta\x1b[2Jtus"], "No such command"),
    ],
)
def test_wrong_usage_is_64_and_says_where_help_is(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.run(arguments) == Exit.USAGE
    err = capsys.readouterr().err
    assert said in err
    assert "\x1b" not in err
    assert all(line.startswith("orch: ") for line in err.splitlines())


def test_runs_folder_by_option_and_by_variable(
    install: Install, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[Invocation] = []

    def work(context: typer.Context) -> None:
        seen.append(invocation(context))

    install(work)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ORCH_RUNS", raising=False)
    app.run(["work"])
    monkeypatch.setenv("ORCH_RUNS", str(tmp_path / "from-variable"))
    app.run(["work"])
    monkeypatch.setenv("ORCH_VERBOSE", "1")
    app.run(["--runs", "from-option", "work"])
    assert [(call.settings.runs, call.verbose) for call in seen] == [
        (tmp_path / "runs", False),
        (tmp_path / "from-variable", False),
        (tmp_path / "from-option", True),
    ]


def test_every_option_of_a_command_has_its_variable(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def try_it(*, how_often: Annotated[int, typer.Option()] = 1) -> None:
        seen.append(how_often)

    install(try_it)
    monkeypatch.setenv("ORCH_TRY_IT_HOW_OFTEN", "7")
    assert app.run(["try-it"]) == Exit.OK
    assert seen == [7]


def test_a_module_may_hold_an_app_of_subcommands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home: Any = types.ModuleType("tests.made_up_group")
    home.app = typer.Typer(rich_markup_mode=None, add_completion=False)

    @home.app.command()
    def first() -> Exit:
        return Exit.FINDING

    @home.app.command()
    def second() -> None: ...

    monkeypatch.setitem(sys.modules, home.__name__, home)
    monkeypatch.setattr(app, "COMMANDS", (("group", home.__name__, "A group."),))
    assert app.run(["group", "first"]) == Exit.FINDING
    assert app.run(["group", "third"]) == Exit.USAGE
    assert "No such command 'third'" in capsys.readouterr().err


def test_a_reader_that_left_ends_nothing(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from orchestrator.cli.render import emit\n"
        "sys.stdin.readline()\n"
        "emit('one'), emit('two')\n"
        "print('worked on', file=sys.stderr)\n"
    )
    reader, writer = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(writer)
    os.close(reader)
    _, err = process.communicate("go\n")
    assert (process.returncode, err) == (0, "worked on\n")


def test_a_narrow_encoding_is_no_reason_to_fail() -> None:
    code = "from orchestrator.cli import app; app.__version__ = '1\\xe9'; app.main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "--version"],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (Exit.OK, b"orch 1\\xe9\n")


def test_what_could_not_be_printed_is_no_success() -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "orchestrator", "--version"],
            stdout=full,
            stderr=subprocess.DEVNULL,
            check=False,
        )
    assert done.returncode == Exit.BUG
