"""Anthropic's models on Google's Vertex AI: the same messages under other paths.

As https://docs.anthropic.com/en/api/claude-on-vertex-ai has it: the model stands in the path, and
a version in its place in the body. Replies are the same, byte for byte.
"""

import json

from orchestrator.adapters.model_gateway.source import Ask

_VERSION = "vertex-2023-10-16"
_COUNT = "/messages/count_tokens"


def vertex_messages(ask: Ask) -> tuple[str, bytes]:
    """Return the path below the base URL, which ends in ``/publishers/anthropic``, and the body."""
    body = json.loads(ask.body)
    if ask.suffix == _COUNT:
        return "/models/count-tokens:rawPredict", ask.body
    del body["model"]
    verb = "streamRawPredict" if ask.stream else "rawPredict"
    named = {"anthropic_version": _VERSION, **body}
    return f"/models/{ask.model}:{verb}", json.dumps(named, ensure_ascii=False).encode()
