"""``cacheprefix profiles``: which cache rules are in force for a model, and where each value comes from."""

# No deferred annotations here: typer reads them, and is itself only imported when the command is added.
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import typer

    from cacheprefix.plugins import Plugins
    from cacheprefix.profiles import Profile, Registry

_COLOURS = {"high": "green", "medium": "yellow", "low": "red", "contested": "magenta"}


def register(app: "typer.Typer") -> None:
    """Adds the command to a typer application."""
    import typer

    @app.command("profiles")
    def profiles(
        model: Annotated[
            str | None, typer.Argument(help="A model's name, as in requests or logs. Without it: all rows.")
        ] = None,
        provider: Annotated[
            str | None, typer.Option(help="Who serves the model, or the name of a row: azure, vllm, exact …")
        ] = None,
        api: Annotated[str | None, typer.Option(help="Wire form: openai-chat, anthropic, bedrock …")] = None,
        base_url: Annotated[str | None, typer.Option(help="The address requests go to.")] = None,
        file: Annotated[
            list[Path] | None, typer.Option("--file", "-f", help="TOML file with rows of your own.")
        ] = None,
        evidence: Annotated[
            bool, typer.Option("--evidence", help="Show what cacheprefix verify found, of this user's own runs.")
        ] = False,
        evidence_file: Annotated[
            list[Path] | None, typer.Option("--evidence-file", help="The same with a file that somebody sent.")
        ] = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print data instead of a table.")] = False,
        markdown: Annotated[bool, typer.Option(help="Print all rows as a Markdown table.")] = False,
    ) -> None:
        """Show the cache rules in force for a model: value, source, date, confidence."""
        from cacheprefix.cli.files import print_json

        if evidence or evidence_file:
            _show_evidence(model, evidence_file or (), as_json=as_json)
            return
        registry = _registry(file or ())
        if markdown:
            typer.echo("\n".join(_markdown(registry)))
            return
        if model is None and provider is None:
            _show_all(registry, as_json=as_json)
            return
        profile = _found(registry, model or "", provider, api, base_url)
        if as_json:
            print_json(profile_as_data(profile, model))
        else:
            _show_one(profile, model)


def rules_in_force(plugins: "Plugins", files: "Iterable[Path]" = ()) -> "Registry":
    """The rows that ship, then those of plugins, then those of the files that the user named: what is later wins.

    Raises ProfileError for a file that holds no rows.
    """
    from cacheprefix.profiles import default_registry

    registry = default_registry().copy()
    plugins.call_all("profiles", register=registry.register)
    for path in files:
        registry.load(path)
    return registry


def _registry(files: "Iterable[Path]") -> "Registry":
    """The rules in force, those of ``files`` over the built-in ones; ends the command where a file is wrong."""
    import typer

    from cacheprefix.errors import ProfileError
    from cacheprefix.plugins import Plugins

    try:
        return rules_in_force(Plugins.with_builtins(), files)
    except ProfileError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from error


def _found(registry: "Registry", model: str, provider: str | None, api: str | None, base_url: str | None) -> "Profile":
    """The row of a model, or of a provider alone where no model is given; the lookup's warnings go to stderr."""
    import warnings

    import typer

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if not model and provider in registry.names:
            return registry.get(provider)
        profile = registry.profile_for(model, provider, api, base_url)
    for warning in caught:
        typer.echo(f"note: {warning.message}", err=True)
    return profile


def profile_as_data(profile: "Profile", model: str | None = None) -> dict[str, Any]:
    """A profile as plain values: each rule with its value, source, date and confidence."""
    from cacheprefix.profiles import VALUE_FIELDS

    rules = {}
    for name in VALUE_FIELDS:
        evidence = profile.evidence_for(name)
        rules[name] = {
            "value": _plain(getattr(profile, name)),
            "source": evidence.source,
            "checked_on": evidence.checked_on.isoformat(),
            "confidence": evidence.confidence,
            "note": evidence.note,
        }
    return {
        "version": 1,
        "model": model,
        "profile": profile.name,
        "provider": profile.provider,
        "apis": list(profile.apis),
        "note": profile.note,
        "price": _price(profile, model),
        "rules": rules,
    }


def _price(profile: "Profile", model: str | None) -> dict[str, Any] | None:
    from cacheprefix.profiles import Usage, priced

    if model is None:
        return None
    found = priced(Usage(input_tokens=1_000, cache_read_tokens=0), model, profile)
    if found is None:
        return None
    return {"input_usd_per_mtok": round(found.usd * 1_000, 6), "source": found.source}


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {spec.name: _plain(getattr(value, spec.name)) for spec in fields(value)}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and value == float("inf"):
        return "for ever"  # JSON knows no infinity
    return dict(value) if hasattr(value, "items") else value


def _show_all(registry: "Registry", *, as_json: bool) -> None:
    from cacheprefix.cli.files import print_json

    rows = list(registry)
    if as_json:
        print_json({"version": 1, "profiles": [profile_as_data(profile) for profile in rows]})
        return
    table = _table("Cache rules by provider and model family")
    for heading in ("row", "matches", "minimum", "read", "write", "trust"):
        justify: Any = "right" if heading in {"minimum", "read"} else "left"
        table.add_column(heading, justify=justify, no_wrap=heading in {"row", "matches"})
    for profile in rows:
        match = profile.match if profile.block_tokens == 1 else f"{profile.match} of {profile.block_tokens}"
        writes = ", ".join(f"{ttl.name} {ttl.write:g}x" for ttl in profile.ttls)
        table.add_row(
            profile.name, match, f"{profile.min_tokens:,}", f"{profile.read:g}x", writes,
            _trusted(profile.confidence),
        )  # fmt: skip
    console = _console()
    console.print(table)
    console.print("cacheprefix profiles MODEL shows every value of a row with its source.", highlight=False)


