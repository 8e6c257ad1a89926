"""Checks the arguments of public functions against their annotations.

Checks classes, the range of numbers and the encoding of texts. The functions themselves check
frames, schemas, durations, locations, and bounds of numbers.
"""

from __future__ import annotations

import ast
import datetime as dt
import functools
import inspect
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from types import EllipsisType, NoneType
from typing import Any, TypeVar, overload

from lakelog.errors import ArgumentTypeError, InvalidInputError, naming_table

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Class = TypeVar("_Class", bound=type)

_MOST = 1 << 63  # the formats have no larger numbers
_SHOWN = 80
_URL = re.compile(r"(?!file:)[A-Za-z][A-Za-z0-9+.-]+:[/\\]")
_SECRET = frozenset(("storage_options",))
"""Parameters of which messages show the type, not the value."""


class _WrongTypeError(Exception):
    """The value has the wrong type."""


class _WrongValueError(Exception):
    """The type is correct, the value is not; the argument describes the expected value."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """One alternative of an annotation; values of the types `exact` need no further check."""

    name: str
    exact: frozenset[type]
    convert: Callable[[Any], Any]


def checked(function: _Function, location_of: Callable[[Any], str] | None = None) -> _Function:
    """Check the arguments of calls of a function against its annotations, and convert numbers and
    arrays of other libraries. Raises ArgumentTypeError, or InvalidInputError for a number that
    exceeds 64 bits or is NaN, or a text with a lone surrogate. Errors of a method name the
    `location_of` its object.
    """
    annotated = inspect.get_annotations(function)
    kinds = {name: kind for name, text in annotated.items() if (kind := _kind_of(str(text)))}
    kinds.pop("return", None)
    if not kinds and location_of is None:
        return function
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    by_position = [(at, name, kinds[name]) for at, name in enumerate(names) if name in kinds]

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        for at, name, kind in by_position:
            if at >= len(args):
                break
            if type(args[at]) not in kind.exact:
                args = (*args[:at], _converted(name, kind, args[at]), *args[at + 1 :])
        for name, value in kwargs.items():
            wanted = kinds.get(name)
            if wanted is not None and type(value) not in wanted.exact:
                kwargs[name] = _converted(name, wanted, value)
        if location_of is None:
            return function(*args, **kwargs)
        with naming_table(location_of(args[0])):
            return function(*args, **kwargs)

    return call  # type: ignore[return-value] # it has the signature of `function`


def checked_methods(
    *unchecked: str, location_of: Callable[[Any], str] | None = None
) -> Callable[[_Class], _Class]:
    """`checked`, for the public methods that a class itself defines, except `unchecked`."""

    def decorate(owner: _Class) -> _Class:
        for name, value in list(vars(owner).items()):
            if inspect.isfunction(value) and not name.startswith("_") and name not in unchecked:
                setattr(owner, name, checked(value, location_of))
        return owner

    return decorate


def require_int(name: str, value: object, least: int, most: int = _MOST - 1) -> int:
    """An argument as an int within bounds; raises ArgumentTypeError or InvalidInputError."""
    if type(value) is int and least <= value <= most:
        return value
    number: int | None = int(value) if _is_a(Integral, value) else None  # type: ignore[call-overload]
    if number is not None and least <= number <= most:
        return number
    is_limited = most < _MOST - 1 or (number or 0) > most
    wanted = f"an int from {least} to {most}" if is_limited else f"an int >= {least}"
    raise _error(ArgumentTypeError if number is None else InvalidInputError, name, wanted, value)


@overload
def as_names(given: str | Sequence[str]) -> Sequence[str]: ...


@overload
def as_names(given: None) -> None: ...


def as_names(given: str | Sequence[str] | None) -> Sequence[str] | None:
    """The names of an argument that takes one name or several."""
    return [given] if isinstance(given, str) else given


def is_unicode(text: str) -> bool:
    """Whether a text has no lone surrogates, as file names have whose bytes are not UTF-8."""
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


def require_text(name: str, value: object) -> str:
    """An argument as a str; raises ArgumentTypeError, or InvalidInputError for lone surrogates."""
    return str(_converted(name, _KINDS["str"], value))


def require_seconds(name: str, value: object, *, may_be_none: bool) -> None:
    """Raise InvalidInputError unless the argument is a number of seconds, or None if it may be."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
    if not (is_number or (value is None and may_be_none)):
        raise InvalidInputError(
            f"{name} must be a number of seconds", expected=">= 0", found=repr(value)
        )


def require_path(name: str, value: object) -> None:
    """Raise ArgumentTypeError unless the argument is a path of a file or folder."""
    if not isinstance(value, str | bytes | os.PathLike):
        raise _error(ArgumentTypeError, name, _PATH.name, value)


