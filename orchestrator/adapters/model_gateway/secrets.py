"""Keys: read on the host, shown to the provider, and found nowhere else."""

import json
from collections.abc import Iterable
from urllib.parse import quote

SHORTEST = 8
"""A value shorter than this is no secret (local servers are given words like ``none``)."""

_FILLER = "*"


class Vault:
    """The secret values of one gateway, and their removal from what is passed on or stored."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        self._forms: tuple[bytes, ...] = ()
        for value in values:
            self.add(value)

    def add(self, value: str) -> None:
        """Hide ``value`` from now on, also as JSON and as a URL would spell it."""
        if len(value) < SHORTEST:
            return
        spellings = {value, json.dumps(value)[1:-1], value.replace("/", "\\/"), quote(value, "")}
        forms = {*self._forms, *(form.encode() for form in spellings)}
        self._forms = tuple(sorted(forms, key=len, reverse=True))

    def clean(self, data: bytes) -> bytes:
        """Blot out every secret in ``data``; its length stays."""
        for form in self._forms:
            if form in data:
                data = data.replace(form, _FILLER.encode() * len(form))
        return data

    def clean_text(self, text: str) -> str:
        """Blot out every secret in ``text``."""
        return self.clean(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")

    def started(self, data: bytes) -> int:
        """Say how many bytes at the end of ``data`` may be the beginning of a secret."""
        longest = 0
        for form in self._forms:
            tail = data[1 - len(form) :]
            at = tail.find(form[:1])
            while at >= 0 and not form.startswith(tail[at:]):
                at = tail.find(form[:1], at + 1)
            if at >= 0:
                longest = max(longest, len(tail) - at)
        return longest


class Blotter:
    """Takes the secrets out of a stream. Bytes that cannot be part of one are never held back."""

    def __init__(self, vault: Vault) -> None:
        self._vault = vault
        self._held = b""

    def feed(self, chunk: bytes) -> bytes:
        """Return what may be passed on now."""
        data = self._vault.clean(self._held + chunk)
        held = self._vault.started(data)
        self._held = data[len(data) - held :]
        return data[: len(data) - held]

    def rest(self) -> bytes:
        """Return what was held back, at the end."""
        data, self._held = self._held, b""
        return data
