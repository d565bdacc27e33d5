"""RL for reasoning LLMs, from REINFORCE to ScaleRL."""

__version__ = "0.1.0"
