"""What a patch says of itself, and what a task lets it carry."""

import base64
import hashlib
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest

from orchestrator.adapters.git_store import GitTreeStore
from orchestrator.domain.task import PatchPolicy, RefusedContent
from orchestrator.evidence.apply import Applied, InvalidPatch, apply, screen
from orchestrator.evidence.capture import Capture, PolicyRefused, ProofFailed, capture
from orchestrator.evidence.patch import PatchFault, parse
from orchestrator.evidence.policy import (
    CEILING,
    Figures,
    Policy,
    Rule,
    judge_content,
    judge_rows,
    judge_size,
    measure,
)
from orchestrator.evidence.taking import violations
from orchestrator.evidence.tree import Entry, Kind

POLICY = PatchPolicy()


def entry(path: bytes) -> Entry:
    return Entry(path, Kind.FILE, "100644", 5, "0" * 64)


def new_file(path: str, *lines: bytes) -> bytes:
    head = f"diff --git a/{path} b/{path}\nnew file mode 100644\n"
    if not lines:
        return (head + f"index {'0' * 40}..{'e' * 40}\n").encode()
    hunk = f"--- /dev/null\n+++ b/{path}\n@@ -0,0 +1,{len(lines)} @@\n"
    return (head + hunk).encode() + b"".join(b"+" + line + b"\n" for line in lines)


def base85_rows(data: bytes) -> bytes:
    rows = []
    for at in range(0, len(data), 52):
        row = data[at : at + 52]
        size = chr(len(row) + (64 if len(row) <= 26 else 70))
        rows.append(size.encode() + base64.b85encode(row, pad=True) + b"\n")
    return b"".join(rows) + b"\n"


def varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def binary(path: str, kind: str, size: int, deflated: bytes) -> bytes:
    head = f"diff --git a/{path} b/{path}\nindex {'1' * 40}..{'2' * 40} 100644\nGIT binary patch\n"
    return (head + f"{kind} {size}\n").encode() + base85_rows(deflated)


def test_base85_hidden_in_source_is_too_much() -> None:
    text = base64.b85encode(os.urandom(3 * 1024**2))
    lines = [text[at : at + 79] for at in range(0, len(text), 79)]
    violations = judge_size(POLICY, measure(parse(new_file("m.py", *lines))))
    assert [violation.rule for violation in violations] == [Rule.COMPRESSED]
    assert violations[0].figure > 2 * 1024**2
    assert violations[0].limit == 256 * 1024


def test_names_of_empty_files_count() -> None:
    patch = b"".join(new_file(os.urandom(120).hex()) for _ in range(4500))
    figures = measure(parse(patch))
    assert figures.compressed > 500_000
    assert judge_size(POLICY, figures)


def test_a_bomb_in_a_binary_hunk_is_seen_without_inflating_it() -> None:
    bomb = zlib.compress(bytes(1024**2))
    literal = measure(parse(binary("b", "literal", 400 * 1024**2, bomb)))
    assert literal == Figures(len(bomb), 400 * 1024**2)
    delta = zlib.compress(varint(5) + varint(1 << 33) + b"\x91\x00\x05")
    figures = measure(parse(binary("b", "delta", 12, delta)))
    assert figures.expanded == 1 << 33
    for policy in (POLICY, "off"):
        refused = screen(binary("b", "delta", 12, delta), policy=policy)
        assert isinstance(refused, InvalidPatch)
        assert Rule.EXPANDED in {violation.rule for violation in refused.violations}


def test_the_ceiling_holds_with_the_policy_off() -> None:
    assert judge_size("off", Figures(CEILING, CEILING)) == ()
    assert [v.rule for v in judge_size("off", Figures(0, CEILING + 1))] == [Rule.EXPANDED]


def test_limits_are_inclusive() -> None:
    exact = Figures(POLICY.max_compressed, POLICY.max_expanded)
    assert judge_size(POLICY, exact) == ()
    over = Figures(exact.compressed + 1, exact.expanded + 1)
    assert {v.rule for v in judge_size(POLICY, over)} == {Rule.COMPRESSED, Rule.EXPANDED}


def test_nothing_added_measures_nothing() -> None:
    gone = (
        b"diff --git a/x b/x\ndeleted file mode 100644\n--- a/x\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n"
    )
    assert measure(parse(gone)) == Figures(0, 0)
    assert measure(()) == Figures(0, 0)


