"""The hub's own client against a server on loopback that speaks as the hub does.

Small files come from the hub itself; for large ones it answers with their sha256 and sends on to
a store of another origin, which must never see the token.
"""

import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest

from orchestrator.adapters.download import HttpFetcher, Patience
from orchestrator.adapters.hub import Hub
from orchestrator.cli.app import run as orch
from orchestrator.domain.source import HubKind
from orchestrator.errors import (
    AssetMismatchError,
    Exit,
    InfrastructureError,
    OrchError,
    TaskPackError,
    UsageError,
)
from orchestrator.ports.fetching import HubAddress, Wanted
from orchestrator.storage.pack import load_pack
from tests.unit.pack_help import make_pack
from tests.unit.site_help import Published, Site, sha256, site

REVISION = "0123456789abcdef" * 2 + "01234567"
TOKEN = "hf_a_secret_that_nobody_may_see"  # noqa: S105 - it opens nothing
ROWS, WEIGHTS = b'{"question": "?"}\n' * 50, bytes(range(256)) * 400


class Place:
    """A hub with a dataset and a model, and the store that its large files lie in."""

    def __init__(self, hub: Site, store: Site) -> None:
        self.hub, self.store = hub, store
        self.rows = f"datasets/o/rows/resolve/{REVISION}/deep/forget%2010.json"
        self.model = f"o/model/resolve/{REVISION}/model.safetensors"
        commit = {"X-Repo-Commit": REVISION}
        hub.files[self.rows] = Published(ROWS, headers={"ETag": '"' + "c" * 40 + '"', **commit})
        self.large(sha256(WEIGHTS))
        store.files["xet/blob?signature=s3cret"] = Published(WEIGHTS)

    def large(self, etag: str) -> None:
        """Publish the model's file under this sha256."""
        self.hub.files[self.model] = Published(
            status=[302],
            headers={
                "X-Repo-Commit": REVISION,
                "X-Linked-Etag": f'"{etag}"',
                "X-Linked-Size": str(len(WEIGHTS)),
                "ETag": '"of the redirect"',
                "Location": self.store.url("xet/blob?signature=s3cret"),
            },
        )

    def fetch(self, path: str, part: Path, token: str | None = TOKEN) -> None:
        """Fetch one of the two files."""
        rows = path.endswith(".json")
        address = (
            HubAddress("o/rows", HubKind.DATASET, REVISION, path)
            if rows
            else HubAddress("o/model", HubKind.MODEL, REVISION, path)
        )
        wanted = Wanted("a/file", sha256(ROWS if rows else WEIGHTS), address)
        patience = Patience(tries=3, first=0.0, longest=0.0, silence=30.0)
        fetcher = HttpFetcher(Hub(self.hub.address, token).locate, patience)
        fetcher.fetch(wanted, part, lambda _: None)


@pytest.fixture
def place() -> Iterator[Place]:
    with site() as hub, site() as store:
        yield Place(hub, store)


def test_a_small_file_comes_from_the_hub_at_the_pinned_revision(
    place: Place, tmp_path: Path
) -> None:
    place.fetch("deep/forget 10.json", tmp_path / "part")
    assert (tmp_path / "part").read_bytes() == ROWS
    assert [request.method for request in place.hub.requests] == ["HEAD", "GET"]
    assert {request.path.lstrip("/") for request in place.hub.requests} == {place.rows}


def test_a_large_file_comes_from_its_store_which_never_sees_the_token(
    place: Place, tmp_path: Path
) -> None:
    place.fetch("model.safetensors", tmp_path / "part")
    assert (tmp_path / "part").read_bytes() == WEIGHTS
    sent = [request.headers.get("authorization") for request in place.hub.requests]
    assert sent == [f"Bearer {TOKEN}"] * 2
    assert [request.headers.get("authorization") for request in place.store.requests] == [None]


def test_a_large_file_is_taken_up_where_it_broke_off(place: Place, tmp_path: Path) -> None:
    (file,) = place.store.files.values()
    file.cut = [50_000, None]
    place.fetch("model.safetensors", tmp_path / "part")
    assert (tmp_path / "part").read_bytes() == WEIGHTS
    assert place.store.ranges() == [None, "bytes=50000-"]


def test_a_large_file_that_is_another_is_refused_before_it_is_fetched(
    place: Place, tmp_path: Path
) -> None:
    place.large("e" * 64)
    with pytest.raises(AssetMismatchError) as refused:
        place.fetch("model.safetensors", tmp_path / "part")
    assert "e" * 64 in str(refused.value)
    assert sha256(WEIGHTS) in str(refused.value)
    assert place.store.requests == []
    assert not (tmp_path / "part").exists()


def test_a_small_file_that_is_another_is_refused(place: Place, tmp_path: Path) -> None:
    place.hub.files[place.rows].body = b"other"
    with pytest.raises(AssetMismatchError) as refused:
        place.fetch("deep/forget 10.json", tmp_path / "part")
    assert sha256(b"other") in str(refused.value)
    assert sha256(ROWS) in str(refused.value)


