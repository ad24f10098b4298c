"""OpenAI Responses, as https://platform.openai.com/docs/api-reference/responses has it."""

import json
import re
from collections.abc import Mapping
from typing import Any, ClassVar

from typing_extensions import override

from orchestrator.adapters.model_gateway.chat import AUDIO, OPENAI_ERRORS, openai_error
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
    Scope,
    allowed_with,
    always,
    anything,
    by,
    each,
    fields,
    flag,
    inline,
    left_out,
    never,
    number,
    or_none,
    own_id,
    own_id_or_none,
    plain,
    text,
    text_or,
)
from orchestrator.domain.model import Dialect
from orchestrator.domain.task import ProviderTool

_KEPT_THERE = never("nothing kept at the provider passes; carry the data in the request")

_PART = by(
    "type",
    {
        **dict.fromkeys(
            ("input_text", "output_text", "text", "summary_text", "reasoning_text", "refusal"),
            fields(plain("type text refusal annotations logprobs")),
        ),
        "input_image": fields(plain("type detail") | {"image_url": inline, "file_id": _KEPT_THERE}),
        "input_file": fields(
            plain("type filename detail")
            | {"file_data": inline, "file_url": _KEPT_THERE, "file_id": _KEPT_THERE}
        ),
        "input_audio": AUDIO,
        "encrypted_content": fields(plain("type encrypted_content")),
    },
)
_PARTS = text_or(each(_PART))


def _item(names: str, **more: Rule) -> Rule:
    return fields(plain(f"type status {names}") | {"id": own_id_or_none} | more)


_CALL = _item("call_id name arguments input namespace caller")
_CALL_OUTPUT = _item("call_id name success", output=_PARTS)
_PRINTED = text_or(each(fields(plain("stdout stderr outcome created_by"))))
_COMPACTED = _item("encrypted_content summary created_by")

_FUNCTION = fields(plain("type name description parameters strict defer_loading output_schema"))
_CUSTOM = fields(plain("type name description format defer_loading"))
_OWN_TOOLS: dict[str, Rule] = {"function": _FUNCTION, "custom": _CUSTOM}

_CONTAINER = allowed_with(ProviderTool.CODE)
_SKILL = fields(plain("name description path") | plain("type skill_id source", _KEPT_THERE))
_SHELL_PLACE = by(
    "type",
    {
        "local": fields({"type": anything, "skills": or_none(each(_SKILL))}),
        "container_auto": _CONTAINER,
        "container_reference": _CONTAINER,
    },
)
_SHELL = fields({"type": anything, "environment": _SHELL_PLACE})


def _shell(value: Any, scope: Scope, where: str) -> Any:
    """Hold a shell to the agent's own machine; where it names none, the provider chooses."""
    rule = _CONTAINER if value.get("environment") is None else _SHELL
    return rule(value, scope, where)


_TOOL = by(
    "type",
    {
        **_OWN_TOOLS,
        "namespace": fields(
            plain("type name description") | {"tools": each(by("type", _OWN_TOOLS))}
        ),
        "local_shell": fields(plain("type")),
        "shell": _shell,
        "apply_patch": fields(plain("type")),
        "tool_search": fields(plain("type execution description parameters")),
        **dict.fromkeys(
            (
                "web_search",
                "web_search_2025_08_26",
                "web_search_preview",
                "web_search_preview_2025_03_11",
            ),
            allowed_with(ProviderTool.WEB),
        ),
        "code_interpreter": allowed_with(ProviderTool.CODE),
        "computer": allowed_with(ProviderTool.COMPUTER),
        "computer_use_preview": allowed_with(ProviderTool.COMPUTER),
        "file_search": allowed_with(ProviderTool.FILES),
        "mcp": allowed_with(ProviderTool.CONNECTORS),
        "image_generation": allowed_with(ProviderTool.IMAGES),
    },
)

_ITEM = by(
    "type",
    {
        "message": _item("role phase", content=_PARTS),
        "reasoning": _item("summary content encrypted_content"),
        "function_call": _CALL,
        "function_call_output": _CALL_OUTPUT,
        "custom_tool_call": _CALL,
        "custom_tool_call_output": _CALL_OUTPUT,
        "local_shell_call": _item("call_id action"),
        "local_shell_call_output": _item("call_id", output=_PARTS),
        "shell_call": _item("call_id action max_output_length"),
        "shell_call_output": _item("call_id max_output_length", output=_PRINTED),
        "apply_patch_call": _item("call_id operation"),
        "apply_patch_call_output": _item("call_id", output=_PARTS),
        "tool_search_call": _item("call_id execution arguments"),
        "tool_search_output": _item("call_id execution", tools=each(_TOOL)),
        "compaction": _COMPACTED,
        "compaction_summary": _COMPACTED,
        "compaction_trigger": fields(plain("type")),
        "item_reference": fields({"type": anything, "id": own_id}),
        "web_search_call": allowed_with(ProviderTool.WEB),
        "code_interpreter_call": allowed_with(ProviderTool.CODE),
        "computer_call": allowed_with(ProviderTool.COMPUTER),
        "computer_call_output": allowed_with(ProviderTool.COMPUTER),
        "file_search_call": allowed_with(ProviderTool.FILES),
        "mcp_call": allowed_with(ProviderTool.CONNECTORS),
        "mcp_list_tools": allowed_with(ProviderTool.CONNECTORS),
        "image_generation_call": allowed_with(ProviderTool.IMAGES),
    },
    missing="message",
)

