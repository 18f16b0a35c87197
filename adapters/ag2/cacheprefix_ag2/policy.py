"""``PrefixPolicy``: an assembly policy that lays ag2's prompts and events out as a fork."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ag2.context import ConversationContext
from ag2.events import BaseEvent, ModelMessage, ModelRequest, ModelResponse, TextInput
from ag2.middleware import BaseMiddleware, LLMCall
from ag2.network.policies import AGENT_CLIENT_DEP, CHANNEL_DEP
from ag2.utils import AGENT_CONTEXT_DEPENDENCY_KEY, MODEL_CONFIG_CONTEXT_DEPENDENCY_KEY

from cacheprefix import Session
from cacheprefix.adapter import check_volatile, given_or_configured, instruction_of, texts_said, users_session
from cacheprefix.errors import check_id, check_text
from cacheprefix_ag2.client import PrefixConfig, put_back
from cacheprefix_ag2.layout import ConversationId, Plan, Tail, channel_of, conversation_id, tail_in
from cacheprefix_ag2.state import Talk
from cacheprefix_ag2.team import team_of

Volatile = Callable[[], Mapping[str, str]]
"""Texts for one request, by key; they stand at its very end."""


class PrefixPolicy:
    """Lays an agent's prompts and events out as a fork: shared system text, transcript, the role's text.

    ``wrap`` does so for its agents; by hand it belongs last in ``assembly=``, beside a ``PrefixConfig``. The role is
    the agent's name by default. ``volatile`` gives texts for one request; ``conversation`` is the conversation's id, or
    gives it (the stream's or channel's by default). Without a ``PrefixConfig``, in ``observe`` mode, and on failure,
    nothing changes.
    """

    name = "cacheprefix"
    _bound = False
    """Whether all requests pass a ``PrefixClient``, which carries the layout out."""

    def __init__(
        self,
        session: Session | None = None,
        *,
        role: str = "",
        volatile: Volatile | None = None,
        conversation: ConversationId | None = None,
    ) -> None:
        check_volatile(volatile)
        check_id("conversation", conversation)
        check_text("role", role)
        self._session = given_or_configured(session)
        self.role = role
        self.volatile = volatile
        self.conversation = conversation
        team_of(self._session)

    async def apply(
        self, prompts: list[str], events: list[BaseEvent], context: ConversationContext
    ) -> tuple[list[str], list[BaseEvent]]:
        """The fork's prompts and events; the very same objects where nothing is to change."""
        session = self._session
        if session.mode == "observe":
            return prompts, events
        laid = tail_in(events)
        config = context.dependencies.get(MODEL_CONFIG_CONTEXT_DEPENDENCY_KEY)
        by_hand = laid is None and not self._bound
        if by_hand and not isinstance(config, PrefixConfig):
            session.note("an agent's model config is no PrefixConfig: its requests are left as they are, unmeasured")
            return prompts, events
        if by_hand and isinstance(config, PrefixConfig) and config.session is not users_session(session):
            # Privacy: the other session may be another user's, and so may the tools that it shares.
            session.note(
                "an agent's PrefixConfig is of another session than its PrefixPolicy: its requests are left as they "
                "are, and are in the report of that one alone; give both the same session"
            )
            return prompts, events
        # The application's own functions: their errors are raised to it.
        said = {key: str(text) for key, text in texts_said(self.volatile).items() if text}
        if laid is not None:
            # A policy before this one has laid it out: one put in by hand, of an agent that is wrapped too.
            return prompts, [laid.saying(said) if event is laid else event for event in events] if said else events
        own = self.conversation(context) if callable(self.conversation) else self.conversation
        try:
            talk = team_of(session).talk(own or conversation_id(context))
            # From the history itself: in ``events`` other policies may have left our state events out.
            stream, history = context.stream, context.stream.history
            held = list(await history.get_events())
            if talk.behind(stream, held):
                # Either the application went back, or another agent's event came after this was read: read again.
                held = list(await history.get_events())
            talk.load(session, stream, held)
            return self._laid(prompts, events, context, talk, said)
        except Exception as error:
            session.failed("layout", error)
            passing = session.attempt("volatile", lambda: session.tail_for("", "", volatile=said), "")
            return prompts, [*events, ModelRequest([TextInput(passing)])] if passing else events

    def _laid(
        self,
        prompts: list[str],
        events: list[BaseEvent],
        context: ConversationContext,
        talk: Talk,
        said: Mapping[str, str],
    ) -> tuple[list[str], list[BaseEvent]]:
        """A fork's prompts and events: shared text first, the role's own and what moves at the end."""
        session = self._session
        agent = context.dependencies[AGENT_CONTEXT_DEPENDENCY_KEY]
        role = self.role or agent.name
        channel = channel_of(context)
        history = events if channel is None else _public(events, context)
        own = [text for text in prompts if text in agent.system_prompt]
        moving = instruction_of([text for text in prompts if text not in agent.system_prompt], session.prefix.system)
        instruction = instruction_of(own, session.prefix.system)
        # In a channel's turn the text may stand before its tool loop, which no other agent sees; else among all events.
        asked = [at for at, event in enumerate(history, 1) if isinstance(event, ModelRequest)]
        at = asked[-1] if channel is not None and asked else len(history)
        text = session.tail_for(role, instruction)
        # Another policy before this one changes what is sent, and what the context holds then.
        shown = context.prompt if context.prompt == prompts else prompts
        given = {"context": moving} if moving else {}
        tail = Tail(Plan(prompts, shown, events, role, talk, instruction, text, given, said, channel is not None))
        return [session.prefix.text] if session.prefix.text else [], [*history[:at], tail, *history[at:]]


