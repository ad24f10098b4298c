"""Parts of the gateway by themselves."""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator import wiring
from orchestrator.adapters.fake_clock import FakeClock
from orchestrator.adapters.model_gateway.choosing import choose
from orchestrator.adapters.model_gateway.fingerprint import normal
from orchestrator.adapters.model_gateway.gateway import socket_folder
from orchestrator.adapters.model_gateway.limiter import FOLDER, KeyLimiter
from orchestrator.adapters.model_gateway.outage import Outage
from orchestrator.adapters.model_gateway.pace import Pace
from orchestrator.adapters.model_gateway.secrets import Blotter, Vault
from orchestrator.adapters.system_clock import SystemClock
from orchestrator.config import Settings
from orchestrator.domain.model import (
    Dialect,
    ModelName,
    Price,
    Usage,
    cost_of,
    read_providers,
)
from orchestrator.domain.task import Budget
from orchestrator.errors import InfrastructureError, UsageError

PLANTED = "sk-planted-0123456789abcdef"


def test_a_secret_is_blotted_out_however_it_is_spelled() -> None:
    value = "abc/def+ghi=0123"
    vault = Vault([value])
    for form in (value, "abc\\/def+ghi=0123", "abc%2Fdef%2Bghi%3D0123"):
        cleaned = vault.clean(b"x" + form.encode() + b"y")
        assert cleaned == b"x" + b"*" * len(form) + b"y"


def test_a_short_word_is_no_secret() -> None:
    assert Vault(["none"]).clean(b"none of this") == b"none of this"


def test_a_blotter_holds_nothing_back_that_is_no_beginning_of_a_secret() -> None:
    blotter = Blotter(Vault([PLANTED]))
    assert blotter.feed(b"data: x\n\n") == b"data: x\n\n"
    assert blotter.feed(b"ends in sk-pl") == b"ends in "
    assert blotter.feed(b"ain word") == b"sk-plain word"
    assert blotter.feed(PLANTED[:20].encode()) == b""
    assert blotter.feed(PLANTED[20:].encode() + b"!") == b"*" * len(PLANTED) + b"!"
    assert blotter.feed(b"s") == b""
    assert blotter.rest() == b"s"


def test_cost_counts_what_was_cached_by_its_own_price() -> None:
    usage = Usage(input=1000, cached=600, cache_written=100, output=200)
    price = Price(input=10, output=50, cached=1, cache_write=12.5)
    expected = (300 * 10 + 600 * 1 + 100 * 12.5 + 200 * 50) / 1e6
    assert cost_of(usage, price) == pytest.approx(expected)
    assert cost_of(usage, Price(input=10, output=50)) == pytest.approx(0.02)
    assert cost_of(usage, None) == 0


def test_an_outage_counts_from_the_first_failure_once_a_probe_has_failed() -> None:
    clock = FakeClock()
    outage = Outage(clock, limit=100)
    outage.suspect()
    clock.advance(30)
    assert outage.seconds() == 0
    outage.prove("HTTP 503")
    assert outage.seconds() == 30
    clock.advance(30)
    outage.suspect()
    assert outage.seconds() == 60
    outage.over()
    clock.advance(1000)
    assert outage.seconds() == 60
    outage.suspect()
    clock.advance(50)
    outage.over()
    assert outage.seconds() == 60
    assert outage.failed() is None


def test_outages_add_up_and_one_that_is_over_fails_nothing() -> None:
    clock = FakeClock()
    outage = Outage(clock, limit=100)
    for _ in range(2):
        outage.suspect()
        outage.prove("ConnectError")
        clock.advance(60)
        said = outage.failed()
        outage.over()
    assert said is not None
    assert "120 s" in said
    assert "ConnectError" in said
    assert outage.failed() is None


def limited(folder: Path, act: Callable[[KeyLimiter], Any], slots: int = 2) -> Any:
    async def main() -> Any:
        limiter = KeyLimiter(folder, PLANTED, slots, SystemClock())
        limiter.prepare()
        return await act(limiter)

    return asyncio.run(main())


