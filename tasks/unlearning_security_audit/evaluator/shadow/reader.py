"""Read a program by following it over shadows, as an interpreter would, without running any of it.

Only what stands here can happen: no import is made, no attribute of a real object is looked up, and
every loop, call and number has a bound. What the code does beyond that is unknown, and taken so.
"""

import ast
from collections.abc import Callable, Mapping
from typing import Any

from shadow.arithmetic import UNKNOWN, binary, spoil
from shadow.expressions import Expressions, OutOfFuelError
from shadow.scope import Class, Function, Instance, Left, Name, Scope, truth
from shadow.values import Gradient, Labels, Loss, Model, Optimizer, Weights

_FUEL = 50_000
_TURNS = 8
_NO_GRAD = {"no_grad", "inference_mode"}


class CodeReader(Expressions):
    """Follows a program. ``losses`` are those that ``backward`` or ``grad`` was called on."""

    def __init__(self) -> None:
        self.attached = True
        self.losses: list[Loss] = []
        self.optimizers: list[Optimizer] = []
        self.scope = Scope()
        self.depth = 0
        self._fuel = _FUEL

    def read(self, module: ast.Module) -> None:
        """Follow the statements of a module, one fault leaving out one statement."""
        for statement in module.body:
            try:
                self.block([statement], self.scope)
            except Left:
                continue

    def block(self, statements: list[ast.stmt], scope: Scope) -> None:
        for statement in statements:
            self.burn()
            method = _STATEMENTS.get(type(statement))
            if method is not None:
                method(self, statement, scope)

    def burn(self) -> None:
        self._fuel -= 1
        if self._fuel < 0:
            raise OutOfFuelError

    def do_expr(self, node: ast.Expr, scope: Scope) -> None:
        self.value(node.value, scope)

    def do_assign(self, node: ast.Assign, scope: Scope) -> None:
        value = self.value(node.value, scope)
        for target in node.targets:
            self.assign(target, value, scope)

    def do_ann_assign(self, node: ast.AnnAssign, scope: Scope) -> None:
        if node.value is not None:
            self.assign(node.target, self.value(node.value, scope), scope)

    def do_aug_assign(self, node: ast.AugAssign, scope: Scope) -> None:
        before = self.value(node.target, scope)
        after = binary(type(node.op), before, self.value(node.value, scope))
        if not self.replaced(before, after):
            self.assign(node.target, after, scope)

    def do_return(self, node: ast.Return, scope: Scope) -> None:
        raise Left(ast.Return, None if node.value is None else self.value(node.value, scope))

    def do_break(self, _: ast.Break, __: Scope) -> None:
        raise Left(ast.Break)

    def do_continue(self, _: ast.Continue, __: Scope) -> None:
        raise Left(ast.Continue)

    def do_raise(self, _: ast.Raise, __: Scope) -> None:
        raise Left(ast.Raise)

    def do_if(self, node: ast.If, scope: Scope) -> None:
        self.block(node.body if truth(self.value(node.test, scope)) else node.orelse, scope)

    def do_for(self, node: ast.For, scope: Scope) -> None:
        for value in self.items(self.value(node.iter, scope)):
            self.assign(node.target, value, scope)
            if not self._turn(node.body, scope):
                return
        self.block(node.orelse, scope)

    def do_while(self, node: ast.While, scope: Scope) -> None:
        for _ in range(_TURNS):
            if not truth(self.value(node.test, scope)):
                break
            if not self._turn(node.body, scope):
                return
        self.block(node.orelse, scope)

    def _turn(self, body: list[ast.stmt], scope: Scope) -> bool:
        """Go through a loop's body once; return whether the loop goes on."""
        try:
            self.block(body, scope)
        except Left as left:
            if left.kind is ast.Break:
                return False
            if left.kind is not ast.Continue:
                raise
        return True

    def do_with(self, node: ast.With, scope: Scope) -> None:
        before = self.attached
        for one in node.items:
            given = self.value(one.context_expr, scope)
            self.set_gradients(one.context_expr, scope)
            if one.optional_vars is not None:
                self.assign(one.optional_vars, given, scope)
        try:
            self.block(node.body, scope)
        finally:
            self.attached = before

    def set_gradients(self, node: ast.expr, scope: Scope) -> None:
        """Look whether a context or decorator switches gradients on or off."""
        call = node if isinstance(node, ast.Call) else None
        function = self.value(call.func if call else node, scope)
        name = function.last if isinstance(function, Name) else ""
        if name in _NO_GRAD:
            self.attached = False
        elif name == "enable_grad":
            self.attached = True
        elif name == "set_grad_enabled" and call and call.args:
            self.attached = self.value(call.args[0], scope) is not False

    def do_try(self, node: ast.Try, scope: Scope) -> None:
        try:
            self.block(node.body, scope)
            self.block(node.orelse, scope)
        except Left as left:
            if left.kind is not ast.Raise or not node.handlers:
                raise
            self.block(node.handlers[0].body, scope)
        finally:
            self.block(node.finalbody, scope)

    def do_function_def(self, node: ast.FunctionDef, scope: Scope) -> None:
        scope.put(node.name, Function(node, scope))

    def do_class_def(self, node: ast.ClassDef, scope: Scope) -> None:
        inside = Scope(above=scope)
        self.block(node.body, inside)
        scope.put(node.name, Class(inside.names, has_bases=bool(node.bases)))

    def do_import(self, node: ast.Import, scope: Scope) -> None:
        for alias in node.names:
            name = alias.name if alias.asname else alias.name.partition(".")[0]
            scope.put(alias.asname or name, Name(name))

    def do_import_from(self, node: ast.ImportFrom, scope: Scope) -> None:
        for alias in node.names:
            scope.put(alias.asname or alias.name, Name(f"{node.module}.{alias.name}"))

    def do_global(self, node: ast.Global, scope: Scope) -> None:
        scope.outer.update(node.names)

    def assign(self, target: ast.expr, value: Any, scope: Scope) -> None:
        """Bind a name, or change a part of something."""
        match target:
            case ast.Name():
                scope.put(target.id, value)
            case ast.Tuple() | ast.List():
                self._unpack(target.elts, value, scope)
            case ast.Starred():
                self.assign(target.value, value, scope)
            case ast.Attribute():
                self._set_attribute(self.value(target.value, scope), target.attr, value)
            case ast.Subscript():
                place, index = self.value(target.value, scope), self.value(target.slice, scope)
                self._set_item(place, index, value)
            case _:
                pass

    def _unpack(self, targets: list[ast.expr], value: Any, scope: Scope) -> None:
        values = self.items(value)
        star = next((i for i, one in enumerate(targets) if isinstance(one, ast.Starred)), None)
        if star is not None:
            rest = len(values) - len(targets) + 1
            values = [*values[:star], values[star : star + rest], *values[star + rest :]]
        if len(values) != len(targets):
            values = [UNKNOWN] * len(targets)
        for one, part in zip(targets, values, strict=True):
            self.assign(one, part, scope)

    def _set_attribute(self, place: Any, name: str, value: Any) -> None:
        match place, name:
            case Instance(), _:
                place.fields[name] = value
            case Weights(), "grad":
                place.grad = value if isinstance(value, Gradient) else None
            case Weights(), "data":
                self.replaced(place, value)
            case Weights(), "requires_grad":
                place.requires_grad = value is not False
            case Model(), "weight":
                self.replaced(place.weights, value)
            case _:
                pass

    def _set_item(self, place: Any, index: Any, value: Any) -> None:
        match place:
            case list() if isinstance(index, int) and -len(place) <= index < len(place):
                place[index] = value
            case dict() if isinstance(index, str | int):
                place[index] = value
            case Labels():
                if not (isinstance(value, Labels) and value.parts == place.parts):
                    spoil(place, 0.0 if value == 0 else None)
            case _:
                self.replaced(place, value)

    def replaced(self, place: Any, value: Any) -> bool:
        """Make a shadow that can be changed in place be what another is; say whether it can."""
        match place, value:
            case Weights(), Weights():
                place.updates = list(value.updates)
            case Gradient(), Gradient():
                place.terms = dict(value.terms)
            case Labels(), Labels():
                place.parts, place.value, place.other = value.parts, value.value, value.other
            case Labels(), _:
                spoil(place)
            case _:
                return False
        return True


_STATEMENTS: Mapping[type[ast.stmt], Callable[..., None]] = {
    ast.Expr: CodeReader.do_expr,
    ast.Assign: CodeReader.do_assign,
    ast.AnnAssign: CodeReader.do_ann_assign,
    ast.AugAssign: CodeReader.do_aug_assign,
    ast.Return: CodeReader.do_return,
    ast.Break: CodeReader.do_break,
    ast.Continue: CodeReader.do_continue,
    ast.Raise: CodeReader.do_raise,
    ast.If: CodeReader.do_if,
    ast.For: CodeReader.do_for,
    ast.While: CodeReader.do_while,
    ast.With: CodeReader.do_with,
    ast.Try: CodeReader.do_try,
    ast.FunctionDef: CodeReader.do_function_def,
    ast.ClassDef: CodeReader.do_class_def,
    ast.Import: CodeReader.do_import,
    ast.ImportFrom: CodeReader.do_import_from,
    ast.Global: CodeReader.do_global,
    ast.Nonlocal: CodeReader.do_global,
}
