"""The pytest plugin, by pytest inside pytest: the fixture, its marker, its options and what they write."""

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import torch
from torch import nn

from filch.compare import Checks, diff
from filch.compare.testing._artifacts import ArtifactStore
from filch.export import BackendError, export
from filch.export.backends import _registry
from support.models.small import capture_of
from support.processes.forked import run_python
from support.thorough import slow

pytest_plugins = "pytester"

# Of what is installed beside it, hypothesis imports itself in each run: seconds.
PLAIN = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-p", "no:anyio")
MODEL = """
import pytest
import torch
from torch import nn

def make(gelu="none"):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(gelu), nn.LayerNorm(16)).eval()

x = torch.linspace(-1, 1, 16).reshape(2, 8)
"""
WRONG = """
import onnx_ir as ir
from filch.export import export

def wrong():
    program = export(make(), (x,))
    next(node for node in program.model.graph if node.op_type == "Gelu").attributes["approximate"] = (
        ir.AttrString("approximate", "tanh"))
    return program
"""


@pytest.fixture(scope="module", autouse=True)
def _loaded(tmp_path_factory):
    """Import all that a comparison needs: pytest inside pytest unloads what it imports, and torch can't load twice."""
    artifacts = ArtifactStore(
        tmp_path_factory.mktemp("golden"), None, lambda: tmp_path_factory.mktemp("scratch"), lambda *_: None
    )
    backends = ["onnxruntime-cpu", "reference", "eager"]
    Checks(artifacts).check(nn.Linear(2, 2).eval(), torch.ones(1, 2), backends=backends)
    with pytest.raises(AssertionError):
        Checks(artifacts).check(nn.Linear(2, 2), torch.ones(1, 2), program=export(nn.Linear(2, 2), (torch.ones(1, 2),)))


@pytest.fixture
def project(pytester, monkeypatch):
    """Return a function that writes a test file of a project that uses Filch, and runs pytest on it."""
    for name in ("GITHUB_STEP_SUMMARY", "CI", "PYTEST_ADDOPTS"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments, text=None, **files):
        if text is not None:
            pytester.path.joinpath("test_model.py").write_text(MODEL + text)
        for name, content in files.items():
            pytester.path.joinpath(name.replace("__", ".")).write_text(content)
        return pytester.runpytest_inprocess("-p", "no:xdist", *PLAIN, *arguments)

    run.path = pytester.path
    return run


GOLDEN = """
def test_golden(filch):
    filch.golden("small").check(make(), x)
"""


def test_a_golden_dump_is_stored_once_and_compared_with_each_later_run(project):
    """The dump is missing, stored, the same, different and overwritten in turn."""
    missing = project(text=GOLDEN)
    missing.assert_outcomes(failed=1)
    missing.stdout.fnmatch_lines(["*there is no golden dump *small.onnx': pytest --filch-update stores it*"])

    project("--filch-update").assert_outcomes(passed=1)
    dump = project.path / "golden" / "test_model" / "small.onnx"
    assert dump.is_file()
    project().assert_outcomes(passed=1)

    changed = project(text=GOLDEN.replace("make()", "make('tanh')"))
    changed.assert_outcomes(failed=1)
    changed.stdout.fnmatch_lines(
        [
            "*this run differs from the golden dump 'small' (cause: code): judged 8 of 8 values; 4 differ*",
            "*First: 1#0.O: * times its rounding level; greatest harmonic error *",
            "*1#0.O * differs*",
            "*report: *golden-small.html*",
        ]
    )
    text = changed.stdout.str()
    assert Path(re.search(r"report: (\S+)", text)[1]).is_file()
    assert "contextlib" not in text and "_golden.py" not in text, "our own frames stand in the traceback"

    stored = project("--filch-update")
    stored.stdout.fnmatch_lines(["changed *small.onnx: judged 8 of 8 values; 4 differ; the first is 1#0.O*"])
    project().assert_outcomes(passed=1)


