"""LangGraph: a graph whose nodes are of all kinds, agents among them, checkpointed or given its whole history."""

import asyncio
import contextlib
import contextvars
import functools
import inspect
import operator
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

from langchain.agents import create_agent
from langchain.agents.middleware import dynamic_prompt
from langchain_anthropic import ChatAnthropic
from langchain_anthropic._client_utils import _get_default_async_httpx_client, _get_default_httpx_client
from langchain_core.messages import HumanMessage, RemoveMessage, SystemMessage, ToolMessage
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langchain_core.runnables.utils import get_function_nonlocals
from langchain_core.tools import StructuredTool
from langchain_openai import ChatOpenAI
from langchain_openai.chat_models._client_utils import _cached_async_httpx_client, _cached_sync_httpx_client
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.config import get_config
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.types import Command, Send, interrupt

from cacheprefix import SharedPrefix
from cacheprefix_langgraph import PrefixMiddleware, PrefixState, forked, subgraph, wrap_model
from tests.transparent.compare import Allowed
from tests.trial.applications import IMAGE, RETRIEVED, SCHEMA, Person, Role, Tool, Turn, asking, hooks
from tests.trial.checks import Framing
from tests.trial.playing import Driver

KINDS = ("function", "streamed", "generator", "chain", "inner", "agent", "subgraph")
"""What a role is: functions that ask, a Runnable, a graph of its own, an agent with middleware or without."""
STREAMS = ["values", "updates", "messages", "tasks", "checkpoints", "debug"]


class State(MessagesState, PrefixState):
    """Messages, and what was decided on them."""


