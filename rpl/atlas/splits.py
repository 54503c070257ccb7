"""Which countries, with all their cities, belong to which split. By hand, in blocks of neighbours.

Every question needs passages of one split only, so the blocks are regions: a question about all neighbours of a country
is possible where the whole neighbourhood lies inside one split. Both held-out splits mix continents, so that neither a
language nor a currency is theirs alone.
"""

from __future__ import annotations

from typing import Literal

Split = Literal["train", "val", "test"]

SPLITS: tuple[Split, ...] = ("train", "val", "test")

_TEST_BLOCKS = (
    "AR BO BR CL CO EC GF GY PA PE PY SR UY VE",  # South America with Panama
    "BW LS MZ MW NA SZ ZA ZM ZW",  # southern Africa
    "AD AT BE CH DE ES FR IT LI LU MC NL PT SI SM VA",  # western Europe
    "LA KH MM TH VN",  # south-east Asia
    "BB BH CU FJ JM KM LK MG MV NC TT",  # islands
)
_VAL_BLOCKS = (
    "BZ CR GT HN NI SV",  # Central America
    "CI GM GN GW LR SL SN",  # upper Guinea
    "DK FI NO SE",  # the North
    "BN MY SG",  # Malaya
    "CY IS MU NZ WS",  # islands
)

TEST = frozenset(code for block in _TEST_BLOCKS for code in block.split())
VAL = frozenset(code for block in _VAL_BLOCKS for code in block.split())


def split_of(country: str) -> Split:
    """Returns the split of a country code."""
    if country in TEST:
        return "test"
    return "val" if country in VAL else "train"
