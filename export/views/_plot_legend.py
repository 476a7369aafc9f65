"""`plot_legend`: draw a text in a box; the name is from onnx-diagnostic."""

import os

from filch.steal import writing
from filch.steal.files._outputs import write_output
from filch.steal.text._markup import for_html

from .._errors import ViewError

_SIDE, _SMALL, _LINE = 200, 10, 1.2  # points: the picture's side, the size of the text at the bottom; lines in sizes


class SvgText(str):
    """An SVG picture, which notebooks show."""

    __slots__ = ()

    def _repr_svg_(self) -> str:
        return str(self)


def plot_legend(
    text: str,
    text_bottom: str = "",
    color: str = "green",
    fontsize: int = 15,
    path: str | os.PathLike[str] | None = None,
) -> SvgText:
    """Draw a text in a colored box: a thumbnail for an example in a gallery.

    Args:
        text: the text, of one or more lines.
        text_bottom: small text below the box.
        color: the CSS color of the box.
        fontsize: the size of the text in points.
        path: the path of an SVG file to write as well.

    Returns:
        the picture as SVG, 200 points wide and high.

    Raises:
        ViewError: the file can't be written.

    Source: `onnx_diagnostic.doc.plot_legend`, which draws with matplotlib.
    """
    lines, middle = text.split("\n"), _SIDE / 2
    width = max(map(len, lines)) * fontsize * 0.6 + 2 * fontsize  # a character's width is about 0.6 of its size
    height = len(lines) * fontsize * _LINE + fontsize
    first = middle - (len(lines) - 1) / 2 * fontsize * _LINE
    spans = "".join(
        f'<text x="{middle:g}" y="{first + place * fontsize * _LINE:g}" font-size="{fontsize:g}" text-anchor="middle" '
        f'dominant-baseline="central">{for_html(line)}</text>'
        for place, line in enumerate(lines)
    )
    picture = SvgText(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_SIDE}" height="{_SIDE}" font-family="sans-serif">'
        f'<rect x="{middle - width / 2:g}" y="{middle - height / 2:g}" width="{width:g}" height="{height:g}" '
        f'fill="{for_html(color)}" fill-opacity="0.5" stroke="black"/>{spans}'
        f'<text x="{_SIDE - _SMALL}" y="{_SIDE - _SMALL}" font-size="{_SMALL}" text-anchor="end">'
        f"{for_html(text_bottom)}</text></svg>"
    )
    if path is not None:
        with writing(path, ViewError):
            write_output(path, picture)
    return picture
