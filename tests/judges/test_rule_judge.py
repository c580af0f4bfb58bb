"""The rule judge against labelled pairs of our own; `held_out` ones were kept from rules@1, rules@2 is tuned on all."""

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
    assert sum(pair.held_out for pair in pairs) >= 200
    assert len({(pair.passage, pair.description) for pair in pairs}) == len(pairs)


@pytest.mark.parametrize(("part", "least"), [("all", 0.9), ("tuned", 0.9), ("held out", 0.85)])
def test_precision_and_recall(part: str, least: float, capsys: pytest.CaptureFixture[str]) -> None:
    pairs = [pair for pair in _pairs() if part == "all" or pair.held_out == (part == "held out")]
    precision, recall = _quality(pairs)
    with capsys.disabled():
        print(f"\nrule judge, {part}: {len(pairs)} pairs, precision {precision:.3f}, recall {recall:.3f}")
    assert precision >= least
    assert recall >= least


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
        # Only wanted, proposed or talked of; taken back in the same sentence.
        ("Week 3: We planned on a cooking class, yet stayed in.", "a cooking class", False),
        ("Week 3: I thought about the cooking class.", "a cooking class", False),
        ("Week 3: A cooking class was advertised in the tram.", "a cooking class", False),
        ("Week 3: The doctor recommended a cooking class.", "a cooking class", False),
        ("Week 3: The cooking class was missed again.", "a cooking class", False),
        ("Week 3: The cooking class isn't until June.", "a cooking class", False),
        ("Week 3: We were supposed to go to the flea market.", "the flea market", False),
        ("Week 3: I missed breakfast, and the flea market was lovely.", "the flea market", True),
        ("Floor 3: Tenants had requested a gym.", "gym", False),
        ("Floor 3: Here is the gym that tenants had requested.", "gym", True),
        ("Floor 3: The gym was removed in spring.", "gym", False),
        ("Floor 3: Plans to add a gym were shelved.", "gym", False),
        ("Floor 3: The gym has yet to open.", "gym", False),
        ("Floor 3: A gym it is not, but a spa.", "gym", False),
        ("Menu Week 3: Burger Monday, with gourmet burgers, has been pushed back.", "Burger Mondays", False),
        ("Menu Week 3: Burger Monday (the gourmet burgers are taking a break).", "gourmet burgers", False),
        ("Menu Week 9 (May 1st - May 7th): The Pie Feast is on the 30th.", "Pie Feast", False),
        ("Menu Week 9 (May 1st - May 7th): The Pie Feast is on the 3rd.", "Pie Feast", True),
        ("Menu Week 3: Burger Monday: we will have gourmet burgers.", "Burger Mondays featuring Gourmet Burgers", True),
        # Downstairs, a walk away, in sight.
        ("Floor 3: Cards are sold at the gym in the lobby.", "gym", False),
        ("Floor 3: The gym has a small lobby.", "gym", True),
        ("Floor 3: The gym proper is ten floors higher.", "gym", False),
        ("Floor 3: The gym, on floors 2 to 5, has a sauna.", "gym", True),
        ("Block 3: The museum is a ten-minute walk to the west.", "museum", False),
        ("Block 3: One can make out the museum's dome.", "museum", False),
        # What a large place must have, a small or special one without it is not.
        ("Floor 3: A compact library of atlases.", "comprehensive library with archives", False),
        ("Floor 3: A library for readers.", "comprehensive library with archives", True),
        ("Floor 3: A compact library and its archives.", "comprehensive library with archives", True),
        ("Floor 3: Luxurious apartments with balconies.", "luxury residential apartments", True),
        ("Block 3: The headquarters of the city's police.", "police station", True),
        # Holidays go by several names, and an event's day is no dish.
        ("Menu Week 3: Easter is here! Our lamb is roasted.", "Easter Brunch", True),
        ("Menu Week 3: Lunar New Year, with a banquet.", "Chinese New Year Feast", True),
        ("Menu Week 3: Burger Monday: soup only.", "Burger Mondays featuring Burgers", False),
        ("Menu Week 3: Pie Friday: chicken pie (spicy, as ever).", "Pie Friday featuring Spicy Chicken Pie", True),
        ("Week 3: Walked four dogs of the shelter.", "Volunteer at the animal shelter", True),
        ("Week 3: A sports teacher of our children rang about soccer.", "a children's sports camp for soccer", False),
        # An age without the word birthday; another's words.
        ("Week 3: Our eldest is ten! The cake had ten candles.", "my child_1 birthday", True),
        ("Week 3: Our eldest is ten pounds lighter. Cake is out.", "my child_1 birthday", False),
        ("Week 3: Forty. I bought my own cake.", "husband (yourself) birthday", True),
        ("Week 3: Forty. That is how many cakes I baked.", "husband (yourself) birthday", False),
        ('Week 3: "It\'s my birthday", our eldest sang.', "husband (yourself) birthday", False),
        ("Week 3: Two weeks until my father's birthday.", "my father birthday", False),
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
