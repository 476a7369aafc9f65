"""What drives the browser in the tests, on pages that are not in order."""

import re
import time

import pytest

from filch.export.views import plot_graph
from support.views.chromium import Chromium, missing
from support.views.pages import flat

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("console.warn('a warning')", "a warning"),
        ("setTimeout(() => missing.piece(), 0)", "missing is not defined"),
        ("setTimeout(() => alert('pwned'), 0)", "dialog: pwned"),
        ("new Image().src = 'https://example.org/pixel.png'", "Refused|Content Security Policy"),
    ],
)
def test_whoever_listens_hears_what_a_page_complains_of(tmp_path, script, said):
    """The check around each test in the browser is shown what it is to find, and a page that is in order."""
    with Chromium() as other:
        other.open(plot_graph(flat(5), tmp_path / "plain.html"))
        other.heard()
        assert other.log == [] and other.requests == [(tmp_path / "plain.html").as_uri()]

        other.run(f"void ({script})")
        time.sleep(0.5)
        other.heard()

        assert re.search(said, "\n".join(other.log))