def test_a_slot_of_a_dead_holder_is_free_at_once(tmp_path: Path) -> None:
    holder = f"""
import asyncio, sys
from pathlib import Path
from orchestrator.adapters.model_gateway.limiter import KeyLimiter
from orchestrator.adapters.system_clock import SystemClock
async def main():
    limiter = KeyLimiter(Path({str(tmp_path)!r}), {PLANTED!r}, 1, SystemClock())
    limiter.prepare()
    async with limiter.slot():
        print("held", flush=True)
        await asyncio.to_thread(sys.stdin.read)
asyncio.run(main())
"""
    child = subprocess.Popen(
        [sys.executable, "-c", holder],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"

    async def take(limiter: KeyLimiter) -> bool:
        async def waits() -> None:
            async with limiter.slot():
                pass

        waiting = asyncio.create_task(waits())
        done, _ = await asyncio.wait([waiting], timeout=0.3)
        assert not done
        child.kill()
        await asyncio.wait_for(waiting, 30)
        return True

    assert limited(tmp_path, take, slots=1)
    child.communicate()
    assert all(PLANTED not in str(file) for file in tmp_path.rglob("*"))


def test_a_pause_ends_and_is_not_made_shorter(tmp_path: Path) -> None:
    clock = FakeClock()

    async def main() -> None:
        limiter = KeyLimiter(tmp_path, PLANTED, 1, clock)
        other = KeyLimiter(tmp_path, PLANTED, 1, clock)
        limiter.prepare()
        limiter.pause(30)
        other.pause(10)
        assert other.paused() == 30
        clock.advance(31)
        assert other.paused() == 0
        limiter.pause(30)
        clock.reboot()
        assert other.paused() == 0
        (file,) = (tmp_path / "model-keys").glob("*.pause")
        for until in ("1e999", "1" + "0" * 100, '"x"', "[]"):
            file.write_text(f'{{"boot": "{clock.boot_id()}", "until_ns": {until}}}')
            assert other.paused() == 0
        file.write_text("half a rec")
        assert other.paused() == 0

    asyncio.run(main())


OTHER_USER = f"""
import asyncio, os, sys
from pathlib import Path
from orchestrator.adapters.model_gateway.limiter import FOLDER, KeyLimiter
from orchestrator.adapters.system_clock import SystemClock
host, clock = Path(sys.argv[1]), SystemClock()
limiter = KeyLimiter(host, {PLANTED!r}, 2, clock)
asyncio.run(asyncio.sleep(0))
clock.boot_id()  # what is imported late, nobody may be unable to read
os.setuid(65534)
limiter.prepare()
try:
    os.listdir(host / FOLDER)
except PermissionError:
    print("hidden", flush=True)
async def main():
    async with limiter.slot():
        limiter.pause(30)
        print("held", flush=True)
        sys.stdin.read()
asyncio.run(main())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="being two users takes root")
def test_users_with_a_key_share_its_slots_and_others_find_nothing() -> None:
    with tempfile.TemporaryDirectory() as name:
        host = Path(name)
        host.chmod(0o755)

        async def hold(limiter: KeyLimiter) -> None:
            async with limiter.slot():
                child = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-c", OTHER_USER, name),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                )
                assert child.stdout is not None
                assert await child.stdout.readline() == b"hidden\n"
                assert await child.stdout.readline() == b"held\n"
                slots = sorted((host / FOLDER).glob("*.slot"))
                assert [slot.stat().st_uid for slot in slots] == [0, 65534]
                assert not any(slot.stat().st_mode & 0o022 for slot in slots)
                assert limiter.paused() > 0
                await child.communicate(b"")

        limited(host, hold)


PROVIDERS = read_providers(
    {
        "mine": {
            "base_url": "http://models.example/v1",
            "dialects": ["chat"],
            "key_variable": "MY_KEY",
            "models": ["alpha-1", "beta-2"],
            "prices": {"gamma-3": {"input": 1, "output": 2}},
        },
        "own": {"base_url": "http://127.0.0.1:8000/v1", "dialects": ["chat"], "auth": "none"},
    }
)


@pytest.mark.parametrize(
    ("model", "budget", "message", "remedy"),
    [
        ("alpha-1", Budget(), "not of the form PROVIDER/NAME", "mine/..."),
        ("/x", Budget(), "not of the form", "PROVIDER/MODEL"),
        ("mein/alpha-1", Budget(), "no provider 'mein'", "mine"),
        ("mine/alfa-1", Budget(), "no model 'alfa-1'", "alpha-1"),
        ("mine/alpha-1", Budget(), "the variable MY_KEY is not set", "MY_KEY"),
        ("anthropic/any", Budget(), "the variable ANTHROPIC_API_KEY is not set", "export"),
        ("mine/alpha-1", Budget(cost=5), "has no price", 'prices."alpha-1"'),
    ],
)
def test_what_cannot_be_asked_is_said_before_anything_starts(
    model: str, budget: Budget, message: str, remedy: str
) -> None:
    with pytest.raises(UsageError, match=message) as refused:
        choose(PROVIDERS, {}.get, model, "", budget)
    assert remedy in refused.value.remedy


def test_a_model_that_can_be_asked_is_chosen() -> None:
    keys = {"MY_KEY": PLANTED}
    priced = choose(PROVIDERS, keys.get, "mine/gamma-3", "high", Budget(cost=5))
    assert (priced.name, priced.effort, priced.dialects) == ("gamma-3", "high", (Dialect.CHAT,))
    local = choose(PROVIDERS, keys.get, "own/org/any:7b", "", Budget(cost=5))
    assert (local.name, local.upstream) == ("org/any:7b", "http://127.0.0.1:8000/v1")
    assert PLANTED not in repr((priced, local))


def test_a_models_name_may_hold_slashes() -> None:
    name = ModelName.parse("router/org/model")
    assert (name.provider, name.name, str(name)) == ("router", "org/model", "router/org/model")


def settings(home: Path) -> Settings:
    return Settings.from_environment(
        {"HOME": str(home), "ORCH_HOME": str(home), "ORCH_HOST": str(home / "host")}
    )


SERVER = 'base_url = "http://127.0.0.1:8000/v1"\ndialects = ["chat"]\nauth = "none"\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[providers.x]\nbase_url = 1\n", r"providers\.x\.base_url"),
        ("[providers.openai]\nkey = 'sk-1'\n", r"providers\.openai\.key"),
        ("[providers]\nx = 3\n", r"providers\.x"),
        (f"[providers.x]\n{SERVER}proxy = 'socks5://x:1'\n", r"providers\.x\.proxy"),
        ("providers = 3\n", "providers"),
        (f"[providers.local]\n{SERVER}", r"providers\.local.*call the provider something else"),
        (f"[providers.recorded]\n{SERVER}", r"providers\.recorded.*is orch's own"),
        ("[providers.x\n", "orch.toml"),
    ],
)
def test_a_faulty_section_is_named(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "orch.toml").write_text(text)
    with pytest.raises(UsageError, match=words):
        wiring.model_gateway(settings(tmp_path))


def test_a_section_adds_to_a_usual_provider(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", PLANTED)
    section = "[providers.openai.prices.gpt-x]\ninput = 1\noutput = 8\n"
    (tmp_path / "orch.toml").write_text(section)
    gateway = wiring.model_gateway(settings(tmp_path))
    chosen = gateway.choose("openai/gpt-x", "high", Budget(cost=1))
    assert chosen.upstream == "https://api.openai.com/v1"
    with pytest.raises(UsageError, match="no model"):
        gateway.choose("openai/gpt-y", "", Budget())


def test_a_socket_lies_in_a_short_folder_whatever_the_host_folder_is(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 120)
    folder = socket_folder(deep)
    assert len(str(folder)) < 90
    assert not str(folder).startswith(str(deep))
    folder.rmdir()


def test_no_place_for_a_socket_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / ("y" * 120)))
    with pytest.raises(InfrastructureError, match="no place for a socket"):
        socket_folder(tmp_path / ("x" * 120))


def test_a_command_without_a_model_imports_nothing_of_the_gateway() -> None:
    look = (
        "import json, sys, orchestrator.cli.app, orchestrator.cli.run, orchestrator.wiring,"
        " orchestrator.phases.explore, orchestrator.pipeline.drive;"
        "print(json.dumps([m for m in ('httpx', 'starlette', 'uvicorn', 'stamina', 'asyncio')"
        " if m in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []


def test_what_comes_too_fast_gets_its_turn_later(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    async def main() -> None:
        pace = Pace(per_second=0.01, at_once=2)
        for weight in (1, 1, 1, 2, 1):
            await pace.turn(weight)

    monkeypatch.setattr("orchestrator.adapters.model_gateway.pace.asyncio.sleep", sleep)
    asyncio.run(main())
    assert [round(wait, -2) for wait in waits] == [100, 300, 400]


def test_long_text_is_taken_as_it_is_and_short_text_without_its_numbers() -> None:
    one, other = ({"a": f"took {n} s" + "x" * 2_000_000, "b": f"took {n} s"} for n in (1, 2))
    assert normal(one)["b"] == normal(other)["b"] == "took # s"
    assert normal(one)["a"] == one["a"]
