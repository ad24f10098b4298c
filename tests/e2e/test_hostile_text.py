"""Text of agents, candidates and task packs acts on nobody who reads about a run."""

import base64
import json
import re
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import docker
import pytest
from typing_extensions import override

from orchestrator.storage.durable import parse_json
from tests.e2e.rig import PUBLISH, Rig, last

ESCAPES = "\x1b[2J\x1b]0;pwn\x07\x1b]8;;http://x.invalid\x1b\\link\x1b]8;;\x1b\\\x9b31m"
MARKUP = '<script>alert(1)</script><img src=x onerror=alert(1)>" onmouseover="alert(1)'
NAME = f"evil \x1b[31m{MARKUP}"
SHELL = r"printf '\033[2J\033]0;pwn\007\033]8;;http://x.invalid\033\\link\302\233\377'"
RUN = (
    PUBLISH
    + f"""\
{SHELL}; {SHELL} >&2
echo '{MARKUP}'
publish 10 0.5
mkdir "$OUTPUT_DIR/checkpoints/$({SHELL})"
mkdir "$OUTPUT_DIR/checkpoints/<script>alert(1)<"
"""
)
SCORER = """\
echo '{"status": "scored", "metrics": {"score": 0.5}}' > /out/summary.json
"""
STEPS = (
    {"say": ESCAPES + MARKUP},
    {"run": f"{SHELL}; echo '{MARKUP}' # {ESCAPES}"},
    {"run": f"echo \"# {ESCAPES.replace(chr(27), '')}\" >> run.sh; touch 'new\x1b[31m<script>'"},
    {"run": "/opt/harness/submit.sh"},
)


class Book:
    """Everything that was printed while one run was made and read."""

    def __init__(self, rig: Rig, pack: Path) -> None:
        self.rig = rig
        self.printed: dict[str, str] = {}
        self._run("explore", pack)
        self.attempt = next(rig.runs.glob("*/attempt-001"))
        self._run("replay", self.attempt)
        for command in ("show", "lifecycle", "logs", "report"):
            self._run(command, self.attempt)
        self._run("status")
        self._run("logs", self.attempt / "replay-001")
        self._run("show", self.attempt / "replay-001/score-001")

    def _run(self, *words: str | Path) -> None:
        done = self.rig.orch(*words)
        assert done.code == 0, done.err
        self.printed[" ".join(map(str, words))] = done.out + done.err


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Book:
    rig = Rig(tmp_path_factory.mktemp("text"))
    return Book(rig, rig.pack(RUN, steps=STEPS, scorer=SCORER, name=NAME, title=ESCAPES + MARKUP))


def test_LG_01_no_control_byte_reaches_the_terminal(book: Book) -> None:
    for command, text in book.printed.items():
        assert not re.findall(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text), command
    assert "pwn" in book.printed[f"logs {book.attempt / 'replay-001'}"]
    assert "evil" in book.printed["status"]


def test_LG_01_raw_bytes_stay_in_the_raw_log_and_json_has_them_escaped(book: Book) -> None:
    raw = (book.attempt / "replay-001/logs/stdout.log").read_bytes()
    assert b"\x1b[2J\x1b]0;pwn\x07" in raw
    assert b"\xc2\x9b\xff" in raw
    transcript = (book.attempt / "transcript.jsonl").read_bytes()
    assert b"\\u001b[2J" in transcript
    for path in (*book.rig.runs.rglob("*.json*"), book.rig.runs / "orch.log"):
        assert b"\x1b" not in path.read_bytes(), path


