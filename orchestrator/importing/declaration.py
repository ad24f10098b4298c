"""Read an AI4AI-Bench ``declaration.py`` (format 1.5) without running it.

What is written down is read: numbers, text, tuples, dicts, names, sums, ``Phase(...)``, ``replace``
and ``checkpoint_validation_phase``. Whatever would have to be run to be known is refused, with its
line, all of it in one pass.
"""

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from pydantic import Field, ValidationError

from orchestrator.domain.schema import Strict

FILE = "declaration.py"
_UNKNOWN = "only running it would tell"
_TOO_MUCH = "more than any declaration holds"
_SHOWN = 60
_MOST = 10_000
"""Elements of one tuple or dict, characters of one text, and bits of one number."""

VALIDATION_WALL = 3600
"""Seconds that ``checkpoint_validation_phase`` gives a validator unless told otherwise."""


class DeclaredPhase(Strict):
    """One phase as declared. A mount is ``(source, target, read_only)``; times are seconds."""

    name: str
    timeout_sec: int
    command: tuple[str, ...]
    mounts: tuple[tuple[str, str, bool], ...] = ()
    exports: dict[str, str] = Field(default_factory=dict)
    hooks: tuple[str, ...] = ()
    read_only_root: bool = False
    apply_patch: bool = False
    interactive: bool = False
    reserve_sec: int = 0
    free_gib: int = 0
    output_glob: str = ""
    artifact_limit: int = 1
    artifact_kind: str = "auto"
    checkpoint_glob: str = ""
    checkpoint_payload: str = "."
    checkpoint_kind: str = "auto"
    pass_image_digest: bool = False


def read_declaration(text: str) -> tuple[Mapping[str, DeclaredPhase], tuple[str, ...]]:
    """Return what ``PHASES`` says, and everything that cannot be read, each with its line."""
    try:
        module = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as broken:  # by its nesting
        line = getattr(broken, "lineno", None) or 1
        return {}, (f"{FILE}:{line}: not Python: {str(broken) or 'nested too deeply'}",)
    reader = _Reader()
    reader.take(module)
    return reader.phases(), tuple(dict.fromkeys(reader.faults))


class _UnreadableError(Exception):
    """Something that is not written down; told once, where it stands."""


