"""The scores of LongBench (THUDM, metrics.py and eval.py) and the answer rule of LongBench v2. Pure functions, 0 to 1.

An answer's score is the largest over the reference answers; a data set's score is 100 times the mean over its rows.
What each function does differently from the original is in its docstring; where that changes a value, the official
value is the default.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from difflib import SequenceMatcher

from velox_eval.metrics.rouge import rouge_l
from velox_eval.metrics.segment import segment

BUCKETS = ("0-4k", "4-8k", "8k+")
CHOICES = ("A", "B", "C", "D")

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = frozenset(string.punctuation)
# Punctuation of Chinese text: the full-width forms of ASCII's, half-width katakana's, brackets, dashes and quotes.
_PUNCTUATION_ZH = _PUNCTUATION | frozenset(
    "！＂＃＄％＆＇（）＊＋，－／：；＜＝＞？＠［＼］＾＿｀｛｜｝～｟｠｡｢｣､。〃》「」『』【】〔〕〖〗〘〙〚〛〜〝〞〟〰〾〿、–—‘’‛“”„‟…‧﹏"
)
_NUMBER = re.compile(r"\d+")
_PARAGRAPH = re.compile(r"Paragraph (\d+)")
_PARAGRAPH_ZH = re.compile(r"段落(\d+)")


def first_line(prediction: str) -> str:
    """Returns the first line of an answer, leading line ends left out: what trec, triviaqa, samsum and lsht score."""
    return prediction.lstrip("\n").split("\n")[0]


def qa_f1(prediction: str, answer: str) -> float:
    """Returns the F1 of the two multisets of words, lower-cased, without punctuation and English articles."""
    return _token_f1(_words(prediction), _words(answer))


def qa_f1_zh(prediction: str, answer: str) -> float:
    """Returns the F1 of the two multisets of jieba's words, lower-cased, without punctuation and white space."""
    return _token_f1(_words_zh(prediction), _words_zh(answer))


def _words(text: str) -> list[str]:
    plain = "".join(char for char in text.lower() if char not in _PUNCTUATION)
    return _ARTICLES.sub(" ", plain).split()


def _words_zh(text: str) -> list[str]:
    plain = ("".join(char for char in word.lower() if char not in _PUNCTUATION_ZH) for word in segment(text))
    return [word for word in ("".join(part.split()) for part in plain) if word]


def _token_f1(prediction: Sequence[str], answer: Sequence[str]) -> float:
    same = sum((Counter(prediction) & Counter(answer)).values())
    if not same:
        return 0.0
    precision, recall = same / len(prediction), same / len(answer)
    return 2 * precision * recall / (precision + recall)


def rouge_zh(prediction: str, answer: str) -> float:
    """Returns ROUGE-L over jieba's words."""
    return rouge_l(" ".join(segment(prediction)), " ".join(segment(answer)))


def classification(prediction: str, answer: str, classes: Sequence[str], *, official: bool = True) -> float:
    """Returns 1 / the number of classes named in the answer if the right one is among them, else 0.

    A class whose name is part of the right one's name does not count as named. The official code takes such names
    out of the list it is walking along, so that the name after each is passed over and stays; that is the default.
    `official=False` takes all of them out, which is what was meant (THUDM/LongBench #36).
    """
    named = [name for name in classes if name in prediction]
    if official:
        place = 0
        while place < len(named):
            name = named[place]
            if name in answer and name != answer:
                named.remove(name)
            place += 1
    else:
        named = [name for name in named if name == answer or name not in answer]
    return 1.0 / len(named) if answer in named else 0.0


def retrieval(prediction: str, answer: str) -> float:
    """Returns the share of the numbers in the prediction that are the paragraph of `answer` ("Paragraph 7")."""
    return _share_of_numbers(prediction, paragraph(answer))


def retrieval_zh(prediction: str, answer: str) -> float:
    """Returns the share of the numbers in the prediction that are the paragraph of `answer` ("段落7")."""
    return _share_of_numbers(prediction, paragraph(answer, _PARAGRAPH_ZH))


def count(prediction: str, answer: str) -> float:
    """Returns the share of the numbers in the prediction that are `answer`; 0 without any number."""
    return _share_of_numbers(prediction, answer)


def paragraph(answer: str, pattern: re.Pattern[str] = _PARAGRAPH) -> str:
    """Returns the number of the paragraph an answer names. Raises ValueError when it names none."""
    match = pattern.search(answer)
    if match is None:
        raise ValueError(f"{answer!r} names no paragraph")
    return match[1]


def _share_of_numbers(prediction: str, wanted: str) -> float:
    numbers = _NUMBER.findall(prediction)
    return numbers.count(wanted) / len(numbers) if numbers else 0.0


def code_sim(prediction: str, answer: str) -> float:
    """Returns how alike the first line of code and the answer are, in whole hundredths.

    The line is the first without a back quote, # or //; empty when there is none. Alike is what `fuzzywuzzy`, the
    original's only requirement for this, gives by itself: the matching blocks of difflib. (With python-Levenshtein
    beside it, it gives other values; ours do not depend on what is installed.)
    """
    lines = prediction.lstrip("\n").split("\n")
    line = next((line for line in lines if not ("`" in line or "#" in line or "//" in line)), "")
    if line == answer:
        return 1.0
    if not line or not answer:
        return 0.0
    return round(100 * SequenceMatcher(None, line, answer).ratio()) / 100


Metric = Callable[[str, str, Sequence[str]], float]  # prediction, one answer, the classes (classification alone)


def _alone(metric: Callable[[str, str], float]) -> Metric:
    return lambda prediction, answer, _classes: metric(prediction, answer)


METRICS: Mapping[str, Metric] = {
    "qa_f1": _alone(qa_f1),
    "qa_f1_zh": _alone(qa_f1_zh),
    "rouge_l": _alone(rouge_l),
    "rouge_zh": _alone(rouge_zh),
    "classification": classification,
    "retrieval": _alone(retrieval),
    "retrieval_zh": _alone(retrieval_zh),
    "count": _alone(count),
    "code_sim": _alone(code_sim),
}
CHINESE = frozenset({"qa_f1_zh", "rouge_zh"})  # metrics that need jieba


def best(metric: str, prediction: str, answers: Sequence[str], classes: Sequence[str] = ()) -> float:
    """Returns the largest score over the answers. Raises KeyError for an unknown metric, ValueError as the metric."""
    return max((METRICS[metric](prediction, answer, classes) for answer in answers), default=0.0)


def length_bucket(length: int) -> str:
    """Returns LongBench-E's group of a row by its own `length` field (words; characters in Chinese)."""
    return BUCKETS[0] if length < 4000 else BUCKETS[1] if length < 8000 else BUCKETS[2]


_WITH_BRACKETS = re.compile(r"The correct answer is \(([A-D])\)")
_WITHOUT = re.compile(r"The correct answer is ([A-D])")


def choice(response: str) -> str | None:
    """Returns the letter that a LongBench v2 answer gives, None when it gives none: asterisks left out, "The correct
    answer is (B)" anywhere, else "The correct answer is B" anywhere; the first of each."""
    text = response.replace("*", "")
    match = _WITH_BRACKETS.search(text) or _WITHOUT.search(text)
    return match[1] if match else None
