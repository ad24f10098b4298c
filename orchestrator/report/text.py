"""Making text of candidates, agents and task packs harmless to whoever reads it.

Nothing in such text may act on a terminal, turn the direction of a line or begin a line of its own.
"""

import re

_UNSAFE = re.compile(
    "["
    "\x00-\x08\x0b-\x1f\x7f"  # C0 but tab and newline, and DEL
    "\x80-\x9f"  # C1
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # what turns the direction of text
    "\u2028\u2029"  # line and paragraph separators that are no newline
    "\ud800-\udfff"  # undecodable bytes, which a lenient stream would write raw
    "]"
)


def clean(text: str) -> str:
    """Drop every control character (but tab and newline) and every direction override."""
    return _UNSAFE.sub("", text)


def one_line(text: str) -> str:
    """Clean ``text`` and fold its white space, so that data can never begin a line of its own."""
    return " ".join(clean(text.replace("\r", "\n")).split())
