"""What expressions and calls of the code stand for."""

import ast
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from shadow.arithmetic import UNKNOWN, binary, item, negative
from shadow.builtin import BUILTINS, Stream
from shadow.operations import OPERATIONS
from shadow.scope import (
    Bound,
    Class,
    Function,
    Instance,
    Left,
    Name,
    Scope,
    attribute,
    compared,
    truth,
)
from shadow.values import Criterion, Inputs, Loader, Model, Output, Unknown

_DEPTH = 40


class OutOfFuelError(Exception):
    """The code is longer, or goes deeper, than is followed."""


def _unknown(*_: Any) -> Any:
    return UNKNOWN


IN_PLACE = {
    "zero": OPERATIONS["zeros_like"],
    "fill": OPERATIONS["full_like"],
    "copy": lambda _, args, __: args[1] if len(args) > 1 else UNKNOWN,
    "detach": OPERATIONS["detach"],
}
"""What some methods that end in ``_`` do."""


class Expressions(ABC):
    """The half of a reader that knows expressions; the other half knows statements."""

    attached: bool
    depth: int

    @abstractmethod
    def burn(self) -> None:
        """Spend a little; raise when nothing is left."""

    @abstractmethod
    def block(self, statements: list[ast.stmt], scope: Scope) -> None:
        """Follow statements."""

    @abstractmethod
    def assign(self, target: ast.expr, value: Any, scope: Scope) -> None:
        """Bind a name, or change a part of something."""

    @abstractmethod
    def replaced(self, place: Any, value: Any) -> bool:
        """Make a shadow that can be changed in place be what another is; say whether it can."""

    @abstractmethod
    def set_gradients(self, node: ast.expr, scope: Scope) -> None:
        """Look whether a context or decorator switches gradients on or off."""

    def value(self, node: ast.expr, scope: Scope) -> Any:
        """Return what an expression stands for."""
        self.burn()
        method = _EXPRESSIONS.get(type(node))
        return UNKNOWN if method is None else method(self, node, scope)

    def of_constant(self, node: ast.Constant, _: Scope) -> Any:
        return node.value

    def of_name(self, node: ast.Name, scope: Scope) -> Any:
        return scope.find(node.id)

    def of_named_expr(self, node: ast.NamedExpr, scope: Scope) -> Any:
        value = self.value(node.value, scope)
        self.assign(node.target, value, scope)
        return value

    def of_bin_op(self, node: ast.BinOp, scope: Scope) -> Any:
        return binary(type(node.op), self.value(node.left, scope), self.value(node.right, scope))

    def of_unary_op(self, node: ast.UnaryOp, scope: Scope) -> Any:
        value = self.value(node.operand, scope)
        if isinstance(node.op, ast.USub):
            return negative(value)
        if isinstance(node.op, ast.Not):
            return not truth(value)
        return value if isinstance(node.op, ast.UAdd) else UNKNOWN

    def of_bool_op(self, node: ast.BoolOp, scope: Scope) -> Any:
        wanted = isinstance(node.op, ast.Or)
        found: Any = UNKNOWN
        for one in node.values:
            found = self.value(one, scope)
            if truth(found) is wanted:
                break
        return found

    def of_compare(self, node: ast.Compare, scope: Scope) -> Any:
        values = [self.value(one, scope) for one in (node.left, *node.comparators)]
        pairs = zip(node.ops, values, values[1:], strict=False)
        found = [compared(kind, left, right) for kind, left, right in pairs]
        return UNKNOWN if any(isinstance(one, Unknown) for one in found) else all(found)

    def of_if_exp(self, node: ast.IfExp, scope: Scope) -> Any:
        return self.value(node.body if truth(self.value(node.test, scope)) else node.orelse, scope)

    def of_tuple(self, node: ast.Tuple, scope: Scope) -> Any:
        return tuple(self._elements(node.elts, scope))

    def of_list(self, node: ast.List, scope: Scope) -> Any:
        return self._elements(node.elts, scope)

    def _elements(self, nodes: list[ast.expr], scope: Scope) -> list[Any]:
        found: list[Any] = []
        for node in nodes:
            if isinstance(node, ast.Starred):
                found += self.items(self.value(node.value, scope))
            else:
                found.append(self.value(node, scope))
        return found

    def of_dict(self, node: ast.Dict, scope: Scope) -> Any:
        found: dict[Any, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            name = UNKNOWN if key is None else self.value(key, scope)
            if isinstance(name, str | int):
                found[name] = self.value(value, scope)
        return found

    def of_slice(self, node: ast.Slice, scope: Scope) -> Any:
        parts = (node.lower, node.upper, node.step)
        return slice(*(None if one is None else self.value(one, scope) for one in parts))

    def of_lambda(self, node: ast.Lambda, scope: Scope) -> Any:
        return Function(node, scope)

    def of_list_comp(self, node: ast.ListComp | ast.GeneratorExp, scope: Scope) -> Any:
        inside = Scope(above=scope)
        return [self.value(node.elt, inside) for _ in self._loops(node.generators, inside)]

    def of_dict_comp(self, node: ast.DictComp, scope: Scope) -> Any:
        inside = Scope(above=scope)
        found = {}
        for _ in self._loops(node.generators, inside):
            key = self.value(node.key, inside)
            if isinstance(key, str | int):
                found[key] = self.value(node.value, inside)
        return found

    def _loops(self, generators: list[ast.comprehension], scope: Scope) -> Iterator[None]:
        if not generators:
            yield
            return
        first, *rest = generators
        for one in self.items(self.value(first.iter, scope)):
            self.assign(first.target, one, scope)
            if all(truth(self.value(test, scope)) for test in first.ifs):
                yield from self._loops(rest, scope)

    def of_yield(self, node: ast.Yield, scope: Scope) -> Any:
        scope.yields.append(None if node.value is None else self.value(node.value, scope))

    def of_subscript(self, node: ast.Subscript, scope: Scope) -> Any:
        value, index = self.value(node.value, scope), self.value(node.slice, scope)
        if isinstance(value, list | tuple | dict):
            try:
                return value[index]
            except (LookupError, TypeError, ValueError):
                return UNKNOWN
        return item(value, index)

    def of_attribute(self, node: ast.Attribute, scope: Scope) -> Any:
        return attribute(self.value(node.value, scope), node.attr)

    def of_call(self, node: ast.Call, scope: Scope) -> Any:
        function = self.value(node.func, scope)
        args = self._elements(node.args, scope)
        keywords: dict[str, Any] = {}
        for one in node.keywords:
            given = self.value(one.value, scope)
            if one.arg is not None:
                keywords[one.arg] = given
            elif isinstance(given, dict):
                keywords |= {str(name): value for name, value in given.items()}
        return self.call(function, args, keywords)

    def call(self, function: Any, args: list[Any], keywords: Mapping[str, Any]) -> Any:
        """Call whatever it is."""
        given = dict(keywords)
        match function:
            case Function():
                return self._call_function(function, args, given)
            case Class() | Instance():
                return self._call_object(function, args, given)
            case Criterion():
                return OPERATIONS[function.name](self, args, {**function.options, **given})
            case Bound():
                return self._operate(function.name, [function.of, *args], given, method=True)
            case Name():
                return self._operate(function.last, args, given, method=False)
            case _:
                return self._output(function, args)

    def _call_object(
        self, function: Class | Instance, args: list[Any], given: dict[str, Any]
    ) -> Any:
        """Make an object of a class of the code, or call one."""
        made = Instance(function) if isinstance(function, Class) else function
        names = ("__init__",) if made is not function else ("__call__", "forward")
        found = (attribute(made, name) for name in names if name in made.of.members)
        method = next((one for one in found if isinstance(one, Function)), None)
        result = UNKNOWN if method is None else self._call_function(method, args, given)
        return result if made is function else made

    def _output(self, model: Any, args: list[Any]) -> Any:
        """Have the model say something of rows; nothing else that is called here is known."""
        if not isinstance(model, Model) or not args or not isinstance(args[0], Inputs):
            return UNKNOWN
        attached = self.attached and model.weights.requires_grad
        return Output(args[0].parts, model, attached)

    def _operate(
        self, name: str, args: list[Any], keywords: dict[str, Any], *, method: bool
    ) -> Any:
        """Apply a known function; a name that ends in ``_`` changes what it is called on."""
        if not method and name in BUILTINS:
            return BUILTINS[name](self, args, keywords)
        if name == "forward" and args and isinstance(args[0], Model):
            return self._output(args[0], args[1:])
        operation = OPERATIONS.get(name)
        if operation is not None:
            return operation(self, args, keywords)
        plain = name.removesuffix("_")
        if method and plain != name and args:
            after = IN_PLACE.get(plain, OPERATIONS.get(plain, _unknown))(self, args, keywords)
            return args[0] if self.replaced(args[0], after) else after
        if name in BUILTINS:
            return BUILTINS[name](self, args, keywords)
        return UNKNOWN

    def _call_function(self, function: Function, args: list[Any], keywords: dict[str, Any]) -> Any:
        if self.depth >= _DEPTH:
            raise OutOfFuelError
        node = function.node
        inside = Scope(above=function.scope)
        bound = args if function.first is None else [function.first, *args]
        self._bind(node.args, bound, keywords, inside, function.scope)
        if isinstance(node, ast.Lambda):
            return self.value(node.body, inside)
        before, self.depth = self.attached, self.depth + 1
        for decorator in node.decorator_list:
            self.set_gradients(decorator, function.scope)
        try:
            self.block(node.body, inside)
        except Left as left:
            if left.kind is not ast.Return:
                raise
            return left.value if not inside.yields else Stream(inside.yields)
        finally:
            self.attached, self.depth = before, self.depth - 1
        return Stream(inside.yields) if inside.yields else None

    def _bind(
        self,
        wanted: ast.arguments,
        args: list[Any],
        keywords: dict[str, Any],
        scope: Scope,
        outside: Scope,
    ) -> None:
        names = [one.arg for one in (*wanted.posonlyargs, *wanted.args)]
        defaults = [UNKNOWN] * (len(names) - len(wanted.defaults))
        defaults += [self.value(one, outside) for one in wanted.defaults]
        scope.names.update(zip(names, defaults, strict=True))
        for one, default in zip(wanted.kwonlyargs, wanted.kw_defaults, strict=True):
            scope.names[one.arg] = UNKNOWN if default is None else self.value(default, outside)
        scope.names.update(zip(names, args, strict=False))
        known = {*names, *(one.arg for one in wanted.kwonlyargs)}
        scope.names.update({name: value for name, value in keywords.items() if name in known})
        if wanted.vararg is not None:
            scope.names[wanted.vararg.arg] = tuple(args[len(names) :])
        if wanted.kwarg is not None:
            rest = {name: value for name, value in keywords.items() if name not in known}
            scope.names[wanted.kwarg.arg] = rest

    def items(self, value: Any) -> list[Any]:
        """List what a loop goes through."""
        match value:
            case Loader():
                return value.batches()
            case Stream():
                return value.rest(self)
            case list() | tuple():
                return list(value)
            case dict():
                return list(value)
            case _:
                return []


_EXPRESSIONS: Mapping[type[ast.expr], Callable[..., Any]] = {
    ast.Constant: Expressions.of_constant,
    ast.Name: Expressions.of_name,
    ast.NamedExpr: Expressions.of_named_expr,
    ast.BinOp: Expressions.of_bin_op,
    ast.UnaryOp: Expressions.of_unary_op,
    ast.BoolOp: Expressions.of_bool_op,
    ast.Compare: Expressions.of_compare,
    ast.IfExp: Expressions.of_if_exp,
    ast.Tuple: Expressions.of_tuple,
    ast.List: Expressions.of_list,
    ast.Dict: Expressions.of_dict,
    ast.Slice: Expressions.of_slice,
    ast.Lambda: Expressions.of_lambda,
    ast.ListComp: Expressions.of_list_comp,
    ast.DictComp: Expressions.of_dict_comp,
    ast.Yield: Expressions.of_yield,
    ast.Subscript: Expressions.of_subscript,
    ast.Attribute: Expressions.of_attribute,
    ast.Call: Expressions.of_call,
    ast.GeneratorExp: Expressions.of_list_comp,
    ast.SetComp: Expressions.of_list_comp,
}
