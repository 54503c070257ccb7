"""Surface forms: what a title looks like in running text, and texts folded so that the two can be compared.

Case, accents, white space and the style of quotes and dashes do not count.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from itertools import accumulate

from rpl.retrieval.keyword.stopwords import STOP_WORDS

MAX_CHARACTERS = 1_000
"""The longest title that can be mentioned, folded."""

_MIN_LETTERS = 3
_WORD = re.compile(r"(\w+)")
_DISAMBIGUATION = re.compile(r"^(.*\S)\s*\([^()]*\)$")
_EDGES = frozenset(" \"'.,:;!?¡¿…*")
# NUL ends a text for C libraries.
_CHARACTERS = str.maketrans(
    {"’": "'", "‘": "'", "`": "'", "“": '"', "”": '"', "–": "-", "—": "-", "‐": "-", "‑": "-", "\0": " "}
)


@dataclass(frozen=True, slots=True)
class SurfaceForm:
    """How a title appears in a text."""

    key: str
    """Its folded text, from the first word to the last."""
    capital: bool
    """Whether the title has a capital letter, so that a mention needs one too."""


@dataclass(frozen=True, slots=True)
class FoldedText:
    """A text in which whole words can be looked up by their folded form."""

    pieces: list[str]
    """The text in turns of gap and word: gaps are at the even places, the first and the last included."""
    text: str
    """All pieces, folded."""
    ends: list[int]
    """Where each piece ends in `text`."""

    @property
    def words(self) -> int:
        """How many words there are."""
        return len(self.pieces) // 2

    def original(self, first: int, last: int) -> str:
        """Returns the text from one word to another, both included and counted from 0, as it was before folding."""
        return "".join(self.pieces[2 * first + 1 : 2 * last + 2])


def folded_text(text: str) -> FoldedText:
    """Splits a text into words and folds it.

    >>> folded_text("In Córdoba").text
    'in cordoba'
    """
    pieces = _WORD.split(clean(text))
    folded = [fold(piece) for piece in pieces]
    return FoldedText(pieces, "".join(folded), list(accumulate(map(len, folded))))


def surface_forms(title: str) -> tuple[SurfaceForm | None, SurfaceForm | None]:
    """Returns the surface form of a title, and the one without its disambiguation in brackets.

    Either is `None` where there is none: no disambiguation, or a text too short or too common to be recognised.

    >>> [form and form.key for form in surface_forms("Pepo (film)")]
    ['pepo (film', 'pepo']
    """
    match = _DISAMBIGUATION.match(title.strip())
    return _surface_form(title), _surface_form(match.group(1)) if match else None


def _surface_form(title: str) -> SurfaceForm | None:
    pieces = _WORD.split(clean(title))
    surface = "".join(pieces[1:-1])
    dropped = set(pieces[0] + pieces[-1])
    if dropped - (_EDGES | set(")" if "(" in surface else "")):
        # What is left of "÷ (album)" without its symbols would be another title.
        return None
    key = fold(surface)
    letters = sum(character.isalpha() for character in key)
    caseless = letters > 0 and surface.lower() == surface.upper()
    if letters == 0 or (letters < _MIN_LETTERS and not caseless) or key in STOP_WORDS or len(key) > MAX_CHARACTERS:
        return None
    return SurfaceForm(key, has_capital(surface))


def clean(text: str) -> str:
    """Joins white space and unifies quotes and dashes; keeps case and accents."""
    return " ".join(unicodedata.normalize("NFC", text).translate(_CHARACTERS).split())


def fold(text: str) -> str:
    """Removes case and accents, character by character: the parts of a text fold to the parts of the folded text."""
    if text.isascii():
        return text.lower()
    decomposed = unicodedata.normalize("NFKD", text.casefold())
    return "".join(c for c in decomposed if not unicodedata.combining(c))


def has_capital(text: str) -> bool:
    """Tells whether a text holds an upper-case letter."""
    return any(character.isupper() for character in text)
