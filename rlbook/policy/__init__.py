"""The language model as a policy: load it, score tokens under it, sample from it."""

from rlbook.policy.loading import *
from rlbook.policy.logprobs import *
from rlbook.policy.sampler import *
from rlbook.policy.threads import *
