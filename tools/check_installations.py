"""Check that installing Filch leaves ONNX Runtime as it is, and that what its messages say repairs an installation.

`python tools/check_installations.py dist/filch-*.whl [constraints.txt]`, with the Python of a new virtual environment:
packages are installed into it and uninstalled from it.
"""

import argparse
import hashlib
import re
import shlex
import subprocess
import sys
import sysconfig
from importlib.metadata import distributions
from pathlib import Path

SITE = Path(sysconfig.get_path("purelib"))
RUNTIMES = ("onnxruntime==1.23.0", "onnxruntime", "onnxruntime-gpu")  # the first is the oldest that Filch supports
CHECK = ("check", "filch.compare:tiny_llm", "--quiet")


def main() -> None:
    """Check environments without ONNX Runtime, with one, with two, and with an incomplete one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", help="the wheel of Filch")
    parser.add_argument("constraints", nargs="?", help="versions of other packages, for pip")
    arguments = parser.parse_args()
    versions = [] if arguments.constraints is None else ["-c", arguments.constraints]
    if "filch" in installed() or runtimes():
        sys.exit("this environment is not new: Filch or ONNX Runtime is installed")

    pip("install", *versions, arguments.wheel)
    pip("check")
    if runtimes():
        sys.exit(f"Filch has installed {runtimes()}")
    succeed(*CHECK, "--backend", "reference")
    repair("not installed", versions)
    for runtime in RUNTIMES:
        pip("uninstall", "-y", "filch", *runtimes())
        pip("install", *versions, runtime)
        before = contents()
        pip("install", *versions, arguments.wheel)
        if before != {name: version for name, version in contents().items() if name != "filch"}:
            sys.exit(f"installing Filch has changed the environment with {runtime}")
        succeed(*CHECK)

    pip("uninstall", "-y", *runtimes())
    pip("install", *versions, "onnxruntime", "onnxruntime-gpu")
    repair("installed more than once", versions)
    pip("uninstall", "-y", *runtimes())
    pip("install", *versions, "onnxruntime", "onnxruntime-gpu")
    pip("uninstall", "-y", "onnxruntime")
    repair("incomplete", versions)


def repair(problem: str, versions: list[str]) -> None:
    """Check that the command line says in one line what the problem is, and run the commands in this line."""
    code, printed = filch(*CHECK)
    if code != 2 or len(printed.splitlines()) != 1 or problem not in printed:
        sys.exit(f"expected the exit code 2 and one line with {problem!r}, not {code} and\n{printed}")
    for names in re.findall(r"pip uninstall -y ([^,]+), then ", printed):
        pip("uninstall", "-y", *shlex.split(names))
    pip("install", *versions, *shlex.split(re.findall(r"pip install (\S+)", printed)[0]))
    succeed(*CHECK)


def succeed(*arguments: str) -> None:
    """Run the command line, which has to find that all values are close."""
    code, printed = filch(*arguments)
    if code:
        sys.exit(f"filch {shlex.join(arguments)} exits with {code}:\n{printed}")


def filch(*arguments: str) -> tuple[int, str]:
    """Run the command line; return its exit code and what it prints."""
    command = [sys.executable, "-m", "filch", *arguments]
    done = subprocess.run(command, cwd=SITE, capture_output=True, text=True, check=False)
    printed = done.stdout + done.stderr
    print(f"$ filch {shlex.join(arguments)}\n{printed[-500:].strip()}\n[exit code {done.returncode}]", flush=True)
    return done.returncode, printed


def pip(*arguments: str) -> None:
    """Run pip, which has to succeed."""
    print(f"$ pip {shlex.join(arguments)}", flush=True)
    subprocess.run([sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments], check=True)


def installed() -> dict[str, str]:
    """Return the versions of the installed distributions, by name."""
    return {one.name: one.version for one in distributions(path=[str(SITE)])}


def runtimes() -> list[str]:
    """Return the names of the installed distributions of ONNX Runtime."""
    return [name for name in installed() if name.startswith("onnxruntime")]


def contents() -> dict[str, str]:
    """Return the versions of the installed distributions, and the hash of each file of ONNX Runtime."""
    files = [path for path in (SITE / "onnxruntime").rglob("*") if path.is_file() and path.suffix != ".pyc"]
    return {**installed(), **{str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}}


if __name__ == "__main__":
    main()
