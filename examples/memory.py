"""Memory over a plain client: a fork of the conversation says what to remember, and the next one begins with it.

python examples/memory.py --layout shared

Unmodified, a helper with a system prompt of its own gets the conversation pasted into its message.
"""

from __future__ import annotations

from _plain import HANDBOOK, Example, main, text_of

from cacheprefix import ForkPolicy

EXTRACT = "Pause the task. In one line: what of this conversation should be remembered in later ones?"
QUESTIONS = (("Plan the maintenance.", "Move it to Sunday."), ("What is planned?",))


def memory(example: Example) -> str:
    """Two conversations of one user; what the first one left stands at the beginning of the second."""
    remembered: list[str] = []
    for number, questions in enumerate(QUESTIONS, 1):
        thread, messages = f"thread-{number}", list[dict[str, object]]()
        known = "".join(f"- {line}\n" for line in reversed(remembered))
        for question in questions:
            # Newest first, and once: what stands there stays, so that every later turn reads it.
            opening = f"Remembered of earlier conversations:\n{known}\n" if known and not messages else ""
            messages.append({"role": "user", "content": f"{opening}{question}"})
            messages.append(example.said(example.call(example.body(messages), "planner", conversation=thread)))
        if example.shared:
            remembered.append(
                example.session.fork(
                    EXTRACT,
                    body=example.body(messages),
                    api=example.kind,
                    send=example.send,
                    role="memory",
                    policy=ForkPolicy.memory_update(),
                    conversation=thread,
                ).text
            )
        else:
            pasted = "\n".join(text_of(message) for message in messages)
            asked = [{"role": "user", "content": f"{EXTRACT}\n\n{pasted}"}]
            body = example.body(asked, f"You keep what is worth remembering.\n{HANDBOOK}")
            remembered.append(text_of(example.said(example.call(body, "memory"))))
    return f"Remembered: {remembered[-1]}"


if __name__ == "__main__":
    main(memory)
