"""Write tables and sentences as a self-contained HTML page without scripts."""

from collections.abc import Sequence
from importlib.resources import files

from jinja2 import Environment

from filch.steal.text import short_line

from ._table import Block, Table

_TEMPLATE = "page.html.jinja"
_MAX_CELL = 2000  # characters of a cell


def as_page(title: str, blocks: Sequence[Block]) -> str:
    """Return a page, without columns that have no text.

    Names come from models and files of unknown origin, so all text is escaped, and the page forbids scripts.
    """
    template = Environment(autoescape=True, finalize=_cell_text, trim_blocks=True, lstrip_blocks=True).from_string(
        files(__package__ or "").joinpath(_TEMPLATE).read_text("utf-8")
    )
    return template.render(title=title, blocks=[_template_context(block) for block in blocks if str(block)])


def _template_context(block: Block) -> object:
    if not isinstance(block, Table):
        return block
    shown = [index for index in range(len(block.columns)) if any(row[index] for row in block.rows)]
    return {
        "titles": [block.titles[index] for index in shown],
        "rows": [
            {"marked": number in block.marked, "cells": [row[index] for index in shown]}
            for number, row in enumerate(block.rows)
        ],
    }


def _cell_text(value: object) -> str:
    return short_line(" ".join(value) if isinstance(value, tuple) else value, _MAX_CELL)
