import base64
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from receipts.canonical import canonical, sha256_hex
from receipts.envelope import (
    open_envelope,
    parse_envelope,
    pre_authentication_encoding,
    sign,
    signers,
)
from receipts.errors import CanonicalError, KeyUnusableError, MalformedError, SignatureError
from receipts.keys import SigningKey, load_or_create, load_public, publish
from receipts.statement import PhaseName, parse_statement
from tests.unit.receipts_help import DIGEST, statement
from tests.unit.records_help import in_processes


@pytest.fixture
def key() -> SigningKey:
    return SigningKey(Ed25519PrivateKey.from_private_bytes(b"\1" * 32))


@pytest.fixture
def other() -> SigningKey:
    return SigningKey(Ed25519PrivateKey.from_private_bytes(b"\2" * 32))


def test_canonical_form_is_rfc_8785s() -> None:
    # Section 3.2.3 of the RFC, without its literal that ends beyond 2^53.
    value = {
        "numbers": [333333333.33333329, 1e30, 4.50, 2e-3, 0.000000000000000000000000001, 1.0],
        "string": "\u20ac$\u000f\u000aA'\u0042\u0022\u005c\\\"/",
        "literals": [None, True, False],
    }
    assert canonical(value).decode() == (
        '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27,1],'
        '"string":"\u20ac$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
    )


@pytest.mark.parametrize(
    "value", [2**53, -(2**53), float("nan"), float("inf"), {1: 2}, {1, 2}, "\ud800"], ids=repr
)
def test_what_has_no_canonical_form_is_refused(value: object) -> None:
    with pytest.raises(CanonicalError):
        canonical({"x": value})


def test_an_integer_beyond_2_to_the_53_is_told_its_remedy() -> None:
    with pytest.raises(CanonicalError, match="as strings"):
        canonical([2**60])


def test_what_is_signed_is_dsse_v1s_encoding() -> None:
    # The test vector of protocol.md.
    encoded = pre_authentication_encoding("http://example.com/HelloWorld", b"hello world")
    assert encoded == b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"


def test_an_envelope_opens_with_any_of_its_keys(key: SigningKey, other: SigningKey) -> None:
    envelope = sign(b"payload", key, other)
    for verifiers in ([key.verifying], [other.verifying], [key.verifying, other.verifying]):
        assert open_envelope(envelope, verifiers) == b"payload"
    both = signers(parse_envelope(envelope), [other.verifying, key.verifying])
    assert both == (key.keyid, other.keyid)
    assert sign(b"payload", key, other) == envelope


def test_a_strangers_signature_opens_nothing(key: SigningKey, other: SigningKey) -> None:
    with pytest.raises(SignatureError, match="no known key"):
        open_envelope(sign(b"payload", key), [other.verifying])
    with pytest.raises(SignatureError, match="no known key"):
        open_envelope(sign(b"payload", key), [])


@pytest.mark.parametrize("field", ["payload", "sig", "keyid"])
def test_a_changed_envelope_does_not_open(key: SigningKey, other: SigningKey, field: str) -> None:
    envelope = json.loads(sign(b"payload", key))
    match field:
        case "payload":
            envelope["payload"] = base64.b64encode(b"Payload").decode()
        case "sig":
            envelope["signatures"][0]["sig"] = base64.b64encode(b"\0" * 64).decode()
        case _:
            envelope["signatures"][0]["keyid"] = other.keyid
    with pytest.raises(SignatureError, match="is false"):
        open_envelope(json.dumps(envelope).encode(), [key.verifying, other.verifying])


def test_one_false_signature_spoils_a_good_one(key: SigningKey, other: SigningKey) -> None:
    envelope = json.loads(sign(b"payload", key, other))
    envelope["signatures"][1]["sig"] = base64.b64encode(b"\0" * 64).decode()
    data = json.dumps(envelope).encode()
    assert open_envelope(data, [key.verifying]) == b"payload"
    with pytest.raises(SignatureError, match=f"{other.keyid} is false"):
        open_envelope(data, [key.verifying, other.verifying])


@pytest.mark.parametrize(
    "change",
    [
        {"payloadType": "text/plain"},
        {"payload": "not base64!"},
        {"payload": "YR=="},
        {"signatures": []},
        {"extra": 1},
        {"payload": 1},
    ],
    ids=repr,
)
def test_only_strict_envelopes_are_parsed(key: SigningKey, change: dict[str, Any]) -> None:
    envelope = json.loads(sign(b"payload", key)) | change
    with pytest.raises(MalformedError):
        open_envelope(json.dumps(envelope).encode(), [key.verifying])
    with pytest.raises(MalformedError, match="twice"):
        open_envelope(b'{"payload": "", "payload": ""}', [key.verifying])


