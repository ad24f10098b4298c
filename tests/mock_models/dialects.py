"""How the four dialects spell a turn, whole and as events of a stream."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.mock_models.turns import Turn

Event = tuple[str, Any]
"""The name of an event (empty for none) and its data; a string as data is sent as it is."""


@dataclass(frozen=True)
class Spelling:
    whole: Callable[[Turn, str], dict[str, Any]]
    events: Callable[[Turn, str], Iterator[Event]]


def pieces(text: str) -> list[str]:
    """Cut text into the tokens of a stream."""
    words = text.split(" ")
    return [word if i == 0 else f" {word}" for i, word in enumerate(words)] if text else []


def encode(event: Event) -> bytes:
    name, data = event
    head = f"event: {name}\n" if name else ""
    body = data if isinstance(data, str) else json.dumps(data)
    return f"{head}data: {body}\n\n".encode()


# OpenAI Chat Completions


def _chat_usage(turn: Turn) -> dict[str, Any]:
    return {
        "prompt_tokens": turn.asked,
        "completion_tokens": turn.answered,
        "total_tokens": turn.asked + turn.answered,
        "prompt_tokens_details": {"cached_tokens": turn.cached},
        "completion_tokens_details": {"reasoning_tokens": turn.reasoned},
    }


def _chat_calls(turn: Turn) -> list[dict[str, Any]]:
    if not turn.tool:
        return []
    function = {"name": turn.tool, "arguments": json.dumps(turn.arguments)}
    return [{"id": "call_1", "type": "function", "function": function}]


def chat_whole(turn: Turn, model: str) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": turn.text or None}
    if turn.thought:
        message["reasoning_content"] = turn.thought
    if turn.tool:
        message["tool_calls"] = _chat_calls(turn)
    stop = "tool_calls" if turn.tool else "stop"
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": stop}],
        "usage": _chat_usage(turn),
    }


def chat_events(turn: Turn, model: str) -> Iterator[Event]:
    base = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": model}

    def chunk(delta: dict[str, Any], stop: str | None = None) -> Event:
        return "", {**base, "choices": [{"index": 0, "delta": delta, "finish_reason": stop}]}

    yield chunk({"role": "assistant", "content": ""})
    for piece in pieces(turn.thought):
        yield chunk({"reasoning_content": piece})
    for piece in pieces(turn.text):
        yield chunk({"content": piece})
    for call in _chat_calls(turn):
        opened = {**call, "index": 0, "function": {"name": turn.tool, "arguments": ""}}
        yield chunk({"tool_calls": [opened]})
        for piece in pieces(call["function"]["arguments"]):
            yield chunk({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]})
    yield chunk({}, "tool_calls" if turn.tool else "stop")
    yield "", {**base, "choices": [], "usage": _chat_usage(turn)}
    yield "", "[DONE]"


# OpenAI Responses


def _responses_items(turn: Turn) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    if turn.thought:
        summary = [{"type": "summary_text", "text": turn.thought}]
        items.append({"type": "reasoning", "id": "rs_1", "summary": summary})
    if turn.text:
        content = [{"type": "output_text", "text": turn.text, "annotations": []}]
        items.append(
            {
                "type": "message",
                "id": "msg_1",
                "role": "assistant",
                "status": "completed",
                "content": content,
            }
        )
    if turn.tool:
        items.append(
            {
                "type": "function_call",
                "id": "fc_1",
                "call_id": "call_1",
                "name": turn.tool,
                "arguments": json.dumps(turn.arguments),
                "status": "completed",
            }
        )
    return items


def responses_whole(turn: Turn, model: str) -> dict[str, Any]:
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "status": "completed",
        "model": model,
        "output": _responses_items(turn),
        "parallel_tool_calls": False,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": turn.asked,
            "input_tokens_details": {"cached_tokens": turn.cached},
            "output_tokens": turn.answered,
            "output_tokens_details": {"reasoning_tokens": turn.reasoned},
            "total_tokens": turn.asked + turn.answered,
        },
    }


def responses_events(turn: Turn, model: str) -> Iterator[Event]:
    number = 0

    def event(name: str, **fields: Any) -> Event:
        nonlocal number
        number += 1
        return name, {"type": name, "sequence_number": number - 1, **fields}

    response = responses_whole(turn, model)
    opened = {**response, "status": "in_progress", "output": [], "usage": None}
    yield event("response.created", response=opened)
    for index, item in enumerate(response["output"]):
        place = {"output_index": index, "item_id": item["id"]}
        yield event("response.output_item.added", output_index=index, item=item)
        if item["type"] == "message":
            for piece in pieces(turn.text):
                yield event("response.output_text.delta", **place, content_index=0, delta=piece)
        elif item["type"] == "function_call":
            for piece in pieces(item["arguments"]):
                yield event("response.function_call_arguments.delta", **place, delta=piece)
        else:
            for piece in pieces(turn.thought):
                yield event(
                    "response.reasoning_summary_text.delta", **place, summary_index=0, delta=piece
                )
        yield event("response.output_item.done", output_index=index, item=item)
    yield event("response.completed", response=response)


# Anthropic Messages


def _messages_usage(turn: Turn) -> dict[str, Any]:
    return {
        "input_tokens": turn.asked - turn.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": turn.cached,
        "output_tokens": turn.answered,
    }


def _messages_blocks(turn: Turn) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if turn.thought:
        blocks.append({"type": "thinking", "thinking": turn.thought, "signature": "c2ln"})
    if turn.text:
        blocks.append({"type": "text", "text": turn.text})
    if turn.tool:
        blocks.append(
            {"type": "tool_use", "id": "toolu_1", "name": turn.tool, "input": dict(turn.arguments)}
        )
    return blocks


def messages_whole(turn: Turn, model: str) -> dict[str, Any]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": _messages_blocks(turn),
        "stop_reason": "tool_use" if turn.tool else "end_turn",
        "stop_sequence": None,
        "usage": _messages_usage(turn),
    }


def messages_events(turn: Turn, model: str) -> Iterator[Event]:
    message = messages_whole(turn, model)

    def event(kind: str, **fields: Any) -> Event:
        return kind, {"type": kind, **fields}

    usage = {**message["usage"], "output_tokens": 1}
    opened = {**message, "content": [], "stop_reason": None, "usage": usage}
    yield event("message_start", message=opened)
    yield event("ping")
    for index, block in enumerate(message["content"]):
        start, deltas = _messages_deltas(block)
        yield event("content_block_start", index=index, content_block=start)
        for delta in deltas:
            yield event("content_block_delta", index=index, delta=delta)
        yield event("content_block_stop", index=index)
    ended = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    yield event("message_delta", delta=ended, usage={"output_tokens": turn.answered})
    yield event("message_stop")


def _messages_deltas(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    if block["type"] == "tool_use":
        arguments = pieces(json.dumps(block["input"]))
        deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in arguments]
        return {**block, "input": {}}, deltas
    kind, key = ("thinking_delta", "thinking") if "thinking" in block else ("text_delta", "text")
    deltas = [{"type": kind, key: piece} for piece in pieces(block[key])]
    return {**block, key: ""}, deltas


# Gemini


def _gemini_usage(turn: Turn) -> dict[str, Any]:
    return {
        "promptTokenCount": turn.asked,
        "cachedContentTokenCount": turn.cached,
        "candidatesTokenCount": turn.answered - turn.reasoned,
        "thoughtsTokenCount": turn.reasoned,
        "totalTokenCount": turn.asked + turn.answered,
    }


def _gemini(parts: list[dict[str, Any]], model: str, **more: Any) -> dict[str, Any]:
    candidate = {"content": {"role": "model", "parts": parts}, "index": 0}
    if "usageMetadata" in more:
        candidate["finishReason"] = "STOP"
    return {"candidates": [candidate], "modelVersion": model, "responseId": "r1", **more}


def _gemini_parts(turn: Turn) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = [{"text": p, "thought": True} for p in pieces(turn.thought)]
    parts += [{"text": piece} for piece in pieces(turn.text)]
    if turn.tool:
        call = {"name": turn.tool, "args": dict(turn.arguments)}
        parts.append({"functionCall": call, "thoughtSignature": "c2ln"})
    return parts


def gemini_whole(turn: Turn, model: str) -> dict[str, Any]:
    return _gemini(_gemini_parts(turn), model, usageMetadata=_gemini_usage(turn))


def gemini_events(turn: Turn, model: str) -> Iterator[Event]:
    *parts, last = _gemini_parts(turn) or [{"text": ""}]
    for part in parts:
        yield "", _gemini([part], model)
    yield "", _gemini([last], model, usageMetadata=_gemini_usage(turn))


CHAT = Spelling(chat_whole, chat_events)
RESPONSES = Spelling(responses_whole, responses_events)
MESSAGES = Spelling(messages_whole, messages_events)
GEMINI = Spelling(gemini_whole, gemini_events)
