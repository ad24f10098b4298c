"""The hub: where a file of a pinned revision is, and what the hub says of it beforehand."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import ModuleType

from orchestrator.adapters.download import Located, PassingError
from orchestrator.errors import OrchError, TaskPackError, UsageError
from orchestrator.ports.fetching import HubAddress

_SHA256 = 64
"""Characters of an etag that is the sha256 of a large file; of a small one it is git's SHA-1."""
_PASSING = frozenset({408, 429})
_SERVER = 500
_LOGIN = "set HF_TOKEN to a token that may read it, then try again"


@dataclass(frozen=True, slots=True)
class Hub:
    """The hub at ``endpoint`` (None: its usual address), asked with ``token`` where there is one.

    Without a token, the login that the hub's own client has stored on this host is used.
    """

    endpoint: str | None = None
    token: str | None = field(default=None, repr=False)

    def locate(self, address: HubAddress) -> Located:
        """Ask the hub for a file's address and digest; nothing of the file itself is fetched.

        Raises:
            PassingError: it does not answer, or not now.
            UsageError: its client is not installed, or the repository is not open to this host.
            TaskPackError: there is no such repository, revision or file.
        """
        library = _library()
        import httpx2  # noqa: PLC0415 - comes with the hub's client, and only with it

        try:
            url = library.hf_hub_url(
                address.repo,
                address.path,
                repo_type=address.kind.value,
                revision=address.revision,
                endpoint=self.endpoint,
            )
            found = library.get_hf_file_metadata(url, token=self.token, endpoint=self.endpoint)
        except (httpx2.HTTPError, library.errors.HFValidationError, OSError) as error:
            raise _explained(error, address, library) from error
        token = self.token or library.get_token()
        headers: Mapping[str, str] = {"authorization": f"Bearer {token}"} if token else {}
        etag = found.etag or ""
        return Located(url, headers, etag if len(etag) == _SHA256 else None)


def _library() -> ModuleType:
    try:
        import huggingface_hub  # noqa: PLC0415 - optional, and slow to import
        import huggingface_hub.errors  # noqa: PLC0415
    except ImportError as absent:
        raise UsageError(
            "this task has files of the hub, whose client huggingface_hub is not installed",
            remedy="pip install 'orch-replay[hub]'",
        ) from absent
    return huggingface_hub


def _explained(error: Exception, address: HubAddress, library: ModuleType) -> Exception:
    """Say in one line of ours what the hub's client has raised; its own names this host's token."""
    errors = library.errors
    what = f"{address.kind} {address.repo}"
    table: tuple[tuple[type[Exception], OrchError | PassingError], ...] = (
        (
            errors.GatedRepoError,
            UsageError(
                f"{what} is gated: its owner wants you to agree to something first",
                remedy=f"agree on its page of the hub, then {_LOGIN}",
            ),
        ),
        (errors.DisabledRepoError, TaskPackError(f"the hub has disabled {what}")),
        (
            errors.RevisionNotFoundError,
            TaskPackError(f"{what} has no revision {address.revision}"),
        ),
        (
            errors.EntryNotFoundError,
            TaskPackError(f"{what} has no file {address.path} at {address.revision}"),
        ),
        (
            errors.RepositoryNotFoundError,
            UsageError(
                f"the hub has no {what}, or does not show it to this host",
                remedy=f"mend its name and kind in task.yaml; if it is private, {_LOGIN}",
            ),
        ),
        (errors.HFValidationError, TaskPackError(f"{address.repo!r} is no name of a repository")),
        (errors.OfflineModeIsEnabled, UsageError("HF_HUB_OFFLINE forbids it", remedy="unset it")),
    )
    for kind, said in table:
        if isinstance(error, kind):
            return said
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is None:
        return PassingError(type(error).__name__)
    if status in _PASSING or status >= _SERVER:
        return PassingError(f"HTTP {status}")
    return UsageError(f"the hub refuses {what} (HTTP {status})", remedy=_LOGIN)
