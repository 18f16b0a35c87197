"""Tasks that wait for one another: each runs as soon as its inputs are there, many at a time.

python examples/task_dag.py --layout shared

Every task is a fork of the same brief. What a task gets from others stands behind the shared part, in the order of the
task list and not in the order of arrival, so that two runs send the same bytes.
"""

from __future__ import annotations

import asyncio

from _plain import HANDBOOK, Example, main, text_of

from cacheprefix.adapter import Request

BRIEF = "The bicycle shop wants to know whether a second workshop pays. " + " ".join(
    f"Month {month}: {40 + 7 * month % 23} repairs, {8 + month % 5} turned away." for month in range(1, 37)
)
TASKS: dict[str, tuple[str, tuple[str, ...]]] = {
    "demand": ("Estimate the demand that is turned away.", ()),
    "costs": ("Estimate what a second workshop costs.", ()),
    "people": ("Say what staff it needs.", ()),
    "budget": ("Make a budget of it.", ("demand", "costs", "people")),
    "risks": ("Name the risks.", ("demand", "people")),
    "advice": ("Advise for or against it.", ("budget", "risks")),
}


async def task_dag(example: Example) -> str:
    """Six tasks in three waves."""
    done: dict[str, asyncio.Task[str]] = {}
    if example.shared:
        # The first request writes the shared part; the others, all at once, would each pay for it again.
        opening = example.call(example.body([{"role": "user", "content": BRIEF}]), "lead")
        start: list[dict[str, object]] = [{"role": "user", "content": BRIEF}, example.said(opening)]
    else:
        start = [{"role": "user", "content": BRIEF}]

    async def run(name: str) -> str:
        duty, inputs = TASKS[name]
        found = "\n\n".join([f"{one}: {await done[one]}" for one in inputs])
        text = f"{duty}\n\n{found}" if found else duty
        if example.shared:
            result = await example.session.afork(
                text, body=example.body(start), api=example.kind, send=example.asend, role=name
            )
            return result.text
        body = example.body([*start, {"role": "user", "content": text}], f"You work on {name}.\n\n{HANDBOOK}")
        turn = example.session.adapter.begin(Request(body, example.kind, agent=name))
        response = await example.asend(turn.body)
        turn.finish(response.usage)
        return text_of(example.said(response))

    for name in TASKS:
        done[name] = asyncio.create_task(run(name))
    return (await asyncio.gather(*done.values()))[-1]


if __name__ == "__main__":
    main(task_dag)
