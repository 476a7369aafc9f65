"""`make gpu`: a run on a GPU completes whatever its steps do, and says what became of each."""

import importlib.util
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.thorough import slow

ROOT = Path(__file__).resolve().parents[2]
RUNNER = ROOT / "benchmarks" / "gpu"
MODULES = ("_probe", "_report", "_steps", "_test_records", "_tests")

CRASHING_TESTS = """
import os, signal, time
import pytest

pytestmark = pytest.mark.gpu

def test_first(): pass
def test_wrong(): assert 1 + 1 == 3
def test_missing(): pytest.skip("no | such library")
def test_crash(): os.kill(os.getpid(), signal.SIGSEGV)
def test_after_the_crash(): pass
def test_hang(): time.sleep(600)
def test_last(): pass
"""


@pytest.fixture
def runner(monkeypatch):
    """Make the modules of the folder importable for one test."""
    monkeypatch.syspath_prepend(RUNNER)
    yield RUNNER
    for name in MODULES:
        sys.modules.pop(name, None)


def _step(steps, code, limit=30.0, title="step"):
    return steps.run_step(steps.Step(title, (sys.executable, "-c", code), limit), left=60.0)


def test_a_step_says_what_became_of_it(runner):
    """It passes, fails, skips, hangs, is killed or can't be started; each in its own words."""
    import _steps

    assert _step(_steps, "print('table')").status == "passed"
    failed = _step(_steps, "print('half a table'); raise ValueError('no kernel image')")
    assert (failed.status, failed.reason, failed.output) == ("failed", "ValueError: no kernel image", "half a table\n")
    missed = _step(_steps, "import sys; print('target missed'); sys.exit(1)")
    assert (missed.status, missed.reason) == ("failed", "target missed")
    skipped = _step(_steps, f"print('needs a library'); raise SystemExit({_steps.SKIPPED})")
    assert (skipped.status, skipped.reason) == ("skipped", "needs a library")
    killed = _step(_steps, "import os; os.kill(os.getpid(), 11)")
    assert (killed.status, killed.reason) == ("failed", "killed by signal 11 (SIGSEGV)")
    absent = _steps.run_step(_steps.Step("step", ("/no/such/program",), 30.0), left=60.0)
    assert (absent.status, absent.reason) == ("failed", "can't start /no/such/program: No such file or directory")
    late = _steps.run_step(_steps.Step("step", (sys.executable, "-c", ""), 30.0), left=1.0)
    assert (late.status, late.reason) == ("not run", "no time was left")


@slow
def test_a_step_that_hangs_is_ended_with_its_children(runner, tmp_path):
    """A child that ignores the end of its parent would keep the device."""
    import _steps

    beats = tmp_path / "beats"
    child = f"import time\nwhile True: open({str(beats)!r}, 'a').write('.'); time.sleep(0.05)"
    code = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {child!r}]); time.sleep(600)"

    result = _step(_steps, f"print('began', flush=True); {code}", limit=_steps.MIN_SECONDS)

    assert (result.status, result.reason, result.output) == ("failed", "not finished after 3 s", "began\n")
    count = beats.stat().st_size
    time.sleep(0.5)
    assert beats.stat().st_size == count > 0


@slow
def test_a_crash_or_a_hang_loses_no_other_test(runner, tmp_path):
    """The tests before it keep their results, and those after it run."""
    import _tests

    (tmp_path / "tests").mkdir()
    file = tmp_path / "tests" / "test_device.py"
    file.write_text(CRASHING_TESTS)
    (tmp_path / "tests" / "test_other.py").write_text("def test_it(): pass\n")
    assert _tests.marked_files(tmp_path) == [file]

    results = {item.test.rpartition("::")[2]: item for item in _tests.run_test_file(file, tmp_path, 8.0, 60.0)}

    assert {name: item.status for name, item in results.items()} == {
        "test_first": "passed",
        "test_wrong": "failed",
        "test_missing": "skipped",
        "test_crash": "failed",
        "test_after_the_crash": "passed",
        "test_hang": "failed",
        "test_last": "passed",
    }
    assert results["test_wrong"].reason == "assert (1 + 1) == 3"
    assert "def test_wrong" in results["test_wrong"].text
    assert results["test_missing"].reason == "no | such library"
    assert results["test_crash"].reason == "killed by signal 11 (SIGSEGV)"
    assert results["test_hang"].reason == "not finished after 8 s"


@slow
def test_a_file_without_results_has_failed(runner, tmp_path):
    """It can't be imported, no test in it is selected, or no time is left; a crash after the tests counts, too."""
    import _tests

    file = tmp_path / "test_device.py"
    file.write_text("import no_such_library\n")
    (broken,) = _tests.run_test_file(file, tmp_path, 30.0, 60.0)
    assert (broken.test, broken.status) == ("test_device.py", "failed")
    assert "no_such_library" in broken.text

    (late,) = _tests.run_test_file(file, tmp_path, 30.0, 1.0)
    assert (late.status, late.reason) == ("not run", "no time was left")

    code = "import atexit, os, pytest\natexit.register(os.abort)\n@pytest.mark.gpu\ndef test_it(): pass\n"
    file.write_text(code)
    passed, crashed = _tests.run_test_file(file, tmp_path, 30.0, 60.0)
    assert passed.status == "passed"
    assert (crashed.status, crashed.reason) == ("failed", "killed by signal 6 (SIGABRT)")


