"""The servers that write completions, and how they are spoken to."""
