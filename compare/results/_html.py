"""Two dumps side by side, as an HTML page that needs nothing else: no script, no other file."""

import os
from importlib.resources import files

from jinja2 import Environment

from filch.steal import write_output
from filch.steal.text import named

from .._diff import DumpDiff
from ._tables import cells

_TEMPLATE = "diff.html.jinja"
_LONGEST = 2000  # characters of a cell


def diff_to_html(found: DumpDiff, path: str | os.PathLike[str] | None = None) -> str:
    """Two dumps side by side, as a page.

    Names come from models and files that nobody has looked at: all text is escaped, and the page forbids scripts.
    """
    template = Environment(autoescape=True, finalize=_shown, trim_blocks=True, lstrip_blocks=True).from_string(
        files(__package__ or "").joinpath(_TEMPLATE).read_text("utf-8")
    )
    first = found.first_divergence
    lines = [cells(row) for row in found.rows]
    columns = [name for name in (lines[0] if lines else ()) if any(line[name] for line in lines)]
    text = template.render(
        title=f"{found.actual} against {found.expected}",
        lines=[found.headline(), *([f"the first that differs is {first}"] if first else [])],
        columns=columns,
        rows=[
            {"diverged": row.diverged, "cells": [line[name] for name in columns]}
            for row, line in zip(found.rows, lines, strict=True)
        ],
    )
    if path is not None:
        write_output(path, text, errors="backslashreplace")  # a name may be no valid Unicode
    return text


def _shown(value: object) -> str:
    return named(value, _LONGEST)
