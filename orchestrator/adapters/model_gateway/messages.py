"""Anthropic Messages, as https://docs.anthropic.com/en/api/messages has it."""

import json
import re
from collections.abc import Mapping
from typing import Any, ClassVar

from typing_extensions import override

from orchestrator.adapters.model_gateway.language import (
    Collector,
    Endpoint,
    ErrorForm,
    Language,
    Verb,
    listing,
    mapping,
    pin,
    whole_number,
)
from orchestrator.adapters.model_gateway.shape import (
    Rule,
    Scope,
    allowed_with,
    anything,
    by,
    each,
    fields,
    flag,
    left_out,
    never,
    number,
    or_none,
    plain,
    text,
    text_or,
)
from orchestrator.domain.model import Dialect, Refusal
from orchestrator.domain.task import ProviderTool

_DATA = fields(plain("type media_type data"))
_TEXT = fields(plain("type text cache_control citations"))
_IMAGE = fields(plain("type cache_control") | {"source": by("type", {"base64": _DATA})})
_DOCUMENT = fields(
    plain("type title context citations cache_control")
    | {
        "source": by(
            "type",
            {
                "base64": _DATA,
                "text": _DATA,
                "content": fields(
                    {
                        "type": anything,
                        "content": text_or(each(by("type", {"text": _TEXT, "image": _IMAGE}))),
                    }
                ),
            },
        )
    }
)
_FOUND = fields(
    plain("type source title citations cache_control")
    | {"content": each(by("type", {"text": _TEXT}))}
)
_TOOLS_FOUND = fields(
    plain("type tool_use_id cache_control")
    | {"content": fields(plain("type tool_references error_code error_message"))}
)
_RESULT_PART = by(
    "type",
    {
        "text": _TEXT,
        "image": _IMAGE,
        "document": _DOCUMENT,
        "search_result": _FOUND,
        "tool_reference": fields(plain("type tool_name cache_control")),
    },
)
_SERVER_TOOL = by(
    "name",
    {
        "tool_search_tool_regex": anything,
        "tool_search_tool_bm25": anything,
        "web_search": allowed_with(ProviderTool.WEB),
        "web_fetch": allowed_with(ProviderTool.WEB),
        "code_execution": allowed_with(ProviderTool.CODE),
        "bash_code_execution": allowed_with(ProviderTool.CODE),
        "text_editor_code_execution": allowed_with(ProviderTool.CODE),
    },
)
_BLOCK = by(
    "type",
    {
        "text": _TEXT,
        "image": _IMAGE,
        "document": _DOCUMENT,
        "search_result": _FOUND,
        "thinking": fields(plain("type thinking signature")),
        "redacted_thinking": fields(plain("type data")),
        "compaction": fields(plain("type content cache_control")),
        "tool_use": fields(plain("type id name input cache_control caller")),
        "tool_result": fields(
            plain("type tool_use_id is_error cache_control")
            | {"content": text_or(each(_RESULT_PART))}
        ),
        "server_tool_use": _SERVER_TOOL,
        "tool_search_tool_result": _TOOLS_FOUND,
        "web_search_tool_result": allowed_with(ProviderTool.WEB),
        "web_fetch_tool_result": allowed_with(ProviderTool.WEB),
        "code_execution_tool_result": allowed_with(ProviderTool.CODE),
        "bash_code_execution_tool_result": allowed_with(ProviderTool.CODE),
        "text_editor_code_execution_tool_result": allowed_with(ProviderTool.CODE),
        "mcp_tool_use": allowed_with(ProviderTool.CONNECTORS),
        "mcp_tool_result": allowed_with(ProviderTool.CONNECTORS),
    },
)
_CLIENT_TOOL = fields(
    plain(
        "type name description input_schema cache_control strict eager_input_streaming "
        "defer_loading input_examples allowed_callers max_characters"
    )
)
_TOOL = by(
    "type",
    {
        "custom": _CLIENT_TOOL,
        "bash": _CLIENT_TOOL,
        "text_editor": _CLIENT_TOOL,
        "memory": _CLIENT_TOOL,
        "tool_search_tool_regex": _CLIENT_TOOL,
        "tool_search_tool_bm25": _CLIENT_TOOL,
        "web_search": allowed_with(ProviderTool.WEB),
        "web_fetch": allowed_with(ProviderTool.WEB),
        "code_execution": allowed_with(ProviderTool.CODE),
        "computer": allowed_with(ProviderTool.COMPUTER),
        "mcp_toolset": allowed_with(ProviderTool.CONNECTORS),
    },
    missing="custom",
)
_KEPT_THERE = never("nothing kept at the provider passes")

