"""One conversation, several processes: each worker loads the saved state and sends the very same beginning.

python examples/multi_process.py --layout shared

The parent holds a conversation and saves it as JSON; two worker processes continue it as forks. Unmodified, every
worker begins with its own role.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from _plain import HANDBOOK, Example, main, text_of

from cacheprefix import Session, SharedPrefix

ROLES = {"summary": "Sum the conversation up.", "critic": "Say what was left open."}


async def multi_process(example: Example) -> str:
    """Two turns here, then two workers in processes of their own."""
    conversation = example.session.conversation("thread-1", api=example.kind, model=example.model)
    for question in ("What must a report hold?", "Write one for May."):
        conversation.append({"role": "user", "content": question})
        built = conversation.build()
        messages = built.messages if example.api == "anthropic" else built.messages[1:]
        options = {"conversation": conversation, "boundary": built.boundary} if example.shared else {}
        conversation.append(example.said(example.call(example.body(messages), "chat", **options)))
    state = conversation.dumps()
    said = ""
    for name in ROLES:
        work = {"role": name, "state": state, "layout": example.layout, "api": example.api, "url": example.url}
        pipe = asyncio.subprocess.PIPE
        command = (sys.executable, str(Path(__file__)), "--worker")
        worker = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
        out, _ = await worker.communicate(json.dumps(work).encode())
        done = json.loads(out)
        example.foreign.append(done["report"])
        said = done["text"]
    return said


async def work_on(given: dict[str, Any]) -> None:
    """What a worker process does with what it reads from standard input."""
    shared = given["layout"] == "shared"
    session = Session(SharedPrefix(system=HANDBOOK), mode="fork" if shared else "observe")
    example = Example(given["layout"], given["api"], session, given["url"], offline=True)
    conversation = session.conversation("thread-1", api=example.kind, model=example.model)
    conversation.restore(given["state"])
    role, duty = given["role"], ROLES[given["role"]]
    messages = conversation.build().messages
    messages = messages if example.api == "anthropic" else messages[1:]
    if shared:
        result = await session.afork(duty, body=example.body(messages), api=example.kind, send=example.asend, role=role)
        text = result.text
    else:
        body = example.body([*messages, {"role": "user", "content": duty}], f"You are {role}.\n\n{HANDBOOK}")
        text = text_of(example.said(example.call(body, role)))
    await example.close()
    print(json.dumps({"text": text, "report": session.report().as_dict()}))


if __name__ == "__main__":
    if sys.argv[1:] == ["--worker"]:
        os.environ.setdefault("CACHEPREFIX_PLUGINS", "")
        asyncio.run(work_on(json.load(sys.stdin)))
    else:
        main(multi_process)