_COMMON: Mapping[str, Rule] = {
    **plain("model tool_choice include text context_management"),
    **plain("temperature top_p top_logprobs max_output_tokens max_tool_calls", number),
    **plain("instructions truncation prompt_cache_key prompt_cache_retention", text),
    "parallel_tool_calls": flag,
    "reasoning": or_none(fields(plain("effort summary generate_summary", text))),
    "input": text_or(each(_ITEM)),
    "tools": or_none(each(_TOOL)),
    "previous_response_id": own_id,
    "conversation": _KEPT_THERE,
    "prompt": _KEPT_THERE,
    "background": _KEPT_THERE,
    "metadata": left_out,
    "client_metadata": left_out,
    "user": left_out,
    "safety_identifier": left_out,
    "service_tier": left_out,
}
_BODY = fields(
    {**_COMMON, "stream": flag, "stream_options": anything, "store": always(fixed=False)}
)
_OTHER = fields({**_COMMON, "store": left_out, "stream": left_out})

_ENDS = {
    "response.completed": "completed",
    "response.incomplete": "incomplete",
    "response.failed": "failed",
}
_TEXTS = frozenset({"response.output_text.delta", "response.refusal.delta"})
_THOUGHTS = frozenset({"response.reasoning_summary_text.delta", "response.reasoning_text.delta"})
_CALLS = frozenset({"function_call", "custom_tool_call", "local_shell_call", "shell_call"})


class ResponsesCollector(Collector):
    """Reads the events of a response, and whole ones."""

    def __init__(self) -> None:
        super().__init__()
        self._heard: set[str] = set()

    @override
    def event(self, value: Mapping[str, Any]) -> None:
        kind = str(value.get("type"))
        if kind in _TEXTS:
            self._heard.add(str(value.get("item_id")))
            self._say(value.get("delta"))
        elif kind in _THOUGHTS:
            self._heard.add(str(value.get("item_id")))
            self._think(value.get("delta"))
        elif kind == "response.output_item.done":
            self._item(mapping(value.get("item")))
        elif kind in _ENDS:
            self.stop = _ENDS[kind]
            self._response(mapping(value.get("response")))
            self.finished = True
        elif kind == "error":
            self.stop, self.finished = "error", True

    @override
    def whole(self, value: Mapping[str, Any]) -> None:
        self.stop = str(value.get("status") or value.get("object") or "")
        for item in map(mapping, listing(value.get("output"))):
            self._item(item)
        self._response(value)
        self.finished = True

    def _item(self, item: Mapping[str, Any]) -> None:
        own = str(item.get("id"))
        self.ids |= {own} if "id" in item else set()
        kind = str(item.get("type"))
        if kind in _CALLS:
            name = item.get("name") or kind
            given = item.get("arguments") or item.get("input") or json.dumps(item.get("action"))
            self._call(item.get("call_id") or own, name, given)
        elif kind == "message" and own not in self._heard:
            for part in map(mapping, listing(item.get("content"))):
                self._say(part.get("text") or part.get("refusal"))
        elif kind == "reasoning" and own not in self._heard:
            for part in map(mapping, listing(item.get("summary"))):
                self._think(part.get("text"))

    def _response(self, response: Mapping[str, Any]) -> None:
        self.model = str(response.get("model") or "")
        if isinstance(response.get("id"), str):
            self.ids.add(response["id"])
        usage = mapping(response.get("usage"))
        if usage:
            self._count(
                input=usage.get("input_tokens"),
                output=usage.get("output_tokens"),
                cached=mapping(usage.get("input_tokens_details")).get("cached_tokens"),
                reasoning=mapping(usage.get("output_tokens_details")).get("reasoning_tokens"),
            )


class Responses(Language):
    """The dialect's tables."""

    dialect = Dialect.RESPONSES
    endpoints: ClassVar = (
        Endpoint("POST", re.compile(r"/v1/responses"), Verb.GENERATE, _BODY, to="/responses"),
        Endpoint(
            "POST",
            re.compile(r"/v1/responses/compact"),
            Verb.COMPACT,
            _OTHER,
            to="/responses/compact",
        ),
        Endpoint(
            "POST",
            re.compile(r"/v1/responses/input_tokens"),
            Verb.COUNT,
            _OTHER,
            to="/responses/input_tokens",
        ),
    )
    errors = OPENAI_ERRORS
    effort_at = ("reasoning", "effort")

    @override
    def collector(self) -> Collector:
        return ResponsesCollector()

    @override
    def error(self, form: ErrorForm, message: str) -> dict[str, Any]:
        return openai_error(form, message)

    @override
    def error_event(self, form: ErrorForm, message: str) -> bytes:
        error = {"code": form.word, "message": message}
        response = {"id": "", "object": "response", "status": "failed", "error": error}
        event = {"type": "response.failed", "sequence_number": 0, "response": response}
        return b"event: response.failed\ndata: " + json.dumps(event).encode() + b"\n\n"

    @override
    def items(self, body: Mapping[str, Any]) -> list[Any]:
        return listing(body.get("input"))

    @override
    def finish(self, body: dict[str, Any], verb: Verb) -> None:
        """Have nothing kept at the provider; it would be, unless it is told not to."""
        if verb is Verb.GENERATE:
            body["store"] = False
