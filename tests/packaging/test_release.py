"""What is released: one version, distributions that an index accepts, and installations on every Python at hand."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cacheprefix._version import __version__

ROOT = Path(__file__).resolve().parents[2]
PROJECTS = (ROOT, *sorted(path.parent for path in ROOT.glob("adapters/*/pyproject.toml")))
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")

BUILD = """
import os, sys
from hatchling.build import build_sdist, build_wheel
out, *projects = sys.argv[1:]
for project in projects:
    os.chdir(project)
    build_wheel(out)
    build_sdist(out)
"""


@pytest.fixture(scope="module")
def distributions(tmp_path_factory):
    """Wheels and source distributions of the core and of every adapter, as `make build` makes them."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-c", BUILD, str(out), *map(str, PROJECTS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return sorted(out.iterdir())


def test_every_file_that_names_a_version_names_this_one():
    """The citation, and the newest entry of the changelog."""
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text("utf-8")
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert newest[1] == __version__


@pytest.mark.slow
def test_an_index_would_accept_every_distribution(distributions):
    """Metadata and the rendered README, checked by twine in its strict mode."""
    check = pytest.importorskip("twine.commands.check", reason="twine is not installed").check
    assert len(distributions) == 2 * len(PROJECTS)
    assert not check([str(path) for path in distributions], strict=True)


@pytest.mark.slow
def test_source_distributions_hold_what_a_build_needs_and_no_more(distributions):
    """No tests, no environments, no notes; the licence is there."""
    import tarfile

    for path in distributions:
        if path.name.endswith(".tar.gz"):
            with tarfile.open(path) as archive:
                tops = {name.split("/")[1] for name in archive.getnames() if name.count("/")}
            assert {"LICENSE", "README.md", "pyproject.toml"} <= tops
            allowed = {"LICENSE", "README.md", "pyproject.toml", "PKG-INFO", "CHANGELOG.md", ".gitignore"}
            assert not [name for name in tops - allowed if not name.startswith("cacheprefix")], path.name


def _other_pythons():
    named = os.environ.get("CACHEPREFIX_PYTHONS", "").split(os.pathsep)
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    return [*filter(None, named), *(f"python{version}" for version in PYTHONS if version != here)]


@pytest.mark.slow
@pytest.mark.parametrize("python", _other_pythons())
def test_the_core_installs_on_another_python(distributions, tmp_path, python):
    """In an empty environment; CACHEPREFIX_PYTHONS names interpreters beside those on the path."""
    found = shutil.which(python)
    works = found and subprocess.run([found, "-c", "import venv"], capture_output=True, check=False).returncode == 0
    if not works:
        pytest.skip(f"no {python} that makes environments is at hand")
    subprocess.run([found, "-m", "venv", "--without-pip", str(tmp_path / "env")], check=True, timeout=120)
    inner = tmp_path / "env" / "bin" / "python"
    wheel = next(path for path in distributions if path.name.startswith("cacheprefix-") and path.suffix == ".whl")
    clean = {name: value for name, value in os.environ.items() if name != "PIP_CONSTRAINT"}
    command = [sys.executable, "-m", "pip", "--python", str(inner), "install", "--quiet", str(wheel)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=clean)
    if re.search(r"No matching distribution found for (?!cacheprefix)|Connection|Temporary failure", done.stderr):
        pytest.skip(f"the index has no files for {python}")
    assert done.returncode == 0, done.stderr
    code = "import cacheprefix; print(cacheprefix.Session('a handbook').prefix.text, cacheprefix.__version__)"
    clean = {name: value for name, value in clean.items() if not name.startswith(("PYTHON", "CACHEPREFIX"))}
    command = [str(inner), "-W", "error", "-c", code]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, env=clean)
    assert shown.stdout == f"a handbook {__version__}\n"


