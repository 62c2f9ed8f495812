"""Four tables as a person could have them, for measuring what a model learns of a task of one's own:

    python tests/benchmarks/own_tables.py --to FOLDER [--rows 280] [--seed 1]

trades.csv (a tenant's report -> who is sent: one of five), orders.csv (an order in words -> JSON with three keys), amounts.csv
(a note -> the amount in it, in the small unit: 2.5 km -> 2500 m), diary.csv (a jotted appointment -> house style:
"Meeting w/ Dr Smith 3pm" -> "15:00 Smith, Dr"). The same seed gives the same bytes. Each has more than thirty sentences
with many slots, and no text stands in it twice: what is learned is the rule, not the rows.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

ROWS = 280
SEED = 1
Made = tuple[str, str]
"""A question and its answer."""

ROOMS = (
    "kitchen|bathroom|bedroom|hallway|cellar|attic|laundry room|guest room|living room|study|stairwell|garage".split(
        "|"
    )
)
FLATS = [f"flat {number}{letter}" for number in (2, 3, 5, 7, 11, 14, 18, 23) for letter in ("", "a", "b")]
SINCE = (
    "since Monday|since last night|for three days now|again|since the storm|since the weekend|after the works next door|all week"
).split("|")
OPENINGS = "|Hello, |Hi there, |Good morning, |Sorry to bother you again: |Please help: |Quick one - |To the caretaker: ".split(
    "|"
)
CLOSINGS = (
    "|. Thanks|. Can somebody come today?|. We are in after five|!|. Best, the Moors|. It is getting worse|, please call"
).split("|")
TRADES = {
    "plumber": (
        "the tap in the {room} drips {since}",
        "water runs down the wall of the {room} in {flat}",
        "the toilet of {flat} does not stop flushing {since}",
        "our sink in the {room} is clogged {since}",
        "there is a puddle under the washbasin, {flat}, {since}",
        "the shower of {flat} drains very slowly {since}",
        "no water pressure in the {room} of {flat}",
        "a pipe burst behind the {room} and everything is wet",
        "brown water comes out when I fill a glass in the {room} {since}",
    ),
    "electrician": (
        "the lights in the {room} flicker {since}",
        "a socket in the {room} of {flat} sparks when I plug something in",
        "the fuse goes out whenever the oven is on {since}",
        "half of {flat} has no power {since}",
        "the doorbell of {flat} makes no sound {since}",
        "the switch in the {room} gives me small shocks",
        "the lamp above the door of the {room} stays dark {since}",
        "it smells of burnt plastic at the outlet in the {room}",
        "the meter cupboard of {flat} hums loudly {since}",
    ),
    "heating": (
        "the radiator in the {room} stays cold {since}",
        "only 15 degrees in the {room} of {flat} {since}",
        "the boiler shows a red light and will not start {since}",
        "we cannot turn down the warmth in the {room}, it is like a sauna",
        "the thermostat of {flat} does not react {since}",
        "radiators gurgle all night in {flat}",
        "the underfloor warmth of the {room} never comes on {since}",
        "no warm rooms in {flat} although every valve is open",
        "the gas burner clicks but the house stays freezing {since}",
    ),
    "locksmith": (
        "my key broke off in the door of {flat}",
        "the lock of the {room} jams {since}",
        "I am shut out of {flat} and the spare is inside",
        "the front door does not close properly {since}",
        "we lost both keys of the {room}",
        "somebody tried to force the door of {flat} {since}",
        "the bolt of the {room} window cannot be moved {since}",
        "the handle of the entrance came off in my hand",
        "the new key does not turn in the cylinder of {flat}",
    ),
    "pests": (
        "we found mice in the {room} {since}",
        "ants march through the {room} of {flat} {since}",
        "there is a wasps' nest outside the {room}",
        "something scratches in the ceiling of the {room} at night",
        "cockroaches ran out when I opened the cupboard in the {room}",
        "moths are eating the carpets of {flat} {since}",
        "droppings behind the fridge in {flat} {since}",
        "pigeons are nesting on the balcony of {flat} {since}",
        "small beetles in all the flour packets, {flat}, {since}",
    ),
}

FIRST = (
    "Ada|Bruno|Carla|Dario|Elif|Farid|Greta|Hugo|Imani|Jonas|Kira|Liam|Mira|Noor|Oskar|Paula|Quinn|Rosa|Sven|Tara|Umar|Vera|Wanda|Yusuf"
).split("|")
LAST = (
    "Abbott|Bauer|Castro|Dietz|Evans|Falk|Garcia|Huber|Ito|Jansen|Keller|Larsen|Moreau|Novak|Okafor|Petrov|Quist|Rossi|Sato|Thorne|"
    "Ueda|Vogel|Walsh|Young|Zeller|Smith|Brandt|Cohen|Duarte|Nilsson"
).split("|")
CITIES = (
    "Porto|Lyon|Graz|Bergen|Cork|Leeds|Turin|Ghent|Basel|Malmo|Tartu|Gdansk|Split|Bilbao|Utrecht|Kassel|Reno|Boise|Tampa|Osaka|"
    "Lima|Quito|Perth|Dakar"
).split("|")
GOODS = (
    "chairs|desk lamps|boxes of tea|garden hoses|blue mugs|paint rollers|tickets|notebooks|bicycle tyres|blankets|candles|"
    "bags of soil|door mats|picture frames|trays|wine glasses"
).split("|")
NUMBER_WORDS = "zero one two three four five six seven eight nine ten eleven twelve".split()
ORDERS = (
    "{name} from {city} wants {n} {goods}",
    "please send {n} {goods} to {name} in {city}",
    "{n} {goods} for {name}, {city}",
    "order by phone: {name}, {city}, {n} {goods}",
    "{name} ({city}) asked for {n} {goods} by Friday",
    "to {city}: {n} {goods}, attention {name}",
    "I would like {n} {goods}. My name is {name} and I live in {city}",
    "{city} branch, {name} here, we need {n} {goods}",
    "can you deliver {n} {goods} to {city}? Regards, {name}",
    "this is {name}. {n} {goods} please, shipped to {city}",
    "{n} more {goods} for our shop in {city}, says {name}",
    "customer {name} takes {n} {goods}, pick-up in {city}",
    "{name} called again, it is {n} {goods} now, still to {city}",
    "reserve {n} {goods} under {name}, {city}",
    "the {city} order: {n} {goods}, invoice to {name}",
    "{name} bought {n} {goods} at the fair and lives in {city}",
    "for {name}: {goods}, {n} of them, going to {city}",
    "ship to {name}, {city}. Contents: {n} {goods}",
    "{goods} x {n} - {name} - {city}",
    "we owe {name} in {city} {n} {goods}",
    "{name} changed the address to {city}, the {n} {goods} stay",
    "new client {name}, based in {city}, starts with {n} {goods}",
    "{city} again! {name} needs {n} {goods} for the summer party",
    "a van leaves for {city} with {n} {goods} that {name} paid for",
    "{name} emailed: {n} {goods}, same place in {city}",
    "put {n} {goods} aside, {name} collects them on the way to {city}",
    "delivery {city}, quantity {n}, {goods}, recipient {name}",
    "hello from {city}, {name} speaking, I am after {n} {goods}",
    "{n} {goods} went missing, resend them to {name} in {city}",
    "quote for {name}, {city}: {n} {goods}",
    "would {n} {goods} reach {city} by Monday? {name}",
    "{name}, {n} {goods}, {city}, paid in cash",
)

UNITS = (("km", "m", 1000), ("kg", "g", 1000), ("l", "ml", 1000), ("cm", "mm", 10))
"""What a note says, what the list wants, how many of these are one of those."""
AMOUNTS = {
    "km": (
        "the walk to hut {k} was {x} this morning",
        "we still have {x} to go, said guide {k}",
        "stage {k} of the race is {x} long",
        "from platform {k} it is {x} to the lake",
        "bus {k} stops {x} from our house",
        "on day {k} we rowed {x} against the wind",
        "the detour at exit {k} adds {x}",
        "runner {k} gave up after {x}",
        "trail {k} ends {x} past the bridge",
    ),
    "kg": (
        "parcel {k} came to {x} on the scales",
        "we need {x} of flour for {k} cakes",
        "bag {k} may not be heavier than {x}",
        "the {k} hens ate {x} of grain",
        "crate {k} holds {x} of apples",
        "add {x} of sand to bucket {k}",
        "our {k} cats together eat {x} a week",
        "the catch of boat {k} was {x} today",
        "for {k} people you want {x} of potatoes",
    ),
    "l": (
        "tank {k} lost {x} over night",
        "pour {x} into jar {k} and wait",
        "{k} guests drank {x} of juice",
        "the soup for table {k} takes {x} of stock",
        "plant {k} gets {x} every morning",
        "machine {k} needs {x} of oil",
        "we collected {x} of rain in {k} hours",
        "bottle {k} still has {x} in it",
        "mix {x} of paint for room {k}",
    ),
    "cm": (
        "plank {k} is {x} too long",
        "the {k} shelves are {x} deep",
        "hem {k} must come up by {x}",
        "hole {k} sits {x} from the edge",
        "snow on day {k}: {x}",
        "cut strip {k} at {x}",
        "the gap behind cupboard {k} is {x} wide",
        "sunflower {k} grew {x} in May",
        "leave {x} between the {k} pots",
    ),
}

TITLES = "Dr Prof Mr Ms Mrs".split()
APPOINTMENTS = (
    "Meeting w/ {who} {time}",
    "{time} call {who}",
    "see {who} at {time}",
    "lunch with {who}, {time}",
    "{who} {time} (bring the file)",
    "don't forget {who} at {time}!!",
    "{time}: {who} comes by",
    "appt {who} - {time}",
    "ring {who} around {time}",
    "{who}, {time}, room 4",
    "coffee {time} with {who}",
    "at {time} {who} wants a word",
    "{who} moved to {time}",
    "pick up {who} {time} station",
    "tmrw {time} {who}",
    "new: {who} @ {time}",
    "{time} - interview {who}",
    "skype {who} {time}",
    "{who} can only do {time}",
    "dentist, i.e. {who}, {time}",
    "visit to {who} ({time})",
    "confirm {time} with {who}",
    "{time} sharp, {who}",
    "handover to {who} at {time}",
    "{who} again, {time} this time",
    "walk w {who}, {time} at the gate",
    "{time} {who} re contract",
    "tell {who} that {time} is fine",
    "demo for {who} starts {time}",
    "catch {who} before the talk, {time}",
    "{who}: {time} ok?",
    "late one: {time} {who}",
)


def _trade(rng: random.Random, number: int) -> Made:
    trade = list(TRADES)[number % len(TRADES)]
    text = rng.choice(TRADES[trade]).format(room=rng.choice(ROOMS), flat=rng.choice(FLATS), since=rng.choice(SINCE))
    opening = rng.choice(OPENINGS)
    return (opening + text if opening else text[0].upper() + text[1:]) + rng.choice(CLOSINGS), trade


def _order(rng: random.Random, number: int) -> Made:
    name, city = f"{rng.choice(FIRST)} {rng.choice(LAST)}", rng.choice(CITIES)
    in_words = rng.random() < 0.3
    quantity = rng.randint(2, 12) if in_words else rng.choice((rng.randint(2, 20), rng.randint(21, 480)))
    n = NUMBER_WORDS[quantity] if in_words else str(quantity)
    text = ORDERS[number % len(ORDERS)].format(name=name, city=city, n=n, goods=rng.choice(GOODS))
    return text[0].upper() + text[1:], json.dumps({"name": name, "quantity": quantity, "city": city})


def _amount(rng: random.Random, number: int) -> Made:
    large, small, factor = UNITS[number % len(UNITS)]
    if rng.random() < 0.2:  # as the list wants it already
        wanted = rng.randint(2, 99) * (10 if factor == 1000 else 1)
        written = f"{wanted} {small}"
    else:
        value = Decimal(rng.choice((rng.randint(11, 99), rng.randint(2, 40) * 10, rng.randint(101, 999)))) / 10
        wanted = int(value * factor)
        written = f"{value.normalize():f} {large}"
    sentence = rng.choice(AMOUNTS[large]).format(x=written, k=rng.randint(2, 19))
    return sentence[0].upper() + sentence[1:], f"{wanted} {small}"


def _appointment(rng: random.Random, number: int) -> Made:
    hour, minute = rng.randint(7, 20), rng.choice((0, 0, 0, 15, 30, 45))
    twelve, half = (hour - 1) % 12 + 1, "am" if hour < 12 else "pm"
    minutes = rng.choice((":", ".")) + f"{minute:02}" if minute else ""
    spoken = f"{twelve}{minutes}{rng.choice(('', ' '))}{half}"
    written = f"{hour}h{minute:02}" if minute else f"{hour}h"
    time = spoken if rng.random() < 0.75 else written
    title, last = rng.choice(TITLES), rng.choice(LAST)
    dot = "." if rng.random() < 0.3 else ""
    first = f"{rng.choice(FIRST)} " if rng.random() < 0.3 else ""
    text = APPOINTMENTS[number % len(APPOINTMENTS)].format(who=f"{title}{dot} {first}{last}", time=time)
    return text, f"{hour:02}:{minute:02} {last}, {title}"


TABLES: dict[str, tuple[tuple[str, str], Callable[[random.Random, int], Made]]] = {
    "trades": (("report", "trade"), _trade),
    "orders": (("order", "record"), _order),
    "amounts": (("note", "amount"), _amount),
    "diary": (("jotted", "house_style"), _appointment),
}
"""A table's name -> its two columns, the question's and the answer's, and what makes a row."""


def rows(name: str, count: int = ROWS, seed: int = SEED) -> list[Made]:
    """The rows of a table, each text once, in an order that says nothing of the answer."""
    rng = random.Random(f"{name} {seed}")
    made: dict[str, str] = {}
    while len(made) < count:
        text, answer = TABLES[name][1](rng, len(made))
        made.setdefault(text, answer)
    shuffled = list(made.items())
    rng.shuffle(shuffled)
    return shuffled


def write_table(folder: Path, name: str, count: int = ROWS, seed: int = SEED) -> Path:
    """The table as a CSV file in this folder."""
    path = folder / f"{name}.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(TABLES[name][0])
        writer.writerows(rows(name, count, seed))
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", type=Path, required=True, metavar="FOLDER", help="where the CSV files go")
    parser.add_argument("--rows", type=int, default=ROWS, help=f"rows of each table (default: {ROWS})")
    parser.add_argument("--seed", type=int, default=SEED, help=f"other rows for another number (default: {SEED})")
    arguments = parser.parse_args()
    arguments.to.mkdir(parents=True, exist_ok=True)
    for name in TABLES:
        print(write_table(arguments.to, name, arguments.rows, arguments.seed))


if __name__ == "__main__":
    main()
