"""Run the tests with several sets of versions, and write what came of it where `docs/versions.md` shows it.

`python tools/versions.py` runs all tests with the lowest versions that `pyproject.toml` allows (`floors`), those of
`constraints.txt` (`pinned`), and those that pip finds (`newest`), each in an environment in `build/versions`. `quick`
leaves out what `make test` does, `floors`, `pinned` and `newest` choose sets, and `page` only writes the page anew.
"""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "steal" / "private" / "versions.json"  # in the package: `filch --version` reads it
PAGE = ROOT / "docs" / "versions.md"
FOLDER = ROOT / "build" / "versions"
SETS = ("floors", "pinned", "newest")
_START, _END = "<!-- written by tools/versions.py -->\n", "<!-- end -->\n"
# Run by the environment's Python, because only it knows what is installed there.
_INSTALLED = "import json; from filch.steal.private._versions import installed; print(json.dumps(installed()))"


def floors() -> str:
    """Return constraints that pin each package of `pyproject.toml` to the lowest version that is allowed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    requirements = [*project["dependencies"], *extras["onnxruntime-gpu"], *extras["test"], *extras["dev"]]
    found = (re.match(r"([\w-]+)(?:\[\w+\])?>=([\w.]+)", text) for text in requirements)
    return "".join(f"{name}=={version}\n" for name, version in sorted({match.groups() for match in found if match}))


def run(name: str, *, quick: bool) -> dict[str, Any]:
    """Run the tests with one set of versions; return its entry of `versions.json`.

    Raises:
        SystemExit: the environment can't be made, or pytest reported nothing.
    """
    environment, report = FOLDER / name, FOLDER / f"{name}.xml"
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "floors.txt").write_text(floors(), "utf-8")
    (environment / ".installed-test").unlink(missing_ok=True)  # pip may find something else today
    report.unlink(missing_ok=True)
    constraints = {
        "floors": f"-c {FOLDER / 'floors.txt'}",
        "pinned": "-c constraints.txt",
        "newest": "--upgrade --upgrade-strategy eager",
    }
    # The tests of the page compare it with the last runs, which this one replaces.
    arguments = f"--junitxml {report} --ignore tests/house/test_versions.py"
    settings = {"VENV": environment, "CONSTRAINTS": constraints[name], "ARGS": arguments, "PAGE": "no-page"}
    variables = os.environ if quick else os.environ | {"FILCH_ALL_STORIES": "1"}
    command = ["make", "test", *(f"{key}={value}" for key, value in settings.items())]
    subprocess.run(command, cwd=ROOT, env=variables, check=False)  # tests that fail are in the report
    if not report.exists():
        sys.exit(f"{name}: the tests did not run")
    installed = subprocess.run([environment / "bin" / "python", "-c", _INSTALLED], capture_output=True, check=True)
    return {
        "platform": f"{platform.system()} {platform.machine()}",
        "tests": "those of `make test`" if quick else "all",
        "packages": json.loads(installed.stdout),
        **outcome(report.read_text("utf-8")),
    }


def outcome(report: str) -> dict[str, Any]:
    """Return how many tests passed, were expected to fail and were skipped, and the errors of those that failed."""
    counted: Counter[str] = Counter()
    failed = {}
    for case in ET.fromstring(report).iter("testcase"):  # noqa: S314  pytest wrote it
        problem = next((item for item in case if item.tag in {"failure", "error", "skipped"}), None)
        if problem is None:
            counted["passed"] += 1
        elif problem.tag == "skipped":
            counted["expected to fail" if problem.get("type") == "pytest.xfail" else "skipped"] += 1
        else:
            message = (problem.get("message") or "").partition("\n")[0]
            failed[f"{case.get('classname')}::{case.get('name')}"] = message[:200]
    return {**{key: counted[key] for key in ("passed", "expected to fail", "skipped")}, "failed": failed}


def table(data: dict[str, Any]) -> str:
    """Return the part of the page that shows `versions.json`."""
    runs = [data[name] for name in SETS if name in data]
    packages = dict.fromkeys(name for run in runs for name in run["packages"])
    rows = [["", *(name for name in SETS if name in data)], ["---"] * (1 + len(runs))]
    rows += [[name, *(run["packages"].get(name, "") for run in runs)] for name in packages]
    rows += [[key, *(run[key] for run in runs)] for key in ("platform", "tests")]
    rows += [[f"**{key}**", *(f"{run[key]:,}" for run in runs)] for key in ("passed", "expected to fail", "skipped")]
    rows += [["**failed**", *(f"{len(run['failed']):,}" for run in runs)]]
    text = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    if missing := [f"`{name}`" for name in SETS if name not in data]:
        text += f"\nNot run: {', '.join(missing)}.\n"
    for name in SETS:
        if failed := data.get(name, {}).get("failed"):
            text += f"\nFailed with the set `{name}`:\n\n" + "".join(f"- `{test}`\n" for test in sorted(failed))
    return text


def write_page(data: dict[str, Any]) -> None:
    """Replace the table on the page."""
    before, _, rest = PAGE.read_text("utf-8").partition(_START)
    _, _, after = rest.partition(_END)
    PAGE.write_text(f"{before}{_START}\n{table(data)}\n{_END}{after}", "utf-8")


def main() -> None:
    """Run the tests with each set, and write the data and the page after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", choices=["quick", "page", *SETS], metavar="WORD")
    words = parser.parse_args().words
    data = json.loads(DATA.read_text("utf-8"))
    names = [] if "page" in words else [name for name in SETS if name in words] or [*SETS]
    for name in names:
        data[name] = run(name, quick="quick" in words)
        data = {name: data[name] for name in SETS if name in data}
        DATA.write_text(json.dumps(data, indent=2) + "\n", "utf-8")
    write_page(data)
    print(table(data))
    sys.exit(any(data[name]["failed"] for name in names))


if __name__ == "__main__":
    main()
