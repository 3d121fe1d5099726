"""Chat formats over real tokenizers."""

import pytest

from jaxsearchrl.chat.chatml import ChatML
from jaxsearchrl.chat.harmony import Harmony


@pytest.fixture(scope="session")
def smollm2(smollm2_tokenizer):
    return ChatML(smollm2_tokenizer, terse_tools=True)


@pytest.fixture(scope="session")
def qwen3(qwen3_tokenizer):
    return ChatML(qwen3_tokenizer)


@pytest.fixture(scope="session", params=["smollm2", "qwen3"])
def chat(request):
    """Each ChatML tokenizer in turn."""
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="session")
def harmony(gptoss_tokenizer):
    return Harmony(gptoss_tokenizer, date="2025-06-28")
