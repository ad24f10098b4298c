"""Characters that no text of others may bring to a terminal, a table or a page."""

ACTING = (
    r"\x00-\x08\x0b-\x1f\x7f"  # C0 but tab and newline, and DEL
    r"\x80-\x9f"  # C1
    r"\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # what turns the direction of text
    r"\u2028\u2029"  # line and paragraph separators that are no newline
    r"\ufeff"  # a mark of byte order, which changes how a file is read that begins with it
    r"\ud800-\udfff"  # undecodable bytes, which a lenient stream would write raw
)
"""All of them but tab and newline, as the inside of a regular expression's set."""