def local_path(path: str | bytes | os.PathLike[Any]) -> str:
    """The path of a local file or folder; ``~`` at its beginning is the home folder."""
    return os.path.expanduser(os.fsdecode(path))


def absolute_path(path: str) -> str:
    """A local path from the root; refuses a relative one if the working directory was deleted."""
    try:
        # With "..", by the system: a link may be before it.
        return os.path.realpath(path) if ".." in path.split(os.sep) else os.path.abspath(path)
    except FileNotFoundError as cause:
        raise InvalidInputError(
            "the location is relative to the working directory, which was deleted",
            path=path,
            expected="an absolute path, or an existing working directory",
        ) from cause


def require_folder(path: str, expected: str, hint: str) -> None:
    """Refuse a local path that is a file, or below one."""
    above = absolute_path(path)
    while not os.path.lexists(above) and above != os.path.dirname(above):
        above = os.path.dirname(above)
    if os.path.isfile(above):
        raise InvalidInputError(
            "the location is a file", path=above, expected=expected, found="a file", hint=hint
        )


def path_text(name: str, value: object) -> str:
    """The text of a path or URL; raises ArgumentTypeError, also for a path of bytes."""
    return os.fspath(_converted(name, _PATH, value))  # type: ignore[no-any-return] # `_path` checks


def require_bool(name: str, value: object) -> None:
    """Raise ArgumentTypeError for an argument that is not a bool."""
    if type(value) is not bool:
        _converted(name, _KINDS["bool"], value)


def require_choice(name: str, value: object, choices: Collection[str]) -> None:
    """Raise ArgumentTypeError or InvalidInputError unless the argument is one of some strings."""
    if isinstance(value, str) and value in choices:
        return
    error = InvalidInputError if isinstance(value, str) else ArgumentTypeError
    raise _error(error, name, " or ".join(map(repr, choices)), value)


def require_version(version: object) -> None:
    """Raise ArgumentTypeError or InvalidInputError unless it is a version or None."""
    if version is not None:
        require_int("version", version, least=0)


def _converted(name: str, kind: _Kind, value: object) -> Any:
    try:
        return kind.convert(value)
    except _WrongTypeError:
        error = _error(ArgumentTypeError, name, kind.name, value)
    except _WrongValueError as wrong:
        error = _error(InvalidInputError, name, str(wrong), value)
    raise error


def _error(
    make: type[InvalidInputError], name: str, wanted: str, value: object
) -> InvalidInputError:
    return make(
        f"{name} must be {wanted}, got {_shown(name, value)}",
        expected=wanted,
        found=type(value).__name__ if make is ArgumentTypeError else _shown(name, value),
        hint=_next_step(name, wanted, value),
    )


def _next_step(name: str, wanted: str, value: object) -> str | None:
    if _is_text_for_texts(wanted, value):
        return f"pass [{_shown(name, value)}]"
    is_table = hasattr(value, "snapshot") and hasattr(value, "append")  # in a higher layer
    return "use its method, such as table.append(df)" if is_table and "path" in wanted else None


def _is_text_for_texts(wanted: str, value: object) -> bool:
    return "sequence of str" in wanted and isinstance(value, str) and len(value) < _SHOWN


def _shown(name: str, value: object) -> str:
    """The value as the caller wrote it, if it is short; else its type."""
    if name not in _SECRET and not (isinstance(value, int) and value.bit_length() > _SHOWN):
        text = repr(value)
        if len(text) <= _SHOWN and "\n" not in text:
            return text
    return f"a value of type {type(value).__name__}"


@functools.cache
def _kind_of(annotation: str) -> _Kind | None:
    """How an annotation is checked; None if its class alone does not decide."""
    return _compiled(ast.parse(annotation, mode="eval").body)


def _compiled(node: ast.expr) -> _Kind | None:
    parts = _alternatives(node)
    names = {ast.unparse(part) for part in parts}
    if any(name.startswith(("Path", "os.PathLike")) for name in names):
        # A path may have bytes that are not UTF-8; locations are checked when they are opened.
        return _either([_PATH, *([_KINDS["None"]] if "None" in names else [])])
    kinds = [_single(part) for part in parts]
    return None if None in kinds else _either([kind for kind in kinds if kind is not None])


def _alternatives(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BinOp):
        return [*_alternatives(node.left), *_alternatives(node.right)]
    return [node]


def _single(node: ast.expr) -> _Kind | None:
    if not isinstance(node, ast.Subscript):
        return _KINDS.get(ast.unparse(node))
    name = ast.unparse(node.value)
    if name == "Mapping" and isinstance(node.slice, ast.Tuple):
        key, value = map(_compiled, node.slice.elts)
        return _mapping(key, value)
    if name in {"Sequence", "Collection"}:
        return _items(_compiled(node.slice), allows_sets=name == "Collection")
    return None


