"""``cacheprefix simulate``: how large, how long-lived and how many caches recorded arrivals need."""

# No deferred annotations here: typer reads them, and is itself only imported when the command is added.
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

if TYPE_CHECKING:
    import typer

    from cacheprefix.cache.routing import Keys
    from cacheprefix.server import Outcome, Setting

TTLS = ("60", "300", "900", "3600", "none")
CAPACITIES = ("none", "32M", "16M", "8M", "4M", "2M")
REPLICAS = (1, 2, 4, 8, 16)
_TTL, _CAPACITY, _REPLICAS = "300", "none", 1
_FACTORS = {"k": 1_000, "m": 1_000_000, "g": 1_000_000_000}


def register(app: "typer.Typer") -> None:
    """Adds the command to a typer application."""
    import typer

    @app.command("simulate")
    def simulate(
        logs: Annotated[
            list[str],
            typer.Argument(metavar="LOG...", help="Mooncake traces (gzip too), or request logs as audit reads them."),
        ],
        ttl: Annotated[
            list[str] | None,
            typer.Option(metavar="SECONDS", help="Lifetime of an unused entry, or none; repeat it to compare."),
        ] = None,
        capacity: Annotated[
            list[str] | None,
            typer.Option(metavar="TOKENS", help="Tokens a replica holds (500k, 8M), or none; repeat it to compare."),
        ] = None,
        replicas: Annotated[
            list[int] | None, typer.Option(min=1, help="Machines with a cache each; repeat it to compare.")
        ] = None,
        sticky: Annotated[
            bool | None,
            typer.Option(
                "--sticky/--spread",
                help="Send a conversation where it was, or every request anywhere; by default both are compared.",
            ),
        ] = None,
        keys: Annotated[
            list[str] | None,
            typer.Option(
                metavar="KEYS",
                help="Route by prompt_cache_key, with so many keys a prefix, or auto; repeat it to compare.",
            ),
        ] = None,
        processes: Annotated[
            int, typer.Option(min=1, help="Processes of the application, each with keys by what comes to it.")
        ] = 1,
        together: Annotated[
            bool, typer.Option("--together", help="The processes count what comes to all, in one store.")
        ] = False,
        rules: Annotated[
            str, typer.Option(help="Prices, minimum and block size: a profile's name, see cacheprefix profiles.")
        ] = "exact",
        requests: Annotated[int | None, typer.Option(min=1, help="Play the first so many requests only.")] = None,
        profiles: Annotated[
            list[Path] | None, typer.Option("--profiles", help="TOML file with cache rules of your own.")
        ] = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print data instead of a table.")] = False,
    ) -> None:
        """Play recorded arrivals against caches of different lifetime, size and number.

        Without --ttl, --capacity and --replicas each is varied alone, beside 300 seconds, no bound and one replica;
        with one of them all combinations are played. Cost 1.00 is no cache at all. Exit code 0: played; 1: some lines
        could not be read; 2: wrong use.
        """
        from dataclasses import replace

        from cacheprefix.audit import arrivals
        from cacheprefix.cli.commands.audit import in_force
        from cacheprefix.server import play

        readers, registry = in_force(profiles or [])
        profile = registry.get(rules)
        settings = _settings(ttl, capacity, replicas, sticky=sticky)
        counts = [_keys(said) for said in keys or ()]
        apart = _apart(settings)
        keyed: dict[str, Any] = {"routing": "keys", "processes": processes, "together": together}
        settings += [replace(one, keys=n, **keyed) for one in apart for n in counts]
        found, skipped = arrivals(logs, registry=registry, readers=readers, limit=requests)
        outcomes = [play(found, setting, profile) for setting in settings]
        span = found[-1].at - found[0].at
        if as_json:
            _print_json(outcomes, profile.name, span, skipped)
        else:
            for line in _table(outcomes, profile.name, span, skipped):
                print(line)
        if skipped:
            raise typer.Exit(1)


