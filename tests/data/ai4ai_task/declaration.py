"""What the phases of this stand-in task mount, run and export.

It has the shape of AI4AI-Bench's declarations, format 1.5, and every kind of mount that they have.
"""

from __future__ import annotations

from dataclasses import replace

from container import Phase, checkpoint_validation_phase

HOUR = 3600
START = "/assets/models/first-guess"
RESERVE_SEC = 10 * 60
CANDIDATES = (
    ("asset:models/start", START, True),
    ("asset:data/rows.jsonl", "/assets/data/rows.jsonl", True),
)
# The validator of the source sees the answer here; in orch it sees what lies open.
OPEN_HALF = ("asset:data/open", "/assets/data/answer", True)
WHOLE = ("asset:data/answer", "/assets/data/answer", True)

EXPLORE = Phase(
    name="explore",
    timeout_sec=2 * HOUR,
    command=("bash",),
    mounts=(
        *CANDIDATES,
        OPEN_HALF,
        ("asset:data/peek", "/assets/data/peek", True),
        ("run:logs", "/logs", True),
        ("run:logs/agent", "/logs/agent", False),
        ("run:out", "/out", False),
    ),
    exports={"START": START},
    hooks=("write_deadline", "report_submission"),
    read_only_root=False,
)

RETRAIN = Phase(
    name="retrain",
    timeout_sec=4 * HOUR,
    command=("bash", "/workspace/run.sh"),
    mounts=(
        *CANDIDATES,
        OPEN_HALF,
        ("run:patch", "/patch/candidate.patch", True),
        ("run:out", "/out", False),
    ),
    exports={"START": START, "TRAIN_DATA": "/assets/data/" + "rows.jsonl"},
    hooks=("inspect_patch", "collect_checkpoints", "verify_fixed_inputs"),
    apply_patch=True,
    reserve_sec=RESERVE_SEC,
    free_gib=0,
    checkpoint_glob="checkpoints/checkpoint-*",
    checkpoint_payload="model.pt",
    artifact_limit=3,
    checkpoint_kind="file",
)

SCORE = Phase(
    name="score",
    timeout_sec=1900,
    command=(
        "python3",
        "/opt/harness/final_eval.py",
        "--checkpoint",
        "/ckpt",
        "--assets",
        "/assets",
        "--output",
        "/out",
        "--reward-path",
        "/logs/verifier/reward.txt",
        "--seed",
        str(100 + 23),
        "--gpus",
        "$gpus",
    ),
    mounts=(
        ("run:out", "/out", False),
        ("run:logs/verifier", "/logs/verifier", False),
        ("asset:models/start", START, True),
        ("asset:data/rows.jsonl", "/assets/data/rows.jsonl", True),
        ("asset:models/bounds", "/assets/models/bounds", True),
        WHOLE,
        ("run:checkpoint", "/ckpt", True),
    ),
    hooks=("report_reward",),
    exports={"EVALUATOR_SETTING": "as declared"},
    read_only_root=True,
    pass_image_digest=True,
)

VALIDATE = checkpoint_validation_phase(SCORE, "guess_a_number")

SCORE_MOCK = replace(SCORE, name="score-mock", command=("python3", "/opt/harness/final_eval.py"))

PHASES: dict[str, Phase] = {
    "explore": EXPLORE,
    "retrain": RETRAIN,
    "score": SCORE,
    "checkpoint-validate": VALIDATE,
    "score-mock": SCORE_MOCK,
}
