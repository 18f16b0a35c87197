"""Counting tokens without ever touching the network.

The default is a documented estimate; tiktoken is used where its vocabulary is already on this
machine, and a model's own chat template through the ``transformers`` extra.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cacheprefix.errors import MissingExtraError, SetupError
from cacheprefix.locks import IMPORTS
from cacheprefix.prompt.sections import ABOUT, CountTokens, Envelope

_ASCII = bytes(range(128))
_CHARACTERS_A_TOKEN = 4

_VOCABULARY = {
    "o200k_base": (
        "https://openaipublic.blob.core.windows.net/encodings/o200k_base.tiktoken",
        "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
    ),
    "cl100k_base": (
        "https://openaipublic.blob.core.windows.net/encodings/cl100k_base.tiktoken",
        "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
    ),
}
"""Where tiktoken would fetch each encoding from, which names the file in its folder, and the file's SHA-256.

Checked beforehand, because tiktoken deletes a file that does not match and fetches it again.
"""


@dataclass(frozen=True, slots=True)
class Counter:
    """A token counter and its name, which every report shows beside its numbers."""

    name: str
    exact: bool
    count: CountTokens
    envelope: Envelope = ABOUT
    """What the model's chat template puts around each message."""

    def __call__(self, text: str, model: str = "") -> int:
        """Tokens of ``text`` for ``model``; by the estimate where the counter itself breaks down."""
        try:
            return self.count(text, model)
        except BaseException as error:
            # Tiktoken panics on a megabyte of spaces, and a panic of Rust is no ``Exception`` that others would catch.
            if type(error).__module__ != "pyo3_runtime":
                raise
            return estimate_tokens(text, model)


def estimate_tokens(text: str, model: str = "") -> int:  # noqa: ARG001 - one signature for all counters
    """About 4 characters a token, one token a CJK character; 0 only for empty text."""
    if text.isascii():
        return -(-len(text) // _CHARACTERS_A_TOKEN)
    # Without its ASCII a text is short; a pattern is slow.
    others = text.encode("utf-8", "surrogatepass").translate(None, _ASCII).decode("utf-8", "surrogatepass")
    wide = len(others) - len(_wide().sub("", others))
    return wide + -(-(len(text) - wide) // _CHARACTERS_A_TOKEN)


@functools.cache
def _wide() -> re.Pattern[str]:
    """Runs of CJK characters; compiled, for 3 ms, with the first text that is not ASCII."""
    return re.compile("[\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]+")


ESTIMATE = Counter("estimate (4 characters a token, CJK 1)", exact=False, count=estimate_tokens)


def default_counter(model: str = "") -> Counter:
    """Tiktoken for OpenAI's models where its vocabulary is at hand offline, else the estimate."""
    encoding = _encoding_name(model)
    if encoding is None:
        return ESTIMATE
    loaded = _tiktoken(encoding)
    return ESTIMATE if loaded is None else loaded


def tiktoken_counter(encoding: str = "o200k_base") -> Counter:
    """An exact counter over one tiktoken encoding; raises when the vocabulary is not on this machine."""
    if find_spec("tiktoken") is None:
        raise MissingExtraError("counting with tiktoken", "tokens", "tiktoken")
    counter = _tiktoken(encoding)
    if counter is None:
        raise SetupError(
            f"the vocabulary of {encoding!r} is not on this machine and counting never uses the network; "
            "set TIKTOKEN_CACHE_DIR to a folder that holds it"
        )
    return counter


def template_counter(tokenizer: Any) -> Counter:
    """Exact counts by a Hugging Face tokenizer object (extra ``transformers``), of text without special tokens."""

    def count(text: str, model: str = "") -> int:  # noqa: ARG001
        return len(tokenizer.encode(text, add_special_tokens=False))

    return Counter(f"transformers {getattr(tokenizer, 'name_or_path', '') or 'tokenizer'}", exact=True, count=count)


@functools.lru_cache(maxsize=1024)
def _encoding_name(model: str) -> str | None:
    name = model.rsplit("/", 1)[-1].lower()
    if re.match(r"(ft:)?(gpt-(3\.5|4)(-turbo)?(-|$)|gpt-4-)", name) and not name.startswith(("gpt-4o", "gpt-4.")):
        return "cl100k_base"
    if re.match(r"(ft:)?(gpt-|chatgpt-|o[134](-|$)|codex)", name):
        return "o200k_base"
    return None


@functools.lru_cache(maxsize=8)
def _tiktoken(encoding: str) -> Counter | None:
    """The counter of an encoding; None where tiktoken or the vocabulary is not on this machine."""
    if encoding not in _VOCABULARY or find_spec("tiktoken") is None:
        return None
    url, checksum = _VOCABULARY[encoding]
    folder = _folder_with(hashlib.sha1(url.encode(), usedforsecurity=False).hexdigest(), checksum)
    if folder is None:
        return None
    with IMPORTS:
        import tiktoken  # noqa: PLC0415 - an extra, loaded when first needed

    before = os.environ.get("TIKTOKEN_CACHE_DIR")
    os.environ["TIKTOKEN_CACHE_DIR"] = str(folder)
    try:
        loaded = tiktoken.get_encoding(encoding)
    finally:
        if before is None:
            del os.environ["TIKTOKEN_CACHE_DIR"]
        else:
            os.environ["TIKTOKEN_CACHE_DIR"] = before

    def count(text: str, model: str = "") -> int:  # noqa: ARG001
        return len(loaded.encode_ordinary(text))

    return Counter(f"tiktoken {encoding}", exact=True, count=count)


def load_vocabularies() -> None:
    """Load, once, the vocabularies that stand on this machine: at import, since reading them takes a while."""
    for encoding in _VOCABULARY:
        _tiktoken(encoding)


def _folder_with(name: str, checksum: str) -> Path | None:
    """The folder on this machine with a vocabulary's file, its checksum compared; None where none has it."""
    folders = [os.environ.get("TIKTOKEN_CACHE_DIR"), os.environ.get("DATA_GYM_CACHE_DIR")]
    folders.append(str(Path(tempfile.gettempdir()) / "data-gym-cache"))
    litellm = find_spec("litellm")
    if litellm is not None and litellm.origin:
        folders.append(str(Path(litellm.origin).parent / "litellm_core_utils" / "tokenizers"))
    for folder in folders:
        file = Path(folder, name) if folder else None
        if file and file.is_file() and hashlib.sha256(file.read_bytes()).hexdigest() == checksum:
            return file.parent
    return None
