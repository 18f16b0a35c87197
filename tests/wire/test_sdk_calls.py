"""A body as the arguments of an SDK's function."""

from __future__ import annotations

from typing import Any

from cacheprefix.wire import gemini_sdk_body, sdk_arguments


def create(*, model: str, messages: list[Any], extra_body: Any = None) -> None:
    """An SDK's function, of a version that knows few fields."""


def test_fields_that_the_sdk_knows_are_its_arguments() -> None:
    """Nothing is added beside them."""
    body = {"model": "m", "messages": []}
    assert sdk_arguments(body, create) == body


def test_a_field_that_the_sdk_does_not_know_goes_beside_what_the_application_put_there() -> None:
    """Which stays."""
    body = {"model": "m", "messages": [], "prompt_cache_key": "k", "extra_body": {"top_k": 3}}
    assert sdk_arguments(body, create) == {
        "model": "m",
        "messages": [],
        "extra_body": {"top_k": 3, "prompt_cache_key": "k"},
    }


def test_geminis_body_has_what_is_cached_and_no_more() -> None:
    """Not the temperature; a schema of the answer is a setting."""

    class Config:
        """As the SDK's, which shows itself in the API's spelling."""

        def model_dump(self, **how: Any) -> dict[str, Any]:
            """All its fields."""
            assert how == {"mode": "json", "by_alias": True, "exclude_none": True}
            return {"temperature": 0.5, "tools": [{"functionDeclarations": []}], "responseMimeType": "application/json"}

    said = [{"role": "user", "parts": [{"text": "Hi."}]}]
    assert gemini_sdk_body("models/gemini", said, Config()) == {
        "model": "gemini",
        "contents": said,
        "tools": [{"functionDeclarations": []}],
        "generationConfig": {"responseMimeType": "application/json"},
    }
    assert gemini_sdk_body("gemini", said, None) == {"model": "gemini", "contents": said}
