r"""Text from models and files, made safe for each target that Filch writes.

Names of values, operators and modules, file paths and messages come from files that nobody has checked. Whatever is
generated from them (terminal output, Markdown, CSV, HTML, Graphviz, Python source) takes them through one of these
functions, and through nothing else.

>>> visible("red\x1b[31m")
'red\\u001b[31m'
"""

from ._csv import for_csv
from ._markup import for_dot, for_html, for_markdown, for_script
from ._python import python_docstring, python_literal
from ._visible import for_terminal, named, shortened, visible

__all__ = [
    "for_csv",
    "for_dot",
    "for_html",
    "for_markdown",
    "for_script",
    "for_terminal",
    "named",
    "python_docstring",
    "python_literal",
    "shortened",
    "visible",
]
