"""The commands for language models with a cache: `filch invariance` and `filch decode`."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from . import _options as shared
from ._output import Judged


def invariance_command(
    factory: Annotated[str, typer.Argument(help="package.module:factory or path.py:factory of a language model.")],
    only: Annotated[
        list[str] | None,
        typer.Option(help="A relation to check, such as decode or 'padding on the left'; repeatable. Default: all."),
    ] = None,
    attention: Annotated[
        list[str] | None, typer.Option(help="Attention implementation to compare with eager; repeatable.")
    ] = None,
    backend: Annotated[
        list[str] | None, typer.Option(help="Backend that decodes the model's program; repeatable.")
    ] = None,
    quantized: Annotated[
        list[str] | None, typer.Option(help="Quantizer of a cache to check: fp8, hqq or quanto; repeatable.")
    ] = None,
    bitwise: Annotated[
        bool, typer.Option("--bitwise", help="Require equal bits in the model's own dtypes, too.")
    ] = False,
    *,
    shown: Judged,
) -> None:
    """Check that a language model computes the same with a cache, in batches, and with padding.

    Exits with 0 if each way to call it that it supports gives the same numbers, and with 1 if not.
    """
    from .._invariance import check_invariance
    from ..models._factory import find_factory

    with shown.progress("invariance"):
        found = find_factory(factory)
        subject = found.subject_of(found.call())
        result = check_invariance(
            subject.model,
            subject.args,
            subject.kwargs,
            only=only or None,
            attentions=attention or ("sdpa",),
            backends=backend or (),
            quantized=quantized or (),
            bitwise=bitwise,
        )
    raise shown.finish(result)


class CacheOption(StrEnum):
    """The kinds of cache that a program can be exported with; see `filch.export.export`."""

    dynamic = "dynamic"
    static = "static"
    window = "window"
    static_window = "static-window"


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
    tokens: Annotated[int, typer.Option(help="The number of tokens of each sequence, at least 6.")] = 32,
    first: Annotated[
        int | None,
        typer.Option(help="How many of them are in the first call, from 2 to all but 3. Default: a quarter."),
    ] = None,
    cache: Annotated[CacheOption, typer.Option(help="The cache to export with.")] = CacheOption.dynamic,
    precision: Annotated[DecodePrecision | None, typer.Option(help="Lower the program to this precision.")] = None,
    *,
    shown: Judged,
) -> None:
    """Run a language model's program step by step, and name the position and the node where it goes wrong.

    Exits with 0 if all values are right at all positions, and with 1 if not.
    """
    from filch.export import load_program

    from .._decode import compare_decode
    from ..models._factory import find_factory

    with shown.progress("decode"):
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
    raise shown.finish(result)
