"""The sentences of Atlas: passages of several wordings, chosen by a hash of the passage id.

Two rules keep the graph clean for programs that follow links. A text names the entity one step away before any other
entity. And the passages about borders and geography name their country only within their own title ("the borders of
Chile"), which keyword search counts as the country's name and which is no link to the country's main passage.
"""

from __future__ import annotations

from collections.abc import Sequence

from rpl.atlas.facts import City, Country, Facts, number
from rpl.core.files import digest
from rpl.core.records import Passage

_COUNTRY = (
    (
        "{name} is a country in {continent}. Capital: {capital}. Currency: {currency}. Main language: {language}. "
        "{name} has {population} people."
    ),
    (
        "The country {name} lies in {continent}. Its capital is {capital}. People in {name} pay with the {currency} "
        "and mostly speak {language}. Population: {population}."
    ),
    (
        "A country in {continent}: {name}. Capital: {capital}. The main language of {name} is {language}, "
        "the currency is the {currency}. Population: {population}."
    ),
)
_BORDERS = (
    "The borders of {name} touch these countries: {neighbours}.",
    "Neighbours across the borders of {name}: {neighbours}.",
    "Beyond the borders of {name} lie {neighbours}.",
)
_CITY = (
    "A city in {country}. {name} has {population} inhabitants. Its time zone is {time_zone}.",
    "City in {country}. The population of {name} is {population}. Time zone: {time_zone}.",
    "Located in {country}, the city {name} has {population} people. Time zone: {time_zone}.",
)
_GEOGRAPHY = (
    (
        "The geography of {}.",
        "Area: {} square kilometres.",
        "Calling code: {}.",
        "Internet domain: {}.",
        "Currency code: {}.",
    ),
    (
        "On the geography of {}.",
        "The area is {} square kilometres.",
        "Calling code: {}.",
        "Its internet domain is {}.",
        "Currency code: {}.",
    ),
    (
        "About the geography of {}.",
        "It covers an area of {} square kilometres.",
        "Its calling code is {}.",
        "Internet domain: {}.",
        "The currency code is {}.",
    ),
)


def choose(options: Sequence[str], *key: str) -> str:
    """Picks one of the options by a hash of the key."""
    return options[int(digest(*key), 16) % len(options)]


def join(names: Sequence[str]) -> str:
    """Writes a list in words.

    >>> join(["Chad", "Mali", "Togo"])
    'Chad, Mali and Togo'
    """
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def country_id(code: str) -> str:
    """Id of a country's main passage."""
    return f"country-{code}"


def borders_id(code: str) -> str:
    """Id of the passage that names a country's neighbours."""
    return f"borders-{code}"


def geography_id(code: str) -> str:
    """Id of the passage with a country's area and codes."""
    return f"geography-{code}"


def write_passages(facts: Facts) -> list[Passage]:
    """Writes all passages: of each country main, borders (where it has neighbours) and geography, then the cities."""
    passages: list[Passage] = []
    for country in facts.countries.values():
        passages.append(_country_passage(country))
        if country.neighbours:
            passages.append(_borders_passage(country, facts))
        passages.append(_geography_passage(country))
    passages += [_city_passage(city, facts.countries[city.country]) for city in facts.cities.values()]
    return passages


def _country_passage(country: Country) -> Passage:
    key = country_id(country.code)
    text = choose(_COUNTRY, key).format(
        name=country.name,
        continent=country.continent,
        capital=country.capital,
        currency=country.currency,
        language=country.language,
        population=number(country.population),
    )
    return Passage(key, country.name, text)


def _borders_passage(country: Country, facts: Facts) -> Passage:
    key = borders_id(country.code)
    neighbours = join([facts.countries[code].name for code in country.neighbours])
    text = choose(_BORDERS, key).format(name=country.name, neighbours=neighbours)
    return Passage(key, f"Borders of {country.name}", text)


def _geography_passage(country: Country) -> Passage:
    key = geography_id(country.code)
    values = (
        country.name,
        None if country.area is None else number(country.area),
        country.calling_code,
        country.domain,
        country.currency_code,
    )
    sentences = _GEOGRAPHY[int(digest(key), 16) % len(_GEOGRAPHY)]
    text = " ".join(s.format(value) for s, value in zip(sentences, values, strict=True) if value is not None)
    return Passage(key, f"Geography of {country.name}", text)


def _city_passage(city: City, country: Country) -> Passage:
    text = choose(_CITY, city.id).format(
        country=country.name, name=city.name, population=number(city.population), time_zone=city.time_zone
    )
    return Passage(city.id, city.name, text)
