"""Make docs/images/report.png: a screenshot of the page of a report, by headless Chromium.

The model and the bug are those of docs/stories.md: ONNX Runtime replaces a zero padding in front of a max pooling.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
IMAGE = ROOT / "docs" / "images" / "report.png"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
MAX_SIZE = 150_000  # bytes
FILCH = "import sys; from filch.compare.__main__ import main; sys.exit(main())"


def main() -> None:
    """Compare the model, open the page of its report, and save a screenshot."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.exit("needs Chromium: apt install chromium")
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        check = ["check", "padded_pool.py:make", "--option", "level=extended", "--all", "-q", "-o", str(page)]
        process = subprocess.run([sys.executable, "-c", FILCH, *check], cwd=ROOT / "docs" / "stories", check=False)
        if process.returncode != 1:
            sys.exit("ONNX Runtime no longer shows this bug: the picture needs another bug")
        subprocess.run(
            [
                browser,
                *("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
                "--force-prefers-reduced-motion",
                *(f"--user-data-dir={folder}/profile", "--window-size=1200,760", "--virtual-time-budget=5000"),
                *(f"--screenshot={IMAGE}", page.as_uri()),
            ],
            check=True,
            stderr=subprocess.DEVNULL,
        )
    size = IMAGE.stat().st_size
    print(f"{IMAGE.relative_to(ROOT)}: {size:,} bytes")
    if size > MAX_SIZE:
        sys.exit(f"larger than {MAX_SIZE:,} bytes")


if __name__ == "__main__":
    main()