@dataclass(slots=True)
class _Reader:
    faults: list[str] = field(default_factory=list)
    _written: dict[str, ast.expr] = field(default_factory=dict)
    _known: dict[str, Any] = field(default_factory=dict)
    _open: list[str] = field(default_factory=list)
    _meant: dict[str, str] = field(default_factory=dict)

    def take(self, module: ast.Module) -> None:
        """Note what every name of the file is; nothing is worked out yet."""
        for statement in module.body:
            match statement:
                case ast.Expr(ast.Constant(str())) | ast.Import():
                    continue
                case ast.FunctionDef(name=name, decorator_list=[]):
                    self._meant[name] = ""  # it does nothing until it is called
                case ast.ImportFrom(module=origin, names=names):
                    self._meant |= {one.asname or one.name: f"{origin}.{one.name}" for one in names}
                case ast.Assign(targets=[ast.Name(name)], value=value):
                    self._write(name, value)
                case ast.AnnAssign(target=ast.Name(name), value=ast.expr() as value):
                    self._write(name, value)
                case _:
                    kind = type(statement).__name__
                    self._tell(statement, f"{_UNKNOWN}: a statement ({kind})")

    def phases(self) -> dict[str, DeclaredPhase]:
        """Work out ``PHASES``, each phase by itself, so that every fault of each is found."""
        written = self._written.get("PHASES")
        if not isinstance(written, ast.Dict):
            self.faults.append(f"{FILE}:1: PHASES is not written down as a dict")
            return {}
        found = {}
        for key, value in zip(written.keys, written.values, strict=True):
            try:
                name = self._text(key)
                phase = self._value(value)
            except _UnreadableError:
                continue
            except RecursionError:
                self._tell(value, "nested too deeply")
                continue
            if isinstance(phase, DeclaredPhase):
                found[name] = phase
            else:
                self._tell(value, f"PHASES[{name!r}] is no Phase")
        return found

    def _write(self, name: str, value: ast.expr) -> None:
        if name in self._written:
            self._tell(value, f"{name} is given twice")
        self._written[name] = value

    def _tell(self, node: ast.AST, what: str) -> None:
        self.faults.append(f"{FILE}:{getattr(node, 'lineno', 1)}: {what}")

    def _refuse(self, node: ast.AST, what: str) -> _UnreadableError:
        self._tell(node, what)
        return _UnreadableError()

    def _text(self, node: ast.expr | None) -> str:
        found = None if node is None else self._value(node)
        if not isinstance(found, str):
            raise self._refuse(node or ast.Pass(lineno=1), "a key that is no text")
        return found

    def _value(self, node: ast.expr) -> Any:
        """Return the value of what is written.

        Raises:
            _UnreadableError: it would have to be run; told already.
        """
        read = _READERS.get(type(node))
        if read is None:
            raise self._refuse(node, f"{_UNKNOWN}: {_short(node)}")
        return self._bounded(node, read(self, node))

    def constant(self, node: ast.Constant) -> Any:
        if not _is_plain(node.value):
            raise self._refuse(node, f"{_UNKNOWN}: {_short(node)}")
        return node.value

    def several(self, node: ast.Tuple | ast.List) -> tuple[Any, ...]:
        return tuple(self._parts(node.elts))

    def text_of_parts(self, node: ast.JoinedStr) -> str:
        text = ""
        for part in self._parts(node.values):
            if not _is_plain(part):
                raise self._refuse(node, f"{_UNKNOWN}: {_short(node)}")
            text = self._bounded(node, text + str(part))
        return text

    def part_of_text(self, node: ast.FormattedValue) -> Any:
        if node.conversion != -1 or node.format_spec is not None:
            raise self._refuse(node, f"{_UNKNOWN}: {_short(node.value)}")
        return self._value(node.value)

    def _parts(self, parts: list[ast.expr]) -> Iterator[Any]:
        """Work out each part; they are counted here, before so many of them are put together."""
        count = 0
        for part in parts:
            if isinstance(part, ast.Starred):
                several = self._value(part.value)
                if not isinstance(several, tuple):
                    raise self._refuse(part, "what is starred is no tuple")
            else:
                several = (self._value(part),)
            count += len(several)
            if count > _MOST:
                raise self._refuse(part, _TOO_MUCH)
            yield from several

    def mapping(self, node: ast.Dict) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            if key is not None:
                found[self._text(key)] = self._value(value)
                continue
            several = self._value(value)
            if not isinstance(several, dict):
                raise self._refuse(value, "what is spread is no dict")
            found |= several
        return found

    def named(self, node: ast.Name) -> Any:
        name = node.id
        if name in self._known:
            return self._known[name]
        if name not in self._written or name in self._open:
            raise self._refuse(node, f"{name} is not written down in the file")
        self._open.append(name)
        try:
            self._known[name] = self._value(self._written[name])
        finally:
            self._open.pop()
        return self._known[name]

    def minus(self, node: ast.UnaryOp) -> Any:
        number = self._value(node.operand)
        if not isinstance(node.op, ast.USub) or not _is_number(number):
            raise self._refuse(node, f"{_UNKNOWN}: {_short(node)}")
        return -number

    def arithmetic(self, node: ast.BinOp) -> Any:
        one, other, operation = self._value(node.left), self._value(node.right), type(node.op)
        numbers = _is_number(one) and _is_number(other)
        joined = isinstance(one, str | tuple) and type(one) is type(other)
        try:
            if operation is ast.Add and (numbers or joined):
                return one + other
            if numbers and operation in _ARITHMETIC:
                return _ARITHMETIC[operation](one, other)
        except OverflowError as wrong:
            raise self._refuse(node, str(wrong)) from wrong
        if operation is ast.BitOr and isinstance(one, dict) and isinstance(other, dict):
            return {**one, **other}
        raise self._refuse(node, f"{_UNKNOWN}: {_short(node)}")

    def attribute(self, node: ast.Attribute) -> Any:
        owner = self._value(node.value)
        if isinstance(owner, DeclaredPhase) and node.attr in DeclaredPhase.model_fields:
            return getattr(owner, node.attr)
        raise self._refuse(node, f"{_UNKNOWN}: {_short(node)}")

    def call(self, node: ast.Call) -> Any:
        name = _short(node.func)
        maker = _MAKERS.get(self._meant.get(name, name))
        if maker is None or name in self._written:
            raise self._refuse(node, f"{_UNKNOWN}: {name}(...)")
        given, bad = list(self._parts(node.args)), False
        named: dict[str, Any] = {}
        for keyword in node.keywords:
            try:
                if keyword.arg is None:
                    named |= self.mapping(ast.Dict([None], [keyword.value]))
                else:
                    named[keyword.arg] = self._value(keyword.value)
            except _UnreadableError:
                bad = True  # go on: every fault of a phase is told
        if bad:
            raise _UnreadableError
        try:
            return maker(*given, **named)
        except ValidationError as wrong:
            for item in wrong.errors(include_url=False):
                where = ".".join(map(str, item["loc"]))
                self._tell(node, f"{name}: {where}: {item['msg']}")
        except (TypeError, ValueError, OverflowError) as wrong:
            self._tell(node, f"{name}: {wrong}")
        raise _UnreadableError

    def _bounded(self, node: ast.expr, value: Any) -> Any:
        size = 0
        if isinstance(value, tuple | dict | str):
            size = len(value)
        elif isinstance(value, int):
            size = value.bit_length()
        if size > _MOST:
            raise self._refuse(node, _TOO_MUCH)
        return value


