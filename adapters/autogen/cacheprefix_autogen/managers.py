"""Lays out the requests that a team's manager sends itself: a selector's choice, Magentic-One's orchestrator."""

from __future__ import annotations

import asyncio
import operator
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from autogen_agentchat.messages import BaseChatMessage, HandoffMessage
from autogen_agentchat.teams import BaseGroupChat, MagenticOneGroupChat, SelectorGroupChat
from autogen_core.models import AssistantMessage, ChatCompletionClient, LLMMessage, SystemMessage, UserMessage

from cacheprefix.adapter import AdapterSession, OwnTools, Reason, SelectorChoice, reason, users_session
from cacheprefix_autogen.binding import Binding
from cacheprefix_autogen.client import PrefixClient, unwrapped
from cacheprefix_autogen.history import condensed
from cacheprefix_autogen.layout import Layout
from cacheprefix_autogen.member import Asked, Group, Member, Options, Planned
from cacheprefix_autogen.messages import ABOVE, SENDER, lead, public, text_of
from cacheprefix_autogen.provider_clients import Request, model_of
from cacheprefix_autogen.run_plan import instance_of
from cacheprefix_autogen.tool_restriction import Restriction, restricted
from cacheprefix_autogen.transcript import Entry, Transcript, View


class SelectorMember(Member):
    """Lays out a ``SelectorGroupChat``'s question: the conversation first, the participants and the question last.

    The chat's own logic stays as it is.
    """

    def __init__(
        self, session: AdapterSession, transcript: Transcript, models: Sequence[str], options: Options, heads: int
    ) -> None:
        super().__init__(session, "selector", View(transcript), options=options)
        self._models = tuple(models)
        self._heads = heads
        """In how many forms what AutoGen's own prompt has in front of the conversation comes again and again."""
        self.left: Callable[[str, Reason | None], Reason | None] | None = None
        """Tells for a model why a question goes out as it would without us; None where it may be laid out."""
        self._choice: SelectorChoice | None = None
        """What asking behind the conversation comes to, by the first question in this process."""
        self._said: list[str] = []
        """The conversation as AutoGen's own prompt has it, message by message."""

    def observe(self, thread: Sequence[Any], told: Sequence[Entry] = ()) -> None:
        """Take in the team's messages as the manager has them; ``told`` is the durable context told so far."""
        messages = [message for message in thread if isinstance(message, BaseChatMessage)]
        self._said = [line for message in messages for line in _lines(message)]
        if self.view is not None and not self.broken:
            held: defaultdict[str, list[str]] = defaultdict(list)
            for entry in reversed(self.view.entries):
                held[entry.message].append(entry.id)
            # A message that was sent again stands in the thread again.
            here = {entry.id for entry in told}
            new = []
            for message in messages:
                if held[message.id]:
                    here.add(held[message.id].pop())
                else:
                    new.append(message)
            # Privacy: what the application redacted in a saved thread, our part of the state may still hold.
            if not all(map(self._as_known, new)):
                self.give_up("the team's thread is not the one that was saved")
                return
            # Privacy: what a reset of the team took out of its thread is not shown again.
            self.leave_out({entry.id for entry in self.view.entries if entry.id not in here})
            self.view.receive(new, self._told)

    def _as_known(self, message: BaseChatMessage) -> bool:
        """Whether a message that is new to the selector says what the transcript has of it; each is looked at once."""
        view = self.view
        known = None if view is None else view.transcript.known(message.id)
        if view is None or known is None:
            return True
        return list(map(text_of, known.forms)) == list(map(text_of, public(message, view.transcript.shorten)))

    def layout(self, client: Any, given: Request) -> Planned:
        """Put the selector's question behind the shared transcript.

        As it came where the prompt is not AutoGen's own, or where it holds another conversation than the team's: the
        application's model context shortens it, or adds to it.
        """
        session, asked = self.session, self._read(client, given)
        found = None if self.bounded else self._question(given.messages)
        if found is None or self.view is None or not self.view.entries:
            why = self._why_own() if self.bounded else reason("own_prompt", "selector_prompt")
            return None, self._plan_own(asked, why)
        left = None if self.left is None else self.left(asked.views.model, None)
        if left is not None:
            return None, self._plan_own(asked, left)
        views, (before, after) = asked.views, found
        shared = condensed(views, asked.talk, self.view.forms(), beside=asked.beside).messages
        if self._choice is None:
            opening = sum(views.count(str(form.content)) for form in shared)
            self._choice = session.selector_lane(
                views.model,
                # Privacy: the selector is not shown a shared text that was only found in the agents' own prompts.
                carried=(
                    views.static_tokens(asked.talk)
                    if views.model in self._models and session.holds_shared(())
                    else None
                ),
                opening=opening,
                speakers=len(self._models),
                before=views.count(before),
                heads=self._heads,
            )
        if self.lane is None and self._choice.lane == "joined" and self._holds_all(asked, shared):
            waits = self._waits(asked, shared)
            if waits is not None:
                return None, self._plan_own(asked, waits)
        if self.lane is None:
            self.lane = self._choice.lane
        if self.lane == "own" and self._holds_all(asked, shared):
            why = reason("little_to_share", cost=self._choice.cost, saved=self._choice.saved)
            return None, self._plan_own(asked, why)
        joins = self.lane == "joined"
        behind = [UserMessage(content=f"{before}{ABOVE}{after}", source=SENDER), *given.messages[1:]]
        # Joined: it carries the union, to read the agents' cache. Not where its model is another, which reads nothing
        # of that, nor where shared text and tools cost more than they save.
        tools = OwnTools((), carried="union") if joins else None
        asks = asked.asks
        asked = replace(asked, texts=())
        due = self._request(asked, shared, behind, tools)
        plan = session.plan(replace(due, place="end", asks=asks, says_shared=joins))
        if not plan.forks:
            return None, plan
        messages, restriction = list(plan.history), Restriction(given.tools, given.tool_choice)
        if joins:
            restriction = replace(restricted(session, plan, given, (), self.name), permitted=())
            if session.prefix.text:
                messages.insert(0, SystemMessage(content=session.prefix.text))
        return Layout(messages, restriction, len(shared)), plan

    def left_as_it_is(self, client: Any, given: Request, why: Reason) -> Planned:
        """The question as it came, for the reason ``why``."""
        return None, self._plan_own(self._read(client, given), why)

    def _waits(self, asked: Asked, shared: Sequence[LLMMessage]) -> Reason | None:
        """Why a question that is to be asked behind what the agents carry is the application's own for now."""
        views = asked.views
        carried, said = views.static_tokens(asked.talk), sum(views.count(str(form.content)) for form in shared)
        return self.session.selector_waits(asked.talk, views.model, carried=carried, said=said)

    def _holds_all(self, asked: Asked, shared: Sequence[LLMMessage]) -> bool:
        """Whether AutoGen's own prompt has all that ``shared`` holds, and nothing that was decided to leave out."""
        forms = [] if self.view is None else self.view.forms()
        cut = self.session.histories.budget is not None
        same = len(shared) == len(forms) and all(map(operator.is_, shared, forms))
        return same and not cut and not self._said_to_all(asked.talk)

    @property
    def said(self) -> str:
        """The conversation as AutoGen's own prompt has it."""
        return "\n".join(self._said)

    def _question(self, messages: Sequence[LLMMessage]) -> tuple[str, str] | None:
        """What AutoGen's prompt has before and behind the conversation.

        None where parts of that are missing or other text is among it.
        """
        text, lines = messages[0].content if messages else None, sorted(set(self._said), key=len, reverse=True)
        if not isinstance(text, str) or not lines or any(line not in text for line in lines):
            return None
        start = min(map(text.find, lines))
        end = max(text.rfind(line) + len(line) for line in lines)
        # AutoGen appends the thread once more where it loads into a team that has run.
        rest = text[start:end]
        for line in lines:
            rest = rest.replace(line, "")
        return None if rest.strip() else (text[:start], text[end:])


