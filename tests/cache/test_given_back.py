"""What a change leaves of a prompt, counted, and what a model that forgets gives back."""

from __future__ import annotations

import gc

from cacheprefix.cache import CacheModel
from cacheprefix.cache.differences import kept
from cacheprefix.cache.tree import Node
from cacheprefix.profiles import Usage, default_registry
from cacheprefix.wire import decode

OPENAI = default_registry().get("openai")


def prompt(*texts: str):
    """A request that says these texts."""
    messages = [{"role": "user", "content": text} for text in texts]
    return decode({"model": "gpt-5.1", "messages": messages}, "openai-chat")


def test_a_text_that_stands_twice_is_kept_twice():
    """And no oftener than it stood there before."""
    before, after = prompt("Other.", "Fine.", "Fine.").sections, prompt("New.", "Fine.", "Fine.", "Fine.").sections
    assert kept(before, after, 0) == after[1].tokens + after[2].tokens > 0


def test_a_model_that_forgets_gives_its_trees_back_at_once():
    """Nodes and their parents hold each other; nobody has to wait for the garbage collector."""

    def nodes():
        return {id(one) for one in gc.get_objects() if isinstance(one, Node)}

    gc.collect()
    before, model = nodes(), CacheModel()
    gc.disable()
    try:
        for at in range(3):
            seen = model.begin(prompt(*(f"Text {number}." for number in range(5 + at))), OPENAI, at=float(at))
            model.finish(seen, Usage(input_tokens=100), float(at))
        del seen
        made = nodes() - before
        assert made
        model.clear()
        assert not made & nodes()
    finally:
        gc.enable()
