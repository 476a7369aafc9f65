"""Escape text for Markdown, HTML, scripts and Graphviz."""

import html
import re
from collections.abc import Collection, Iterable, Sequence

from ._visible import short_line, shortened, visible

_MAX_LENGTH = 2000  # characters of a cell or a sentence
# Characters with a meaning in CommonMark or on GitHub anywhere in a line; an underscore inside a word, as in `q_proj`,
# has none.
_MARKS = re.compile(r"[\\`*\[\]|~$]|(?<![^\W_])_|_(?![^\W_])|:(?=//)")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_OPENING = re.compile(r"^(\s*)(#+|[+=-]+|\d+[.)])(?=\s|$)")  # headings, lists and rules
_LINKED = re.compile(r"([@#])(?=\w)|(?<![^\W_])(www|WWW)(?=\.)")  # what GitHub makes a link
_INDENTED = re.compile(r"^ {4,}")
_SCRIPT = {ord(char): f"\\u{ord(char):04x}" for char in "<>&"}


def for_markdown(value: object) -> str:
    r"""Escape text for Markdown, as one line that can be used inside or outside of a table.

    Links, images, code, emphasis, HTML, headings, lists, table cells and formulas are escaped, and GitHub doesn't link
    URLs, `@names` and `#1`. Control characters are made `visible`; text over 2,000 characters is `shortened`.

    >>> for_markdown("[l](javascript:x) | <b> layers.0.q_proj")
    '\\[l\\](javascript:x) \\| &lt;b&gt; layers.0.q_proj'
    """
    text = short_line(value, _MAX_LENGTH)
    text = _MARKS.sub(lambda match: f"\\{match[0]}", text)
    text = "".join(_ENTITIES.get(char, char) for char in text)
    text = _OPENING.sub(lambda match: f"{match[1]}{match[2][:-1]}\\{match[2][-1]}", text)
    text = _INDENTED.sub("   ", text)  # four spaces begin a code block
    return _LINKED.sub(lambda match: f"{match[0]}<!-- -->", text)  # an empty comment ends the word


def for_html(value: object) -> str:
    """Escape text for the content of an HTML element or a quoted attribute.

    >>> for_html("</script><b title='x'>")
    '&lt;/script&gt;&lt;b title=&#x27;x&#x27;&gt;'
    """
    return html.escape(visible(str(value)), quote=True)


def html_table(titles: Sequence[str], rows: Iterable[Sequence[object]], marked: Collection[int] = ()) -> str:
    """Return an HTML table of escaped text, for a notebook.

    Args:
        titles: the headings of the columns.
        rows: the cells of each row.
        marked: the indices of rows that are highlighted.
    """

    def line(cells: Iterable[object], tag: str, style: str = "") -> str:
        align = "text-align: left; white-space: pre-wrap"
        inside = "".join(f'<{tag} style="{align}">{for_html(shortened(str(cell)))}</{tag}>' for cell in cells)
        return f"<tr{style}>{inside}</tr>"

    highlighted = ' style="background: #f003"'
    body = (line(row, "td", highlighted if index in marked else "") for index, row in enumerate(rows))
    return f"<table><thead>{line(titles, 'th')}</thead><tbody>{''.join(body)}</tbody></table>"


def for_script(text: str) -> str:
    r"""Escape JSON for the content of an HTML `<script>` element; it still parses to the same value.

    `</script` would end the element and `<!--` would hide its end; nothing else in JSON is parsed as HTML.

    >>> for_script('"</script>"')
    '"\\u003c/script\\u003e"'
    """
    return text.translate(_SCRIPT)


def for_dot(text: str) -> str:
    r"""Escape text for a double-quoted string in Graphviz's language, in which `\N` and `&lt;` have meanings, too.

    >>> for_dot('say "\\N"')
    'say &quot;\\\\N&quot;'
    """
    # Not `\"`: Netron ends a string there. Graphviz shows `&quot;` as a quote, as HTML does.
    return visible(text).replace("\\", "\\\\").replace("&", "&amp;").replace('"', "&quot;")