@pytest.mark.parametrize(
    ("status", "headers", "kind", "words"),
    [
        (403, {"X-Error-Code": "GatedRepo"}, UsageError, "model o/model is gated"),
        (401, {"X-Error-Code": "GatedRepo"}, UsageError, "model o/model is gated"),
        (404, {"X-Error-Code": "RepoNotFound"}, UsageError, "the hub has no model o/model"),
        (401, {}, UsageError, "the hub refuses model o/model (HTTP 401)"),
        (404, {"X-Error-Code": "RevisionNotFound"}, TaskPackError, f"no revision {REVISION}"),
        (404, {"X-Error-Code": "EntryNotFound"}, TaskPackError, "no file model.safetensors"),
        (
            403,
            {"X-Error-Message": "Access to this resource is disabled."},
            TaskPackError,
            "the hub has disabled model o/model",
        ),
        (
            401,
            {"X-Error-Message": "Invalid credentials in Authorization header"},
            UsageError,
            "the hub refuses model o/model (HTTP 401)",
        ),
        (403, {}, UsageError, "the hub refuses model o/model (HTTP 403)"),
        (500, {}, InfrastructureError, "o/model of the hub cannot be reached"),
        (429, {}, InfrastructureError, "(HTTP 429)"),
    ],
)
def test_a_refusal_is_one_clear_line_without_the_token(
    place: Place,
    tmp_path: Path,
    status: int,
    headers: dict[str, str],
    kind: type[OrchError],
    words: str,
) -> None:
    place.hub.files[place.model] = Published(status=[status], headers=headers)
    with pytest.raises(kind) as refused:
        place.fetch("model.safetensors", tmp_path / "part")
    assert type(refused.value) is kind
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
    assert TOKEN not in str(refused.value) + refused.value.remedy


def test_a_hub_that_is_busy_is_asked_again(place: Place, tmp_path: Path) -> None:
    place.hub.files[place.rows].status = [503, 429, 200]
    place.fetch("deep/forget 10.json", tmp_path / "part")
    assert (tmp_path / "part").read_bytes() == ROWS


def test_a_hub_that_is_not_there_is_the_machines_trouble(place: Place, tmp_path: Path) -> None:
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))  # nobody listens, and nobody else gets the port
        place.hub.address = f"http://127.0.0.1:{mute.getsockname()[1]}"
        with pytest.raises(InfrastructureError, match="cannot be reached") as refused:
            place.fetch("model.safetensors", tmp_path / "part")
    assert "goes on where this one stopped" in refused.value.remedy


def test_without_the_hubs_client_it_says_how_to_get_it(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UsageError, match="huggingface_hub is not installed") as refused:
        place.fetch("model.safetensors", tmp_path / "part")
    assert refused.value.remedy == "pip install 'orch-replay[hub]'"


def test_a_client_that_was_told_to_stay_offline_is_not_overruled(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UsageError, match="HF_HUB_OFFLINE"):
        place.fetch("model.safetensors", tmp_path / "part")
    assert place.hub.requests == []


def test_a_name_that_no_repository_has_is_the_packs_fault() -> None:
    with pytest.raises(TaskPackError, match="no name of a repository"):
        Hub("http://127.0.0.1:9").locate(HubAddress("o/a--b", HubKind.MODEL, REVISION, "x"))


PACK = f"""\
schema: orch.task/1
name: fetched
workspace: {{from: solution/}}
assets:
  models/start:
    role: anchor
    source:
      hub:
        repo: o/model
        kind: model
        revision: {REVISION}
        files: {{model.safetensors: {sha256(WEIGHTS)}}}
  data/final:
    role: final
    source:
      hub:
        repo: o/rows
        kind: dataset
        revision: {REVISION}
        files:
          forget.json: {{path: deep/forget 10.json, sha256: {sha256(ROWS)}}}
score: {{command: evaluator/final_eval.py, metric: score}}
"""


@pytest.fixture
def task(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pack of fetched assets, and a host that is set up for the hub on loopback."""
    monkeypatch.setenv("HF_ENDPOINT", f"{place.hub.address}/")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("ORCH_ASSETS", str(tmp_path / "assets"))
    return make_pack(tmp_path / "pack", PACK)


def test_the_command_fetches_locks_and_keeps_the_token_to_itself(
    place: Place, task: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert orch(["task", "prepare", str(task)]) is Exit.OK
    said = capsys.readouterr()
    assert said.out.count("made and locked") == 2
    assets = load_pack(task).spec.assets
    assert all(asset.digest is not None for asset in assets.values())
    files = {path.name: path for path in (tmp_path / "assets").rglob("*") if path.is_file()}
    assert files["model.safetensors"].read_bytes() == WEIGHTS
    assert files["forget.json"].read_bytes() == ROWS
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(TOKEN.encode() in content for content in written)
    assert TOKEN not in said.out + said.err
    before = len(place.hub.requests)
    assert orch(["task", "prepare", str(task)]) is Exit.OK
    assert len(place.hub.requests) == before


def test_the_command_ends_with_75_where_a_digest_differs_and_names_the_line(
    place: Place, task: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place.hub.files[place.rows].body = b"other"
    assert orch(["task", "prepare", str(task)]) is Exit.INFRASTRUCTURE
    first = capsys.readouterr().err.splitlines()
    (line,) = [line for line in first if "has sha256" in line]
    assert line.startswith("orch: task.yaml:21: assets.data/final.source.hub.files.forget.json: ")
    assert sha256(b"other") in line
    assert sha256(ROWS) in line
    assert not list((tmp_path / "assets").glob("fetched/**/*"))
    assert "digest:" not in task.read_text()
