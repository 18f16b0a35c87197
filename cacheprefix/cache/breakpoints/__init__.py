"""Cache breakpoints: where they should be set, setting them on a body, and reading those that a request has."""
