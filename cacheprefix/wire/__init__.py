"""The shapes of the providers' APIs: bodies to prompts and views and back, decisions applied, answers read."""

from cacheprefix.wire.apply_decisions import apply, sendable
from cacheprefix.wire.codec import api_of_path, decode, encode, guess_api, redecode
from cacheprefix.wire.message_views import Form, form_of, views_of
from cacheprefix.wire.reader import Memo
from cacheprefix.wire.structure import structure_errors

__all__ = [
    "Form",
    "Memo",
    "api_of_path",
    "apply",
    "decode",
    "encode",
    "form_of",
    "guess_api",
    "redecode",
    "sendable",
    "structure_errors",
    "views_of",
]
