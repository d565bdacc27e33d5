"""The ranks that share an update, their checkpoints, and how weights reach the servers."""
