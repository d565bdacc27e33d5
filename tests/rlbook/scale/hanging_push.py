"""What test_nccl runs: the trainer, its first transfer waiting for ever as NCCL would: `… <run>`.

The file `hung` in the run's folder says that it has; after that, transfers succeed.
"""

import asyncio
import sys
import threading
from pathlib import Path

from rlbook.scale.train import trainer, weight_sync
from rlbook.scale.train.nccl import NCCLTransport
from rlbook.scale.train.weights import FileTransport


class FakeEngine:
    """vLLM's trainer-side engine; what it sends goes by files."""

    def __init__(self, transport, relay):
        self.transport, self.client = transport, relay

    def send_weights(self):
        hung = self.transport.layout.root / "hung"
        if not hung.exists():
            hung.touch()
            threading.Event().wait()
        sending = FileTransport.send(self.transport, self.client.generator)
        asyncio.run_coroutine_threadsafe(sending, self.client.loop).result()


class FakeNCCL(NCCLTransport, FileTransport):
    gather = FileTransport.gather

    def meet(self, relay):
        return FakeEngine(self, relay)

    async def connect(self, client, fresh):
        await FileTransport.connect(self, client, fresh)
        await NCCLTransport.connect(self, client, fresh)


if __name__ == "__main__":
    weight_sync.TRANSPORTS["file"] = FakeNCCL
    trainer.main([str(Path(sys.argv[1]))])
