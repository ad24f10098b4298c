"""Find the code of an answer: the last block that defines ``unlearn``, else the last of Python."""

import re

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})[ \t]*([^\s`]*)[^`]*")
_PYTHON = {"", "py", "py3", "python", "python3", "torch", "pytorch"}
_DEFINES = re.compile(r"^[ \t]*def[ \t]+unlearn\b", re.MULTILINE)


def split(answer: str) -> tuple[list[tuple[str, str]], str]:
    """Return the fenced blocks, each as ``(language, text)``, and the prose around them.

    A block that is not closed ends with the answer.
    """
    blocks: list[tuple[str, str]] = []
    prose: list[str] = []
    inside: list[str] | None = None
    mark = language = ""
    for line in answer.splitlines():
        found = _FENCE.fullmatch(line)
        if inside is None and found:
            (mark, language), inside = found.groups(), []
        elif inside is None:
            prose.append(line)
        elif found and found[1].startswith(mark) and not found[2]:
            blocks.append((language.lower(), "\n".join(inside) + "\n"))
            inside = None
        else:
            inside.append(line)
    if inside is not None:
        blocks.append((language.lower(), "\n".join(inside) + "\n"))
    return blocks, "\n".join(prose)


def code_of(answer: str) -> str | None:
    """Return the code that is run and judged; None where there is none."""
    python = [text for language, text in split(answer)[0] if language in _PYTHON]
    defining = [text for text in python if _DEFINES.search(text)]
    return next(reversed(defining or python), None)
