"""Make docs/images/report.png: the page of a report, as headless Chromium shows it.

The model and the bug are those of docs/stories.md: ONNX Runtime replaces a zero padding in front of a max pooling.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "images" / "report.png"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
LARGEST = 150_000  # bytes
FILCH = "import sys; from filch.compare.__main__ import main; sys.exit(main())"


def main() -> None:
    """Compare the model, open its page, and keep what the window shows."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.exit("needs Chromium: apt install chromium")
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        check = ["check", "padded_pool.py:make", "--option", "level=extended", "--truth", "-q", "-o", str(page)]
        done = subprocess.run([sys.executable, "-c", FILCH, *check], cwd=ROOT / "docs" / "stories", check=False)
        if done.returncode != 1:
            sys.exit("ONNX Runtime no longer shows this bug: the picture needs another one")
        subprocess.run(
            [
                browser,
                *(
                    "--headless=new",
                    "--no-sandbox",
                    "--disable-gpu",
                    "--hide-scrollbars",
                    "--force-prefers-reduced-motion",
                ),
                *(f"--user-data-dir={folder}/profile", "--window-size=1200,760", "--virtual-time-budget=5000"),
                *(f"--screenshot={PICTURE}", page.as_uri()),
            ],
            check=True,
            stderr=subprocess.DEVNULL,
        )
    size = PICTURE.stat().st_size
    print(f"{PICTURE.relative_to(ROOT)}: {size:,} bytes")
    if size > LARGEST:
        sys.exit(f"larger than {LARGEST:,} bytes")


if __name__ == "__main__":
    main()
