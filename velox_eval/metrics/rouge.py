"""ROUGE-L as the `rouge` package (1.0.1) gives it at summary level, which LongBench scores with. Pure functions.

Both texts are cut into sentences at full stops and into words at white space. Over all pairs of a reference and a
predicted sentence, the words of one longest common subsequence go into a set; with `u` its size, `m` and `n` the
distinct words of reference and prediction:

    recall = u / m    precision = u / n    f = 2 * precision * recall / (precision + recall + 1e-8)

How ours differs: the package walks back along a subsequence by recursion and fails on long sentences (some 1,000
words of both together, reached by Chinese texts, which have no full stops of this kind); LongBench then counts 0.
Ours has no such limit.
"""

from __future__ import annotations

from collections.abc import Sequence

_TINY = 1e-8  # the package's guard against dividing by zero; part of the value


def rouge_l(prediction: str, reference: str) -> float:
    """Returns the F value, 0 to just under 1; 0 when either text has nothing but full stops."""
    predicted, expected = _sentences(prediction), _sentences(reference)
    if not predicted or not expected:
        return 0.0
    common: set[str] = set()
    for sentence in expected:
        for other in predicted:
            common |= _common_words(sentence, other)
    recall = len(common) / len({word for sentence in expected for word in sentence})
    precision = len(common) / len({word for sentence in predicted for word in sentence})
    return 2.0 * (precision * recall / (precision + recall + _TINY))


def _sentences(text: str) -> list[list[str]]:
    """The words of each sentence; a sentence of white space alone has one empty word, as in the package."""
    return [part.split() or [""] for part in text.split(".") if part]


def _common_words(first: Sequence[str], second: Sequence[str]) -> set[str]:
    """The words of the longest common subsequence that the package finds: of equal ones, it drops `second`'s word."""
    if set(first).isdisjoint(second):
        return set()
    lengths = [[0] * (len(second) + 1)]
    for word in first:
        above, row = lengths[-1], [0]
        for column, other in enumerate(second):
            row.append(above[column] + 1 if word == other else max(above[column + 1], row[column]))
        lengths.append(row)
    words: set[str] = set()
    i, j = len(first), len(second)
    while i and j:
        if first[i - 1] == second[j - 1]:
            words.add(first[i - 1])
            i, j = i - 1, j - 1
        elif lengths[i - 1][j] > lengths[i][j - 1]:
            i -= 1
        else:
            j -= 1
    return words
