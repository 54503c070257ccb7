"""All candidate questions of Atlas: one for each relation and entity, with its answers and exact gold passages.

A candidate is dropped where its gold passages are not all in one split, where a city's name alone is ambiguous, or
where two values are too close to be worth comparing.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from rpl.atlas.facts import City, Country, Facts, fold, number
from rpl.atlas.phrasings import PHRASINGS
from rpl.atlas.splits import SPLITS, split_of
from rpl.atlas.templates import borders_id, choose, country_id, geography_id, join
from rpl.core.files import digest
from rpl.core.records import Question

Item = TypeVar("Item")

MIN_RATIO = 1.05
"""Two numbers are only compared where the larger is at least so many times the smaller."""

_WORDS = ("zero", "one", "two", "three", "four", "five", "six")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A question and what the selection balances: its relation and the country it is about."""

    relation: str
    country: str
    question: Question


class QuestionWriter:
    """Writes the candidates of each kind.

    Args:
        facts: What the atlas says.
    """

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._names = Counter(fold(city.name) for city in facts.cities.values())

    def write(self) -> dict[str, list[Candidate]]:
        """Returns all candidates by kind."""
        return {
            "one_hop": [*self._country_facts(), *self._city_facts()],
            "two_hop": [*self._country_of_city(), *self._capital_of_country()],
            "comparison": [*self._compare_cities(), *self._compare_countries()],
            "loop": list(self._neighbours()),
            "corpus": [*self._city_sets(), *self._neighbour_counts()],
        }

    # one hop

    def _country_facts(self) -> Iterator[Candidate]:
        for c in self._facts.countries.values():
            main, geography = [country_id(c.code)], [geography_id(c.code)]
            yield self._ask("currency", c, currency_answers(c), main)
            yield self._ask("capital", c, name_answers(c.capital), main)
            yield self._ask("language", c, [c.language], main)
            yield self._ask("continent", c, [c.continent], main)
            yield self._ask("country_population", c, [number(c.population)], main)
            for relation, answers in geography_answers(c).items():
                yield self._ask(relation, c, answers, geography)

    def _city_facts(self) -> Iterator[Candidate]:
        for city in self._facts.cities.values():
            country = self._facts.countries[city.country]
            is_unique = self._is_unique(city)
            x = city.name if is_unique else f"{city.name} in {country.name}"
            yield self._ask("city_population", country, [number(city.population)], [city.id], x=x, key=city.id)
            yield self._ask("city_time_zone", country, time_zone_answers(city), [city.id], x=x, key=city.id)
            if is_unique:
                yield self._ask("city_country", country, name_answers(country.name), [city.id], x=x, key=city.id)

    # two hops

    def _country_of_city(self) -> Iterator[Candidate]:
        for city in self._facts.cities.values():
            if not self._is_unique(city):
                continue
            c = self._facts.countries[city.country]
            main, geography = [city.id, country_id(c.code)], [city.id, geography_id(c.code)]
            yield self._ask("city_currency", c, currency_answers(c), main, x=city.name, key=city.id)
            yield self._ask("city_language", c, [c.language], main, x=city.name, key=city.id)
            yield self._ask("city_continent", c, [c.continent], main, x=city.name, key=city.id)
            if fold(c.capital) != fold(city.name):
                yield self._ask("city_capital", c, name_answers(c.capital), main, x=city.name, key=city.id)
            for relation, answers in geography_answers(c).items():
                yield self._ask(f"city_{relation}", c, answers, geography, x=city.name, key=city.id)

    def _capital_of_country(self) -> Iterator[Candidate]:
        for c in self._facts.countries.values():
            if c.capital_id is None or not self._is_unique(city := self._facts.cities[c.capital_id]):
                continue
            gold = [country_id(c.code), city.id]
            yield self._ask("capital_population", c, [number(city.population)], gold)
            yield self._ask("capital_time_zone", c, time_zone_answers(city), gold)

    # comparison

    def _compare_cities(self) -> Iterator[Candidate]:
        cities = [city for city in self._facts.cities.values() if self._is_unique(city)]
        for split in SPLITS:
            inside = [city for city in cities if split_of(city.country) == split]
            for a, b in _pairs(inside, [city.id for city in inside], shifts=1):
                if a.country == b.country or not _differ(a.population, b.population):
                    continue
                winner = max(a, b, key=lambda city: city.population)
                country = self._facts.countries[a.country]
                yield self._compare("compare_cities", country, (a.name, b.name), winner.name, (a.id, b.id))

    def _compare_countries(self) -> Iterator[Candidate]:
        for split in SPLITS:
            inside = [c for c in self._facts.countries.values() if split_of(c.code) == split]
            for a, b in _pairs(inside, [c.code for c in inside], shifts=3):
                names = (a.name, b.name)
                if _differ(a.population, b.population):
                    winner = max(a, b, key=lambda c: c.population)
                    gold = (country_id(a.code), country_id(b.code))
                    yield self._compare("compare_populations", a, names, winner.name, gold)
                if a.area is not None and b.area is not None and _differ(a.area, b.area):
                    larger = a if a.area > b.area else b
                    gold = (geography_id(a.code), geography_id(b.code))
                    yield self._compare("compare_areas", a, names, larger.name, gold)

    def _compare(
        self, relation: str, country: Country, names: tuple[str, str], winner: str, gold: tuple[str, str]
    ) -> Candidate:
        x, y = names
        return self._ask(relation, country, name_answers(winner), gold, x=x, y=y, key="-".join(gold))

    # loop

    def _neighbours(self) -> Iterator[Candidate]:
        for c, around in self._neighbourhoods():
            gold = [borders_id(c.code), *(country_id(n.code) for n in around)]
            by_people = sorted(around, key=lambda n: n.population)
            yield self._ask("neighbour_most_people", c, name_answers(by_people[-1].name), gold)
            yield self._ask("neighbour_fewest_people", c, name_answers(by_people[0].name), gold)
            areas = {n.code: n.area for n in around if n.area is not None}
            if len(areas) != len(around) or len(set(areas.values())) != len(around):
                continue
            gold = [borders_id(c.code), *(geography_id(n.code) for n in around)]
            by_area = sorted(around, key=lambda n: areas[n.code])
            yield self._ask("neighbour_largest_area", c, name_answers(by_area[-1].name), gold)
            yield self._ask("neighbour_smallest_area", c, name_answers(by_area[0].name), gold)

    def _neighbourhoods(self) -> Iterator[tuple[Country, list[Country]]]:
        """Yields the countries that have 2 to 5 neighbours, all in their own split."""
        for c in self._facts.countries.values():
            around = [self._facts.countries[code] for code in c.neighbours]
            if 2 <= len(around) <= 5 and {split_of(n.code) for n in around} == {split_of(c.code)}:
                yield c, around

    # corpus

    def _city_sets(self) -> Iterator[Candidate]:
        for c in self._facts.countries.values():
            cities = self._facts.cities_of(c.code)
            if not 2 <= len(cities) <= 6:
                continue
            gold = [city.id for city in cities]
            names = [city.name for city in cities]
            yield self._ask("cities_count", c, count_answers(len(cities)), gold)
            yield self._ask("cities_largest", c, name_answers(names[0]), gold)
            yield self._ask("cities_smallest", c, name_answers(names[-1]), gold)
            if len(cities) > 2:
                yield self._ask("cities_second", c, name_answers(names[1]), gold)
            if len(cities) > 3:
                yield self._ask("cities_three", c, list_answers(names[:3]), gold)

    def _neighbour_counts(self) -> Iterator[Candidate]:
        for c, around in self._neighbourhoods():
            gold = [borders_id(c.code), *(country_id(n.code) for n in around)]
            currency = choose(sorted({n.currency for n in around}), "atlas-currency", c.code)
            count = sum(n.currency == currency for n in around)
            yield self._ask("neighbours_currency", c, count_answers(count), gold, y=currency)
            language = choose(sorted({n.language for n in around}), "atlas-language", c.code)
            count = sum(n.language == language for n in around)
            yield self._ask("neighbours_language", c, count_answers(count), gold, y=language)

    # shared

    def _is_unique(self, city: City) -> bool:
        return self._names[fold(city.name)] == 1

    def _ask(
        self,
        relation: str,
        country: Country,
        answers: Sequence[str],
        gold: Sequence[str],
        *,
        x: str | None = None,
        y: str = "",
        key: str | None = None,
    ) -> Candidate:
        identity = f"atlas-{relation}-{key or country.code}"
        text = choose(PHRASINGS[relation], identity).format(x=x or country.name, y=y)
        question = Question(
            id=identity,
            question=text,
            answers=tuple(dict.fromkeys(answers)),
            gold_docs=tuple(gold),
            dataset="atlas",
            split=split_of(country.code),
            hops=len(gold),
        )
        return Candidate(relation, country.code, question)


