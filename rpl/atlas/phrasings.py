"""The wordings of Atlas questions: several for every relation. `{x}` is the entity, `{y}` what the relation adds."""

from __future__ import annotations

PHRASINGS: dict[str, tuple[str, ...]] = {
    # one hop, about a country
    "currency": (
        "What is the currency of {x}?",
        "Which currency do people use in {x}?",
        "What do people in {x} pay with?",
    ),
    "currency_code": (
        "What is the currency code of {x}?",
        "What code does the currency of {x} have?",
        "Which three letters stand for the currency of {x}?",
    ),
    "capital": (
        "What is the capital of {x}?",
        "Which city is the capital of {x}?",
        "Name the capital of {x}.",
    ),
    "language": (
        "What is the main language of {x}?",
        "Which language do people mostly speak in {x}?",
        "Name the main language of {x}.",
    ),
    "continent": (
        "On which continent is {x}?",
        "In which continent does {x} lie?",
        "Which continent does {x} belong to?",
    ),
    "country_population": (
        "What is the population of {x}?",
        "How many people live in {x}?",
        "How many people does {x} have?",
    ),
    "calling_code": (
        "What is the calling code of {x}?",
        "Which calling code reaches {x}?",
        "Which calling code does {x} have?",
    ),
    "domain": (
        "What is the internet domain of {x}?",
        "Which internet domain belongs to {x}?",
        "Which internet domain does {x} use?",
    ),
    "area": (
        "What is the area of {x} in square kilometres?",
        "How many square kilometres does {x} cover?",
        "How large is the area of {x}?",
    ),
    # one hop, about a city
    "city_population": (
        "What is the population of {x}?",
        "How many inhabitants does {x} have?",
        "How many people live in the city of {x}?",
    ),
    "city_time_zone": (
        "What is the time zone of {x}?",
        "In which time zone is {x}?",
        "Which time zone does {x} follow?",
    ),
    "city_country": (
        "In which country is the city of {x}?",
        "Which country does {x} lie in?",
        "{x} is a city in which country?",
    ),
    # two hops, from a city to its country
    "city_currency": (
        "What is the currency of the country where {x} lies?",
        "Which currency do people use in the country of the city {x}?",
        "What do people pay with in the country that {x} belongs to?",
    ),
    "city_currency_code": (
        "What is the currency code of the country where {x} lies?",
        "Which currency code has the country of the city {x}?",
        "What is the code of the currency that is used in the country of {x}?",
    ),
    "city_capital": (
        "What is the capital of the country where {x} lies?",
        "Which city is the capital of the country that {x} belongs to?",
        "Name the capital of the country of the city {x}.",
    ),
    "city_language": (
        "What is the main language of the country where {x} lies?",
        "Which language do people mostly speak in the country of the city {x}?",
        "Name the main language of the country that {x} belongs to.",
    ),
    "city_continent": (
        "On which continent is the country where {x} lies?",
        "In which continent is the country of the city {x}?",
        "Which continent does the country of {x} belong to?",
    ),
    "city_calling_code": (
        "What is the calling code of the country where {x} lies?",
        "Which calling code has the country of the city {x}?",
        "Which calling code reaches the country that {x} belongs to?",
    ),
    "city_domain": (
        "What is the internet domain of the country where {x} lies?",
        "Which internet domain has the country of the city {x}?",
        "Which internet domain belongs to the country of {x}?",
    ),
    "city_area": (
        "What is the area of the country where {x} lies?",
        "How many square kilometres does the country of the city {x} cover?",
        "How large is the area of the country that {x} belongs to?",
    ),
    # two hops, from a country to its capital
    "capital_population": (
        "What is the population of the capital of {x}?",
        "How many people live in the capital of {x}?",
        "How many inhabitants does the capital of {x} have?",
    ),
    "capital_time_zone": (
        "What is the time zone of the capital of {x}?",
        "In which time zone is the capital of {x}?",
        "Which time zone does the capital of {x} follow?",
    ),
    # comparison
    "compare_cities": (
        "Which city has more people, {x} or {y}?",
        "Which of the two cities is more populous, {x} or {y}?",
        "Does {x} or {y} have more inhabitants?",
    ),
    "compare_populations": (
        "Which country has more people, {x} or {y}?",
        "Which of the two countries is more populous, {x} or {y}?",
        "Do more people live in {x} or in {y}?",
    ),
    "compare_areas": (
        "Which country has the larger area, {x} or {y}?",
        "Which of the two countries covers more square kilometres, {x} or {y}?",
        "Does {x} or {y} cover the larger area?",
    ),
    # loop over the neighbours
    "neighbour_most_people": (
        "Which neighbour of {x} has the most people?",
        "Which country bordering {x} is the most populous?",
        "Of all neighbours of {x}, which one has the largest population?",
    ),
    "neighbour_fewest_people": (
        "Which neighbour of {x} has the fewest people?",
        "Which country bordering {x} is the least populous?",
        "Of all neighbours of {x}, which one has the smallest population?",
    ),
    "neighbour_largest_area": (
        "Which neighbour of {x} has the largest area?",
        "Which country bordering {x} covers the most square kilometres?",
        "Of all neighbours of {x}, which one covers the largest area?",
    ),
    "neighbour_smallest_area": (
        "Which neighbour of {x} has the smallest area?",
        "Which country bordering {x} covers the fewest square kilometres?",
        "Of all neighbours of {x}, which one covers the smallest area?",
    ),
    # corpus: functions of a set
    "cities_count": (
        "How many cities in {x} does the atlas list?",
        "How many cities of {x} are in the atlas?",
        "Count the cities in {x} that have an entry in the atlas.",
    ),
    "cities_largest": (
        "Which is the largest city in {x} by population in the atlas?",
        "Of all cities in {x} in the atlas, which one has the most inhabitants?",
        "Which city of {x} in the atlas is the most populous?",
    ),
    "cities_smallest": (
        "Which is the smallest city in {x} by population in the atlas?",
        "Of all cities in {x} in the atlas, which one has the fewest inhabitants?",
        "Which city of {x} in the atlas is the least populous?",
    ),
    "cities_second": (
        "Which is the second largest city in {x} by population in the atlas?",
        "Of all cities in {x} in the atlas, which one has the second most inhabitants?",
        "Which city of {x} in the atlas is the second most populous?",
    ),
    "cities_three": (
        "Which are the three largest cities in {x} in the atlas, largest first?",
        "Name the three most populous cities of {x} in the atlas in order of population.",
        "Of all cities in {x} in the atlas, which three have the most inhabitants, in descending order?",
    ),
    "neighbours_currency": (
        "How many neighbours of {x} use the {y}?",
        "In how many countries bordering {x} is the currency the {y}?",
        "Count the neighbours of {x} that pay with the {y}.",
    ),
    "neighbours_language": (
        "How many neighbours of {x} have {y} as their main language?",
        "In how many countries bordering {x} is {y} the main language?",
        "Count the neighbours of {x} where {y} is the main language.",
    ),
}