class BoundPolicy(PrefixPolicy):
    """The policy of a wrapped agent, whose clients are all ``PrefixClient``s."""

    _bound = True


class LayoutMiddleware(BaseMiddleware):
    """Applies the policy of a wrapped agent to each of a turn's requests.

    Unlike ag2's own ``AssemblerMiddleware`` it takes nothing back that the application did to the context meanwhile:
    without us the agent may have none.
    """

    def __init__(self, event: BaseEvent, context: ConversationContext, *, policy: PrefixPolicy) -> None:
        super().__init__(event, context)
        self._policy = policy

    async def on_llm_call(
        self, call_next: LLMCall, events: Sequence[BaseEvent], context: ConversationContext
    ) -> ModelResponse:
        """The answer to the request, laid out."""
        before, given = context.prompt, list(context.prompt)
        prompts, laid = await self._policy.apply(given, list(events), context)
        if prompts is given:
            return await call_next(laid, context)
        context.prompt = prompts
        try:
            return await call_next(laid, context)
        finally:
            put_back(context, prompts, before)


def _public(events: Sequence[BaseEvent], context: ConversationContext) -> list[BaseEvent]:
    """A channel's transcript, the same for all agents: each message a user's, with its speaker in the text.

    ag2 gives an agent its own messages as events that are not sent, and with two participants leaves names out.
    """
    client, channel = context.dependencies[AGENT_CLIENT_DEP], context.dependencies[CHANNEL_DEP]
    others = [each.agent_id for each in channel.metadata.participants if each.agent_id != client.agent_id]
    named = [f"[{client._hub_client.name_for(each)}]:" for each in others]
    own = f"[{client.passport.name}]:"
    return [_as_user(event, own, named) for event in events]


def _as_user(event: BaseEvent, own: str, others: Sequence[str]) -> BaseEvent:
    if type(event) is ModelMessage:
        return ModelRequest([TextInput(f"{own} {event.content}")])
    if type(event) is not ModelRequest or len(others) != 1 or not event.parts:
        return event
    first, *rest = event.parts
    if not isinstance(first, TextInput) or first.content.startswith(others[0]):
        return event
    return ModelRequest([TextInput(f"{others[0]} {first.content}", metadata=first.metadata), *rest])
