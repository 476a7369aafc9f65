"""A headless Chromium, driven by Selenium: what is pressed, clicked and typed in a page, and what it complains of."""

import base64
import json
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from support.thorough import SLOW, runs_slow_tests

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
SWITCHES = (
    "--headless=new",
    "--disable-gpu",
    "--no-sandbox",  # containers, in which tests run, allow none
    "--disable-dev-shm-usage",  # theirs is small
    "--no-first-run",
    "--disable-component-update",
    "--disable-background-networking",
    "--host-resolver-rules=MAP * ~NOTFOUND",  # no name leads anywhere: the network is off
    "--force-prefers-reduced-motion",  # nothing to wait for
    "--hide-scrollbars",
)
KEYS = {"Enter": 13, "Escape": 27, "Tab": 9, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}


def missing():
    """Return why no browser is driven: there is none, or only slow tests drive one; None if it is driven."""
    if not runs_slow_tests():
        return SLOW
    try:
        import selenium  # noqa: F401
    except ImportError:
        return "needs selenium: pip install selenium"
    if not any(map(shutil.which, NAMES)):
        return "needs Chromium: apt install chromium chromium-driver"
    return None if shutil.which("chromedriver") else "needs chromedriver: apt install chromium-driver"


class Chromium:
    """A browser with one page."""

    def __init__(self, width: int = 1280, height: int = 800, *, switches: Sequence[str] = ()) -> None:
        from selenium import webdriver

        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        options = webdriver.ChromeOptions()
        options.binary_location = next(filter(None, map(shutil.which, NAMES)))
        options.unhandled_prompt_behavior = "ignore"
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        for switch in (*SWITCHES, *switches, f"--user-data-dir={self._profile.name}"):
            options.add_argument(switch)
        self._driver = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
        self.log: list[str] = []
        self.requests: list[str] = []
        self.resize(width, height)
        self._driver.get("about:blank")  # a browser begins with a page of its own
        self.heard()
        self.requests.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._driver.quit()
        self._profile.cleanup()

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Return the answer to a command of the DevTools protocol."""
        return self._driver.execute_cdp_cmd(method, params)

    def heard(self) -> None:
        """Add new events to `log` (errors, messages, dialogs) and `requests` (requests of the page)."""
        self.log += [entry["message"] for entry in self._driver.get_log("browser")]
        for entry in self._driver.get_log("performance"):
            event = json.loads(entry["message"])["message"]
            if event["method"] == "Network.requestWillBeSent":
                self.requests.append(event["params"]["request"]["url"])
            elif event["method"] == "Page.javascriptDialogOpening":
                self.log.append(f"dialog: {event['params']['message']}")

    def open(self, path: Path, address: str = "") -> None:
        """Open a file, at an address that begins with `#`, and wait until its graph is drawn."""
        url = path.resolve().as_uri() + address
        self._driver.get(url)
        self.wait(f"location.href === {json.dumps(url)} && document.documentElement?.dataset.drawn")

    def run(self, script: str) -> Any:
        """Return the value of a JavaScript expression in the page, as JSON."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(f"{script}: {found['exceptionDetails'].get('exception', {}).get('description')}")
        return found["result"].get("value")

    def wait(self, condition: str, limit: float = 60) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + limit
        while not self.run(condition):
            if time.monotonic() > end:
                raise TimeoutError(f"{condition} is not true after {limit} s; the page says {self.log}")
            time.sleep(0.02)

    def settle(self) -> None:
        """Wait until the page has drawn all pending changes."""
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def resize(self, width: int, height: int, scale: float = 1) -> None:
        """Set the window's size, in CSS pixels."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=False
        )

    def dark(self, dark: bool = True) -> None:
        """Set the color scheme that the reader prefers."""
        features = [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        self.call("Emulation.setEmulatedMedia", features=features)

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """Send a mouse event."""
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def click(self, selector: str, *, times: int = 1, dx: float | None = None, dy: float | None = None) -> None:
        """Click the middle of an element, or a point at this offset from its top left."""
        left, top, width, height = self.box(selector)
        x, y = left + (width / 2 if dx is None else dx), top + (height / 2 if dy is None else dy)
        self.mouse("mouseMoved", x, y)
        for number in range(1, times + 1):
            self.mouse("mousePressed", x, y, button="left", buttons=1, clickCount=number)
            self.mouse("mouseReleased", x, y, button="left", clickCount=number)
        self.settle()

    def box(self, selector: str) -> list[float]:
        """Return left, top, width and height of an element on the screen."""
        rect = f"document.querySelector({json.dumps(selector)}).getBoundingClientRect()"
        return self.run(f"(({{ x, y, width, height }}) => [x, y, width, height])({rect})")

    def press(self, key: str, *, shift: bool = False) -> None:
        """Press a key, in the focused element."""
        text = "\r" if key == "Enter" else key if len(key) == 1 else None
        code = {"windowsVirtualKeyCode": KEYS[key]} if key in KEYS else {}
        modifiers = 8 if shift else 0
        self.call(
            "Input.dispatchKeyEvent",
            type="keyDown" if text else "rawKeyDown",
            key=key,
            modifiers=modifiers,
            **code,
            **({"text": text} if text else {}),
        )
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, modifiers=modifiers, **code)
        self.settle()

    def type(self, text: str) -> None:
        """Type a text, in the focused element."""
        self.run(f"document.execCommand('insertText', false, {json.dumps(text)})")  # half a character, too
        self.settle()

    def text(self, selector: str) -> str:
        """Return the text of an element."""
        return self.run(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''")

    def picture(self, path: Path) -> None:
        """Return a screenshot, as PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def print(self, path: Path) -> None:
        """Return the printed page, as PDF."""
        pdf = self.call("Page.printToPDF", printBackground=True, preferCSSPageSize=False)
        path.write_bytes(base64.b64decode(pdf["data"]))
