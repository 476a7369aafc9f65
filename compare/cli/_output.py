"""What commands with a result share: their options, progress, text or JSON, files, and the exit code."""

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from . import _options as shared
from ._command import usage_error

if TYPE_CHECKING:
    from ..rendering._result import Result

_WRITERS = {".csv": "to_csv", ".html": "to_html", ".json": "to_json", ".md": "to_markdown"}  # methods of results


@dataclass(frozen=True)
class Telling:
    """What a command tells beside a result: its progress, and what it wrote."""

    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print nothing but what --json asks for; use the exit code.")
    ] = False

    @property
    def is_silent(self) -> bool:
        """Whether nothing is told."""
        return self.quiet

    @contextmanager
    def progress(self, title: str) -> Iterator[None]:
        """Show the progress of a block; what the user's own code prints in it goes to standard error."""
        from ..common._progress import progress

        with progress(title, quiet=self.is_silent), redirect_stdout(sys.stderr):
            yield

    def tell(self, text: str) -> None:
        """Print text that may hold names from files."""
        from ..rendering._console import echo

        if not self.is_silent:
            echo(text)


@dataclass(frozen=True)
class Printing(Telling):
    """The same for a command that prints text or JSON."""

    as_json: shared.Json = False

    @property
    def is_silent(self) -> bool:
        """Whether nothing is told, as JSON is printed alone."""
        return self.quiet or self.as_json


@dataclass(frozen=True)
class Showing(Printing):
    """How a result is printed."""

    all_rows: Annotated[bool, typer.Option("--all", help="Print a row for each value, as --view nodes.")] = False
    wide: Annotated[bool, typer.Option("--wide", help="Print all rows and columns, however wide.")] = False

    @property
    def reasons(self) -> Mapping[str, str]:
        """The reason for each value that may stay without a judgment; see `Result.accepted`."""
        return {}

    @contextmanager
    def progress(self, title: str) -> Iterator[None]:
        """Show the progress of a block; see `Telling`."""
        _ = self.reasons  # a file that can't be read is told before anything runs
        with super().progress(title):
            yield

    def finish(self, *results: Any, as_list: bool = False, **view: Any) -> typer.Exit:
        """Print the results, write them to files, and return what to raise.

        Args:
            *results: one or several `Result`; of `filch` they have another name for a type checker.
            as_list: whether JSON is a list of them.
            view: further arguments of `Result.table`.
        """
        from ..rendering._outcome import Proof

        found = [replace(result, accepted=self.reasons) for result in results]
        if self.as_json:
            texts = [result.to_json() for result in found]
            typer.echo(json.dumps([json.loads(text) for text in texts], indent=1) if as_list else texts[0])
        elif not self.quiet:
            typer.echo("\n\n".join(self._text(result, **view) for result in found))
        if written := self.write(found):
            self.tell(f"\nwritten: {', '.join(written)}")
        return typer.Exit(Proof.together(result.proof for result in found).without(self.reasons).exit_code)

    def _text(self, result: "Result", **view: Any) -> str:
        """Return a result as text in the form that the options ask for."""
        from ..rendering._console import is_colored

        return result.table(wide=self.wide, all_rows=self.all_rows, color=is_colored(), **view)

    def write(self, results: "list[Result]") -> list[str]:  # noqa: ARG002  for commands that write files
        """Write files, and return their paths."""
        return []


@dataclass(frozen=True)
class Writing(Showing):
    """The same for results that are also written to files."""

    output: Annotated[
        list[Path] | None,
        typer.Option(
            *("--output", "-o"),
            help="Write the result as .html, .json or .md, a report also as .csv; one file per backend; "
            "may be repeated.",
        ),
    ] = None

    formats: ClassVar[tuple[str, ...]] = (".html", ".json", ".md")
    hint: ClassVar[str] = ""  # of a subclass, for the message about another format

    def __post_init__(self) -> None:
        for path in self.output or ():
            if path.suffix not in self.formats:
                formats = ", ".join(self.formats)
                raise usage_error(f"the result is written as {formats}, not as {path.name!r}{self.hint}")

    def write(self, results: "list[Result]") -> list[str]:
        """Write each result in each format; of several, the name of each file has the backend before the suffix."""
        from filch.steal import writing

        from ..common._errors import CompareError

        written = []
        for output in self.output or ():
            for result in results:
                name = f".{getattr(result, 'backend', '')}{output.suffix}" if len(results) > 1 else output.suffix
                path = output.with_suffix(name)
                with writing(path, CompareError):
                    path.parent.mkdir(parents=True, exist_ok=True)
                    self.write_one(result, path)
                written.append(str(path))
        return written

    def write_one(self, result: "Result", path: Path) -> None:
        """Write a result in the format of the suffix."""
        getattr(result, _WRITERS[path.suffix])(path)


@dataclass(frozen=True)
class Accepting(Showing):
    """The same, with the values that may stay without a judgment."""

    accept: Annotated[
        list[str] | None,
        typer.Option(
            "--accept",
            metavar="VALUE=REASON",
            callback=shared.checked(shared.parse_accept),
            help="Exit with 0 although this value was not judged; may be repeated.",
        ),
    ] = None
    accepted: Annotated[
        Path | None, typer.Option("--accepted", help="TOML file with such values and reasons: value = 'reason'.")
    ] = None

    @property
    def reasons(self) -> Mapping[str, str]:
        """The reason for each value by its name; see `Result.accepted`."""
        from ..common._accepted import read_accepted

        in_file = {} if self.accepted is None else read_accepted(self.accepted)
        return in_file | shared.parse_accept(self.accept)


@dataclass(frozen=True)
class Judged(Accepting, Writing):
    """The same, with all of these."""
