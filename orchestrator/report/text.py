"""Making text of candidates, agents and task packs harmless to whoever reads it.

Nothing in such text may act on a terminal, turn the direction of a line or begin a line of its own.
"""

import re

from orchestrator.domain.text import ACTING

_UNSAFE = re.compile(f"[{ACTING}]")


def clean(text: str) -> str:
    """Drop every control character (but tab and newline) and every direction override."""
    return _UNSAFE.sub("", text)


def one_line(text: str) -> str:
    """Clean ``text`` and fold its white space, so that data can never begin a line of its own."""
    return " ".join(clean(text.replace("\r", "\n")).split())
