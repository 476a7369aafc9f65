"""Text inside of Markdown, HTML, scripts and Graphviz's language."""

import html
import re

from ._visible import named, visible

_LONGEST = 2000  # characters of a cell or a sentence
# A punctuation mark that means something to CommonMark or GitHub wherever it stands; an underscore inside of a word,
# as in `q_proj`, does not.
_MARKS = re.compile(r"[\\`*\[\]|~$]|(?<![^\W_])_|_(?![^\W_])|:(?=//)")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_OPENING = re.compile(r"^(\s*)(#+|[+=-]+|\d+[.)])(?=\s|$)")
_LINKED = re.compile(r"([@#])(?=\w)|(?<![^\W_])(www|WWW)(?=\.)")
_INDENTED = re.compile(r"^ {4,}")
_SCRIPT = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&"}


def for_markdown(value: object) -> str:
    r"""Text that reads in Markdown as what it is, on one line, inside of a table or not.

    Links, images, code, emphasis, HTML, headings, lists, cells and formulas are escaped; addresses, `@names` and `#1`
    are no links on GitHub. Control characters are `visible`; a text of over 2,000 characters is `shortened`.

    >>> for_markdown("[l](javascript:x) | <b> layers.0.q_proj")
    '\\[l\\](javascript:x) \\| &lt;b&gt; layers.0.q_proj'
    """
    text = named(value, _LONGEST)
    text = _MARKS.sub(lambda found: f"\\{found[0]}", text)
    text = "".join(_ENTITIES.get(sign, sign) for sign in text)
    text = _OPENING.sub(lambda found: f"{found[1]}{found[2][:-1]}\\{found[2][-1]}", text)
    text = _INDENTED.sub("   ", text)  # four begin a block of code
    return _LINKED.sub(lambda found: f"{found[0]}<!-- -->", text)  # an empty comment ends the word


def for_html(value: object) -> str:
    """Text as the content of an element or of a quoted attribute: `visible`, `&`, `<`, `>` and quotes escaped.

    >>> for_html("</script><b title='x'>")
    '&lt;/script&gt;&lt;b title=&#x27;x&#x27;&gt;'
    """
    return html.escape(visible(str(value)), quote=True)


def for_script(text: str) -> str:
    r"""JSON as the content of an HTML `<script>` element, equal once it is parsed.

    `</script` would end the element and `<!--` would hide its end; nothing else in JSON is read as HTML.

    >>> for_script('"</script>"')
    '"\\u003c/script\\u003e"'
    """
    return text.translate(_SCRIPT)


def for_dot(text: str) -> str:
    r"""Text inside of a double-quoted string of Graphviz's language, where `\N` and `&lt;` have meanings, too.

    >>> for_dot('say "\\N"')
    'say &quot;\\\\N&quot;'
    """
    # Netron ends a string at `\"`, too; in what is shown, Graphviz reads `&quot;` as HTML does.
    return visible(text).replace("\\", "\\\\").replace("&", "&amp;").replace('"', "&quot;")
