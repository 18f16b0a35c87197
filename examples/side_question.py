"""A question beside a conversation: it reads the cached prefix, costs next to nothing, and leaves no trace.

python examples/side_question.py --layout shared

Unmodified, a helper with a system prompt of its own gets the conversation pasted into its message.
"""

from __future__ import annotations

from _plain import HANDBOOK, Example, main, text_of

from cacheprefix import ForkPolicy

ASIDE = "In one sentence: what was agreed on so far?"


def side_question(example: Example) -> str:
    """A conversation of three turns; in between someone wants to know where it stands."""
    messages: list[dict[str, object]] = []
    asides = []
    for question in ("Plan the maintenance.", "Move it to Sunday.", "Write the notice."):
        messages.append({"role": "user", "content": question})
        messages.append(example.said(example.call(example.body(messages), "planner", conversation="thread-1")))
        if example.shared:
            # The parent's body, one more message behind it, nothing written to the cache, nothing kept.
            aside = example.session.fork(
                ASIDE,
                body=example.body(messages),
                api=example.kind,
                send=example.send,
                role="observer",
                policy=ForkPolicy.ephemeral(),
                conversation="thread-1",
            ).text
        else:
            pasted = "\n".join(text_of(message) for message in messages)
            body = example.body(
                [{"role": "user", "content": f"{ASIDE}\n\n{pasted}"}], f"You are an observer.\n{HANDBOOK}"
            )
            aside = text_of(example.said(example.call(body, "observer")))
        asides.append(aside)
    return f"Asked on the side: {asides[-1]}"


if __name__ == "__main__":
    main(side_question)
