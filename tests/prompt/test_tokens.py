"""Counting without a network: estimate, tiktoken where it is at hand, chat templates exactly."""

from __future__ import annotations

import hashlib
import os
import time
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cacheprefix.errors import MissingExtraError, SetupError
from cacheprefix.prompt import (
    ESTIMATE,
    Counter,
    default_counter,
    estimate_tokens,
    template_counter,
    tiktoken_counter,
    tokens,
)
from cacheprefix.wire import decode


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", 0),
        ("a", 1),
        ("four", 1),
        ("fives", 2),
        ("x" * 400, 100),
        ("日本語", 3),
        ("한국어", 3),
        ("中文 and four", 2 + 3),
        ("Zürich", 2),
        ("\ud800", 1),
    ],
)
def test_the_estimate_is_four_characters_a_token_and_one_for_each_cjk_character(text, tokens):
    """Documented, and the same everywhere."""
    assert estimate_tokens(text) == tokens


def test_the_estimate_of_a_long_text_looks_at_no_character_by_itself():
    """An event loop waits for it, with each request: 0.25 s a million characters."""
    text = "漢字仮名" * 250_000

    def fastest(work):
        took = []
        for _ in range(3):
            began = time.perf_counter()
            work()
            took.append(time.perf_counter() - began)
        return min(took)

    assert fastest(lambda: estimate_tokens(text)) < 60 * fastest(text.encode)


@given(st.text(st.characters()), st.text(st.characters()))
def test_the_estimate_grows_with_the_text(a, b):
    """A longer text never counts less, and two parts never less than the whole."""
    assert estimate_tokens(a) <= estimate_tokens(a + b) <= estimate_tokens(a) + estimate_tokens(b)


def test_a_prompt_counts_with_the_counter_given():
    """And tells it the model."""
    asked: list[str] = []

    def count(text: str, model: str) -> int:
        asked.append(model)
        return 10

    prompt = decode({"model": "gpt-x", "messages": [{"role": "user", "content": "x"}]}, "openai-chat", count=count)
    assert prompt.tokens == 13
    assert asked == ["gpt-x"]


@pytest.fixture
def no_vocabulary(monkeypatch, tmp_path):
    """A machine without any tiktoken vocabulary."""
    monkeypatch.setattr(tokens, "_folder_with", lambda name, checksum: None)
    tokens._tiktoken.cache_clear()
    yield
    tokens._tiktoken.cache_clear()


@pytest.mark.usefixtures("no_vocabulary")
def test_without_a_vocabulary_the_default_is_the_estimate():
    """Nothing is fetched."""
    assert default_counter("gpt-5") is ESTIMATE
    assert not ESTIMATE.exact
    assert ESTIMATE("x" * 8) == 2


@pytest.mark.usefixtures("no_vocabulary")
def test_tiktoken_without_its_vocabulary_names_the_fix():
    """Asked for by name it cannot be replaced silently."""
    pytest.importorskip("tiktoken")
    with pytest.raises(SetupError, match="TIKTOKEN_CACHE_DIR"):
        tiktoken_counter()


def test_tiktoken_that_is_not_installed_names_its_extra(monkeypatch):
    """The install line is in the message."""
    monkeypatch.setattr(tokens, "find_spec", lambda name: None)
    tokens._tiktoken.cache_clear()
    with pytest.raises(MissingExtraError, match=r"cacheprefix\[tokens\]"):
        tiktoken_counter()


@pytest.mark.parametrize("model", ["claude-sonnet-4-6", "llama3", "", "mistral-large"])
def test_models_of_other_houses_are_estimated(model):
    """Their tokenisers are not OpenAI's."""
    assert default_counter(model) is ESTIMATE


@pytest.mark.parametrize(
    ("model", "encoding"),
    [
        ("gpt-4", "cl100k_base"),
        ("gpt-4-turbo", "cl100k_base"),
        ("gpt-3.5-turbo", "cl100k_base"),
        ("gpt-4o-mini", "o200k_base"),
        ("gpt-4.1", "o200k_base"),
        ("openai/gpt-5.6", "o200k_base"),
        ("o3-mini", "o200k_base"),
        ("ft:gpt-4o:org", "o200k_base"),
    ],
)
def test_openais_models_have_their_encoding(model, encoding):
    """By name, prefixes and fine-tunes included."""
    assert tokens._encoding_name(model) == encoding