def _settings(
    ttl: Sequence[str] | None, capacity: Sequence[str] | None, replicas: Sequence[int] | None, *, sticky: bool | None
) -> "list[Setting]":
    """The fleets to play: each combination of the given values, else one value after the other."""
    from cacheprefix.server import Setting

    if ttl or capacity or replicas:
        rows = [
            (life, size, count) for life in ttl or (_TTL,) for size in capacity or (_CAPACITY,)
            for count in replicas or (_REPLICAS,)
        ]  # fmt: skip
    else:
        rows = [(life, _CAPACITY, _REPLICAS) for life in TTLS]
        rows += [(_TTL, size, _REPLICAS) for size in CAPACITIES]
        rows += [(_TTL, _CAPACITY, count) for count in REPLICAS]
    ways = ("spread", "sticky") if sticky is None else ("sticky",) if sticky else ("spread",)
    found = [
        Setting(_number("--ttl", life), _tokens(size), count, "sticky" if way == "sticky" else "spread")
        for life, size, count in dict.fromkeys(rows)
        # With one replica everybody goes there.
        for way in (ways if count > 1 else ways[:1])
    ]
    return list(dict.fromkeys(found))


def _apart(settings: "Sequence[Setting]") -> "list[Setting]":
    """Those of several replicas, each once whatever its routing: with one, everybody goes there."""
    from dataclasses import replace

    return list(dict.fromkeys(replace(one, routing="spread") for one in settings if one.replicas > 1))


def _keyed(setting: "Setting") -> dict[str, Any]:
    if setting.routing != "keys":
        return {}
    return {"keys": setting.keys, "processes": setting.processes, "together": setting.together}


def _keys(text: str) -> "Keys":
    from cacheprefix.errors import SetupError

    if text == "auto":
        return "auto"
    if not text.isdecimal() or int(text) < 1:
        raise SetupError(f"--keys {text}: write a number from 1 on, or auto")
    return int(text)


def _number(option: str, text: str) -> float | None:
    """A number above 0 with k, M or G behind it, or None for ``none``; raises ``SetupError`` for anything else."""
    from cacheprefix.errors import SetupError

    if text.lower() == "none":
        return None
    factor = _FACTORS.get(text[-1:].lower(), 0)
    try:
        value = float(text[:-1]) * factor if factor else float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise SetupError(f"{option} {text}: write a number above 0, such as 300 or 8M, or none")
    return value


def _tokens(text: str) -> int | None:
    value = _number("--capacity", text)
    return None if value is None else max(1, int(value))


def _print_json(outcomes: "Iterable[Outcome]", rules: str, span: float, skipped: int) -> None:
    from cacheprefix.prompt import dumps

    rows = [
        {
            "ttl": each.setting.ttl,
            "capacity_tokens": each.setting.capacity,
            "replicas": each.setting.replicas,
            "routing": each.setting.routing,
            **_keyed(each.setting),
            "cached_share": round(each.cached_share, 4),
            "cost_ratio": round(each.cost_ratio, 4),
            "cost_units": round(each.cost_units, 1),
            "input_tokens": each.input_tokens,
            "cache_read_tokens": each.read_tokens,
            "cache_write_tokens": each.written_tokens,
            "peak_tokens": each.peak_tokens,
            "evicted_tokens": each.evicted_tokens,
            "busiest_share": round(each.busiest, 4),
        }
        for each in outcomes
    ]
    requests = next(iter(outcomes)).requests
    data = {"version": 1, "rules": rules, "requests": requests, "seconds": span, "skipped": skipped, "rows": rows}
    print(dumps(data, "simulation").decode())


def _table(outcomes: "Sequence[Outcome]", rules: str, span: float, skipped: int) -> list[str]:
    first = outcomes[0]
    damaged = f", {skipped:,} lines could not be read" if skipped else ""
    heads = (
        f"{'ttl':>6} {'capacity':>10} {'replicas':>8} {'routing':>9} {'read':>7} {'cost':>6} {'peak tokens':>13} "
        f"{'evicted':>14} {'busiest':>8}"
    )
    return [
        f"{first.requests:,} requests, {first.input_tokens:,} input tokens in {span:,.0f} s{damaged}; rules {rules}",
        heads,
        *map(_row, outcomes),
        "read: share of the input; cost: against no cache; peak: most that a replica held; busiest: its share of input",
    ]


def _row(each: "Outcome") -> str:
    setting = each.setting
    ttl = "none" if setting.ttl is None else f"{setting.ttl:g}"
    capacity = "none" if setting.capacity is None else f"{setting.capacity:,}"
    routing = f"keys {setting.keys}" if setting.routing == "keys" else setting.routing
    return (
        f"{ttl:>6} {capacity:>10} {setting.replicas:>8} {routing if setting.replicas > 1 else '':>9} "
        f"{each.cached_share:>7.1%} {each.cost_ratio:>6.3f} {each.peak_tokens:>13,} {each.evicted_tokens:>14,} "
        f"{each.busiest:>8.1%}"
    )
