"""What a run will need, before it starts: memory, seconds, staleness."""
