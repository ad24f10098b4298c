"""Small changes to scripts that are right: most are wrong then, in ways nobody thought of.

A change takes a statement out, swaps two, turns a sign, puts one set's name for the other's, sets a
factor to 0, detaches a loss or zeroes its labels. Which of them still work is not for this module
to say: ``truth.py`` runs them.
"""

import ast
import copy
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

_SETS = (
    ("rx", "fx"),
    ("ry", "fy"),
    ("xr", "xf"),
    ("yr", "yf"),
    ("Xr", "Xf"),
    ("X_r", "X_f"),
    ("y_r", "y_f"),
    ("g_r", "g_f"),
    ("retain", "forget"),
    ("retain_x", "forget_x"),
    ("retain_y", "forget_y"),
    ("retain_loss", "forget_loss"),
    ("retain_loader", "forget_loader"),
    ("loss_r", "loss_f"),
    ("loss_retain", "loss_forget"),
    ("keep", "drop"),
    ("kept", "planted"),
)
OTHER = {name: other for one, two in _SETS for name, other in ((one, two), (two, one))}
_FACTORS = {"alpha", "lr"}
_TURNED: dict[type[ast.operator], ast.operator] = {ast.Add: ast.Sub(), ast.Sub: ast.Add()}


class Mutant(NamedTuple):
    """A changed script. ``change`` says what was done to it."""

    change: str
    code: str


def mutants(source: str) -> list[Mutant]:
    """Return every single change of a script, none twice."""
    tree = ast.parse(source)
    known = {ast.unparse(tree)}
    found = []
    for at, node in enumerate(ast.walk(tree)):
        for what, change in _changes(node):
            changed = copy.deepcopy(tree)
            change(list(ast.walk(changed))[at])
            code = ast.unparse(ast.fix_missing_locations(changed))
            if code not in known:
                known.add(code)
                found.append(Mutant(what, code))
    return found


Change = tuple[str, Callable[[Any], None]]


def _changes(node: ast.AST) -> Iterator[Change]:
    body = getattr(node, "body", None)
    if isinstance(body, list) and not isinstance(node, ast.Module | ast.ClassDef):
        yield from _of_body(body)
    text = ast.unparse(node) if isinstance(node, ast.expr | ast.stmt) else ""
    match node:
        case ast.BinOp(op=ast.Add() | ast.Sub()) | ast.AugAssign(op=ast.Add() | ast.Sub()):
            yield f"sign turned: {text}", _turn
        case ast.UnaryOp(op=ast.USub()):
            yield f"minus lost: {text}", _lose_minus
        case ast.Name(id=name, ctx=ast.Load()) if name in OTHER:
            yield f"{name} -> {OTHER[name]}", _swap_set
        case ast.Name(id=name, ctx=ast.Load()) if name in _FACTORS:
            yield f"{name} -> 0 * {name}", _times_zero
        case ast.Call(func=ast.Attribute(attr="cross_entropy"), args=[_, _]):
            yield f"detached: {text}", _detach
            yield f"zero labels: {text}", _zero_labels
        case _:
            pass


def _of_body(body: list[ast.stmt]) -> Iterator[Change]:
    for at, statement in enumerate(body):
        first = ast.unparse(statement).partition("\n")[0]
        yield f"without: {first}", lambda node, at=at: node.body.__setitem__(at, ast.Pass())
        if at + 1 < len(body):
            yield f"swapped with the next: {first}", lambda node, at=at: _swap(node.body, at)


def _swap(body: list[ast.stmt], at: int) -> None:
    body[at], body[at + 1] = body[at + 1], body[at]


def _turn(node: ast.BinOp | ast.AugAssign) -> None:
    node.op = _TURNED[type(node.op)]


def _lose_minus(node: ast.UnaryOp) -> None:
    node.op = ast.UAdd()


def _swap_set(node: ast.Name) -> None:
    node.id = OTHER[node.id]


def _times_zero(node: ast.Name) -> None:
    node.id = f"(0.0 * {node.id})"  # it is only ever written out again


def _detach(node: ast.Call) -> None:
    inner = ast.Call(node.func, node.args, node.keywords)
    node.func, node.args, node.keywords = ast.Attribute(inner, "detach", ast.Load()), [], []


def _zero_labels(node: ast.Call) -> None:
    zeros = ast.Attribute(ast.Name("torch", ast.Load()), "zeros_like", ast.Load())
    node.args[1] = ast.Call(zeros, [node.args[1]], [])
