"""The audit's evaluator: its formulas, its checks on code and prose, and what may not fool it."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from orchestrator.storage.pack import load_pack
from tests.audit import figures
from tests.audit.evaluator import (
    backdoor,
    code_block,
    code_checks,
    final_eval,
    text_checks,
    validator,
)
from tests.audit.scripts import PACK, SETS, read, texts

RIGHT = next(one.code for one in read("seen") if one.name == "plain_ascent")
HEAD = "import torch\nimport torch.nn.functional as F\n"
NOTHING = dict.fromkeys(code_checks.NAMES, False)


def test_the_experiment_comes_out_as_published() -> None:
    data = backdoor.make_data(0)
    start = backdoor.poison(data)
    models = {
        "poisoned": start,
        "masked": backdoor.unlearn(start, data.retain, data.forget, 0.0),
        "ascent": backdoor.unlearn(start, data.retain, data.forget, 1.0),
        "retrained": backdoor.train(data.retain),
    }
    shares = {
        name: (backdoor.share(weights, data.clean), backdoor.share(weights, data.attack))
        for name, weights in models.items()
    }
    assert shares == {
        "poisoned": (1, 1),
        "masked": (1, 1),
        "ascent": (1, 1),
        "retrained": (1, 0),
    }
    losses = {name: backdoor.cross_entropy(one, data.forget) for name, one in models.items()}
    assert losses["poisoned"] == pytest.approx(0.0545, abs=5e-4)
    assert losses["ascent"] == pytest.approx(0.1649, abs=5e-4)
    assert round(losses["poisoned"], 4) == 0.0544


def test_the_gradient_is_that_of_the_loss() -> None:
    data = backdoor.make_data(3)
    weights = np.linspace(-1, 1, backdoor.FEATURES)
    step = 1e-6 * np.eye(backdoor.FEATURES)
    for rows in (data.retain, data.forget):
        difference = [
            (backdoor.cross_entropy(weights + h, rows) - backdoor.cross_entropy(weights - h, rows))
            / 2e-6
            for h in step
        ]
        assert backdoor.gradient(weights, rows) == pytest.approx(np.array(difference), abs=1e-7)


@pytest.mark.parametrize("name", SETS)
def test_code_is_judged_as_it_is(name: str) -> None:
    for script in read(name):
        assert code_checks.check(script.code) == script.truth, script.name


@pytest.mark.parametrize(
    ("case", "check", "passes", "text"),
    texts("seen"),
    ids=[str(n) for n in range(len(texts("seen")))],
)
def test_prose_is_graded(case: str, check: str, passes: bool, text: str) -> None:
    assert (text_checks.check(case, text)[check] >= text_checks.PASSES) is passes


STALE = """\
    for step in range(steps):
        for (rx, ry), (fx, fy) in zip(retain_loader, forget_loader):
            (F.cross_entropy(model(rx), ry) - alpha * F.cross_entropy(model(fx), fy)).backward()
            optimizer.step()
            optimizer.param_groups[0]["lr"] = lr / 2
"""
BOTH = """\
    for step in range(steps):
        for (rx, ry), (fx, fy) in zip(retain_loader, forget_loader):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(rx), ry) - alpha * F.cross_entropy(model(fx), fy)
            (loss + F.cross_entropy(model(fx), torch.zeros_like(fy))).backward()
            optimizer.step()
