"""Token-in-token-out chat tokenization for any Hugging Face chat template, proved or refused."""

from miles_tito.compare import Difference, Kind, Report
from miles_tito.errors import Divergence, NotExtendable, TemplateError
from miles_tito.parsers.stream import StreamParser, join_deltas
from miles_tito.profile import Profile
from miles_tito.tokenizer import ChatTokenizer
from miles_tito.transcript import Piece, Transcript
from miles_tito.vocabulary import Vocabulary

__all__ = [
    "ChatTokenizer",
    "Difference",
    "Divergence",
    "Kind",
    "NotExtendable",
    "Piece",
    "Profile",
    "Report",
    "StreamParser",
    "TemplateError",
    "Transcript",
    "Vocabulary",
    "join_deltas",
]

__version__ = "0.1.0"