def test_an_update_that_loses_precision_needs_an_option(project):
    """Without it, the dump stays, and the message says why."""
    half = "m = make(); forward = m[0].forward; m[0].forward = lambda x: forward(x.bfloat16().float())"
    project("--filch-update", text=GOLDEN)
    text = f"def test_golden(filch):\n    {half}\n    filch.golden('small').check(m, x)\n"

    refused = project("--filch-update", text=text)

    refused.assert_outcomes(failed=1)
    refused.stdout.fnmatch_lines(["*was not overwritten: 6 values are further from float64*first 0#0.O in module `0`*"])
    assert "_golden.py" not in refused.stdout.str(), "our own frames stand in the traceback"
    assert project().ret == pytest.ExitCode.TESTS_FAILED
    stored = project("--filch-update", "--filch-allow-less-precise")
    stored.stdout.fnmatch_lines(["changed *small.onnx: judged 8 of 8 values; 6 differ*"])
    assert project().ret == pytest.ExitCode.OK


def test_an_unchanged_golden_dump_is_not_overwritten(project):
    """A new file would differ in its time stamp, and git would show a change."""
    project("--filch-update", text=GOLDEN).stdout.fnmatch_lines(["stored *small.onnx"])
    before = {file: file.read_bytes() for file in project.path.rglob("golden/**/*") if file.is_file()}

    project("--filch-update").stdout.fnmatch_lines(["unchanged *small.onnx"])

    assert {file: file.read_bytes() for file in project.path.rglob("golden/**/*") if file.is_file()} == before


def test_missing_records_new_records_and_other_shapes_fail(project):
    """The message names the first record of each kind."""
    project("--filch-update", text=GOLDEN)

    shorter = project(text="def test_golden(filch):\n    filch.golden('small').check(make()[:2], x)\n")
    shorter.stdout.fnmatch_lines(["*First: 2#0.I: this run does not have it*"])
    longer = project(
        text="def test_golden(filch):\n    filch.golden('small').check(nn.Sequential(*make(), nn.Identity()), x)\n"
    )
    longer.stdout.fnmatch_lines(["*First: 3#0.I: the golden dump does not have it*"])
    wider = project(text="def test_golden(filch):\n    filch.golden('small').check(make(), torch.ones(3, 8))\n")
    wider.stdout.fnmatch_lines(["*First: (root)#0.I*f32?3, 8?*"])


def test_golden_steal_compares_the_calls_of_a_block_within_a_tolerance(project):
    """The block has several calls, and options of steal_forward."""
    block = """
def test_block(filch):
    model = make({gelu})
    with filch.golden("block", tolerance={tolerance}).steal(("net", model), include="net.1"):
        model(x), model(2 * x)
"""
    assert project("--filch-update", text=block.format(gelu="", tolerance=None)).ret == 0
    found = project(text=block.format(gelu="'tanh'", tolerance=None))
    found.stdout.fnmatch_lines(["*First: net.1#0.O: *"])
    assert project(text=block.format(gelu="'tanh'", tolerance=0.01)).ret == 0
    assert project(text=block.format(gelu="'tanh'", tolerance=0)).ret == 1


def test_two_tests_that_share_a_golden_dump_have_to_agree(project):
    """The second test is compared with the dump of the first, also with --filch-update."""
    text = GOLDEN + "\ndef test_other(filch):\n    filch.golden('small').check(make('tanh'), x)\n"

    project("--filch-update", text=text).assert_outcomes(passed=1, failed=1)


def test_a_block_that_raises_stores_and_compares_nothing(project):
    """The test fails with the error of the block."""
    text = "def test_raises(filch):\n    with filch.golden('small').steal(make()):\n        raise KeyError('mine')\n"

    project("--filch-update", text=text).stdout.fnmatch_lines(["*KeyError: 'mine'*"])
    assert not list(project.path.rglob("*.onnx"))


@pytest.mark.parametrize("name", ["../up", "", ".hidden", "a/b", "a b"])
def test_a_golden_name_is_no_path(project, name):
    """The message shows what a name looks like."""
    found = project("--filch-update", text=f"def test_name(filch):\n    filch.golden({name!r}).check(make(), x)\n")

    found.stdout.fnmatch_lines(["*a golden dump has a name like 'encoder'*"])


CHECK = """
@pytest.mark.filch_backends({backends})
def test_close(filch):
    {line}
"""


