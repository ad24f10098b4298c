"""One function in a daemon thread, its result or its exception in a Future."""

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

Result = TypeVar("Result")


def in_background(name: str, function: Callable[[], Result]) -> "Future[Result]":
    """Start ``function``; nothing it raises is lost, the Future carries it.

    A thread pool would do the same but for one thing: the interpreter waits for a pool's threads
    when it ends, and a supervisor that leaves its container for adoption must not wait.
    """
    future: Future[Result] = Future()

    def run() -> None:
        try:
            result = function()
        except BaseException as error:  # noqa: BLE001 - handed on, whatever it is
            future.set_exception(error)
        else:
            future.set_result(result)

    Thread(target=run, name=name, daemon=True).start()
    return future
