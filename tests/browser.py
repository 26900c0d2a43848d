"""A real browser for tests: Chromium over its debugging pipe, with nothing but the standard
library."""

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
DEADLINE_SECONDS = 60


def find() -> str:
    """The path of the browser. Without a browser the test fails."""
    found = os.environ.get("CCLF_BROWSER") or next(
        (path for path in map(shutil.which, NAMES) if path), None
    )
    assert found, "no Chromium found: run scripts/browser.sh, or name one in CCLF_BROWSER"
    return found


class Page:
    """One tab. `problems` holds console errors, uncaught exceptions and failed loads; `requests`
    every address it asked for."""

    def __init__(self, to_browser: int, from_browser: int):
        self._to, self._from = to_browser, from_browser
        self._buffer = b""
        self._numbers = itertools.count(1)
        self._session: str | None = None
        self.problems: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == number:
                assert "error" not in answer, f"{method}: {answer.get('error')}"
                return answer["result"]

    def _receive(self) -> dict[str, Any]:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._from], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"the browser said nothing for {DEADLINE_SECONDS} s"
            data = os.read(self._from, 1 << 20)
            assert data, "the browser went away"
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        self._note(message.get("method"), message.get("params", {}))
        return message

    def _note(self, event: str | None, facts: dict[str, Any]) -> None:
        if event == "Runtime.exceptionThrown":
            self.problems.append(
                str(facts["exceptionDetails"].get("exception", facts["exceptionDetails"]))
            )
        elif event == "Runtime.consoleAPICalled" and facts["type"] in (
            "error",
            "warning",
            "assert",
        ):
            self.problems.append(f"console.{facts['type']}: {facts['args']}")
        elif event == "Log.entryAdded" and facts["entry"]["level"] in ("error", "warning"):
            self.problems.append(facts["entry"]["text"])
        elif event == "Page.javascriptDialogOpening":
            self.problems.append(f"dialog: {facts['message']}")
            raise AssertionError(f"the page opened a dialog: {facts['message']}")
        elif event == "Network.requestWillBeSent":
            self.requests.append(facts["request"]["url"])

    def open(self, path: Path, width: int, height: int = 900, dark: bool = False) -> None:
        """Show a file as on a screen of this size, and wait until it stands."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.problems.clear()
        self.requests.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        deadline = time.monotonic() + DEADLINE_SECONDS
        while (
            self.evaluate("document.readyState") != "complete"
            or self.evaluate("location.href") == "about:blank"
        ):
            assert time.monotonic() < deadline, f"{path} did not finish loading"

    def open_details(self) -> None:
        self.evaluate("document.querySelectorAll('details').forEach(part => { part.open = true; })")

    def evaluate(self, expression: str) -> Any:
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """The whole page, not only what fits the screen."""
        picture = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(picture["data"]))


@contextmanager
def browser() -> Iterator[Page]:
    inbound, to_browser = os.pipe()
    from_browser, outbound = os.pipe()
    flags = [
        "--headless=new",
        "--remote-debugging-pipe",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
    ]
    flags += [
        "--no-first-run",
        "--disable-extensions",
        "--disable-background-networking",
        "--hide-scrollbars",
    ]

    # Chromium reads from descriptor 3 and answers on 4
    wire = f'exec "$@" 3<&{inbound} 4>&{outbound}'
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [
                "bash",
                "-c",
                wire,
                "wire",
                find(),
                *flags,
                f"--user-data-dir={profile}",
                "about:blank",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(inbound, outbound),
        )
        os.close(inbound)
        os.close(outbound)
        try:
            yield Page(to_browser, from_browser)
        finally:
            process.terminate()
            process.wait(DEADLINE_SECONDS)
            os.close(to_browser)
            os.close(from_browser)