def test_one_test_for_each_backend_and_a_missing_one_is_skipped(project, monkeypatch):
    """The skip has the backend's reason; an unknown backend is an error."""

    def refuse():
        raise BackendError("backend 'absent' needs a thing that is not there")

    monkeypatch.setitem(_registry._BUILT_IN, "absent", "._registry:refuse")  # noqa: SLF001  one that is missing everywhere
    monkeypatch.setattr(_registry, "refuse", refuse, raising=False)
    line = "assert [report.backend for report in filch.check(make(), x)] == [filch.backend]"
    text = CHECK.format(backends="'onnxruntime-cpu', 'eager', 'absent', 'onyxruntime-cpu'", line=line)

    found = project("-rs", "-v", text=text)

    found.assert_outcomes(passed=2, skipped=1, errors=1)
    found.stdout.fnmatch_lines(["*SKIPPED*needs a thing that is not there*"])
    found.stdout.fnmatch_lines(["*there is no backend 'onyxruntime-cpu'; did you mean 'onnxruntime-cpu'?*"])
    assert "test_close[eager]" in found.stdout.str()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("@pytest.mark.filch_backends()\ndef test_x(filch): pass", "takes names of backends, not ()"),
        ("@pytest.mark.filch_backends('eager')\ndef test_x(): pass", "is for tests that take the fixture `filch`"),
    ],
)
def test_an_invalid_marker_is_an_error(project, text, message):
    """The error is raised while the tests are collected."""
    assert message in project(text=text).stdout.str()


def test_a_failure_shows_all_that_differs_and_leaves_a_report_and_a_repro(project):
    """The message has the first divergence and rows around it; the repro shows the difference without the model."""
    text = (
        WRONG
        + "\ndef test_wrong(filch):\n    filch.check(make(), x, program=wrong(), backends=['eager', 'reference'])\n"
    )

    found = project(text=text)

    found.stdout.fnmatch_lines(
        [
            "*AssertionError: eager could not be compared: *this graph was changed since*",
            "*on reference is not close to eager PyTorch*",
            "*the first is*",
            "*exported node node_gelu (Gelu)*in 1 (torch/nn/modules/activation.py*",
            "*Gemm * 0 *",
            "*Gelu * 1 *<------*",
            "*report: *reference.html*",
            "*repro: python *repro.py*",
        ]
    )
    assert "_checks.py" not in found.stdout.str(), "our own frames stand in the traceback"
    assert "torch.__trace" not in found.stdout.str()
    script = Path(re.search(r"repro: python (\S+)", found.stdout.str())[1])
    done = run_python(script, cwd=project.path)
    assert done.returncode == 1, done.stderr
    assert "Divergence starts at `node_gelu`" in " ".join(done.stdout.split())


@slow
def test_a_lower_precision_has_to_be_allowed_and_its_repro_allows_it_too(project):
    """A difference larger than the rounding of bfloat16 is still found."""
    how = "backends='eager', options={'dtype': 'bfloat16'}, lower_precision="
    text = f"""
def test_refused(filch):
    filch.check(make(), x, {how}False)

def test_allowed(filch):
    (report,) = filch.check(make(), x, {how}True)
    assert "values of a lower precision were allowed" in report.notes

def test_too_far(filch):
    filch.check(make(), x, {how}True, tolerance=1e-4)
"""
    found = project(text=text)

    found.assert_outcomes(passed=1, failed=2)
    for script in re.findall(r"repro: python (\S+)", found.stdout.str()):
        done = run_python(script, cwd=project.path)
        assert done.returncode == 1, done.stderr
        assert ("the dtype differs" in done.stdout) == ("refused" in script)


def test_a_check_that_compares_nothing_is_an_error(project):
    """An empty list of backends fails, and so do swapped arguments."""
    found = project(
        text="def test_a(filch):\n    filch.check(make(), x, backends=[])\n"
        "def test_b(filch):\n    filch.check(x, make())\n"
    )

    found.assert_outcomes(failed=2)
    found.stdout.fnmatch_lines(["*backends is empty*"])
    found.stdout.fnmatch_lines(["*the first argument is the model, a torch.nn.Module, not a Tensor*"])


LOGGING = """
import logging
from filch.export import export

def test_export():
    export(make(), (x,))
    assert False

def test_torch_export():
    torch.export.export(make(), (x,))
    assert False

@pytest.fixture
def program():
    return export(make(), (x,))

def test_fixture(filch, program, caplog):
    filch.check(make(), x)
    logging.getLogger("mine").warning("shown")
    assert caplog.messages == ["shown"]
    assert False
"""


