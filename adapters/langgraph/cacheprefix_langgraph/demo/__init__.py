"""The demonstration: a code-review team, as its authors would write it and as forks of one prefix."""
