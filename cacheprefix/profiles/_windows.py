"""How many tokens a model's request may have, from the same library as the prices."""

from __future__ import annotations

from cacheprefix.errors import MissingExtraError
from cacheprefix.profiles._cost import GENAI_PROVIDERS
from cacheprefix.profiles._names import provider_of, read_model


def window_of(model: str, provider: str | None = None) -> int | None:
    """The context window of a model in tokens; None where the library does not know it.

    Source: genai-prices, which keeps one for most models. Raises ``MissingExtraError`` without it.
    """
    try:
        from genai_prices import Usage, calc_price  # noqa: PLC0415 - an extra, and slow to import
    except ImportError:
        raise MissingExtraError("looking a model's window up", "prices", "genai-prices") from None
    name = read_model(model)
    served_by = provider_of(provider) or name.provider
    for at in dict.fromkeys((GENAI_PROVIDERS.get(served_by or ""), None)):
        for spelling in name.spellings:
            try:
                found = calc_price(Usage(input_tokens=1), model_ref=spelling, provider_id=at)
            except LookupError:
                continue
            window = found.model.context_window
            if isinstance(window, int) and window > 0:
                return window
    return None
