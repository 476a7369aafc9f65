"""Ask Filch about ONNX files that packages contain, and about pairs of published implementations of one model.

Each question is answered in a process of its own, with a limit of time; what was answered is kept in a folder, and
asked again only if the question, Filch or a version of a package has changed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
PATHS = (HERE.parent, HERE.parents[1] / "tests")
sys.path[:0] = map(str, PATHS)

from _measure import MIB, describe_environment, table
from _questions import Answer, ask, installed, state

PARTS = ("files", "pairs")
PACKAGES = ("torch", "onnx", "onnxruntime-gpu", "transformers")
FOLDER = Path("build/corpus").resolve()
MAX_UNJUDGED, MAX_SECONDS, MAX_MIB = 0.02, 60, 4096
MIN_PLACED = 0.95


def share(found: Answer) -> float:
    """Return the share of compiled values that were not judged."""
    return sum(count for _, count in found["unjudged"]) / max(1, found["values"])


def problems(found: Answer, *outcomes: str) -> Iterator[str]:
    """Yield which targets an answer about a file misses; a file that a tool can't convert misses none."""
    if "error" in found:
        yield found["error"]
    elif "refused" not in found:
        if found["outcome"] not in outcomes:
            yield f"{found['outcome']}: {found['says']}; first: {found['first']}"
        if share(found) > MAX_UNJUDGED:
            yield f"{share(found):.1%} of the values not judged: {'; '.join(found['named'])}"
        if any(not reason for reason, _ in found["unjudged"]):
            yield "no reason for a value that was not judged"
        # A process that waits for others takes longer, and one on several cores has more seconds of them.
        if min(found["seconds"], found["cpu"]) > MAX_SECONDS or found["mib"] > MAX_MIB:
            yield f"{found['seconds']} s, {found['cpu']} s of a core, {found['mib']} MiB"


def files(names: Sequence[str], ways: Sequence[str], *, limit: int) -> bool:
    """Ask about files, print a table, and return whether all targets are met."""
    from corpus._files import DIFFERENT, TOOLS, answer, published

    text = "".join((HERE / name).read_text() for name in ("_files.py", "files.toml")) + state(*PACKAGES)
    rows, missed, reasons = [], 0, Counter[str]()
    for package, path, given in published():
        if names and not any(name in path for name in names):
            continue
        file = installed(FOLDER / "packages" / package.replace("==", "-"), package) / path
        answers = {}
        for way in ways:
            tool = TOOLS.get(way)
            place = installed(FOLDER / "packages" / tool.replace("==", "-"), tool) if tool else None
            kept = FOLDER / "files" / f"{path.replace('/', '.')}.{way}.json"
            found = ask(kept, f"{path} {way} {text}", answer, file, given, way, place, limit=limit)
            answers[way] = found
            for problem in problems(found, "close", *(["different"] if (path, way) in DIFFERENT else [])):
                missed += 1
                print(f"MISSED {path}, {way}: {problem}", flush=True)
            if "refused" in found:
                print(f"refused {path}, {way}: {found['refused']}", flush=True)
            reasons.update(dict(found.get("unjudged", [])))
        judged = [found for found in answers.values() if "values" in found]
        words = (next((word for word in ("error", "refused") if word in f), f.get("outcome")) for f in answers.values())
        largest = (
            str(max((found[what] for found in judged), default=0)) for what in ("values", "seconds", "cpu", "mib")
        )
        unjudged = f"{max(map(share, judged), default=0):.1%}"
        rows.append([path, f"{file.stat().st_size / MIB:.1f}", *words, unjudged, *largest])
        print(*rows[-1], flush=True)
    head = ("file", "MiB", *ways, "unjudged", "values", "s", "s of a core", "peak MiB")
    print(f"\n{table(head, rows)}\n")
    for reason, count in reasons.most_common():
        print(f"{count} not judged: {reason}")
    print(f"{len(rows)} files: {missed} targets missed")
    return not missed


