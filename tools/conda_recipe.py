"""Print the recipe for conda-forge of a released sdist: `python tools/conda_recipe.py dist/filch-1.2.3.tar.gz`."""

import hashlib
import sys
from pathlib import Path

RECIPE = Path(__file__).resolve().parents[1] / "conda" / "recipe.yaml"
CLONE = "  path: ..\n"
RELEASE = """\
  url: https://github.com/filch-dev/filch/releases/download/v${{{{ version }}}}/filch-${{{{ version }}}}.tar.gz
  sha256: {sha256}
"""


def main() -> None:
    """Replace the source in the recipe, which is the clone, by the release asset."""
    before, _, after = RECIPE.read_text("utf-8").partition(CLONE)
    sha256 = hashlib.sha256(Path(sys.argv[1]).read_bytes()).hexdigest()
    print(before + RELEASE.format(sha256=sha256) + after, end="")


if __name__ == "__main__":
    main()
