"""Reports, journals, ledgers and dumps that are damaged or made up, with what each is refused with."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

SECRET = "what no report may show"  # noqa: S105  nobody's

Write = Callable[[Path], object]


def _link(target: str) -> Write:
    return lambda path: path.symlink_to(target)


def _sparse(size: int) -> Write:
    def write(path: Path) -> None:
        with path.open("wb") as file:
            file.truncate(size)

    return write


def _text(text: str | bytes) -> Write:
    return lambda path: path.write_bytes(text.encode() if isinstance(text, str) else text)


# Whatever reads text: reports and journals.
FILES: dict[str, tuple[Write, str]] = {
    "FIFO": (os.mkfifo, "it is a (FIFO|link)"),
    "device": (_link("/dev/zero"), "it is a (device|link)"),
    "folder": (os.mkdir, "Is a directory"),
    "a terabyte": (_sparse(2**40), "at most .* are read"),
}

REPORTS: dict[str, tuple[Write, str]] = {
    "brackets": (_text("[" * 100_000), "is not JSON: it is nested too deep"),
    "objects": (_text('{"a":' * 100_000), "is not JSON: it is nested too deep"),
    "digits": (_text('{"filch_report": ' + "9" * 5000 + "}"), "a number in it has too many digits"),
    "not a number": (_text('{"filch_report": NaN}'), "NaN is not JSON"),
    "many lists": (_text("[" + "[]," * 2_500_000 + "[]]"), "it would take about"),
    "many objects": (_text("[" + "{}," * 2_000_000 + "{}]"), "it would take about"),
    "not UTF-8": (_text(b"\xff\xfe{}"), "is not JSON"),
    "cut": (_text('{"filch_report": 7, "rows": ['), "is not JSON"),
    "empty": (_text(""), "is not JSON"),
    "a list": (_text("[]"), "is JSON, but no report"),
    "another version": (_text('{"filch_report": [[[[[1]]]]]}'), "is a report of version"),
    "a version of many characters": (_text(json.dumps({"filch_report": "x" * 10**6})), "is a report of version"),
    "nothing else": (_text('{"filch_report": 7}'), "is damaged: KeyError"),
}

# What a report holds, in place of what belongs there.
PLACES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "rows that are none": (lambda found: found.update(rows={"a": 1}), "is damaged: TypeError"),
    "a row of another report": (
        lambda found: found["operators"].append([{"kind": "x", "text": "y", "row": 10**9, "dtype": "z"}]),
        "IndexError",
    ),
    "operators that are a number": (lambda found: found.update(operators=5), "is damaged: TypeError"),
    "graphs that are text": (lambda found: found.update(graphs="x" * 10**6), "is damaged: TypeError: graphs is"),
    "a graph without nodes": (lambda found: found.update(graphs={"exported": {}}), "is damaged: KeyError"),
    "a huge number": (lambda found: found.update(calls=[1, 10**400]), None),
    "a large text": (lambda found: found.update(backend=["x" * 10**6]), "is damaged: TypeError: backend is"),
}

_HEADING = '{"filch_bisect_journal": 1}\n'
JOURNALS: dict[str, tuple[Write, str]] = {
    "brackets": (_text("[" * 100_000 + "\n"), "is not a journal of a bisection"),
    "brackets in a run": (_text(_HEADING + "[" * 100_000 + "\n"), "is damaged in line 2"),
    "not UTF-8": (_text(b"\xff\n"), "is not a journal of a bisection"),
    "not UTF-8 in a run": (_text(_HEADING.encode() + b"\xff\n"), "is damaged in line 2"),
    "a run that is none": (_text(_HEADING + '{"off": 1}\n'), "is damaged in line 2"),
    "a run of wrong types": (
        _text(
            _HEADING
            + '{"off": [], "outcome": {"passes": 1, "error": "x", "snr": [], "overflowed": 0, "problem": ""},'
            + ' "fingerprint": "", "ops": null, "switches": []}\n'
        ),
        "is damaged in line 2",
    ),
    "a number of many digits": (_text(_HEADING + "1" * 5000 + "\n"), "is damaged in line 2"),
    "a letter": (_text("Dear reader,\n"), "is not a journal of a bisection"),
}

_ROW = {
    "filch_ledger": 1, "key": "k", "run": "2026-10-01T03:00:00Z", "labels": {"model": "m"}, "status": "close",
    "error": 1e-7, "detail": "", "blame": None, "environment": {},
}  # fmt: skip


def _row(**entries: object) -> Write:
    return _text(f"{json.dumps(_ROW | entries)}\n")


LEDGERS: dict[str, tuple[Write, str]] = {
    "brackets": (_text("[" * 100_000 + "\n"), "has no rows of a ledger"),
    "empty": (_text(""), "has no rows of a ledger"),
    "a list": (_text("[]\n"), "is not a ledger: line 1 has no entry"),
    "a report": (_text('{"filch_report": 5}\n'), "is not a ledger: line 1 has no entry"),
    "another version": (_row(filch_ledger=2), "is a ledger of version 2; this Filch reads version 1"),
    "a version that is true": (_row(filch_ledger=True), "is a ledger of version True"),
    "a version of many characters": (_row(filch_ledger="x" * 10**6), "is a ledger of version"),
    "nothing else": (_text('{"filch_ledger": 1}\n'), "is damaged in line 1: KeyError"),
    "a status of its own": (_row(status="\x1b[31mgood"), "is damaged in line 1: TypeError: row.status is"),
    "an error that is text": (_row(error="small"), "is damaged in line 1: TypeError: row.error is"),
    "labels that are a list": (_row(labels=["m"]), "is damaged in line 1: TypeError: row.labels is"),
    "a large label": (_row(labels={"model": ["x" * 10**6]}), "is damaged in line 1: TypeError: row.labels.model is"),
    "a run that is no time": (_row(run="\x1b[31m" * 1000), "is damaged in line 1: row.run is"),
    "blame that is text": (_row(blame="me"), "is damaged in line 1: TypeError: row.blame is"),
    "many lists in a line": (_text("[" + "[]," * 2_500_000 + "[]]\n"), "has no rows of a ledger"),
    "many cells": (
        _text("".join(f"{json.dumps(_ROW | {'key': str(i), 'labels': {'m': str(i)}})}\n" for i in range(10_001))),
        "more than 10,000 different cells",
    ),
}

# Tables of expected failures: TOML, which is read at each start of pytest.
TABLES: dict[str, tuple[Write, str]] = {
    "dots": (_text("a." * 200_000 + "a = 1\n"), "dotted keys take more than"),
    "dots behind a separator": (_text('a."\u2028"' + ".a" * 200_000 + " = 1\n"), "dotted keys take more than"),
    "dots before a separator": (_text(f'a{".a" * 60}."\u2028"{".a" * 60} = 1\n'), "nested more than 2 deep"),
    "dots in many lines": (
        _text("".join(f"a{'.a' * 90}.k{i} = 1\n" for i in range(5_000))),
        "dotted keys take more than",
    ),
    "dotted headings": (_text("".join(f"[a{'.b' * i}]\n" for i in range(900))), "dotted keys take more than"),
    "brackets": (_text("a = " + "[" * 500_000), "nested too deeply"),
    "brackets that are closed": (_text("[b]\na = " + "[" * 300 + "]" * 300), "nested more than 2 deep"),
    "tables in tables": (_text("a = " + "{a = " * 100_000), "nested too deeply"),
    "digits": (_text("a = " + "1" * 500_000), "too many digits"),
    "a huge number": (_text("a = 0x" + "f" * 500_000), "more than 64 bits"),
    "a huge number in a table": (_text("[b]\na = 0x" + "f" * 500_000), "more than 64 bits"),
    "a reason that is a number": (_text('["b"]\n"x::y" = ' + "1" * 4_000), "more than 64 bits"),
    "a color": (_text('["\\u001b[31m"]\n"x" = "\\u001b[31m"\n'), r"under \[\\u001b\[31m\], found"),
    "a color as a key": (_text('"\\u001b[31m" = 1\n"\\u001b[31m" = 2\n'), "is not a TOML file"),
    "a name without end": (_text(f'["{"x" * 500_000}"]\n"x" = "y"\n'), r"\(500,000 characters\)"),
    "a value without end": (_text(f'[b]\n"{"x" * 500_000}" = "y"\n'), "expected lines like"),
    "not UTF-8": (_text(b"\xff\xfe"), "is not a TOML file"),
    "many tables": (_text("".join(f"[t{i}]\n" for i in range(200_000))), "at most 1,048,576 are read"),
}

# Files that a report says that it is about.
PATHS = {
    "a long name": "a" * 5_000, "a long path": "a/" * 5_000, "NUL": "a\0b.onnx", "a color": "\x1b[31m\n[red]x[/red]",
    "a surrogate": "\ud800.onnx", "a device": "/dev/zero", "a folder": ".", "nothing": "",
}  # fmt: skip