def test_locked_hashes_belong_to_pinned_files():
    """One sha256 a file, and no file of a version that is not pinned anywhere."""
    lock = ROOT / "constraints" / "hashes.txt"
    lines = [line for line in lock.read_text("utf-8").splitlines() if not line.startswith("#")]
    pins = set()
    for path in (ROOT / "constraints").glob("*.txt"):
        for line in path.read_text("utf-8").splitlines():
            name, _, version = line.partition("==")
            pins.add((re.sub(r"[-_.]+", "-", name).lower(), version))
    for line in lines:
        found = re.fullmatch(r"(\S+?)-(\d[^-]*?)(?:-\S+\.whl|\.tar\.gz|\.zip) sha256:[0-9a-f]{64}", line)
        assert found, line
        assert (re.sub(r"[-_.]+", "-", found[1]).lower(), found[2]) in pins, line
    assert len({line.split()[0] for line in lines}) == len(lines) > 100


def test_the_lock_names_a_file_that_changed(tmp_path, monkeypatch, capsys):
    """The same name with another hash fails; a file of another platform is only counted."""
    script = runpy.run_path(str(ROOT / "constraints" / "lock.py"))
    main = script["main"]
    same = {"a-1-py3-none-any.whl": "0" * 64}
    for served, code in ((same, 0), ({"a-1-py3-none-any.whl": "1" * 64}, 1), ({"a-1-cp310-win32.whl": "2" * 64}, 0)):
        monkeypatch.setitem(main.__globals__, "served", lambda served=served: served)
        monkeypatch.setitem(main.__globals__, "locked", lambda: same)
        assert main(["verify"]) == code
    shown = capsys.readouterr()
    assert "0 files as locked, 0 not, 1 not compared" in shown.out
    assert shown.err.startswith("a-1-py3-none-any.whl: sha256 111")
    assert main([]) == 2


def test_what_pip_reports_as_installed_is_held_against_the_lock(tmp_path, monkeypatch, capsys):
    """A file with another hash fails by its name; the project's own folders have none."""
    main = runpy.run_path(str(ROOT / "constraints" / "lock.py"))["main"]
    monkeypatch.setitem(main.__globals__, "locked", lambda: {"b-1.tar.gz": "0" * 64})
    for digest, code in (("0", 0), ("1", 1)):
        info = {"url": "https://files.example/x/b-1.tar.gz", "archive_info": {"hashes": {"sha256": digest * 64}}}
        items = [{"download_info": one} for one in (info, {"url": "file:///here", "dir_info": {}})]
        (tmp_path / "report.json").write_text(json.dumps({"install": items}), "utf-8")
        assert main(["check", str(tmp_path / "report.json")]) == code
    assert capsys.readouterr().err.startswith("b-1.tar.gz: sha256 111")


def test_the_locked_files_are_checked_by_an_interpreter_that_they_cannot_influence(tmp_path):
    """Code that what is checked left on a path of Python's could end the check as if all were well."""
    asked = re.findall(r"(\S+(?: -\S+)*) constraints/lock\.py (?:check|verify)", (ROOT / "Makefile").read_text("utf-8"))
    assert len(asked) > 2
    assert set(asked) == {"$(PYTHON) -I -S"}
    (tmp_path / "sitecustomize.py").write_text("import os; os._exit(0)", "utf-8")
    name = next(iter(runpy.run_path(str(ROOT / "constraints" / "lock.py"))["locked"]()))
    info = {"url": f"https://files.example/x/{name}", "archive_info": {"hashes": {"sha256": "1" * 64}}}
    (tmp_path / "report.json").write_text(json.dumps({"install": [{"download_info": info}]}), "utf-8")
    check = [str(ROOT / "constraints" / "lock.py"), "check", str(tmp_path / "report.json")]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    ends = [
        subprocess.run([sys.executable, *flags, *check], env=environment, capture_output=True, check=False).returncode
        for flags in ((), ("-I", "-S"))
    ]
    assert ends == [0, 1]
