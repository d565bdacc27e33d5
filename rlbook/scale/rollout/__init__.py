"""Which prompts are asked, what becomes of the answers, which of them make a batch."""
