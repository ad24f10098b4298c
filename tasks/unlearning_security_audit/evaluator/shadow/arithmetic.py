"""Operators between shadows: what becomes of a sum, a product, a part."""

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from shadow.values import (
    Entropy,
    Factors,
    Gradient,
    Inputs,
    Labels,
    Loss,
    Output,
    Residual,
    Source,
    Unknown,
    Weights,
    combined,
)

Number = int | float
Table = Mapping[tuple[type, type], Callable[[Any, Any], Any]]
"""What to do with two operands, by their types."""
UNKNOWN = Unknown()
_LARGE, _LARGE_POWER = 1e15, 64
_MOST = 1000

_CONCRETE: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}


def binary(kind: type[ast.operator], left: Any, right: Any) -> Any:
    """Apply a binary operator."""
    if isinstance(left, Number) and isinstance(right, Number):
        return _concrete(kind, left, right)
    if isinstance(left, list | tuple) or isinstance(right, list | tuple):
        return _sequence(kind, left, right)
    return _OPERATORS.get(kind, _nothing)(left, right)


def _nothing(*_: Any) -> Any:
    return UNKNOWN


def _concrete(kind: type[ast.operator], left: float, right: float) -> Any:
    small = abs(left) <= _LARGE and abs(right) <= (_LARGE_POWER if kind is ast.Pow else _LARGE)
    if kind not in _CONCRETE or not small:
        return UNKNOWN
    try:
        value = _CONCRETE[kind](left, right)
    except (ArithmeticError, ValueError):
        return UNKNOWN
    return value if isinstance(value, Number) and abs(value) <= _LARGE**2 else UNKNOWN


def _sequence(kind: type[ast.operator], left: Any, right: Any) -> Any:
    if kind is ast.Add and type(left) is type(right) and len(left) + len(right) <= _MOST:
        return left + right
    if kind is ast.Mult and isinstance(right, int) and abs(right) * len(left) <= _MOST:
        return left * right
    return UNKNOWN


def _types(left: Any, right: Any) -> tuple[type, type]:
    """Name two operands by their types; every number is one of the same."""
    return tuple(float if isinstance(one, Number) else type(one) for one in (left, right))


def _chosen(table: Table, left: Any, right: Any) -> Any:
    """Apply what a table says of these operands, or of the same in the other order."""
    kinds = _types(left, right)
    if kinds in table:
        return table[kinds](left, right)
    return table.get(kinds[::-1], _nothing)(right, left)


def _add(left: Any, right: Any) -> Any:
    if isinstance(left, Output) or isinstance(right, Output):
        return _add_to_output(left, right)
    return _chosen(_SUMS, left, right)


def _subtract(left: Any, right: Any) -> Any:
    special = _DIFFERENCES.get(_types(left, right))
    return _add(left, negative(right)) if special is None else special(left, right)


def _add_losses(left: Loss, right: Loss) -> Loss:
    if len(left.parts) == len(right.parts):
        pairs = zip(left.parts, right.parts, strict=True)
        parts = tuple(combined((1.0, one), (1.0, two)) for one, two in pairs)
    else:
        parts = (combined((1.0, left.terms), (1.0, right.terms)),)
    return Loss(parts, left.seen | right.seen)


def _move(weights: Weights, gradient: Gradient) -> Weights:
    moved = weights.copied()
    moved.moved(gradient, 1.0)
    return moved


def _pairwise(apply: Callable[[float, float], float]) -> Callable[[Any, Any], Any]:
    def both(left: Factors, right: Factors) -> Any:
        if len(left.parts) != len(right.parts):
            return UNKNOWN
        return Factors(tuple(map(apply, left.parts, right.parts)))

    return both


def _add_to_output(left: Any, right: Any) -> Any:
    """Add a number to an output: 1 + exp(-z) is on the way to a probability."""
    output, other = (left, right) if isinstance(left, Output) else (right, left)
    if output.kind == "exp_negated" and other == 1:
        return replace(output, kind="one_plus")
    return output if isinstance(other, Number | Unknown | Output) else UNKNOWN


def _residual(output: Output, labels: Labels, factor: float) -> Any:
    made = entropy(output, labels)
    if output.kind != "probability" or not isinstance(made, Loss) or output.other != labels.other:
        return UNKNOWN
    # A gradient by hand does not ask whether anything is attached.
    terms = combined(*((factor, {seen: 1.0}) for seen in made.seen))
    return Residual(terms, output.parts)


