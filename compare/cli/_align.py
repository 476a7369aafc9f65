"""The command that compares two implementations: `filch align`."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from . import _options as shared
from ._command import usage_error
from ._output import echo_result, echo_unless

_WRITERS = {".html": "to_html", ".json": "to_json", ".md": "to_markdown"}  # methods of `Alignment`


def align_command(
    reference: Annotated[
        str,
        typer.Argument(
            help="Implementation A: package.module:factory path.py:factory, an ONNX program or a dump (.onnx), .npz, "
            ".safetensors, .pt, .gguf, or the folder of a Hugging Face checkpoint."
        ),
    ],
    other: Annotated[
        str,
        typer.Argument(
            help="Implementation B, likewise. Its factory returns its own arguments, or named arrays; a program gets "
            "those of A."
        ),
    ],
    mapping: Annotated[
        Path | None,
        typer.Option(help="A TOML file that says where module outputs of A are in B; its rows are checked."),
    ] = None,
    weights_only: Annotated[
        bool | None,
        typer.Option(
            help="Compare weights alone, and run no model; by default if two files of arrays or a checkpoint are given."
        ),
    ] = None,
    part: Annotated[
        list[str] | None,
        typer.Option(
            help="What B has of an output of A, if not all of it: 'logits=[:, -1]', '[:, -1]' of the only output, or "
            "'hidden=none'; repeatable."
        ),
    ] = None,
    output: Annotated[
        list[Path] | None,
        typer.Option("--output", "-o", help="Write the mapping (.toml) or the result (.html, .json, .md); repeatable."),
    ] = None,
    all_rows: shared.All = False,
    wide: shared.Wide = False,
    as_json: shared.Json = False,
    quiet: shared.Quiet = False,
    *,
    accepting: shared.Accepting,
) -> None:
    """Find which weights and values of two implementations are the same, and where B leaves A.

    Exits with 0 if the outputs, named arrays or weights of B are those of A, and with 1 if not.
    """
    for path in output or ():
        if path.suffix not in (".toml", *_WRITERS):
            raise usage_error(f"an alignment is written as .toml, .html, .json or .md, not as {path.name!r}")
    parts = {name: index for name, _, index in (text.rpartition("=") for text in part or ())}
    from filch.steal import writing

    from .._align import align_sources, find_source
    from ..alignment._value_map import ValueMap
    from ..common._errors import CompareError
    from ..common._progress import progress

    accepted = accepting.reasons
    with progress("align", quiet=quiet or as_json):
        sides = [find_source(name) for name in (reference, other)]
        result = align_sources(sides[0], sides[1], (reference, other), mapping, weights_only=weights_only, parts=parts)
    result = replace(result, accepted=accepted)
    echo_result(result, as_json=as_json, quiet=quiet, all_rows=all_rows, wide=wide)
    for path in output or ():
        with writing(path, CompareError):
            if path.suffix == ".toml":
                ValueMap.of(result).save(path)
            else:
                getattr(result, _WRITERS[path.suffix])(path)
    if output:
        echo_unless(quiet or as_json, f"\nwritten: {', '.join(map(str, output))}")
    raise typer.Exit(result.exit_code)
