"""What ``--dry-run`` prints for a person."""

from orchestrator.pipeline.preview import lines


def test_what_is_not_set_is_left_out_and_the_rest_is_in_plain_words() -> None:
    document = {
        "plan": {"wall": 60.0, "gpus": 0, "env": {}, "seed": None, "budget": {"tokens": None}},
        "official": False,
        "also": ["score", "replay"],
        "refused": [],
        "mounts": [{"target": "/out", "writable": True}, {"target": "/ckpt", "writable": False}],
    }
    assert list(lines(document)) == [
        "plan:",
        "  wall: 60.0",
        "  gpus: 0",
        "official: no",
        "also: score, replay",
        "mounts:",
        "  - target /out, writable yes",
        "  - target /ckpt, writable no",
    ]
