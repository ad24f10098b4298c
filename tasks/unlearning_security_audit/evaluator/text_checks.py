"""The checks of an answer's prose, graded from 0 to 1; a check passes at 1.

``names_bug``        says what is wrong in the code of this case
``explains``         says why nothing, or the wrong thing, is forgotten
``evaluation_plan``  a third each for clean accuracy, attack success and comparison with a model
                     that was retrained
``limitations``      says that the result is no guarantee, or that the attack may still be there

A rule looks at clauses, not at words anywhere: what it looks for has to stand in one clause, and
that clause has to assert it. Negations are counted: an assertion wants an even number of them
before it, a denial ("cannot guarantee") an odd one.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

NAMES = ("names_bug", "explains", "evaluation_plan", "limitations")
PASSES = 1.0
_PARTIAL = 0.5
_LONGEST = 64 * 1024
_LONGEST_CLAUSE = 1000


@dataclass(frozen=True)
class Rule:
    """Something to be said. ``denied`` is for what has to be denied to count."""

    pattern: re.Pattern[str]
    grade: float = PASSES
    denied: bool = False


def _rule(pattern: str, grade: float = PASSES, *, denied: bool = False) -> Rule:
    return Rule(re.compile(pattern), grade, denied)


_GAP = r"(?:\W+\w+){0,%d}?\W+"
_FORGET = r"(?:forget\w*|planted|poison\w*|backdoor\w*)"
_ZERO = r"(?:0\.0+|0(?![.\w])|zeros?|zero_like|zeros_like|nil)"
_THE_LOSS = (
    rf"{_FORGET}(?:\W+(?:set|rows?|samples?|data))?[\W_]*(?:loss|term|objective|part|ce|cross)\w*"
)
_LABELS = r"(?:labels?|targets?|forget_y|y_f|y_forget|fy|yf)"


def _near(first: str, second: str, gap: int = 8) -> str:
    """Match two things in either order with at most ``gap`` words between."""
    between = _GAP % gap
    return rf"(?:{first}){between}(?:{second})|(?:{second}){between}(?:{first})"


_TIMES_ZERO = (
    rf"(?:multipl\w*|scal\w*|weight\w*|factor\w*|coefficient|\*|times|product){_GAP % 6}{_ZERO}"
    rf"|{_ZERO}\s*(?:\*|times|weight|coefficient|multiplier|factor)"
    rf"|\*\s*{_ZERO}"
    r"|masked(?:[\s-]out)?|zeroed(?:[\s-]out)?|nullif\w+|cancell?ed|discarded|switched off|disabled"
)
_MADE_ZERO = (
    r"zeroed|zeroes|zeroing|zeros_like|overwrit\w+|overridden|replac\w+|relabel\w*|wip\w+"
    rf"|(?:set|sets|setting|reset|turned|chang\w+|forced|mapped){_GAP % 6}(?:{_ZERO}|class)"
)
_NAMES_BUG: Mapping[str, tuple[Rule, ...]] = {
    "masked_loss": (
        _rule(_near(_THE_LOSS, _TIMES_ZERO)),
        _rule(rf"multipl\w*{_GAP % 4}{_THE_LOSS}{_GAP % 3}{_ZERO}"),
        _rule(rf"{_ZERO}\s*\*\s*{_THE_LOSS}"),
        _rule(
            rf"(?:weight\w*|factor|coefficient|multiplier){_GAP % 4}{_THE_LOSS}{_GAP % 3}{_ZERO}"
        ),
        _rule(_near(_LABELS, _MADE_ZERO), _PARTIAL),
    ),
    "zero_target": (
        _rule(_near(_LABELS, _MADE_ZERO)),
        _rule(rf"zeros_like\(\s*{_LABELS}"),
        _rule(_near(rf"{_THE_LOSS}", r"added|plus sign|wrong sign|minimi[sz]\w+"), _PARTIAL),
    ),
}
_NO_EFFECT = (
    _rule(rf"(?:gradients?|signal){_GAP % 8}(?:is|are|becomes?|be|of|exactly|vanish\w*)\W+{_ZERO}"),
    _rule(rf"{_ZERO}[\s-]+(?:valued\s+)?gradients?"),
    _rule(r"gradients?\W+(?:\w+\W+){0,6}?(?:vanish\w*|disappear\w*)"),
    _rule(
        r"(?:gradients?|signal)\W+(?:\w+\W+){0,6}?(?:flows?|reach\w*|pass\w*|propagat\w*|contribut\w*)",
        denied=True,
    ),
    _rule(
        rf"(?:{_FORGET}|terms?|rows?|batch|loss|set|part|it|they|which)\W+(?:\w+\W+){{0,5}}?"
        r"(?:contribut\w+|influenc\w+|affect\w*|effect|impact)\b",
        denied=True,
    ),
    _rule(r"contribut\w+\W+zero"),
    _rule(
        r"(?:only|just|merely|purely|nothing but|equivalent to|reduces? to|same as)"
        r"\W+(?:\w+\W+){0,6}?"
        r"(?:retain\w*|fine[\s-]?tun\w+)"
    ),
)
_WRONG_LESSON = (
    _rule(
        r"(?:teach\w*|learn\w*|train\w*|fit\w*|push\w*|pull\w*)\W+(?:\w+\W+){0,8}?"
        r"(?:new|wrong|other|different|false|class 0|label 0|zero)\b"
    ),
    _rule(
        r"(?:ascen\w+|ascend\w*|increas\w+|rais\w+|maximi[sz]\w+|unlearn\w*|forgot\w*|forget\w*|undo\w*|undone|remov\w+|eras\w+)"
        r"\W+(?:\w+\W+){0,8}?(?:original|true|planted|poisoned|trigger|label\w*|associat\w+|mapping|target\w*|loss|it)\b",
        denied=True,
    ),
    _rule(
        r"(?:original|planted|poisoned|trigger\w*)\W+(?:\w+\W+){0,4}?(?:associat\w+|mapping|label\w*|loss|target\w*)"
        r"\W+(?:\w+\W+){0,6}?(?:increas\w+|rais\w+|ascend\w*|remov\w+|touch\w+|used|seen|attack\w*|unlearn\w+|forgotten)",
        denied=True,
    ),
    _rule(
        r"(?:descen\w+|minimi[sz]\w+)\W+(?:\w+\W+){0,10}?"
        r"(?:instead|rather|zero\w*|class 0|label 0|wrong)"
    ),
)
_EXPLAINS: Mapping[str, tuple[Rule, ...]] = {
    "masked_loss": _NO_EFFECT,
    "zero_target": _WRONG_LESSON,
}
_PLAN = (
    (
        _rule(
            _near(
                r"accurac\w+|performance|utility",
                r"clean|benign|untriggered|held[\s-]?out|retain\w*|test",
                6,
            )
        ),
    ),
    (
        _rule(
            r"attack[\s-]+success|\basr\b|success\w*\W+(?:rate\W+)?of\W+the\W+(?:attack|backdoor|trigger)"
        ),
        _rule(
            _near(
                r"trigger\w*|backdoor\w*",
                r"rate|share|fraction|percentage|how (?:often|many)|classified|predict\w+",
                8,
            )
        ),
    ),
    (
        _rule(
            r"retrain\w*|re-train\w*|trained\W+(?:\w+\W+){0,3}?from\W+(?:scratch|nothing)|gold[\s-]standard"
        ),
        _rule(
            _near(
                r"(?:model\W+)?trained",
                r"(?:only\W+)?on\W+(?:\w+\W+){0,2}?(?:retain\w*|clean)|without\W+(?:\w+\W+){0,3}?(?:forget|planted|poison\w*)",
                3,
            )
        ),
    ),
)
_LIMITS = (
    _rule(r"(?:guarantee\w*|prov\w+|proof|certif\w+|ensur\w+|assur\w+|verif\w+)\b", denied=True),
    _rule(
        r"(?:equivalent|identical|equal|same)\W+(?:\w+\W+){0,4}?(?:retrain\w*|scratch)", denied=True
    ),
    _rule(
        r"(?:may|might|can|could)\W+(?:\w+\W+){0,3}?(?:still|remain\w*|persist\w*|re-?emerge"
        r"|resurface|return|reappear|surviv\w+|recover\w*|linger)"
    ),
    _rule(
        r"(?:trace|residual|residue|remnant)s?\W+(?:\w+\W+){0,5}?(?:remain|persist|stay|surviv\w+|linger)\w*"
    ),
    _rule(r"\bapproximat\w+|\bheuristic\w*|\blimit\w+|\bcaveat\w*", _PARTIAL),
)

_APART = re.compile(
    r"[.!?](?=\s|$)|[;:,()\n\u2013\u2014]|\s-\s"
    r"|\b(?:because|since|so|but|however|although|though|while|whereas|therefore|thus|hence|yet)\b"
)
_NEGATOR = re.compile(
    r"\b(?:not|no|never|neither|nor|cannot|without|none|nobody|nothing|unable|impossible|false|untrue"
    r"|wrong that|lacks?|lacking|fails?|failing|failed|far from|absence|hardly|barely|denies"
    r"|deny)\b"
)
_NO_NEGATOR = re.compile(
    r"\bnot\s+(?:only|just|merely|simply|least)\b|\bno\s+(?:doubt|matter|wonder)\b"
    r"|\b(?:cannot|never|not)\s+fails?\s+to\b|\bfalse\s+(?:label|target|class|lesson)\w*\b"
)
_IN_PLACE_OF = re.compile(r"\b(?:instead of|rather than|in place of)((?:\s+[\w.*]+){1,6})")
_DRESS = str.maketrans(
    {"`": " ", "*": " * ", "\u2019": "'", "\u2018": "'", "\u00d7": "*", "\u00b7": "*"}
)


def clauses(text: str) -> Iterator[str]:
    """Cut prose into clauses, in small letters and without its dress."""
    plain = text[:_LONGEST].lower().replace("**", " ").replace("__", " ").translate(_DRESS)
    plain = re.sub(r"n't\b", " not", plain.replace("can't", "cannot").replace("can not", "cannot"))
    plain = _IN_PLACE_OF.sub(" ", _NO_NEGATOR.sub(" ", plain))
    for clause in _APART.split(plain):
        if clause and clause.strip():
            yield " ".join(clause.split())[:_LONGEST_CLAUSE]


def says(rule: Rule, clause: str) -> bool:
    """Tell whether a clause asserts what a rule looks for (or denies it, where it is to)."""
    for match in rule.pattern.finditer(clause):
        before = len(_NEGATOR.findall(clause[: match.end()]))
        if before == 0 and rule.denied:
            before = len(_NEGATOR.findall(clause[match.end() :]))
        if (before % 2 == 1) is rule.denied:
            return True
    return False


def grade(rules: tuple[Rule, ...], text: list[str]) -> float:
    """Return the best grade that a clause earns."""
    return max((rule.grade for rule in rules for clause in text if says(rule, clause)), default=0.0)


def check(case: str, prose: str) -> dict[str, float]:
    """Grade an answer's prose, the code left out."""
    text = list(clauses(prose))
    plan = [grade(rules, text) for rules in _PLAN]
    return {
        "names_bug": grade(_NAMES_BUG[case], text),
        "explains": grade(_EXPLAINS[case], text),
        "evaluation_plan": sum(plan) / len(plan),
        "limitations": grade(_LIMITS, text),
    }
