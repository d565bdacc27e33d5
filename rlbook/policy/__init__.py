"""The language model as a policy: load it, score tokens under it, sample from it."""

from rlbook.policy.loading import load_policy, load_tokenizer
from rlbook.policy.logprobs import TokenStats, logprobs, token_stats, topk_logprobs
from rlbook.policy.sampler import Completion, Sampler, sample
from rlbook.policy.threads import set_threads

__all__ = [
    "Completion",
    "Sampler",
    "TokenStats",
    "load_policy",
    "load_tokenizer",
    "logprobs",
    "sample",
    "set_threads",
    "token_stats",
    "topk_logprobs",
]
