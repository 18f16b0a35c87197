"""The wheels as a stranger installs them: into an empty environment, from what the build made."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.slow

FRAMEWORKS = (
    "ag2", "agent_framework", "autogen_agentchat", "autogen_core", "crewai", "langchain", "langchain_core", "langgraph",
    "agents", "litellm",
)  # fmt: skip


def _run(*command, **options):
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False, timeout=300, **options
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """The wheels of the core and of the LangGraph adapter, built from this tree."""
    out = tmp_path_factory.mktemp("wheels")
    for project in (ROOT, ROOT / "adapters" / "langgraph"):
        _run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, project)
    core, adapter = sorted(out.glob("*.whl"))
    return core, adapter


@pytest.fixture(scope="module")
def environment(wheels, tmp_path_factory):
    """Python of an environment that holds the core's wheel and what it requires, and nothing else."""
    folder = tmp_path_factory.mktemp("environment")
    # Without a pip of its own: the outer one installs into it, which takes seconds less.
    _run(sys.executable, "-m", "venv", "--without-pip", folder)
    python = folder / "bin" / "python"
    _pip(python, "install", "--quiet", wheels[0])
    return python


def _pip(python, *arguments):
    return _run(sys.executable, "-m", "pip", "--python", python, *arguments)


def _in(python, code):
    # Neither this repository nor the outer environment may lend anything to the one under test.
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "CACHEPREFIX"))}
    return _run(python, "-c", code, cwd=python.parent, env=clean)


def _installed(python):
    return {item["name"] for item in json.loads(_pip(python, "list", "--format=json"))}


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_its_data(wheels):
    """Every module, the data files and the type marker; no tests, no adapter."""
    with zipfile.ZipFile(wheels[0]) as wheel:
        packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    kept = {".py", ".toml", ".html", ".json", ".yml", ".typed"}
    on_disk = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "cacheprefix").rglob("*")
        if path.suffix in kept or path.name == "py.typed"
    }
    assert "cacheprefix/py.typed" in packed
    assert packed == on_disk


@pytest.mark.slow
def test_the_core_installs_at_most_eight_packages(environment):
    """Itself included."""
    assert len(_installed(environment)) <= 8


def test_the_core_works_alone(environment):
    """It imports, counts and names what is missing, without any framework or extra."""
    shown = _in(
        environment,
        "import cacheprefix, sys, importlib.util\n"
        "session = cacheprefix.Session('a handbook')\n"
        f"print([name for name in {FRAMEWORKS!r} if importlib.util.find_spec(name)])\n"
        "print(sys.prefix in cacheprefix.__file__, session.mode)",
    )
    assert shown.split("\n")[:2] == ["[]", "True fork"]


def test_the_command_without_its_extra_prints_the_install_line(environment):
    """No traceback, exit code 2."""
    script = environment.parent / "cacheprefix"
    done = subprocess.run([script, "version"], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert done.stderr.endswith('pip install "cacheprefix[cli]"\n')
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_the_adapter_registers_itself_by_entry_point(wheels, environment):
    """Installed beside its framework it is found, loads, and answers the wrap hook."""
    _pip(environment, "install", "--quiet", "--no-deps", wheels[1])
    # The framework itself is lent by the environment the tests run in: installing it again proves nothing.
    site = Path(_in(environment, "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (site / "outer.pth").write_text(sysconfig.get_path("purelib") + "\n", "utf-8")
    shown = _in(
        environment,
        "import sys, cacheprefix, cacheprefix_langgraph\n"
        "from cacheprefix.plugins import Plugins\n"
        "print(sys.prefix in cacheprefix.__file__, sys.prefix in cacheprefix_langgraph.__file__)\n"
        # Of what the outer environment holds, editable adapters show here by name alone.
        "found = [p for p in Plugins().loaded if p.name == 'langgraph']\n"
        "print(*[(p.name, p.origin, p.problem, 'wrap' in p.hooks) for p in found])",
    )
    assert shown.splitlines() == ["True True", "('langgraph', 'entry point', None, True)"]
