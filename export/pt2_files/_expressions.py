"""Parse symbolic sizes, which torch saves as Python expressions, without evaluating them as Python."""

import ast
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any

import sympy
from torch.utils._sympy import functions

from ._archive import StoredError

_LENGTH = 4_000  # characters
_TERMS = 100  # calls in one expression
_DIGITS = 64  # bits of an integer
_EXPONENT = 8
_EXPANDED = 100  # terms of an expression after multiplying out, which sympy does to find common factors
_SYMBOL = re.compile(r"[A-Za-z_]{1,32}(\d{0,5})")
_ASSUMPTIONS = {"finite", "integer", "negative", "nonnegative", "nonzero", "positive", "real", "zero"}
_OF_SYMPY = (
    "Add",
    "And",
    "Equality",
    "GreaterThan",
    "LessThan",
    "Max",
    "Min",
    "Mul",
    "Not",
    "Or",
    "Pow",
    "Rational",
    "StrictGreaterThan",
    "StrictLessThan",
    "Unequality",
)
_OF_TORCH = (
    "CeilDiv",
    "CeilToInt",
    "CleanDiv",
    "FloatTrueDiv",
    "FloorDiv",
    "FloorToInt",
    "Identity",
    "IntTrueDiv",
    "IsNonOverlappingAndDenseIndicator",
    "Mod",
    "ModularIndexing",
    "PowByNatural",
    "PythonMod",
    "RoundToInt",
    "ToFloat",
    "TruncToFloat",
    "TruncToInt",
    "Where",
)
_POWERS = {"Pow", "PowByNatural"}
_EXPANDING = {"Add", "Mul"} | _POWERS


def symbol_name(text: object) -> str:
    """Return `text` if it is a name that torch uses for symbols.

    Raises:
        StoredError: it is not.
    """
    if not isinstance(text, str) or not _SYMBOL.fullmatch(text):
        raise StoredError(f"{text!r:.80} is not a valid name of a symbolic size")
    return text


@lru_cache(maxsize=1024)
def expression(text: str) -> sympy.Basic:
    """Parse an expression that torch wrote with sympy's `srepr`.

    Args:
        text: the expression, with at most 4,000 characters, 100 calls, integers of 64 bits, exponents up to 8, and 100
            terms after multiplying out.

    Raises:
        StoredError: it is not a symbolic size, or exceeds a limit.
    """
    if len(text) > _LENGTH or text.count("(") > _TERMS:
        raise StoredError("a symbolic size in it is too long")
    try:
        parsed = _parse(ast.parse(text, mode="eval").body)
    except StoredError:
        raise
    except Exception as error:  # ast and sympy raise exceptions of any type
        raise StoredError(f"{text!r:.80} is not a symbolic size") from error
    if not isinstance(parsed, sympy.Basic):
        raise StoredError(f"{text!r:.80} is not a symbolic size")
    return parsed


def _parse(node: ast.expr) -> Any:
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
        case ast.Call(ast.Name("Float"), [ast.Constant(str() as number)], _):
            return sympy.Float(float(number))
        case ast.Call(ast.Name(name), arguments, []) if name in _functions():
            parsed = [_parse(argument) for argument in arguments]
            if name in _POWERS:
                _check_exponent(parsed[-1])
            _check_terms(name, parsed)
            return _bounded(_functions()[name](*parsed))
    raise StoredError(f"{ast.unparse(node)!r:.80} is not valid in a symbolic size")


def _symbol(name: str, keywords: list[ast.keyword]) -> sympy.Symbol:
    assumed = {item.arg: item.value.value for item in keywords if isinstance(item.value, ast.Constant)}
    known = {name: value for name, value in assumed.items() if name in _ASSUMPTIONS and isinstance(value, bool)}
    if len(known) != len(keywords):
        raise StoredError(f"the symbolic size {name!r} has assumptions that torch does not use")
    return sympy.Symbol(name, **known)


def _integer(value: Any) -> sympy.Integer:
    if not isinstance(value, int):
        raise StoredError(f"{value!r:.80} is not an integer")
    return sympy.Integer(value)


def _check_exponent(exponent: Any) -> None:
    if not isinstance(exponent, int | sympy.Integer) or abs(int(exponent)) > _EXPONENT:
        raise StoredError(f"a symbolic size in it has the exponent {exponent!s:.40}")


def _check_terms(name: str, arguments: Sequence[Any]) -> None:
    if _expanded(name, arguments) > _EXPANDED:
        raise StoredError(f"a symbolic size in it would have more than {_EXPANDED:,} terms")


def _expanded(name: str, arguments: Sequence[Any]) -> int:
    """Return the number of terms of a function of these arguments after multiplying out."""
    counts = [_terms(argument) for argument in arguments]
    if name == "Mul":
        return math.prod(counts)
    if name in _POWERS and isinstance(arguments[-1], int | sympy.Integer):
        return int(counts[0] ** min(abs(int(arguments[-1])), _DIGITS))
    return sum(counts)


def _terms(value: Any) -> int:
    """Return the number of terms of a part of an expression: 1 unless it is a sum, a product or a power."""
    name = type(value).__name__
    return _expanded(name, value.args) if name in _EXPANDING else 1


def _bounded(value: Any) -> Any:
    numbers = (value.p, value.q) if isinstance(value, sympy.Rational) else (value,) if isinstance(value, int) else ()
    if any(int(number).bit_length() > _DIGITS for number in numbers):
        raise StoredError("a symbolic size in it has too large a number")
    return value


@cache
def _functions() -> Mapping[str, Callable[..., Any]]:
    found = {name: getattr(sympy, name) for name in _OF_SYMPY}
    return found | {name: getattr(functions, name) for name in _OF_TORCH if hasattr(functions, name)}
