"""The browser of the tests of pages, and what each of these tests is checked for."""

import pytest

from support.views.chromium import Chromium


@pytest.fixture(scope="module")
def page():
    """A browser; each test opens its own file in it."""
    with Chromium() as made:
        yield made


@pytest.fixture
def complains_of_nothing(page):
    """No error, no warning, no dialog, and nothing asked of a network, whatever a test does."""
    page.heard()
    page.log.clear()
    page.requests.clear()
    yield
    page.heard()
    assert page.log == []
    assert all(url.startswith("file://") for url in page.requests) and len(page.requests) == 1
    page.resize(1280, 800)
    page.dark(dark=False)
