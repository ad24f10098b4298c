"""What the functions and methods of PyTorch and NumPy do with shadows, by their last name.

``torch.mul(a, b)`` and ``a.mul(b)`` are one operation here; so are ``F.cross_entropy`` and
``nn.CrossEntropyLoss()``. Whatever is not listed gives something unknown.
"""

import ast
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from shadow.arithmetic import UNKNOWN, Number, binary, entropy, negative, picked, product, spoil
from shadow.training import (
    Keywords,
    Operation,
    Reader,
    backward,
    cleared,
    clipped,
    criterion,
    derived,
    frozen,
    loaded,
    named_parameters,
    optimizer,
    parameters,
    state,
    stepped,
)
from shadow.values import (
    Factors,
    Gradient,
    Inputs,
    Labels,
    Loss,
    Model,
    Output,
    Residual,
    Weights,
)


def same(_: Reader, args: list[Any], __: Keywords) -> Any:
    """Give back what was given: another type, place or shape of the same data."""
    return args[0] if args else UNKNOWN


def copied(_: Reader, args: list[Any], __: Keywords) -> Any:
    """Copy what can be changed in place."""
    match args[0] if args else None:
        case (Weights() | Model()) as found:
            return found.copied()
        case (Labels() | Gradient()) as found:
            return replace(found)
        case list() | tuple() as found:
            return list(found)
        case found:
            return found


def detached(_: Reader, args: list[Any], __: Keywords) -> Any:
    """Let no gradient flow back through a value."""
    match args[0] if args else None:
        case Loss() as loss:
            return Loss(({},) * len(loss.parts), loss.seen)
        case Output() as output:
            return replace(output, attached=False)
        case found:
            return found


def _with_labels(reader: Reader, args: list[Any], keywords: Keywords, *kinds: str) -> Any:
    """Make a cross-entropy of the two arguments, if the first is of one of the kinds."""
    names = ("input", "target", "labels")
    given = [*args, *(keywords[name] for name in names if name in keywords)]
    if len(given) < 2 or not isinstance(given[0], Output) or given[0].kind not in kinds:  # noqa: PLR2004
        return UNKNOWN
    made = entropy(given[0], given[1])
    if isinstance(made, Loss):
        if not reader.attached:
            made = Loss(({},) * len(made.parts), made.seen)
        if keywords.get("reduction", "mean") != "none":
            made = Loss((made.terms,), made.seen)
    return made


def _entropy_of(*kinds: str) -> Operation:
    return lambda reader, args, keywords: _with_labels(reader, args, keywords, *kinds)


def reduced(_: Reader, args: list[Any], keywords: Keywords) -> Any:
    """Take a mean or a sum."""
    match args[0] if args else keywords.get("input"):
        case Loss() as loss:
            return Loss((loss.terms,), loss.seen)
        case list() | tuple() as several:
            total: Any = 0
            for one in several:
                total = binary(ast.Add, total, one)
            return total
        case (Gradient() | Output() | Residual()) as found:
            return found
        case _:
            return UNKNOWN


def _kind(name: str, *before: str) -> Operation:
    """Make another kind of output of those that are of the kinds ``before``."""

    def change(_: Reader, args: list[Any], __: Keywords) -> Any:
        found = args[0] if args else None
        if isinstance(found, Output) and found.kind in before:
            return replace(found, kind=name)
        return found if isinstance(found, Loss) else UNKNOWN

    return change


def exponential(reader: Reader, args: list[Any], keywords: Keywords) -> Any:
    """Take exp: of -z on the way to a probability, of log p back to p."""
    found = args[0] if args else None
    if isinstance(found, Output) and found.kind == "log":
        return replace(found, kind="probability")
    return _kind("exp_negated", "negated")(reader, args, keywords)


def zeros(value: float) -> Operation:
    """Make something like the argument that holds one number everywhere."""

    def make(_: Reader, args: list[Any], __: Keywords) -> Any:
        match args[0] if args else None:
            case Labels() as labels:
                spoilt = replace(labels)
                spoil(spoilt, value)
                return spoilt
            case (Loss() | Inputs() | Output() | Factors()) as found:
                return Factors((value,) * len(found.parts))
            case Gradient() if value == 0:
                return Gradient({})
            case _:
                return Factors((value,))

    return make


