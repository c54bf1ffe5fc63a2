"""A real browser for tests: Chromium without a window, spoken to over its own pipe (the DevTools protocol), so no port is opened.

with Chromium() as chromium:
    page = chromium.open(Path("view.html"))
    page.evaluate("document.title")
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
SWITCHES = ("--headless", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run")
FAR = 10
"""Descriptors from here on are out of the way of those that the browser reads and writes."""
DEADLINE_S = 60.0


def program() -> str | None:
    """Where the browser is."""
    return next((found for name in PROGRAMS if (found := shutil.which(name))), None)


class Chromium:
    """The browser, with a profile of its own that is thrown away."""

    def __init__(self) -> None:
        found = program()
        if found is None:
            raise FileNotFoundError(f"none of {', '.join(PROGRAMS)} is installed")
        self._profile = tempfile.TemporaryDirectory(prefix="rlvr-chromium-", ignore_cleanup_errors=True)
        theirs_in, self._out = _far_pipe()
        self._in, theirs_out = _far_pipe()

        def wire() -> None:
            os.dup2(theirs_in, 3)
            os.dup2(theirs_out, 4)

        words = [found, *SWITCHES, f"--user-data-dir={self._profile.name}", "about:blank"]
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(words, stdin=quiet, stdout=quiet, stderr=quiet, preexec_fn=wire, pass_fds=(3, 4))
        os.close(theirs_in)
        os.close(theirs_out)
        self._said = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []

    def open(self, path: Path, *, width: int = 1500, height: int = 950, fragment: str = "") -> Page:
        """A file of this machine in a page of its own, once it is loaded."""
        target = self.ask("Target.createTarget", url="about:blank", width=width, height=height)["targetId"]
        session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session)
        for domain in ("Page", "Runtime", "Network", "Log"):
            page.ask(f"{domain}.enable")
        page.go(path.resolve().as_uri() + fragment)
        return page

    def ask(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """One question, and its answer; what happens meanwhile is kept in `events`."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params} | ({"sessionId": session} if session else {})
        os.write(self._out, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + DEADLINE_S
        while True:
            found = self._next(deadline - time.monotonic())
            if found is None:
                raise TimeoutError(f"Chromium did not answer {method} in {DEADLINE_S:g} s")
            if found.get("id") == self._number:
                if "error" in found:
                    raise RuntimeError(f"{method}: {found['error']}")
                result: dict[str, Any] = found["result"]
                return result
            self.events.append(found)

    def listen(self, seconds: float) -> None:
        """Keep what happens for so long."""
        deadline = time.monotonic() + seconds
        while (found := self._next(deadline - time.monotonic())) is not None:
            self.events.append(found)

    def _next(self, seconds: float) -> dict[str, Any] | None:
        """The next message; None where none comes in time."""
        deadline = time.monotonic() + seconds
        while b"\0" not in self._said:
            if not select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))[0]:
                return None
            data = os.read(self._in, 1 << 20)
            if not data:
                raise RuntimeError("Chromium ended")
            self._said += data
        message, _, self._said = self._said.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found

    def __enter__(self) -> Chromium:
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.kill()
        self._process.wait(30)
        os.close(self._in)
        os.close(self._out)
        self._profile.cleanup()


class Page:
    """One page, and what went on in it."""

    def __init__(self, chromium: Chromium, session: str) -> None:
        self.chromium, self.session = chromium, session

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """A question to this page."""
        return self.chromium.ask(method, self.session, **params)

    def go(self, address: str) -> None:
        """Open an address and wait until it is loaded."""
        self.ask("Page.navigate", url=address)
        self.until("document.readyState === 'complete'")

    def evaluate(self, script: str) -> Any:
        """What a line of JavaScript is worth; a promise is waited for."""
        found = self.ask("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in found:
            raise RuntimeError(f"{script}: {found['exceptionDetails']['exception'].get('description')}")
        return found["result"].get("value")

    def until(self, script: str, seconds: float = DEADLINE_S) -> None:
        """Wait until it is true. What fails meanwhile (the page may be reading itself again) is told only if it never is."""
        deadline, fault = time.monotonic() + seconds, ""
        while time.monotonic() < deadline:
            try:
                if self.evaluate(script):
                    return
            except RuntimeError as error:
                fault = f" ({error})"
            time.sleep(0.02)
        raise TimeoutError(f"this did not come true in {seconds:g} s: {script}{fault}")

    def press(self, key: str) -> None:
        """A key, pressed and let go, as a person does it."""
        text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
        self.ask("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.ask("Input.dispatchKeyEvent", type="keyUp", key=key)

    def errors(self) -> list[str]:
        """What the console complained of so far."""
        self.chromium.listen(0.05)
        found = []
        for event in self._events():
            params = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                details = params["exceptionDetails"]
                found.append(details.get("exception", {}).get("description") or details["text"])
            elif event["method"] == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
                found.append(str([arg.get("value") for arg in params["args"]]))
            elif event["method"] == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                found.append(params["entry"]["text"])
        return found

    def requests(self) -> list[str]:
        """Everything that was asked for so far, the page itself included."""
        self.chromium.listen(0.05)
        return [event["params"]["request"]["url"] for event in self._events() if event["method"] == "Network.requestWillBeSent"]

    def screenshot(self, path: Path) -> None:
        """What is seen, as a PNG."""
        path.write_bytes(base64.b64decode(self.ask("Page.captureScreenshot", format="png")["data"]))

    def _events(self) -> list[dict[str, Any]]:
        return [event for event in self.chromium.events if event.get("sessionId") == self.session]


def _far_pipe() -> tuple[int, int]:
    """A pipe whose ends are not the descriptors that the browser is to have."""
    near = os.pipe()
    far = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, FAR) for end in near)
    for end in near:
        os.close(end)
    return far[0], far[1]
