"""The small team that the conformance suite plays with every adapter, and what an adapter's driver has to do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from cacheprefix.prompt import Api
from cacheprefix.server import Reply, Rule, Rules, SimulatedProvider, ToolCall, fill
from cacheprefix.session import Session
from cacheprefix.wire.answers import read_answer, result_messages, user_message
from cacheprefix.wire.apis import chat_of

Way = Literal["invoke", "stream", "ainvoke", "astream"]
"""How a model is called: at once or streamed, synchronous or not."""

_RULE = "The handbook says that every statement needs a source, and that a source is read before it is named. "
HANDBOOK = _RULE * 70
"""About 1,750 tokens by the estimate: above the minimum of the rules the suite is run on."""
SHORT = "Answer in one sentence."
LOOK = "Look it up in the log."
"""A question that the scripted model answers by calling ``read_log`` first."""
_LOG = "\n".join(f"{second:04d} worker {second % 7} finished step {second * 31 % 997}" for second in range(400))
_MOST_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Role:
    """One agent of the team."""

    name: str
    instruction: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Team:
    """What to build and run: in each round the question is put, and every role answers in turn.

    A role's system text is ``system(role)``, as an application without cacheprefix writes it; it sees the whole
    transcript and has all tools.
    """

    handbook: str = HANDBOOK
    roles: tuple[Role, ...] = (
        Role("planner", "You plan the work in three steps."),
        Role("critic", "You name the weakest point of the plan."),
        Role("writer", "You write down what was agreed."),
    )
    questions: tuple[str, ...] = ("How do we find the slow step?",)
    tools: tuple[Mapping[str, Any], ...] = ()
    """Each as ``{"name", "description", "parameters"}``."""
    thread: str = "thread-1"
    way: Way = "invoke"

    def system(self, role: Role) -> str:
        """A role's own system text."""
        return f"{role.instruction}\n\n{self.handbook}"

    def run_tool(self, name: str, arguments: Any) -> str:  # noqa: ARG002 - a tool's signature
        """What a tool gives back: a log of about 3,500 tokens."""
        return f"{name}:\n{_LOG}"


class Driver(Protocol):
    """How the suite talks to an adapter: one method that builds the team in the adapter's framework and runs it."""

    api: Api
    rules: str
    """Name of the profile whose rules the provider follows, such as ``openai-5.6`` or ``anthropic``."""
    ways: Sequence[Way]
    """The ways of calling that the adapter supports."""
    budgets: bool
    """Whether the adapter shortens large tool results."""

    def run(self, team: Team, provider: SimulatedProvider, session: Session | None) -> list[str]:
        """Run the team against the provider and return its answers' texts, in order.

        ``session`` is to be bound by the adapter's front door; None means the same application without cacheprefix.
        The conversation's id is ``team.thread``.
        """


def script() -> Rules:
    """What the model says: it calls a tool where it is asked to look something up, and never repeats a prompt."""
    look = Reply(tool_calls=(ToolCall("read_log", {"lines": 400}),))
    return Rules([Rule("Look it up", look, round=0)], lambda request: Reply(fill(f"Answer {request.index}:", 40)))


def tools() -> tuple[Mapping[str, Any], ...]:
    """Two tools, one of which the script calls."""
    lines = {"type": "object", "properties": {"lines": {"type": "integer"}}, "required": ["lines"]}
    name = {"type": "object", "properties": {"name": {"type": "string"}}}
    return (
        {"name": "read_log", "description": "Read the last lines of the log.", "parameters": lines},
        {"name": "list_files", "description": "List the files of a folder.", "parameters": name},
    )


def play(team: Team, api: Api, model: str, send: Callable[[Role, dict[str, Any]], Any]) -> list[str]:
    """The team as a plain loop over request bodies, for adapters of SDKs: ``send(role, body)`` makes one call.

    It returns the response as a dict or an SDK's object. Speaks OpenAI chat, OpenAI responses and Anthropic messages.
    """
    transcript: list[Any] = []
    texts: list[str] = []
    for question in team.questions:
        transcript.append(user_message(question))
        for role in team.roles:
            for _ in range(_MOST_ROUNDS):
                answer = read_answer(send(role, _body(team, api, model, role, transcript)), api)
                if not answer.calls:
                    break
                transcript += answer.messages
                done = [(call, team.run_tool(call.name, call.arguments), False) for call in answer.calls]
                transcript += result_messages(done, api)
            texts.append(answer.text)
            transcript.append(user_message(f"{role.name}: {answer.text}"))
    return texts


def _body(team: Team, api: Api, model: str, role: Role, transcript: Sequence[Any]) -> dict[str, Any]:
    """A role's request in an API's shape, as an application would send it."""
    body: dict[str, Any] = {"model": model}
    history = list(transcript)
    shape = chat_of(api)
    if api == "anthropic":
        body["max_tokens"] = 1024
    if shape.FIELDS.system is None:
        history.insert(0, {"role": "system", "content": team.system(role)})
    else:
        body[shape.FIELDS.system] = team.system(role)
    if api == "openai-responses":
        body["store"] = False
    listed = [shape.tool(tool) for tool in team.tools]
    body[shape.FIELDS.history] = history
    return {**body, "tools": listed} if listed else body
