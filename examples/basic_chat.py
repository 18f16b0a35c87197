"""A chat loop on a conversation that keeps its own history: each turn reads what the turns before have written.

python examples/basic_chat.py --layout shared --api anthropic

OpenAI caches by itself, so there a plain loop that only ever appends costs the same. Anthropic caches nothing without
marks, and the session sets them.
"""

from __future__ import annotations

from _plain import Example, main, text_of

QUESTIONS = (
    "What does chapter 3 say about numbers?",
    "And what is to be done when two sources disagree?",
    "Who is to be asked before a step that cannot be undone?",
    "Put the three answers into one paragraph.",
)


def basic_chat(example: Example) -> str:
    """Four questions, one after the other."""
    if not example.shared:
        messages: list[dict[str, object]] = []
        for question in QUESTIONS:
            messages.append({"role": "user", "content": question})
            messages.append(example.said(example.call(example.body(messages), "chat")))
        return text_of(messages[-1])

    conversation = example.session.conversation("thread-1", api=example.kind, model=example.model)
    answer = ""
    for question in QUESTIONS:
        conversation.append({"role": "user", "content": question})
        built = conversation.build()
        messages = built.messages if example.api == "anthropic" else built.messages[1:]
        message = example.said(
            example.call(example.body(messages), "chat", conversation=conversation, boundary=built.boundary)
        )
        conversation.append(message)
        answer = text_of(message)
    return answer


if __name__ == "__main__":
    main(basic_chat)
