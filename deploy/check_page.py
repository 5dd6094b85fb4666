"""Opens the live page of a store in headless Chromium, uses it, and takes screenshots.

Usage: check_page.py FOLDER TIFFIN..., where TIFFIN... is the command. Chromium is driven through a pipe by
its DevTools protocol. The package `tiffin` must be installed.
"""

import base64
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tiffin import connect

#: A long name must not push numbers out of the picture of a phone.
NAME = "storage-17.rack-3.example.com"
TOKEN = "a-long-random-secret-of-this-test"
HOSTILE = "<img src=x onerror=document.title='taken'>"
#: Ends a step that hangs, in seconds. No result depends on it.
STEP_TIME_MAX = 300
#: What the browser answers if the page is left during a call.
NAVIGATED = "Inspected target navigated or closed"


class NavigatedError(Exception):
    """The page was left during a call."""


class Browser:
    """A browser, and the page in it that is used."""

    def __init__(self, profile: str) -> None:
        """Start it."""
        (read_theirs, self._write), (self._read, write_theirs) = os.pipe(), os.pipe()
        # Chromium reads from descriptor 3 and writes to 4.
        self._process = subprocess.Popen(
            [
                "bash",
                "-c",
                f'exec "$@" 3<&{read_theirs} 4>&{write_theirs}',
                "bash",
                "chromium",
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--remote-debugging-pipe",
                "--disable-dev-shm-usage",
                "--no-first-run",
                f"--user-data-dir={profile}",
                "about:blank",
            ],
            pass_fds=(read_theirs, write_theirs),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read_theirs)
        os.close(write_theirs)
        self._buffer, self._number, self._session = b"", 0, None
        self.open("about:blank")

    def open(self, url: str) -> str:
        """Open a page, and use it from now on. Returns the name of the session, for `use`."""
        self._session = None
        target = self.call("Target.createTarget", url=url)["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Page.enable")
        return self._session

    def use(self, session: str) -> None:
        """Use another page."""
        self._session = session

    def call(self, method: str, **params: object) -> dict:
        """Call a method of the protocol."""
        self._number += 1
        message: dict = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + STEP_TIME_MAX
        while True:
            while b"\0" not in self._buffer:
                if not select.select([self._read], [], [], max(0, deadline - time.monotonic()))[0]:
                    sys.exit(f"{method}: the browser does not answer")
                more = os.read(self._read, 1 << 20)
                if not more:
                    sys.exit(f"{method}: the browser has ended")
                self._buffer += more
            one, self._buffer = self._buffer.split(b"\0", 1)
            answer = json.loads(one)
            if answer.get("id") == self._number:
                if "error" in answer:
                    if answer["error"].get("message") == NAVIGATED:
                        raise NavigatedError
                    sys.exit(f"{method}: {answer['error']}")
                return answer["result"]

    def run(self, script: str) -> object:
        """Evaluate an expression in the page. It is None if the page is left meanwhile."""
        try:
            found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        except NavigatedError:
            return None
        if "exceptionDetails" in found:
            sys.exit(f"{script}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def until(self, script: str) -> None:
        """Wait until an expression is true. It is false while the page is loaded."""
        deadline = time.monotonic() + STEP_TIME_MAX
        while not self.run(
            f"location.protocol !== 'about:' && document.readyState === 'complete' && ({script})"
        ):
            if time.monotonic() > deadline:
                sys.exit(f"never true: {script}\n{self.run('document.body.innerText')}")
            time.sleep(0.1)

    def picture(self, path: Path, width: int, height: int, dark: bool) -> None:
        """Take a screenshot of the whole page."""
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.call("Emulation.setFocusEmulationEnabled", enabled=True)
        # The picture is larger than the window, and has no scroll bar.
        self.call("Emulation.setScrollbarsHidden", hidden=True)
        wide = self.run("document.documentElement.scrollWidth")
        if wide > width:
            sys.exit(f"{path.name}: the page is {wide} pixels wide, more than {width}")
        cut = self.run(
            "[...document.querySelectorAll('.scroll')].filter(it => it.scrollWidth > it.clientWidth)"
            ".map(it => it.innerText).join()"
        )
        if cut:
            sys.exit(f"{path.name}: these tables are cut off: {cut}")
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait(STEP_TIME_MAX)


class Server:
    """A store of one process, that can be started again."""

    def __init__(self, tiffin: list[str], temporary: str) -> None:
        """Start it."""
        self.environment = {**os.environ, "TIFFIN_TOKEN": TOKEN, "XDG_STATE_HOME": temporary}
        self._command = [*tiffin, "up", "--json", "--name", NAME, "--memory", "64MiB"]
        self._command += ["--ssd", f"path={temporary}/disk,size=256MiB"]
        self.master, self.http = "127.0.0.1:0", "127.0.0.1:0"
        self._start()

    def _start(self) -> None:
        deadline = time.monotonic() + STEP_TIME_MAX
        line = b""
        # After a restart, another process may use the port for a moment.
        while not line:
            command = [*self._command, "--listen", self.master, "--http", self.http]
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, env=self.environment)
            assert self._process.stdout
            line = self._process.stdout.readline()
            if time.monotonic() > deadline:
                sys.exit("the store does not start")
        ready = json.loads(line)
        self.master, self.http = ready["master"], ready["http"]

    def stop(self) -> None:
        """Stop it."""
        self._process.terminate()
        self._process.wait(STEP_TIME_MAX)

    def restart(self) -> None:
        """Stop it, and start it with the same addresses."""
        self.stop()
        self._start()