def full(reader: Reader, args: list[Any], keywords: Keywords) -> Any:
    """Make something of the argument's shape that holds the second argument everywhere."""
    value = args[1] if len(args) > 1 else keywords.get("fill_value")
    return zeros(value)(reader, args[:1], {}) if isinstance(value, Number) else UNKNOWN


def arithmetic(kind: type[ast.operator]) -> Operation:
    """Apply an operator; PyTorch's ``alpha`` is a factor of the second operand."""

    def apply(_: Reader, args: list[Any], keywords: Keywords) -> Any:
        given = [*args, *(keywords[name] for name in ("other",) if name in keywords)]
        if len(given) < 2:  # noqa: PLR2004 - two operands
            return UNKNOWN
        factor = keywords.get("alpha", 1)
        if len(given) > 2 and isinstance(given[1], Number):  # noqa: PLR2004 - add_(factor, other)
            factor, given = given[1], [given[0], given[2]]
        right = given[1] if factor == 1 else binary(ast.Mult, given[1], factor)
        return binary(kind, given[0], right)

    return apply


def concatenated(_: Reader, args: list[Any], __: Keywords) -> Any:
    """Put several together, row after row."""
    several = args[0] if args else None
    if not isinstance(several, list | tuple) or not several:
        return UNKNOWN
    if all(isinstance(one, Number) for one in several):
        return Factors(tuple(map(float, several)))
    kinds = {type(one) for one in several}
    if kinds == {Labels, Factors}:
        return Factors(tuple(_number(part) for one in several for part in one.parts))
    mixed = len(kinds) > 1 or len({getattr(one, "model", None) for one in several}) > 1
    if mixed or not hasattr(several[0], "parts"):
        return UNKNOWN
    parts = tuple(part for one in several for part in one.parts)
    if isinstance(several[0], Loss):
        return Loss(parts, frozenset().union(*(one.seen for one in several)))
    return replace(several[0], parts=parts)


def _number(part: Any) -> float:
    return part if isinstance(part, float) else 1.0


def tensor(reader: Reader, args: list[Any], keywords: Keywords) -> Any:
    """Make a tensor of numbers, or of what is one already."""
    if args and isinstance(args[0], list | tuple):
        return concatenated(reader, args, keywords)
    return same(reader, args, keywords)


def chosen(_: Reader, args: list[Any], __: Keywords) -> Any:
    """Take rows of one or of another: ``where(condition, a, b)``."""
    if len(args) != 3:  # noqa: PLR2004 - the condition and two choices
        return UNKNOWN
    condition, one, two = args
    labels = [value for value in (one, two) if isinstance(value, Labels)]
    if labels:
        pure = len(labels) == 2 and labels[0].parts == labels[1].parts  # noqa: PLR2004 - both
        made = replace(labels[0])
        if not pure:
            spoil(made)
        return made
    if isinstance(condition, Factors) and isinstance(one, Number) and isinstance(two, Number):
        return Factors(tuple(float(one if part else two) for part in condition.parts))
    return UNKNOWN


def gathered(_: Reader, args: list[Any], keywords: Keywords) -> Any:
    """Pick of each row what a label says."""
    labels = [one for one in (*args[1:], *keywords.values()) if isinstance(one, Labels)]
    found = args[0] if args else None
    if isinstance(found, Output) and found.kind in {"log", "negative_log"} and labels:
        return picked(found, labels[0])
    return UNKNOWN


def bounded(_: Reader, args: list[Any], keywords: Keywords) -> Any:
    """Clamp: a cross-entropy is never below 0, so a bound of 0 above it leaves no gradient."""
    found = args[0] if args else None
    upper = keywords.get("max", args[2] if len(args) > 2 else None)  # noqa: PLR2004 - (x, min, max)
    if isinstance(found, Loss) and isinstance(upper, Number) and upper <= 0:
        return Loss(({},) * len(found.parts), found.seen)
    return found if found is not None else UNKNOWN


def rectified(_: Reader, args: list[Any], __: Keywords) -> Any:
    """Keep what is above 0: of a cross-entropy everything, of a negative one nothing."""
    found = args[0] if args else None
    if not isinstance(found, Loss):
        return UNKNOWN
    if all(value < 0 for part in found.parts for value in part.values()):
        return Loss(({},) * len(found.parts), found.seen)
    return found