def _lines(message: BaseChatMessage) -> list[str]:
    """A message as lines of the selector's prompt; a hand-off's carried messages come first."""
    context = message.context if isinstance(message, HandoffMessage) else []
    given = [one for one in (*context, message.to_model_message()) if isinstance(one, (UserMessage, AssistantMessage))]
    return [f"{one.source}: {one.content}".rstrip() + "\n\n" for one in given]


class OrchestratorMember(Member):
    """Leaves the orchestrator's messages as they are.

    Its ledger calls carry a response schema and so share a cache only among themselves; the facts and the plan come
    before any agent has spoken. Where cache reads cost half the input price, forks of the agents' prefix would cost
    more. Every call ends with a question that is asked only once, so the cached part ends before it.
    """

    def __init__(self, session: AdapterSession, transcript: Transcript, options: Options) -> None:
        super().__init__(session, "orchestrator", View(transcript), alone=True, options=options)

    def layout(self, client: Any, given: Request) -> Planned:
        """The application's own messages; all but the last are marked for the cache."""
        plan = self._plan_own(self._read(client, given), reason("own_prompt", "orchestrator"))
        rest = lead(given.messages)[1]
        if len(rest) < 2:
            return None, plan
        return Layout(list(given.messages), Restriction(given.tools, given.tool_choice, ()), len(rest) - 1), plan


