"""Small templates, a vocabulary of bytes and control tokens, and where the shared corpus lies."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from miles_tito import ChatTokenizer
from miles_tito.render import ChatTemplate
from miles_tito.verify.vocabulary import default_vocabulary

TEMPLATES = Path(__file__).parent / "templates"
SHARED = Path(__file__).resolve().parents[3].parent / "shared"


@pytest.fixture(scope="session", autouse=True)
def _cache_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test reads or writes the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MILES_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def template_file() -> Callable[[str], Path]:
    return lambda name: TEMPLATES / f"{name}.jinja"


@pytest.fixture(scope="session")
def chat_for() -> Callable[..., ChatTokenizer]:
    """A tokenizer for one of the small templates, by name."""
    made: dict[str, ChatTokenizer] = {}

    def make(name: str, **kwargs: object) -> ChatTokenizer:
        key = f"{name} {sorted(kwargs.items())}"
        if key not in made:
            template = ChatTemplate((TEMPLATES / f"{name}.jinja").read_text(), kwargs=kwargs)
            vocabulary = default_vocabulary(template)
            made[key] = ChatTokenizer(template.with_special_tokens(vocabulary.special_tokens), vocabulary)
        return made[key]

    return make


@pytest.fixture(scope="session")
def encode() -> Callable[[ChatTokenizer, str], list[int]]:
    """Ids of a text whose control tokens are meant as such."""
    return lambda chat, text: chat.vocabulary.encode(text)[0]


@pytest.fixture(scope="session")
def corpus() -> list[Path]:
    folder = Path(os.environ.get("MILES_TEMPLATE_CORPUS") or SHARED / "templates")
    found = sorted(folder.glob("*.jinja"))
    if not found:
        pytest.skip(f"no template corpus at {folder}; name one with MILES_TEMPLATE_CORPUS")
    return found


@pytest.fixture(scope="session")
def tokenizers_folder() -> Path:
    folder = Path(os.environ.get("MILES_TOKENIZERS") or SHARED / "tokenizers")
    if not folder.is_dir():
        pytest.skip(f"no tokenizers at {folder}; name a folder with MILES_TOKENIZERS")
    return folder
