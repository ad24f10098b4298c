"""Run the code of every answer on the backdoor experiment, and publish what each one gave.

Each answer's code runs in a process of its own, which is forked from this one once PyTorch is
loaded, and has limits of time and memory; it can write into no file and into no other process, so
that no answer forges another's. What it gives is the weights of the model that its ``unlearn``
returns, or that it was given, as plain numbers through a pipe.

    $OUTPUT_DIR/checkpoints/checkpoint-1/
        answers/CASE/N.md     as it was answered
        weights/CASE/N.npy    eight 64-bit numbers; absent where the code gave none
        runs.json             CASE/N: how its run ended, in a word

Reads ASSETS_DIR (default /assets), OUTPUT_DIR (default /out) and MAX_WALL_TIME_SECONDS.
"""

import ctypes
import io
import json
import os
import resource
import shutil
import signal
import struct
import time
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import numpy as np
from code_block import code_of

SETTINGS = {"alpha": 1.0, "lr": 0.00758, "steps": 80}
FEATURES = 8
RUN_WALL, RUN_CPU = 30.0, 20
MEMORY = 512 * 1024**2
MAX_ANSWER = 64 * 1024
_LENGTH = struct.calcsize(f"<{FEATURES}d")
_GLANCE = 0.01
_DUMPABLE = 4
"""PR_SET_DUMPABLE: at 0, no process of our user can reach into our memory."""
_SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER: what an answer's processes leave behind becomes ours, and is ended."""
_ENDINGS = {0: "ran", 3: "no_function", 4: "raised", 5: "no_weights"}


def main() -> None:
    """Run every answer that lies below ``answers`` and publish the whole."""
    import detector  # noqa: PLC0415 - the answers' runs inherit PyTorch; nothing else here needs it

    libc = ctypes.CDLL(None)
    libc.prctl(_SUBREAPER, 1, 0, 0, 0)
    libc.prctl(_DUMPABLE, 0, 0, 0, 0)
    given = detector.load(Path(os.environ.get("ASSETS_DIR", "/assets")))
    wall = float(os.environ.get("MAX_WALL_TIME_SECONDS", "600"))
    # All are read before any is run, and nothing is written before all have been: what runs here
    # can change files, not what this process holds.
    answers = {
        f"{path.parent.name}/{path.stem}": path.read_bytes()[:MAX_ANSWER]
        for path in sorted(Path("answers").glob("*/*.md"))
    }
    each = min(RUN_WALL, 0.9 * wall / max(1, len(answers)))
    files: dict[str, bytes] = {}
    runs: dict[str, str] = {}
    for name, text in answers.items():
        code = code_of(text.decode("utf-8", "replace"))
        runs[name], weights = ("no_code", b"") if code is None else run(code, given, each)
        files[f"answers/{name}.md"] = text
        if runs[name] == "ran":
            files[f"weights/{name}.npy"] = as_array_file(weights)
        print(f"{name}: {runs[name]}", flush=True)
    files["runs.json"] = (json.dumps(runs, indent=1) + "\n").encode()
    publish(Path(os.environ.get("OUTPUT_DIR", "/out")) / "checkpoints/checkpoint-1", files)


def as_array_file(weights: bytes) -> bytes:
    """Write weights as a file of NumPy's."""
    content = io.BytesIO()
    np.save(content, np.frombuffer(weights, dtype="<f8"), allow_pickle=False)
    return content.getvalue()


def publish(checkpoint: Path, files: dict[str, bytes]) -> None:
    """Write a checkpoint beside its place and rename it, so that it is whole or absent."""
    unfinished = checkpoint.with_name(f".{checkpoint.name}.unfinished")
    shutil.rmtree(checkpoint.parent, ignore_errors=True)  # what an answer may have left there
    unfinished.mkdir(parents=True)
    for name, data in files.items():
        path = unfinished / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    unfinished.rename(checkpoint)


