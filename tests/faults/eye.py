"""Watch the engine from the outside: which container was started for which run, and how often."""

import threading
from collections import Counter
from typing import Any

import docker

from orchestrator.sandbox import INSTANCE_LABEL, PHASE_LABEL, RUN_LABEL


class Eye:
    """Follows the engine's events; kept open for a whole campaign, for the engine forgets them."""

    def __init__(self) -> None:
        self._client = docker.from_env()
        self._events = self._client.events(
            decode=True, filters={"type": "container", "event": "start", "label": RUN_LABEL}
        )
        self._starts: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        for event in self._events:
            labels = event["Actor"]["Attributes"]
            with self._lock:
                self._starts[labels[RUN_LABEL], labels.get(PHASE_LABEL, "")] += 1

    def starts(self, run_id: str, phase: str) -> int:
        """Count the starts of a run's containers of one phase."""
        with self._lock:
            return self._starts[run_id, phase]

    def containers(self, instance: str) -> list[Any]:
        """List what the engine holds for a runs folder, ended ones too."""
        return list(
            self._client.containers.list(
                all=True, filters={"label": f"{INSTANCE_LABEL}={instance}"}, ignore_removed=True
            )
        )

    def remove(self, instance: str) -> str:
        """Be somebody else who removes every container of a runs folder."""
        found = self.containers(instance)
        for container in found:
            container.remove(force=True, v=True)
        return f"removed {len(found)} containers"

    def close(self) -> None:
        """Stop following."""
        self._events.close()
        self._client.close()
