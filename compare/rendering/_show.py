"""Show a page inside a notebook, or in the browser."""

import html
import sys
import tempfile
import webbrowser
from importlib import import_module
from pathlib import Path
from typing import Any

_HEIGHT = 640  # pixels


def show_page(page: str) -> None:
    """Show an HTML page: in the output of the cell if IPython runs a notebook, else in the browser.

    Args:
        page: the whole page. In a notebook it is in a frame of its own; for the browser it is written to a temporary
            file, which stays.
    """
    shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is not None and hasattr(shell, "kernel"):
        display = import_module("IPython.display")  # it is there if a notebook runs
        frame = f'<iframe srcdoc="{html.escape(page)}" width="100%" height="{_HEIGHT}" style="border: 0"></iframe>'
        display.display(display.HTML(frame))
        return
    with tempfile.NamedTemporaryFile("w", suffix=".html", prefix="filch-", delete=False, encoding="utf-8") as file:
        file.write(page)
    webbrowser.open(Path(file.name).as_uri())
