"""The outside world: engine, git, clock, volumes. Built by wiring alone."""
