"""A policy with a smaller vocabulary: byte pairs cut after their first merges."""

import hashlib
import json
from pathlib import Path
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from rlbook.durable import publish_once

TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")


def cut_vocabulary(source: Path, size: int, folder: Path) -> list[int]:
    """Write the model in `source` with the first `size` tokens of its vocabulary; their old ids.

    Byte pairs are merged in the order of their age, so the oldest merges are a vocabulary by
    themselves: every text still has tokens, rare words more of them. Special tokens and single
    bytes stay. What is written is an ordinary Hugging Face folder; every layer stays as it was.
    Raises `ValueError` for a vocabulary that is not made of byte pairs, or a size outside it.
    """
    tokenizer = AutoTokenizer.from_pretrained(source)
    document = json.loads(tokenizer.backend_tokenizer.to_str())
    kept = kept_ids(document, size)
    model = AutoModelForCausalLM.from_pretrained(source, dtype="auto")
    keep_rows(model, torch.tensor(kept))
    place = {old: new for new, old in enumerate(kept)}
    for config in (model.config, model.generation_config):
        for name in TOKEN_IDS if config is not None else ():
            setattr(config, name, moved(getattr(config, name, None), place))

    def write(empty: Path) -> None:
        model.save_pretrained(empty)
        tokenizer.save_pretrained(empty)
        text = json.dumps(cut_tokenizer(document, place), ensure_ascii=False)
        (empty / "tokenizer.json").write_text(text)
        settings = json.loads((path := empty / "tokenizer_config.json").read_text())
        if added := settings.get("added_tokens_decoder"):
            settings["added_tokens_decoder"] = {str(place[int(i)]): t for i, t in added.items()}
            path.write_text(json.dumps(settings, ensure_ascii=False))

    publish_once(folder, write)
    return kept


def kept_ids(document: dict[str, Any], size: int) -> list[int]:
    """The tokens that stay, by their ids: added ones, single bytes, products of the first merges.

    `document` is a `tokenizer.json`.
    """
    model = document["model"]
    if model["type"] != "BPE" or not model["merges"]:
        raise ValueError(f"only a vocabulary of byte pairs can be cut, not one of {model['type']}")
    vocabulary, products = model["vocab"], dict.fromkeys("".join(m) for m in pairs(document))
    added = {token["id"] for token in document["added_tokens"]}
    always = added | {i for token, i in vocabulary.items() if token not in products}
    everything = always | set(vocabulary.values())
    if not len(always) < size < len(everything):
        raise ValueError(
            f"vocabulary {size}: choose more than {len(always)}, the tokens that cannot go, and "
            f"fewer than {len(everything)}"
        )
    merged = [vocabulary[product] for product in products if vocabulary[product] not in always]
    return sorted(always | set(merged[: size - len(always)]))


def pairs(document: dict[str, Any]) -> list[list[str]]:
    """The merges of a `tokenizer.json`, which older files write as one text each."""
    return [m.split(" ") if isinstance(m, str) else m for m in document["model"]["merges"]]


def cut_tokenizer(document: dict[str, Any], place: dict[int, int]) -> dict[str, Any]:
    """A `tokenizer.json` with the tokens in `place`, which says where each id moves."""
    model = dict(document["model"])
    model["vocab"] = {t: place[i] for t, i in model["vocab"].items() if i in place}
    model["merges"] = [m for m in pairs(document) if {*m, "".join(m)} <= model["vocab"].keys()]
    added = [{**token, "id": place[token["id"]]} for token in document["added_tokens"]]
    post = json.loads(json.dumps(document.get("post_processor")))
    for special in ((post or {}).get("special_tokens") or {}).values():
        special["ids"] = [place[i] for i in special["ids"]]
    return {**document, "model": model, "added_tokens": added, "post_processor": post}


def keep_rows(model: PreTrainedModel, kept: Int[Tensor, " V"]) -> None:
    """Cut the rows of the embedding and of the head."""
    reads = cast(nn.Embedding, model.get_input_embeddings())
    writes = cast(nn.Linear, model.get_output_embeddings())
    for table in (reads, writes):
        table.weight = nn.Parameter(table.weight[kept].detach().clone())
    reads.num_embeddings = writes.out_features = len(kept)
    model.config.vocab_size = len(kept)
    model.tie_weights()


def moved(ids: int | list[int] | None, place: dict[int, int]) -> int | list[int] | None:
    """Ids of special tokens where they are now."""
    if isinstance(ids, list):
        return [place[i] for i in ids]
    return None if ids is None else place[ids]


def cut_name(source: Path, size: int) -> str:
    """A folder name for a model cut to so many tokens."""
    return f"{source.name}-{hashlib.sha1(str(source.resolve()).encode()).hexdigest()[:8]}-{size}"


@torch.no_grad()
def share_kept(
    model: PreTrainedModel, ids: Int[Tensor, "N T"], kept: Int[Tensor, " V"]
) -> Float[Tensor, "N T"]:
    """Probability that the whole model gives to the kept tokens after every prefix."""
    logits = cast(Tensor, model(input_ids=ids).logits)
    return logits.float().softmax(-1)[..., kept].sum(-1)
