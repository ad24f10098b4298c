"""Ed25519 keys (RFC 8032): made at first use, kept private, published by their public half."""

import os
import secrets
import stat
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from receipts.canonical import sha256_hex
from receipts.errors import KeyUnusableError, MalformedError
from receipts.reading import read_file

_NAME = "signing-key.pem"
_MAX_PEM = 16 * 1024


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
        return self.public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

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
        pem = Ed25519PrivateKey.generate().private_bytes(
            Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
        )
        _write_once(path, pem, 0o600)
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
        public = load_pem_public_key(read_file(path, max_bytes=_MAX_PEM))
    except (OSError, MalformedError, ValueError) as error:
        raise KeyUnusableError(f"{path}: no readable public key: {error}") from error
    if not isinstance(public, Ed25519PublicKey):
        raise KeyUnusableError(f"{path}: not an Ed25519 key")
    return VerifyingKey(public)


def _load_private(path: Path) -> Ed25519PrivateKey:
    try:
        status = path.lstat()
        if status.st_uid != os.geteuid():
            raise KeyUnusableError(f"{path}: belongs to user {status.st_uid}, not to us")
        if stat.S_IMODE(status.st_mode) & 0o077:
            raise KeyUnusableError(f"{path}: open to other users; chmod 600 it if it is still good")
        private = load_pem_private_key(read_file(path, max_bytes=_MAX_PEM), password=None)
    except (OSError, MalformedError, ValueError, TypeError) as error:
        raise KeyUnusableError(f"{path}: no readable private key: {error}") from error
    if not isinstance(private, Ed25519PrivateKey):
        raise KeyUnusableError(f"{path}: not an Ed25519 key")
    return private


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