def test_the_file_says_what_was_found(runner):
    """Device, versions, a table of tests, the benchmarks' tables, and the failures with the end of their output."""
    import _report
    import _steps
    import _tests

    output = "\n".join(f"line {number}" for number in range(100))
    run = _report.Run(
        "2030-01-01",
        12.0,
        {"device": "A | B", "torch": "2.13"},
        [_steps.Result("a GPU for onnxruntime", "skipped", "no CUDA provider")],
        [
            _tests.TestResult("test_a.py::test_one", "passed", seconds=1.5),
            _tests.TestResult("test_a.py::test_two", "skipped", "needs <b>"),
            _tests.TestResult("test_a.py::test_three", "failed", "assert 1\n== 2", text=output),
        ],
        [
            _steps.Result("capture.py", "passed", seconds=3.0, output="\x1b[1mvariant  s\x1b[0m\n```\n"),
            _steps.Result("clean_runs.py", "not run", "no time was left"),
        ],
    )

    text = _report.render(run)

    assert [problem[0] for problem in run.problems] == ["clean_runs.py", "test_a.py::test_three"]
    assert "Tests: 1 passed, 1 failed, 1 skipped. Benchmarks: 1 passed, 1 not run." in text
    assert "**2 failed or not run: see [Failures](#failures).**" in text
    assert "| device | A \\| B |" in text
    assert "a GPU for onnxruntime: skipped: no CUDA provider" in text
    assert "| test_a.py::test_one | passed | 1.5 |  |" in text
    assert "| test_a.py::test_two | skipped | 0.0 | needs &lt;b> |" in text
    assert "| test_a.py::test_three | failed | 0.0 | assert 1 == 2 |" in text
    assert "### capture.py\n\n````text\nvariant  s\n```\n````\n" in text
    assert text.endswith("line 98\nline 99\n```\n") and "line 59\n" not in text

    assert "Nothing failed." in _report.render(_report.Run("2030-01-01", 1.0, {}, [], run.tests[:2], []))


def test_the_benchmarks_take_their_arguments(runner, monkeypatch, capsys):
    """A run on a GPU is rare: it must not end at an unknown option."""
    monkeypatch.syspath_prepend(runner.parent)
    before = {*sys.modules}
    main = _loaded("gpu_main", runner / "__main__.py", monkeypatch)
    for number, item in enumerate(main.BENCHMARKS):
        script, *arguments = item.command
        monkeypatch.setattr(sys, "argv", [script, *arguments, "--help"])
        with pytest.raises(SystemExit) as ended:
            _loaded(f"benchmark_{number}", runner.parent / script, monkeypatch).main()
        assert ended.value.code == 0, capsys.readouterr().err
    for name in {*sys.modules} - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(runner.parent)):
            del sys.modules[name]


def _loaded(name, path, monkeypatch):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


FAKE_PROBE = """
import json, sys

def versions(): return {"Python": "3"}

if __name__ == "__main__":
    if sys.argv[1] == "torch":
        print(json.dumps({"device": "made up"}))
    else:
        print("ONNX Runtime has no device")
        sys.exit(77)
"""


@slow
@pytest.mark.parametrize(("wrong", "status"), [(False, 0), (True, 1)])
def test_a_run_ends_with_the_file_and_a_status(tmp_path, wrong, status):
    """In a copy, with a device that is made up, one test, and benchmarks of one line."""
    runner = tmp_path / "benchmarks" / "gpu"
    shutil.copytree(RUNNER, runner, ignore=shutil.ignore_patterns("__pycache__"))
    (runner / "_probe.py").write_text(FAKE_PROBE)
    for name in ("capture", "clean_runs", "planted_compiled", "default_size"):
        (runner.parent / f"{name}.py").write_text("print('a table of rows')\n")
    (tmp_path / "tests").mkdir()
    test = f"import pytest\n@pytest.mark.gpu\ndef test_it(): assert not {wrong}\n"
    (tmp_path / "tests" / "test_device.py").write_text(test)

    done = subprocess.run([sys.executable, str(runner)], capture_output=True, text=True, timeout=120, check=False)

    written = (runner.parent / "GPU.md").read_text("utf-8")
    assert done.returncode == status, done.stderr
    assert "| device | made up |" in written and "a table of rows" in written
    assert (
        "| clean_runs.py --backends onnxruntime-cuda --modes default --jobs 4 | skipped | 0 | ONNX Runtime" in written
    )
    assert f"test_it | {'failed' if wrong else 'passed'} |" in written


@slow
def test_without_a_gpu_it_says_so_in_one_sentence(tmp_path):
    """And writes nothing: the exit status is that of no device."""
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    output = tmp_path / "GPU.md"

    done = subprocess.run(
        [sys.executable, str(RUNNER), "--output", str(output)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(
        f"make gpu: nothing was run, because there is no GPU: torch {torch.__version__} sees no CUDA"
    )
    assert not output.exists()