class Trial(Driver):
    """One graph a tenant, or one for all; each person has a thread of it, or a history that it is given whole.

    Tenants' graphs may have one wrapped model, and be made of the very same functions, chains and agents.
    """

    framework: ClassVar[str] = "langgraph"
    # A thread goes back to a checkpoint that has messages.
    framing = Framing(from_start=False)
    allowed: ClassVar[tuple[Allowed, ...]] = (
        Allowed(("langgraph",), "*", "*cacheprefix*", ("value", "type", "added", "removed"), "the channel",
                "the application's state has it (PrefixState), and what was decided stands in it"),
    )  # fmt: skip

    def prefix(self) -> SharedPrefix:
        """Without tools: graphs have them where they are built, and checkpoints those that a run brought."""
        return SharedPrefix(system=self.app.handbook)

    def run(self) -> Any:
        """All people's turns, and at the end the history of each thread."""
        app = self.app
        rng = random.Random(app.seed)
        self.kinds = {role.name: app.kind or rng.choice(KINDS) for role in app.roles}
        if any(turn.act in ("resume", "rewind") for turn in app.turns) and not app.bounded:
            # A limit that docs/langgraph.md names, with what to do instead.
            self.kinds = {name: "subgraph" if kind == "agent" else kind for name, kind in self.kinds.items()}
        self.asks = rng.choice(("", "", "before", "after")) if app.named else ""
        if self.asks == "after" and any(turn.fault for turn in app.turns):
            # A node that runs again sends its request again, as a leader does whose streamed answer was a fault.
            self.asks = "before"
        self.streams = rng.sample(STREAMS, rng.randint(1, len(STREAMS)))
        self.by_tenant = any(tool.tenant for role in app.roles for tool in role.tools) or rng.random() < 0.5
        self.volatile = rng.random() < 0.5
        self.histories: dict[str, list[list[Any]]] = {person.name: [[]] for person in app.people}
        """Without threads: what was said at the end of each turn."""
        self.threads = {person.name: 0 for person in app.people}
        self.at: dict[str, Any] = {}
        """Where a person's thread is to go on from, if not from its newest checkpoint."""
        self.graphs: dict[tuple[int, str], Any] = {}
        own = any(tool.tenant for role in app.roles for tool in role.tools)
        self.nodes: dict[tuple[int, str], Any] | None = {} if self.common and not own else None
        """What nodes are made of, where it is the same for all tenants."""
        self.savers: dict[str, Any] = {}
        """Each tenant's, where each has its own graph: their threads have the same ids."""
        kept = [person.tenant for person in app.people] if self.by_tenant else [""]
        if not app.later:
            with contextlib.ExitStack() as stack:
                for tenant in set(kept) if app.named else ():
                    made = SqliteSaver.from_conn_string(":memory:")
                    self.savers[tenant] = stack.enter_context(made) if app.seed % 3 else InMemorySaver()
                return _driven(self._turns())

        async def main() -> Any:
            async with contextlib.AsyncExitStack() as stack:
                for tenant in set(kept) if app.named else ():
                    made = AsyncSqliteSaver.from_conn_string(":memory:")
                    self.savers[tenant] = await stack.enter_async_context(made) if app.seed % 3 else InMemorySaver()
                return await self._turns()

        return self.later(main())

    async def _turns(self) -> Any:
        self.llm = self._model()
        saw: dict[str, list[Any]] = {person.name: [] for person in self.app.people}
        for turn in self.app.turns:
            self.process += turn.act == "resume" and self.resumes
            work = [self._ask(turn, person) for person in turn.people]
            for person, one in zip(turn.people, await self._at_once(work), strict=True):
                saw[person.name].append(one)
        for person in self.app.people if self.app.named else ():
            saw[person.name].append(await self._kept(person))
        if self.app.later and isinstance(self.llm, ChatOpenAI):
            await self.llm.root_async_client.close()
        return saw

    async def _at_once(self, work: list[Any]) -> list[Any]:
        if self.app.later:
            return await asyncio.gather(*work)
        with ThreadPoolExecutor(len(work)) as pool:
            asked = [pool.submit(contextvars.copy_context().run, _driven, one) for one in work]
            return [one.result() for one in asked]

    # ------------------------------------------------------------------ what a person does

    def _config(self, turn: Turn | None, person: Person, attempt: int = 0) -> dict[str, Any]:
        given: dict[str, Any] = {"person": person.name, "turn": turn.number if turn else -1, "attempt": attempt}
        if not self.by_tenant:
            given["cacheprefix_scope"] = person.tenant
        if self.app.named:
            given["thread_id"] = f"{person.thread}-{self.threads[person.name]}"
            if not self.by_tenant:
                # LangGraph itself knows no tenants.
                given["thread_id"] += f"-of-{self.app.tenants.index(person.tenant)}"
            given |= self.at.get(person.name, {})
        return {"configurable": given, "recursion_limit": 80}

    async def _call(self, graph: Any, name: str, *given: Any, **options: Any) -> Any:
        return await _got(getattr(graph, f"a{name}" if self.app.later else name)(*given, **options))

    async def _history(self, person: Person) -> list[Any]:
        found = self._graph(person)
        config = self._config(None, person)
        if self.app.later:
            return [one async for one in found.aget_state_history(config)]
        return list(found.get_state_history(config))

    async def _kept(self, person: Person) -> list[Any]:
        """The history without what tasks wrote: whether the messages there have ids by then, the clock decides.

        Where a turn was cut short it also decides how far that one came.
        """
        if any(turn.way in ("left", "cancelled") or (turn.together and turn.fault) for turn in self.app.turns):
            return []
        return [one._replace(tasks=()) for one in await self._history(person)]

    async def _before(self, turn: Turn, person: Person, graph: Any) -> None:
        rng = random.Random(f"{self.app.seed}/{turn.number}/{person.name}")
        histories, name = self.histories[person.name], person.name
        if turn.act == "rewind" and self.app.named:
            ends = [one for one in await self._history(person) if not one.next and one.values.get("messages")]
            if ends:
                self.at[name] = _checkpoint(rng.choice(ends).config["configurable"]["checkpoint_id"])
        elif turn.act == "rewind":
            del histories[rng.randint(1, len(histories)) :]
        elif turn.act == "reset" and not self.app.named:
            histories[:] = [[]]
        elif turn.act == "reset":
            config = self._config(turn, person)
            which = rng.randrange(3)
            if which == 0:
                # Where nothing was asked yet, LangGraph's asynchronous store has no tables: reading makes them.
                await self._call(graph, "get_state", config)
                await self._call(graph.checkpointer, "delete_thread", config["configurable"]["thread_id"])
                self.at.pop(name, None)
            elif which == 1 and (await self._call(graph, "get_state", config)).values.get("messages"):
                gone = {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES)]}
                await self._call(graph, "update_state", config, gone, as_node="between")
                self.at.pop(name, None)
            else:
                self.threads[name] += 1
                self.at.pop(name, None)

    async def _ask(self, turn: Turn, person: Person) -> Any:
        graph = self._graph(person)
        await self._before(turn, person, graph)
        config = self._config(turn, person)
        good = None
        if self.app.named:
            good = (await self._call(graph, "get_state", config)).config["configurable"].get("checkpoint_id")
        text, name = self.app.question(turn, person), person.name
        content = [{"type": "text", "text": text}, {"type": "image", "base64": IMAGE, "mime_type": "image/png"}]
        asked = HumanMessage(content if turn.image else text, id=f"h{turn.number}")  # type: ignore[arg-type]
        given: Any = {"messages": [*self.histories[name][-1], asked]}
        # Of siblings one may fail before another has asked; what is left early may have been asked or not.
        undecided = turn.way in ("left", "cancelled") or (turn.together and turn.fault)
        gave: list[Any] = []
        done = False
        for attempt in (0, 1):
            config["configurable"]["attempt"] = attempt
            with asking(person, turn, "#cancelled" if undecided else "", attempt):
                try:
                    gave.append(await self._received(turn, graph, given, config))
                    done = turn.way not in ("left", "cancelled")
                    break
                except Exception as error:
                    if not turn.fault:
                        raise
                    gave.append(type(error) if undecided else error)
            if undecided or not turn.retried:
                break
            if self.app.named:
                given = None
                config = self._config(turn, person, 1)
                config["configurable"].pop("checkpoint_id", None)
        if done:
            self.at.pop(name, None)
            if not self.app.named:
                self.histories[name].append(gave[-1][-1]["messages"])
        elif good is None:
            self.threads[name] += 1
        else:
            self.at[name] = _checkpoint(good)
        return "cut short" if undecided else gave

    async def _received(self, turn: Turn, graph: Any, given: Any, config: Any) -> list[Any]:
        if turn.way == "cancelled":
            task = asyncio.create_task(graph.ainvoke(given, config))
            await asyncio.sleep(self.app.latency / 2)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            return []
        if turn.way == "left":
            if self.app.later:
                async with contextlib.aclosing(graph.astream(given, config, stream_mode="messages")) as stream:
                    async for _ in stream:
                        break
            else:
                with contextlib.closing(graph.stream(given, config, stream_mode="messages")) as stream:
                    next(stream, None)
            return []
        gave: list[Any] = []
        while True:
            if turn.way == "stream" and not turn.together:
                modes = [*self.streams, "values"]
                if self.app.later:
                    chunks = [one async for one in graph.astream(given, config, stream_mode=modes)]
                else:
                    chunks = list(graph.stream(given, config, stream_mode=modes))
                result = next(chunk for mode, chunk in reversed(chunks) if mode == "values" and "messages" in chunk)
                stopped = any("__interrupt__" in chunk for mode, chunk in chunks if mode == "values")
                gave += [chunks, result]
            else:
                result = await self._call(graph, "invoke", given, config)
                stopped = "__interrupt__" in result
                gave.append(result)
            if not stopped:
                return gave
            given = Command(resume="Yes.")
            config["configurable"].pop("checkpoint_id", None)

    # ------------------------------------------------------------------ the graph

    def _graph(self, person: Person) -> Any:
        """The graph of a person's tenant in this process."""
        tenant = person.tenant if self.by_tenant else ""
        key = self.process, tenant
        with self._lock:
            if key not in self.graphs:
                of = person if self.by_tenant else self.app.people[0]
                session = None if self.unmodified else self.session_of(of) if tenant else self.session_of_all()
                self.graphs[key] = self._built(of, session)
            return self.graphs[key]

    def _built(self, of: Person, session: Any) -> Any:
        def wrapped() -> Any:
            return wrap_model(self.llm, self.session_of_all() if self.common else session)

        llm = self.llm if session is None else self._everybodys("the model", wrapped)
        graph = StateGraph(State)
        for role in self.app.roles:
            graph.add_node(role.name, self._node(role, of, llm, session))
            graph.add_edge(role.name, "between")

        def between(state: State, config: RunnableConfig) -> Any:
            """The application's own words between two that speak."""
            turn, _ = self._whose(config)
            return {"messages": [HumanMessage("Next.", id=f"n{turn.number}-{len(state['messages'])}")]}

        def first(state: State, config: RunnableConfig) -> Any:
            turn, _ = self._whose(config)
            if turn.together:
                return [Send(role.name, state) for role in turn.roles]
            return turn.roles[0].name

        def then(state: State, config: RunnableConfig) -> Any:
            turn, _ = self._whose(config)
            said = sum(str(one.id).startswith(f"n{turn.number}-") for one in state["messages"])
            return END if turn.together or said >= len(turn.roles) else turn.roles[said].name

        names = [role.name for role in self.app.roles]
        graph.add_node("between", between)
        graph.add_conditional_edges(START, first, names)
        graph.add_conditional_edges("between", then, [*names, END])
        return graph.compile(checkpointer=self.savers.get(of.tenant if self.by_tenant else ""))

    def _whose(self, config: Any) -> tuple[Turn, Person]:
        given = config["configurable"]
        return self.app.turns[given["turn"]], next(one for one in self.app.people if one.name == given["person"])

    def _node(self, role: Role, of: Person, llm: Any, session: Any) -> Any:
        """A role as its kind of node, forked where there is a session."""
        kind = self.kinds[role.name]
        tools = [self._tool(one) for one in self.app.tools(role, of)]
        if kind in ("agent", "subgraph"):
            # A dynamic prompt: an agent's own is the same for everybody.
            ours = [PrefixMiddleware(session, role=role.name)] if session is not None and kind == "agent" else []

            def made() -> Any:
                return create_agent(llm, tools, middleware=[self._prompt(role), *ours], name=role.name)

            agent = made() if ours else self._everybodys(role.name, made)
            return agent if session is None or kind == "agent" else subgraph(agent, session, role=role.name)
        told = self._volatile if self.volatile and self.mode == "forked" and kind != "chain" else None
        fork = (lambda node: node) if session is None else forked(session, role=role.name, volatile=told)
        if kind == "chain":
            asks = llm.bind_tools(tools) if tools else llm

            def sent(state: State, config: RunnableConfig) -> Any:
                return self._sent(role, state["messages"], config)

            def done(answer: Any, config: RunnableConfig) -> Any:
                # One round: what it calls is answered, and not asked with again.
                return {"messages": [answer, *self._results(answer, config)]}

            return fork(self._everybodys(role.name, lambda: RunnableLambda(sent) | asks | RunnableLambda(done)))

        def function() -> Any:
            return self._asking(role, llm, tools, streams=kind == "streamed", generates=kind == "generator")

        node = self._everybodys(role.name, function)
        if kind != "inner":
            return fork(node)
        inner = StateGraph(State).add_node("within", fork(node))
        return inner.add_edge(START, "within").add_edge("within", END).compile()

    def _everybodys(self, name: str, make: Callable[[], Any]) -> Any:
        """What ``make`` gives, once for all graphs of this process where they share such things."""
        if self.nodes is None:
            return make()
        key = self.process, name
        if key not in self.nodes:
            self.nodes[key] = make()
        return self.nodes[key]

    def _asking(self, role: Role, llm: Any, tools: list[Any], *, streams: bool, generates: bool) -> Any:
        """A function that asks a model, in as many rounds as it takes."""

        def building() -> Any:
            return llm.with_structured_output({"title": "Built", "description": "What is built.", **SCHEMA})

        # A limit that docs/limits.md names: what a node binds while it runs is not known where its thread is resumed.
        early = building() if self.app.resumed else None

        async def asked(state: State, config: RunnableConfig) -> Any:
            turn, _ = self._whose(config)
            new: list[Any] = []
            if self.asks == "before" and not turn.together:
                new.append(HumanMessage(str(interrupt("May I?")), id=f"i{turn.number}-{role.name}"))
            asks = llm.bind_tools(tools) if tools else llm
            if turn.form:
                built = building() if early is None else early
                found = await self._call(built, "invoke", self._sent(role, [*state["messages"], *new], config))
                return {"messages": [*new, HumanMessage(str(found), id=f"f{turn.number}-{role.name}")]}
            for _ in range(turn.rounds + 1):
                sent = self._sent(role, [*state["messages"], *new], config)
                if streams and self.app.later:
                    answer = functools.reduce(operator.add, [one async for one in asks.astream(sent)])
                elif streams:
                    answer = functools.reduce(operator.add, asks.stream(sent))
                else:
                    answer = await self._call(asks, "invoke", sent)
                new += [answer, *self._results(answer, config)]
                if not answer.tool_calls:
                    break
            if self.asks == "after" and not turn.together:
                new.append(HumanMessage(str(interrupt("Is it good?")), id=f"i{turn.number}-{role.name}"))
            return {"messages": new}

        async def yielding(state: State, config: RunnableConfig) -> Any:
            yield await asked(state, config)

        def at_once(state: State, config: RunnableConfig) -> Any:
            return _driven(asked(state, config))

        def one_by_one(state: State, config: RunnableConfig) -> Any:
            yield _driven(asked(state, config))

        if self.app.later:
            return yielding if generates else asked
        return one_by_one if generates else at_once

    def _sent(self, role: Role, messages: list[Any], config: Any) -> list[Any]:
        turn, person = self._whose(config)
        sent = [SystemMessage(self.app.system(role, person)), *messages]
        if turn.volatile and not (self.volatile and self.mode == "forked" and self.kinds[role.name] != "chain"):
            sent.append(HumanMessage(self.app.retrieved(turn, person)))
        return sent

    def _volatile(self, state: Any) -> dict[str, str]:
        turn, person = self._whose(get_config())
        return {RETRIEVED: self.app.retrieved(turn, person)} if turn.volatile else {}

    def _results(self, answer: Any, config: Any) -> list[Any]:
        _, person = self._whose(config)
        return [
            ToolMessage(self.app.run_tool(call["name"], person, str(call["args"].get("at"))), tool_call_id=call["id"])
            for call in answer.tool_calls
        ]

    def _prompt(self, role: Role) -> Any:
        @dynamic_prompt
        def prompt(request: Any) -> str:
            return self.app.system(role, self._whose(get_config())[1])

        return prompt

    def _tool(self, one: Tool) -> Any:
        def run(at: str, config: RunnableConfig) -> str:
            return self.app.run_tool(one.name, self._whose(config)[1], at)

        return StructuredTool.from_function(run, name=one.name, description=one.says)

    def _model(self) -> Any:
        if self.app.api == "anthropic":
            made: Any = ChatAnthropic(
                model="claude-opus-4-1", base_url=self.provider.anthropic_base_url, api_key="k", max_retries=0,
            )  # fmt: skip
            clients = made._client, made._async_client
        else:
            made = ChatOpenAI(
                model="gpt-5.6", base_url=self.provider.openai_base_url, api_key="k", max_retries=0, stream_usage=True,
                use_responses_api=self.app.api == "openai-responses",
            )  # fmt: skip
            clients = made.root_client, made.root_async_client
        for client, later in zip(clients, (False, True), strict=True):
            client._client.event_hooks = hooks(later=later)
        return made

    def close(self) -> None:
        """Connections of this event loop cannot be used in another; LangChain itself keeps the newest functions."""
        for cached in (
            *(_cached_async_httpx_client, _cached_sync_httpx_client),
            *(_get_default_async_httpx_client, _get_default_httpx_client),
            get_function_nonlocals,
        ):
            cached.cache_clear()


def _checkpoint(name: str) -> dict[str, str]:
    return {"checkpoint_id": name, "checkpoint_ns": ""}


async def _got(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def _driven(coroutine: Any) -> Any:
    """What a coroutine gives that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("a synchronous application waits")
