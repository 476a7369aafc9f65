"""Write tables and sentences as a self-contained HTML page without scripts."""

from collections.abc import Iterable, Sequence
from importlib.resources import files

from jinja2 import Environment

from filch.steal.text._markup import for_html, html_table
from filch.steal.text._visible import short_line, shortened

from ._table import Block, Line, Table

_MAX_CELL = 2000  # characters of a cell
_TAGS = {
    "close": '<p><strong style="color: #1a7f37">{}</strong></p>',
    "different": '<p><strong style="color: #cf222e">{}</strong></p>',
    "incomplete": '<p><strong style="color: #9a6700">{}</strong></p>',
    "heading": "<p><strong>{}</strong></p>",
    "command": "<pre>{}</pre>",
}


def as_page(title: str, blocks: Sequence[Block]) -> str:
    """Return a page, without columns that have no text.

    Names come from models and files of unknown origin, so all text is escaped, and the page forbids scripts.
    """
    shown = [_template_context(block) for block in blocks if str(block)]  # without empty lines
    return filled(__package__, "page.html.jinja", title=title, blocks=shown)


def filled(package: str | None, template: str, **context: object) -> str:
    """Return a page made from a Jinja template of a package; all text is escaped, printable and shortened."""
    environment = Environment(autoescape=True, finalize=_cell_text, trim_blocks=True, lstrip_blocks=True)
    text = files(package or "").joinpath(template).read_text("utf-8")
    return environment.from_string(text).render(context)


def as_fragment(blocks: Iterable[Block]) -> str:
    """Return tables and sentences as HTML to insert into a notebook."""
    parts = []
    for block in blocks:
        if isinstance(block, Table):
            rows = [["\n".join([cell] if isinstance(cell, str) else cell) for cell in row] for row in block.rows]
            parts.append(html_table(block.titles, rows, block.marked))
        elif text := str(block):
            style = block.style if isinstance(block, Line) else ""
            parts.append(_TAGS.get(style, "<p>{}</p>").format(for_html(shortened(text, _MAX_CELL))))
    return "".join(parts)


def _template_context(block: Block) -> object:
    """Return a block as the template takes it: a table without columns that have no text."""
    if not isinstance(block, Table):
        return block
    shown = [index for index in range(len(block.columns)) if any(row[index] for row in block.rows)]
    return {
        "titles": [block.titles[index] for index in shown],
        "rows": [
            {
                "marked": number in block.marked,
                "cells": [{"text": row[index], "wrong": (number, index) in block.wrong} for index in shown],
            }
            for number, row in enumerate(block.rows)
        ],
    }


def _cell_text(value: object) -> object:
    """Return what the template shows of a value: one line of printable text."""
    if hasattr(value, "__html__"):  # the result of a macro, whose texts are escaped already
        return value
    return short_line(" ".join(value) if isinstance(value, tuple) else value, _MAX_CELL)
