"""Ed25519 keys (RFC 8032): made at first use, kept private, published by their public half."""

import base64
import binascii
import os
import secrets
import stat
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from receipts.canonical import sha256_hex
from receipts.errors import KeyUnusableError, MalformedError
from receipts.reading import read_file

_NAME = "signing-key.pem"
_MAX_PEM = 16 * 1024
_LINE = 64
# The DER of an Ed25519 key is these bytes and then the 32 raw ones (RFC 8410, sections 4 and 7).
# The library's own reader of every kind of key costs more to import than all of the rest here.
_PRIVATE = ("PRIVATE KEY", bytes.fromhex("302e020100300506032b657004220420"))
_PUBLIC = ("PUBLIC KEY", bytes.fromhex("302a300506032b6570032100"))


@dataclass(frozen=True, slots=True)
class VerifyingKey:
    """A public half. ``keyid`` is the sha256 of its 32 raw bytes, in hexadecimal digits."""

    public: Ed25519PublicKey

    @property
    def keyid(self) -> str:
        """The name signatures carry."""
        return sha256_hex(self.public.public_bytes_raw())

    @property
    def pem(self) -> bytes:
        """SubjectPublicKeyInfo in PEM."""
        return _to_pem(self.public.public_bytes_raw(), _PUBLIC)

    def holds(self, signature: bytes, data: bytes) -> bool:
        """Tell whether ``signature`` over ``data`` is this key's."""
        try:
            self.public.verify(signature, data)
        except InvalidSignature:
            return False
        return True


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A private key; never shown."""

    private: Ed25519PrivateKey

    @property
    def verifying(self) -> VerifyingKey:
        """The public half."""
        return VerifyingKey(self.private.public_key())

    @property
    def keyid(self) -> str:
        """The name its signatures carry."""
        return self.verifying.keyid

    def sign(self, data: bytes) -> bytes:
        """Sign ``data``; the same bytes always get the same signature."""
        return self.private.sign(data)


def load_or_create(home: Path) -> SigningKey:
    """Load the signing key under ``home``, or make one there at first use.

    Raises:
        KeyUnusableError: there is one, but it cannot be read, belongs to somebody else, is open to
            other users, or is no Ed25519 key. It is never replaced.
    """
    path = home / "keys" / _NAME
    if not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        raw = Ed25519PrivateKey.generate().private_bytes_raw()
        _write_once(path, _to_pem(raw, _PRIVATE), 0o600)
    # Whoever lost a race to make it uses the winner's.
    return SigningKey(_load_private(path))


def publish(key: SigningKey, folder: Path) -> Path:
    """Put the public half into ``folder`` as ``<keyid>.pem``; one that is there stays.

    Raises:
        KeyUnusableError: a file of that name holds something else.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{key.keyid}.pem"
    if not path.exists():
        _write_once(path, key.verifying.pem, 0o644)
    if load_public(path) != key.verifying:
        raise KeyUnusableError(f"{path}: not the public half of key {key.keyid}")
    return path


def load_public(path: Path) -> VerifyingKey:
    """Load a public half from PEM.

    Raises:
        KeyUnusableError: it cannot be read, or is no Ed25519 public key.
    """
    try:
        raw = _from_pem(read_file(path, max_bytes=_MAX_PEM), _PUBLIC)
    except (OSError, MalformedError) as error:
        raise KeyUnusableError(f"{path}: no readable Ed25519 public key: {error}") from error
    return VerifyingKey(Ed25519PublicKey.from_public_bytes(raw))


def _load_private(path: Path) -> Ed25519PrivateKey:
    try:
        status = path.lstat()
        if status.st_uid != os.geteuid():
            raise KeyUnusableError(f"{path}: belongs to user {status.st_uid}, not to us")
        if stat.S_IMODE(status.st_mode) & 0o077:
            raise KeyUnusableError(f"{path}: open to other users; chmod 600 it if it is still good")
        raw = _from_pem(read_file(path, max_bytes=_MAX_PEM), _PRIVATE)
    except (OSError, MalformedError) as error:
        raise KeyUnusableError(f"{path}: no readable Ed25519 private key: {error}") from error
    return Ed25519PrivateKey.from_private_bytes(raw)


def _to_pem(raw: bytes, kind: tuple[str, bytes]) -> bytes:
    """Write a raw key in PEM (RFC 7468), byte for byte as every library does."""
    label, prefix = kind
    text = base64.b64encode(prefix + raw).decode()
    lines = [text[start : start + _LINE] for start in range(0, len(text), _LINE)]
    return "\n".join((f"-----BEGIN {label}-----", *lines, f"-----END {label}-----", "")).encode()


def _from_pem(pem: bytes, kind: tuple[str, bytes]) -> bytes:
    """Return the 32 raw bytes of the key in ``pem``.

    Raises:
        MalformedError: it is not one unencrypted Ed25519 key of that kind and nothing else.
    """
    label, prefix = kind
    lines = pem.decode("ascii", errors="replace").split()
    words = " ".join(lines)
    head, tail = f"-----BEGIN {label}-----", f"-----END {label}-----"
    if not (words.startswith(head) and words.endswith(tail)):
        raise MalformedError(f"not one {label} in PEM")
    try:
        body = words.removeprefix(head).removesuffix(tail).replace(" ", "")
        der = base64.b64decode(body, validate=True)
    except binascii.Error as error:
        raise MalformedError(f"no base64: {error}") from error
    if not der.startswith(prefix) or len(der) != len(prefix) + 32:
        raise MalformedError("another kind of key")
    return der.removeprefix(prefix)


def _write_once(path: Path, data: bytes, mode: int) -> None:
    """Write a small file whole and durable, unless one is there."""
    temporary = path.parent / f".{secrets.token_hex(8)}.tmp"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        os.link(temporary, path)
    except FileExistsError:
        return
    finally:
        temporary.unlink()
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