def test_the_key_is_made_once_private_and_kept(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        made = load_or_create(tmp_path / "home")
    finally:
        os.umask(old)
    (path,) = (tmp_path / "home" / "keys").iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert load_or_create(tmp_path / "home").keyid == made.keyid
    assert made.keyid == sha256_hex(made.private.public_key().public_bytes_raw())


def _pem(private: Any) -> bytes:
    return bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def test_keys_are_the_very_files_that_the_library_writes(tmp_path: Path) -> None:
    key = load_or_create(tmp_path)
    assert next((tmp_path / "keys").glob("*.pem")).read_bytes() == _pem(key.private)
    public = key.verifying.public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    assert key.verifying.pem == public


@pytest.mark.parametrize("case", ["empty", "noise", "other kind", "open", "link", "folder"])
def test_an_unusable_key_is_said_so_and_never_replaced(tmp_path: Path, case: str) -> None:
    load_or_create(tmp_path)
    (path,) = (tmp_path / "keys").iterdir()
    match case:
        case "empty":
            path.write_bytes(b"")
        case "noise":
            path.write_bytes(b"-----BEGIN PRIVATE KEY-----\n!")
        case "other kind":
            path.write_bytes(_pem(generate_private_key(SECP256R1())))
        case "open":
            path.chmod(0o640)
        case "link":
            path.unlink()
            path.symlink_to(tmp_path / "missing")
        case _:
            path.unlink()
            path.mkdir(mode=0o700)
    before = path.lstat()
    with pytest.raises(KeyUnusableError, match=str(path)):
        load_or_create(tmp_path)
    assert path.lstat().st_ino == before.st_ino


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_somebody_elses_key_is_not_used(tmp_path: Path) -> None:
    load_or_create(tmp_path)
    (path,) = (tmp_path / "keys").iterdir()
    os.chown(path, 12345, 12345)
    with pytest.raises(KeyUnusableError, match="belongs to user 12345"):
        load_or_create(tmp_path)


def _make(index: int, home: Path) -> None:
    (home / f"id-{index}").write_text(load_or_create(home).keyid)


def test_processes_that_race_to_make_the_key_share_one(tmp_path: Path) -> None:
    assert in_processes(6, _make, tmp_path) == [0] * 6
    assert len({path.read_text() for path in tmp_path.glob("id-*")}) == 1
    assert len(list((tmp_path / "keys").iterdir())) == 1


def test_the_public_half_is_published_once(
    tmp_path: Path, key: SigningKey, other: SigningKey
) -> None:
    path = publish(key, tmp_path / "keys")
    assert path.name == f"{key.keyid}.pem"
    before = path.stat()
    assert publish(key, tmp_path / "keys") == path
    assert path.stat() == before
    assert load_public(path) == key.verifying
    path.write_bytes(other.verifying.pem)
    with pytest.raises(KeyUnusableError, match="not the public half"):
        publish(key, tmp_path / "keys")
    path.write_bytes(_pem(key.private))
    with pytest.raises(KeyUnusableError):
        load_public(path)


def test_a_statement_is_in_totos_and_round_trips() -> None:
    made = statement(PhaseName.REPLAY, DIGEST)
    fields = json.loads(made.payload())
    assert fields["_type"] == "https://in-toto.io/Statement/v1"
    assert fields["predicateType"] == "tag:orch-replay,2026:phase/v1"
    assert set(fields) == {"_type", "predicateType", "subject", "predicate"}
    assert parse_statement(made.payload()) == made
    assert parse_statement(made.payload()).payload() == made.payload()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("_type",), "https://in-toto.io/Statement/v0.1"),
        (("predicateType",), "tag:else,2026:phase/v1"),
        (("extra",), 1),
        (("predicate", "extra"), 1),
        (("predicate", "run", "extra"), 1),
        (("predicate", "phase"), "audit"),
        (("predicate", "prev"), "1" * 64),
        (("predicate", "materials", "anchor"), "md5:1"),
        (("predicate", "lifecycle", "seq"), "3"),
        (("subject",), [{"name": "out", "digest": {"sha256": "A" * 64}}]),
    ],
    ids=str,
)
def test_only_strict_statements_are_parsed(path: tuple[str, ...], value: object) -> None:
    fields = json.loads(statement(PhaseName.REPLAY, DIGEST).payload())
    place = fields
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(MalformedError, match=path[-1]):
        parse_statement(json.dumps(fields).encode())


def test_a_receipt_of_a_newer_version_is_said_to_be_one() -> None:
    fields = json.loads(statement(PhaseName.REPLAY, DIGEST).payload())
    fields["predicateType"] = "tag:orch-replay,2026:phase/v2"
    with pytest.raises(MalformedError, match="version 2; this verifier knows version 1"):
        parse_statement(json.dumps(fields).encode())
