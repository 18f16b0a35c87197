"""Generated histories in all message forms: parallel calls, missing results, pictures, odd text, reused ids."""

from __future__ import annotations

import json

from hypothesis import strategies as st

PICTURE = {"openai-chat": {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 400}}}
PICTURE["anthropic"] = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": "A" * 400},
}
TOOLS = ("shell", "file_read", "file_edit", "ask_human", "web_search")
SHORT = st.one_of(
    st.sampled_from(["ok", "", "done", "日本語のテキスト", "a\ud800b", "naïve ☃"]),
    st.text(st.characters(codec=None), max_size=30),
)
LONG = st.builds(
    lambda seed, size: "\n".join(f"line {n} of {seed}: " + "lorem ipsum " * 4 for n in range(size)),
    st.integers(0, 40),
    st.integers(1, 60),
)
TEXT = st.one_of(SHORT, LONG)
RESULT = st.one_of(
    SHORT,
    LONG,
    LONG.map(lambda text: "Error: it broke\n" + text),
    st.integers(1, 200).map(lambda n: json.dumps([{"id": i, "name": f"row {i}"} for i in range(n)])),
)


@st.composite
def steps(draw):
    """One abstract history: a list of ("user", text), ("call", text, thinking, [(id, tool, args, result)])."""
    out = []
    for _ in range(draw(st.integers(0, 7))):
        out.append(("user", draw(TEXT), draw(st.booleans())))
        for _ in range(draw(st.integers(0, 3))):
            calls = [
                (
                    # Three ids for a whole history: they are used again all the time.
                    f"call_{n}",
                    draw(st.sampled_from(TOOLS)),
                    json.dumps({"q": draw(st.integers(0, 3))}),
                    draw(st.one_of(st.none(), RESULT)) if draw(st.integers(0, 9)) == 0 else draw(RESULT),
                    draw(st.integers(0, 9)) == 0,
                )
                for n in range(draw(st.integers(1, 3)))
            ]
            out.append(("call", draw(SHORT), draw(st.booleans()), calls))
        if draw(st.booleans()):
            out.append(("answer", draw(TEXT), draw(st.booleans())))
    return out


def written(history, api):
    """An abstract history as messages of one form."""
    return {"openai-chat": _openai, "openai-responses": _responses, "anthropic": _anthropic}[api](history)


def histories(api):
    """Histories in one form."""
    return steps().map(lambda history: written(history, api))


def pairs(messages, api):
    """(position of call, id) and (position of result, id) of a history, in order."""
    calls, results = [], []
    for index, message in enumerate(messages):
        if api == "openai-responses":
            kind = message.get("type")
            calls += [(index, message["call_id"])] if kind == "function_call" else []
            results += [(index, message["call_id"])] if kind == "function_call_output" else []
            continue
        if api == "openai-chat":
            calls += [(index, call["id"]) for call in message.get("tool_calls") or ()]
            if message["role"] == "tool":
                results.append((index, message["tool_call_id"]))
            continue
        content = message["content"] if isinstance(message["content"], list) else []
        calls += [(index, block["id"]) for block in content if block["type"] == "tool_use"]
        results += [(index, block["tool_use_id"]) for block in content if block["type"] == "tool_result"]
    return calls, results


def unpaired(messages, api):
    """Results with no open call before them, and calls with no result after them."""
    waiting, orphans, unanswered = set(), 0, 0
    calls, results = pairs(messages, api)
    events = sorted([(index, 1, id_) for index, id_ in calls] + [(index, 0, id_) for index, id_ in results])
    for _, is_call, id_ in events:
        if is_call:
            unanswered += id_ in waiting
            waiting.add(id_)
        elif id_ in waiting:
            waiting.discard(id_)
        else:
            orphans += 1
    return orphans, unanswered + len(waiting)


def is_empty(message):
    """Whether a provider would refuse the message as empty."""
    content = message.get("content")
    if message.get("tool_calls") or message.get("role", "tool") == "tool":
        return False
    return content in (None, [])


def _openai(history):
    out = []
    for step in history:
        if step[0] == "user":
            _, text, picture = step
            content = [{"type": "text", "text": text}, PICTURE["openai-chat"]] if picture else text
            out.append({"role": "user", "content": content})
        elif step[0] == "answer":
            message = {"role": "assistant", "content": step[1]}
            if step[2]:
                message["reasoning_content"] = "let me think " * 20
            out.append(message)
        else:
            _, text, thinking, calls = step
            message = {
                "role": "assistant",
                "content": text,
                "tool_calls": [
                    {"id": id_, "type": "function", "function": {"name": tool, "arguments": args}}
                    for id_, tool, args, _, _ in calls
                ],
            }
            if thinking:
                message["reasoning_content"] = "let me think " * 20
            out.append(message)
            for id_, _, _, result, picture in calls:
                if result is not None:
                    content = [{"type": "text", "text": result}, PICTURE["openai-chat"]] if picture else result
                    out.append({"role": "tool", "tool_call_id": id_, "content": content})
    return out


def _responses(history):
    out = []
    picture_of = {"type": "input_image", "image_url": "data:image/png;base64," + "A" * 400}
    for number, step in enumerate(history):
        thought = {"type": "reasoning", "id": f"rs_{number}", "summary": [], "encrypted_content": "A" * 80}
        if step[0] == "user":
            content = [{"type": "input_text", "text": step[1]}, picture_of] if step[2] else step[1]
            out.append({"role": "user", "content": content})
            continue
        out += [thought] if step[2] else []
        if step[0] == "answer":
            out.append({"type": "message", "role": "assistant", "content": step[1]})
            continue
        calls = step[3]
        for id_, tool, args, _, _ in calls:
            out.append({"type": "function_call", "call_id": id_, "name": tool, "arguments": args})
        for id_, _, _, result, picture in calls:
            if result is not None:
                output = [{"type": "input_text", "text": result}, picture_of] if picture else result
                out.append({"type": "function_call_output", "call_id": id_, "output": output})
    return out


def _anthropic(history):
    out = []
    for step in history:
        if step[0] == "user":
            _, text, picture = step
            content = [{"type": "text", "text": text}, PICTURE["anthropic"]] if picture else text
            out.append({"role": "user", "content": content})
        elif step[0] == "answer":
            blocks = [{"type": "thinking", "thinking": "let me think " * 20, "signature": "s"}] if step[2] else []
            out.append({"role": "assistant", "content": [*blocks, {"type": "text", "text": step[1]}]})
        else:
            _, text, thinking, calls = step
            blocks = [{"type": "thinking", "thinking": "let me think " * 20, "signature": "s"}] if thinking else []
            if text:
                blocks.append({"type": "text", "text": text})
            blocks += [
                {"type": "tool_use", "id": id_, "name": tool, "input": json.loads(args)}
                for id_, tool, args, _, _ in calls
            ]
            out.append({"role": "assistant", "content": blocks})
            results = [
                {
                    "type": "tool_result",
                    "tool_use_id": id_,
                    "content": [{"type": "text", "text": result}, PICTURE["anthropic"]] if picture else result,
                }
                for id_, _, _, result, picture in calls
                if result is not None
            ]
            if results:
                out.append({"role": "user", "content": results})
    return out
