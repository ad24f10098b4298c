"""Python's own functions over shadows, as far as answers use them."""

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from shadow.arithmetic import UNKNOWN, Number, binary
from shadow.operations import OPERATIONS, detached, reduced, size
from shadow.scope import Left
from shadow.values import Loader, Loss

_ENDLESS = 4
_MOST = 100


@dataclass(eq=False)
class Stream:
    """Something that is gone through once: an iterator. An endless one begins anew."""

    values: list[Any]
    endless: bool = False
    at: int = 0
    again: Any = None

    def next(self, reader: Any) -> Any:
        """Return the next of its values."""
        if self.at >= len(self.values) and self.endless:
            self.values, self.at = reader.items(self.again), 0
        if self.at >= len(self.values):
            raise Left(ast.Raise)
        self.at += 1
        return self.values[self.at - 1]

    def rest(self, reader: Any) -> list[Any]:
        """Return what is left of it."""
        if self.endless:
            return [self.next(reader) for _ in range(_ENDLESS)]
        left, self.at = self.values[self.at :], len(self.values)
        return left


def _range(_: Any, args: list[Any], __: Any) -> Any:
    if not args or not all(isinstance(one, int) for one in args):
        return [0, 1]
    try:
        found = range(*args[:3])
    except (TypeError, ValueError):
        return []
    return list(found[:2])


def _zip(reader: Any, args: list[Any], _: Any) -> Any:
    return [tuple(row) for row in _rows(reader, args)]


def _rows(reader: Any, args: list[Any]) -> list[tuple[Any, ...]]:
    finite = [one for one in args if not (isinstance(one, Stream) and one.endless)]
    lists = {id(one): reader.items(one) for one in finite}
    count = min((len(found) for found in lists.values()), default=_ENDLESS)
    return [
        tuple(lists[id(one)][n] if id(one) in lists else one.next(reader) for one in args)
        for n in range(count)
    ]


def _enumerate(reader: Any, args: list[Any], keywords: Any) -> Any:
    start = keywords.get("start", args[1] if len(args) > 1 else 0)
    first = start if isinstance(start, int) else 0
    return [(first + n, one) for n, one in enumerate(reader.items(args[0]))] if args else []


def _iter(reader: Any, args: list[Any], _: Any) -> Any:
    if args and isinstance(args[0], Stream):
        return args[0]
    return Stream(reader.items(args[0])) if args else UNKNOWN


def _next(reader: Any, args: list[Any], _: Any) -> Any:
    if not args or not isinstance(args[0], Stream):
        return UNKNOWN
    try:
        return args[0].next(reader)
    except Left:
        if len(args) == 1:
            raise
        return args[1]


def _cycle(_: Any, args: list[Any], __: Any) -> Any:
    return Stream([], endless=True, again=args[0]) if args else UNKNOWN


def _list(reader: Any, args: list[Any], _: Any) -> Any:
    return reader.items(args[0]) if args else []


def _tuple(reader: Any, args: list[Any], _: Any) -> Any:
    return tuple(reader.items(args[0])) if args else ()


def _dict(_: Any, args: list[Any], keywords: Any) -> Any:
    return dict(args[0]) if args and isinstance(args[0], dict) else dict(keywords)


def _sum(reader: Any, args: list[Any], keywords: Any) -> Any:
    if not args:
        return UNKNOWN
    if not isinstance(args[0], list | tuple | Stream):
        return reduced(reader, args, keywords)
    total = args[1] if len(args) > 1 else 0
    for one in reader.items(args[0]):
        total = binary(ast.Add, total, one)
    return total


def _number(reader: Any, args: list[Any], keywords: Any) -> Any:
    if args and isinstance(args[0], Loss):
        return detached(reader, args, keywords)
    return args[0] if args and isinstance(args[0], Number) else UNKNOWN


def _least(choice: Callable[..., Any]) -> Callable[..., Any]:
    def choose(reader: Any, args: list[Any], _: Any) -> Any:
        several = reader.items(args[0]) if len(args) == 1 else args
        known = all(isinstance(one, Number) for one in several)
        return choice(several) if several and known else UNKNOWN

    return choose


def _length(reader: Any, args: list[Any], keywords: Any) -> Any:
    return 1 if args and isinstance(args[0], Loader) else size(reader, args, keywords)


def _map(reader: Any, args: list[Any], _: Any) -> Any:
    return [reader.call(args[0], list(row), {}) for row in _rows(reader, args[1:])] if args else []


def _filter(reader: Any, args: list[Any], _: Any) -> Any:
    # Filters keep what is to be trained; of shadows there is nothing else.
    return reader.items(args[1]) if len(args) > 1 else []


def _isinstance(*_: Any) -> Any:
    return UNKNOWN


def _keys(_: Any, args: list[Any], __: Any) -> Any:
    return list(args[0]) if args and isinstance(args[0], dict) else UNKNOWN


def _values(_: Any, args: list[Any], __: Any) -> Any:
    return list(args[0].values()) if args and isinstance(args[0], dict) else UNKNOWN


def _items(_: Any, args: list[Any], __: Any) -> Any:
    return list(args[0].items()) if args and isinstance(args[0], dict) else UNKNOWN


def _append(_: Any, args: list[Any], __: Any) -> Any:
    if len(args) > 1 and isinstance(args[0], list) and len(args[0]) < _MOST:
        args[0].append(args[1])


def _chain(reader: Any, args: list[Any], _: Any) -> Any:
    return [one for several in args for one in reader.items(several)]


BUILTINS: Mapping[str, Callable[..., Any]] = {
    "range": _range,
    "trange": _range,
    "zip": _zip,
    "enumerate": _enumerate,
    "iter": _iter,
    "next": _next,
    "cycle": _cycle,
    "list": _list,
    "tqdm": _list,
    "sorted": _list,
    "reversed": _list,
    "tuple": _tuple,
    "dict": _dict,
    "sum": _sum,
    "fsum": _sum,
    "float": _number,
    "int": _number,
    "min": _least(min),
    "max": _least(max),
    "len": _length,
    "map": _map,
    "filter": _filter,
    "isinstance": _isinstance,
    "hasattr": _isinstance,
    "chain": _chain,
    "keys": _keys,
    "values": _values,
    "items": _items,
    "append": _append,
    "deepcopy": OPERATIONS["deepcopy"],
}
