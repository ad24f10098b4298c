"""Declarations of AI4AI-Bench, read without running them."""

import pytest

from orchestrator.importing.declaration import DeclaredPhase, read_declaration
from tests import ai4ai_stand_in as stand_in

HEAD = "from container import Phase, checkpoint_validation_phase\n"


def faults_of(text: str) -> str:
    return "\n".join(read_declaration(HEAD + text)[1])


def score(text: str) -> DeclaredPhase:
    phases, faults = read_declaration(HEAD + text)
    assert not faults, faults
    return phases["score"]


def test_what_is_read_is_what_running_it_gives() -> None:
    read, faults = read_declaration((stand_in.SOURCE / "declaration.py").read_text())
    ran = stand_in.declared()
    assert not faults
    assert list(read) == list(ran)
    for name, phase in ran.items():
        said = read[name].model_dump()
        if name == "checkpoint-validate":
            said["command"] = phase.command  # whose words are AI4AI-Bench's own
            said |= {"hooks": phase.hooks, "pass_image_digest": phase.pass_image_digest}
        assert {key: said[key] for key in vars(phase)} == vars(phase), name


def test_the_validator_is_what_ai4ai_bench_makes_of_the_score_phase() -> None:
    text = """
SCORE = Phase(name="score", timeout_sec=5, command=("x",), hooks=("report_reward",),
    mounts=(("asset:data/f", "/assets/data/f", True),), read_only_root=True)
PHASES = {"score": checkpoint_validation_phase(SCORE, "a_task")}
"""
    found = score(text)
    assert found.command[:4] == (
        "python3",
        "/opt/harness/validate_checkpoint.py",
        "--task",
        "a_task",
    )
    assert found.command[4:] == (
        *("--checkpoint", "/ckpt", "--assets", "/assets"),
        *("--output", "/out/validation.json"),
    )
    assert (found.timeout_sec, found.hooks, found.read_only_root) == (3600, (), False)
    assert found.mounts == (("asset:data/f", "/assets/data/f", True),)


def test_what_is_written_down_may_be_written_in_many_ways() -> None:
    text = """
from container import Phase as P
A: int = 60 * 2 - 1
ROOT = "/assets"
FIRST = ("asset:data/a", f"{ROOT}/data/a", True)
MORE = [FIRST, *(("asset:data/b", ROOT + "/data/b", True),)]
BASE = P("score", A, ("x",) + ("y",), tuple(MORE))
ENV = {"ONE": str(-A)}
PHASES = {"score": P(name=BASE.name, timeout_sec=int(BASE.timeout_sec), command=BASE.command,
    mounts=BASE.mounts, exports={**ENV, "TWO": "2"} | dict(THREE="3"), reserve_sec=A)}
"""
    found = score(text)
    assert (found.timeout_sec, found.reserve_sec, found.command) == (119, 119, ("x", "y"))
    assert found.mounts[1] == ("asset:data/b", "/assets/data/b", True)
    assert found.exports == {"ONE": "-119", "TWO": "2", "THREE": "3"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import os\nPHASES = {'score': Phase('score', os.cpu_count(), ())}", "os.cpu_count(...)"),
        ("PHASES = {'score': Phase('score', len('x'), ())}", "len(...)"),
        ("for x in (): pass\nPHASES = {}", "a statement (For)"),
        ("PHASES = {}\nPHASES['score'] = 1", "a statement (Assign)"),
        ("A = 1\nA = 2\nPHASES = {}", "A is given twice"),
        ("A = B\nB = A\nPHASES = {'score': A}", "A is not written down"),
        ("PHASES = {'score': (lambda: 1)()}", "lambda: 1(...)"),
        ("PHASES = {'score': [x for x in ()]}", "only running it would tell"),
        ("PHASES = dict(score=1)", "PHASES is not written down as a dict"),
        ("PHASES = {'score': 3}", "PHASES['score'] is no Phase"),
        ("PHASES = {'score': Phase('score', '5', ())}", "timeout_sec: Input should be a valid int"),
        ("PHASES = {'score': Phase('score', 5, (), mounts=((1, 2),))}", "mounts"),
        ("PHASES = {'score': Phase('score', 5, (), gpu='all')}", "gpu: Extra inputs"),
        ("PHASES = {'score': Phase('score')}", "timeout_sec: Field required"),
        (
            "PHASES = {'score': Phase(1 / 0)}",
            "only running it would tell: 1 / 0",
        ),
        ("PHASES = {'score': Phase('a' * 9999999, 5, ())}", "only running it would tell"),
        ("PHASES = {'score': (", "not Python"),
        ("PHASES = {'score': " + "(" * 500 + "1" + ",)" * 500 + "}", "too"),
        ("def Phase(*_): pass\nPHASES = {'score': Phase('score', 5, ())}", "Phase(...)"),
        ("from mine import Phase\nPHASES = {'score': Phase('score', 5, ())}", "Phase(...)"),
        ("int = 5\nPHASES = {'score': int(5)}", "int(...)"),
        ("PHASES = {f'{1!r}': 1}", "only running it would tell"),
    ],
)
def test_what_only_running_would_tell_is_refused_with_its_line(text: str, said: str) -> None:
    found = faults_of(text)
    assert said in found
    assert found.startswith("declaration.py:")


def test_values_that_grow_without_end_are_refused() -> None:
    doubled = "".join(f"A{n + 1} = A{n} + A{n}\n" for n in range(20))
    found = faults_of(f"A0 = (1, 2)\n{doubled}PHASES = {{'score': A20}}")
    assert "more than any declaration holds" in found


def test_every_fault_is_told_in_one_pass() -> None:
    text = """
PHASES = {
    "explore": Phase("explore", timeout_sec=now(), command=there(), mounts=()),
    "score": Phase("score", 5, (), extra=1),
}
while True: pass
"""
    found = faults_of(text)
    for part in ("now(...)", "there(...)", "extra", "a statement (While)"):
        assert part in found
    assert found.count("declaration.py:") == 4


def test_nothing_of_a_declaration_is_run(tmp_path: object) -> None:
    text = f"PHASES = {{'score': __import__('pathlib').Path({str(tmp_path)!r}, 'ran').touch()}}"
    assert "only running it would tell" in faults_of(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("A = ('x',)\nPHASES = {'score': f'{A}'}", "only running it would tell"),
        ("A = ('x',)\nPHASES = {'score': str(A)}", "neither text nor a number nor None"),
        (f"A = '{'x' * 9000}'\nPHASES = {{'score': f'{{A}}{{A}}'}}", "more than any"),
        (f"A = ({'1,' * 9000})\nPHASES = {{'score': (*A, *A)}}", "more than any"),
        (f"A = {'9' * 400}\nPHASES = {{'score': A * 1.5}}", "too large"),
        ("PHASES = {'score': int(1e999)}", "cannot convert float infinity"),
        (f"PHASES = {'-' * 20000}1", "declaration.py:"),
    ],
)
def test_what_would_not_end_or_fit_is_refused_before_it_is_made(text: str, said: str) -> None:
    assert said in faults_of(text)
