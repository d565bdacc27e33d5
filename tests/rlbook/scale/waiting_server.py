"""The book's own server, but in the middle of answers it waits for new weights."""

import time

from rlbook.policy.continuous import ContinuousSampler
from rlbook.scale.generate import builtin_server

ANSWERS = 16  # of a batch
PATIENCE = 120.0  # seconds, should what it has written not suffice for a batch


class WaitingSampler(ContinuousSampler):
    """Stops, whatever is being written, when so much has ended that weights may be learned."""

    ended, since = 0, 0.0

    def step(self):
        if self.ended < ANSWERS * self.version:
            self.since = time.monotonic()
        elif time.monotonic() < self.since + PATIENCE:
            time.sleep(0.01)
            return {}
        finished = super().step()
        self.ended += len(finished)
        return finished


if __name__ == "__main__":
    builtin_server.ContinuousSampler = WaitingSampler
    builtin_server.main()