_COUNTED: Mapping[str, Rule] = {
    **plain("model tool_choice output_format context_management cache_control"),
    "thinking": or_none(fields({"type": text, "budget_tokens": number, "display": anything})),
    "output_config": or_none(fields({"effort": text, "format": anything})),
    "system": text_or(each(by("type", {"text": _TEXT}))),
    "messages": each(fields({"role": anything, "content": text_or(each(_BLOCK))})),
    "tools": or_none(each(_TOOL)),
    "mcp_servers": allowed_with(ProviderTool.CONNECTORS),
    "container": _KEPT_THERE,
}
_BODY: Mapping[str, Rule] = {
    **_COUNTED,
    **plain("max_tokens temperature top_p top_k", number),
    "stream": flag,
    "stop_sequences": anything,
    "metadata": left_out,
    "service_tier": left_out,
    "speed": left_out,
    "inference_geo": left_out,
}

_FORBIDDEN_BETAS = (
    "advanced-tool-use",
    "code-execution",
    "computer-use",
    "files-api",
    "managed-agents",
    "mcp-client",
    "oauth",
    "skills",
    "web-fetch",
    "web-search",
)
"""Abilities that come with a header; the tables hold back their fields already."""

_ENDED_BY_ERROR = "error"
_BUDGET_AT = ("thinking", "budget_tokens")
_ADAPTIVE = "adaptive"
_THOUGHTS = "clear_thinking"


def _without_thinking(body: dict[str, Any], scope: Scope) -> None:
    """Leave thinking to the provider, and with it the edits that it only takes beside it."""
    if body.pop("thinking", None) is not None:
        scope.drop("thinking")
    management = body.get("context_management")
    edits = listing(mapping(management).get("edits"))
    others = [edit for edit in edits if not _edits_thoughts(edit)]
    if len(others) == len(edits):
        return
    scope.drop(f"context_management.edits: {_THOUGHTS}")
    body["context_management"] = {**mapping(management), "edits": others}
    if not others:
        del body["context_management"]


def _edits_thoughts(edit: object) -> bool:
    return str(mapping(edit).get("type")).startswith(_THOUGHTS)


class MessagesCollector(Collector):
    """Reads the events of a message, and whole ones."""

    @override
    def event(self, value: Mapping[str, Any]) -> None:
        kind, index = value.get("type"), value.get("index")
        if kind == "message_start":
            message = mapping(value.get("message"))
            self.model = str(message.get("model") or "")
            self._usage(mapping(message.get("usage")))
        elif kind == "content_block_start":
            self._block(index, mapping(value.get("content_block")), whole=False)
        elif kind == "content_block_delta":
            delta = mapping(value.get("delta"))
            self._say(delta.get("text"))
            self._think(delta.get("thinking"))
            if "partial_json" in delta:
                self._call(index, "", delta["partial_json"])
        elif kind == "message_delta":
            self.stop = str(mapping(value.get("delta")).get("stop_reason") or "")
            self._usage(mapping(value.get("usage")))
        elif kind == "message_stop":
            self.finished = True
        elif kind == "error":
            self.stop, self.finished = _ENDED_BY_ERROR, True

    @override
    def whole(self, value: Mapping[str, Any]) -> None:
        self.model = str(value.get("model") or "")
        self.stop = str(value.get("stop_reason") or "")
        for index, block in enumerate(map(mapping, listing(value.get("content")))):
            self._block(index, block, whole=True)
        self._usage(mapping(value.get("usage")))
        self.finished = True

    def _block(self, index: object, block: Mapping[str, Any], *, whole: bool) -> None:
        self._say(block.get("text"))
        self._think(block.get("thinking"))
        if str(block.get("type")) in {"tool_use", "server_tool_use", "mcp_tool_use"}:
            given = json.dumps(block.get("input")) if whole else ""
            self._call(index, block.get("name"), given)

    def _usage(self, usage: Mapping[str, Any]) -> None:
        """Count; what is read from or written to the cache is not in ``input_tokens`` there."""
        if "input_tokens" in usage:
            read = whole_number(usage.get("cache_read_input_tokens"))
            written = whole_number(usage.get("cache_creation_input_tokens"))
            asked = whole_number(usage["input_tokens"]) + read + written
            self._count(input=asked, cached=read, cache_written=written)
        self._count(output=usage.get("output_tokens"))