def unaccented(text: str) -> str:
    """Removes accents and keeps case: `São Tomé` becomes `Sao Tome`."""
    return "".join(c for c in unicodedata.normalize("NFD", text) if not unicodedata.combining(c))


def name_answers(name: str) -> list[str]:
    """A name as passages spell it, and without accents."""
    return [name, unaccented(name)]


def list_answers(names: Sequence[str]) -> list[str]:
    """An ordered list of names, with commas only or with "and", with and without accents."""
    forms = [", ".join(names), join(names)]
    return [*forms, *map(unaccented, forms)]


def count_answers(count: int) -> list[str]:
    """A small count in digits and in words."""
    return [str(count), _WORDS[count]]


def currency_answers(country: Country) -> list[str]:
    """A currency by name and by code."""
    return [country.currency, country.currency_code, f"{country.currency} ({country.currency_code})"]


def time_zone_answers(city: City) -> list[str]:
    """A time zone as passages write it, and in words."""
    return [city.time_zone, city.time_zone.replace("/", " ").replace("_", " ")]


def geography_answers(country: Country) -> dict[str, list[str]]:
    """Answers by relation, from the passage about a country's geography; what is not known is left out."""
    answers: dict[str, list[str]] = {"currency_code": [country.currency_code]}
    if country.calling_code is not None:
        answers["calling_code"] = [country.calling_code]
    if country.domain is not None:
        answers["domain"] = [country.domain]
    if country.area is not None:
        area = number(country.area)
        answers["area"] = [area, f"{area} square kilometres", f"{area} km2"]
    return answers


def _differ(a: int, b: int) -> bool:
    return max(a, b) >= MIN_RATIO * min(a, b)


def _pairs(items: Sequence[Item], keys: Iterable[str], shifts: int) -> Iterator[tuple[Item, Item]]:
    """Pairs every item with its next `shifts` neighbours in a hashed circle, in hashed order within the pair."""
    order = [item for _, item in sorted(zip((digest("atlas-pair", k) for k in keys), items, strict=True), key=_first)]
    for shift in range(1, shifts + 1):
        for index, item in enumerate(order):
            other = order[(index + shift) % len(order)]
            if (2 * shift < len(order)) and other is not item:
                yield item, other


def _first(pair: tuple[str, object]) -> str:
    return pair[0]
