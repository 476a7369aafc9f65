r"""Escape text from models and files for each target that Filch writes.

Names of values, operators and modules, file paths and messages come from untrusted files. All output generated from
them (terminal output, Markdown, CSV, HTML, Graphviz, Python source) must pass them through one of these functions.

>>> visible("red\x1b[31m")
'red\\u001b[31m'
"""

from ._csv import for_csv
from ._markup import for_dot, for_html, for_markdown, for_script, html_table
from ._python import python_docstring, python_literal
from ._toml import for_toml
from ._visible import for_terminal, short_line, shortened, visible

__all__ = [
    "for_csv",
    "for_dot",
    "for_html",
    "for_markdown",
    "for_script",
    "for_terminal",
    "for_toml",
    "html_table",
    "python_docstring",
    "python_literal",
    "short_line",
    "shortened",
    "visible",
]
