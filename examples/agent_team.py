"""A team that takes turns on one transcript: author, checker and editor, two rounds.

python examples/agent_team.py --layout shared

Unmodified, each role stands first in its own system prompt, so no two of them begin alike. Shared, the role is the last
thing in the prompt and the transcript before it is read from the cache by whoever speaks next.
"""

from __future__ import annotations

from _plain import HANDBOOK, Example, main, text_of

from cacheprefix import ForkPolicy

TASK = "Write the notice about Sunday's maintenance: what stops, from when to when, whom to ask."
ROLES = {
    "author": "Draft or revise the text. Give the whole text.",
    "checker": "Name what is wrong, unproven or missing. Do not rewrite.",
    "editor": "Cut what is not needed and give the whole text.",
}


def agent_team(example: Example) -> str:
    """Six turns; what is said in public is all that is passed on."""
    transcript: list[dict[str, object]] = [{"role": "user", "content": TASK}]
    said = ""
    for name, duty in [*ROLES.items()] * 2:
        if example.shared:
            said = example.session.fork(
                duty,
                body=example.body(transcript),
                api=example.kind,
                send=example.send,
                role=name,
                policy=ForkPolicy(max_turns=1, purpose="member"),
                conversation="team-1",
            ).text
        else:
            body = example.body(transcript, f"You are the {name}. {duty}\n\n{HANDBOOK}")
            said = text_of(example.said(example.call(body, name, conversation="team-1")))
        transcript.append({"role": "user", "content": f"{name}: {said}"})
    return said


if __name__ == "__main__":
    main(agent_team)
