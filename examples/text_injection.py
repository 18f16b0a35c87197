"""Head to head: helpers that get the conversation as text in their own prompt, and helpers that are forks of it.

python examples/text_injection.py --layout unmodified
python examples/text_injection.py --layout shared

Injecting text is what most programs do: a fresh prompt per helper, with the conversation pasted in. It is the same
information, and none of it is in the cache.
"""

from __future__ import annotations

from _plain import HANDBOOK, Example, main, text_of

from cacheprefix import ForkPolicy

HELPERS = {
    "title": "Give the conversation a title of at most six words.",
    "todo": "List what is still to be done, one line each.",
    "facts": "List the facts that must not be forgotten.",
    "mood": "Say in one word whether the user is content.",
    "next": "Suggest what to ask next.",
}


def text_injection(example: Example) -> str:
    """A conversation of four turns, then five helpers that look at it."""
    messages: list[dict[str, object]] = []
    for question in ("What must a report hold?", "Write one for May.", "Shorter, please.", "Now for June."):
        messages.append({"role": "user", "content": question})
        messages.append(example.said(example.call(example.body(messages), "chat", conversation="thread-1")))
    first = 0
    for name, duty in HELPERS.items():
        if example.shared:
            result = example.session.fork(
                duty,
                body=example.body(messages),
                api=example.kind,
                send=example.send,
                role=name,
                policy=ForkPolicy.ephemeral(),
                conversation="thread-1",
            )
            said = result.text
        else:
            pasted = "\n".join(f"{message['role']}: {text_of(message)}" for message in messages)
            system = f"You are a helper. {duty}\n\n{HANDBOOK}"
            said = text_of(
                example.said(example.call(example.body([{"role": "user", "content": pasted}], system), name))
            )
        first += example.session.calls[-1].usage.cache_read_tokens or 0
    total = sum(call.usage.input_tokens or 0 for call in example.session.calls[-len(HELPERS) :])
    example.extra["helpers_cached_share"] = round(first / total, 3) if total else 0.0
    return said


if __name__ == "__main__":
    main(text_injection)
