"""``cacheprefix doctor``: what is installed, what is missing, and what does not fit together."""

# No deferred annotations here: typer reads them when the command is added.
import importlib.metadata
import platform
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any

from cacheprefix import versions

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import typer
    from packaging.requirements import Requirement

    from cacheprefix.plugins import PluginInfo

_ADAPTERS = {
    "langgraph": "langgraph",
    "autogen": "autogen-agentchat",
    "crewai": "crewai",
    "maf": "agent-framework-core",
    "ag2": "ag2",
    "litellm": "litellm",
    "openai-agents": "openai-agents",
    "sdk": "openai",
}
"""An adapter's short name and the distribution of the framework it is for."""

_OWN_EXTRAS = ("cli", "prices", "server", "record", "engine", "report", "redis", "otel", "tokens", "transformers")

_ENCODINGS = ("o200k_base", "cl100k_base")


@dataclass(frozen=True, slots=True)
class Package:
    """An installed or missing package against the range it is supported in."""

    name: str
    found: str | None
    supported: str

    @property
    def fits(self) -> bool:
        """Whether the version found lies in the supported range."""
        from packaging.specifiers import SpecifierSet

        return self.found is not None and SpecifierSet(self.supported).contains(self.found, prereleases=True)


@dataclass(frozen=True, slots=True)
class Part:
    """An extra or an adapter: its packages, and the line that installs it."""

    name: str
    installed: bool
    packages: tuple[Package, ...]
    install: str

    @property
    def problems(self) -> tuple[str, ...]:
        """Packages of an installed part outside their supported range."""
        if not self.installed:
            return ()
        return tuple(
            f"{item.name} {item.found or 'is missing'}, supported is {item.supported or 'any version'}"
            for item in self.packages
            if not item.fits
        )


def register(app: "typer.Typer") -> None:
    """Adds the command to a typer application."""
    import typer

    @app.command("doctor")
    def doctor(
        team: Annotated[
            str,
            typer.Argument(metavar="[APP.PY:TEAM]", help="A team, crew or graph, or a function that makes it."),
        ] = "",
        task: Annotated[
            str, typer.Option(help="What its run begins with: a text, or a JSON object of inputs or of a state.")
        ] = "",
        session: Annotated[
            str, typer.Option(help="Its session's name in the same module; the configuration's where there is none.")
        ] = "session",
        as_json: Annotated[bool, typer.Option("--json", help="Print data instead of tables.")] = False,
    ) -> None:
        """Show versions against the supported ranges, adapters, plugins, tokenizers, configuration, missing extras.

        With a team it says instead, before a run and without sending anything, what each agent's first request shares,
        why not, and what that should cost. Exit code 0: all is well; 1: something installed does not work or lies
        outside its supported range, the configuration cannot be used, or an agent does not share for a reason that you
        can remove; 2: there is no such team.
        """
        if team:
            raise typer.Exit(code=_foreseen(team, task, session, as_json=as_json))
        from cacheprefix._version import __version__
        from cacheprefix.cli.files import print_json
        from cacheprefix.plugins import Plugins

        extras = [_extra(name) for name in _OWN_EXTRAS]
        adapters = [_adapter(name, framework) for name, framework in _ADAPTERS.items()]
        plugins = Plugins.with_builtins().loaded
        problems = [text for part in (*extras, *adapters) for text in part.problems]
        problems += [f"plugin {item.name}: {item.problem}" for item in plugins if item.problem]
        configuration = _configuration()
        problems += [configuration["problem"]] if configuration["problem"] else []
        found: dict[str, Any] = {
            "cacheprefix": __version__,
            "python": platform.python_version(),
            "adapters": [_as_data(part) for part in adapters],
            "extras": [_as_data(part) for part in extras],
            "plugins": [asdict(item) for item in plugins],
            "tokenizers": _tokenizers(),
            "configuration": configuration,
            "rules_never_verified": _never_verified(),
            "problems": problems,
        }
        if as_json:
            print_json(found)
        else:
            _show(found, (*adapters, *extras), plugins)
        raise typer.Exit(code=1 if problems else 0)


def _foreseen(name: str, task: str, session: str, *, as_json: bool) -> int:
    """Print what a team will ask first; the command's exit code."""
    import inspect

    from cacheprefix import Session, preview
    from cacheprefix.cli import files

    target = files.imported(name)
    if inspect.isfunction(target):
        target = target()
    given = files.imported(name.rpartition(":")[0] + f":{session}", None)
    seen = preview(target, given if isinstance(given, Session) else None, task=_begins(task))
    removable = [(one.agent, reason) for one in seen.requests for reason in one.reasons if reason.removable]
    if as_json:
        files.print_json(seen.as_dict())
    else:
        print(seen)
        for agent, reason in removable:
            print(f"{agent}: {reason.fix}")
    return 1 if removable else 0


def _begins(task: str) -> object:
    """What a run begins with: data where it is a JSON object, else the text; None where nothing was said."""
    import json

    if task.lstrip().startswith("{"):
        with suppress(ValueError):
            return json.loads(task)
    return task or None