def pairs(names: Sequence[str], *, limit: int) -> bool:
    """Ask about pairs, print a table, and return whether all targets are met."""
    from corpus._pairs import OPERATION, OUTCOMES, STYLES, answer, published_bugs, style_of

    sources = {path.stem: path.read_text() for path in (*HERE.glob("pairs/[!_]*.py"), *HERE.glob("*.txt"))}
    shared = "".join((HERE / name).read_text() for name in ("_pairs.py", "pairs/_pair.py")) + state(*PACKAGES)
    rows, total, flagged = [], Counter[str](), 0
    bugs = [*enumerate(published_bugs())]
    for pair in dict.fromkeys(bug.pair for _, bug in bugs):
        if names and not any(name in pair for name in names):
            continue
        outcomes, places, further, seconds, mib = [], Counter[str](), 0, 0.0, 0
        text = shared + sources["requirements"] + next(text for name, text in sources.items() if name in pair)
        questions = [(style, None) for style in STYLES]
        questions += [(style_of(index), bug) for index, bug in bugs if bug.pair == pair]
        for style, bug in questions:
            label = f"{pair}, {bug.name if bug else f'clean, {style}'}"
            kept = FOLDER / "pairs" / f"{label.replace(', ', '.').replace(' ', '-')}.json"
            found = ask(kept, f"{label} {bug} {text}", answer, pair, style, bug, limit=limit)
            place = "error" if "error" in found else found.get("place", found["outcome"])
            print(f"{place}: {label}", flush=True)
            if place not in (OPERATION, "close") or found.get("further"):
                print(f"    {found.get('error') or found['departures'] or found['says']}", flush=True)
            seconds, mib = max(seconds, found.get("seconds", 0)), max(mib, found.get("mib", 0))
            if bug is None:
                outcomes.append(place)
                flagged += place != "close"
            else:
                places[place] += 1
                further += found.get("further", 0)
        total += places
        counts = [str(places[name]) for name in (*OUTCOMES, "error")]
        rows.append([pair, *outcomes, str(places.total()), *counts, str(further), f"{seconds:.1f}", str(mib)])
    head = ("pair", *STYLES, "bugs", *OUTCOMES, "error", "further", "s", "peak MiB")
    print(f"\n{table(head, rows)}\n")
    print(f"{len(rows)} pairs: {flagged} of {2 * len(rows)} clean runs not close; ", end="")
    print(f"{total[OPERATION]} of {total.total()} bugs named at the operation")
    return not flagged and total[OPERATION] >= MIN_PLACED * total.total()


def main() -> int:
    """Ask about all files and pairs; return 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="only files and pairs whose names contain one of these texts")
    parser.add_argument("--only", choices=PARTS, help="only files, or only pairs (default: both)")
    parser.add_argument("--limit", type=int, default=300, help="seconds for each question (default: 300)")
    parser.add_argument("--ways", nargs="+", metavar="WAY", help="ways to compare a file (default: all)")
    options = parser.parse_args()
    if options.only is None:  # what one part imports is in the memory of its questions
        command = [sys.executable, str(HERE), *sys.argv[1:], "--only"]
        return max([subprocess.run([*command, part], check=False).returncode for part in PARTS])
    if options.only == "pairs":
        requirements = (HERE / "requirements.txt").read_text().splitlines()
        packages = [line for line in requirements if not line.startswith("#")]
        sys.path.append(str(installed(FOLDER / "packages" / "pairs", *packages)))
    # The process that questions are forked from has neither the path nor the modules of this one.
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    if options.only == "files":
        from corpus._files import WAYS

        met = files(options.names, options.ways or WAYS, limit=options.limit)
    else:
        met = pairs(options.names, limit=options.limit)
    print(describe_environment(*PACKAGES))
    return int(not met)


if __name__ == "__main__":
    sys.exit(main())
