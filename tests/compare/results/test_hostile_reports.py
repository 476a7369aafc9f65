"""Reports, journals and outputs in a folder that somebody else has prepared: nothing outside of it is touched."""

import json
import os
import resource
import time

import pytest
import torch
from torch import nn

from filch.compare import CompareError, compare, load_report
from filch.compare.bisection._journal import Journal
from filch.compare.testing._expected_failures import read_table
from filch.export import export
from filch.export.passes._profile import ProfileInstrument
from filch.export.views import plot_legend, save
from filch.steal import DumpError, recover, restore, steal_forward
from support.hostile.reports import FILES, JOURNALS, PATHS, PLACES, REPORTS, SECRET, TABLES
from support.models.small import capture_of
from support.processes.commands import run

_MEMORY = 500 * 2**10  # KiB, as `ru_maxrss` counts


@pytest.fixture(scope="module")
def report():
    """Return the JSON of a report."""
    model, x = nn.Linear(2, 2).eval(), torch.ones(1, 2)
    capture = capture_of(model, x)
    return compare(capture, export(model, (x,)), backend="reference")


@pytest.fixture
def folder(tmp_path):
    """Return a folder beside a secret file; fail if the test used much memory or changed the secret."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    (tmp_path / "secret").write_text(SECRET)
    (tmp_path / "in").mkdir()
    yield tmp_path / "in"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < _MEMORY
    assert (tmp_path / "secret").read_text() == SECRET
    assert sorted(os.listdir(tmp_path)) == ["in", "secret"]


def _refused(reason, call, *args):
    with pytest.raises((CompareError, DumpError), match=reason) as caught:
        call(*args)
    message = str(caught.value)
    assert message.isprintable()
    assert len(message) < 700
    assert SECRET not in message


@pytest.mark.parametrize("case", [*FILES, *REPORTS])
def test_a_hostile_report_is_refused_with_one_sentence(case, folder):
    """This holds for hostile contents and for paths that are no regular files."""
    write, reason = (FILES | REPORTS)[case]
    write(folder / "report.json")

    _refused(reason, load_report, folder / "report.json")


@pytest.mark.parametrize("case", PLACES)
def test_a_report_with_something_else_in_a_place_is_refused(case, folder, report):
    """A number that is too large is still a number, and is read."""
    change, reason = PLACES[case]
    found = json.loads(report.to_json())
    change(found)
    (folder / "report.json").write_text(json.dumps(found))

    if reason is None:
        assert load_report(folder / "report.json").backend == "reference"
    else:
        _refused(reason, load_report, folder / "report.json")


@pytest.mark.parametrize("case", [*FILES, *JOURNALS])
def test_a_hostile_journal_is_refused_with_one_sentence(case, folder):
    """The file is not changed."""
    write, reason = (FILES | JOURNALS)[case]
    write(folder / "journal")
    before = (folder / "journal").read_bytes() if case in JOURNALS else b""

    _refused(reason, Journal, folder / "journal", {})

    assert case not in JOURNALS or (folder / "journal").read_bytes() == before


@pytest.mark.parametrize("target", ["../secret", "../new"])
def test_a_journal_follows_no_link(folder, target):
    """This holds for links to an existing file and to a missing one."""
    (folder / "journal").symlink_to(target)

    _refused("it is a link", Journal, folder / "journal", {})


@pytest.mark.parametrize("target", ["../secret", "../new"])
def test_written_files_follow_no_link_out_of_the_folder(folder, report, target):
    """The targets of the links stay unchanged for pages, reports in each format, legends, logs and programs."""
    for name in ("out.html", "out.json", "out.txt", "out.svg", "out.log", "out.onnx"):
        (folder / name).symlink_to(target)
    graph = report.graph
    writers = (
        (report.to_html, "out.html"),
        (report.to_json, "out.json"),
        (lambda path: save(graph, "text", path), "out.txt"),
        (lambda path: plot_legend("T", path=path), "out.svg"),
        (lambda path: ProfileInstrument(log_file=path).before_all_passes(None), "out.log"),
        (export(nn.Linear(2, 2), (torch.ones(1, 2),)).save, "out.onnx"),
    )

    for write, name in writers:
        with pytest.raises(Exception, match=r"it is a link to .*, in another folder"):
            write(folder / name)


def test_a_link_within_the_folder_is_followed(folder, report):
    """So is a link to a device, as in `-o /dev/stdout`."""
    (folder / "link.json").symlink_to("report.json")
    (folder / "null.json").symlink_to("/dev/null")

    report.to_json(folder / "link.json")
    report.to_json(folder / "null.json")

    assert load_report(folder / "report.json").backend == "reference"


def test_a_dump_of_many_small_parts_is_refused_before_they_are_made(folder):
    """A few megabytes of empty objects, which a list of rows does not have, would take a gigabyte of memory."""
    with steal_forward(nn.Identity(), dump_file=folder / "golden.onnx"):
        pass
    import onnx

    model = onnx.load(folder / "golden.onnx")
    for entry in model.metadata_props:
        if entry.key == "filch.records":
            entry.value = "[" + "{}," * 2_000_000 + "{}]"
    (folder / "golden.onnx").write_bytes(model.SerializeToString())

    _refused("it is not a list of rows", restore, folder / "golden.onnx")


def test_a_draft_that_is_a_fifo_is_refused(folder):
    """`recover` reads the unfinished files of a capture."""
    os.mkfifo(folder / ".d.onnx.01234567.journal")
    (folder / ".d.onnx.01234567.data").write_bytes(b"")

    _refused("a FIFO", recover, folder / "d.onnx")


@pytest.mark.parametrize("case", ["FIFO", "device", "folder", "a terabyte"])
def test_a_table_of_expected_failures_has_to_be_a_file(case, folder):
    """Pytest reports it at its start."""
    FILES[case][0](folder / "table.toml")

    with pytest.raises(pytest.UsageError, match="can't read"):
        read_table(folder / "table.toml")


@pytest.mark.parametrize("case", PATHS)
def test_a_report_with_impossible_paths_is_drawn_and_not_reproduced(case, folder, report, capsys):
    """The message is one sentence with the shortened path."""
    found = json.loads(report.to_json()) | {"program": PATHS[case], "reference": PATHS[case]}
    path = folder / "report.json"
    path.write_text(json.dumps(found))

    assert run("view", str(path), "--as", "text") == 0
    assert not capsys.readouterr().err
    assert run("repro", str(path), "--node", report.rows[0].node, "-o", str(folder / "out")) == 2

    said = capsys.readouterr().err
    assert "is not a file: give --reference DUMP" in " ".join(said.split())
    assert said.replace("\n", "").isprintable() and len(said) < 600


@pytest.mark.parametrize("case", TABLES)
def test_a_hostile_table_of_expected_failures_is_refused_with_one_sentence(case, folder):
    """It is refused within seconds."""
    write, reason = TABLES[case]
    write(folder / "table.toml")
    began = time.process_time()

    with pytest.raises(pytest.UsageError, match=reason) as caught:
        read_table(folder / "table.toml")

    assert str(caught.value).isprintable() and len(str(caught.value)) < 1000
    assert time.process_time() - began < 5


def test_there_are_at_least_fifteen_hostile_cases():
    """The corpus must not shrink unnoticed."""
    assert len(FILES) + len(REPORTS) + len(PLACES) + len(JOURNALS) + len(TABLES) >= 15