@pytest.fixture
def vocabulary(monkeypatch, tmp_path):
    """A folder with a file that passes for the vocabulary, and an encoding of bytes and one pair."""
    tiktoken = pytest.importorskip("tiktoken")
    ranks = {bytes([byte]): byte for byte in range(256)} | {b"ab": 256}
    encoding = tiktoken.Encoding("small", pat_str=r"\S+|\s+", mergeable_ranks=ranks, special_tokens={"<|end|>": 257})
    url, _ = tokens._VOCABULARY["o200k_base"]
    content = b"a vocabulary"
    file = tmp_path / hashlib.sha1(url.encode()).hexdigest()
    file.write_bytes(content)
    folders: list[str | None] = []

    def load(name: str) -> object:
        folders.append(os.environ.get("TIKTOKEN_CACHE_DIR"))
        return encoding

    monkeypatch.setattr(tiktoken, "get_encoding", load)
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", "")
    monkeypatch.setenv("DATA_GYM_CACHE_DIR", str(tmp_path))
    monkeypatch.setitem(tokens._VOCABULARY, "o200k_base", (url, hashlib.sha256(content).hexdigest()))
    tokens._tiktoken.cache_clear()
    yield file, folders
    tokens._tiktoken.cache_clear()


def test_tiktoken_counts_exactly_where_its_vocabulary_is_at_hand(vocabulary):
    """From the folder that holds it, which is told to tiktoken for the moment of loading only."""
    file, folders = vocabulary
    counter = default_counter("gpt-5")
    assert (counter.name, counter.exact) == ("tiktoken o200k_base", True)
    assert counter("abab") == 2
    assert counter("<|end|>") == 7
    assert folders == [str(file.parent)]
    assert os.environ["TIKTOKEN_CACHE_DIR"] == ""


def test_a_counter_that_breaks_down_is_replaced_by_the_estimate():
    """Tiktoken panics on a megabyte of spaces, with what is no ``Exception``; what a counter raises is its own."""
    tiktoken = pytest.importorskip("tiktoken")
    ranks = {bytes([byte]): byte for byte in range(256)}
    encoding = tiktoken.Encoding("small", pat_str=r"\S+|\s+(?!\S)|\s", mergeable_ranks=ranks, special_tokens={})
    counter = Counter("small", exact=True, count=lambda text, model="": len(encoding.encode_ordinary(text)))
    assert counter("ab ") == 3
    assert counter(" " * 1_000_000) == estimate_tokens(" " * 1_000_000)
    with pytest.raises(TypeError):
        counter(7)


def test_a_damaged_vocabulary_is_no_vocabulary(vocabulary):
    """Tiktoken would delete it and fetch another; counting never uses the network."""
    file, folders = vocabulary
    file.write_bytes(b"half a voc")
    assert default_counter("gpt-5") is ESTIMATE
    assert file.exists()
    assert folders == []


# --------------------------------------------------------------------------------- tokenizers


@pytest.fixture
def tokenizer(monkeypatch):
    """A real Hugging Face tokenizer of whole words, made here; no hub is asked."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    words = ["<unk>", "<s>", "</s>", "user", "system", "assistant", "tool", "look", "one", "two", "three", "four"]
    model = tokenizers.models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>")
    small = tokenizers.Tokenizer(model)
    small.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=small, unk_token="<unk>")


def test_a_tokenizer_counts_text_without_special_tokens(tokenizer):
    """As a counter for prompts."""
    counter = template_counter(tokenizer)
    assert counter.exact
    assert counter.name.startswith("transformers")
    assert counter("one two unknown") == 3
    body = {"model": "m", "messages": [{"role": "user", "content": "one two three four"}]}
    assert decode(body, "openai-chat", count=counter).tokens == 4 + 3


def test_a_tokenizer_needs_no_more_than_one_method():
    """Any object with ``encode`` will do."""
    plain = SimpleNamespace(encode=lambda text, add_special_tokens: text.split())
    assert template_counter(plain)("a b") == 2
