"""The command that checks whether a model computes the same however it is called: `filch invariance`."""

from pathlib import Path
from typing import Annotated

import typer

from . import _options as shared
from ._command import usage_error
from ._output import echo_result, echo_unless

_WRITERS = {".html": "to_html", ".json": "to_json", ".md": "to_markdown"}  # methods of `Invariance`


def invariance_command(
    factory: Annotated[str, typer.Argument(help="package.module:factory or path.py:factory of a language model.")],
    only: Annotated[
        list[str] | None,
        typer.Option(help="A relation to check, such as decode or 'padding on the left'; repeatable. Default: all."),
    ] = None,
    attention: Annotated[
        list[str] | None, typer.Option(help="Attention implementation to compare with eager; repeatable.")
    ] = None,
    bitwise: Annotated[
        bool, typer.Option("--bitwise", help="Require equal bits in the model's own dtypes, too.")
    ] = False,
    output: Annotated[
        list[Path] | None, typer.Option("--output", "-o", help="Write the result (.html, .json, .md); repeatable.")
    ] = None,
    wide: shared.Wide = False,
    as_json: shared.Json = False,
    quiet: shared.Quiet = False,
) -> None:
    """Check that a language model computes the same with a cache, in batches, and with padding.

    Exits with 0 if each way to call it that it supports gives the same numbers, and with 1 if not.
    """
    for path in output or ():
        if path.suffix not in _WRITERS:
            raise usage_error(f"the result is written as .html, .json or .md, not as {path.name!r}")
    from .._invariance import check_invariance
    from ..common._errors import CompareError
    from ..common._progress import progress
    from ..models._factory import find_factory

    with progress("invariance", quiet=quiet or as_json):
        found = find_factory(factory)
        subject = found.subject_of(found.call())
        result = check_invariance(
            subject.model,
            subject.args,
            subject.kwargs,
            only=only or None,
            attentions=attention or ("sdpa",),
            bitwise=bitwise,
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