def _one_less(number: float, labels: Labels) -> Labels:
    return replace(labels, other=not labels.other) if number == 1 else _spoilt(labels)


def _one_less_output(number: float, output: Output) -> Any:
    if number == 1 and output.kind == "probability":
        return replace(output, other=not output.other)
    return negative(output)


def _output_less_output(left: Output, right: Output) -> Any:
    if left.kind != "logits":
        return UNKNOWN
    return replace(left, kind="log") if right.kind == "normaliser" else left


def _shift_labels(labels: Labels, number: float) -> Labels:
    return labels if number == 0 else _spoilt(labels)


_SUMS: Table = {
    (Loss, Loss): _add_losses,
    **{(kind, float): lambda kept, _: kept for kind in (Loss, Gradient, Weights, Residual)},
    (Loss, Unknown): lambda kept, _: kept,  # a penalty of some kind, which changes nothing else
    (Gradient, Gradient): lambda one, two: Gradient(combined((1.0, one.terms), (1.0, two.terms))),
    (Weights, Gradient): _move,
    (Factors, Factors): _pairwise(operator.add),
    (Factors, float): lambda some, number: Factors(tuple(one + number for one in some.parts)),
    (Labels, float): _shift_labels,
}
_DIFFERENCES: Table = {
    (Output, Labels): lambda output, labels: _residual(output, labels, 1.0),
    (Labels, Output): lambda labels, output: _residual(output, labels, -1.0),
    (float, Labels): _one_less,
    (Labels, float): _shift_labels,
    (float, Output): _one_less_output,
    (Output, float): lambda output, _: output,
    (Output, Output): _output_less_output,
}
_NEGATIVE: Mapping[str, str] = {"logits": "negated", "negated": "logits", "log": "negative_log"}


def negative(value: Any) -> Any:
    """Apply the unary minus."""
    if isinstance(value, Number):
        return -value
    if isinstance(value, Output):
        return replace(value, kind=_NEGATIVE[value.kind]) if value.kind in _NEGATIVE else UNKNOWN
    return _chosen(_PRODUCTS, value, -1.0)


def _divide(left: Any, right: Any) -> Any:
    if isinstance(right, Output):
        # 1 / (1 + exp(-z)); anything else over an output is not known.
        made = right.kind == "one_plus" and left == 1
        return replace(right, kind="probability") if made else UNKNOWN
    if isinstance(right, Number):
        return _chosen(_PRODUCTS, left, 1.0 / right) if right else UNKNOWN
    # Divided by a number of rows, a norm or the like: of one sign, and not 0.
    return left if isinstance(right, Unknown) else UNKNOWN


def _scale_loss(loss: Loss, number: float) -> Loss:
    return Loss(tuple(combined((number, part)) for part in loss.parts), loss.seen)


def _mask_loss(loss: Loss, labels: Labels) -> Loss:
    return _weighted(loss, (0.0 if labels.value == 0 else 1.0,) * len(labels.parts))


def _weighted(loss: Loss, factors: tuple[float, ...]) -> Loss:
    if len(factors) == 1:
        factors *= len(loss.parts)
    if len(factors) != len(loss.parts):
        return Loss(({},), loss.seen)
    pairs = zip(factors, loss.parts, strict=True)
    return Loss(tuple(combined((factor, part)) for factor, part in pairs), loss.seen)


def _product_of_losses(left: Loss, right: Loss) -> Loss:
    """A constant times a loss is that loss with some positive factor; else nothing is known."""
    seen = left.seen | right.seen
    if left.terms and right.terms:
        return Loss(({},), seen)
    return Loss(left.parts if left.terms else right.parts, seen)


def picked(output: Output, labels: Labels) -> Any:
    """Multiply logarithms of probabilities with labels, row by row, or pick by them.

    Of ``y log p + (1 - y) log (1 - p)`` the second half adds nothing but what it has seen.
    """
    if output.kind not in {"log", "negative_log"}:
        return UNKNOWN
    made = entropy(replace(output, other=False), replace(labels, other=False))
    if not isinstance(made, Loss):
        return made
    half = labels.other and output.other
    return _scale_loss(made, 0.0 if half else -1.0 if output.kind == "log" else 1.0)


def product(left: Any, right: Any) -> Any:
    """Multiply matrices."""
    return _chosen(_MATRIX_PRODUCTS, left, right)


def _output_of(inputs: Inputs, weights: Weights) -> Output:
    return Output(inputs.parts, weights.model, attached=weights.requires_grad)


