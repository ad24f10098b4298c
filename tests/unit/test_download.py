"""Published files are fetched from a real server on loopback that does not always behave."""

import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from orchestrator.adapters.download import HttpFetcher, Patience
from orchestrator.errors import (
    AssetMismatchError,
    InfrastructureError,
    OrchError,
    StorageFullError,
    TaskPackError,
    UsageError,
)
from orchestrator.ports.fetching import Wanted
from tests.unit.site_help import Published, Site, sha256, site

BODY = bytes(range(256)) * 1000
HASTY = Patience(tries=3, first=0.0, longest=0.0, silence=30.0)


def _nowhere(_: object) -> object:
    raise AssertionError("this file is not of the hub")


class Errand:
    """One file to fetch from a site, again and again."""

    def __init__(self, place: Site, folder: Path, patience: Patience = HASTY) -> None:
        self.site = place
        self.file = Published(BODY)
        place.files["a.gz"] = self.file
        self.part = folder / "a.part"
        self.said: list[str] = []
        self.fetcher = HttpFetcher(_nowhere, patience)  # type: ignore[arg-type]

    def run(self, digest: str = sha256(BODY), url: str | None = None) -> None:
        wanted = Wanted("rows/a.gz", digest, url or self.site.url("a.gz"))
        self.fetcher.fetch(wanted, self.part, self.said.append)


@pytest.fixture
def errand(tmp_path: Path) -> Iterator[Errand]:
    with site() as place:
        yield Errand(place, tmp_path)


def test_a_file_is_fetched_whole_and_as_it_is(errand: Errand) -> None:
    errand.run()
    assert errand.part.read_bytes() == BODY
    assert errand.said == ["fetching rows/a.gz from 127.0.0.1: 256000 bytes"]
    (request,) = errand.site.requests
    assert request.headers["accept-encoding"] == "identity"


def test_a_packed_file_is_not_unpacked_by_the_way(errand: Errand) -> None:
    errand.file.headers["Content-Encoding"] = "gzip"
    errand.run()
    assert errand.part.read_bytes() == BODY


def test_a_connection_that_breaks_off_is_taken_up_where_it_ended(errand: Errand) -> None:
    errand.file.cut = [1000, 70_000, 1, None]
    errand.run()
    assert errand.part.read_bytes() == BODY
    assert errand.site.ranges() == [None, "bytes=1000-", "bytes=71000-", "bytes=71001-"]


def test_a_server_that_gives_next_to_nothing_is_left_and_what_came_is_kept(
    errand: Errand,
) -> None:
    errand.file.cut = [1000 - 2, 1, 1, 0]
    with pytest.raises(InfrastructureError) as refused:
        errand.run()
    assert len(errand.site.requests) == HASTY.tries
    assert "127.0.0.1 cannot be reached to fetch rows/a.gz" in str(refused.value)
    assert "1000 bytes of it are kept" in str(refused.value)
    assert "goes on where this one stopped" in refused.value.remedy
    assert errand.part.read_bytes() == BODY[:1000]
    errand.run()
    assert errand.site.ranges()[-1] == "bytes=1000-"
    assert errand.part.read_bytes() == BODY


def test_a_server_without_ranges_sends_it_all_again(errand: Errand) -> None:
    errand.part.write_bytes(b"x" * 1000)
    errand.file.ranges = False
    errand.run()
    assert errand.part.read_bytes() == BODY
    assert len(errand.site.requests) == 1


@pytest.mark.parametrize("begins", ["1001", "9" * 5000])
def test_a_server_that_sends_another_part_than_asked_for_is_not_believed(
    errand: Errand, begins: str
) -> None:
    errand.part.write_bytes(BODY[:1000])
    errand.file.begins = begins
    with pytest.raises(InfrastructureError, match="another part"):
        errand.run()
    assert errand.part.read_bytes() == BODY[:1000]


