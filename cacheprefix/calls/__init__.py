"""What a session makes of each model request: under way, finished, and in the report."""