def _markdown(registry: "Iterable[Profile]") -> "Iterator[str]":
    """All rows with where they come from, as a page can show them."""
    heads = "row | matches | minimum | read | write, by lifetime | marks | counts cached | source | checked | trust"
    yield f"| {heads} |"
    yield "| --- | --- | ---: | ---: | --- | --- | --- | --- | --- | --- |"
    for profile in registry:
        match = profile.match if profile.block_tokens == 1 else f"{profile.match} of {profile.block_tokens}"
        cells = (
            f"`{profile.name}`",
            match if profile.control != "none" else "nothing",
            f"{profile.min_tokens:,}",
            f"{profile.read:g}x",
            ", ".join(f"{ttl.name} {ttl.write:g}x" for ttl in profile.ttls),
            f"{profile.max_breakpoints} of {profile.markers}" if profile.max_breakpoints else "",
            "yes" if profile.input_includes_cached else "no",
            profile.source,
            profile.checked_on.isoformat(),
            profile.confidence,
        )
        yield f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def _show_one(profile: "Profile", model: str | None) -> None:
    from cacheprefix.errors import plain

    data = profile_as_data(profile, model)
    days = sorted({rule["checked_on"] for rule in data["rules"].values()})
    # One day for all leaves its column to the values.
    said = f", checked {days[0]}" if len(days) == 1 else ""
    table = _table((f"Cache rules in force: {plain(model)} -> {profile.name}" if model else profile.name) + said)
    for heading in ("rule", "value", *(() if said else ("checked",)), "trust", "source"):
        table.add_column(heading, overflow="fold", no_wrap=heading != "value")
    sources: dict[str, int] = {}
    for name, rule in data["rules"].items():
        source = rule["source"] + (f": {rule['note']}" if rule["note"] else "")
        number = sources.setdefault(source, len(sources) + 1)
        trust = _trusted(rule["confidence"])
        day = () if said else (rule["checked_on"],)
        table.add_row(name, _shown(name, rule["value"]), *day, trust, f"({number})")
    console = _console()
    console.print(table)
    for source, number in sources.items():
        console.print(f"({number}) {source}", markup=False, highlight=False, soft_wrap=True)
    if data["price"]:
        price = data["price"]
        console.print(f"input: {price['input_usd_per_mtok']:g} USD a million tokens ({price['source']})")


def _show_evidence(model: str | None, files: "Sequence[Path]", *, as_json: bool) -> None:
    from cacheprefix.cli.files import print_json
    from cacheprefix.verify import read_evidence

    found = [one for one in read_evidence(files) if model in (None, one.model)]
    if as_json:
        print_json({"version": 1, "evidence": [one.as_data() for one in found]})
        return
    console = _console()
    if not found:
        console.print("no evidence yet: cacheprefix verify --provider NAME --model NAME makes some", highlight=False)
        return
    table = _table("Rows that were checked against a provider")
    for heading in ("date", "row", "model", "holds", "differs", "answered by"):
        table.add_column(heading, no_wrap=heading in {"date", "row"})
    for one in found:
        holding = sum(finding.outcome == "holds" for finding in one.findings)
        differing = ", ".join(dict.fromkeys(finding.rule for finding in one.differing))
        by = "a simulated provider" if one.simulated else one.provider
        table.add_row(one.date[:10], one.profile, one.model, str(holding), differing or "nothing", by)
    console.print(table)


def _table(title: str) -> Any:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    return Table(title=title, title_justify="left", box=SIMPLE_HEAD)


def _shown(rule: str, value: Any) -> str:
    if rule == "settings":
        places = dict.fromkeys(value.values())
        return "\n".join(f"{place}: {_named(value, place)}" for place in places)
    if rule == "ttls":
        return "\n".join(_lifetime(ttl) for ttl in value)
    if isinstance(value, dict):
        return "\n".join(f"{name}: {path.replace('|', ' or ')}" for name, path in value.items())
    return {None: "none", True: "yes", False: "no"}[value] if _is_flag(value) else str(value)


def _named(settings: dict[str, str], place: str) -> str:
    names = [name for name, found in settings.items() if found == place and name != "*"]
    return ", ".join(["all others", *names] if settings.get("*") == place else names)


def _lifetime(ttl: dict[str, Any]) -> str:
    seconds = ttl["seconds"]
    kept = "not stated" if seconds is None else seconds if isinstance(seconds, str) else f"{seconds:g} s"
    longest = f", at most {ttl['max_seconds']:g} s" if ttl["max_seconds"] else ""
    renewed = "" if ttl["refreshed_by_read"] else ", not renewed by reads"
    return f"{ttl['name']}: {kept}{longest}{renewed}, write {ttl['write']:g}x"


def _is_flag(value: Any) -> bool:
    return value is None or isinstance(value, bool)


def _trusted(confidence: str) -> str:
    return f"[{_COLOURS[confidence]}]{confidence}[/]"


def _console() -> Any:
    from rich.console import Console

    return Console()