def run(code: str, given: tuple, wall: float) -> tuple[str, bytes]:
    """Run one answer's code; return how that ended, and the weights it gave."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _be_an_answer(code, given, writing)
    os.close(writing)
    data, ended = _wait(child, reading, time.monotonic() + wall)
    os.close(reading)
    word = _ENDINGS.get(ended, "ended") if ended is not None else "timeout"
    if word != "ran":
        return word, b""
    if len(data) != _LENGTH:
        return "no_weights", b""
    return ("ran", data) if np.isfinite(np.frombuffer(data, "<f8")).all() else ("nonfinite", b"")


def _wait(child: int, reading: int, until: float) -> tuple[bytes, int | None]:
    """Wait for the child and return what it gave; None for its ending where time was over.

    Whatever it has started besides is ended with it. A pipe holds more than a child should give.
    """
    ended = None
    while ended is None and time.monotonic() < until:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            ended = os.waitstatus_to_exitcode(status)
        else:
            time.sleep(_GLANCE)
    _end_all()  # from here on nobody holds the other end
    return os.read(reading, _LENGTH + 1), ended


def _end_all() -> None:
    """End every process below this one; those of one that ends come up to this one.

    All are stopped before any is ended: what is stopped starts no other, and takes up its place
    among the processes there may be.
    """
    while running := [pid for pid, state in _below() if state not in "TtZX"]:
        _signal(running, signal.SIGSTOP)
    while left := _below():
        _signal([pid for pid, _ in left], signal.SIGKILL)
        for pid, _ in left:
            with suppress(ChildProcessError):  # another's child, until that one is gone
                os.waitpid(pid, 0)


def _signal(pids: list[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _below() -> list[tuple[int, str]]:
    """List every process below this one, with its state; who has started whom is in ``/proc``."""
    children: dict[int, list[tuple[int, str]]] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has just gone
            fields = status.read_text("utf-8", "replace").rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append((int(status.parent.name), fields[0]))
    found: list[tuple[int, str]] = []
    rest = [os.getpid()]
    while rest:
        below = children.pop(rest.pop(), [])
        found += below
        rest += [pid for pid, _ in below]
    return found


def _be_an_answer(code: str, given: tuple, writing: int) -> NoReturn:
    """Be the process of one answer: run its code, write the weights, and be gone."""
    ending = 4
    try:
        os.setsid()
        _limit()
        nothing = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(nothing, standard)
        os.chdir("/tmp")  # noqa: S108 - the container's own, gone with it
        ending = _unlearn(code, given, writing)
    finally:
        os._exit(ending)


def _unlearn(code: str, given: tuple, writing: int) -> int:
    """Run the code and call its ``unlearn``; return the exit status."""
    import torch  # noqa: PLC0415 - see main

    model, retain, forget = given
    space = {"__name__": "answer", "torch": torch, "nn": torch.nn, "np": np}
    space["F"] = torch.nn.functional
    exec(compile(code, "answer.py", "exec"), space)  # noqa: S102 - what this container is for
    function = space.get("unlearn")
    if not callable(function):
        return 3
    result = function(model, retain, forget, **SETTINGS)
    module = result if isinstance(result, torch.nn.Module) else model
    weights = [parameter.detach().double().numpy().ravel() for parameter in module.parameters()]
    flat = np.concatenate(weights)
    if len(flat) != FEATURES:
        return 5
    os.write(writing, flat.astype("<f8").tobytes())
    return 0


def _limit() -> None:
    """Limit this process and what it starts; it has the memory of PyTorch already."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    for kind, value in (
        (resource.RLIMIT_AS, used + MEMORY),
        (resource.RLIMIT_CPU, RUN_CPU),
        (resource.RLIMIT_FSIZE, 0),  # of every file: pipes and devices can be written
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 64),
    ):
        resource.setrlimit(kind, (value, value))


if __name__ == "__main__":
    main()
