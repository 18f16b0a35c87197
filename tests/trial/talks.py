"""Applications of agents that talk, one conversation a person: what is common to drivers of agent frameworks."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any

from tests.trial.applications import RETRIEVED, Person, Role, Turn, asking, whose
from tests.trial.playing import Driver


class Talks(Driver):
    """A driver says what a conversation is, how it is saved and loaded, and asks an agent."""

    talks: dict[str, Any]
    """Each person's conversation, in the framework's own form."""
    for_all = False
    """Whether agents are made once, and serve several people at the same time."""

    async def begin(self) -> None:
        """Make the clients, and the agents of this ``process``; called again when all is made anew."""
        raise NotImplementedError

    async def end(self) -> None:
        """Close the clients."""
        raise NotImplementedError

    def new(self, person: Person) -> Any:
        """An empty conversation."""
        raise NotImplementedError

    async def save(self, talk: Any) -> Any:
        """A conversation as an application stores it."""
        raise NotImplementedError

    async def load(self, person: Person, saved: Any) -> Any:
        """The conversation that was stored, going on in this process."""
        raise NotImplementedError

    def dumps(self, person: Person) -> str:
        """Decisions that the framework's own state does not hold; empty where it does."""
        del person
        return ""

    async def ask(self, turn: Turn, person: Person, role: Role, text: str, talk: Any) -> Any:
        """What the application saw of one agent's answer; the conversation goes on with it."""
        raise NotImplementedError

    def of(self, person: Person) -> str:
        """Whose a person's agents are: the tenant's, where these are made once for all."""
        return person.tenant if self.for_all else person.name

    def now(self, person: Person) -> Person:
        """Who asks, where a person's agents serve others too."""
        return self._asks()[1] if self.for_all else person

    def found(self) -> dict[str, str]:
        """Volatile text of who asks."""
        turn, person = self._asks()
        return {RETRIEVED: self.app.retrieved(turn, person)} if turn.volatile else {}

    def _asks(self) -> tuple[Turn, Person]:
        name, number = whose()["x-cacheprefix-session"].split("/")[:2]
        return self.app.turns[int(number)], next(one for one in self.app.people if one.name == name)

    def run(self) -> Any:
        """Each turn's people at once, or one after the other."""
        return self.later(self._main())

    async def _main(self) -> Any:
        self.rng = random.Random(f"{self.framework}/{self.app.seed}")
        self.for_all = random.Random(f"for all/{self.app.seed}").random() < 0.5
        await self.begin()
        self.talks = {person.name: self.new(person) for person in self.app.people}
        states: dict[str, list[Any]] = {person.name: [] for person in self.app.people}
        saw: dict[str, list[Any]] = {person.name: [] for person in self.app.people}
        try:
            for turn in self.app.turns:
                if turn.act == "resume" and self.resumes:
                    saved = {name: await self.save(talk) for name, talk in self.talks.items()}
                    decided = {one.name: "" if self.unmodified else self.dumps(one) for one in self.app.people}
                    self.process += 1
                    await self.begin()
                    for person in self.app.people:
                        if decided[person.name]:
                            self.session_of(person).conversation(person.thread).restore(decided[person.name])
                        self.talks[person.name] = await self.load(person, saved[person.name])
                asked = [self._turn(turn, person, states[person.name]) for person in turn.people]
                gave = await asyncio.gather(*asked) if self.app.later else [await one for one in asked]
                for person, one in zip(turn.people, gave, strict=True):
                    saw[person.name].append(one)
            return saw
        finally:
            await self.end()
            self.talks.clear()

    async def _turn(self, turn: Turn, person: Person, states: list[Any]) -> Any:
        if turn.act == "rewind" and states:
            back = self.app.back(turn, len(states))
            self.talks[person.name] = await self.load(person, states[back])
            if states[back] == states[0]:
                # Nothing had been said by then.
                self._forgets(person)
            del states[back:]
        elif turn.act == "reset":
            self.talks[person.name] = self.new(person)
            states.clear()
            self._forgets(person)
        states.append(await self.save(self.talks[person.name]))
        gave: list[Any] = []
        for attempt in (0, 1):
            try:
                gave.append(await self._asked(turn, person, attempt, states[-1]))
                return gave
            except Exception as error:  # noqa: PERF203 - asked again at most once
                gave.append([type(error), str(error).splitlines()[:1]])
                # What of it had come into the conversation, the framework decides.
                self.talks[person.name] = await self.load(person, states[-1])
                if not turn.retried:
                    return gave
        return gave

    def _forgets(self, person: Person) -> None:
        """Say that a conversation that the application named begins anew."""
        if self.app.named and not self.unmodified:
            self.session_of(person).forget(person.thread)

    async def _asked(self, turn: Turn, person: Person, attempt: int, state: Any) -> Any:
        text = self.app.question(turn, person)
        if turn.way == "cancelled":
            with asking(person, turn, "#cancelled", attempt):
                task = asyncio.create_task(self.ask(turn, person, turn.roles[0], text, self.talks[person.name]))
                await asyncio.sleep(self.app.latency / 2)
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await task
            self.talks[person.name] = await self.load(person, state)
            return "cancelled"
        if turn.together:
            # All on what was said by then; none goes on from another's answer.
            copies = [await self.load(person, state) for _ in turn.roles]
            asked = [self._branch(turn, person, *pair, text, attempt) for pair in zip(turn.roles, copies, strict=True)]
            gave = await asyncio.gather(*asked, return_exceptions=True)
            for one in gave:
                if isinstance(one, BaseException):
                    raise one
            return gave
        with asking(person, turn, "", attempt):
            texts = [text, *(f"{role.name}, it is your turn." for role in turn.roles[1:])]
            pairs = zip(turn.roles, texts, strict=True)
            return [await self.ask(turn, person, role, said, self.talks[person.name]) for role, said in pairs]

    async def _branch(self, turn: Turn, person: Person, role: Role, talk: Any, text: str, attempt: int) -> Any:
        """One of several roles that are asked at once: whom it asks itself, another branch may be asking too."""
        with asking(person, turn, f"#{role.name}", attempt):
            return await self.ask(turn, person, role, text, talk)
