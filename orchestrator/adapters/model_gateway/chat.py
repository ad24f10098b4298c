"""OpenAI Chat Completions, as https://platform.openai.com/docs/api-reference/chat has it.

Servers of open models (vLLM, llama.cpp, Ollama) speak it with a few fields of their own.
"""

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
)
from orchestrator.adapters.model_gateway.shape import (
    Rule,
    allowed_with,
    always,
    anything,
    by,
    carried,
    each,
    fields,
    flag,
    inline,
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

_NO_ID = never("files kept at the provider do not pass; carry the data in the request")

AUDIO = fields({"type": anything, "input_audio": fields({"data": carried, "format": anything})})

_PART = by(
    "type",
    {
        "text": fields(plain("type text cache_control")),
        "refusal": fields(plain("type refusal")),
        "image_url": fields(
            plain("type cache_control") | {"image_url": fields({"url": inline, "detail": anything})}
        ),
        "input_audio": AUDIO,
        "file": fields(
            {
                "type": anything,
                "file": fields({"file_data": inline, "filename": anything, "file_id": _NO_ID}),
            }
        ),
    },
)
_CONTENT = text_or(each(_PART))

_MESSAGE = fields(
    plain(
        "role name refusal tool_calls tool_call_id function_call reasoning_content reasoning "
        "reasoning_details cache_control"
    )
    | {"content": _CONTENT}
)

_TOOL = by(
    "type",
    {
        "function": fields(plain("type function cache_control")),
        "custom": fields(plain("type custom")),
    },
)

_BODY: Mapping[str, Rule] = {
    **plain("model stop logit_bias response_format tool_choice functions function_call"),
    **plain(
        "temperature top_p top_k min_p n max_tokens max_completion_tokens presence_penalty "
        "frequency_penalty repetition_penalty top_logprobs seed",
        number,
    ),
    **plain("stream logprobs parallel_tool_calls", flag),
    **plain("reasoning_effort verbosity prompt_cache_key", text),
    "stream_options": or_none(
        fields(plain("include_usage include_obfuscation continuous_usage_stats", flag))
    ),
    "messages": each(_MESSAGE),
    "tools": or_none(each(_TOOL)),
    "store": always(fixed=False),
    "web_search_options": allowed_with(ProviderTool.WEB),
    "user": left_out,
    "metadata": left_out,
    "safety_identifier": left_out,
    "service_tier": left_out,
}

OPENAI_ERRORS: Mapping[Refusal, ErrorForm] = {
    Refusal.UNKNOWN_PATH: ErrorForm(404, "unknown_url"),
    Refusal.MALFORMED: ErrorForm(400, "invalid_request"),
    Refusal.TOO_LARGE: ErrorForm(413, "request_too_large"),
    Refusal.NOT_ALLOWED: ErrorForm(403, "not_allowed"),
    Refusal.OTHER_MODEL: ErrorForm(404, "model_not_found"),
    Refusal.BUDGET: ErrorForm(403, "budget_exceeded"),
    Refusal.BUSY: ErrorForm(429, "rate_limit_exceeded"),
    Refusal.UPSTREAM: ErrorForm(502, "provider_unavailable"),
    Refusal.NOT_RECORDED: ErrorForm(409, "not_recorded"),
}


def openai_error(form: ErrorForm, message: str) -> dict[str, Any]:
    """Say ``message`` as OpenAI's servers do."""
    kind = "server_error" if form.status >= 500 else "invalid_request_error"  # noqa: PLR2004
    return {"error": {"message": message, "type": kind, "param": None, "code": form.word}}


class ChatCollector(Collector):
    """Reads chunks, which hold a ``delta``, and whole completions, which hold a ``message``."""

    @override
    def event(self, value: Mapping[str, Any]) -> None:
        self._take(value, "delta")

    @override
    def whole(self, value: Mapping[str, Any]) -> None:
        self._take(value, "message")
        self.finished = True

    def _take(self, value: Mapping[str, Any], holder: str) -> None:
        self.model = self.model or str(value.get("model") or "")
        if value.get("usage"):
            self._usage(mapping(value["usage"]))
        for choice in map(mapping, listing(value.get("choices"))):
            said = mapping(choice.get(holder))
            self._say(said.get("content"))
            self._think(said.get("reasoning_content") or said.get("reasoning"))
            self._tools(choice.get("index"), said)
            if choice.get("finish_reason"):
                self.stop = str(choice["finish_reason"])

    def _tools(self, choice: object, said: Mapping[str, Any]) -> None:
        for position, call in enumerate(map(mapping, listing(said.get("tool_calls")))):
            made = mapping(call.get("function")) or mapping(call.get("custom"))
            key = (str(choice), str(call.get("index", position)))
            self._call(key, made.get("name"), made.get("arguments") or made.get("input"))

    def _usage(self, usage: Mapping[str, Any]) -> None:
        asked = mapping(usage.get("prompt_tokens_details"))
        answered = mapping(usage.get("completion_tokens_details"))
        self._count(
            input=usage.get("prompt_tokens"),
            output=usage.get("completion_tokens"),
            cached=asked.get("cached_tokens"),
            reasoning=answered.get("reasoning_tokens"),
        )


class Chat(Language):
    """The dialect's tables."""

    dialect = Dialect.CHAT
    endpoints: ClassVar = (
        Endpoint(
            "POST",
            re.compile(r"/v1/chat/completions"),
            Verb.GENERATE,
            fields(_BODY),
            to="/chat/completions",
        ),
    )
    errors = OPENAI_ERRORS
    effort_at = ("reasoning_effort",)

    @override
    def collector(self) -> Collector:
        return ChatCollector()

    @override
    def error(self, form: ErrorForm, message: str) -> dict[str, Any]:
        return openai_error(form, message)

    @override
    def error_event(self, form: ErrorForm, message: str) -> bytes:
        return b"data: " + json.dumps(openai_error(form, message)).encode() + b"\n\n"

    @override
    def items(self, body: Mapping[str, Any]) -> list[Any]:
        return listing(body.get("messages"))

    @override
    def finish(self, body: dict[str, Any], verb: Verb) -> None:
        """Have a stream say its usage at its end: budgets count what the provider counts."""
        if body.get("stream") is True:
            body["stream_options"] = {
                **mapping(body.get("stream_options")),
                "include_usage": True,
            }