def bind_manager(team: BaseGroupChat, group: Group, binding: Binding) -> None:
    """Give a team's manager a ``PrefixClient``, where it sends requests itself."""
    client = unwrapped(getattr(team, "_model_client", None))
    if not isinstance(client, ChatCompletionClient):
        return
    session = group.session
    models = [model_of(agent._model_client.client) for agent, m in group.members if not m.alone]
    member: Member
    if isinstance(team, SelectorGroupChat):
        member = _selector(team, group, binding, models)
    elif isinstance(team, MagenticOneGroupChat):
        member = OrchestratorMember(session, group.transcript, group.callers_options)
        session.note(
            "Magentic-One's orchestrator keeps its own messages: as forks of the agents' prefix they would cost "
            "more where reads are half price"
        )
    else:
        member = Member(session, "manager", alone=True, options=group.callers_options)
    wrapped = PrefixClient(client, users_session(session), role=member.name, member=member)
    for owner in (binding, *_manager(team, binding)):
        owner.patches.set("_model_client", wrapped)


def _selector(team: SelectorGroupChat, group: Group, binding: Binding, models: Sequence[str]) -> Member:
    """The member that a team's selector is: it asks the model who speaks next, of the thread that it is shown."""
    binding.patches.expect(
        "_selector_func", "_model_context", "_selector_prompt", "_allow_repeated_speaker", "_candidate_func"
    )
    member = SelectorMember(group.session, group.transcript, models, group.callers_options, _heads(team))
    member.context, member.hears, member.left = team._model_context, group.told, group.left_plain
    group.callers.append(member)
    if group.session.mode == "observe":
        return member
    own: Any = team._selector_func

    async def selector_func(thread: Sequence[Any]) -> Any:
        group.session.attempt("selector", lambda: _observe(member, group, thread), None)
        if own is None:
            return None
        return await own(thread) if asyncio.iscoroutinefunction(own) else own(thread)

    for owner in (binding, *_manager(team, binding)):
        owner.patches.set("_selector_func", selector_func)
        if hasattr(owner.patches.target, "_is_selector_func_async"):
            owner.patches.set("_is_selector_func_async", value=True)
    return member


def _heads(team: SelectorGroupChat) -> int:
    """In how many forms the part of a selector's prompt in front of the conversation comes again; 0 where in none."""
    if "{participants}" not in team._selector_prompt.partition("{history}")[0]:
        return 1
    if team._candidate_func is not None:
        return 0
    # AutoGen leaves out of the candidates who spoke last.
    return 1 if team._allow_repeated_speaker else len(team._participants)


def _observe(member: SelectorMember, group: Group, thread: Sequence[Any]) -> None:
    """Show a selector's member the team's thread as it is now."""
    group.heed()
    member.observe(thread, group.told_so_far)


def _manager(team: BaseGroupChat, binding: Binding) -> list[Binding]:
    """The binding of the manager's object, which exists once the team has run; empty before."""
    found = instance_of(team, team._group_chat_manager_topic_type)
    if found is None:
        return []
    for inner in binding.inner:
        if inner.patches.target is found:
            return [inner]
    binding.inner.append(Binding(found, binding.session))
    return [binding.inner[-1]]
