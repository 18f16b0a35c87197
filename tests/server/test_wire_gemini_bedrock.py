"""Gemini's and Bedrock's wire forms, over HTTP; with their SDKs where those are installed."""

from __future__ import annotations

import json
from urllib.parse import quote

import httpx
import pytest

from cacheprefix.server import Latency, Queue, Reply, Rule, Rules, SimulatedProvider, ToolCall, wire_gemini

MODEL = "gemini-2.5-flash"
LONG = "handbook " * 900
CALLS = Reply("I look twice.", (ToolCall("look", {"path": "a"}), ToolCall("look", {"path": "b"})))
SCRIPT = Rules([Rule("look", CALLS, round=0), Rule("", Reply("Done."))])
DECLARED = [{"functionDeclarations": [{"name": "look", "parameters": {"type": "OBJECT", "properties": {}}}]}]


def generate(provider: SimulatedProvider, text: str, *, verb: str = "generateContent", **fields) -> httpx.Response:
    """One generateContent request."""
    body = {"contents": [{"role": "user", "parts": [{"text": text}]}], **fields}
    url = f"{provider.url}/v1beta/models/{MODEL}:{verb}"
    return httpx.post(url, json=body, headers={"x-goog-api-key": "k"}, timeout=20)


# ---------------------------------------------------------------------------------------------- Gemini


def test_gemini_reports_cached_content_inside_the_prompt_count(serve):
    """PromptTokenCount includes cachedContentTokenCount (research table, row gemini-implicit)."""
    provider = serve("gemini-implicit")
    first, second = (generate(provider, LONG).json()["usageMetadata"] for _ in range(2))
    assert "cachedContentTokenCount" not in first
    assert second["cachedContentTokenCount"] == second["promptTokenCount"] == provider.requests[0].prompt.tokens


def test_gemini_calls_and_finish_reason(serve):
    """Function calls are parts with ids and arguments as objects."""
    answer = generate(serve("exact", SCRIPT), "Please look.", tools=DECLARED).json()
    parts = answer["candidates"][0]["content"]["parts"]
    assert [part["functionCall"]["args"] for part in parts[1:]] == [{"path": "a"}, {"path": "b"}]
    assert answer["candidates"][0]["finishReason"] == "STOP"


def test_gemini_streams_server_sent_events(serve):
    """StreamGenerateContent with alt=sse: parts one by one, usage in the last."""
    answer = generate(serve("exact", SCRIPT), "Please look.", verb="streamGenerateContent", tools=DECLARED)
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]
    parts = [part for event in events for part in event["candidates"][0]["content"]["parts"]]
    assert "".join(part.get("text", "") for part in parts) == "I look twice."
    assert len([part for part in parts if "functionCall" in part]) == 2
    assert ["usageMetadata" in event for event in events] == [False] * (len(events) - 1) + [True]


@pytest.mark.parametrize(
    ("mode", "allowed", "calls"),
    [("AUTO", None, 2), ("NONE", None, 0), ("ANY", ["other"], 1)],
)
def test_gemini_obeys_function_calling_config(serve, mode, allowed, calls):
    """toolConfig.functionCallingConfig."""
    tools = [{"functionDeclarations": [*DECLARED[0]["functionDeclarations"], {"name": "other"}]}]
    config = {"functionCallingConfig": {"mode": mode, **({"allowedFunctionNames": allowed} if allowed else {})}}
    answer = generate(serve("exact", SCRIPT), "Please look.", tools=tools, toolConfig=config).json()
    parts = answer["candidates"][0]["content"]["parts"]
    assert len([part for part in parts if "functionCall" in part]) == calls


def test_gemini_structured_output_follows_the_schema(serve):
    """ResponseSchema with Google's upper-case types."""
    schema = {"type": "OBJECT", "properties": {"n": {"type": "INTEGER"}}, "required": ["n"]}
    config = {"responseMimeType": "application/json", "responseSchema": schema}
    answer = generate(serve("exact"), "x", generationConfig=config).json()
    assert json.loads(answer["candidates"][0]["content"]["parts"][0]["text"]) == {"n": 1}


def named(provider: SimulatedProvider, tokens: int = 2000, **fields) -> httpx.Response:
    """One request for a named cache."""
    body = {"model": f"models/{MODEL}", "contents": [{"role": "user", "parts": [{"text": "word" * tokens}]}], **fields}
    return httpx.post(f"{provider.url}/v1beta/cachedContents", json=body, headers={"x-goog-api-key": "k"})


