"""What a session's calls look like in OpenTelemetry, in Prometheus and in a log: plugins, never prompt text."""

from cacheprefix.telemetry._attributes import METRICS, attributes_of
from cacheprefix.telemetry._dashboard import dashboard
from cacheprefix.telemetry._log import CallLog
from cacheprefix.telemetry._otel import Telemetry

__all__ = ["METRICS", "CallLog", "Telemetry", "attributes_of", "dashboard"]
