"""Draw a graph as one interactive HTML page, which needs neither a server nor a network."""

import base64
import hashlib
from functools import cache
from importlib.resources import files

from jinja2 import Environment
from markupsafe import Markup

from ..graph._graph import Graph
from ._page import page_data
from ._view import Drawing


class HtmlView:
    """See `View`."""

    suffixes: tuple[str, ...] = (".html",)

    def draw(self, graph: Graph, suffix: str) -> Drawing:
        """See `View.draw`.

        Names come from untrusted models and files. The page gets them as JSON and inserts them as text nodes. A content
        security policy allows only the page's own script, by its hash.
        """
        style, script = _asset("page.css"), _asset("app.js")  # app.js is built from the modules in page/src
        template = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(
            _asset("page.html.jinja")
        )
        text = template.render(
            title=_title(graph),
            style=Markup(style),  # noqa: S704  a file of this package
            script=Markup(script),  # noqa: S704  a file of this package
            data=Markup(page_data(graph)),  # noqa: S704  `page_data` escapes it as JSON
            policy=f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; "
            "base-uri 'none'; form-action 'none'",
        )
        return Drawing.of(text, suffix)


def _title(graph: Graph) -> str:
    """Return the title of the page; a graph with a reference graph is that of implementation B."""
    if graph.reference_graph is not None:
        return f"{graph.name} (B) against {graph.reference_graph.name} (A)"
    return graph.name or "graph"


@cache
def _asset(name: str) -> str:
    return files(__package__ or "").joinpath("page", name).read_text("utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