@pytest.mark.parametrize(
    ("path", "head", "rule"),
    [
        (b"a/M.SafeTensors", b"", Rule.WEIGHTS),
        (b"w.npz", b"", Rule.WEIGHTS),
        (b"rows.jsonl", b"", Rule.DATA),
        (b"x.so", b"", Rule.BYTECODE),
        (b"innocent.py", b"\x93NUMPY\x01", Rule.WEIGHTS),
        (b"innocent.py", b"PK\x03\x04", Rule.DATA),
        (b"innocent.py", struct.pack("<Q", 99) + b'{"a', Rule.WEIGHTS),
        (b"innocent.py", b"\x7fELF", Rule.BYTECODE),
        (b"innocent.py", b"\xa7\x0d\x0d\x0a" + bytes(12), Rule.BYTECODE),
        (b"notes.txt", b"a" * 7000 + b"\0", Rule.BINARY),
        (b"picture", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", Rule.BINARY),
        (b"w.pt", b"\0", Rule.WEIGHTS),
        (b"train.py", b"import numpy", None),
        (b"latin.txt", b"\xe4\xf6\xfc", None),
        (b"config.json", b"{}", None),
    ],
)
def test_content_is_known_by_name_and_by_magic(path: bytes, head: bytes, rule: Rule | None) -> None:
    violations = judge_content(POLICY, [entry(path)], lambda _: head, known={path})
    assert [violation.rule for violation in violations] == ([rule] if rule else [])
    assert judge_content("off", [entry(path)], lambda _: head, known={path}) == ()


def test_a_new_file_has_a_size_of_its_own() -> None:
    large = Entry(b"a.py", Kind.FILE, "100644", POLICY.max_file + 1, "0" * 64)
    (found,) = judge_content(POLICY, [large], lambda _: b"", known=())
    assert str(found) == "a.py: max_file: a new file of 4194305 bytes, 4194304 allowed"
    assert judge_content(POLICY, [large], lambda _: b"", known={b"a.py"}) == ()
    exact = large._replace(size=POLICY.max_file)
    assert judge_content(POLICY, [exact], lambda _: b"", known=()) == ()
    assert judge_content("off", [large], lambda _: b"", known=()) == ()


def test_a_file_is_named_for_each_thing_that_is_wrong_with_it() -> None:
    large = Entry(b"w.npz", Kind.FILE, "100644", POLICY.max_file + 1, "0" * 64)
    found = judge_content(POLICY, [large, entry(b"x.so")], lambda _: b"", known=())
    assert [(v.path, v.rule) for v in found] == [
        ("w.npz", Rule.WEIGHTS),
        ("w.npz", Rule.FILE),
        ("x.so", Rule.BYTECODE),
    ]


@pytest.mark.parametrize("name", ["a.json", "b.JSONL", "c.csv", "d/e.tsv", "f.ndjson"])
def test_rows_are_counted_in_each_file_of_rows(name: str) -> None:
    rows = [b"{}"] * 16
    assert judge_rows(POLICY, parse(new_file(name, *rows) + new_file("x" + name, *rows))) == ()
    (found,) = judge_rows(POLICY, parse(new_file(name, *rows, b"{}")))
    assert str(found) == f"{name}: max_rows: 17 rows added, 16 allowed"
    assert judge_rows("off", parse(new_file(name, *rows, b"{}"))) == ()
    assert judge_rows(POLICY, parse(new_file(name + ".py", *rows, b"{}"))) == ()


def test_rows_that_are_added_in_many_places_are_added_up() -> None:
    hunk = "@@ -{0},1 +{0},2 @@\n c\n+{{}}\n"
    head = "diff --git a/x.json b/x.json\n--- a/x.json\n+++ b/x.json\n"
    patch = head + "".join(hunk.format(n) for n in range(1, 18))
    (found,) = judge_rows(POLICY, parse(patch.encode()))
    assert found.figure == 17
    assert isinstance(screen(patch.encode(), policy=POLICY), InvalidPatch)


def test_submission_and_replay_judge_alike(tmp_path: Path) -> None:
    for name in ("pristine", "workspace", "candidate", "target"):
        (tmp_path / name).mkdir()
    work, out = tmp_path / "workspace", tmp_path / "candidate"
    (tmp_path / "pristine/known.py").write_text("a\n" * 600)
    (work / "known.py").write_text("b\n" * 600)
    (work / "rows.json").write_text("[]\n" * 17)
    (work / "blob").write_bytes(b"a\0")
    (work / "large.py").write_text("c\n" * 600)
    (work / "fine.py").write_text("d\n")
    policy = PatchPolicy(max_file=1000)
    common: dict[str, Any] = {"exclude": (), "store": GitTreeStore()}

    def captured(limits: Policy) -> Capture | PolicyRefused | ProofFailed:
        return capture(work, tmp_path / "pristine", policy=limits, destination=out, **common)

    refused = captured(policy)
    assert isinstance(refused, PolicyRefused)
    findings = {
        "blob: what is no text does not cross (refuse: binary)",
        "large.py: max_file: a new file of 1200 bytes, 1000 allowed",
        "rows.json: max_rows: 17 rows added, 16 allowed",
    }
    assert {str(found) for found in refused.violations} == findings
    assert {found.text for found in violations(refused)} == findings
    taken = captured("off")
    assert isinstance(taken, Capture)
    again = apply(
        out / "candidate.patch",
        tmp_path / "pristine",
        tmp_path / "target",
        policy=policy,
        expected_sha256=taken.patch_sha256,
        **common,
    )
    assert isinstance(again, InvalidPatch)
    rows = {finding for finding in findings if finding.startswith("rows")}
    assert {str(found) for found in again.violations} == rows  # before anything is applied
    (work / "rows.json").unlink()
    taken = captured("off")
    assert isinstance(taken, Capture)
    again = apply(
        out / "candidate.patch",
        tmp_path / "pristine",
        tmp_path / "target",
        policy=policy,
        expected_sha256=taken.patch_sha256,
        **common,
    )
    assert isinstance(again, InvalidPatch)
    assert {str(found) for found in again.violations} == findings - rows
    assert list((tmp_path / "target").iterdir()) == []


def test_copies_of_a_file_count_as_what_they_come_to(tmp_path: Path) -> None:
    for name in ("pristine", "few", "many"):
        (tmp_path / name).mkdir()
    (tmp_path / "pristine/known.py").write_text("a\n" * 600)
    copy = "diff --git a/known.py b/{0}.py\ncopy from known.py\ncopy to {0}.py\n"

    def applied(times: int, target: Path) -> object:
        patch = "".join(map(copy.format, range(times))).encode()
        (tmp_path / "x.patch").write_bytes(patch)
        return apply(
            tmp_path / "x.patch",
            tmp_path / "pristine",
            target,
            store=GitTreeStore(),
            exclude=(),
            policy=PatchPolicy(max_expanded=5000),
            expected_sha256=hashlib.sha256(patch).hexdigest(),
        )

    assert isinstance(applied(4, tmp_path / "few"), Applied)
    refused = applied(5, tmp_path / "many")
    assert isinstance(refused, InvalidPatch)
    assert "max_expanded: 6070 bytes added, 5000 allowed" in map(str, refused.violations)
    assert list((tmp_path / "many").iterdir()) == []


def test_a_task_may_refuse_less() -> None:
    policy = PatchPolicy(refuse=(RefusedContent.BYTECODE,))
    assert judge_content(policy, [entry(b"a.csv")], lambda _: b"\0", known=()) == ()


def test_every_rule_is_one_of_the_task_s_words() -> None:
    assert {kind.value for kind in RefusedContent} <= {rule.value for rule in Rule}


@pytest.mark.parametrize(
    "patch",
    [
        new_file("x", b"a", b"b")[:-1],
        new_file("x", b"a", b"b")[:-3],
        new_file("x", b"a").replace(b"+1,1", b"+1,2"),
        new_file("x", b"a").replace(b"\n", b"\r\n"),
        new_file("x", b"a") + b" trailing\n",
        binary("b", "literal", 3, zlib.compress(b"abc")).replace(b"\n\n", b"\n"),
        binary("b", "literal", 3, b"")[:-1],
        binary("b", "delta", 3, b"not zlib"),
        binary("b", "literal", 3, zlib.compress(b"abc"))[:-3] + b"\n\n",
        b"diff --git a/x b/x\nindex zz..zz\n",
        b"diff --git a/x b/x\nsimilarity index 100%\nrename from .git/x\nrename to x\n",
    ],
    ids=range(11),
)
def test_a_damaged_patch_is_a_fault(patch: bytes) -> None:
    with pytest.raises(PatchFault):
        parse(patch)


def test_a_hunk_of_more_lines_than_digits_can_be_read_is_refused() -> None:
    head = b"diff --git a/x b/x\nnew file mode 100644\n--- /dev/null\n+++ b/x\n"
    with pytest.raises(PatchFault, match="not a hunk header"):
        parse(head + b"@@ -0,0 +1," + b"9" * 5000 + b" @@\n+x\n")
