"""Print the tables of docs/evidence.md that compare the models of the tests' zoo.

`python tools/evidence_tables.py module-calls` or `compiled-graphs`; `--models` selects the models.
"""

import argparse
import sys
from pathlib import Path

# The models live with the tests, which are not a package and are not installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.models import compiled_graphs, module_calls
from support.models.zoo import MODELS


def main() -> None:
    """Print one table as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", choices=["module-calls", "compiled-graphs"])
    parser.add_argument("--models", nargs="+", choices=MODELS)
    options = parser.parse_args()
    if options.table == "module-calls":
        titles, lines = module_calls.TITLES, [module_calls.measure(name) for name in options.models or MODELS]
    else:
        backends = compiled_graphs.backends()
        names = options.models or compiled_graphs.WANTED
        titles = compiled_graphs.TITLES
        lines = [line for name in names for line in compiled_graphs.measure(name, backends, optimized=False)]
    for row in (titles, ["---"] * len(titles), *(line.cells() for line in lines)):
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()