class Messages(Language):
    """The dialect's tables."""

    dialect = Dialect.MESSAGES
    endpoints: ClassVar = (
        Endpoint(
            "POST",
            re.compile(r"/v1/messages"),
            Verb.GENERATE,
            fields(_BODY),
            query={"beta": frozenset({"true"})},
            to="/messages",
        ),
        Endpoint(
            "POST",
            re.compile(r"/v1/messages/count_tokens"),
            Verb.COUNT,
            fields(_COUNTED),
            query={"beta": frozenset({"true"})},
            to="/messages/count_tokens",
        ),
    )
    errors: ClassVar = {
        Refusal.UNKNOWN_PATH: ErrorForm(404, "not_found_error"),
        Refusal.MALFORMED: ErrorForm(400, "invalid_request_error"),
        Refusal.TOO_LARGE: ErrorForm(413, "request_too_large"),
        Refusal.NOT_ALLOWED: ErrorForm(400, "invalid_request_error"),
        Refusal.OTHER_MODEL: ErrorForm(404, "not_found_error"),
        Refusal.BUDGET: ErrorForm(400, "invalid_request_error"),
        Refusal.BUSY: ErrorForm(429, "rate_limit_error"),
        Refusal.UPSTREAM: ErrorForm(502, "api_error"),
        Refusal.NOT_RECORDED: ErrorForm(400, "invalid_request_error"),
    }
    effort_at = ("output_config", "effort")
    headers = ("anthropic-version", "anthropic-beta")

    @override
    def collector(self) -> Collector:
        return MessagesCollector()

    @override
    def error(self, form: ErrorForm, message: str) -> dict[str, Any]:
        return {"type": "error", "error": {"type": form.word, "message": message}}

    @override
    def error_event(self, form: ErrorForm, message: str) -> bytes:
        return b"event: error\ndata: " + json.dumps(self.error(form, message)).encode() + b"\n\n"

    @override
    def items(self, body: Mapping[str, Any]) -> list[Any]:
        return listing(body.get("messages"))

    @override
    def pin_effort(
        self, body: dict[str, Any], effort: str, scope: Scope, *, add: bool = True
    ) -> None:
        """Hold a word to ``output_config.effort``, a number to the budget of thinking.

        Beside a word, or where the provider decides, a budget would be an effort of the agent's
        own, and so would none at all: only thinking that the model measures itself passes.
        """
        if effort.isdecimal():
            pin(body, self.effort_at, "", scope)
            pin(body, _BUDGET_AT, int(effort), scope)
            body["thinking"]["type"] = "enabled"
            return
        super().pin_effort(body, effort, scope, add=add)
        pin(body, _BUDGET_AT, "", scope)
        if mapping(body.get("thinking")).get("type") != _ADAPTIVE:
            _without_thinking(body, scope)

    @override
    def filter_header(self, name: str, value: str) -> str | None:
        if name != "anthropic-beta":
            return value
        betas = (beta.strip() for beta in value.split(","))
        return ",".join(beta for beta in betas if beta and not beta.startswith(_FORBIDDEN_BETAS))