def _configuration() -> dict[str, Any]:
    """The values that ``Session.from_config()`` would use here, and where each comes from; the rest are defaults."""
    from cacheprefix.config import load
    from cacheprefix.errors import SetupError
    from cacheprefix.mode import mode_override

    try:
        found = load()
        found.options()
    except SetupError as error:
        problem = f"configuration: {error}"
        return {"file": None, "settings": [], "unknown_variables": [], "every_session": None, "problem": problem}
    return {
        "file": None if found.path is None else str(found.path),
        "settings": [{"key": one.key, "value": one.value, "source": one.source} for one in found.settings],
        "unknown_variables": list(found.unknown),
        "every_session": mode_override(),
        "problem": None,
    }


def _extra(name: str) -> Part:
    packages = tuple(_package(needed) for needed in _requirements("cacheprefix", name))
    installed = bool(packages) and all(item.found for item in packages)
    return Part(name, installed, packages, f'pip install "cacheprefix[{name}]"')


def _adapter(name: str, framework: str) -> Part:
    distribution = f"cacheprefix-{name}"
    install = f'pip install "cacheprefix[{name}]", or ./adapters/{name.replace("-", "_")} in a clone'
    needed = [_package(item) for item in _requirements(distribution) if item.name != "cacheprefix"]
    # Of what is optional (clients of providers, above all) only what is there.
    optional = [_package(item) for extra in _extras(distribution) for item in _requirements(distribution, extra)]
    found = {item.name: item for item in (*needed, *(one for one in optional if one.found))}
    packages = tuple(found.values()) or (Package(framework, versions.installed(framework), ""),)
    return Part(name, versions.installed(distribution) is not None, packages, install)


def _requirements(distribution: str, extra: str = "") -> "Iterator[Requirement]":
    """What an installed distribution declares for here and for one extra, or without any."""
    from packaging.requirements import Requirement

    try:
        lines = importlib.metadata.requires(distribution) or []
    except importlib.metadata.PackageNotFoundError:
        return
    for requirement in map(Requirement, lines):
        marker = requirement.marker
        always = marker is None or marker.evaluate({"extra": ""})
        if always != bool(extra) and (always or (marker and marker.evaluate({"extra": extra}))):
            yield requirement


def _extras(distribution: str) -> list[str]:
    try:
        return importlib.metadata.metadata(distribution).get_all("Provides-Extra") or []
    except importlib.metadata.PackageNotFoundError:
        return []


def _package(requirement: "Requirement") -> Package:
    return Package(requirement.name, versions.installed(requirement.name), str(requirement.specifier))


def _tokenizers() -> dict[str, str]:
    """How tokens are counted here, by encoding."""
    from cacheprefix.errors import SetupError
    from cacheprefix.prompt import tiktoken_counter

    def counted(encoding: str) -> str:
        try:
            tiktoken_counter(encoding)
        except SetupError as error:
            return f"estimated; {error}"
        return "exact"

    there = find_spec("transformers") is not None
    return {
        **{f"tiktoken {encoding}": counted(encoding) for encoding in _ENCODINGS},
        "transformers": "exact with template_counter(tokenizer)" if there else "not installed",
    }


def _never_verified() -> list[str]:
    """Rows of cache rules that no ``cacheprefix verify`` of this user has tried against a real provider."""
    from cacheprefix.profiles import default_registry
    from cacheprefix.verify import read_evidence

    tried = {one.profile for one in read_evidence() if not one.simulated}
    return [profile.name for profile in default_registry() if profile.name != "exact" and profile.name not in tried]


def _as_data(part: Part) -> dict[str, object]:
    return {**asdict(part), "problems": part.problems}


def _show(found: "Mapping[str, Any]", parts: "Iterable[Part]", plugins: "Iterable[PluginInfo]") -> None:
    """Print what is installed, with what is supported, and the plugins."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    console.print(f"cacheprefix {found['cacheprefix']} on Python {found['python']}")
    table = Table("part", "", "packages found (supported)", box=None, pad_edge=False)
    for part in parts:
        state = "ok" if part.installed else "not installed"
        state = "[red]outside supported range[/]" if part.problems else state
        listed = ", ".join(
            f"{item.name} {item.found or 'missing'}" + (f" ({item.supported})" if item.supported else "")
            for item in part.packages
        )
        table.add_row(part.name, state, listed if part.installed else part.install.replace("[", r"\["))
    console.print(table)
    lists = {
        "plugins": [_plugin_row(item) for item in plugins],
        "tokenizers": [f"{name}: {how}" for name, how in found["tokenizers"].items()],
        "configuration": list(_configuration_rows(found["configuration"])),
        "rows of cache rules never verified here (cacheprefix verify)": [", ".join(found["rules_never_verified"])],
        "problems": found["problems"],
    }
    for title, rows in lists.items():
        if rows:
            console.print(f"\n{title}")
        for row in rows:
            console.print(f"  {row}", markup=False, soft_wrap=True)


def _configuration_rows(found: "Mapping[str, Any]") -> "Iterator[str]":
    for one in found["settings"]:
        yield f"{one['key']} = {one['value']!r} ({one['source']})"
    if not found["settings"] and not found["problem"]:
        yield "nothing is set: Session.from_config() has its defaults"
    if found["every_session"]:
        yield f"CACHEPREFIX_MODE={found['every_session']} is in force for every session, whatever its program says"
    for name in found["unknown_variables"]:
        yield f"{name} is set and says nothing that is known"


def _plugin_row(item: "PluginInfo") -> str:
    source = f"{item.origin}, {item.distribution}" if item.distribution else item.origin
    return f"{item.name} ({source}): {item.problem or ', '.join(item.hooks) or 'no hooks'}"
