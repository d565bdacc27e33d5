"""One thread for every test: small tensors gain nothing from two, and busy machines lose."""

from rlbook.policy import set_threads

set_threads(1)
