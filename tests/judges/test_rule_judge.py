"""The rule judge against labelled pairs of our own; the held-out part was written without a look at the rules."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from velox_eval.judges import RuleJudge

PAIRS = Path(__file__).with_name("labelled_entries.jsonl")


@dataclass(frozen=True)
class Pair:
    passage: str
    description: str
    label: bool
    held_out: bool


def _pairs() -> list[Pair]:
    entries = [json.loads(line) for line in PAIRS.read_text(encoding="utf-8").splitlines()]
    return [
        Pair(entry["passage"], description, label, entry["held_out"])
        for entry in entries
        for label, key in ((True, "yes"), (False, "no"))
        for description in entry[key]
    ]


def _quality(pairs: list[Pair]) -> tuple[float, float]:
    judge = RuleJudge()
    said = [(judge.contains(pair.passage, pair.description).yes, pair.label) for pair in pairs]
    right = sum(yes is True and label for yes, label in said)
    precision = right / sum(yes is True for yes, _ in said)
    recall = right / sum(label for _, label in said)
    return precision, recall


def test_there_are_enough_pairs_and_half_are_checks_swapped_in_from_other_entries() -> None:
    pairs = _pairs()
    asked_elsewhere = {pair.description for pair in pairs if pair.label}
    swapped = [pair for pair in pairs if not pair.label and pair.description in asked_elsewhere]
    assert len(pairs) >= 200
    assert len(swapped) >= 0.5 * len(pairs)
    assert sum(pair.held_out for pair in pairs) >= 0.3 * len(pairs)
    assert len({(pair.passage, pair.description) for pair in pairs}) == len(pairs)


# Of the held-out part's no's, 7 in 10 are hard: negated, elsewhere, at another time, another thing of the same words.
@pytest.mark.parametrize(
    ("part", "least_precision", "least_recall"),
    [("all", 0.9, 0.9), ("tuned", 0.95, 0.95), ("held out", 0.8, 0.87)],
    ids=["all", "tuned", "held out"],
)
def test_precision_and_recall(
    part: str, least_precision: float, least_recall: float, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = [pair for pair in _pairs() if part == "all" or pair.held_out == (part == "held out")]
    precision, recall = _quality(pairs)
    with capsys.disabled():
        print(f"\nrule judge, {part}: {len(pairs)} pairs, precision {precision:.3f}, recall {recall:.3f}")
    assert precision >= least_precision
    assert recall >= least_recall


@pytest.mark.parametrize(
    ("passage", "description", "yes"),
    [
        ("Floor 3: A library with armchairs.", "library", True),
        ("Floor 3: There is no library here.", "library", False),
        ("Floor 3: A cafe next to the library.", "library", False),
        ("Floor 3: This level is home to the library.", "library", True),
        ("Floor 3: This level serves the library across the street.", "library", False),
        ("Floor 3: The day care centre.", "daycare center", True),
        ("Floor 3: Three libraries share this level.", "library", True),
        ("Week 3: My father's 60th birthday, with the whole family.", "my father birthday", True),
        ("Week 3: My father baked a cake for my mother's birthday.", "my father birthday", False),
        ("Week 3: My father baked a cake for my mother's birthday.", "my mother birthday", True),
        ("Week 3: My husband celebrated his birthday on Monday.", "my wife birthday", False),
        ("Week 3: My own birthday, and I slept late.", "husband (yourself) birthday", True),
        ("Week 3: Our youngest turned six.", "my child_3 birthday", True),
        ("Week 3: Our youngest turned six.", "my child_1 birthday", False),
        ("Week 3: child_2's birthday was on Tuesday.", "my child_2 birthday", True),
        ("Week 3: child_2's birthday was on Tuesday.", "my child_1 birthday", False),
        ("Week 3: My wife's birthday and my father's birthday.", "my wife birthday, my father birthday", True),
        ("Week 3: My wife's birthday and my father's visit.", "my wife birthday, my father birthday", False),
        ("Menu Week 3: Burger Mondays: soup only.", "Burger Mondays featuring Gourmet Burgers", False),
        ("Menu Week 3: Burger Monday, gourmet burgers!", "Burger Mondays featuring Gourmet Burgers", True),
        ("Week 3: Next week we have the wine-tasting evening.", "Attend wine tasting evenings", False),
        ("Week 3: A wine-tasting evening with cheese.", "Attend wine tasting evenings", True),
        # Words of one family, phrases of one meaning, spelling on either side of the Atlantic, verb and noun.
        ("Week 3: We rehearsed with the choir until ten.", "choir practice", True),
        ("Week 3: The electricity went out on Sunday.", "a power cut", True),
        ("Week 3: We picked the last grapes.", "harvesting grapes", True),
        ("Week 3: I gave blood at the school.", "a blood donation", True),
        ("Week 3: She defended her thesis.", "Thesis defence", True),
        ("Week 3: Portuguese pottery camp, day four.", "Attending a pottery camp in Portugal", True),
        ("Week 3: A golf lesson, the third.", "Attend golf lessons at the local club", True),
        ("Week 3: Coffee with two investors, and business as usual.", "Business pitch to investors", False),
        ("Floor 3: Attorneys run a firm here: a law firm.", "legal services", True),
        ("Floor 3: A detective keeps her agency here.", "private investigator office", True),
        ("Floor 3: Two tailors share a workshop. Dressmaking is taught.", "tailor and dressmaking workshop", True),
        ("Floor 3: The movie theater has ninety seats.", "small cinema", True),
        ("Block 3: Cabs wait at the taxi stand.", "taxi rank", True),
        ("Menu Week 3: Memorial Day barbecue: smoked brisket.", "Memorial Day BBQ featuring Smoked Brisket", True),
        # A place is called what it is.
        ("Block 3: There is parking for sixty cars.", "park", False),
        ("Block 3: The car park has two levels.", "small park", False),
        ("Block 3: Two parks, each with a pond.", "small park", True),
        ("Floor 3: The official records are kept here.", "office", False),
        ("Floor 3: The walls hold a library of samples.", "library", False),
        ("Block 3: School classes visit the barn.", "school", False),
        ("Floor 3: A recording booth and a dance studio.", "recording studio", False),
        ("Floor 3: A vet treats birds here. The clinic is small.", "veterinary clinic", True),
        # What goes on over several entries.
        ("Floor 3: The gym continues on this floor.", "extensive fitness and recreational gym", True),
        ("Block 3: This block continues the shopping district.", "business district", False),
        # Negation ends with its clause; some words only look like one.
        ("Floor 3: This is not a library but a small cinema.", "small cinema", True),
        ("Floor 3: Not only a library: a place to meet.", "library", True),
        ("Floor 3: No gym, cafe or library on this floor.", "library", False),
        ("Floor 3: A deck, no, a library!", "library", True),
        ("Week 3: We never missed the book club this year.", "the book club", True),
        ("Week 3: Instead of the book club I had a cold.", "the book club", False),
        ("Week 3: It rained, but the book club met.", "the book club", True),
        ("Week 3: The book club fell ill, so it was called off.", "the book club", False),
        # Another time.
        ("Week 3: Two years ago the book club met here.", "the book club", False),
        ("Week 3: I look forward to the book club.", "the book club", False),
        ("Week 3: We had looked forward to the zoo, and finally went.", "a trip to the zoo", True),
        ("Week 3: I read about the flea market.", "the flea market", False),
        ("Week 3: I was too tired to go to the flea market.", "the flea market", False),
        ("Week 3: I trained hard, for the marathon is in two weeks.", "training for a marathon", True),
        ("Floor 3: Once a brewery, now a library.", "library", True),
        ("Floor 3: Once a library, now an office.", "library", False),
        ("Floor 3: It replaced the library.", "library", False),
        ("Floor 3: This floor will house a library.", "library", True),
        # Another place.
        ("Floor 3: A tea room for readers of the library on floor 9.", "library", False),
        ("Floor 3: The library on floor 3 has two rooms.", "library", True),
        ("Floor 3: The library is two floors up.", "library", False),
        ("Floor 3: Next door is the library.", "library", False),
        ("Floor 3: It shares its stairs with the library.", "library", False),
        ("Floor 3: As quiet as a library.", "library", False),
        ("Floor 3: A model of the opera house.", "opera house", False),
        ("Floor 3: In addition to the library, there is a cafe.", "library", True),
        ("Floor 3: Views from the observatory reach the sea.", "observatory", True),
        ("Floor 3: Behind oak doors, the library opens at ten.", "library", True),
        ("Floor 3: Designed to hold a library and a cafe.", "library", True),
        ("Floor 3: It is within walking distance of the library.", "library", False),
        ("Floor 3: Views of the city from the observatory.", "observatory", True),
        ("Floor 3: Guests are greeted at the opera house, guests of honour too.", "opera house", True),
        ("Block 3: It borders the residential area.", "residential area", False),
        # Menus: a dish is one item, an event's name is one phrase.
        ("Menu Week 3: Pie Friday: fish stew, lamb pie.", "Pie Friday featuring Fish Pie", False),
        ("Menu Week 3: Pie Friday: pie of salted fish.", "Pie Friday featuring Fish Pie", True),
        ("Menu Week 3: On Friday there is fish pie.", "Pie Friday featuring Fish Pie", False),
        ("Menu Week 3: Viking Feast: herring, smoked twice.", "Viking Feast featuring Smoked Herring", True),
        # Whose birthday, and when.
        ("Week 3: My wife, Emily, was ill on Emily's birthday.", "my wife birthday", True),
        ("Week 3: My father and I sang for Emily's birthday.", "my father birthday", False),
        ("Week 3: My mother-in-law had her birthday.", "my mother birthday", False),
        ("Week 3: My friend's father had his birthday.", "my father birthday", False),
        ("Week 3: Our second son blew out six candles.", "my child_2 birthday", True),
        ("Week 3: Our second son blew out six candles.", "my child_1 birthday", False),
        ("Week 3: Dad's seventieth was on Monday; the cake fell.", "my father birthday", True),
        ("Week 3: My sister is ten now. She wore it at the birthday dinner.", "my sister's birthday", True),
        ("Week 3: They wished me a happy birthday.", "husband (yourself) birthday", True),
        ("Week 3: She could not come for my birthday.", "husband (yourself) birthday", True),
        ("Week 3: A gift for my wife's birthday in August.", "my wife birthday", False),
        ("Week 3: My wife plans her birthday, which is in August.", "my wife birthday", False),
        ("", "library", False),
        ("Week 9:", "Week", False),
    ],
)
def test_single_rules(passage: str, description: str, yes: bool) -> None:
    assert RuleJudge().contains(passage, description).yes is yes


@pytest.mark.parametrize("description", ["", "  ", "***", "—"])
def test_a_description_without_words_cannot_be_judged(description: str) -> None:
    verdict = RuleJudge().contains("Floor 3: A library.", description)
    assert verdict.yes is None
    assert "no words" in verdict.reason


@pytest.mark.parametrize(
    "passage", ["\x00", "é" * 5000, "a" * 20000, "shop " * 16000, "birthday " * 3000, "his birthday", "'s birthday"]
)
@pytest.mark.parametrize("description", ["library", "my father birthday", "(yourself) birthday", "of the", "图书馆"])
def test_any_text_gets_a_verdict(passage: str, description: str) -> None:
    assert RuleJudge().contains(passage, description).yes is False


def test_words_in_other_scripts_are_found() -> None:
    assert RuleJudge().contains("Floor 2: 图书馆 and a café.", "图书馆").yes is True


def test_the_judge_names_its_version() -> None:
    assert RuleJudge().id == "rules@2"
