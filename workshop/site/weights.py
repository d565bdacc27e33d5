"""The tiny models for the page: weights in 16 bits, and what the page must know of them.

A weight is an integer times the scale of its row. That is as large as float16 and, because the
rounding is against the largest weight of a row and not against each weight, four times as exact.
A model that another was trained to is written as the difference, for which 10 bits are enough.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

# The model of a folder of `data`, as the page calls it.
MODELS = {
    "tiny-sums": "tiny-sums, the base",
    "tiny-habits": "tiny-habits, the base",
    "tiny-habits-small": "tiny-habits, a sixth of its size",
    "tiny-habits-teacher": "tiny-habits, after RL",
}

BASES = {"tiny-habits-teacher": "tiny-habits"}  # of the models that are written as a difference


def write_weights(model: Path, folder: Path) -> Path:
    """Write `NAME.bin` and `NAME.json` of the model in folder `model`; returns the latter.

    `NAME.bin` has the scales of all rows (float32), then all weights, or what they are more than
    those of its `base`, as integers of so many `bits`, lowest bit first. The description has the
    shape of the network, the vocabulary by id, and of each tensor its length and its rows, in the
    order in which they lie there. Raises `ValueError` for a model that `model.js` cannot run.
    """
    config = json.loads((model / "config.json").read_text())
    refuse_unknown(model.name, config)
    tensors, base = load_file(model / "model.safetensors"), BASES.get(model.name)
    if base:
        start = load_file(model.parent / base / "model.safetensors")
        tensors = {name: tensor - start[name] for name, tensor in tensors.items()}
    bits = 10 if base else 16
    vocabulary = json.loads((model / "tokenizer.json").read_text())["model"]["vocab"]
    described = {
        "name": MODELS.get(model.name, model.name),
        "width": config["hidden_size"],
        "inner": config["intermediate_size"],
        "layers": config["num_hidden_layers"],
        "heads": config["num_attention_heads"],
        "theta": config["rope_parameters"]["rope_theta"],
        "epsilon": config["rms_norm_eps"],
        "bos": config["bos_token_id"],
        "eos": config["eos_token_id"],
        "tokens": sorted(vocabulary, key=vocabulary.get),
        "base": base,
        "bits": bits,
        "tensors": [[name, t.size, len(as_rows(t))] for name, t in tensors.items()],
    }
    folder.mkdir(parents=True, exist_ok=True)
    scales, integers = zip(
        *(rounded(as_rows(tensor), 2 ** (bits - 1) - 1) for tensor in tensors.values()), strict=True
    )
    parts = [*(x.astype("<f4") for x in scales), packed(np.concatenate(integers, None), bits)]
    (folder / f"{model.name}.bin").write_bytes(b"".join(part.tobytes() for part in parts))
    path = folder / f"{model.name}.json"
    path.write_text(json.dumps(described, separators=(",", ":")) + "\n")
    return path


def as_rows(tensor: np.ndarray) -> np.ndarray:
    """A matrix by its rows, a vector as one row."""
    return tensor.reshape(-1, tensor.shape[-1])


def rounded(rows: np.ndarray, levels: int) -> tuple[np.ndarray, np.ndarray]:
    """The scale of each row, and the integers up to `levels` that times it are its weights."""
    largest = np.abs(rows).max(axis=1)
    scales = np.where(largest > 0, largest / levels, 1).astype(np.float32)
    return scales, np.rint(rows / scales[:, None])


def packed(integers: np.ndarray, bits: int) -> np.ndarray:
    """Whole numbers (n,) of `bits` bits in two's complement, one after the other, as bytes."""
    ones = integers.astype(int)[:, None] >> np.arange(bits) & 1
    return np.packbits(ones.astype(bool), bitorder="little")


def refuse_unknown(name: str, config: dict[str, Any]) -> None:
    """`ValueError` for what `model.js` does not do."""
    wanted = {
        "model_type": "llama",
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "num_key_value_heads": config["num_attention_heads"],
        "attention_bias": False,
        "mlp_bias": False,
    }
    wrong = [
        f"{key}={config.get(key)!r}" for key, value in wanted.items() if config.get(key) != value
    ]
    if wrong:
        raise ValueError(f"the page cannot run {name}: {', '.join(wrong)}")
