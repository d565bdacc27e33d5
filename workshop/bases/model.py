"""The tiny language model: half a million parameters, one token per character or word."""

from collections.abc import Sequence

from tokenizers import Regex, Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from tokenizers.processors import TemplateProcessing
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from workshop.bases.demonstrations import WORDS

SPECIAL_TOKENS = ("<pad>", "<bos>", "<eos>", "<unk>")
TAGS = ("<think>", "</think>", "<answer>", "</answer>")
VOCABULARY = (*SPECIAL_TOKENS, *TAGS, *WORDS, *"0123456789+-=;?")
PAD_ID, BOS_ID, EOS_ID, UNK_ID = range(4)
MAX_POSITIONS = 256


def build_tokenizer(vocabulary: Sequence[str] = VOCABULARY) -> PreTrainedTokenizerFast:
    """Digits, signs, tags and whole words; `tokenizer(prompt)` puts `<bos>` in front.

    Words carry their trailing space, so text made of this vocabulary survives a round trip.
    """
    ids = {token: i for i, token in enumerate(vocabulary)}
    core = Tokenizer(WordLevel(ids, unk_token="<unk>"))
    core.pre_tokenizer = Split(Regex(r"</?[a-z]+>|[a-z]+ ?|(?m:.)"), behavior="isolated")
    core.post_processor = TemplateProcessing(
        single="<bos> $A", pair="<bos> $A $B", special_tokens=[("<bos>", BOS_ID)]
    )
    core.decoder = Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
        model_max_length=MAX_POSITIONS,
        clean_up_tokenization_spaces=False,
    )


def build_model(
    vocabulary: Sequence[str] = VOCABULARY, width: int = 128, layers: int = 3
) -> LlamaForCausalLM:
    """A freshly initialised Llama: 4 heads, untied LM head, MLPs twice as wide as the rest.

    Initial weights depend on torch's global seed alone.
    """
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=width // 4,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=False,
        pad_token_id=PAD_ID,
        bos_token_id=BOS_ID,
        eos_token_id=EOS_ID,
    )
    model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(
        bos_token_id=BOS_ID, eos_token_id=EOS_ID, pad_token_id=PAD_ID, do_sample=True
    )
    return model
