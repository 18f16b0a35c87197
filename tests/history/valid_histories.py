"""Random histories that a provider takes, in three forms, and ledgers that speak of other histories than theirs."""

from __future__ import annotations

import json

from cacheprefix.history import Ledger
from cacheprefix.wire import structure_errors

APIS = ("openai-chat", "openai-responses", "anthropic")
FIELD = {"openai-chat": "messages", "openai-responses": "input", "anthropic": "messages"}
MODEL = {"openai-chat": "gpt-5.6", "openai-responses": "gpt-5.6", "anthropic": "claude-opus-5-5"}
TOOLS = ("shell", "file_read", "file_edit", "ask_human")
MARKS = "_cacheprefix"


def body_of(messages, api):
    """The least request around a history."""
    sent = [{name: value for name, value in message.items() if name != MARKS} for message in messages]
    return {"model": MODEL[api], FIELD[api]: sent}


def wrong_with(messages, api, *, thinking=False):
    """What a provider refuses it for; a model that takes no beginning of its answer, and thinks on Anthropic."""
    body = body_of(messages, api) | ({"thinking": {"type": "enabled"}} if thinking else {})
    return [str(error) for error in structure_errors(body, api, prefill=False, mid_system=False)]


def history(rng, api):
    """A valid history that ends with the user's words or with tool results; texts and results are often the same."""
    make = {"openai-chat": _Chat, "openai-responses": _Responses, "anthropic": _Anthropic}[api](rng)
    for _ in range(rng.randint(1, 9)):
        for _ in range(rng.choice((1, 1, 1, 2))):
            make.user(_words(rng, "question"))
        for _ in range(rng.choice((0, 0, 1, 1, 2, 4))):
            make.calls(rng.randint(1, 4))
        if rng.random() < 0.8:
            make.answer(_words(rng, "answer"))
    if rng.random() < 0.6 or make.ends_with_an_answer:
        make.user(_words(rng, "question"))
    assert not wrong_with(make.out, api), wrong_with(make.out, api)
    return make.out


def _words(rng, kind):
    size = rng.choice((1, 5, 40, 200))
    return f"{kind} {rng.randint(0, 4)} " + "lorem ipsum " * size


def _result(rng):
    start = rng.choice(("", "", "Error: it failed\n"))
    return start + f"result {rng.randint(0, 5)} " + "dolor sit " * rng.choice((1, 10, 100, 400))


class _Form:
    def __init__(self, rng):
        self.rng = rng
        self.out = []
        self.number = 0
        self.ends_with_an_answer = False

    def next(self):
        self.number += 1
        return self.number

    def marked(self, message):
        """Sometimes pinned, sometimes durable context."""
        chance = self.rng.random()
        if chance < 0.05:
            return {**message, MARKS: {"pinned": True}}
        if chance < 0.12 and message.get("role") == "user" and isinstance(message["content"], str):
            return {**message, MARKS: {"key": self.rng.choice("ab")}}
        return message


class _Chat(_Form):
    def user(self, text):
        self.out.append(self.marked({"role": "user", "content": text}))
        self.ends_with_an_answer = False

    def answer(self, text):
        message = {"role": "assistant", "content": text}
        if self.rng.random() < 0.3:
            message["reasoning_content"] = "hmm " * 30
        self.out.append(self.marked(message))
        self.ends_with_an_answer = True

    def calls(self, count):
        # Ids are used again by later messages, which OpenAI allows.
        names = [(f"call_{n}", self.rng.choice(TOOLS)) for n in range(count)]
        listed = [
            {
                "id": id_,
                "type": "function",
                "function": {"name": tool, "arguments": json.dumps({"q": self.rng.randint(0, 3)})},
            }
            for id_, tool in names
        ]
        self.out.append({"role": "assistant", "content": self.rng.choice((None, "I look.")), "tool_calls": listed})
        results = [{"role": "tool", "tool_call_id": id_, "content": _result(self.rng)} for id_, _ in names]
        self.rng.shuffle(results)
        self.out += [self.marked(result) for result in results]
        self.ends_with_an_answer = False


