"""How a vLLM server is found, checked and started for a run."""

from rlbook.scale.client import GeneratorClient, HTTPEngine

__all__ = ["GeneratorClient", "HTTPEngine"]
