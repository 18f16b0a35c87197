"""vLLM's own server around the tiny byte model of ``local_engine``, in an environment of its own.

vLLM and its torch take gigabytes, so they are no dependency here: ``CACHEPREFIX_VLLM_PYTHON`` names the interpreter of
an environment that has them, by default this one. docs/benchmarks.md says how such an environment is made.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
from typing_extensions import Self

from benchmarks.local_engine import MARKERS, TINY, TINY_MODEL, TINY_TEMPLATE, Size, byte_letters
from cacheprefix.profiles import Registry, default_registry

PYTHON = "CACHEPREFIX_VLLM_PYTHON"
BLOCK = 32
"""Tokens of a block: attention on a CPU wants a multiple of 32."""
_START_SECONDS = 600.0
_END, _IM_END = len(byte_letters()), len(byte_letters()) + 2


def interpreter() -> str:
    """The Python whose vLLM is used."""
    return os.environ.get(PYTHON) or sys.executable


@lru_cache(maxsize=4)
def _found(python: str) -> str:
    """What is wrong with an interpreter's vLLM; empty where it can be used."""
    if python == sys.executable:
        return "" if find_spec("vllm") else f"vllm not installed (name another interpreter in {PYTHON})"
    code = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{PYTHON}={python} cannot be run: {error}"
    return f"{PYTHON}={python} has no vllm" if done.returncode else ""


def missing() -> str:
    """Why there can be no vLLM here; empty where there can."""
    problem = _found(interpreter()) or ("" if find_spec("numpy") else "numpy not installed (extra bench)")
    return f"no vLLM: {problem}" if problem else ""


def version() -> str:
    """The version of the vLLM that is used; empty where it does not tell."""
    code = (
        "import importlib.metadata as m\n"
        "names = [d.metadata['Name'] for d in m.distributions() if (d.metadata['Name'] or '').startswith('vllm')]\n"
        "print(' '.join(f'{n} {m.version(n)}' for n in sorted(set(names))[:1]))"
    )
    done = subprocess.run([interpreter(), "-c", code], capture_output=True, text=True, timeout=60, check=False)
    return done.stdout.strip()


def rules() -> Registry:
    """The profiles, with ``vllm`` as ``LocalVllm`` runs it: in blocks of ``BLOCK`` tokens."""
    row = default_registry().get("vllm")
    return default_registry().with_profiles([replace(row, block_tokens=BLOCK)])


def write_model(folder: Path, size: Size = TINY, *, context: int = 65_536) -> None:
    """The model with random weights as a folder that vLLM reads; same tokens and template as llama.cpp's."""
    import numpy  # noqa: PLC0415, ICN001 - comes with gguf

    width, inner, heads = size.width, size.inner, max(1, size.width // 32)
    tokens = [*byte_letters(), *MARKERS]
    draw = numpy.random.default_rng(0)

    def random(rows: int, columns: int) -> Any:
        return (draw.standard_normal((rows, columns)) * columns**-0.5).astype(numpy.float32)

    weights: dict[str, Any] = {
        "model.embed_tokens.weight": draw.standard_normal((len(tokens), width)).astype(numpy.float32),
        "model.norm.weight": numpy.ones(width, numpy.float32),
    }
    for layer in range(size.layers):
        place = f"model.layers.{layer}"
        for name, rows, columns in (
            ("self_attn.q_proj", width, width),
            ("self_attn.k_proj", 32, width),
            ("self_attn.v_proj", 32, width),
            ("self_attn.o_proj", width, width),
            ("mlp.gate_proj", inner, width),
            ("mlp.up_proj", inner, width),
            ("mlp.down_proj", width, inner),
        ):
            weights[f"{place}.{name}.weight"] = random(rows, columns)
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{place}.{name}.weight"] = numpy.ones(width, numpy.float32)
    # Only small letters can win, so that answers are printable and of the length asked for.
    head = random(len(tokens), width) * 30
    head[[token for token in range(len(tokens)) if not (chr(token).isascii() and chr(token).islower())]] = 0
    weights["lm_head.weight"] = head

    folder.mkdir(parents=True, exist_ok=True)
    _write_safetensors(folder / "model.safetensors", weights)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": size.layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "vocab_size": len(tokens),
        "max_position_embeddings": context,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "bos_token_id": _END,
        "eos_token_id": _IM_END,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "torch_dtype": "float32",
    }
    vocabulary = {letter: number for number, letter in enumerate(byte_letters())}
    added = [
        {
            "id": 256 + number,
            "content": marker,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for number, marker in enumerate(MARKERS)
    ]
    bytes_only = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": bytes_only,
        "post_processor": None,
        "decoder": bytes_only,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {**vocabulary, **{marker: 256 + number for number, marker in enumerate(MARKERS)}},
            "merges": [],
        },
    }
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": MARKERS[0],
        "eos_token": MARKERS[2],
        "clean_up_tokenization_spaces": False,
        "model_max_length": context,
        "chat_template": TINY_TEMPLATE,
    }
    for name, content in (
        ("config", config),
        ("tokenizer", tokenizer),
        ("tokenizer_config", tokenizer_config),
    ):
        (folder / f"{name}.json").write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


def _write_safetensors(path: Path, weights: dict[str, Any]) -> None:
    """Length of the head, the head as JSON, the numbers one after the other."""
    at, head = 0, {}
    for name, values in weights.items():
        head[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": [at, at + values.nbytes]}
        at += values.nbytes
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for values in weights.values():
            file.write(values.tobytes())


class LocalVllm:
    """A vLLM server on a free port, which ends with this process. Starting takes minutes on a CPU.

    ``folder`` is what ``write_model`` wrote. Raises ``RuntimeError`` with the end of its log when it does not start.
    """

    def __init__(self, folder: Path, *, context: int = 32_768, gigabytes: int = 2, together: int = 8) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        command = [
            interpreter(), "-m", "vllm.entrypoints.openai.api_server", f"--model={folder}",
            f"--served-model-name={TINY_MODEL}", "--host=127.0.0.1", f"--port={port}", "--dtype=float32",
            "--enforce-eager", "--enable-auto-tool-choice", "--tool-call-parser=hermes",
            "--enable-prefix-caching", "--enable-prompt-tokens-details", f"--block-size={BLOCK}",
            f"--max-model-len={context}", f"--max-num-seqs={together}",
        ]  # fmt: skip
        environment = {
            **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            "VLLM_CPU_KVCACHE_SPACE": str(gigabytes),
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_LOGGING_LEVEL": "WARNING",
        }
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the server
        # A session of its own: its workers end with it.
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log,
            start_new_session=True,
        )  # fmt: skip
        try:
            self._wait()
        except BaseException:
            self.stop()
            raise

    def _wait(self) -> None:
        until = time.monotonic() + _START_SECONDS
        while time.monotonic() < until and self._process.poll() is None:
            if self._answers():
                return
            time.sleep(1)
        self._log.seek(0)
        said = self._log.read()[-2000:].decode(errors="replace")
        raise RuntimeError(f"vLLM did not start in {_START_SECONDS:.0f} s: {said}")

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health", timeout=5).status_code == 200
        except httpx.HTTPError:
            return False

    def stop(self) -> None:
        """End the server and its workers; harmless when it has ended."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, 9)
                self._process.wait()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
