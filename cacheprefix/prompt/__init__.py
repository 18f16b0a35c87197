"""Prompts as rows of sections in cache order, read from and written to wire bodies."""

from cacheprefix.prompt._address import api_of_path
from cacheprefix.prompt._codec import decode, encode, guess_api, redecode
from cacheprefix.prompt._compare import (
    Divergence,
    Placement,
    chain,
    common_prefix,
    difference,
    lane_key,
    placed,
    salt,
    shared_characters,
    shared_sections,
    shared_tokens,
)
from cacheprefix.prompt._failures import reads_as_error
from cacheprefix.prompt._json import dumps, dumps_sorted, loads
from cacheprefix.prompt._memo import Memo
from cacheprefix.prompt._sections import (
    MESSAGE_TOKENS,
    TIERS,
    Api,
    CountTokens,
    Kind,
    Marker,
    Prompt,
    Section,
    Tier,
    section,
)
from cacheprefix.prompt._structure import structure_errors
from cacheprefix.prompt._tokens import (
    ESTIMATE,
    Counter,
    count_messages,
    default_counter,
    estimate_tokens,
    load_vocabularies,
    template_counter,
    tiktoken_counter,
)

__all__ = [
    "ESTIMATE",
    "MESSAGE_TOKENS",
    "TIERS",
    "Api",
    "CountTokens",
    "Counter",
    "Divergence",
    "Kind",
    "Marker",
    "Memo",
    "Placement",
    "Prompt",
    "Section",
    "Tier",
    "api_of_path",
    "chain",
    "common_prefix",
    "count_messages",
    "decode",
    "default_counter",
    "difference",
    "dumps",
    "dumps_sorted",
    "encode",
    "estimate_tokens",
    "guess_api",
    "lane_key",
    "load_vocabularies",
    "loads",
    "placed",
    "reads_as_error",
    "redecode",
    "salt",
    "section",
    "shared_characters",
    "shared_sections",
    "shared_tokens",
    "structure_errors",
    "template_counter",
    "tiktoken_counter",
]
