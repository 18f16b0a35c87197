"""The shapes of the providers' APIs: bodies to prompts and views and back, decisions applied, answers read."""

from cacheprefix.wire.answers import history_field
from cacheprefix.wire.anthropic import paused_turn
from cacheprefix.wire.apis import api_of_path, form_of, guess_api
from cacheprefix.wire.apply_decisions import apply, sendable
from cacheprefix.wire.codec import decode, encode, redecode, structure_errors
from cacheprefix.wire.litellm import for_litellm, for_responses
from cacheprefix.wire.message_views import forget_views, views_of
from cacheprefix.wire.messages import Asks, Form, asks
from cacheprefix.wire.reader import Memo
from cacheprefix.wire.sdk_calls import gemini_sdk_body, sdk_arguments
from cacheprefix.wire.written import written as written_by_sdk

__all__ = [
    "Asks",
    "Form",
    "Memo",
    "api_of_path",
    "apply",
    "asks",
    "decode",
    "encode",
    "for_litellm",
    "for_responses",
    "forget_views",
    "form_of",
    "gemini_sdk_body",
    "guess_api",
    "history_field",
    "paused_turn",
    "redecode",
    "sdk_arguments",
    "sendable",
    "structure_errors",
    "views_of",
    "written_by_sdk",
]
