"""Tests of `filch.check_port`."""

from __future__ import annotations

import pytest

from filch.compare.testing._artifacts import ArtifactStore
from filch.compare.testing._checks import Checks
from support.thorough import slow

from ...support.models.port import port


@slow
def test_a_port_passes_or_names_the_operation(tmp_path):
    """A wrong port fails with the first departure and a page; the properties of the test say the same."""
    properties: list[tuple[str, str]] = []
    store = ArtifactStore(tmp_path, None, lambda: tmp_path, lambda name, value: properties.append((name, value)))
    a, b, args = port()
    assert Checks(store).check_port(a, b, args).close
    assert properties == [("backend", "port"), ("result", "close"), ("first_divergence", "")]
    properties.clear()
    with pytest.raises(AssertionError, match=r"First: gelu in blocks\.1, port\.py:\d+"):
        Checks(store).check_port(a, port({1: "gelu"})[1], args)
    assert dict(properties)["first_divergence"].startswith("gelu in blocks.1")
    assert "blocks.1" in (tmp_path / "2-port.html").read_text()
