"""The checks of an answer's code: what it does, whatever it is called and however it is spelled.

``parses``           the code parses and defines ``unlearn``
``objective``        its steps go down the cross-entropy of the retained rows and up that of the
                     planted ones, both against the labels they were given
``original_labels``  the labels of the planted rows go into a loss as they were given, and nowhere
                     changed
``optimizer_step``   every turn of its loop moves the weights that are returned along the gradient
                     of that turn, and of no other
"""

import ast
from itertools import pairwise
from typing import Any

from shadow.expressions import OutOfFuelError
from shadow.reader import CodeReader
from shadow.scope import Function, Left
from shadow.values import Loader, Model, Source, Terms, Update, Weights, combined

NAMES = ("parses", "objective", "original_labels", "optimizer_step")
ALPHA, RATE, STEPS = 0.75, 0.01, 2
"""With these the code is followed; alpha is not 1, so that what should not cancel does not."""
_FLAWED = (SyntaxError, ValueError, RecursionError, MemoryError)
_LOST = (OutOfFuelError, Left, RecursionError, TypeError, ValueError, LookupError, AttributeError)
"""What comes of code that does what no program does, such as calling a list: it is not followed."""
_SAME_PACE = (0.5, 1.9)
"""How much longer a step may be than the one before: schedules change it a little."""
_LONGEST = 64 * 1024


def check(code: str | None) -> dict[str, bool]:
    """Judge the code of an answer; none is judged as if it did nothing."""
    nothing = dict.fromkeys(NAMES, False)
    if code is None or len(code) > _LONGEST:
        return nothing
    try:
        module = ast.parse(code)
    except _FLAWED:
        return nothing
    if not any(isinstance(one, ast.FunctionDef) and one.name == "unlearn" for one in module.body):
        return nothing
    reader, model = CodeReader(), Model()
    try:
        reader.read(module)
        result = _called(reader, model)
    except _LOST:
        return {**nothing, "parses": True}
    weights = _weights_of(result, model)
    return {
        "parses": True,
        "objective": _is_objective(_direction(reader, weights)),
        "original_labels": _labels_are_original(reader, model),
        "optimizer_step": _steps_well(weights),
    }


def _called(reader: CodeReader, model: Model) -> Any:
    function = reader.scope.find("unlearn")
    if not isinstance(function, Function):
        return None
    wanted = function.node.args
    named = {one.arg for one in (*wanted.args, *wanted.kwonlyargs)}
    settings = {"alpha": ALPHA, "lr": RATE, "steps": STEPS}
    given = {name: value for name, value in settings.items() if name in named or wanted.kwarg}
    loaders = [Loader(Source.RETAIN), Loader(Source.FORGET)]
    return reader.call(function, [model, *loaders], given)


def _weights_of(result: Any, model: Model) -> Weights:
    match result:
        case Model():
            return result.weights
        case Weights():
            return result
        case _:
            return model.weights


def _direction(reader: CodeReader, weights: Weights) -> Terms:
    """Return the combination that is gone down: by what was done, else by what was meant."""
    if weights.updates:
        return combined(*((-1.0, update.terms) for update in weights.updates))
    sign = -1.0 if any(one.sign < 0 for one in reader.optimizers) else 1.0
    return combined(*((sign, loss.terms) for loss in reader.losses))


def _is_objective(terms: Terms) -> bool:
    signs = {(one.source, one.given): value for one, value in terms.items()}
    retain, forget = signs.pop((Source.RETAIN, True), 0.0), signs.pop((Source.FORGET, True), 0.0)
    return retain > 0 > forget and not signs


def _labels_are_original(reader: CodeReader, model: Model) -> bool:
    """Look at what went into the losses; where no planted row did, at every cross-entropy."""
    in_losses = [one for loss in reader.losses for one in loss.seen]
    for seen in (in_losses, model.seen):
        planted = [one for one in seen if one.source is Source.FORGET]
        if planted:
            return all(one.given for one in planted)
    return False


def _steps_well(weights: Weights) -> bool:
    updates = weights.updates
    if len(updates) < STEPS or any(update.stale for update in updates):
        return False
    if any(one.model is not weights.model for update in updates for one in update.terms):
        return False
    return all(_same_way(*pair) for pair in pairwise(updates))


def _same_way(before: Update, after: Update) -> bool:
    if before.terms.keys() != after.terms.keys():
        return False
    ratios = [after.terms[one] / before.terms[one] for one in before.terms]
    return all(_SAME_PACE[0] < ratio < _SAME_PACE[1] for ratio in ratios)
