"""The scripts that an exploration finds in /opt/harness, run on the host."""

import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from orchestrator.config import bundled
from orchestrator.evidence.requests import Action, Answer, Request, RequestBox

HARNESS = bundled("harness")
NS = 1_000_000_000


def _run(script: str, *args: str, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [HARNESS / script, *args],
        env={"PATH": os.environ["PATH"], **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def _deadline(folder: Path, seconds_from_now: float) -> dict[str, str]:
    at = time.clock_gettime_ns(time.CLOCK_BOOTTIME) + int(seconds_from_now * NS)
    record = {"deadline_boottime_ns": str(at), "wall_s": seconds_from_now}
    (folder / "deadline.json").write_text(json.dumps(record, indent=2))
    return {"ORCH_LOGS_DIR": str(folder)}


@pytest.mark.parametrize("budget", [5, 59, 120])
def test_TM_04_one_second_in_the_timer_shows_nearly_the_whole_budget(
    tmp_path: Path, budget: int
) -> None:
    began = time.monotonic()
    shown = _run("timer.sh", env=_deadline(tmp_path, budget - 1))
    assert shown.returncode == 0
    late = int(time.monotonic() - began)
    assert max(0, budget - 3 - late) <= int(shown.stdout) <= budget


def test_the_timer_never_goes_below_zero_and_speaks_to_people(tmp_path: Path) -> None:
    env = _deadline(tmp_path, -90)
    assert _run("timer.sh", env=env).stdout == "0\n"
    assert _run("timer.sh", "--human", env=env).stdout == "0 h 00 min 00 s left\n"
    said = _run("timer.sh", "--human", env=_deadline(tmp_path, 3 * 3600 + 30)).stdout
    assert said.startswith(("3 h 00 min 2", "3 h 00 min 30"))


def test_the_timer_says_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "deadline.json").write_text("{}")
    broken = _run("timer.sh", env={"ORCH_LOGS_DIR": str(tmp_path)})
    assert (broken.returncode, broken.stdout) == (1, "")
    assert "no deadline" in broken.stderr
    assert _run("timer.sh", "--x", env={}).returncode == 64


Host = Callable[[bool], list[Request]]


@pytest.fixture
def box(tmp_path: Path) -> RequestBox:
    for name in ("run", "answers"):
        (tmp_path / name).mkdir()
    return RequestBox(tmp_path / "run", tmp_path / "answers")


def _ask(box: RequestBox, script: str, *args: str, accepted: bool) -> tuple[int, str, Request]:
    """Run a script with a host that answers its request."""
    seen: list[Request] = []
    gone = threading.Event()

    def host() -> None:
        while not gone.wait(0.01):
            if (request := box.next()) is not None:
                seen.append(request)
                box.answer(Answer(id=request.id, accepted=accepted, message="the host's words"))

    thread = threading.Thread(target=host)
    thread.start()
    env = {"ORCH_REQUESTS_DIR": str(box.requests), "ORCH_LOGS_DIR": str(box.answers.parent)}
    try:
        ended = _run(script, *args, env=env)
    finally:
        gone.set()
        thread.join()
    return ended.returncode, ended.stdout, seen[0]


@pytest.mark.parametrize(("accepted", "code"), [(True, 0), (False, 1)])
def test_a_submission_is_asked_for_and_the_answer_shown(
    box: RequestBox, accepted: bool, code: int
) -> None:
    returned, said, request = _ask(box, "submit.sh", accepted=accepted)
    assert (returned, said.splitlines()[-1]) == (code, "the host's words")
    assert (request.action, request.allow_empty) == (Action.SUBMIT, False)


def test_allow_empty_and_a_reason_reach_the_host(box: RequestBox) -> None:
    assert _ask(box, "submit.sh", "--allow-empty", accepted=True)[2].allow_empty
    reason = 'nothing "worked"; $(touch x) 💡'
    request = _ask(box, "no_candidate.sh", reason, accepted=True)[2]
    assert (request.action, request.reason) == (Action.NO_CANDIDATE, reason)
    assert _ask(box, "no_candidate.sh", "no", "quotes", accepted=True)[2].reason == "no quotes"


@pytest.mark.parametrize(
    ("reason", "taken"),
    [("x" * 8193, "x" * 8192), ("💡" * 9000, "💡" * 8192), ("no \udcff text", "no ? text")],
)
def test_a_reason_that_is_long_or_no_text_waits_for_no_answer_that_never_comes(
    box: RequestBox, reason: str, taken: str
) -> None:
    assert _ask(box, "no_candidate.sh", reason, accepted=True)[2].reason == taken


@pytest.mark.parametrize(("script", "args"), [("submit.sh", ["--x"]), ("no_candidate.sh", [])])
def test_a_wrong_call_asks_for_nothing(box: RequestBox, script: str, args: list[str]) -> None:
    ended = _run(script, *args, env={"ORCH_REQUESTS_DIR": str(box.requests)})
    assert ended.returncode == 2
    assert script in ended.stderr
    assert not list(box.requests.iterdir())


def test_fast_eval_runs_the_tasks_proxy_with_its_arguments(tmp_path: Path) -> None:
    proxy = tmp_path / "a proxy.py"
    proxy.write_text("import sys; print(sys.argv[1:])\n")
    shown = _run("fast_eval.sh", "a b", "c", env={"ORCH_PROXY_COMMAND": str(proxy)})
    assert shown.stdout == "['a b', 'c']\n"
    assert _run("fast_eval.sh", env={}).returncode == 64


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_the_scripts_pass_shellcheck() -> None:
    scripts = sorted(HARNESS.glob("*.sh"))
    assert len(scripts) == 5
    subprocess.run(["shellcheck", *scripts], check=True)


def test_the_gpus_are_named_by_what_the_engines_toolkit_brings(tmp_path: Path) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(
        "#!/bin/sh\n"
        "echo 'GPU 0: NVIDIA A100 (80GB) (UUID: GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f)'\n"
        "echo '  MIG 1g.5gb     Device  0: (UUID: MIG-a5d2a3f1-0000-5555-8888-c0ffee000000)'\n"
        "echo 'No devices were found'\n"
    )
    tool.chmod(0o755)
    seen = _run("gpus.sh", env={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert seen.returncode == 0
    assert seen.stdout.splitlines() == [
        "GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f",
        "MIG-a5d2a3f1-0000-5555-8888-c0ffee000000",
    ]
    assert _run("gpus.sh", env={"PATH": "/nowhere:/bin:/usr/bin"}).stdout == ""
