"""Drives a headless Chromium over WebDriver: the few calls that the console's tests need."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from chaplain.runtime.cluster.create import free_ports
from tests.support.process_cluster import promised

START_S = 60.0
MISSING = "needs Chromium and its driver: apt-get install chromium chromium-driver"


def missing() -> str:
    return "" if shutil.which("chromium") and shutil.which("chromedriver") else MISSING


class Browser:
    def __init__(self, port: int, options: list[str]) -> None:
        self._port = port
        wanted = {
            "browserName": "chrome",
            "goog:loggingPrefs": {"browser": "ALL"},
            "goog:chromeOptions": {"binary": shutil.which("chromium"), "args": options},
        }
        session = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._session = f"/session/{session['sessionId']}"

    def open(self, url: str) -> None:
        self._call("POST", f"{self._session}/url", {"url": url})

    def run(self, script: str) -> Any:
        """What the script returns in the page."""
        return self._call("POST", f"{self._session}/execute/sync", {"script": script, "args": []})

    def text(self, id_: str) -> str:
        return str(self.run(f"return document.getElementById('{id_}').innerText"))

    def wait(self, condition: Callable[[], bool], seconds: float, what: str) -> float:
        """How long it took until the condition held."""
        began = time.monotonic()
        while not condition():
            assert time.monotonic() - began < promised(seconds), f"not within {seconds:g} s: {what}"
            time.sleep(0.05)
        return time.monotonic() - began

    def resize(self, width: int, height: int) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        command = {"cmd": "Emulation.setDeviceMetricsOverride", "params": size}
        self._call("POST", f"{self._session}/goog/cdp/execute", command)

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self._call("GET", f"{self._session}/screenshot")))

    def errors(self) -> list[str]:
        entries = self._call("POST", f"{self._session}/se/log", {"type": "browser"})
        return [entry["message"] for entry in entries if entry["level"] in ("SEVERE", "WARNING")]

    def press_tab(self) -> str:
        """Move the focus; what has it now."""
        action = {
            "type": "key",
            "id": "keys",
            "actions": [{"type": kind, "value": "\ue004"} for kind in ("keyDown", "keyUp")],
        }
        self._call("POST", f"{self._session}/actions", {"actions": [action]})
        return str(self.run("return document.activeElement.outerHTML.slice(0, 80)"))

    def close(self) -> None:
        self._call("DELETE", self._session)

    def _call(self, method: str, path: str, body: object = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=START_S)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            answer = json.loads(connection.getresponse().read())["value"]
        finally:
            connection.close()
        if isinstance(answer, dict) and "error" in answer:
            raise AssertionError(f"{method} {path}: {answer['error']}: {answer['message']}")
        return answer


@contextlib.contextmanager
def browsing(profile: Path) -> Iterator[Browser]:
    (port,) = free_ports(1)
    driver = subprocess.Popen(
        ["chromedriver", f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        _wait_for(port)
        options = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            f"--user-data-dir={profile}",
        ]
        browser = Browser(port, options)
        try:
            yield browser
        finally:
            browser.close()
    finally:
        driver.terminate()
        driver.wait(START_S)


def _wait_for(port: int) -> None:
    end = time.monotonic() + START_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            assert time.monotonic() < end, "chromedriver does not start"
            time.sleep(0.05)
        else:
            return
