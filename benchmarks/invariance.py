"""Check in which ways language models of transformers can be called, all of which have to give the same numbers.

The models are small and have random weights; each runs in float64, too, so that a relation that breaks is no rounding.
"""

from __future__ import annotations

import argparse
import sys
import time

from _families import FURTHER, MODELS, arguments, make
from _measure import describe_environment, table

from filch.compare import Invariance, check_invariance


def cells(result: Invariance, seconds: float) -> list[str]:
    """Return the row of a model."""
    counts = [sum(row.verdict == verdict for row in result.rows) for verdict in ("holds", "breaks", "fails", "not run")]
    compared = sum(row.compared for row in result.rows)
    return [result.model, *map(str, counts), str(compared), f"{seconds:.0f}"]


def main() -> int:
    """Check all models; print what breaks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS | FURTHER, metavar="MODEL", help="some of the models")
    parser.add_argument("--further", action="store_true", help="check the models of further families instead")
    options, rows = parser.parse_args(), []
    for name in options.models or (FURTHER if options.further else MODELS):
        start = time.perf_counter()
        result = check_invariance(make(name), kwargs=arguments(name), quantized=["fp8"])
        rows.append(cells(result, time.perf_counter() - start))
        for row in result.rows:
            if row.verdict in ("breaks", "fails"):
                print(f"{row.verdict.upper()} {name}, {row.relation}: {row.first or row.note}", flush=True)
    print()
    print(table(("model", "hold", "break", "fail", "not run", "values", "seconds"), rows), end="\n\n")
    print(describe_environment("torch", "transformers"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