def _gradient_of(inputs: Inputs, residual: Residual) -> Any:
    return Gradient(dict(residual.terms)) if inputs.parts == residual.parts else UNKNOWN


def _dot(loss: Loss, factors: Factors) -> Loss:
    made = _weighted(loss, factors.parts)
    return Loss((made.terms,), made.seen)


_PRODUCTS: Table = {
    (Loss, float): _scale_loss,
    (Loss, Factors): lambda loss, factors: _weighted(loss, factors.parts),
    (Loss, Labels): _mask_loss,
    (Loss, Loss): _product_of_losses,
    (Loss, Unknown): lambda loss, _: loss,
    (Gradient, float): lambda one, by: Gradient(combined((by, one.terms)), used=one.used),
    (Residual, float): lambda one, by: Residual(combined((by, one.terms)), one.parts),
    (Factors, float): lambda some, number: Factors(tuple(one * number for one in some.parts)),
    (Factors, Factors): _pairwise(operator.mul),
    (Labels, float): lambda y, by: y if by == 1 else _spoilt(y, 0.0 if by == 0 else None),
    (Output, Labels): picked,
    (Output, float): lambda output, by: output if by > 0 else UNKNOWN,
    (Inputs, Residual): _gradient_of,
    (Weights, float): lambda weights, _: weights.copied(),
}
_MATRIX_PRODUCTS: Table = {
    (Inputs, Weights): _output_of,
    (Inputs, Residual): _gradient_of,
    (Loss, Factors): _dot,
}
_OPERATORS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: _add,
    ast.Sub: _subtract,
    ast.Mult: lambda left, right: _chosen(_PRODUCTS, left, right),
    ast.Div: _divide,
    ast.MatMult: product,
}


def entropy(output: Output, labels: Any) -> Any:
    """Return the cross-entropy of each part of the rows; anything but labels counts as changed."""
    known: tuple[tuple[Source, bool], ...]
    if isinstance(labels, Labels):
        known = labels.parts
        flipped = labels.other and not output.other
    elif isinstance(labels, Factors | Unknown | int | float):
        known, flipped = tuple((source, False) for source in output.parts), False
    else:
        return UNKNOWN
    if len(known) != len(output.parts):
        return UNKNOWN
    made = [
        Entropy(source, given and not flipped and source is of, output.model)
        for source, (of, given) in zip(output.parts, known, strict=True)
    ]
    output.model.seen.extend(made)
    parts = tuple({one: 1.0} if output.attached else {} for one in made)
    return Loss(parts, frozenset(made))


def _spoilt(labels: Labels, value: float | None = None) -> Labels:
    return replace(labels, parts=tuple((source, False) for source, _ in labels.parts), value=value)


def spoil(labels: Labels, value: float | None = None) -> None:
    """Change labels where they are."""
    labels.parts = tuple((source, False) for source, _ in labels.parts)
    labels.value = value


def item(value: Any, index: Any) -> Any:
    """Take a part of a shadow."""
    if isinstance(value, Output):
        chosen = [part for part in index if isinstance(part, Labels)] if _is_tuple(index) else []
        if chosen and value.kind in {"log", "negative_log"}:
            return picked(value, chosen[0])
    if isinstance(index, slice) and hasattr(value, "parts"):
        return _sliced(value, index)
    return value


def _is_tuple(index: Any) -> bool:
    return isinstance(index, tuple)


def _sliced(value: Any, index: slice) -> Any:
    """Cut rows that were put together apart again, where the cut is between two parts."""
    sources = [_source(part) for part in value.parts]
    if len(sources) == 1 or None in sources or index.step not in {None, 1}:
        return value
    total = sum(source.value for source in sources)
    ends = [_bound(index.start, 0, total), _bound(index.stop, total, total)]
    if None in ends:
        return UNKNOWN
    inside, at = [], 0
    for part, source in zip(value.parts, sources, strict=True):
        if ends[0] <= at and at + source.value <= ends[1]:
            inside.append(part)
        at += source.value
    return replace(value, parts=tuple(inside)) if inside else UNKNOWN


def _bound(value: Any, missing: int, total: int) -> int | None:
    if value is None:
        return missing
    if not isinstance(value, int):
        return None
    return value + total if value < 0 else value


def _source(part: Any) -> Source | None:
    match part:
        case Source():
            return part
        case (Source() as source, _):
            return source
        case dict() if part:
            return next(iter(part)).source
        case _:
            return None