class Page(HTMLParser):
    """What a browser would act on."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.words = ""
        self.feed(text)
        self.close()

    @override
    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs

    @override
    def handle_data(self, data: str) -> None:
        self.words += data


def test_LG_03_nothing_of_it_becomes_markup(book: Book) -> None:
    text = (book.attempt / "analysis/report.html").read_text()
    page = Page(text)
    assert not page.tags & {"script", "img", "iframe", "object", "embed", "link", "base", "form"}
    names = {name for name, _ in page.attributes}
    assert not [name for name in names if name.startswith("on")]
    assert not names & {"href", "src", "srcset", "action", "style", "srcdoc"}
    assert not [value for _, value in page.attributes if "//" in (value or "")]
    assert "<script>alert(1)</script>" in page.words
    assert [v for _, v in page.attributes if (v or "").startswith("default-src 'none'")]
    assert "\x1b" not in text


READING = ("status", "show", "lifecycle", "logs", "report")


@pytest.mark.parametrize("command", READING)
def test_json_is_strict_and_holds_the_same_facts(book: Book, command: str) -> None:
    words = [command] if command == "status" else [command, book.attempt]
    done = book.rig.orch(*words, "--json")
    assert done.code == 0
    assert done.out.isascii()
    document = parse_json(done.out.encode())
    flat = json.dumps(document)
    run_id = json.loads((book.attempt / "plan.json").read_text())["run_id"]
    facts = {
        "status": (run_id, "submitted", "0.5", "checkpoint-10"),
        "show": (run_id, "agent_explicit_submit", "0.5", "checkpoint-10", "sha256:"),
        "lifecycle": ("explore", "submitted", "validated", "scored"),
        "logs": ("transcript.jsonl", "pwn"),
        "report": ("analysis/report.html",),
    }
    assert not [fact for fact in facts[command] if fact not in flat]


@pytest.mark.parametrize("command", ["images", "doctor", "task"])
def test_json_of_what_needs_no_run_is_strict_too(rig: Rig, command: str) -> None:
    done = rig.orch(command, "--json")
    assert done.out.isascii()
    assert isinstance(parse_json(done.out.encode()), list)


def test_the_true_names_are_kept_in_the_records(book: Book) -> None:
    assert json.loads((book.attempt.parent / "config.json").read_text())["task"] == NAME
    assert re.fullmatch(r"[a-z0-9_-]+", book.attempt.parent.name)


FOREIGN = "Täsk 1/β: final"


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """A whole run under names with spaces, colons and letters beyond ASCII."""
    root = tmp_path_factory.mktemp("foreign")
    rig = Rig(root, {"ORCH_RUNS": str(root / "my runs:v1" / "ünï")})
    pack = rig.pack(name=FOREIGN, folder="päck: of mine")
    attempt = rig.explore(pack)
    found: list[dict[str, Any]] = []
    client = docker.APIClient()
    events = client.events(decode=True, filters={"type": "container", "event": "start"})
    process = rig.start("replay", attempt)
    for event in events:
        labels: Mapping[str, str] = event["Actor"]["Attributes"]
        with rig.context() as ctx:
            ours = labels.get("orch.instance") == ctx.instance
        if ours:
            found.append(client.inspect_container(event["Actor"]["ID"]))
            break
    events.close()
    client.close()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err.decode()
    return attempt, found


def test_FS_03_names_and_paths_with_anything_in_them_work(
    foreign: tuple[Path, list[dict[str, Any]]],
) -> None:
    attempt, found = foreign
    assert last(attempt / "replay-001/score-001", "scored")["value"] == 0.3
    assert re.fullmatch(r"/orch-[a-z]+-[a-z0-9-]+", found[0]["Name"])
    run = json.loads((attempt / "replay-001/plan.json").read_text())["run_id"]
    assert found[0]["Config"]["Labels"]["orch.run"] == run
    assert any("my runs:v1/ünï" in mount["Source"] for mount in found[0]["Mounts"])
    assert not found[0]["HostConfig"]["Binds"]


def test_FS_03_the_records_keep_the_original_text(
    foreign: tuple[Path, list[dict[str, Any]]],
) -> None:
    attempt, _ = foreign
    assert json.loads((attempt / "plan.json").read_text())["task"]["name"] == FOREIGN
    assert json.loads((attempt.parent / "config.json").read_text())["task"] == FOREIGN
    receipt = json.loads((attempt / "replay-001/score-001/receipts/006-score.json").read_text())
    said = json.loads(base64.b64decode(receipt["payload"]))
    assert said["predicate"]["run"]["task"] == FOREIGN