def main(folder: Path, tiffin: list[str]) -> None:
    """Start a store, use it, and look at its page."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        server = Server(tiffin, temporary)
        try:
            use(tiffin, server, temporary, folder)
        finally:
            server.stop()


def use(tiffin: list[str], server: Server, temporary: str, folder: Path) -> None:
    """Use the store and its page."""
    environment, master = server.environment, server.master

    def call(*arguments: str, value: str = "", check: bool = True) -> None:
        command = [*tiffin, *arguments, "--master", master]
        subprocess.run(
            command,
            env=environment,
            check=check,
            capture_output=True,
            input=value.encode(),
            timeout=STEP_TIME_MAX,
        )

    node = subprocess.Popen(
        [
            *tiffin,
            "node",
            "--json",
            "--master",
            master,
            "--name",
            HOSTILE,
            "--memory",
            "32MiB",
            "--pool",
            "off",
        ],
        stdout=subprocess.PIPE,
        env=environment,
    )
    try:
        assert node.stdout
        node.stdout.readline()
        fill(call)
        streamed = fill_stream(master)
        look(server, node, temporary, folder)
        del streamed
    finally:
        node.kill()
        node.wait(STEP_TIME_MAX)


def fill_stream(master: str) -> object:
    """Put samples into a stream and lease some. Returns what keeps the leases."""
    store = connect(master, token=TOKEN, namespace="training")
    store.open_stream("rollouts", group="trainer", window=2, refs_high=8, refs_low=4)
    for number in range(5):
        store.put_sample(f"s{number}", {"ids": bytes(1000)}, consume=["trainer"], stream="rollouts")
    return store, store.pull("rollouts", "trainer", at_most=2)


def fill(call: Callable[..., None]) -> None:
    """Put and get objects, and reach a quota."""
    for number in range(6):
        call("put", f"key-{number}", value="x" * 200_000)
        call("get", f"key-{number}")
    call("put", HOSTILE, "--value", "text")
    call("pin", "key-1", "--owner", HOSTILE)
    call("quota", "--namespace", "training", "--set", "1MiB")
    call("put", "small", "--namespace", "training", value="x" * 900_000)
    call("put", "large", "--namespace", "training", value="x" * 1_200_000, check=False)


def look(server: Server, node: subprocess.Popen, temporary: str, folder: Path) -> None:
    """Use the page."""
    url = f"http://{server.http}/"
    browser = Browser(f"{temporary}/profile")
    try:
        first = browser.open(url)
        browser.until("document.getElementById('login')?.hidden === false")
        browser.picture(folder / "login.png", 1280, 720, dark=False)
        log_in(browser, "wrong")
        browser.until("document.getElementById('login-problem').textContent.includes('wrong')")
        log_in(browser, TOKEN)
        browser.until("document.getElementById('state').textContent === 'ready'")
        browser.until("document.body.innerText.includes('quota reached')")
        browser.run(f"document.querySelector('#why [name=key]').value = {json.dumps(HOSTILE)}")
        browser.run("document.querySelector('#why').requestSubmit()")
        browser.until("document.getElementById('why-answer').textContent.includes('exists: generation')")
        browser.until("document.getElementById('holders').textContent.includes('pinned')")
        browser.until("document.getElementById('holders').textContent.includes('leased')")
        browser.until("document.getElementById('streams').textContent.includes('rollouts')")
        browser.until("document.getElementById('namespaces').textContent.includes('training')")
        browser.run("document.querySelector('#nodes tr.opens').click()")
        browser.until("document.querySelector('#nodes tr.inner') !== null")
        # The page changes by itself when the node dies.
        node.kill()
        node.wait(STEP_TIME_MAX)
        browser.until("document.body.innerText.includes('member lost')")
        browser.until("[...document.querySelectorAll('#operations tbody tr')].length > 2")
        images = browser.run("document.querySelectorAll('img').length")
        if browser.run("document.title") != "tiffin" or images:
            sys.exit("a name of a client was taken for markup")
        if TOKEN in str(browser.run("document.documentElement.outerHTML + location.href + document.cookie")):
            sys.exit("the token is in the page")
        browser.picture(folder / "light.png", 1400, 1300, dark=False)
        browser.picture(folder / "dark.png", 1400, 1300, dark=True)
        browser.picture(folder / "phone.png", 390, 844, dark=False)
        browser.picture(folder / "phone-dark.png", 390, 844, dark=True)
        # Further pages share the session, and are live too.
        for _ in range(2):
            browser.open(url)
            browser.until("document.getElementById('state').textContent !== ''")
            browser.until("document.body.innerText.includes('member lost')")
        browser.use(first)
        # A restarted master knows no sessions: the page notices, and asks for the token again.
        server.restart()
        browser.until("document.getElementById('login').hidden === false")
        log_in(browser, TOKEN)
        browser.until("document.getElementById('state').textContent === 'ready'")
        browser.until("document.body.innerText.includes('master started')")
        browser.run("document.getElementById('logout').click()")
        browser.until("document.getElementById('login')?.hidden === false")
    finally:
        browser.close()
    print(f"the page works; screenshots are in {folder}")


def log_in(browser: Browser, token: str) -> None:
    """Type the token and submit."""
    browser.run(f"document.getElementById('token').value = {json.dumps(token)}")
    browser.run("document.getElementById('login-form').requestSubmit()")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
