"""So many things a second, and some at once: an agent that hurries waits, and the host does not."""

import asyncio

PER_SECOND = 50.0
AT_ONCE = 200


class Pace:
    """Gives turns. Whatever comes too fast gets its turn later, in the order in which it came."""

    def __init__(self, per_second: float = PER_SECOND, at_once: float = AT_ONCE) -> None:
        self._interval = 1 / per_second
        self._slack = at_once / per_second
        self._full_at = 0.0

    async def turn(self, weight: float = 1) -> None:
        """Wait for a turn; ``weight`` is how many ordinary ones it counts as."""
        now = asyncio.get_running_loop().time()
        self._full_at = max(self._full_at, now - self._slack) + weight * self._interval
        if self._full_at > now:
            await asyncio.sleep(self._full_at - now)
