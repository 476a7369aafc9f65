"""Traces that somebody else wrote: reading one runs nothing, ends soon, and what is wrong is said in a sentence."""

import os
import pickle
import re
import signal
import tracemalloc

import pytest

from filch.export import TraceError, check_trace, load_trace, save_trace
from support.hostile.traces import CANARY, HOSTILE, hostile_trace, popular

MEMORY = 8 * 2**20  # bytes that a trace may take here
SECONDS = 10  # of this process's own time; each test needs less than one


@pytest.fixture(autouse=True)
def patience():
    """What computes without end, or waits for ever, fails."""
    before = [signal.signal(number, ring) for number in (signal.SIGPROF, signal.SIGALRM)]
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    signal.alarm(60 * SECONDS)
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.alarm(0)
    for number, handler in zip((signal.SIGPROF, signal.SIGALRM), before, strict=True):
        signal.signal(number, handler)


def ring(number, frame):
    pytest.fail(f"not done after {SECONDS} s: {signal.Signals(number).name}")


def told(path):
    """What is said of a file, or of the trace in it."""
    try:
        trace = load_trace(path, memory=MEMORY)
    except TraceError as error:
        return [str(error)]
    return check_trace(trace)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_trace_is_refused_in_a_sentence(name, tmp_path, monkeypatch):
    """Nothing in it runs, memory stays within its limit, and whatever is said is a short line of plain text."""
    monkeypatch.chdir(tmp_path)
    suffix, content, message = hostile_trace(name)
    path = tmp_path / f"trace{suffix}"
    path.write_bytes(content)

    tracemalloc.start()
    try:
        problems = told(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert any(re.search(message, problem) for problem in problems), problems[:5]
    assert all(problem.isprintable() and len(problem) < 400 for problem in problems)
    assert len(problems) <= 1001
    assert peak < 2 * MEMORY
    assert os.listdir() == [path.name], f"{CANARY} is there"


def test_the_canary_would_be_touched(tmp_path, monkeypatch):
    """An unpickler that does as it is told makes the folder: the hostile pickle is one."""
    monkeypatch.chdir(tmp_path)
    pickle.loads(hostile_trace("the same in protocol 4")[1])  # noqa: S301  ours, and what it does is the point
    assert os.listdir() == [CANARY]


def test_edges_are_counted_once_per_node():
    """However many operators read a variable; with a count per edge this is 20,000 times 20,000."""
    (problem, _) = check_trace(popular(20_000))
    assert problem == "node_data[19999].inputs has 20000, but node_data[20000].outputs has not 19999 as many times"


def test_a_file_that_is_none_is_refused_at_once(tmp_path):
    """A FIFO would wait for a writer, and a device has no end."""
    os.mkfifo(tmp_path / "fifo.pkl")
    (tmp_path / "zero.json").symlink_to("/dev/zero")
    for name, kind in (("fifo.pkl", "a FIFO"), ("zero.json", "a device")):
        with pytest.raises(TraceError, match=rf"can't read '.*{name}': it is {kind}, not a regular file"):
            load_trace(tmp_path / name)


def test_a_large_trace_is_read_if_its_reader_says_so(tmp_path):
    """What is refused by default can be allowed; the message says how."""
    trace = {"node_data": {}, "execute_op_info": {number: {} for number in range(1000)}}
    (path, _) = save_trace(trace, tmp_path / "large.pkl")
    with pytest.raises(TraceError, match=r"would take more than 0 MB of memory; if it may, say so with memory="):
        load_trace(path, memory=100_000)
    assert load_trace(path, memory=400_000) == trace
