r"""The TreeStore port over the git binary, used as a private object store.

Git never sees a folder that a candidate has written to: contents come through a pipe, trees live
in a repository of our own with an empty work tree. System, user and repository configuration and
attributes are neutral, the environment is built from nothing, and paths that only other systems
object to (``GIT~1``, ``a\b``) are allowed, because every name must cross.
"""

import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO, Final

from orchestrator.errors import InfrastructureError, UsageError
from orchestrator.ports import Blob, PatchRefused, StoredFile

_CONFIG = """[core]
\trepositoryformatversion = 0
\tbare = false
\tfilemode = true
\tsymlinks = true
\tautocrlf = false
\tprotectNTFS = false
\tprotectHFS = false
\tignorecase = false
\tprecomposeunicode = false
\tfsync = none
\tlooseCompression = 0
\thooksPath = /dev/null
[pack]
\tcompression = 0
\tthreads = 1
[fastimport]
\tunpackLimit = 1
[gc]
\tauto = 0
[apply]
\twhitespace = nowarn
\tignorewhitespace = no
"""
_ATTRIBUTES = "* !text !eol !ident !filter !diff !merge !whitespace !working-tree-encoding\n"
_DIFF: Final = (
    "diff-tree",
    "-r",
    "-p",
    "--binary",
    "--full-index",
    "--no-renames",
    "--no-ext-diff",
    "--no-textconv",
    "--no-color",
    "--no-indent-heuristic",
    "--diff-algorithm=myers",
    "--unified=3",
    "--inter-hunk-context=0",
    "--src-prefix=a/",
    "--dst-prefix=b/",
    "--ignore-submodules=none",
)
_IMPORT: Final = ("fast-import", "--quiet", "--done", "--date-format=raw", "--depth=0")
_BLANK_BEFORE_SLASH: Final = re.compile(rb"^diff --git a/(.* /.*) b/\1$", re.MULTILINE)
"""Names that git writes unquoted and, where no other line of a file gives them, cannot read."""
_CHUNK = 1024 * 1024
_TOLD = 2000


class GitTreeStore:
    """Opens private git repositories below ``scratch`` (the system's temporary folder if None)."""

    def __init__(self, scratch: Path | None = None) -> None:
        self._scratch = scratch

    @contextmanager
    def open(self) -> Iterator["GitTrees"]:
        """Make a repository, lend it, remove it.

        Raises:
            UsageError: there is no git on this host.
        """
        with tempfile.TemporaryDirectory(prefix="orch-trees-", dir=self._scratch) as folder:
            trees = GitTrees(_git(), Path(folder))
            try:
                yield trees
            finally:
                trees.close()


