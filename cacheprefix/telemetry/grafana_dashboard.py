"""The Grafana dashboard that comes with the package."""

from __future__ import annotations

from importlib.resources import files


def dashboard() -> str:
    """A dashboard for Grafana 10 and newer as JSON, for metrics that reached Prometheus; import it there as it is."""
    return files("cacheprefix.telemetry").joinpath("grafana.json").read_text("utf-8")
