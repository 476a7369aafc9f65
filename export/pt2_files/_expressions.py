"""Parse symbolic sizes, which torch saves as Python expressions, without evaluating them as Python."""

import ast
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

import sympy

from filch.steal.files._budget import Budget, LimitError
from filch.steal.files._kinds import budget_of
from filch.steal.private._torch import sympy_functions

from ._archive import StoredError

_MAX_CHARACTERS = 4_000
_MAX_CALLS = 100
_MAX_BITS = 64  # of an integer
_MAX_EXPONENT = 8
_MAX_TERMS = 100  # of an expression after multiplying out, which sympy does to find common factors
_SYMBOL = re.compile(r"[A-Za-z_]{1,32}(\d{0,5})")
_ASSUMPTIONS = {"finite", "integer", "negative", "nonnegative", "nonzero", "positive", "real", "zero"}
_OF_SYMPY = (
    *(sympy.Add, sympy.And, sympy.Equality, sympy.GreaterThan, sympy.LessThan, sympy.Max, sympy.Min, sympy.Mul),
    *(sympy.Not, sympy.Or, sympy.Pow, sympy.Rational, sympy.StrictGreaterThan, sympy.StrictLessThan, sympy.Unequality),
)
_OF_TORCH = (
    *("CeilDiv", "CeilToInt", "CleanDiv", "FloatTrueDiv", "FloorDiv", "FloorToInt", "Identity", "IntTrueDiv"),
    *("IsNonOverlappingAndDenseIndicator", "Mod", "ModularIndexing", "PowByNatural", "PythonMod", "RoundToInt"),
    *("ToFloat", "TruncToFloat", "TruncToInt", "Where"),
)
_POWERS = {"Pow", "PowByNatural"}
_EXPANDING = {"Add", "Mul"} | _POWERS
# What is left for the expressions of the file that is read, and those that it has had.
_reading: ContextVar[tuple[Budget, dict[str, sympy.Basic]]] = ContextVar("filch_expressions")


@contextmanager
def expressions_of_one_file() -> Iterator[None]:
    """Count the steps of all expressions that are parsed in the block together, each different one once."""
    token = _reading.set((budget_of("exported program"), {}))
    try:
        yield
    finally:
        _reading.reset(token)


def symbol_name(text: object) -> str:
    """Return `text` if it is a name that torch uses for symbols.

    Raises:
        StoredError: it is not.
    """
    if not isinstance(text, str) or not _SYMBOL.fullmatch(text):
        raise StoredError(f"{text!r:.80} is not a valid name of a symbolic size")
    return text


def expression(text: str) -> sympy.Basic:
    """Parse an expression that torch wrote with sympy's `srepr`.

    Args:
        text: the expression, with at most 4,000 characters, 100 calls, integers of 64 bits, exponents up to 8, and 100
            terms after multiplying out.

    Raises:
        StoredError: it is not a symbolic size, or exceeds a limit.
    """
    budget, known = _reading.get((budget_of("exported program"), {}))  # new outside of a block
    if text not in known:
        known[text] = _expression(text, budget)
    return known[text]


def _expression(text: str, budget: Budget) -> sympy.Basic:
    """Parse an expression; its steps count against the budget."""
    if len(text) > _MAX_CHARACTERS or text.count("(") > _MAX_CALLS:
        raise StoredError("a symbolic size in it is too long")
    try:
        with budget.watched("parsing its symbolic sizes"):  # sympy simplifies them, in a time that grows quickly
            parsed = _parse(ast.parse(text, mode="eval").body)
    except StoredError:
        raise
    except LimitError as error:
        raise StoredError(str(error)) from None
    except Exception as error:  # ast and sympy raise exceptions of any type
        raise StoredError(f"{text!r:.80} is not a symbolic size") from error
    if not isinstance(parsed, sympy.Basic):
        raise StoredError(f"{text!r:.80} is not a symbolic size")
    return parsed


def _parse(node: ast.expr) -> Any:
    """Convert a parsed symbolic size to a SymPy expression; refuse all other code."""
    match node:
        case ast.Name("true"):
            return sympy.true
        case ast.Name("false"):
            return sympy.false
        case ast.Constant(value) if type(value) is int:
            return _bounded(value)
        case ast.UnaryOp(ast.USub(), ast.Constant(value)) if type(value) is int:
            return _bounded(-value)
        case ast.Call(ast.Name("Symbol"), [ast.Constant(name)], keywords):
            return _symbol(symbol_name(name), keywords)
        case ast.Call(ast.Name("Integer"), [argument], []):
            return _integer(_parse(argument))
        case ast.Call(ast.Name("Float"), [ast.Constant(str() as number)], _):  # its precision is not used
            return sympy.Float(float(number))
        case ast.Call(ast.Name(name), arguments, []) if name in _functions():
            parsed = [_parse(argument) for argument in arguments]
            _check_call(name, parsed)
            return _bounded(_functions()[name](*parsed))
    raise StoredError(f"{ast.unparse(node)!r:.80} is not valid in a symbolic size")


def _symbol(name: str, keywords: list[ast.keyword]) -> sympy.Symbol:
    """Return a symbol with the assumptions that are keywords of the call."""
    assumed = {item.arg: item.value.value for item in keywords if isinstance(item.value, ast.Constant)}
    known = {name: value for name, value in assumed.items() if name in _ASSUMPTIONS and isinstance(value, bool)}
    if len(known) != len(keywords):
        raise StoredError(f"the symbolic size {name!r} has assumptions that torch does not use")
    return sympy.Symbol(name, **known)


def _integer(value: Any) -> sympy.Integer:
    """Return an integer of SymPy; refuse any other value."""
    if not isinstance(value, int):
        raise StoredError(f"{value!r:.80} is not an integer")
    return sympy.Integer(value)


def _check_call(name: str, arguments: Sequence[Any]) -> None:
    """Refuse powers with a large exponent, and a result with many terms after multiplying out."""
    exponent = arguments[-1] if name in _POWERS else 1
    if not isinstance(exponent, int | sympy.Integer) or abs(int(exponent)) > _MAX_EXPONENT:
        raise StoredError(f"a symbolic size in it has the exponent {exponent!s:.40}")
    if _term_count(name, arguments) > _MAX_TERMS:
        raise StoredError(f"a symbolic size in it would have more than {_MAX_TERMS:,} terms")


def _term_count(name: str, arguments: Sequence[Any]) -> int:
    """Return the number of terms of a function call after multiplying out."""
    # An argument is one term unless it is a sum, a product or a power itself.
    counts = [_term_count(kind, item.args) if (kind := type(item).__name__) in _EXPANDING else 1 for item in arguments]
    if name == sympy.Mul.__name__:
        return math.prod(counts)
    if name in _POWERS and isinstance(arguments[-1], int | sympy.Integer):
        return int(counts[0] ** min(abs(int(arguments[-1])), _MAX_BITS))
    return sum(counts)


def _bounded(value: Any) -> Any:
    """Return a value; refuse a number whose numerator or denominator is too large."""
    numbers = (value.p, value.q) if isinstance(value, sympy.Rational) else (value,) if isinstance(value, int) else ()
    if any(int(number).bit_length() > _MAX_BITS for number in numbers):
        raise StoredError("a symbolic size in it has too large a number")
    return value


@cache
def _functions() -> Mapping[str, Callable[..., Any]]:
    """Return the functions that an expression may call, by name."""
    of_sympy = {function.__name__: function for function in _OF_SYMPY}
    return of_sympy | {name: getattr(sympy_functions, name) for name in _OF_TORCH if hasattr(sympy_functions, name)}