class _Responses(_Form):
    def reasoning(self, share):
        if self.rng.random() < share:
            self.out.append(
                {"type": "reasoning", "id": f"rs_{self.next()}", "summary": [], "encrypted_content": "E" * 60}
            )

    def said(self, text):
        kind = {"type": "output_text", "text": text, "annotations": []}
        return {"type": "message", "role": "assistant", "id": f"msg_{self.next()}", "content": [kind]}

    def user(self, text):
        self.out.append(self.marked({"role": "user", "content": text}))
        self.ends_with_an_answer = False

    def answer(self, text):
        self.reasoning(0.5)
        self.out.append(self.marked(self.said(text)))
        self.ends_with_an_answer = True

    def calls(self, count):
        self.reasoning(0.7)
        if self.rng.random() < 0.3:
            self.out.append(self.said("I look."))
        names = []
        for n in range(count):
            if n:
                self.reasoning(0.2)
            names.append(f"call_{n}")
            arguments = json.dumps({"q": self.rng.randint(0, 3)})
            self.out.append(
                {"type": "function_call", "id": f"fc_{self.next()}", "call_id": names[-1], "arguments": arguments}
                | {"name": self.rng.choice(TOOLS)}
            )
        results = [{"type": "function_call_output", "call_id": id_, "output": _result(self.rng)} for id_ in names]
        self.rng.shuffle(results)
        self.out += [self.marked(result) for result in results]
        self.ends_with_an_answer = False


class _Anthropic(_Form):
    def thinking(self, share):
        if self.rng.random() < share:
            return [{"type": "thinking", "thinking": "hmm " * 30, "signature": "s"}]
        return []

    def user(self, text):
        content = text if self.rng.random() < 0.5 else [{"type": "text", "text": text}]
        self.out.append(self.marked({"role": "user", "content": content}))
        self.ends_with_an_answer = False

    def answer(self, text):
        self.out.append({"role": "assistant", "content": [*self.thinking(0.3), {"type": "text", "text": text}]})
        self.ends_with_an_answer = True

    def calls(self, count):
        blocks = self.thinking(0.5)
        if self.rng.random() < 0.4:
            blocks.append({"type": "text", "text": "I look."})
        names = [f"toolu_{self.next()}" for _ in range(count)]
        blocks += [
            {"type": "tool_use", "id": id_, "name": self.rng.choice(TOOLS), "input": {"q": self.rng.randint(0, 3)}}
            for id_ in names
        ]
        self.out.append({"role": "assistant", "content": blocks})
        results = [{"type": "tool_result", "tool_use_id": id_, "content": _result(self.rng)} for id_ in names]
        self.rng.shuffle(results)
        if count > 1 and self.rng.random() < 0.3:
            # One user message a result, which the API reads as one turn.
            self.out += [{"role": "user", "content": [result]} for result in results]
        elif self.rng.random() < 0.3:
            self.out.append({"role": "user", "content": [*results, {"type": "text", "text": _words(self.rng, "also")}]})
        else:
            self.out.append(self.marked({"role": "user", "content": results}))
        self.ends_with_an_answer = False


def edited(rng, messages, api):
    """The history as an application may hand it in later: trimmed, rewound, a turn taken out or put in."""
    for _ in range(20):
        out = list(messages)
        for _ in range(rng.randint(1, 2)):
            cut = rng.randrange(len(out) + 1)
            what = rng.randrange(4)
            if what == 0:
                out = out[cut:]
            elif what == 1:
                out = out[:cut]
            elif what == 2:
                del out[cut : cut + rng.randint(1, 3)]
            else:
                out.insert(cut, {"role": "user", "content": _words(rng, "question")})
        if out and not wrong_with(out, api):
            return out
    return messages


def tampered(rng, ledger):
    """A ledger as an older version may have written it: texts and ends of removed runs at other messages."""
    data = json.loads(ledger.dumps())
    actions = data.get("actions", {})
    places = sorted(
        {*actions, *(value[2:] for value in actions.values() if value.startswith("r:"))} | set(data["known"])
    )
    del data["known"]
    for address, value in list(actions.items()):
        if rng.random() < 0.3:
            if value.startswith("r:"):
                actions[address] = f"r:{rng.choice(places)}"
            actions[rng.choice(places)] = actions.pop(address)
    inserts = data.get("inserts", {})
    for address in list(inserts):
        if rng.random() < 0.6:
            inserts[rng.choice(places)] = inserts.pop(address)
    return Ledger.from_json(data)
