"""Gradients and optimizers over shadows: what moves weights, and by what."""

from collections.abc import Callable
from typing import Any, Protocol

from shadow.arithmetic import UNKNOWN, Number
from shadow.values import (
    Criterion,
    Gradient,
    Loss,
    Model,
    Optimizer,
    Weights,
    combined,
)

Keywords = dict[str, Any]
Operation = Callable[["Reader", list[Any], Keywords], Any]


class Reader(Protocol):
    """What an operation may ask of whoever reads the code."""

    attached: bool
    losses: list[Loss]
    optimizers: list[Optimizer]

    def call(self, function: Any, args: list[Any], keywords: Keywords) -> Any:
        """Call a function of the code."""


def backward(reader: Reader, args: list[Any], _: Keywords) -> Any:
    """Add a loss's gradients to those of the weights it came from."""
    if args and isinstance(args[0], Loss):
        reader.losses.append(args[0])
        for weights, terms in _by_weights(args[0]):
            if weights.grad is None:
                weights.grad = Gradient(terms)
            else:
                weights.grad.terms = combined((1.0, weights.grad.terms), (1.0, terms))


def _by_weights(loss: Loss) -> list[tuple[Weights, dict]]:
    models = {entropy.model for entropy in loss.terms}
    return [
        (model.weights, {one: value for one, value in loss.terms.items() if one.model is model})
        for model in models
        if model.weights.requires_grad
    ]


def derived(reader: Reader, args: list[Any], keywords: Keywords) -> Any:
    """Return the gradients of a loss for a list of weights: ``torch.autograd.grad``."""
    given = [*args, *(keywords[name] for name in ("outputs", "inputs") if name in keywords)]
    if len(given) < 2 or not isinstance(given[0], Loss):  # noqa: PLR2004 - of what, for what
        return UNKNOWN
    reader.losses.append(given[0])
    terms = {weights.model: found for weights, found in _by_weights(given[0])}
    wanted = given[1] if isinstance(given[1], list | tuple) else [given[1]]
    return [Gradient(dict(terms.get(getattr(one, "model", None), {}))) for one in wanted]


def optimizer(reader: Reader, args: list[Any], keywords: Keywords) -> Any:
    """Make an optimizer; which one makes no difference to where it goes."""
    params = args[0] if args else keywords.get("params", [])
    rate = args[1] if len(args) > 1 else keywords.get("lr", 1e-3)
    several = list(params) if isinstance(params, list | tuple) else [params]
    groups = [one for one in several if isinstance(one, dict)] or [{"params": several}]
    made = [{"lr": rate, **group, "params": _flat(group.get("params", []))} for group in groups]
    found = Optimizer(made, sign=-1.0 if keywords.get("maximize") is True else 1.0)
    reader.optimizers.append(found)
    return found


def _flat(value: Any) -> list[Weights]:
    several = value if isinstance(value, list | tuple) else [value]
    flat = [part for one in several for part in (one if isinstance(one, tuple) else (one,))]
    return [one for one in flat if isinstance(one, Weights)]


def cleared(_: Reader, args: list[Any], __: Keywords) -> Any:
    """Forget the gradients of an optimizer or a model."""
    match args[0] if args else None:
        case Optimizer() as found:
            for weights in found.weights:
                weights.grad = None
        case Model() as found:
            found.weights.grad = None
        case _:
            pass


def stepped(reader: Reader, args: list[Any], _: Keywords) -> Any:
    """Take a step; a closure is called before."""
    if not args or not isinstance(args[0], Optimizer):
        return None
    result = reader.call(args[1], [], {}) if len(args) > 1 and args[1] is not None else None
    for group in args[0].groups:
        rate = group["lr"] if isinstance(group["lr"], Number) else 1e-3
        for weights in group["params"]:
            if weights.grad is not None and weights.requires_grad:
                weights.moved(weights.grad, -rate * args[0].sign)
                weights.grad.used = True
    return result


def clipped(_: Reader, args: list[Any], keywords: Keywords) -> Any:
    """Clip gradients: to nothing where the bound is 0."""
    names = ("max_norm", "clip_value")
    bound = args[1] if len(args) > 1 else next((keywords[n] for n in names if n in keywords), 1.0)
    if isinstance(bound, Number) and bound <= 0:
        for weights in _flat(args[0] if args else keywords.get("parameters")):
            if weights.grad is not None:
                weights.grad.terms = {}
    return UNKNOWN


def parameters(_: Reader, args: list[Any], __: Keywords) -> Any:
    """List the weights of a model."""
    return [args[0].weights] if args and isinstance(args[0], Model) else UNKNOWN


def named_parameters(_: Reader, args: list[Any], __: Keywords) -> Any:
    """List the weights of a model with their name."""
    return [("weight", args[0].weights)] if args and isinstance(args[0], Model) else UNKNOWN


def state(_: Reader, args: list[Any], __: Keywords) -> Any:
    """Return a model's weights by name."""
    return {"weight": args[0].weights} if args and isinstance(args[0], Model) else UNKNOWN


def loaded(_: Reader, args: list[Any], __: Keywords) -> Any:
    """Put weights into a model."""
    if len(args) > 1 and isinstance(args[0], Model) and isinstance(args[1], dict):
        for found in args[1].values():
            if isinstance(found, Weights):
                args[0].weights.updates = list(found.updates)


def frozen(_: Reader, args: list[Any], keywords: Keywords) -> Any:
    """Say whether weights are trained: ``requires_grad_``."""
    wanted = args[1] if len(args) > 1 else keywords.get("requires_grad", True)
    found = args[0].weights if isinstance(args[0], Model) else args[0]
    if isinstance(found, Weights):
        found.requires_grad = wanted is not False
    return args[0]


def criterion(name: str) -> Operation:
    """Make a loss function."""
    return lambda _, __, keywords: Criterion(name, keywords)
