"""Each dialect through the gateway, against a mock provider that speaks it."""

from pathlib import Path

from tests.mock_models.dialects import CHAT, encode
from tests.mock_models.server import MockModels
from tests.mock_models.turns import Turn
from tests.unit.gateway_help import MODEL, line

TURN = Turn(
    text="I look first.", thought="What is there?", tool="bash", arguments={"command": "ls"}
)


def test_a_chat_stream_is_passed_on_byte_for_byte(tmp_path: Path) -> None:
    body = {"model": MODEL, "stream": True, "messages": [{"role": "user", "content": "go"}]}
    with MockModels([TURN]) as models, line(models, tmp_path) as agent:
        reply = agent.post("/v1/chat/completions", body)
    assert reply.status_code == 200
    assert reply.content == b"".join(map(encode, CHAT.events(TURN, MODEL)))
    assert agent.exchanges[0].reply.text == TURN.text
