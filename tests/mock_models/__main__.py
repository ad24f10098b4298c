"""A provider for trying agents without a key: ``python -m tests.mock_models``.

It speaks all four dialects, and whatever it is asked it goes on with the next step of the digits
task's ``demo.yaml``; after the last it begins anew.
"""

import sys
import threading
from itertools import cycle

import yaml

from orchestrator.config import bundled
from tests.mock_models.researcher import Researcher
from tests.mock_models.server import MockModels

TASK, PORT = "digits_class0", 8411


def main() -> None:
    """Serve until interrupted."""
    script = yaml.safe_load((bundled("tasks") / TASK / "demo.yaml").read_text(encoding="utf-8"))
    steps = [step["run"] for step in script if "run" in step]
    with MockModels(Researcher(cycle(steps)), port=PORT) as models:
        print("in orch.toml:\n\n[providers.mock]")
        print(f'base_url = "{models.base_url}"')
        print('dialects = ["responses", "chat", "messages", "gemini"]\nauth = "none"\n')
        print("then: orch explore", TASK, "--agent NAME --model mock/any", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