def test_torch_traces_of_an_export_are_not_shown(project):
    """They are empty lines, and hide what the test itself has logged; with the fixture, without it, and in a setup."""
    found = project("-o", "log_level=DEBUG", "--log-file=log.txt", "--log-file-level=DEBUG", text=LOGGING)

    found.assert_outcomes(failed=3)
    for text in (found.stdout.str(), (project.path / "log.txt").read_text()):
        assert "torch.__trace" not in text
        assert "mine:test_model.py" in text


EXPECTING = "[pytest]\nfilch_expected_failures = expected.toml\n"
BOTH = WRONG + CHECK.format(
    backends="'onnxruntime-cpu', 'reference'",
    line="filch.check(make(), x, program=wrong() if filch.backend == 'reference' else None)",
)


def test_an_expected_failure_may_fail_and_must_not_pass(project):
    """The table lists the failures by backend."""
    wrong = '[reference]\n"test_model.py::test_close" = "the planted fault"\n'
    found = project("-rx", text=BOTH, pytest__ini=EXPECTING, expected__toml=wrong)
    found.assert_outcomes(passed=1, xfailed=1)
    found.stdout.fnmatch_lines(["*the planted fault*"])

    right = wrong + '["onnxruntime-cpu"]\n"test_model.py::test_close" = "nothing is wrong"\n'
    found = project(expected__toml=right)
    found.assert_outcomes(xfailed=1, failed=1)
    found.stdout.fnmatch_lines(["*XPASS(strict)*nothing is wrong*"])


def test_an_expected_failure_of_no_test_is_an_error(project):
    """It is none if the run did not select the file of the test."""
    stale = '[reference]\n"test_model.py::test_clothes" = "a slip"\n"test_gone.py::test_x" = "a file that is gone"\n'
    plain = "def test_other(): pass\n"
    found = project(text=plain, pytest__ini=EXPECTING, expected__toml=stale)
    assert found.ret == pytest.ExitCode.TESTS_FAILED
    found.stdout.fnmatch_lines(
        [
            "ERROR there is no test 'test_gone.py::test_x' on backend 'reference'*",
            "ERROR there is no test 'test_model.py::test_clothes' on backend 'reference'*",
        ]
    )
    found = project("test_model.py", "-k", "other")
    assert found.ret == pytest.ExitCode.TESTS_FAILED and "test_gone" not in found.stdout.str()
    assert project("test_model.py::test_other").ret == pytest.ExitCode.OK
    assert project("test_model.py", expected__toml=stale.splitlines()[0]).ret == pytest.ExitCode.OK
    assert project("-k", "other", expected__toml="[reference]\nx = 1").ret == pytest.ExitCode.USAGE_ERROR
    assert project(expected__toml="[reference").ret == pytest.ExitCode.USAGE_ERROR
    nameless = project(expected__toml='[reference]\ntest_close = "it has no file"\n')
    assert nameless.ret == pytest.ExitCode.USAGE_ERROR


def test_terminal_escapes_in_the_expected_failures_are_escaped(project):
    """They may be in a backend's name, a reason or the name of a test that does not exist."""
    color = "\\u001b[31m"
    project(text=WRONG, pytest__ini=EXPECTING, expected__toml=f'["{color}"]\nx = 1\n').stderr.fnmatch_lines(
        ["ERROR: *expected lines like * under [[]\\u001b[[]31m], found*"]
    )

    table = f'["{color}"]\n"test_model.py::{color}" = "x"\n[reference]\n"test_model.py::test_close" = "{color}"\n'
    found = project("-rx", text=BOTH, expected__toml=table)

    assert "\x1b[31m" not in found.stdout.str() and "\\u001b[31m" in found.stdout.str()


def test_report_files_have_the_same_safe_names_in_each_run(project):
    """Each test has a folder with the HTML and JSON of its comparisons, also if its name looks like a path."""
    text = """
@pytest.mark.parametrize("name", ["../../up", "a/b", "<script>alert(1)</script>", "é" * 200])
def test_close(filch, name):
    filch.golden("one").check(make(), x)
    filch.golden("one").check(make(), x)
"""
    project("--filch-update", text=text)
    project("--filch-report", "reports")
    first = sorted(str(file.relative_to(project.path)) for file in project.path.joinpath("reports").rglob("*"))
    project("--filch-report", "reports")

    assert sorted(str(file.relative_to(project.path)) for file in project.path.joinpath("reports").rglob("*")) == first
    assert len([name for name in first if name.endswith(".html")]) == 8
    assert len([name for name in first if name.endswith(".json")]) == 8
    assert {path.name for path in project.path.iterdir()} >= {"reports", "golden", "test_model.py"}
    assert not list(project.path.parent.glob("up*"))
    one = next(project.path.joinpath("reports").rglob("*.json"))
    assert json.loads(one.read_text())["close"] is True


