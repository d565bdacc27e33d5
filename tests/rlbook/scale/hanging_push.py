"""What test_nccl runs: the trainer, its first transfer waiting for ever as NCCL would: `… <run>`.

The file `hung` in the run's folder says that it has; after that, transfers succeed.
"""

import asyncio
import threading

from rlbook.scale.train import trainer, weight_sync
from rlbook.scale.train.weights import FileTransport, NCCLTransport


class FakeNCCL(NCCLTransport, FileTransport):
    """What it sends goes by files; it is vLLM's trainer-side engine itself."""

    prepare = FileTransport.prepare

    async def send(self, client, fresh):
        self.client, self.loop = client, asyncio.get_running_loop()
        await NCCLTransport.send(self, client, fresh)

    def meet(self, routes, generators):
        return self

    def send_weights(self):
        hung = self.layout.root / "hung"
        if not hung.exists():
            hung.touch()
            threading.Event().wait()
        sending = FileTransport.send(self, self.client, fresh=True)
        asyncio.run_coroutine_threadsafe(sending, self.loop).result()


if __name__ == "__main__":
    weight_sync.TRANSPORTS["file"] = FakeNCCL
    trainer.main()
