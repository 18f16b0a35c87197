"""Applications that are loops over request bodies, for SDKs; each person's history is a list of messages."""

from __future__ import annotations

import asyncio
import contextvars
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

from cacheprefix import SharedPrefix
from cacheprefix.wire.answers import result_messages, user_message
from cacheprefix.wire.apis import chat_of
from tests.trial.applications import IMAGE, RETRIEVED, SCHEMA, Person, Role, Tool, Turn
from tests.trial.playing import Driver


class Loops(Driver):
    """The loop; who derives from it has the clients and asks."""

    errors: ClassVar[tuple[type[Exception], ...]] = ()
    """What the application takes an error of its provider for."""

    @property
    def model(self) -> str:
        """The model's name."""
        raise NotImplementedError

    @property
    def form(self) -> str:
        """The API in whose form bodies are."""
        return self.app.api

    def prefix(self) -> SharedPrefix:
        """With the tools, where state is loaded before any request has shown them."""
        tools = {one["name"]: one for role in self.app.roles for one in map(_declared, role.tools)}
        return SharedPrefix(system=self.app.handbook, tools=list(tools.values()) if self.app.resumed else [])

    async def play(self, pool: ThreadPoolExecutor | None = None) -> Any:
        """Each turn's people at once: as tasks, or in the threads of a pool."""
        self.histories: dict[str, list[Any]] = {person.name: [] for person in self.app.people}
        self.bounds: dict[str, list[int]] = {person.name: [] for person in self.app.people}
        """Where each one's turns begin."""
        saw: dict[str, list[Any]] = {person.name: [] for person in self.app.people}
        for turn in self.app.turns:
            self._before(turn)
            if pool is None:
                gave = await asyncio.gather(*(self._ask(turn, person) for person in turn.people))
            else:
                # Each in a thread with a loop that never waits: the code is the same for both kinds of client.
                asked = [pool.submit(asyncio.run, self._ask(turn, person)) for person in turn.people]
                gave = [one.result() for one in asked]
            for person, one in zip(turn.people, gave, strict=True):
                saw[person.name].append(one)
        return saw

    async def request(
        self, turn: Turn, person: Person, role: Role, history: list[Any], attempt: int
    ) -> tuple[Any, Any]:
        """What was seen of one request, and the answer; None where it did not come to its end."""
        raise NotImplementedError

    def _before(self, turn: Turn) -> None:
        """What a turn begins with: state that is saved and loaded, a history that goes back or begins anew."""
        if turn.act == "resume" and self.resumes and not self.unmodified:
            saved = {person: self.session_of(person).conversation(person.thread).dumps() for person in self.app.people}
            self.process += 1
            for person, text in saved.items():
                self.session_of(person).conversation(person.thread).restore(text)
        for person in turn.people:
            history, bounds = self.histories[person.name], self.bounds[person.name]
            if turn.act == "rewind" and bounds:
                back = self.app.back(turn, len(bounds))
                del history[bounds[back] :], bounds[back:]
            elif turn.act == "reset":
                history.clear()
                bounds.clear()
                if self.app.named and not self.unmodified:
                    self.session_of(person).forget(person.thread)
            bounds.append(len(history))

    async def _ask(self, turn: Turn, person: Person) -> Any:
        history = self.histories[person.name]
        text = self.app.question(turn, person)
        history.append({"role": "user", "content": self._with_image(text)} if turn.image else user_message(text))
        gave = []
        if turn.together:
            gave = await self._together(turn, person, history)
        else:
            for role in turn.roles:
                gave.append(await self._answer(turn, person, role, history))
                history.append(user_message("Next."))
        return gave

    async def _together(self, turn: Turn, person: Person, history: list[Any]) -> list[Any]:
        """All roles at once, each on a copy of the history; what they say comes behind it in order."""
        copies = [list(history) for _ in turn.roles]
        calls = [self._answer(turn, person, *pair) for pair in zip(turn.roles, copies, strict=True)]
        if self.app.later:
            gave = await asyncio.gather(*calls)
        else:
            contexts = [contextvars.copy_context() for _ in calls]
            with ThreadPoolExecutor(len(calls)) as pool:
                asked = [pool.submit(one.run, asyncio.run, call) for one, call in zip(contexts, calls, strict=True)]
                gave = [one.result() for one in asked]
        for role, one in zip(turn.roles, copies, strict=True):
            history.append(user_message(f"{role.name} is done: {len(one)} messages."))
        return list(gave)

    async def _answer(self, turn: Turn, person: Person, role: Role, history: list[Any]) -> list[Any]:
        """A role's answer, after its rounds of tools; what the application saw of each request."""
        gave: list[Any] = []
        for attempt in (0, 1):
            try:
                for _ in range(turn.rounds + 1):
                    seen, answer = await self.request(turn, person, role, history, attempt)
                    gave.append(seen)
                    if answer is None:
                        return gave
                    history += answer.messages
                    if not answer.calls:
                        return gave
                    results = [
                        self.app.run_tool(one.name, person, str(one.arguments.get("at"))) for one in answer.calls
                    ]
                    done = [(call, text, False) for call, text in zip(answer.calls, results, strict=True)]
                    history += result_messages(done, self.form)
                return gave
            except self.errors as error:  # noqa: PERF203 - asked again at most once
                gave.append([type(error), str(error), getattr(error, "status_code", None)])
                if not turn.retried:
                    return gave
        return gave

    def body(self, turn: Turn, person: Person, role: Role, history: list[Any]) -> dict[str, Any]:
        api, shape = self.form, chat_of(self.form)
        sent = list(history)
        if turn.volatile and not self.apart:
            sent.append(user_message(self.app.retrieved(turn, person)))
        body: dict[str, Any] = {"model": self.model}
        if shape.FIELDS.system is None:
            sent.insert(0, {"role": "system", "content": self.app.system(role, person)})
        else:
            body[shape.FIELDS.system] = self.app.system(role, person)
        body[shape.FIELDS.history] = sent
        if api == "anthropic":
            body["max_tokens"] = 2_000
        if api == "openai-responses":
            body["store"] = False
        if turn.form:
            return body | self._form()
        tools = [shape.tool(_declared(one)) for one in self.app.tools(role, person)]
        return {**body, "tools": tools} if tools else body

    def volatile(self, turn: Turn, person: Person) -> dict[str, str]:
        """Text of this turn alone, where it stands in no body."""
        return {RETRIEVED: self.app.retrieved(turn, person)} if turn.volatile and self.apart else {}

    def _form(self) -> dict[str, Any]:
        named = {"name": "built", "schema": SCHEMA, "strict": True}
        if self.form == "openai-chat":
            return {"response_format": {"type": "json_schema", "json_schema": named}}
        if self.form == "openai-responses":
            return {"text": {"format": {"type": "json_schema", **named}}}
        return {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}

    def _with_image(self, text: str) -> list[Any]:
        url = f"data:image/png;base64,{IMAGE}"
        if self.form == "anthropic":
            source = {"type": "base64", "media_type": "image/png", "data": IMAGE}
            return [{"type": "text", "text": text}, {"type": "image", "source": source}]
        if self.form == "openai-responses":
            return [{"type": "input_text", "text": text}, {"type": "input_image", "image_url": url}]
        return [{"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": url}}]


def _declared(tool: Tool) -> dict[str, Any]:
    at = {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}
    return {"name": tool.name, "description": tool.says, "parameters": at}