def test_a_named_cache_is_read_whole_by_requests_that_name_it(serve):
    """CachedContent (https://ai.google.dev/gemini-api/docs/caching, row gemini-explicit)."""
    provider = serve("gemini-explicit")
    made = named(provider).json()
    usage = generate(provider, "x", cachedContent=made["name"]).json()["usageMetadata"]
    assert usage["cachedContentTokenCount"] == made["usageMetadata"]["totalTokenCount"] == 2003
    assert usage["promptTokenCount"] == 2003 + 4


def test_a_named_cache_lives_for_its_ttl_an_hour_by_default():
    """Google: "if not set, the TTL defaults to 1 hour"; a cache that is gone answers 403."""
    now = [0.0]
    with SimulatedProvider("gemini-explicit", clock=lambda: now[0]) as provider:
        default, short = named(provider).json()["name"], named(provider, ttl="60s").json()["name"]
        statuses = []
        for now[0] in (60.0, 61.0, 3600.0, 3601.0):
            statuses.append([generate(provider, "x", cachedContent=name).status_code for name in (default, short)])
    assert statuses == [[200, 200], [200, 403], [200, 403], [403, 403]]


def test_a_named_cache_below_the_minimum_is_refused(serve):
    """1,024 tokens for gemini-2.5-flash (LiteLLM, google-adk)."""
    answer = named(serve("gemini-explicit"), tokens=1000)
    assert answer.status_code == 400
    assert "min_total_token_count=1024" in answer.json()["error"]["message"]


def test_named_caches_are_listed_prolonged_and_deleted(serve):
    """The resource's own methods."""
    provider = serve("gemini-explicit")
    name = named(provider).json()["name"]
    base, headers = f"{provider.url}/v1beta", {"x-goog-api-key": "k"}
    listed = httpx.get(f"{base}/cachedContents", headers=headers).json()["cachedContents"]
    assert [one["name"] for one in listed] == [name]
    before = httpx.get(f"{base}/{name}", headers=headers).json()["expireTime"]
    after = httpx.patch(f"{base}/{name}", json={"ttl": "7200s"}, headers=headers).json()["expireTime"]
    assert after > before
    assert httpx.get(f"{base}/{name}", headers={"x-goog-api-key": "other"}).status_code == 403
    assert httpx.delete(f"{base}/{name}", headers=headers).json() == {}
    assert httpx.get(f"{base}/{name}", headers=headers).status_code == 403


def test_gemini_errors_have_googles_form(serve):
    """An unreadable body names its path, an unknown method is not found."""
    provider = serve("exact")
    broken = httpx.post(f"{provider.url}/v1beta/models/{MODEL}:generateContent", json={"contents": [3]})
    assert (broken.status_code, broken.json()["error"]["status"]) == (400, "INVALID_ARGUMENT")
    assert "contents[0]" in broken.json()["error"]["message"] or "messages[0]" in broken.json()["error"]["message"]
    assert generate(provider, "x", verb="embedContent").status_code == 404


def test_gemini_counts_tokens(serve):
    """CountTokens."""
    assert generate(serve("exact"), "word" * 10, verb="countTokens").json() == {"totalTokens": 13}


def test_the_google_sdk_reads_it_all(serve):
    """google-genai: whole, streamed, and with a named cache."""
    genai = pytest.importorskip("google.genai")
    provider = serve("gemini-implicit", Queue(["Hello there, this is a longer answer."]))
    client = genai.Client(api_key="k", http_options={"base_url": provider.url})
    answers = [client.models.generate_content(model=MODEL, contents=LONG) for _ in range(2)]
    assert answers[0].text == "Hello there, this is a longer answer."
    assert answers[1].usage_metadata.cached_content_token_count == answers[1].usage_metadata.prompt_token_count
    chunks = list(client.models.generate_content_stream(model=MODEL, contents="x"))
    assert "".join(chunk.text for chunk in chunks) == answers[0].text
    cache = client.caches.create(model=MODEL, config={"contents": LONG, "ttl": "300s"})
    named_answer = client.models.generate_content(model=MODEL, contents="x", config={"cached_content": cache.name})
    assert named_answer.usage_metadata.cached_content_token_count == cache.usage_metadata.total_token_count
    client.close()


