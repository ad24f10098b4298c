"""Whatever an agent sends and a provider answers: nothing of it ends in an error of our own."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.adapters.model_gateway.languages import LANGUAGES, Route, find
from orchestrator.adapters.model_gateway.policy import Policy
from orchestrator.adapters.model_gateway.secrets import Blotter, Vault
from orchestrator.adapters.model_gateway.shape import RefusedError, Scope
from orchestrator.adapters.model_gateway.wire import Events
from orchestrator.domain.model import Dialect
from orchestrator.ports.models import GatewaySession, ModelChoice
from tests.unit.gateway_cases import at

WORDS = """
model messages input contents content parts role type text tools tool_choice reasoning effort
output_config thinking budget_tokens generationConfig thinkingConfig thinkingLevel thinkingBudget
stream stream_options store include system image image_url url source data function function_call
functionCall functionResponse name arguments id call_id item item_id delta choices index message
usage usageMetadata prompt_tokens input_tokens output_tokens candidates response output summary
error content_block partial_json event tool_calls finish_reason stop_reason functionDeclarations
input_tokens_details cached_tokens promptFeedback
"""
KINDS = """
message reasoning function_call function_call_output item_reference text image tool_result tool_use
input_text input_image custom namespace local shell base64 document response.completed
response.output_item.done response.output_text.delta message_start content_block_start
content_block_delta message_delta message_stop error high mock-1 user
"""
NAMES = st.sampled_from(WORDS.split())
LEAF = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.sampled_from(KINDS.split()),
)
JSON = st.recursive(
    LEAF,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(NAMES, inner, max_size=6)),
    max_leaves=25,
)
BODY = st.dictionaries(NAMES, JSON, max_size=8)
_AMOUNT = st.one_of(st.sampled_from(["low", "high", "4096", 4096, 9, None]), JSON)
_THINKING = st.dictionaries(
    st.sampled_from(["thinkingBudget", "thinking_budget", "thinkingLevel", "includeThoughts"]),
    _AMOUNT,
)
ASKED = st.one_of(
    BODY,
    st.fixed_dictionaries(
        {"messages": st.just([]), "input": st.just("x"), "contents": st.just([])},
        optional={
            "reasoning": st.dictionaries(st.sampled_from(["effort", "summary"]), _AMOUNT),
            "reasoning_effort": _AMOUNT,
            "output_config": st.dictionaries(st.sampled_from(["effort", "format"]), _AMOUNT),
            "thinking": st.dictionaries(
                st.sampled_from(["budget_tokens", "type"]),
                st.one_of(_AMOUNT, st.sampled_from(["adaptive", "enabled", "disabled"])),
            ),
            "generationConfig": st.dictionaries(st.just("thinkingConfig"), _THINKING),
            "generation_config": st.dictionaries(st.just("thinking_config"), _THINKING),
        },
    ),
)
PATHS = (
    "/v1/responses",
    "/v1/responses/compact",
    "/v1/responses/input_tokens",
    "/v1/chat/completions",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1beta/models/mock-1:streamGenerateContent",
    "/v1beta/models/mock-1:countTokens",
)
EFFORTS = (
    ("reasoning_effort",),
    ("reasoning", "effort"),
    ("output_config", "effort"),
    ("thinking", "budget_tokens"),
    ("generationConfig", "thinkingConfig", "thinkingLevel"),
    ("generationConfig", "thinkingConfig", "thinkingBudget"),
)
OWN = {"": (None,), "high": (None, "high"), "4096": (None, "4096", 4096)}


def route(path: str) -> Route:
    return find("POST", path, tuple(Dialect))


@given(path=st.sampled_from(PATHS), body=ASKED, effort=st.sampled_from(["", "high", "4096"]))
def test_a_request_passes_or_is_refused_in_words(
    path: str, body: dict[str, Any], effort: str
) -> None:
    choice = ModelChoice("mock/mock-1", "mock-1", effort, tuple(Dialect), "")
    session = GatewaySession("0" * 32, choice, Path("unused"), (0, 0))
    raw = json.dumps({"model": "mock-1", **body}).encode()
    try:
        passed = Policy(session).hold(route(path), raw, {"alt": "sse"}, {}, Scope())
    except RefusedError:
        return
    sent = json.loads(passed.sent)
    assert isinstance(sent, dict)
    assert passed.model == "mock-1"
    if not path.endswith(("count_tokens", "input_tokens", ":countTokens")):
        assert [at(sent, place) for place in EFFORTS if at(sent, place) not in OWN[effort]] == []


@given(dialect=st.sampled_from(list(Dialect)), events=st.lists(BODY, max_size=6), last=BODY)
def test_a_reply_is_read_whatever_it_holds(
    dialect: Dialect, events: list[dict[str, Any]], last: dict[str, Any]
) -> None:
    collector = LANGUAGES[dialect].collector()
    for event in events:
        collector.event(event)
    collector.whole(last)
    assert collector.estimate(100).tokens > 0
    assert collector.usage is None or collector.usage.tokens >= 0
    assert all(isinstance(call.arguments, str) for call in collector.reply.calls)


@given(
    events=st.lists(st.text(alphabet="abc: \u00e9", min_size=1, max_size=20), max_size=5),
    cuts=st.lists(st.integers(0, 200), max_size=8),
    end=st.sampled_from(["\n\n", "\r\n\r\n"]),
)
def test_events_are_the_same_however_their_bytes_arrive(
    events: list[str], cuts: list[int], end: str
) -> None:
    data = "".join(f"event: x{end[: len(end) // 2]}data: {event}{end}" for event in events).encode()
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    reader, found = Events(), []
    for start, stop in pairwise(places):
        found += reader.feed(data[start:stop])
    assert found == [event.encode() for event in events]


@given(
    pieces=st.lists(st.sampled_from([b"sk-", b"planted", b"-0123", b"s", b"\n", b"x"]), max_size=12)
)
def test_no_secret_leaves_a_blotter_and_nothing_else_is_changed(pieces: list[bytes]) -> None:
    secret = b"sk-planted-0123"
    blotter = Blotter(Vault([secret.decode()]))
    out = b"".join(blotter.feed(piece) for piece in pieces) + blotter.rest()
    assert out == b"".join(pieces).replace(secret, b"*" * len(secret))
