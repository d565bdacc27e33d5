"""The same training step on GPUs: FSDP2 trainers, vLLM generators, an asynchronous pipeline."""
