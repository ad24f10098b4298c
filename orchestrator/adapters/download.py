"""Download published files over HTTP: resumed, and hashed while they are written."""

import hashlib
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn, Self, TypeVar
from urllib.parse import urlsplit

import httpx
import stamina
import stamina.instrumentation
from typing_extensions import override

from orchestrator.errors import (
    AssetMismatchError,
    InfrastructureError,
    OrchError,
    StorageFullError,
    TaskPackError,
    UsageError,
)
from orchestrator.ports.fetching import Fetcher, HubAddress, Wanted
from orchestrator.storage.durable import storage_faults, sync_file

T = TypeVar("T")
_BLOCK = 1024**2
_LARGE = 64 * 1024**2
"""Bytes from which on every tenth of a file is worth a line."""
_PROGRESS = 64 * 1024
"""Bytes that a broken connection must have brought, or it counts as a try in vain."""
_REDIRECTS = 20
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
_PARTIAL, _PAST_THE_END = 206, 416
_START = re.compile(r"bytes ([0-9]{1,18})-")
_AGAIN = "connect this host, or wait; the same command goes on where this one stopped"


@dataclass(frozen=True, slots=True)
class Patience:
    """How a server that does not answer is met: tries almost in vain, and seconds between."""

    tries: int = 5
    first: float = 1.0
    longest: float = 15.0
    silence: float = 60.0


@dataclass(frozen=True, slots=True)
class Located:
    """Where a file can be asked for, and what its server says of it beforehand."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    sha256: str | None = None


class PassingError(Exception):
    """A server did not answer, or not now: worth another try."""


class _MisledError(Exception):
    """A server sent us on to nowhere: the next try would be sent there as well."""


Locate = Callable[[HubAddress], Located]
"""Finds a file of the hub. Raises PassingError, or what ``Fetcher.fetch`` may raise."""


@dataclass(frozen=True, slots=True)
class HttpFetcher(Fetcher):
    """Fetches with httpx, which minds the host's usual variables for proxies and certificates."""

    locate: Locate
    patience: Patience = Patience()

    @override
    def fetch(self, wanted: Wanted, part: Path, say: Callable[[str], None]) -> None:
        stamina.instrumentation.set_on_retry_hooks(())  # tries are told by us
        with storage_faults(part), _Part(part) as file:
            if file.sha256 != wanted.sha256:
                _Errand(self, wanted, file, say).run()
        sync_file(part)


@dataclass(frozen=True, slots=True)
class _Errand:
    """One file to be brought whole."""

    fetcher: HttpFetcher
    wanted: Wanted
    file: "_Part"
    say: Callable[[str], None]

    def run(self) -> None:
        try:
            place = self._located()
            if place.sha256 in {None, self.wanted.sha256}:
                self._receive(place)
        except httpx.InvalidURL as error:
            raise TaskPackError(f"{self.wanted.origin} is no address: {error}") from error
        except _MisledError as error:
            raise InfrastructureError(
                f"{_host(self.wanted)}: its server sends who asks for {self.wanted.name} {error}",
                remedy="name another address in task.yaml, or tell who runs that server",
            ) from error
        except (PassingError, httpx.RequestError) as error:
            raise InfrastructureError(
                f"{_host(self.wanted)} cannot be reached to fetch {self.wanted.name} "
                f"({_why(error)}); {self.file.size} bytes of it are kept",
                remedy=_AGAIN,
            ) from error
        for found in (place.sha256, self.file.sha256):
            if found not in {None, self.wanted.sha256}:
                self._refuse(found)

    def _refuse(self, found: str | None) -> NoReturn:
        self.file.remove()
        raise AssetMismatchError(
            f"{self.wanted.name} from {_host(self.wanted)} has sha256 {found}, "
            f"task.yaml says {self.wanted.sha256}",
            remedy="what is published was changed, or the digest in task.yaml is wrong",
        )

    def _located(self) -> Located:
        address = self.wanted.origin
        if isinstance(address, str):
            return Located(address)
        return self._patiently(lambda: self.fetcher.locate(address))

    def _receive(self, place: Located) -> None:
        """Take the file; where what was kept may be of another, once more from its start."""
        self._take_all(place)
        if self.file.resumed and self.file.sha256 != self.wanted.sha256:
            self.file.empty()
            self._take_all(place)

    def _take_all(self, place: Located) -> None:
        """Take bytes until there are no more; only tries that brought few count."""
        silence = self.fetcher.patience.silence
        with httpx.Client(timeout=silence) as client:
            while not self._patiently(
                lambda: _take(client, self.wanted, place, self.file, self.say)
            ):
                pass

    def _patiently(self, ask: Callable[[], T]) -> T:
        patience = self.fetcher.patience
        for attempt in stamina.retry_context(
            on=(PassingError, httpx.RequestError),
            attempts=patience.tries,
            timeout=None,
            wait_initial=patience.first,
            wait_max=patience.longest,
            wait_jitter=patience.first,
        ):
            with attempt:
                try:
                    return ask()
                except (PassingError, httpx.RequestError) as error:
                    if attempt.num < patience.tries:
                        self.say(f"{_host(self.wanted)}: {_why(error)}; asking again")
                    raise
        raise AssertionError("stamina ends by returning or raising")