class GitTrees:
    """One private repository. Trees are named by their git ids."""

    def __init__(self, git: str, folder: Path) -> None:
        self._git = git
        self._repository = folder / "repository"
        self._work = folder / "work"
        self._count = 0
        self._reader: subprocess.Popen[bytes] | None = None
        for made in ("objects/pack", "refs/heads", "info"):
            (self._repository / made).mkdir(parents=True)
        self._work.mkdir()
        (self._repository / "HEAD").write_text("ref: refs/heads/none\n")
        (self._repository / "config").write_text(_CONFIG)
        (self._repository / "info/attributes").write_text(_ATTRIBUTES)
        self._env = _environment(self._repository, self._work)

    def add(self, blobs: Iterable[Blob]) -> str:
        """Store a tree through ``git fast-import``: one process and one pack for all of it."""
        self._count += 1
        branch = f"refs/heads/tree-{self._count}"
        with (
            tempfile.TemporaryFile() as errors,
            self._start(*_IMPORT, errors=errors) as process,
        ):
            assert process.stdin is not None  # noqa: S101 - asked for in _start
            try:
                _write_commit(process.stdin, branch, blobs)
                process.stdin.close()
            except BrokenPipeError:
                _drop(process.stdin)
            except BaseException:
                process.kill()
                _drop(process.stdin)
                raise
            if process.wait() != 0:
                errors.seek(0)
                raise _failure("fast-import", errors.read(_TOLD))
        return self._run("rev-parse", "--verify", f"{branch}^{{tree}}").decode().strip()

    def diff(self, before: str, after: str, destination: Path) -> None:
        """Write the patch with options that no configuration can bend."""
        with destination.open("wb") as output:
            self._run(*_DIFF, before, after, output=output)
        patch = destination.read_bytes()
        quoted, count = _BLANK_BEFORE_SLASH.subn(rb'diff --git "a/\1" "b/\1"', patch)
        if count:
            destination.write_bytes(quoted)

    def apply(self, base: str, patch: Path) -> str | PatchRefused:
        """Apply to an index alone: no file is written anywhere but in the store.

        A refusal is told from a failure of the store by storing something as large as the patch:
        a store that can is sound, and the patch is not.
        """
        self._run("read-tree", base)
        done = self._call("apply", "--cached", str(patch.absolute()))
        if done.returncode < 0:
            raise _failure("apply", b"ended by signal %d" % -done.returncode)
        if done.returncode > 0:
            self._run("hash-object", "-w", "--no-filters", str(patch.absolute()))
            said = done.stderr.decode(errors="replace").strip()[:_TOLD]
            return PatchRefused("; ".join(said.splitlines()))
        return self._run("write-tree").decode().strip()

    def files(self, tree: str) -> tuple[StoredFile, ...]:
        """List every blob of a tree; a submodule is listed with its own mode."""
        listing = self._run("ls-tree", "-r", "-z", "--full-tree", tree)
        files = []
        for line in listing.split(b"\0")[:-1]:
            facts, path = line.split(b"\t", 1)
            mode, _, key = facts.decode().split(" ")
            files.append(StoredFile(path, mode, key))
        return tuple(files)

    def read(self, key: str, take: Callable[[bytes], object]) -> None:
        """Read one blob through a ``cat-file`` process that stays for the next."""
        if self._reader is None:
            self._reader = self._start(
                "cat-file", "--batch", output=subprocess.PIPE, errors=subprocess.DEVNULL
            )
        source, reply = self._reader.stdin, self._reader.stdout
        assert source is not None  # noqa: S101 - asked for in _start
        assert reply is not None  # noqa: S101
        source.write(key.encode() + b"\n")
        source.flush()
        header = reply.readline().split()
        if header[1:2] != [b"blob"]:
            raise _failure("cat-file", b" ".join(header))
        left = int(header[2])
        while left:
            chunk = reply.read(min(left, _CHUNK))
            if not chunk:
                raise _failure("cat-file", b"ended early")
            left -= len(chunk)
            take(chunk)
        reply.read(1)

    def close(self) -> None:
        """End the reading process, if there is one."""
        if self._reader is not None:
            self._reader.communicate()
            self._reader = None

    def _start(
        self, *arguments: str, output: int = subprocess.DEVNULL, errors: IO[bytes] | int
    ) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            (self._git, *arguments),
            bufsize=_CHUNK,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=errors,
            env=self._env,
            cwd=self._work,
            start_new_session=True,
        )

    def _call(
        self, *arguments: str, output: IO[bytes] | int = subprocess.PIPE
    ) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            (self._git, *arguments),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.PIPE,
            env=self._env,
            cwd=self._work,
            start_new_session=True,
            check=False,
        )

    def _run(self, *arguments: str, output: IO[bytes] | int = subprocess.PIPE) -> bytes:
        done = self._call(*arguments, output=output)
        if done.returncode != 0:
            raise _failure(arguments[0], done.stderr)
        return done.stdout or b""


def _write_commit(stream: IO[bytes], branch: str, blobs: Iterable[Blob]) -> None:
    """Write a fast-import stream of one commit that holds ``blobs`` and nothing else."""
    stream.write(f"commit {branch}\ncommitter orch <orch> 0 +0000\ndata 0\n".encode())
    for blob in blobs:
        head = (blob.mode.encode(), _quoted(blob.path), blob.size)
        stream.write(b"\nM %s inline %s\ndata %d\n" % head)
        for chunk in blob.content:
            stream.write(chunk)
    stream.write(b"\ndone\n")


def _drop(stream: IO[bytes]) -> None:
    """Close a pipe whose reader is gone; what is left in its buffer has nowhere to go."""
    with suppress(BrokenPipeError):
        stream.close()


def _quoted(path: bytes) -> bytes:
    """Quote a path as fast-import reads it: C style, every other byte as it is."""
    escaped = path.replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(b"\n", b"\\n")
    return b'"' + escaped + b'"'


def _environment(repository: Path, work: Path) -> Mapping[str, str]:
    return {
        "PATH": "/usr/bin:/bin",
        "HOME": str(work),
        "XDG_CONFIG_HOME": str(work),
        "LC_ALL": "C",
        "TZ": "UTC",
        "GIT_DIR": str(repository),
        "GIT_WORK_TREE": str(work),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_TERMINAL_PROMPT": "0",
        # git makes and drops a 256 KiB zlib state for each object; glibc would give the memory
        # back to the kernel and fetch it again each time (measured: four fifths of an import).
        "MALLOC_TRIM_THRESHOLD_": str(256 * 1024**2),
        "MALLOC_TOP_PAD_": str(16 * 1024**2),
    }


@cache
def _git() -> str:
    path = shutil.which("git")
    if path is None:
        raise UsageError("git is not installed", remedy="install git (apt-get install git)")
    return str(Path(path).absolute())


def _failure(command: str, text: bytes) -> InfrastructureError:
    told = text.decode(errors="replace").strip()[:_TOLD]
    return InfrastructureError(
        f"the private object store failed at git {command}: {told}",
        remedy="look at the space in the temporary folder (TMPDIR), then try again",
    )
