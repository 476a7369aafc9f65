"""The command that compares two implementations: `filch align`."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from ._output import Judged

if TYPE_CHECKING:
    from ..rendering._result import Result


@dataclass(frozen=True)
class AlignmentOptions(Judged):
    """How an alignment is printed and written."""

    output: Annotated[
        list[Path] | None,
        typer.Option("--output", "-o", help="Write the mapping (.toml) or the result (.html, .json, .md); repeatable."),
    ] = None

    formats: ClassVar[tuple[str, ...]] = (".toml", *Judged.formats)

    def write_one(self, result: "Result", path: Path) -> None:
        """Write the mapping or the result."""
        from ..alignment._value_map import ValueMap
        from ..results._alignment import Alignment

        if path.suffix == ".toml" and isinstance(result, Alignment):
            ValueMap.of(result).save(path)
        else:
            super().write_one(result, path)


def align_command(
    reference: Annotated[
        str,
        typer.Argument(
            help="Implementation A: package.module:factory path.py:factory, an ONNX program or a dump (.onnx), .npz, "
            ".safetensors, .pt, .gguf, or the folder of a Hugging Face checkpoint."
        ),
    ],
    actual: Annotated[
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
    *,
    shown: AlignmentOptions,
) -> None:
    """Find which weights and values of two implementations are the same, and where B leaves A.

    Exits with 0 if the outputs, named arrays or weights of B are those of A, and with 1 if not.
    """
    parts = {name: index for name, _, index in (text.rpartition("=") for text in part or ())}
    from .._align import align_sources, find_source

    with shown.progress("align"):
        sides = [find_source(name) for name in (reference, actual)]
        result = align_sources(sides[0], sides[1], (reference, actual), mapping, weights_only=weights_only, parts=parts)
    raise shown.finish(result)