class _Part:
    """A file that is being fetched, open at its end, with the digest of what it holds."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("a+b", buffering=0)
        self._digest = hashlib.sha256()
        self.size = 0
        self.resumed = False
        self._file.seek(0)
        while block := self._file.read(_BLOCK):
            self._count(block)
        self.limit = self.size + self.room() // 2

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def room(self) -> int:
        return shutil.disk_usage(self._path.parent).free

    def append(self, block: bytes) -> None:
        rest = memoryview(block)
        while rest:
            rest = rest[self._file.write(rest) :]
        self._count(block)

    def empty(self) -> None:
        self._file.truncate(0)
        self._digest = hashlib.sha256()
        self.size = 0
        self.resumed = False

    def remove(self) -> None:
        self._path.unlink()

    def _count(self, block: bytes) -> None:
        self._digest.update(block)
        self.size += len(block)


def _take(
    client: httpx.Client, wanted: Wanted, place: Located, file: _Part, say: Callable[[str], None]
) -> bool:
    """Ask for what is missing and write what comes; False if it broke off well ahead.

    Raises:
        PassingError: nothing new came, or next to nothing.
        RequestError: as well.
        OrchError: this server will not send it.
    """
    before = file.size
    headers = {**place.headers, "accept-encoding": "identity", "user-agent": "orch"}
    if before:
        headers["range"] = f"bytes={before}-"
    try:
        with _answer(client, client.build_request("GET", place.url, headers=headers)) as response:
            if response.status_code == _PAST_THE_END and before:
                file.resumed = True
                return True
            if not response.is_success:
                raise _refusal(wanted, response.status_code)
            _write(response, wanted, file, say)
    except httpx.RequestError:
        if file.size < before + _PROGRESS:
            raise
        return False
    return True


@contextmanager
def _answer(client: httpx.Client, request: httpx.Request) -> Iterator[httpx.Response]:
    """Ask, and follow redirects without reading the pages that come with them."""
    for _ in range(_REDIRECTS):
        try:
            response = client.send(request, stream=True)
        except httpx.UnsupportedProtocol as error:
            raise _MisledError("on to what is no web address") from error
        try:
            if response.next_request is None:
                yield response
                return
        finally:
            response.close()
        request = response.next_request
    raise _MisledError(f"on more than {_REDIRECTS} times")


def _write(
    response: httpx.Response, wanted: Wanted, file: _Part, say: Callable[[str], None]
) -> None:
    if response.status_code == _PARTIAL:
        start = _START.match(response.headers.get("content-range", ""))
        if start is None or int(start[1]) != file.size:
            raise PassingError("it sent another part than was asked for")
        file.resumed = file.resumed or file.size > 0
    else:
        file.empty()
    missing = int(response.headers.get("content-length") or 0)
    size = file.size + missing
    if missing > (room := file.room()):
        raise StorageFullError(
            f"{wanted.name} from {_host(wanted)}: {missing} bytes are to come, {room} are free",
            remedy="free space where ORCH_ASSETS lies; the same command goes on from here",
        )
    limit = size if missing else file.limit
    kept = f", {file.size} are here" if file.size else ""
    say(
        f"fetching {wanted.name} from {_host(wanted)}"
        + (f": {size} bytes{kept}" if missing else "")
    )
    told = file.size * 10 // size if missing else 0
    for block in response.iter_raw():
        file.append(block)
        if file.size > limit:
            file.remove()
            told_size = "that size" if missing else "no size, and this is half of what was free"
            raise InfrastructureError(
                f"{wanted.name} from {_host(wanted)}: more than {limit} bytes came; "
                f"its server told {told_size}",
                remedy="free space where ORCH_ASSETS lies, or name another address in task.yaml",
            )
        if size >= _LARGE and (tenth := file.size * 10 // size) > told:
            told = tenth
            say(f"{wanted.name}: {10 * tenth} %")


def _refusal(wanted: Wanted, status: int) -> OrchError | PassingError:
    if status in _PASSING:
        return PassingError(f"HTTP {status}")
    what = f"{wanted.name} from {_host(wanted)}"
    if status in {404, 410}:
        return TaskPackError(f"{what}: there is no such file (HTTP {status})")
    if status in {401, 403}:
        return UsageError(
            f"{what}: its server does not let this host have it (HTTP {status})",
            remedy="see what that server asks for, or name a mirror in task.yaml",
        )
    return InfrastructureError(f"{what}: its server answers HTTP {status}", remedy=_AGAIN)


def _host(wanted: Wanted) -> str:
    if isinstance(wanted.origin, HubAddress):
        return f"{wanted.origin.repo} of the hub"
    return urlsplit(wanted.origin).hostname or wanted.origin


def _why(error: Exception) -> str:
    """Say it in few words; an address with a signature in it is never repeated."""
    return str(error) if isinstance(error, PassingError) else type(error).__name__
