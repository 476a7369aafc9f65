"""Follow the commands that reports suggest, from a first command to a repro."""

import io
import re
import shlex
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from .commands import run

_NEXT = re.compile(r"^Next, [^\n]*:\n  (\S[^\n]*)$", flags=re.MULTILINE)
_MAX_COMMANDS = 8


@dataclass(frozen=True)
class Followed:
    """The result of following suggestions.

    Attributes:
        commands: the commands that were run.
        repro: the folder of the repro whose script showed the error; None if none was reached.
        output: what the last command printed.
    """

    commands: tuple[str, ...]
    repro: Path | None
    output: str


def follow(command: str) -> Followed:
    """Run a command, then the one that its output suggests, until a repro has run or nothing is suggested."""
    commands: list[str] = []
    while command not in commands and len(commands) < _MAX_COMMANDS:
        commands.append(command)
        program, *arguments = shlex.split(command)
        if program == "python":
            # As a user runs it: in a fork of a process with threads of OpenMP, a convolution may wait for them forever.
            done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)
            repro = Path(arguments[0]).parent if done.returncode == 1 else None
            return Followed(tuple(commands), repro, done.stdout + done.stderr)
        with redirect_stdout(io.StringIO()) as printed, redirect_stderr(printed):
            run(*arguments)
        suggested = _NEXT.findall(printed.getvalue())
        if not suggested:
            return Followed(tuple(commands), None, printed.getvalue())
        command = suggested[-1]
    return Followed(tuple(commands), None, printed.getvalue())
