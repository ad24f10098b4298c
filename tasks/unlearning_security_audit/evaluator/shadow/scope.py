"""Names, functions and objects of the code that is followed, and what can be asked of them."""

import ast
import builtins
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from shadow.arithmetic import UNKNOWN, Number
from shadow.operations import detached, size
from shadow.values import Inputs, Labels, Loss, Model, Optimizer, Output, Weights

_KNOWN = frozenset(dir(builtins)) | {"torch", "nn", "F", "np"}
"""Names that an answer's code finds where it is run; the last four are put there."""


class Left(Exception):  # noqa: N818 - not an error
    """A statement that leaves a block: break, continue, return or raise."""

    def __init__(self, kind: type[ast.stmt], value: Any = None) -> None:
        super().__init__()
        self.kind, self.value = kind, value


@dataclass(eq=False)
class Name:
    """A module, or something in one: ``torch.nn.functional``. Its last part is what counts."""

    path: str

    @property
    def last(self) -> str:
        return self.path.rpartition(".")[2]


@dataclass(eq=False)
class Bound:
    """A method of a shadow, to be called."""

    name: str
    of: Any


@dataclass(eq=False)
class Function:
    """A function of the code."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    scope: "Scope"
    first: Any = None


@dataclass(eq=False)
class Class:
    """A class of the code, with its methods by name."""

    members: dict[str, Any]
    has_bases: bool = False


@dataclass(eq=False)
class Instance:
    """An object of such a class."""

    of: Class
    fields: dict[str, Any] = field(default_factory=dict)


@dataclass(eq=False)
class Scope:
    """Names and what they stand for; ``yields`` collects what a generator gives."""

    names: dict[str, Any] = field(default_factory=dict)
    above: "Scope | None" = None
    yields: list[Any] = field(default_factory=list)
    outer: set[str] = field(default_factory=set)

    def find(self, name: str) -> Any:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.above
        if name in _KNOWN:
            return Name(name)
        raise Left(ast.Raise)  # there is no such name

    def put(self, name: str, value: Any) -> None:
        scope = self
        while name in scope.outer and scope.above is not None:
            scope = scope.above
        scope.names[name] = value


def truth(value: Any) -> bool:
    """Decide a condition; one of which nothing is known holds."""
    return bool(value) if isinstance(value, Number | str | list | tuple | dict | None) else True


def compared(kind: ast.cmpop, left: Any, right: Any) -> Any:
    """Compare two values, as far as they are known."""
    if isinstance(kind, ast.Is | ast.IsNot):
        same = left is right
        return same if isinstance(kind, ast.Is) else not same
    plain = (int, float, str, type(None))
    if isinstance(left, plain) and isinstance(right, list | tuple | dict):
        inside = left in right
        return {ast.In: inside, ast.NotIn: not inside}.get(type(kind), UNKNOWN)
    if not (isinstance(left, plain) and isinstance(right, plain)):
        return UNKNOWN
    if isinstance(kind, ast.Eq | ast.NotEq):
        return (left == right) is isinstance(kind, ast.Eq)
    if not (isinstance(left, Number) and isinstance(right, Number)):
        return UNKNOWN
    order = {ast.Lt: left < right, ast.LtE: left <= right}
    order |= {ast.Gt: left > right, ast.GtE: left >= right}
    return order.get(type(kind), UNKNOWN)


_ATTRIBUTES: Mapping[tuple[type, str], Callable[[Any], Any]] = {
    (Model, "weight"): lambda model: model.weights,
    (Weights, "grad"): lambda weights: weights.grad,
    (Weights, "requires_grad"): lambda weights: weights.requires_grad,
    (Loss, "data"): lambda loss: detached(None, [loss], {}),
    (Output, "data"): lambda output: detached(None, [output], {}),
    (Optimizer, "param_groups"): lambda optimizer: optimizer.groups,
    **{
        (kind, "shape"): lambda found: (size(None, [found], {}), 1)
        for kind in (Inputs, Labels, Output)
    },
}
_ITSELF = {"T", "mT", "data", "real"}


def attribute(place: Any, name: str) -> Any:
    """Look up an attribute; one that is not known is a method."""
    if isinstance(place, Name):
        return Name(f"{place.path}.{name}")
    if isinstance(place, Instance):
        return _member(place, name)
    found = _ATTRIBUTES.get((type(place), name))
    if found is not None:
        return found(place)
    return place if name in _ITSELF else Bound(name, place)


def _member(place: Instance, name: str) -> Any:
    if name in place.fields:
        return place.fields[name]
    if name not in place.of.members and not (place.of.has_bases or name.startswith("__")):
        raise Left(ast.Raise)  # there is no such attribute
    member = place.of.members.get(name, UNKNOWN)
    if isinstance(member, Function):
        return Function(member.node, member.scope, place)
    return member
