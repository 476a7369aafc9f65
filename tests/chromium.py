"""Drives a headless Chromium over its DevTools protocol, through a pair of pipes: no package, no port, no network.

The protocol: https://chromedevtools.github.io/devtools-protocol/; messages are JSON, each ended by a zero byte.
"""

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import Any, Self

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
SWITCHES = (
    "--headless=new",
    "--disable-gpu",
    "--no-sandbox",  # containers, in which tests run, allow none
    "--disable-dev-shm-usage",  # theirs is small
    "--no-first-run",
    "--disable-extensions",
    "--disable-component-update",
    "--disable-background-networking",
    "--disable-renderer-backgrounding",
    "--host-resolver-rules=MAP * ~NOTFOUND",  # no name leads anywhere: the network is off
    "--force-prefers-reduced-motion",  # nothing to wait for
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
KEYS = {"Enter": 13, "Escape": 27, "Tab": 9, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}


def browser():
    """The path of a Chromium; None if there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Chromium:
    """One browser with one page; `log` has what the page complained of, `requests` what it asked for."""

    def __init__(self, width: int = 1280, height: int = 800) -> None:
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        here, there = os.pipe(), os.pipe()
        # It reads from its descriptor 3 and writes to 4; ours are moved out of the way first.
        given = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 20) for end in (here[0], there[1])]
        command = [browser(), *SWITCHES, f"--user-data-dir={self._profile.name}", "about:blank"]
        null = os.open(os.devnull, os.O_RDWR)
        actions = [
            (os.POSIX_SPAWN_DUP2, null, 2),
            *((os.POSIX_SPAWN_DUP2, end, 3 + at) for at, end in enumerate(given)),
        ]
        self._process = os.posix_spawn(command[0], command, dict(os.environ), file_actions=actions, setpgroup=0)
        for end in (*given, here[0], there[1], null):
            os.close(end)
        self._out, self._in = here[1], there[0]
        self._pending, self._sent, self._session = b"", 0, None
        self.log: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.resize(width, height)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._out)
        os.close(self._in)
        os.killpg(self._process, signal.SIGKILL)
        os.waitpid(self._process, 0)
        self._profile.cleanup()

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """The answer to a command; what happens meanwhile goes to `log` and `requests`."""
        self._sent += 1
        message = {"id": self._sent, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._out, data) :]
        while True:
            answer = self._receive()
            if answer.get("id") == self._sent:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            self._note(answer)

    def _receive(self, limit: float = 120) -> dict[str, Any]:
        end = time.monotonic() + limit
        while b"\0" not in self._pending:
            if not select.select([self._in], [], [], max(0, end - time.monotonic()))[0]:
                raise TimeoutError(f"Chromium says nothing for {limit} s")
            part = os.read(self._in, 2**20)
            if not part:
                raise RuntimeError("Chromium is gone")
            self._pending += part
        message, _, self._pending = self._pending.partition(b"\0")
        return json.loads(message)

    def _note(self, event: dict[str, Any]) -> None:
        method, params = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.log.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Log.entryAdded":
            self.log.append(params["entry"]["text"])
        elif method == "Runtime.consoleAPICalled":
            self.log.append(" ".join(str(each.get("value")) for each in params["args"]))
        elif method == "Page.javascriptDialogOpening":
            self.log.append(f"dialog: {params['message']}")
            self._answer_dialog()
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def _answer_dialog(self) -> None:
        self._sent += 1
        message = {"id": self._sent, "method": "Page.handleJavaScriptDialog", "params": {"accept": False}}
        os.write(self._out, json.dumps(message | {"sessionId": self._session}).encode() + b"\0")

    def open(self, path: Path) -> None:
        """Opens a file, and waits until its graph is drawn."""
        url = path.resolve().as_uri()
        self.call("Page.navigate", url=url)
        self.wait(f"location.href === {json.dumps(url)} && document.documentElement?.dataset.drawn")

    def run(self, script: str) -> Any:
        """What an expression is in the page, as JSON has it."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(f"{script}: {found['exceptionDetails'].get('exception', {}).get('description')}")
        return found["result"].get("value")

    def wait(self, condition: str, limit: float = 60) -> None:
        """Until an expression is true."""
        end = time.monotonic() + limit
        while not self.run(condition):
            if time.monotonic() > end:
                raise TimeoutError(f"{condition} is not true after {limit} s; the page says {self.log}")
            time.sleep(0.02)

    def settle(self) -> None:
        """Until the page has drawn what it was told."""
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def resize(self, width: int, height: int, scale: float = 1) -> None:
        """The window's size, in CSS pixels."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=False
        )

    def dark(self, dark: bool = True) -> None:
        """What the page is told that the reader prefers."""
        features = [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        self.call("Emulation.setEmulatedMedia", features=features)

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """One event of a mouse."""
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def click(self, selector: str, *, times: int = 1, dx: float | None = None, dy: float | None = None) -> None:
        """Clicks the middle of an element, or so far from its top left."""
        left, top, width, height = self.box(selector)
        x, y = left + (width / 2 if dx is None else dx), top + (height / 2 if dy is None else dy)
        self.mouse("mouseMoved", x, y)
        for number in range(1, times + 1):
            self.mouse("mousePressed", x, y, button="left", buttons=1, clickCount=number)
            self.mouse("mouseReleased", x, y, button="left", clickCount=number)
        self.settle()

    def box(self, selector: str) -> list[float]:
        """Left, top, width and height of an element on the screen."""
        rect = f"document.querySelector({json.dumps(selector)}).getBoundingClientRect()"
        return self.run(f"(({{ x, y, width, height }}) => [x, y, width, height])({rect})")

    def press(self, key: str, *, shift: bool = False) -> None:
        """Presses a key, where the focus is."""
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
        """Types a text, where the focus is."""
        self.call("Input.insertText", text=text)
        self.settle()

    def text(self, selector: str) -> str:
        """What an element says."""
        return self.run(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''")

    def picture(self, path: Path) -> None:
        """What is seen, as PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def print(self, path: Path) -> None:
        """What the printer gets, as PDF."""
        pdf = self.call("Page.printToPDF", printBackground=True, preferCSSPageSize=False)
        path.write_bytes(base64.b64decode(pdf["data"]))