def _either(kinds: Sequence[_Kind]) -> _Kind:
    if len(kinds) == 1:
        return kinds[0]

    def convert(value: Any) -> Any:
        error: Exception = _WrongTypeError()
        for kind in kinds:
            if type(value) in kind.exact:
                return value
            try:
                return kind.convert(value)
            except _WrongTypeError:
                pass
            except _WrongValueError as wrong:
                error = wrong
        raise error

    # None, an alternative of most parameters, is named last.
    names = sorted((kind.name for kind in kinds), key="None".__eq__)
    return _Kind(" or ".join(names), frozenset().union(*(k.exact for k in kinds)), convert)


def _is_a(kind: type, value: object) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _int(value: Any) -> int:
    if not _is_a(Integral, value):
        raise _WrongTypeError
    if not -_MOST <= value < _MOST:
        raise _WrongValueError("an int of at most 64 bits")
    return int(value)


def _float(value: Any) -> float:
    if not _is_a(Real, value):
        raise _WrongTypeError
    try:
        number = float(value)
    except OverflowError:
        number = float("nan")
    if number != number:  # noqa: PLR0124 - NaN
        raise _WrongValueError("a number in the range of a double, and not NaN")
    return number


def _bool(value: Any) -> bool:
    if type(value).__module__ != "numpy" or type(value).__name__ not in {"bool", "bool_"}:
        raise _WrongTypeError
    return bool(value)


def _str(value: Any) -> str:
    if not isinstance(value, str):
        raise _WrongTypeError
    if not is_unicode(value):
        raise _WrongValueError("a str without lone surrogates")
    return value


def _instance_of(*classes: type) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        if not isinstance(value, classes):
            raise _WrongTypeError
        return value

    return convert


def _path(value: Any) -> Any:
    try:
        text = os.fspath(value)
    except TypeError:
        raise _WrongTypeError from None
    if not isinstance(text, str):  # bytes
        raise _WrongTypeError
    if not isinstance(value, str) and _URL.match(text):
        raise _WrongValueError("a str if it is a URL, because path objects drop its slashes")
    return value


def _of_polars(name: str) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        import polars as pl  # a process that only appends to a write-ahead log does not need it

        return _instance_of(getattr(pl, name))(value)

    return convert


def _callable(value: Any) -> Any:
    if not callable(value):
        raise _WrongTypeError
    return value


def _mapping(key: _Kind | None, value: _Kind | None) -> _Kind:
    def convert(given: Any) -> Any:
        if not isinstance(given, Mapping):
            raise _WrongTypeError
        for kind, parts in ((key, given.keys()), (value, given.values())):
            if kind is not None:
                for part in parts:
                    kind.convert(part)
        return given

    return _Kind(f"a mapping ({_bare(key)} to {_bare(value)})", frozenset(), convert)


def _items(item: _Kind | None, *, allows_sets: bool) -> _Kind:
    def convert(given: Any) -> Any:
        is_sequence = hasattr(given, "__getitem__") and hasattr(given, "__len__")
        is_set = allows_sets and isinstance(given, Collection)
        if not (is_sequence or is_set) or isinstance(given, str | bytes | Mapping | type):
            raise _WrongTypeError
        if item is None:
            return given
        if isinstance(given, range):  # of any length: its first number decides
            for part in given[:1]:
                item.convert(part)
            return given
        return [item.convert(part) for part in given]

    what = "collection" if allows_sets else "sequence"
    return _Kind(f"a {what} of {_bare(item)}", frozenset(), convert)


def _bare(kind: _Kind | None) -> str:
    """The name of a kind without its article."""
    return "any value" if kind is None else kind.name.removeprefix("an ").removeprefix("a ")


_PATH = _Kind("a str or a path", frozenset((str,)), _path)
_KINDS = {
    "None": _Kind("None", frozenset((NoneType,)), _instance_of(NoneType)),
    "bool": _Kind("a bool", frozenset((bool,)), _bool),
    "int": _Kind("an int", frozenset(), _int),
    "float": _Kind("a number", frozenset(), _float),
    "str": _Kind("a str", frozenset(), _str),
    "SchemaMode": _Kind("a str", frozenset(), _str),
    "EllipsisType": _Kind("...", frozenset((EllipsisType,)), _instance_of(EllipsisType)),
    "dt.timedelta": _Kind("a timedelta", frozenset((dt.timedelta,)), _instance_of(dt.timedelta)),
    "pl.Expr": _Kind("a Polars expression", frozenset(), _of_polars("Expr")),
    "pl.LazyFrame": _Kind("a Polars lazy frame", frozenset(), _of_polars("LazyFrame")),
    "Progress": _Kind("a function of three arguments", frozenset(), _callable),
}
