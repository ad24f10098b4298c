"""As whom containers run."""

import os

import pytest

from orchestrator.sandbox import Users
from orchestrator.wiring import users


def _be(monkeypatch: pytest.MonkeyPatch, uid: int) -> None:
    for name in ("geteuid", "getuid", "getgid"):
        monkeypatch.setattr(os, name, lambda: uid)


def test_roots_agent_is_nobody_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    _be(monkeypatch, 0)
    assert users() == Users()


@pytest.mark.parametrize("uid", [1000, 10000, 10001])
def test_a_users_agent_is_that_user_and_its_keeper_somebody_else(
    monkeypatch: pytest.MonkeyPatch, uid: int
) -> None:
    _be(monkeypatch, uid)
    found = users()
    assert found.agent == (uid, uid)
    assert found.keeper[0] not in (0, uid)
