"""What a session's calls look like in OpenTelemetry, in Prometheus and in a log: plugins, never prompt text."""

from cacheprefix.telemetry.attributes import METRICS
from cacheprefix.telemetry.grafana_dashboard import alert_rules, dashboard
from cacheprefix.telemetry.log import CallLog
from cacheprefix.telemetry.otel import Telemetry

__all__ = ["METRICS", "CallLog", "Telemetry", "alert_rules", "dashboard"]