def _phase(*given: Any, **named: Any) -> DeclaredPhase:
    fields = dict(zip(DeclaredPhase.model_fields, given, strict=False))
    if len(given) > len(DeclaredPhase.model_fields) or fields.keys() & named.keys():
        raise TypeError("an argument too many")
    return DeclaredPhase.model_validate({**fields, **named}, strict=True)


def _replace(phase: DeclaredPhase, **named: Any) -> DeclaredPhase:
    if not isinstance(phase, DeclaredPhase):
        raise TypeError("replaces no Phase")
    return _phase(**{**dict(phase), **named})


def _as_text(value: Any) -> str:
    """Write a plain value; what holds others could be written without end."""
    if not _is_plain(value):
        raise TypeError("neither text nor a number nor None")
    return str(value)


def _validation(
    score: DeclaredPhase, task_id: str, *, timeout_sec: int = VALIDATION_WALL
) -> DeclaredPhase:
    """Derive the phase that checks whether a checkpoint loads, as AI4AI-Bench does."""
    argv = ("python3", "/opt/harness/validate_checkpoint.py", "--task", task_id)
    return _replace(
        score,
        name="checkpoint-validate",
        timeout_sec=timeout_sec,
        command=(
            *(*argv, "--checkpoint", "/ckpt", "--assets", "/assets"),
            *("--output", "/out/validation.json"),
        ),
        hooks=(),
        read_only_root=False,
        pass_image_digest=False,
    )


_READERS: Mapping[type[ast.expr], Callable[[_Reader, Any], Any]] = MappingProxyType(
    {
        ast.Attribute: _Reader.attribute,
        ast.BinOp: _Reader.arithmetic,
        ast.Call: _Reader.call,
        ast.Constant: _Reader.constant,
        ast.Dict: _Reader.mapping,
        ast.FormattedValue: _Reader.part_of_text,
        ast.JoinedStr: _Reader.text_of_parts,
        ast.List: _Reader.several,
        ast.Name: _Reader.named,
        ast.Tuple: _Reader.several,
        ast.UnaryOp: _Reader.minus,
    }
)
"""How each kind of expression is read; there are no others."""

_MAKERS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "container.Phase": _phase,
        "container.checkpoint_validation_phase": _validation,
        "dataclasses.replace": _replace,
        "dict": dict,
        "int": int,
        "str": _as_text,
        "tuple": tuple,
    }
)
_ARITHMETIC: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = MappingProxyType(
    {
        ast.Sub: lambda one, other: one - other,
        ast.Mult: lambda one, other: one * other,
    }
)


def _is_plain(value: object) -> bool:
    return isinstance(value, str | int | float | None)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _short(node: ast.AST) -> str:
    text = ast.unparse(node)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
