"""What changes with every call (the time, what was looked up, the page that is open) stands at the end, for one call.

python examples/volatile_context.py --layout shared

Unmodified, it is part of the system prompt, as tutorials show it; then nothing behind it is ever read from the cache.
"""

from __future__ import annotations

from _plain import HANDBOOK, Example, main, text_of

from cacheprefix import ForkPolicy

TURNS = (
    ("Which rule is about numbers?", "page: start"),
    ("Which one is about sources?", "page: rules/3"),
    ("Which one is about changes?", "page: rules/7"),
    ("Sum the three up.", "page: rules/7#comments"),
)


def volatile_context(example: Example) -> str:
    """Four turns; the clock and the open page differ in each."""
    history: list[dict[str, object]] = []
    conversation = example.session.conversation("thread-1", api=example.kind, model=example.model)
    message: dict[str, object] = {}
    for minute, (question, opened) in enumerate(TURNS):
        now = f"It is 09:{minute:02d}:{minute * 17 % 60:02d}.\n{opened}"
        asked: dict[str, object] = {"role": "user", "content": question}
        if example.shared:
            conversation.append(asked)
            built = conversation.build(now)
            messages = built.messages if example.api == "anthropic" else built.messages[1:]
            body = example.body(messages)
            # What is behind the boundary is never asked for again, so it is not paid for as a write.
            policy = ForkPolicy(skip_cache_write=True)
            options = {"conversation": conversation, "boundary": built.boundary, "policy": policy}
            message = example.said(example.call(body, "chat", **options))
            conversation.append(message)
        else:
            history.append(asked)
            message = example.said(example.call(example.body(history, f"{now}\n\n{HANDBOOK}"), "chat"))
            history.append(message)
    return text_of(message)


if __name__ == "__main__":
    main(volatile_context)
