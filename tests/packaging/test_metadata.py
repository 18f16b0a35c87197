"""What the project files promise: versions in step, ranges without known bad releases, plain pins."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from cacheprefix._version import __version__

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
FRAMEWORKS = ("ag2", "autogen", "crewai", "langgraph", "litellm", "maf", "openai_agents")
ADAPTERS = (*FRAMEWORKS, "sdk")
PROJECTS = ("pyproject.toml", *(f"adapters/{name}/pyproject.toml" for name in ADAPTERS))
PINS = {name: f"constraints/{name if name in FRAMEWORKS else 'langgraph'}.txt" for name in ADAPTERS}
"""The pins that an adapter is tested with; that of the plain SDKs shares the core's environment."""


def _project(path):
    return tomllib.loads((ROOT / path).read_text("utf-8"))["project"]


def _requirements(path):
    project = _project(path)
    extras = project.get("optional-dependencies", {}).values()
    return [Requirement(line) for lines in (project["dependencies"], *extras) for line in lines]


def _pins(path):
    lines = (ROOT / path).read_text("utf-8").splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_versions_are_in_step(adapter):
    """An adapter has the core's version and accepts it."""
    path = f"adapters/{adapter}/pyproject.toml"
    assert _project(path)["version"] == __version__
    core = next(item for item in _requirements(path) if item.name == "cacheprefix")
    assert __version__ in core.specifier


@pytest.mark.parametrize("path", PROJECTS)
@pytest.mark.parametrize("bad", ["1.82.7", "1.82.8"])
def test_known_bad_releases_of_litellm_are_excluded(path, bad):
    """Two releases of LiteLLM carried malware; no range of ours may bring them."""
    assert not [item for item in _requirements(path) if item.name == "litellm" and bad in item.specifier]


@pytest.mark.parametrize("path", sorted(set(PINS.values())))
def test_pins_are_plain_names_and_versions(path):
    """No index address, no local path, nothing but ``name==version``."""
    lines = [line for line in (ROOT / path).read_text("utf-8").splitlines() if not line.startswith("#")]
    assert lines
    assert not [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", line)]
    assert _pins(path).get("litellm") not in {"1.82.7", "1.82.8"}


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_the_pinned_versions_lie_in_the_declared_ranges(adapter):
    """What is tested is what an installation by the ranges can bring."""
    pins = {name.lower().replace("_", "-"): version for name, version in _pins(PINS[adapter]).items()}
    declared = [*_requirements("pyproject.toml"), *_requirements(f"adapters/{adapter}/pyproject.toml")]
    pinned = [(item, pins[item.name.replace("_", "-")]) for item in declared if item.name.replace("_", "-") in pins]
    assert pinned
    assert not [f"{item} but {version}" for item, version in pinned if version not in item.specifier]


def test_an_adapter_registers_itself_only_when_it_exists():
    """An entry point leads to a module that is there."""
    for adapter in ADAPTERS:
        points = _project(f"adapters/{adapter}/pyproject.toml").get("entry-points", {}).get("cacheprefix", {})
        for target in points.values():
            assert (ROOT / "adapters" / adapter / Path(*target.split("."))).with_suffix(".py").exists()


def test_the_core_declares_at_most_four_packages():
    """Everything else is an extra."""
    assert len(_project("pyproject.toml")["dependencies"]) <= 4
