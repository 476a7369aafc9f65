"""How the bytes of a dump are written."""

import os

import pytest

from filch.steal.dump._stream import BLOCK, _BlockWriter


@pytest.mark.parametrize(("max_slowdown", "is_direct"), [(5, True), (1, False)])
def test_direct_writes_may_be_slower_by_a_factor(tmp_path, monkeypatch, max_slowdown, is_direct):
    """A model on the CPU needs the processor that they spare; one on a GPU waits for the disk alone."""
    with (tmp_path / "cached").open("wb") as cached, (tmp_path / "direct").open("wb") as direct:
        writer = _BlockWriter(cached.fileno(), direct.fileno())
        writer.max_slowdown = max_slowdown
        clock, written = [0.0], []

        def write(handle, view, start):
            written.append(handle == direct.fileno())
            clock[0] += 2.0 if written[-1] else 1.0
            return len(view)

        monkeypatch.setattr(os, "pwrite", write)
        monkeypatch.setattr("time.perf_counter", lambda: clock[0])
        for index in range(20):
            writer.write(memoryview(bytes(16)), index * BLOCK)
    assert {*written[:2]} == {False, True}
    assert {*written[2:]} == {is_direct}