# --------------------------------------------------------------------------------------------- Bedrock

CLAUDE = "us.anthropic.claude-sonnet-4-5-20250929-v1:0"


def converse(provider: SimulatedProvider, **fields) -> httpx.Response:
    """One Converse request."""
    content = [{"text": LONG}, {"cachePoint": {"type": "default"}}, {"text": "Please look."}]
    body = {"messages": [{"role": "user", "content": content}], **fields}
    return httpx.post(f"{provider.url}/model/{quote(CLAUDE, safe='')}/converse", json=body, timeout=20)


def test_bedrock_keeps_read_written_and_uncached_apart(serve):
    """InputTokens leaves out cacheReadInputTokens and cacheWriteInputTokens (research table, row bedrock)."""
    provider = serve("bedrock")
    first, second = (converse(provider).json()["usage"] for _ in range(2))
    assert (first["cacheReadInputTokens"], first["cacheWriteInputTokens"], first["inputTokens"]) == (0, 2028, 3)
    assert first["cacheDetails"] == [{"ttl": "5m", "inputTokens": 2028}]
    assert (second["cacheReadInputTokens"], second["cacheWriteInputTokens"], second["inputTokens"]) == (2028, 0, 3)
    assert provider.requests[0].model == CLAUDE


def test_bedrock_calls_tools(serve):
    """ToolUse blocks, stopReason tool_use, toolChoice obeyed."""
    spec = {"toolSpec": {"name": "look", "inputSchema": {"json": {"type": "object", "properties": {}}}}}
    answer = converse(serve("bedrock", SCRIPT), toolConfig={"tools": [spec]}).json()
    uses = [block["toolUse"]["input"] for block in answer["output"]["message"]["content"] if "toolUse" in block]
    assert (uses, answer["stopReason"]) == ([{"path": "a"}, {"path": "b"}], "tool_use")


def test_bedrock_refuses_a_fifth_cache_point(serve):
    """At most 4; the error has Amazon's form."""
    points = [block for n in range(5) for block in ({"text": f"{n}" + LONG}, {"cachePoint": {"type": "default"}})]
    answer = converse(serve("bedrock"), messages=[{"role": "user", "content": points}])
    assert answer.status_code == 400
    assert "maximum of 4" in answer.json()["message"]
    assert answer.headers["x-amzn-errortype"] == "ValidationException"


def test_botocore_reads_it_whole_and_streamed(serve):
    """boto3: converse and converse_stream, with signed requests that share one scope."""
    boto3 = pytest.importorskip("boto3")
    provider = serve("bedrock", SCRIPT)
    client = boto3.client(
        "bedrock-runtime",
        endpoint_url=provider.url,
        region_name="us-east-1",
        aws_access_key_id="AKIATEST",
        aws_secret_access_key="secret",
    )
    content = [{"text": LONG}, {"cachePoint": {"type": "default"}}, {"text": "Please look."}]
    request = {"modelId": CLAUDE, "messages": [{"role": "user", "content": content}]}
    whole = client.converse(**request)
    assert whole["usage"]["cacheWriteInputTokens"] == 2028
    events = list(client.converse_stream(**request)["stream"])
    usage = next(event["metadata"]["usage"] for event in events if "metadata" in event)
    assert usage["cacheReadInputTokens"] == 2028
    text = "".join(e["contentBlockDelta"]["delta"].get("text", "") for e in events if "contentBlockDelta" in e)
    assert text == "I look twice."
    assert len([event for event in events if "toolUse" in event.get("contentBlockStart", {}).get("start", {})]) == 2
    client.close()


def test_a_latency_of_nothing_is_slept_by_default(serve):
    """The modelled times are in the record all the same."""
    provider = serve("exact", latency=Latency(base=60.0))
    generate(provider, "x")
    assert provider.requests[0].modelled_ttft > 60
    assert provider.requests[0].first_token_at - provider.requests[0].started_at < 30


@pytest.mark.parametrize("name", ["parameters", "parametersJsonSchema"])
@pytest.mark.parametrize("declared", ["functionDeclarations", "function_declarations"])
def test_a_tools_schema_is_read_in_both_of_geminis_forms(name, declared):
    """By it the scripted answers fill in what a call needs."""
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    body = {"tools": [{declared: [{"name": "weather", name: schema}, {"name": "now"}]}]}
    assert wire_gemini.asked(body).tools == {"weather": schema, "now": {}}