SEVERAL = BOTH + GOLDEN + "\ndef test_plain(): pass\n"


def test_the_junit_file_and_the_summary_have_each_comparison(project, monkeypatch):
    """Backend, worst error and first divergence are properties of the test, and in a table of tests and backends."""
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(project.path / "summary.md"))
    project("--filch-update", "-k", "golden", text=SEVERAL)
    (project.path / "summary.md").unlink(missing_ok=True)

    project("--junitxml=junit.xml", "--filch-report=reports")

    cases = {
        case.get("name"): {item.get("name"): item.get("value") for item in case.iter("property")}
        for case in ET.parse(project.path / "junit.xml").iter("testcase")  # noqa: S314  pytest wrote it
    }
    wrong = cases["test_close[reference]"]
    assert (wrong["filch.backend"], wrong["filch.result"]) == ("reference", "different")
    assert float(wrong["filch.worst_error"]) > 1e-5
    assert wrong["filch.first_divergence"].startswith("exported node node_gelu (Gelu)")
    assert Path(wrong["filch.report"]).is_file() and Path(wrong["filch.repro"]).is_file()
    assert cases["test_close[onnxruntime-cpu]"]["filch.first_divergence"] == ""
    assert cases["test_plain"] == {}

    lines = (project.path / "summary.md").read_text().splitlines()
    assert lines[2] == "| test | onnxruntime-cpu | reference | golden:small |"
    assert re.fullmatch(r"\| test_model.py::test_close \| \d\.\de-\d\d \| \*\*\d\.\de-\d\d\*\* \|  \|", lines[4])
    assert re.fullmatch(r"\| test_model.py::test_golden \|  \|  \| 0\.0e\+00 \|", lines[5])
    assert lines[7].startswith("- test_model.py::test_close on reference: exported node node_gelu (Gelu)")


def test_a_run_without_comparisons_writes_no_summary(project):
    """The file is not created."""
    project("--filch-summary", "summary.md", text="def test_plain(): pass\n")

    assert not (project.path / "summary.md").exists()


@slow
def test_it_works_under_xdist(project, pytester):
    """One summary has each result once, and prints the dumps that workers stored and the errors they found."""
    pytest.importorskip("xdist")
    text = """
@pytest.mark.parametrize("n", range(4))
def test_golden(filch, n):
    for _ in range(2):  # the first one stores
        filch.golden(f"g{n}").check(make(), x)
"""
    (project.path / "test_model.py").write_text(MODEL + text)
    (project.path / "pytest.ini").write_text(EXPECTING)
    (project.path / "expected.toml").write_text('[eager]\n"test_model.py::test_gone" = "a test of former times"\n')
    options = ("--filch-update", "--filch-summary=summary.md", "--filch-report=reports", *PLAIN)

    found = pytester.runpytest_subprocess("-n2", *options)

    found.assert_outcomes(passed=4)
    assert found.ret == pytest.ExitCode.TESTS_FAILED
    found.stdout.fnmatch_lines(["ERROR there is no test 'test_model.py::test_gone' on backend 'eager'*"])
    stored = sorted(line for line in found.outlines if line.startswith("stored "))
    assert stored == [f"stored {project.path}/golden/test_model/g{n}.onnx" for n in range(4)]
    summary = (project.path / "summary.md").read_text()
    assert summary.count("### Filch") == 1 and summary.count("| 0.0e+00 |") == 4
    assert len(list((project.path / "reports").rglob("*.html"))) == 4


def test_a_page_shows_each_row_and_marks_those_that_differ():
    """Columns without text are left out."""
    torch.manual_seed(0)
    models = [nn.Linear(2, 2), nn.Linear(2, 2)]
    captures = []
    for model in models:
        capture = capture_of(model, torch.ones(1, 2))
        captures.append(capture)

    text = diff(*captures).to_html()

    assert text.count("<tr") == 3 and text.count('<tr class="marked">') == 1
    assert "judged 2 of 2 values; 1 differ" in text
    assert "reason" not in text, "no row has one"
