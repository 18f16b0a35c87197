"""Is the cheaper layout as good? An evaluation of your own for ``cacheprefix compare``.

cacheprefix compare examples/compare/scripted_tasks.py:evaluate --max-loss 0.1
python examples/compare/scripted_tasks.py --layout shared --json

Two roles add numbers: the solver computes, the checker says the result. The model is whatever OPENAI_BASE_URL and
OPENAI_API_KEY name; without a key a scripted one answers, which slips now and then, as models do.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph

from cacheprefix import Session, SharedPrefix
from cacheprefix.server import Reply, Request, SimulatedProvider
from cacheprefix_langgraph import forked, wrap_model

HANDBOOK = "Numbers are written in digits, without signs, spaces or words around them. Nothing is rounded. " * 60
ROLES = {
    "solver": "You compute what is asked.",
    "checker": "You check the last result and say it again, or correct it.",
}
TASKS = [(17 * n % 89, 31 * n % 97) for n in range(1, 41)]


def scripted(request: Request) -> Reply:
    """Adds the two numbers of the task; one prompt in sixteen is answered wrongly, whatever its layout."""
    first, second = map(int, re.findall(r"Add (\d+) and (\d+)\.", request.text)[-1])
    slip = blake2b(request.text.encode(), digest_size=1).digest()[0] % 16 == 0
    return Reply(str(first + second + slip))


@contextmanager
def chat_model() -> Iterator[BaseChatModel]:
    """The model that the environment names, else the scripted one."""
    if os.environ.get("OPENAI_API_KEY"):
        yield ChatOpenAI(model=os.environ.get("MODEL", "gpt-5-mini"))
        return
    with SimulatedProvider("openai", scripted) as provider:
        yield ChatOpenAI(model="gpt-5-mini", base_url=provider.openai_base_url, api_key="any", max_retries=0)


def team(model: BaseChatModel, session: Session) -> Callable[[str], str]:
    """A graph of the two roles, as one writes it: the role in front, then the handbook."""
    graph = StateGraph(MessagesState)
    previous = START
    for role, text in ROLES.items():

        def node(state: MessagesState, text: str = text) -> dict[str, list[object]]:
            return {"messages": [model.invoke([SystemMessage(f"{text}\n\n{HANDBOOK}"), *state["messages"]])]}

        graph.add_node(role, forked(session, role=role)(node))
        graph.add_edge(previous, role)
        previous = role
    graph.add_edge(previous, END)
    compiled = graph.compile()
    return lambda task: str(compiled.invoke({"messages": [HumanMessage(task)]})["messages"][-1].text)


def evaluate(new_session: Callable[..., Session]) -> Iterator[tuple[str, bool]]:
    """Each task and whether the team's last word is right; ``new_session`` makes a Session in the layout's mode."""
    session = new_session(SharedPrefix(system=HANDBOOK))
    with chat_model() as model:
        answer = team(wrap_model(model, session), session)
        for first, second in TASKS:
            yield f"{first} + {second}", answer(f"Add {first} and {second}.").strip() == str(first + second)


def main() -> None:
    """One layout alone: the share of tasks solved and what its input cost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layout", choices=["unmodified", "shared"], default="shared")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    made: list[Session] = []

    def new_session(prefix: SharedPrefix) -> Session:
        made.append(Session(prefix, mode="fork" if given.layout == "shared" else "observe"))
        return made[-1]

    solved = [right for _, right in evaluate(new_session)]
    total = made[0].report().total
    found = {
        "layout": given.layout,
        "solved": sum(solved) / len(solved),
        "calls": total.calls,
        "input_tokens": total.input_tokens,
        "cache_read_tokens": total.cache_read_tokens,
        "cost_units": total.cost_units,
    }
    print(json.dumps(found) if given.json else "\n".join(f"{name}: {value}" for name, value in found.items()))


if __name__ == "__main__":
    main()
