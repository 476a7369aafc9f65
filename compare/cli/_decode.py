"""The command that compares what a program with a cache decodes with what the model does: `filch decode`."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from . import _options as shared
from ._command import usage_error
from ._output import echo_result, echo_unless

_WRITERS = {".html": "to_html", ".json": "to_json", ".md": "to_markdown"}  # methods of `Decoding`


class CacheOption(StrEnum):
    """The kinds of cache that a program can be exported with; see `filch.export.export`."""

    dynamic = "dynamic"
    static = "static"


class DecodePrecision(StrEnum):
    """The precisions to which a program that decodes can be lowered."""

    float16 = "float16"
    bfloat16 = "bfloat16"


def decode_command(
    factory: Annotated[str, typer.Argument(help="package.module:factory or path.py:factory of a language model.")],
    program: Annotated[
        Path | None, typer.Option(help="A file of export(..., cache=...) to judge; by default, the model is exported.")
    ] = None,
    backend: shared.Backend = "onnxruntime-cpu",
    option: shared.Options = None,
    tokens: Annotated[int, typer.Option(help="The number of tokens of each sequence.")] = 32,
    first: Annotated[
        int | None, typer.Option(help="How many of them are in the first call. Default: a quarter.")
    ] = None,
    cache: Annotated[CacheOption, typer.Option(help="The cache to export with.")] = CacheOption.dynamic,
    precision: Annotated[DecodePrecision | None, typer.Option(help="Lower the program to this precision.")] = None,
    output: Annotated[
        list[Path] | None, typer.Option("--output", "-o", help="Write the result (.html, .json, .md); repeatable.")
    ] = None,
    wide: shared.Wide = False,
    as_json: shared.Json = False,
    quiet: shared.Quiet = False,
) -> None:
    """Run a language model's program token by token, and name the position and the node where it goes wrong.

    Exits with 0 if all values are right at all positions, and with 1 if not.
    """
    for path in output or ():
        if path.suffix not in _WRITERS:
            raise usage_error(f"the result is written as .html, .json or .md, not as {path.name!r}")
    from filch.export import load_program

    from .._decode import compare_decode
    from ..common._errors import CompareError
    from ..common._progress import progress
    from ..models._factory import find_factory

    with progress("decode", quiet=quiet or as_json):
        found = find_factory(factory)
        subject = found.subject_of(found.call())
        result = compare_decode(
            subject.model,
            subject.args,
            subject.kwargs,
            program=None if program is None else load_program(program),
            backend=backend,
            options=shared.parse_options(option),
            tokens=tokens,
            first=first,
            cache=cache.value,
            precision=None if precision is None else precision.value,
        )
    echo_result(result, as_json=as_json, quiet=quiet, wide=wide)
    for path in output or ():
        try:
            getattr(result, _WRITERS[path.suffix])(path)
        except OSError as error:
            raise CompareError(f"can't write {str(path)!r}: {error.strerror or error}") from error
    if output:
        echo_unless(quiet or as_json, f"\nwritten: {', '.join(map(str, output))}")
    raise typer.Exit(not result.close)
