"""Draw graphs as pictures with Graphviz, if it is installed."""

import shutil
import subprocess

from ..graph._graph import Graph
from ._dot import dot_text
from ._view import Drawing

_TIMEOUT = 120  # seconds: the layout of some thousand nodes takes minutes


class SvgView:
    """See `View`."""

    suffixes: tuple[str, ...] = (".svg",)

    def draw(self, graph: Graph, suffix: str) -> Drawing:
        """See `View.draw`."""
        return picture(dot_text(graph), suffix)


class PngView(SvgView):
    """See `View`."""

    suffixes = (".png",)


def picture(text: str, suffix: str) -> Drawing:
    """Return the picture that `dot` draws of a text in DOT; if it fails, the text with a note on how to draw it."""
    kind = suffix.removeprefix(".")
    command = f"dot -T{kind} FILE.dot -o FILE.{kind}"
    program = shutil.which("dot")
    if program is None:
        hint = f"Graphviz is not installed: with it (apt install graphviz), `{command}` draws this file"
        return Drawing.of(text, ".dot", hint)
    try:
        # The program is the user's `dot`, by its absolute path; it reads its input from a pipe.
        completed = subprocess.run(  # noqa: S603
            [program, f"-T{kind}"], input=text.encode(), capture_output=True, timeout=_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        return Drawing.of(text, ".dot", f"Graphviz has not drawn it in {_TIMEOUT} s: `{command}` may, given longer")
    except OSError as error:
        return Drawing.of(text, ".dot", f"Graphviz can't be run ({error.strerror or error}): `{command}` would draw it")
    if completed.returncode or not completed.stdout:
        message = completed.stderr.decode("utf-8", "replace").strip().partition("\n")[0] or completed.returncode
        return Drawing.of(text, ".dot", f"Graphviz could not draw it ({message}): `{command}`")
    return Drawing(completed.stdout, suffix)
