"""``cacheprefix verify``: does a provider keep its cache as the row of rules says?"""

# No deferred annotations here: typer reads them, and is itself only imported when the command is added.
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

if TYPE_CHECKING:
    import typer

    from cacheprefix.profiles import Profile
    from cacheprefix.prompt import Api
    from cacheprefix.verify import Evidence, Limit

EXIT_DIFFERS = 1
"""At least one rule is not as the row says."""

_ADDRESSES = {
    "openai": ("OPENAI_BASE_URL", "https://api.openai.com/v1"),
    "anthropic": ("ANTHROPIC_BASE_URL", "https://api.anthropic.com"),
}
"""Where a provider's address stands in the environment, and its own."""


def register(app: "typer.Typer") -> None:
    """Adds the command to a typer application."""
    import typer

    @app.command("verify")
    def verify(
        provider: Annotated[str, typer.Option(help="Who serves the model, or the name of a row of rules.")],
        model: Annotated[str, typer.Option(help="The model's name, as requests have it.")],
        base_url: Annotated[
            str | None, typer.Option(help="The provider's address; OPENAI_BASE_URL or ANTHROPIC_BASE_URL otherwise.")
        ] = None,
        api: Annotated[str | None, typer.Option(help="openai-chat or anthropic, where the row speaks both.")] = None,
        key_env: Annotated[
            str | None, typer.Option(help="Environment variable with the key; PROVIDER_API_KEY otherwise.")
        ] = None,
        max_usd: Annotated[float, typer.Option(help="Stops before a request that could go over this.", min=0)] = 0.50,
        max_tokens: Annotated[
            int, typer.Option(help="The same in input tokens, for models without a known price.", min=1)
        ] = 1_000_000,
        slow: Annotated[bool, typer.Option("--slow", help="Wait for lifetimes as well (minutes to hours).")] = False,
        save: Annotated[Path | None, typer.Option(help="Write the evidence to this file.")] = None,
        no_save: Annotated[bool, typer.Option("--no-save", help="Keep no evidence.")] = False,
        as_json: Annotated[bool, typer.Option("--json", help="Print the evidence as data instead of a table.")] = False,
    ) -> None:
        """Check a row of cache rules against the real provider with a few dozen requests.

        Says first what it will cost, stops at the limit, and ends with a table: rule, expected, seen, verdict.
        The evidence is kept as dated JSON, which cacheprefix profiles --evidence shows. Exit code 0: nothing speaks
        against the row; 1: a rule differs; 2: wrong use, or the provider could not be asked.
        """
        from cacheprefix.errors import SetupError
        from cacheprefix.verify import Evidence, HttpProvider, Lab, Limit, Rehearsal, now, run, save_evidence

        profile, form = _row(provider, model, api)
        variable, usual = _ADDRESSES.get("anthropic" if form == "anthropic" else profile.provider, ("", ""))
        url = base_url or os.environ.get(variable, "") or usual
        if not url:
            raise SetupError(f"no address is known for {provider}: give --base-url")
        named = key_env or f"{profile.provider.upper().replace('-', '_')}_API_KEY"
        key = os.environ.get(named, "")
        if not key and url == usual:
            raise SetupError(f"{provider} needs a key: set {named}, or name another variable with --key-env")

        rehearsed = Limit(None, tokens=sys.maxsize)
        rehearsal = Rehearsal(profile, form)
        list(run(Lab(rehearsal, profile, model, form, rehearsed, rehearsal.sleep), slow=slow))
        known = rehearsed.spent_usd > 0
        _say(_estimate(profile, rehearsed, max_usd if known else None, max_tokens))
        if slow:
            waits = (profile.default_ttl.seconds or 0) * (0.8 + 1.25)
            _say(f"and wait {waits / 60:,.0f} minutes for lifetimes")

        limit = Limit(max_usd if known else None, max_tokens)
        live = HttpProvider(url, key, form, profile)
        lab = Lab(live, profile, model, form, limit, time.sleep)
        findings = tuple(run(lab, slow=slow, progress=lambda name: _say(f"… {name}")))
        evidence = Evidence(
            profile.name,
            profile.provider,
            model,
            form,
            now(),
            live.is_simulated(),
            limit.requests,
            limit.spent_tokens,
            round(limit.spent_usd, 6) if known else None,
            findings,
        )
        if as_json:
            from cacheprefix.prompt import dumps

            print(dumps(evidence.as_data(), "evidence").decode())
        else:
            _show(evidence)
        if not no_save:
            _say(f"evidence: {save_evidence(evidence, save)}")
        if evidence.differing:
            raise typer.Exit(EXIT_DIFFERS)


def _row(provider: str, model: str, api: str | None) -> "tuple[Profile, Api]":
    """The rules under test, and the form of the requests."""
    from cacheprefix.cli.commands.profiles import rules_in_force
    from cacheprefix.errors import SetupError
    from cacheprefix.plugins import Plugins

    profile = rules_in_force(Plugins.with_builtins()).profile_for(model, provider)
    spoken: tuple[Api, ...] = ("openai-chat", "anthropic")
    for form in spoken:
        if form in profile.apis and api in (None, form):
            return profile, form
    wanted = api or " or ".join(spoken)
    raise SetupError(
        f"{profile.name} speaks {', '.join(profile.apis) or 'no API that is known here'}, and verify asks by {wanted}"
    )


def _estimate(profile: "Profile", rehearsed: "Limit", max_usd: float | None, max_tokens: int) -> str:
    asked = f"up to about {rehearsed.requests} requests with {rehearsed.spent_tokens:,} input tokens in all"
    if max_usd is None:
        return f"row {profile.name}: {asked}; nobody here knows the price; stops at {max_tokens:,} tokens"
    return f"row {profile.name}: {asked}, about ${rehearsed.spent_usd:.2f}; stops at ${max_usd:.2f}"


def _show(evidence: "Evidence") -> None:
    """Print what was found: a row a rule with expected and seen, what it cost, and what was not tried."""
    from rich.console import Console
    from rich.table import Table

    from cacheprefix.verify import NOT_TRIED

    table = Table(title=f"{evidence.model} against the row {evidence.profile}", title_justify="left")
    for name in ("rule", "expected", "seen", "verdict"):
        table.add_column(name, overflow="fold")
    colours = {"holds": "green", "differs": "red", "unclear": "yellow", "not tried": "dim"}
    for one in evidence.findings:
        table.add_row(one.rule, one.expected, one.seen, f"[{colours[one.outcome]}]{one.outcome}[/]")
    console = Console()
    console.print(table)
    paid = "" if evidence.usd is None else f", about ${evidence.usd:.2f}"
    console.print(f"{evidence.requests} requests, {evidence.input_tokens:,} input tokens{paid}", highlight=False)
    if evidence.simulated:
        console.print("A simulated provider answered: this proves nothing about a real one.")
    console.print("Not tried: " + "; ".join(f"{name} ({why})" for name, why in NOT_TRIED.items()), highlight=False)


def _say(line: str) -> None:
    print(f"cacheprefix verify: {line}", file=sys.stderr, flush=True)