def test_what_was_kept_of_another_file_is_fetched_once_more(errand: Errand) -> None:
    errand.part.write_bytes(b"old" * 100)
    errand.run()
    assert errand.site.ranges() == ["bytes=300-", None]
    assert errand.part.read_bytes() == BODY


def test_a_part_longer_than_the_file_is_no_dead_end(errand: Errand) -> None:
    errand.part.write_bytes(BODY + b"more")
    errand.run()
    assert errand.part.read_bytes() == BODY


def test_a_part_that_is_whole_is_not_asked_for(errand: Errand) -> None:
    errand.part.write_bytes(BODY)
    errand.run()
    assert errand.site.requests == []


def test_wrong_bytes_are_refused_with_both_digests_and_leave_nothing(errand: Errand) -> None:
    wrong = "f" * 64
    with pytest.raises(AssetMismatchError) as refused:
        errand.run(wrong)
    assert wrong in str(refused.value)
    assert sha256(BODY) in str(refused.value)
    assert "rows/a.gz" in str(refused.value)
    assert not errand.part.exists()
    assert len(errand.site.requests) == 1


def test_wrong_bytes_in_pieces_are_not_fetched_for_ever(errand: Errand) -> None:
    errand.file.cut = [1000, None] * 3
    with pytest.raises(AssetMismatchError):
        errand.run("f" * 64)
    assert errand.site.ranges() == [None, "bytes=1000-"] * 2


def test_a_busy_server_is_asked_again(errand: Errand) -> None:
    errand.file.status = [503, 429, 200]
    errand.run()
    assert errand.part.read_bytes() == BODY
    assert [line for line in errand.said if "again" in line] == [
        "127.0.0.1: HTTP 503; asking again",
        "127.0.0.1: HTTP 429; asking again",
    ]


@pytest.mark.parametrize(
    ("status", "kind", "words"),
    [
        (404, TaskPackError, "no such file (HTTP 404)"),
        (410, TaskPackError, "no such file (HTTP 410)"),
        (401, UsageError, "does not let this host have it (HTTP 401)"),
        (403, UsageError, "does not let this host have it (HTTP 403)"),
        (500, InfrastructureError, "cannot be reached to fetch rows/a.gz (HTTP 500)"),
        (418, InfrastructureError, "answers HTTP 418"),
    ],
)
def test_a_refusal_is_one_clear_line(
    errand: Errand, status: int, kind: type[OrchError], words: str
) -> None:
    errand.file.status = [status]
    with pytest.raises(kind) as refused:
        errand.run()
    assert type(refused.value) is kind
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_redirect_is_followed_and_its_signature_never_shown(errand: Errand) -> None:
    errand.site.files["old"] = Published(
        status=[302], headers={"Location": errand.site.url("gone?signature=s3cret")}
    )
    with pytest.raises(TaskPackError) as refused:
        errand.run(url=errand.site.url("old"))
    assert "s3cret" not in str(refused.value) + refused.value.remedy
    errand.site.files["old"].headers["Location"] = errand.site.url("a.gz")
    errand.run(url=errand.site.url("old"))
    assert errand.part.read_bytes() == BODY


def test_a_circle_of_redirects_ends(errand: Errand) -> None:
    errand.site.files["old"] = Published(status=[302], headers={"Location": errand.site.url("old")})
    with pytest.raises(InfrastructureError, match=r"a.gz on more than 20 times") as refused:
        errand.run(url=errand.site.url("old"))
    assert len(errand.site.requests) == 20
    assert "task.yaml" in refused.value.remedy


@pytest.mark.parametrize("address", ["ftp://127.0.0.1/a.gz", "file:///etc/passwd"])
def test_a_redirect_to_no_web_address_is_final(errand: Errand, address: str) -> None:
    errand.site.files["old"] = Published(status=[302], headers={"Location": address})
    with pytest.raises(InfrastructureError, match=r"127.0.0.1: .*a.gz on to what is no web addr"):
        errand.run(url=errand.site.url("old"))
    assert len(errand.site.requests) == 1