def matrix(_: Reader, args: list[Any], __: Keywords) -> Any:
    """Multiply matrices, or a vector of factors with losses."""
    return product(args[0], args[1]) if len(args) > 1 else UNKNOWN


def negated(_: Reader, args: list[Any], __: Keywords) -> Any:
    """Apply the unary minus."""
    return negative(args[0]) if args else UNKNOWN


def size(_: Reader, args: list[Any], __: Keywords) -> Any:
    """Say how many rows there are."""
    found = args[0] if args else None
    if isinstance(found, Inputs | Labels | Output):
        sources = [part[0] if isinstance(part, tuple) else part for part in found.parts]
        return sum(source.value for source in sources)
    return len(found) if isinstance(found, list | tuple | dict | str) else 1


OPERATIONS: Mapping[str, Operation] = {
    **dict.fromkeys(("to", "cuda", "cpu", "float", "double", "half", "long", "int", "bool"), same),
    **dict.fromkeys(("numpy", "contiguous", "view", "reshape", "flatten", "squeeze"), same),
    **dict.fromkeys(("unsqueeze", "ravel", "type", "astype", "asarray", "as_tensor"), same),
    **dict.fromkeys(("from_numpy", "expand", "expand_as", "train", "eval", "nan_to_num"), same),
    **dict.fromkeys(("t", "transpose", "type_as", "one_hot", "clip", "Parameter", "abs"), same),
    **dict.fromkeys(("Variable", "clamp_min", "fabs", "sqrt", "pin_memory"), same),
    **dict.fromkeys(("clone", "copy", "deepcopy", "array"), copied),
    **dict.fromkeys(("detach", "item", "tolist"), detached),
    **dict.fromkeys(("mean", "sum", "nanmean", "average"), reduced),
    "cross_entropy": _entropy_of("logits"),
    "binary_cross_entropy_with_logits": _entropy_of("logits"),
    "binary_cross_entropy": _entropy_of("probability"),
    "nll_loss": _entropy_of("log"),
    "softmax": _kind("probability", "logits"),
    "sigmoid": _kind("probability", "logits"),
    "expit": _kind("probability", "logits"),
    "log_softmax": _kind("log", "logits"),
    "logsigmoid": _kind("log", "logits"),
    "logsumexp": _kind("normaliser", "logits"),
    "log": _kind("log", "probability"),
    "exp": exponential,
    **dict.fromkeys(("zeros_like", "zeros", "new_zeros"), zeros(0.0)),
    **dict.fromkeys(("ones_like", "ones", "new_ones"), zeros(1.0)),
    **dict.fromkeys(("full", "full_like", "new_full"), full),
    **dict.fromkeys(("cat", "concatenate", "concat", "hstack", "stack", "vstack"), concatenated),
    **dict.fromkeys(("tensor", "FloatTensor"), tensor),
    **dict.fromkeys(("where", "masked_fill"), chosen),
    "gather": gathered,
    **dict.fromkeys(("clamp", "minimum"), bounded),
    "relu": rectified,
    **dict.fromkeys(("add", "plus"), arithmetic(ast.Add)),
    **dict.fromkeys(("sub", "subtract"), arithmetic(ast.Sub)),
    **dict.fromkeys(("mul", "multiply"), arithmetic(ast.Mult)),
    **dict.fromkeys(("div", "divide", "true_divide"), arithmetic(ast.Div)),
    **dict.fromkeys(("matmul", "mm", "mv", "dot", "inner"), matrix),
    **dict.fromkeys(("neg", "negative"), negated),
    "backward": backward,
    "grad": derived,
    **dict.fromkeys(("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "NAdam", "RAdam"), optimizer),
    "zero_grad": cleared,
    "step": stepped,
    **dict.fromkeys(("clip_grad_norm_", "clip_grad_value_", "clip_grad_norm"), clipped),
    "parameters": parameters,
    "named_parameters": named_parameters,
    "state_dict": state,
    "load_state_dict": loaded,
    "requires_grad_": frozen,
    **dict.fromkeys(("size", "numel"), size),
    "CrossEntropyLoss": criterion("cross_entropy"),
    "NLLLoss": criterion("nll_loss"),
    "BCEWithLogitsLoss": criterion("binary_cross_entropy_with_logits"),
    "BCELoss": criterion("binary_cross_entropy"),
}
