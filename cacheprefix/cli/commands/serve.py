"""``cacheprefix serve``: the simulated provider at an address, until Ctrl-C."""

# No deferred annotations here: typer reads them, and is itself only imported when the command is added.
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

if TYPE_CHECKING:
    import typer

    from cacheprefix.server import Latency


def register(app: "typer.Typer") -> None:
    """Adds the command to a typer application."""
    import typer

    @app.command("serve")
    def serve(
        rules: Annotated[
            str,
            typer.Option(help="A profile's name (exact, openai, openai-5.6, anthropic …), or auto: each model's own."),
        ] = "auto",
        host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
        port: Annotated[int, typer.Option(help="The port; 0 takes a free one.", min=0, max=65535)] = 0,
        record: Annotated[
            Path | None, typer.Option(help="Append every request to this JSON-lines file, as audit reads it.")
        ] = None,
        latency: Annotated[
            str | None,
            typer.Option(
                help="Wait as a model does: 'on', or seconds as base=0.25,uncached=0.00025,cached=0.00001,output=0.012 "
                "(and scale=0.1 for a tenth of all)."
            ),
        ] = None,
        script: Annotated[
            Path | None,
            typer.Option(help="Answer by this JSON file: a list of replies, or such lists by a text of the prompt."),
        ] = None,
        tokens: Annotated[int, typer.Option(help="Length of the answers, in tokens.", min=1)] = 40,
        capacity: Annotated[
            int | None, typer.Option(help="Tokens the cache holds; the least recently used go first.", min=1)
        ] = None,
        keep: Annotated[int, typer.Option(help="Requests remembered in memory.", min=0)] = 100,
        lax: Annotated[
            bool, typer.Option("--lax", help="Answer requests too that the real provider would refuse with 400.")
        ] = False,
        as_json: Annotated[bool, typer.Option("--json", help="Print the address as data.")] = False,
    ) -> None:
        """Serve a simulated provider that speaks OpenAI, Anthropic, Gemini and Bedrock."""
        from cacheprefix.server import Echo, SimulatedProvider
        from cacheprefix.server.script_file import read_script

        provider = SimulatedProvider(
            rules,
            Echo(tokens) if script is None else read_script(script, Echo(tokens)),
            latency=_latency(latency),
            host=host,
            port=port,
            record=record,
            keep=keep,
            capacity_tokens=capacity,
            strict=not lax,
        )
        with provider:
            _announce(provider.url, rules, as_json=as_json)
            _wait()


def _latency(given: str | None) -> "Latency | None":
    """Waiting times of what ``--latency`` says: on, off, or NAME=SECONDS,...; None for off. Raises ``SetupError``."""
    from cacheprefix.errors import SetupError
    from cacheprefix.server import Latency

    if given is None or given == "off":
        return None
    values: dict[str, float] = {"scale": 1.0}
    known = ("base", "uncached", "cached", "output", "scale")
    for part in () if given == "on" else given.split(","):
        name, _, number = part.strip().partition("=")
        try:
            values[name] = float(number)
        except ValueError:
            values[""] = 0
        if name not in known or not 0 <= values.get(name, -1) < float("inf"):
            raise SetupError(f"--latency: cannot read {part!r}; write NAME=SECONDS, NAME one of {', '.join(known)}")
    return Latency(**values)


def _announce(url: str, rules: str, *, as_json: bool) -> None:
    from cacheprefix.prompt import dumps

    if as_json:
        address = {
            "url": url,
            "openai_base_url": f"{url}/v1",
            "anthropic_base_url": url,
            "rules": rules,
        }
        print(dumps(address, "address").decode(), flush=True)
        return
    print(f"simulated provider, rules {rules}, at {url}", flush=True)
    print(f"  OPENAI_BASE_URL={url}/v1  ANTHROPIC_BASE_URL={url}  (any key; Ctrl-C ends)", flush=True)


def _wait() -> None:
    """Until Ctrl-C or a termination signal."""
    import signal
    import threading

    ended = threading.Event()
    before = {name: signal.signal(name, lambda *_: ended.set()) for name in (signal.SIGINT, signal.SIGTERM)}
    try:
        # In steps, because a wait without a limit cannot be interrupted on every platform.
        while not ended.wait(1.0):
            pass
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)