def test_a_page_that_comes_with_a_redirect_is_not_read(errand: Errand) -> None:
    """It promises more than it sends: who reads it to its end never comes on."""
    headers = {"Location": errand.site.url("a.gz"), "Content-Length": "1000000"}
    errand.site.files["old"] = Published(status=[302], headers=headers)
    errand.run(url=errand.site.url("old"))
    assert errand.part.read_bytes() == BODY


def free(monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    """Let every file system have this much room left."""
    monkeypatch.setattr(
        "orchestrator.adapters.download.shutil.disk_usage", lambda _: Mock(free=room)
    )


def test_a_file_larger_than_the_disk_is_not_begun(
    errand: Errand, monkeypatch: pytest.MonkeyPatch
) -> None:
    errand.part.write_bytes(BODY[:1000])
    free(monkeypatch, len(BODY) - 1001)
    with pytest.raises(StorageFullError, match=r"255000 bytes are to come, 254999 are free"):
        errand.run()
    assert errand.part.read_bytes() == BODY[:1000]
    free(monkeypatch, len(BODY) - 1000)
    errand.run()
    assert errand.part.read_bytes() == BODY


def test_a_body_without_a_size_takes_half_of_the_room_at_most(
    errand: Errand, monkeypatch: pytest.MonkeyPatch
) -> None:
    errand.file.chunked = True
    free(monkeypatch, 2 * len(BODY) - 2)
    with pytest.raises(
        InfrastructureError, match=r"more than 255999 bytes came; .* half of what was"
    ):
        errand.run()
    assert len(errand.site.requests) == 1
    assert not errand.part.exists()
    free(monkeypatch, 2 * len(BODY))
    errand.run()
    assert errand.part.read_bytes() == BODY


def test_a_body_longer_than_its_server_said_is_not_taken(errand: Errand) -> None:
    errand.file.chunked = True
    errand.file.headers["Content-Length"] = str(len(BODY) - 1)
    with pytest.raises(
        InfrastructureError, match="more than 255999 bytes came; its server told that"
    ):
        errand.run()
    assert not errand.part.exists()


def test_nobody_listening_is_the_machines_trouble(errand: Errand) -> None:
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))  # nobody listens, and nobody else gets the port
        with pytest.raises(InfrastructureError, match=r"ConnectError\); 0 bytes"):
            errand.run(url=f"http://127.0.0.1:{mute.getsockname()[1]}/a.gz")


def test_a_server_that_falls_silent_is_not_waited_for_forever(tmp_path: Path) -> None:
    with site() as place:
        errand = Errand(place, tmp_path, Patience(tries=2, first=0.0, longest=0.0, silence=2.0))
        place.silent.set()
        with pytest.raises(InfrastructureError, match="ReadTimeout"):
            errand.run()
        assert len(place.requests) == 2


def test_an_address_that_is_none_is_the_packs_fault(errand: Errand) -> None:
    with pytest.raises(TaskPackError, match="is no address"):
        errand.run(url="http://[::x/a.gz")


def test_a_full_disk_is_said_as_one(errand: Errand, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("orchestrator.adapters.download._Part.append", full)
    with pytest.raises(StorageFullError, match="No space left"):
        errand.run()


def test_large_files_tell_how_far_they_are(errand: Errand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.adapters.download._LARGE", 1000)
    errand.run()
    tenths = [line.partition(": ")[2] for line in errand.said[1:]]
    assert tenths[-1] == "100 %"
    assert len(set(tenths)) == len(tenths) <= 10


def test_the_hosts_proxy_is_used(errand: Errand, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("http_proxy", errand.site.address)
    errand.site.files["http://files.example/a.gz"] = errand.file
    errand.run(url="http://files.example/a.gz")
    assert errand.part.read_bytes() == BODY
