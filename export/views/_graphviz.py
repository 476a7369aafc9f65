"""Graphs as pictures, where Graphviz is installed."""

import shutil
import subprocess

from ..graph._graph import Graph
from ._dot import dot_text
from ._view import Drawing

_PATIENCE = 120  # seconds: its layout takes minutes beyond some thousand nodes


class SvgView:
    """See `View`."""

    suffixes: tuple[str, ...] = (".svg",)

    def draw(self, graph: Graph, suffix: str) -> Drawing:
        """See `View.draw`."""
        return picture(dot_text(graph), suffix)


class PngView:
    """See `View`."""

    suffixes: tuple[str, ...] = (".png",)

    def draw(self, graph: Graph, suffix: str) -> Drawing:
        """See `View.draw`."""
        return picture(dot_text(graph), suffix)


def picture(text: str, suffix: str) -> Drawing:
    """What `dot` makes of it, or the text itself and how to go on."""
    kind = suffix.removeprefix(".")
    command = f"dot -T{kind} FILE.dot -o FILE.{kind}"
    program = shutil.which("dot")
    if program is None:
        hint = f"Graphviz is not installed: with it (apt install graphviz), `{command}` draws this file"
        return Drawing.of(text, ".dot", hint)
    try:
        # The program is the user's own `dot`, by its whole path, and reads what it draws from a pipe.
        done = subprocess.run(  # noqa: S603
            [program, f"-T{kind}"], input=text.encode(), capture_output=True, timeout=_PATIENCE, check=False
        )
    except subprocess.TimeoutExpired:
        return Drawing.of(text, ".dot", f"Graphviz has not drawn it in {_PATIENCE} s: `{command}` may, given longer")
    except OSError as error:
        return Drawing.of(text, ".dot", f"Graphviz can't be run ({error.strerror or error}): `{command}` would draw it")
    if done.returncode or not done.stdout:
        said = done.stderr.decode("utf-8", "replace").strip().partition("\n")[0]
        return Drawing.of(text, ".dot", f"Graphviz could not draw it ({said or done.returncode}): `{command}`")
    return Drawing(done.stdout, suffix)