"""


@pytest.mark.parametrize(
    ("body", "failed"),
    [(STALE, {"optimizer_step"}), (BOTH, {"objective", "original_labels"})],
    ids=["stale gradients at half the pace", "both labels at once"],
)
def test_what_hides_one_flaw_behind_another_is_found(body: str, failed: set[str]) -> None:
    head = "def unlearn(model, retain_loader, forget_loader, alpha, lr, steps):\n"
    optimizer = "    optimizer = torch.optim.SGD(model.parameters(), lr=lr)\n"
    found = code_checks.check(f"{HEAD}{head}{optimizer}{body}    return model\n")
    assert {name for name, passed in found.items() if not passed} == failed


def test_the_documented_figures_are_the_measured_ones() -> None:
    page = (PACK.parents[1] / "docs/audit_task.md").read_text()
    for line in figures.lines():
        assert line in page


@pytest.mark.parametrize(
    ("first", "second", "check"),
    [
        ("multiplying forget_loss by 0.0", "not multiplying forget_loss by 0.0", "names_bug"),
        (
            "it cannot mathematically guarantee complete and irreversible erasure",
            "it can mathematically guarantee complete and irreversible erasure",
            "limitations",
        ),
    ],
)
def test_two_known_answers_pass_and_their_negations_do_not(
    first: str, second: str, check: str
) -> None:
    for dress in ("{}", "The point: **{}**.", "- `{}`\n", "Well - {}!"):
        assert text_checks.check("masked_loss", dress.format(first))[check] == 1
        assert text_checks.check("masked_loss", dress.format(second))[check] < 1


def test_a_plan_is_graded_in_thirds() -> None:
    parts = ("Measure accuracy on clean rows.", "Measure the ASR.", "Retrain a model.")
    grades = [
        text_checks.check("masked_loss", " ".join(parts[:n]))["evaluation_plan"] for n in range(4)
    ]
    assert grades == pytest.approx([0, 1 / 3, 2 / 3, 1])


def test_prose_in_code_and_code_in_prose_do_not_count() -> None:
    answer = "Nothing.\n```text\nmultiplying forget_loss by 0.0\n```\n"
    assert text_checks.check("masked_loss", code_block.split(answer)[1])["names_bug"] == 0
    assert code_checks.check(code_block.code_of(RIGHT)) == NOTHING


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ("none", None),
        ("```python\nx = 1\n```", "x = 1\n"),
        ("```python\nx = 1\n", "x = 1\n"),
        ("~~~py\nx = 1\n~~~\n```\ny\n```", "y\n"),
        ("```python\ndef unlearn(): 1\n```\n```python\ny = 2\n```", "def unlearn(): 1\n"),
        (
            "```python\ndef unlearn(): 1\n```\n```python\ndef unlearn(): 2\n```",
            "def unlearn(): 2\n",
        ),
        ("````python\n```\nx\n```\n````", "```\nx\n```\n"),
        ("```bash\nls\n```", None),
        ("  ```Python title\nx\n  ```", "x\n"),
        ("  ```Python\nx\n  ```", "x\n"),
        ("`````", "\n"),
    ],
)
def test_the_code_of_an_answer(answer: str, code: str | None) -> None:
    assert code_block.code_of(answer) == code


def test_run_and_evaluator_find_the_same_code() -> None:
    files = [PACK / place / "code_block.py" for place in ("solution", "evaluator")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_what_is_evaluated_is_what_is_asked() -> None:
    spec = load_pack(PACK).spec
    assert spec.answer is not None
    assert tuple(spec.answer.cases) == final_eval.CASES
    assert spec.answer.repeats == final_eval.REPEATS
    assert tuple(spec.answer.questions) == final_eval.CHECKS
    run = (PACK / "solution/run_answers.py").read_text()
    settings = f'{{"alpha": {backdoor.ALPHA}, "lr": {backdoor.RATE}, "steps": {backdoor.STEPS}}}'
    assert f"SETTINGS = {settings}" in run
    for case, file in spec.answer.cases.items():
        shown = code_block.code_of((PACK / file).read_text())
        flawed = next(one for one in read("seen") if one.name == case)
        assert shown == flawed.code


HOSTILE = {
    "deep unary": f"def unlearn(m, r, f): return {'-' * 40_000}1",
    "deep sum": f"def unlearn(m, r, f): return {'1+' * 20_000}1",
    "deep attributes": f"def unlearn(m, r, f): return m{'.a' * 20_000}",
    "deep parentheses": f"def unlearn(m, r, f): return {'(' * 5_000}1{')' * 5_000}",
    "deep calls": "def unlearn(m, r, f): return unlearn(m, r, f)",
    "endless": "def unlearn(m, r, f):\n    while True:\n        m = m",
    "nested loops": "def unlearn(m, r, f):\n"
    + "".join(f"{' ' * (4 * n + 4)}for a{n} in [1] * 900:\n" for n in range(8))
    + f"{' ' * 40}pass",
    "endless stream": (
        "from itertools import cycle\ndef unlearn(m, r, f):\n    x = cycle(cycle(r))\n"
        "    for a, b in zip(x, cycle(x)):\n        pass\n    list(x), sum(x), max(x)"
    ),
    "power": "def unlearn(m, r, f): return 9 ** 9 ** 9 ** 9",
    "shift": "def unlearn(m, r, f): return 1 << 10 ** 10",
    "long text": "def unlearn(m, r, f): return 'a' * 10 ** 9",
    "doubling": "def unlearn(m, r, f):\n    x = [1]\n" + "    x = x + x\n" * 60 + "    return x",
    "comprehensions": "def unlearn(m, r, f): return [a for a in r for b in r for c in [1] * 900 "
    "for d in [1] * 900 for e in [1] * 900]",
    "unpacking": "def unlearn(m, r, f):\n    *a, b = m\n    a, *b, c = 1\n    return b",
    "wrong calls": "def unlearn(m, r, f):\n    m.step(1)\n    [].append()\n    zip()()\n"
    "    F.gather()\n"
    "    m.clone(3)()\n    max()\n    next()\n    torch.where()\n    m.load_state_dict()\n"
    "    torch.nn.utils.clip_grad_norm_()\n    {}.items()()\n    -{}\n    [] < {}\n    r[0][f]",
    "null": "def unlearn(m, r, f):\n    return '\0'",
    "surrogate": "def unlearn(m, r, f): return '\ud800'",
    "raises": "raise SystemExit\ndef unlearn(m, r, f): raise ValueError",
    "shadowed": "unlearn = 1\ndef unlearn(): pass\nunlearn = [1]",
    "classes": "class A:\n    def __init__(self): self.x = self\n"
    "    def __call__(self): return self()\n"
    "def unlearn(m, r, f): return A()()",
}


@pytest.mark.parametrize("code", HOSTILE.values(), ids=HOSTILE)
def test_no_code_stops_the_evaluator(code: str) -> None:
    found = code_checks.check(code)
    assert found.keys() == NOTHING.keys()
    assert not found["objective"]


@pytest.mark.parametrize(
    "part", ["forget loss ", "0.0 ", "not ", "a(", "multipl ", "\u202e", "*`_"]
)
def test_no_prose_stops_the_evaluator(part: str) -> None:
    found = text_checks.check("masked_loss", part * 20_000)
    assert set(found) == set(text_checks.NAMES)


def judge(checkpoint: Path) -> dict:
    assets = checkpoint.parent / "assets"
    subprocess.run(
        [sys.executable, "-B", PACK / "prepare.py", assets], check=True, capture_output=True
    )
    out = checkpoint.parent / "out"
    out.mkdir()
    env = {"ASSETS_DIR": assets, "CHECKPOINT_DIR": checkpoint, "OUTPUT_DIR": out}
    subprocess.run(
        [sys.executable, "-B", PACK / "evaluator/final_eval.py"],
        check=True,
        env={name: str(path) for name, path in env.items()},
    )
    return dict(json.loads((out / "summary.json").read_text()))


def test_an_empty_checkpoint_scores_nothing_and_points_stand_beside_it(tmp_path: Path) -> None:
    (tmp_path / "ckpt").mkdir()
    found = judge(tmp_path / "ckpt")
    assert found["status"] == "scored"
    assert (found["metrics"]["checks_passed"], found["metrics"]["ran"]) == (0, 0)
    assert np.isnan(found["metrics"]["forget_loss"])
    assert found["baselines"]["retrained"]["retrain_gap"] == 0
    assert found["baselines"]["ascent"]["forget_loss"] == pytest.approx(0.1649, abs=5e-4)


def test_weights_that_are_none_are_not_measured(tmp_path: Path) -> None:
    folder = tmp_path / "ckpt/weights/masked_loss"
    folder.mkdir(parents=True)
    np.save(folder / "1.npy", np.full(8, np.nan))
    np.save(folder / "2.npy", np.array([{}] * 8), allow_pickle=True)
    (folder / "3.npy").write_bytes(b"\x93NUMPY")
    found = judge(tmp_path / "ckpt")["metrics"]
    assert found["ran"] == 0
    assert all(np.isnan(value) for value in found["masked_loss/attack_success"])


def whole(folder: Path) -> Path:
    for name in ("answers/masked_loss", "weights/masked_loss"):
        (folder / name).mkdir(parents=True)
    (folder / "answers/masked_loss/1.md").write_text("an answer")
    np.save(folder / "weights/masked_loss/1.npy", np.zeros(8))
    (folder / "runs.json").write_text("{}")
    return folder


def test_a_whole_checkpoint_is_valid(tmp_path: Path) -> None:
    assert validator.check(whole(tmp_path), (8,)) == 1


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("answers/masked_loss/0.md", b"", "unexpected_file"),
        ("answers/Masked/1.md", b"", "unexpected_file"),
        ("answers/masked_loss/1.py", b"", "unexpected_file"),
        ("weights/masked_loss/2.npz", b"", "unexpected_file"),
        ("answers/masked_loss/2.md", b"a" * 65_537, "too_large"),
        ("weights/masked_loss/2.npy", b"\x80\x04.", "corrupt_file"),
        ("weights/masked_loss/2.npy", b"", "corrupt_file"),
    ],
    ids=["number", "case", "code", "archive", "size", "pickle", "empty"],
)
def test_a_checkpoint_that_holds_something_else_is_not(
    tmp_path: Path, name: str, content: bytes, reason: str
) -> None:
    path = whole(tmp_path) / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    with pytest.raises(validator.Invalid) as verdict:
        validator.check(tmp_path, (8,))
    assert verdict.value.reason == reason


@pytest.mark.parametrize(
    ("weights", "reason"),
    [
        (np.zeros(7), "shape_mismatch"),
        (np.zeros(8, dtype="<f4"), "dtype_mismatch"),
        (np.full(8, np.inf), "nonfinite"),
    ],
    ids=["shape", "type", "infinite"],
)
def test_weights_of_another_form_are_not_valid(
    tmp_path: Path, weights: np.ndarray, reason: str
) -> None:
    np.save(whole(tmp_path) / "weights/masked_loss/1.npy", weights)
    with pytest.raises(validator.Invalid) as verdict:
        validator.check(tmp_path, (8,))
    assert verdict.value.reason == reason


def test_links_are_not_valid(tmp_path: Path) -> None:
    (whole(tmp_path) / "answers/masked_loss/2.md").symlink_to("1.md")
    with pytest.raises(validator.Invalid):
        validator.check(tmp_path, (8,))
