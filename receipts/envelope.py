"""DSSE v1 envelopes: opaque payload bytes with signatures over type and bytes together.

Protocol: https://github.com/secure-systems-lab/dsse (envelope.md, protocol.md).
"""

import base64
import json
from collections.abc import Iterable
from dataclasses import dataclass

from pydantic import Field, ValidationError

from receipts.errors import MalformedError, SignatureError
from receipts.keys import SigningKey, VerifyingKey
from receipts.model import Strict, faults
from receipts.reading import parse_json

PAYLOAD_TYPE = "application/vnd.in-toto+json"


@dataclass(frozen=True, slots=True)
class Signature:
    """One signature, by the name of the key that is said to have made it."""

    keyid: str
    signature: bytes


@dataclass(frozen=True, slots=True)
class Envelope:
    """A parsed envelope. Its payload proves nothing before a signature was checked."""

    payload: bytes
    signatures: tuple[Signature, ...]


class _Signature(Strict):
    keyid: str
    sig: str


class _Envelope(Strict):
    payload: str
    payload_type: str = Field(alias="payloadType")
    signatures: list[_Signature] = Field(min_length=1)


def pre_authentication_encoding(payload_type: str, payload: bytes) -> bytes:
    """Return what is signed (PAE): type and payload, each with its length before it."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def sign(payload: bytes, *keys: SigningKey) -> bytes:
    """Return an envelope file of an in-toto ``payload`` signed by each of ``keys``."""
    signed = pre_authentication_encoding(PAYLOAD_TYPE, payload)
    envelope = {
        "payloadType": PAYLOAD_TYPE,
        "payload": base64.b64encode(payload).decode(),
        "signatures": [
            {"keyid": key.keyid, "sig": base64.b64encode(key.sign(signed)).decode()} for key in keys
        ],
    }
    return json.dumps(envelope, indent=2).encode() + b"\n"


def parse_envelope(data: bytes) -> Envelope:
    """Parse an envelope file without checking any signature.

    Raises:
        MalformedError: not a strict DSSE envelope around an in-toto payload.
    """
    try:
        found = _Envelope.model_validate(parse_json(data))
        if found.payload_type != PAYLOAD_TYPE:
            raise MalformedError(f"payloadType is {found.payload_type!r}")
        return Envelope(
            _from_base64(found.payload),
            tuple(Signature(s.keyid, _from_base64(s.sig)) for s in found.signatures),
        )
    except ValidationError as error:
        raise MalformedError(f"not a DSSE envelope: {faults(error)}") from error


def signers(envelope: Envelope, verifiers: Iterable[VerifyingKey]) -> tuple[str, ...]:
    """Return the ids of those ``verifiers`` whose signature holds.

    Raises:
        SignatureError: none has signed it, or a signature under the name of one is false.
    """
    known = {key.keyid: key for key in verifiers}
    signed = pre_authentication_encoding(PAYLOAD_TYPE, envelope.payload)
    found = []
    for signature in envelope.signatures:
        key = known.get(signature.keyid)
        if key is None:
            continue
        if not key.holds(signature.signature, signed):
            raise SignatureError(f"the signature of key {signature.keyid} is false")
        found.append(signature.keyid)
    if not found:
        named = ", ".join(s.keyid[:200] for s in envelope.signatures)
        raise SignatureError(f"signed by no known key (it names {named})")
    return tuple(found)


def open_envelope(data: bytes, verifiers: Iterable[VerifyingKey]) -> bytes:
    """Return the payload of an envelope file that one of ``verifiers`` has signed.

    Raises:
        MalformedError: not a strict DSSE envelope.
        SignatureError: none has signed it, or a signature under the name of one is false.
    """
    envelope = parse_envelope(data)
    signers(envelope, verifiers)
    return envelope.payload


def _from_base64(text: str) -> bytes:
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError as error:
        raise MalformedError(f"not base64: {error}") from error
    if base64.b64encode(data).decode() != text:
        raise MalformedError("not base64: stray bits at the end")
    return data
