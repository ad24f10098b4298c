"""Google's generateContent, as https://ai.google.dev/api/generate-content has it.

It is JSON of protocol buffers, where ``file_data`` is the same field as ``fileData``.
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
    pin,
    whole_number,
)
from orchestrator.adapters.model_gateway.shape import (
    Rule,
    Scope,
    allowed_with,
    each,
    fields,
    left_out,
    never,
    one_or_each,
    plain,
)
from orchestrator.domain.model import Dialect, Refusal
from orchestrator.domain.task import ProviderTool


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(other[:1].upper() + other[1:] for other in others)


def _message(known: Mapping[str, Rule]) -> Rule:
    return fields(known, spelled=_camel)


_FETCHED = never("nothing that the provider would fetch passes; carry the data in the request")
_DATA = _message(plain("mimeType data displayName"))
_RESPONSE = _message(
    plain("id name response willContinue scheduling")
    | {"parts": each(_message({"inlineData": _DATA, "fileData": _FETCHED}))}
)
_PART = _message(
    {
        **plain("text thought thoughtSignature functionCall videoMetadata mediaResolution"),
        "inlineData": _DATA,
        "functionResponse": _RESPONSE,
        "fileData": _FETCHED,
        "executableCode": allowed_with(ProviderTool.CODE),
        "codeExecutionResult": allowed_with(ProviderTool.CODE),
        "toolCall": never("tools of the provider's own are not allowed here"),
        "toolResponse": never("tools of the provider's own are not allowed here"),
    }
)
_CONTENT = _message(plain("role") | {"parts": one_or_each(_PART)})
_TOOL = _message(
    {
        **plain("functionDeclarations"),
        "googleSearch": allowed_with(ProviderTool.WEB),
        "googleSearchRetrieval": allowed_with(ProviderTool.WEB),
        "enterpriseWebSearch": allowed_with(ProviderTool.WEB),
        "urlContext": allowed_with(ProviderTool.WEB),
        "googleMaps": allowed_with(ProviderTool.WEB),
        "codeExecution": allowed_with(ProviderTool.CODE),
        "computerUse": allowed_with(ProviderTool.COMPUTER),
        "fileSearch": allowed_with(ProviderTool.FILES),
        "retrieval": allowed_with(ProviderTool.FILES),
        "mcpServers": allowed_with(ProviderTool.CONNECTORS),
    }
)
_CONFIG = _message(
    plain(
        "temperature topP topK candidateCount maxOutputTokens stopSequences responseMimeType "
        "responseSchema responseJsonSchema presencePenalty frequencyPenalty seed responseLogprobs "
        "logprobs mediaResolution"
    )
    | {
        "thinkingConfig": _message(plain("includeThoughts thinkingBudget thinkingLevel")),
        "responseModalities": allowed_with(ProviderTool.IMAGES),
    }
)
_BODY: Mapping[str, Rule] = {
    **plain("toolConfig safetySettings"),
    "contents": one_or_each(_CONTENT),
    "systemInstruction": _CONTENT,
    "tools": one_or_each(_TOOL),
    "generationConfig": _CONFIG,
    "cachedContent": never("nothing kept at the provider passes"),
    "labels": left_out,
    "model": left_out,
}
_COUNTED: Mapping[str, Rule] = {**_BODY, "generateContentRequest": _message(_BODY)}

_MODELS = r"/v1(?:beta)?/models/(?P<model>[^/:]+)"


def _endpoint(name: str, verb: Verb, body: Mapping[str, Rule], **query: str) -> Endpoint:
    return Endpoint(
        "POST",
        re.compile(f"{_MODELS}:{name}"),
        verb,
        _message(body),
        query={key: frozenset({value}) for key, value in query.items()},
        needs=next(iter(query), ""),
        to=f"/models/{{model}}:{name}",
    )


class GeminiCollector(Collector):
    """Reads responses; those of a stream are parts of one."""

    @override
    def event(self, value: Mapping[str, Any]) -> None:
        self.model = self.model or str(value.get("modelVersion") or "")
        for candidate in map(mapping, listing(value.get("candidates"))):
            parts = listing(mapping(candidate.get("content")).get("parts"))
            for part in map(mapping, parts):
                (self._think if part.get("thought") is True else self._say)(part.get("text"))
                call = mapping(part.get("functionCall"))
                if call:
                    given = json.dumps(call.get("args", {}))
                    self._call(len(self._calls), call.get("name"), given)
            if candidate.get("finishReason"):
                self.stop = str(candidate["finishReason"])
                self.finished = True
        if mapping(value.get("promptFeedback")).get("blockReason"):
            self.stop, self.finished = "blocked", True
        self._usage(mapping(value.get("usageMetadata")))

    @override
    def whole(self, value: Mapping[str, Any]) -> None:
        self.event(value)
        self.finished = True

    def _usage(self, usage: Mapping[str, Any]) -> None:
        if not usage:
            return
        thoughts = whole_number(usage.get("thoughtsTokenCount"))
        asked = whole_number(usage.get("promptTokenCount"))
        self._count(
            input=asked + whole_number(usage.get("toolUsePromptTokenCount")),
            cached=usage.get("cachedContentTokenCount"),
            output=whole_number(usage.get("candidatesTokenCount")) + thoughts,
            reasoning=thoughts,
        )


class Gemini(Language):
    """The dialect's tables."""

    dialect = Dialect.GEMINI
    endpoints: ClassVar = (
        _endpoint("generateContent", Verb.GENERATE, _BODY),
        _endpoint("streamGenerateContent", Verb.GENERATE, _BODY, alt="sse"),
        _endpoint("countTokens", Verb.COUNT, _COUNTED),
    )
    errors: ClassVar = {
        Refusal.UNKNOWN_PATH: ErrorForm(404, "NOT_FOUND"),
        Refusal.MALFORMED: ErrorForm(400, "INVALID_ARGUMENT"),
        Refusal.TOO_LARGE: ErrorForm(413, "INVALID_ARGUMENT"),
        Refusal.NOT_ALLOWED: ErrorForm(403, "PERMISSION_DENIED"),
        Refusal.OTHER_MODEL: ErrorForm(404, "NOT_FOUND"),
        Refusal.BUDGET: ErrorForm(403, "PERMISSION_DENIED"),
        Refusal.BUSY: ErrorForm(429, "RESOURCE_EXHAUSTED"),
        Refusal.UPSTREAM: ErrorForm(502, "UNAVAILABLE"),
        Refusal.NOT_RECORDED: ErrorForm(400, "FAILED_PRECONDITION"),
    }
    effort_at = ("generationConfig", "thinkingConfig", "thinkingLevel")
    _budget_at: ClassVar = ("generationConfig", "thinkingConfig", "thinkingBudget")

    @override
    def collector(self) -> Collector:
        return GeminiCollector()

    @override
    def error(self, form: ErrorForm, message: str) -> dict[str, Any]:
        return {"error": {"code": form.status, "message": message, "status": form.word}}

    @override
    def error_event(self, form: ErrorForm, message: str) -> bytes:
        return b"data: " + json.dumps(self.error(form, message)).encode() + b"\n\n"

    @override
    def items(self, body: Mapping[str, Any]) -> list[Any]:
        return listing(body.get("contents"))

    @override
    def streams(self, _body: Mapping[str, Any], path: str) -> bool:
        return ":stream" in path

    @override
    def pin_effort(
        self, body: dict[str, Any], effort: str, scope: Scope, *, add: bool = True
    ) -> None:
        """Hold a word to the level of thinking, a number to its budget; the other goes."""
        if effort.isdecimal():
            pin(body, self.effort_at, "", scope)
            pin(body, self._budget_at, int(effort), scope)
        else:
            pin(body, self._budget_at, "", scope)
            super().pin_effort(body, effort, scope, add=add)
