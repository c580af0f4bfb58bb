"""Whether what an entry mentions is in it: not negated, not at another time, not at another place.

A mention is judged within its clause (wording.Token.clause): "not a library but a cafe" has a cafe. A clause that goes
on about it ("the film night, but it was cancelled") counts too, and so does a short one that says when ("Next week,
we ...").
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from velox_eval.judges.vocabulary import word_set
from velox_eval.judges.wording import Token, normal, tokenise

_HEADER = re.compile(
    r"^[\s#*]*(?P<word>[^\W\d]+(?: [^\W\d]+){0,2}) (?P<number>\d{1,9})(?: *\([^)\n]{0,80}\))? *(?:[:\n–—-]|\.\s|$)"
)
_PLACES = {"floor", "block"}
_WINDOW = 8  # words to either side that can say something of a mention
_WINDOW_AFTER = 12  # "the office that they had asked for was never opened"
_SHORT_CLAUSE = 5
_LONGEST = 40  # words of a clause to either side; a looping model writes no full stop

# A negation and how many words it may stand before what it negates.
_NOT = {"not": 6, "never": 6, "cannot": 6, "neither": 6, "nor": 5, "no": 3, "without": 4, "unlike": 4, "except": 3}
_NOT |= {"lack": 3, "lacks": 3, "lacking": 3, "skipped": 4, "skip": 4, "skipping": 4, "missed": 4, "nowhere": 4}
_NOT |= {
    "nobody": 4,
    "nothing": 3,
    "replaced": 4,
    "replaces": 4,
    "replacing": 4,
    "hardly": 4,
    "declined": 4,
    "refused": 4,
}
_NOT_PAIRS = {
    ("instead", "of"),
    ("rather", "than"),
    ("in", "lieu"),
    ("absence", "of"),
    ("off", "from"),
    ("break", "from"),
    ("place", "of"),
}
# "not only a library", "never missed the book club", "no doubt": no negations.
_NOT_NEGATED = word_set(
    """
    only just merely simply miss missed forget forgot resist help believe doubt matter wonder less better
    surprise problem shortage far exception hesitate long
    """
)
_CALLED_OFF = re.compile(
    r"\b(?:cancell?ed|postponed|rescheduled|abandoned|"
    r"call(?:ed)? (?:it |them )?off|put (?:it )?off|rained off|fell through|sold out|off the menu|"
    r"never (?:built|opened|held|came|happened|finished|took)|moved (?:to|away|out)|gave way|made way|"
    r"(?:is|was|are|were|stays?|stayed|remains?|remained|be|been) (?:closed|off(?! the| to)|shut|"
    r"gone|unavailable|delayed)|"
    r"(?:is|are|was|were) out(?! of)|"
    r"(?:is|was|are|were) not (?:here|on|in|part|held|available|served|open|offered)|"
    r"(?:is|was|are|were)n't (?:here|on|in|part|held|available|served|open|offered)|"
    r"(?:did not|didn't|does not|doesn't|will not|won't) (?:take place|happen|meet|exist|run|open)|"
    r"torn down|demolished|burned down|burnt down|no longer|no more)\b"
)
_REFERS_BACK = {"which", "it", "they", "that", "but", "and", "so"}
_SAME_THING = {"it", "they", "that", "this", "was", "were", "is", "had", "has", "both"}

_SEASONS = (
    r"week|weekend|month|year|time|meeting|summer|winter|spring|autumn|fall|(?:mon|tues|wednes|thurs|fri|satur|sun)day"
)
_OTHER_TIME = re.compile(
    rf"\b(?:next (?:{_SEASONS})|last (?:{_SEASONS})|last (?:year|month|week|summer)'s|tomorrow|"
    r"(?:look|looking|looked) forward|can't wait|cannot wait|"
    r"(?:week|month|year|day)s? (?:away|ago|earlier|back|from now)|"
    r"used to|one day|some day|someday|promised|(?:hope|hoping|hoped|want|wants|wanted|wish|wished|intend) to|"
    r"(?:plan|plans|planned|planning) (?:to|for|her|his|my|our|the)|would (?:like|love|have|be)|should have|could have|"
    r"(?:will|we'll|i'll|going to|might|may) (?:be|have|take|hold|host|celebrate|go|join|attend|"
    r"start|begin|come|return|visit)|"
    r"too \w+ to|told (?:me|us) (?:all )?about|(?:excited|eager|keen) to (?:attend|join|go|visit|"
    r"try)|unable to|failed to|i (?:had )?(?:dreamed|dreamt|imagined|pretended)|"
    r"(?:talk|talks|talked|thought|think|thinking|dream|dreams|dreamed|dreamt|dreaming) of|around the corner|coming up|"
    r"upcoming|i remember(?:ed)? (?:the|how|when|last|our|my)|memories of|when i was|as a child|"
    r"(?:signed|signing|sign) (?:\w+ ){0,2}up|registered|enrolled|getting ready for|prepar\w+ for|preparations for)\b"
)
_STILL_TO_COME = re.compile(
    r"^(?:(?:of|for|with) (?:\w+ ){1,3}?)?(?:is|are|comes?|starts?|begins?|takes place|will) (?:still |only |not )?"
    r"(?:in (?:\w+ ){1,2}(?:days|weeks|months)|until|in (?:january|february|march|april|may|june|july|august|september|"
    r"october|november|december))\b"
)
# Only spoken, read or heard of: these words stand before the mention.
_TALK = re.compile(
    r"\b(?:read|reads|reading|heard|talk\w*|told|tells|dream\w*|documentary|article|chat\w*|wrote|"
    r"idea|mention\w*|ask\w*|"
    r"poster|flyer|advert\w*|invitations?|tickets?|brochure|leaflet|reminds?|reminded|reminder)\b(?: \w+){0,4}? "
    r"(?:about|of|for|to|on)\b"
)
_FORMER = re.compile(
    r"\b(?:once (?!an? (?:year|week|month|day|hour))|formerly|former|previously|used to (?:be|house|hold|stand|have)|"
    r"(?:was|were) (?:\w+ )?planned|(?:meant|supposed) to be|plans for|next year|last year)(?!.*\b(?:now|today)\b)"
)
_FORMER_AFTER = re.compile(
    r"\b(?:used to|once stood|once \w+ here|once \w+ed|years ago|(?:was|were) (?:once |"
    r"originally )?(?:planned|proposed)|until \d{4}|"
    r"will (?:open|follow|move|be (?:built|added|opened))|next year|last year)\b"
)

_POINTING = word_set(
    """
    near beside opposite above below beneath behind across towards toward past from under to between outside
    beyond along underneath
    """
)
# "home to a library", "visitors to the museum", "views from the terrace": the preposition points at nothing else.
_ARRIVING = word_set(
    """
    home dedicated devoted given belongs belonging converted turned welcome welcomes visitors entrance addition
    allocated assigned reserved transformed transforms thanks committed apart aside view views vista panorama
    due return returns corresponds leave leaves depart departs start starts
    """
)
_BEFORE_TO = word_set(
    """
    next close adjacent connected linked opposite way door doors path bridge stairs lift over down up leads lead
    back walk walking go goes going went adjoining near nearer nearest on come road bus trains corridor access
    """
)
_DETERMINERS = word_set("the a an its this our their his her my both another two three some")
_PEOPLE = word_set(
    """
    students pupils guests visitors patients customers residents staff employees workers
    """
)
_BREAKS = word_set(
    """
    here there is are was were has have houses holds where which that make makes offers hosts fills forms form
    occupies contains turns features featuring includes including boasts provides has featured include
    """
)
_SEEING = word_set(
    """
    see sees seen view views overlook overlooks overlooking look looks looking connects connected connecting
    reach reaches brings borders bordering faces facing adjoins abuts flanks supplies delivers leads visible
    """
)
_VIEWS = word_set("view views vista vistas panorama")
_BESIDE = word_set(
    """
    nearby neighboring neighbouring neighbour neighbours neighbor neighbors adjacent surrounding distant adjoining
    opposite
    """
)
_SERVING = word_set("serves serve serving helps")
_PART_OF = word_set(
    """
    distance vicinity roof lights smell sound sounds noise back
    rear shadow north south east west model models painting paintings
    picture pictures photo photos photographs drawing drawings mural map maps portrait postcards replica scent
    edge wall
    """
)
_SIMILE = {"feels", "looks", "sounds", "smells", "much", "more", "less", "just", "quiet", "resembles"}
_AFTER = re.compile(
    r"^(?:nearby|upstairs|downstairs|downtown|across|opposite|overhead|next door|down the (?:street|road)|"
    r"on the other|"
    r"(?:\w+ ){0,6}?(?:(?:reached|seen|visible) from (?:here|this)|can be (?:heard|smelled|seen))|"
    r"(?:starts?|begins?|lies|is|are|stands?) (?:just |right )?(?:across|beyond|opposite|next door|"
    r"further|nearby|(?:down|up) the)|"
    r"(?:\w+ ){0,2}?(?:(?:in|on) the (?:next|neighbou?ring|adjacent|adjoining) (?:block|floor|level|street)|"
    r"(?:on|in) the (?:floor|level|storey|block) (?:above|below|next)|"
    r"(?:one|two|three|four|five|\d+|several|few) (?:floor|level|block|storey|street|stop)s? "
    r"(?:up|down|above|below|away|over|further|lower|higher|east|west|north|south|off)))\b"
)
# "Next door is the brewery": what follows such a beginning is elsewhere.
_ELSEWHERE = re.compile(
    r"^(?:and |but )?(?:right |just )?(?:next door|opposite|nearby|upstairs|downstairs|across (?:the|from)|further|"
    r"(?:next to|beside|behind) (?:it|this)|(?:one|two|three|a few) (?:floor|level|block|street)s? \w+)\b"
    r".*\b(?:is|are|was|were|stands?|lies?|sits?)\b"
)
_NUMBERED = re.compile(
    r"\b(?:floor|block|level)s? (\d{1,9})(?: (?:to|and|through) (?:floor |block |level )?(\d{1,9}))?"
)
_GOES_ON = re.compile(r"\b(?:continu\w+|exten\w+|expan\w+|spans?|spanning|rest of|part of)\b")


@dataclass(frozen=True)
class Entry:
    """One entry of an answer: its words after the header, what it is of, and the number in its header."""

    tokens: Sequence[Token]
    about_places: bool
    is_menu: bool
    number: int | None
    header: str


@lru_cache(maxsize=256)
def read(passage: str) -> Entry:
    """Returns the entry that `passage` is."""
    header = _HEADER.match(passage)
    tokens = tuple(tokenise(passage[header.end() :] if header else passage))
    if header is None:
        return Entry(tokens, False, False, None, "")
    kinds = normal(header["word"]).split()
    return Entry(tokens, kinds[-1] in _PLACES, kinds[0] == "menu", int(header["number"]), normal(header[0]))


def stands(entry: Entry, at: int, scope: int = _WINDOW) -> bool:
    """Returns whether the mention at token `at` is of something that this entry has.

    A negation counts when it stands at most `scope` words before it.
    """
    clause = _Clause(entry, at)
    if _negated(clause, scope) or _CALLED_OFF.search(" ".join([*clause.after, *clause.goes_on])):
        return False
    if entry.about_places:
        return not (_former(clause) or _pointed_at(clause) or _numbered_otherwise(entry, clause))
    said = " ".join([*clause.earlier, *clause.all])
    if clause.at_last:
        return True  # "we had looked forward to it for weeks, and on Sunday we finally went"
    if (
        _STILL_TO_COME.search(" ".join(clause.after))
        or _OTHER_TIME.search(said)
        or _OTHER_TIME.search(" ".join(clause.goes_on))
    ):
        return False
    return entry.is_menu or not _TALK.search(" ".join(clause.before))


class _Clause:
    """The words around a mention: before and after it in its clause, and in the clauses that belong to it."""

    def __init__(self, entry: Entry, at: int) -> None:
        tokens = entry.tokens
        mention = tokens[at]
        start, end = _span(tokens, at)
        self.mention, self.item = mention.word, mention.item
        self.items = [token.item for token in tokens[max(start, at - _WINDOW) : at]]
        self.starts_here = at - _WINDOW <= start
        self.all = [token.word for token in tokens[start:end]]
        self.before = [token.word for token in tokens[max(start, at - _WINDOW) : at]]
        self.after = [token.word for token in tokens[at + 1 : min(end, at + 1 + _WINDOW_AFTER)]]
        self.goes_on: list[str] = []
        rest = (token for token in tokens[end : end + 2 * _WINDOW] if token.sentence == mention.sentence)
        self.at_last = any(token.word == "finally" for token in rest)
        if end < len(tokens) and tokens[end].sentence == mention.sentence:
            following = [token.word for token in tokens[end : min(end + _WINDOW, _span(tokens, end)[1])]]
            joined = following[0] in {"but", "and", "so"} and not _SAME_THING.intersection(following[1:2])
            if following[0] in _REFERS_BACK and not joined:
                self.goes_on = following
        self.earlier: list[str] = []
        if start and tokens[start - 1].sentence == mention.sentence:
            first = _span(tokens, start - 1)[0]
            opens = first == 0 or tokens[first - 1].sentence != mention.sentence
            if (opens and start - first <= _SHORT_CLAUSE) or self.all[0] in {"when", "where", "which", "who"}:
                self.earlier = [token.word for token in tokens[first:start]]


def _span(tokens: Sequence[Token], at: int) -> tuple[int, int]:
    clause = tokens[at].clause
    start, end = at, at + 1
    while start > at - _LONGEST and start and tokens[start - 1].clause == clause:
        start -= 1
    while end < min(len(tokens), at + _LONGEST) and tokens[end].clause == clause:
        end += 1
    return start, end


def _negated(clause: _Clause, scope: int) -> bool:
    before = clause.before
    listed = 3 if "or" in before[-4:] or "and" in before[-4:] else 0  # "no pharmacy, clinic or spa"
    for distance, word in enumerate(reversed(before[-scope:])):
        at = len(before) - 1 - distance
        following = before[at + 1] if distance else clause.mention
        reach = 6 if word.endswith("n't") else _NOT.get(word, 0)
        twice = at and (before[at - 1] in {"never", "not"} or before[at - 1].endswith("n't"))
        if twice and word not in {"not", "never"}:
            reach = 0  # "we never missed it"
        if reach and distance < reach + listed and following not in _NOT_NEGATED:
            return True
        if (word, following) in _NOT_PAIRS and distance < 6:
            return True
    return False


def _former(clause: _Clause) -> bool:
    """Whether the place was there, or is to be there, at another time."""
    return bool(_FORMER.search(" ".join(clause.before[-6:])) or _FORMER_AFTER.search(" ".join(clause.after)))


def _pointed_at(clause: _Clause) -> bool:
    """Whether a preposition ("next to the", "close to the school and the") or a verb of seeing governs the mention."""
    before = clause.before
    if "this" in before[-2:]:
        return False
    joined = any(word in ("and", "or", "at") for word in before[-3:])
    for distance, word in enumerate(reversed(before)):
        at = len(before) - 1 - distance
        prior = before[at - 1] if at else ""
        following = before[at + 1] if distance else clause.mention
        if distance < 3 and (word in _BESIDE or (word in _SERVING and following == "the")):
            return True
        if distance < 3 and ((word == "of" and prior in _PART_OF) or (word in {"like", "as"} and prior in _SIMILE)):
            return True
        if word in _BREAKS:
            break
        if word in _SEEING and following != "from":
            return True
        chained = joined or (word in {"from", "to"} and "of" in before[-3:])
        if at <= 1 and clause.starts_here and clause.items[at] != clause.item:
            break  # "Behind padded doors, the pupils of ..."
        if word == "with" and any(other.startswith("shar") for other in before[:at]):
            return True  # "shares its entrance with the library"
        if word == "from" and ((at == 0 and clause.starts_here) or _VIEWS.intersection(before[:at])):
            break  # "From the bus stop it is a short walk to ...", "views of the city from the terrace"
        if word in _POINTING and distance < (7 if chained else 4) and _governs(word, prior, following, distance):
            return True
    after = _AFTER.match(" ".join(clause.after))
    return after is not None or _ELSEWHERE.search(" ".join(before)) is not None


def _governs(word: str, prior: str, following: str, distance: int) -> bool:
    """Whether a preposition points at another place: "to create a library" and "home to a library" do not."""
    if prior in _ARRIVING:
        return False
    return word != "to" or distance == 0 or following in _DETERMINERS | _PEOPLE or prior in _BEFORE_TO


def _numbered_otherwise(entry: Entry, clause: _Clause) -> bool:
    """Whether the clause places the mention on another floor or block by its number."""
    said = " ".join([*clause.before[-4:], clause.mention, *clause.after[:5]])
    if _GOES_ON.search(said):
        return False
    found = [(int(match[1]), int(match[2] or match[1])) for match in _NUMBERED.finditer(said)]
    return bool(found) and not any(first <= (entry.number or 0) <= last for first, last in found)
