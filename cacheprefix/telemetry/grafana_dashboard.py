"""The Grafana dashboard and the alerts for Prometheus that come with the package."""

from __future__ import annotations

from importlib.resources import files


def dashboard() -> str:
    """A dashboard for Grafana 10 and newer as JSON, for metrics that reached Prometheus; import it there as it is."""
    return files("cacheprefix.telemetry").joinpath("grafana.json").read_text("utf-8")


def alert_rules() -> str:
    """Alerting rules for Prometheus as YAML, by the metrics of the dashboard; ``promtool check rules`` reads them."""
    return files("cacheprefix.telemetry").joinpath("prometheus_alerts.yml").read_text("utf-8")
