"""How a prompt is put: a system message, examples, variables of the chat template."""

import pytest
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as Spelled
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast

from rlbook.tasks import Problem
from rlbook.training.chat import encode
from rlbook.training.config import RunConfig

TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if enable_thinking %}[think]{% endif %}{% if add_generation_prompt %}[assistant]{% endif %}"
)
QUESTION = Problem("q", "3+4=?", "7", meta={"chat": True})
EXAMPLES = {"examples": [["1+1=?", "2"]]}


def put(problem=QUESTION, chat=None, template=TEMPLATE):
    """The text of a prompt, by a tokenizer of bytes."""
    bytes_ = {letter: number for number, letter in enumerate(ByteLevel.alphabet())}
    speller = Tokenizer(BPE(bytes_, []))
    speller.pre_tokenizer, speller.decoder = ByteLevel(add_prefix_space=False), Spelled()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=speller, chat_template=template)
    return tokenizer.decode(encode(tokenizer, problem, chat))


def test_turns_come_in_order():
    assert put() == "[user]3+4=?[assistant]"
    assert put(chat={"system": "Think.", **EXAMPLES}) == (
        "[system]Think.[user]1+1=?[assistant]2[user]3+4=?[assistant]"
    )
    assert put(chat={"enable_thinking": True}) == "[user]3+4=?[think][assistant]"


def test_a_prompt_that_is_no_question_has_its_examples_as_lines():
    plain = Problem("p", "3+4=?", "7")
    assert put(plain, EXAMPLES) == "1+1=?\n2\n\n3+4=?"
    assert put(QUESTION, EXAMPLES, template=None) == "1+1=?\n2\n\n3+4=?"


def test_what_nothing_would_read_is_refused():
    with pytest.raises(ValueError, match=r"model\.chat\.enable_thinkin: no chat template"):
        put(chat={"enable_thinkin": False})
    with pytest.raises(ValueError, match=r"model\.chat\.system: no chat template reads"):
        put(chat={"system": "x"}, template=None)
    with pytest.raises(ValueError, match=r"model\.chat\.system: no chat template reads"):
        put(Problem("p", "3+4=?", "7"), {"system": "x"})
    with pytest.raises(ValueError, match=r"chat\.examples: write pairs"):
        RunConfig(model={"chat": {"examples": ["1+1=?"]}})
