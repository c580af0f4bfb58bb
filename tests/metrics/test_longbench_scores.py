"""LongBench's scores on golden pairs: values worked out by hand, or written again here from the original formulas."""

from __future__ import annotations

import re
import string
import subprocess
import sys
from collections import Counter
from difflib import SequenceMatcher

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from velox_eval.errors import ConfigError
from velox_eval.metrics import longbench as metric

EXACT = 1e-12


@pytest.mark.parametrize(
    ("prediction", "answer", "value"),
    [
        ("Bob Dylan", "Bob Dylan", 1),
        ("The answer is: Bob Dylan!", "bob dylan", 2 * (2 / 4) / (2 / 4 + 1)),  # answer, is, bob, dylan
        ("a an the", "the", 0),  # nothing left on either side
        ("", "x", 0),
        ("x", "", 0),
        ("to be or not to be", "to be", 2 * (2 / 6) / (2 / 6 + 1)),  # counted with multiplicity: 2 of 6, 2 of 2
        ("no no no", "no", 2 * (1 / 3) / (1 / 3 + 1)),
        ("U.S.A.", "usa", 1),  # punctuation goes without a space
        ("well-known", "well known", 0),
        ("théâtre", "the atre", 0),  # \b knows accents: "the" is no article inside a word
        ("fifty-five\n55", "55", 2 * 0.5 / 1.5),
    ],
)
def test_qa_f1(prediction: str, answer: str, value: float) -> None:
    assert metric.qa_f1(prediction, answer) == pytest.approx(value, abs=EXACT)


def again_qa_f1(prediction: str, answer: str) -> float:
    """The original's steps, in its order."""

    def words(text: str) -> list[str]:
        kept = "".join(filter(lambda c: c not in string.punctuation, text.lower()))
        return " ".join(re.sub(r"\b(a|an|the)\b", " ", kept).split()).split(" ") if kept.strip() else []

    first, second = ([word for word in words(text) if word] for text in (prediction, answer))
    same = sum(min(count, Counter(second)[word]) for word, count in Counter(first).items())
    return 0.0 if same == 0 else 2 * same / (len(first) + len(second))


@settings(max_examples=200, deadline=None)
@given(*[st.text(alphabet="aAnNtThHeE ,.-'é\n", max_size=30)] * 2)
def test_qa_f1_of_any_pair(prediction: str, answer: str) -> None:
    assert metric.qa_f1(prediction, answer) == pytest.approx(again_qa_f1(prediction, answer), abs=1e-9)


class TestChinese:
    """jieba cuts 在邮局对面 into 在, 邮局, 对面 and keeps punctuation as words of their own."""

    @pytest.fixture(autouse=True)
    def _jieba(self) -> None:
        pytest.importorskip("jieba", reason="extra longbench")

    @pytest.mark.parametrize(
        ("prediction", "answer", "value"),
        [
            ("邮局对面", "邮局对面", 1),
            ("在邮局对面。", "邮局对面", 2 * (2 / 3) / (2 / 3 + 1)),
            ("铁路，桥", "桥", 2 * 0.5 / 1.5),
            ("", "桥", 0),
            ("。，！", "桥", 0),
            ("ABC 公司", "abc公司", 1),  # lower-cased, white space dropped
            ("《红楼梦》", "红楼梦", 2 * 0.5 / 1.5),  # the original's list of punctuation has 》 and lacks 《
        ],
    )
    def test_qa_f1_zh(self, prediction: str, answer: str, value: float) -> None:
        assert metric.qa_f1_zh(prediction, answer) == pytest.approx(value, abs=EXACT)

    @pytest.mark.parametrize(
        ("prediction", "answer"),
        [
            ("邮局对面的书店按颜色排列旧书。", "一位店主按颜色排列旧书。"),
            ("守塔人养了两只鹅，鹅会叫", "渔民相信守塔人的鹅"),
            ("3.5万元。", "约3.5万元"),
            ("", "桥"),
        ],
    )
    def test_rouge_zh_is_the_packages_rouge_on_jiebas_words(self, prediction: str, answer: str) -> None:
        import jieba

        rouge = pytest.importorskip("rouge", reason="extra dev")
        first, second = (" ".join(jieba.cut(text, cut_all=False)) for text in (prediction, answer))
        expected = rouge.Rouge().get_scores([first], [second], avg=True)["rouge-l"]["f"] if first else 0.0
        assert metric.rouge_zh(prediction, answer) == pytest.approx(expected, abs=EXACT)

    def test_the_words_are_jiebas_own(self) -> None:
        import jieba

        text = "我来到北京清华大学 and 3.14，他来到了网易杭研大厦"
        from velox_eval.metrics.segment import segment

        assert segment(text) == list(jieba.cut(text, cut_all=False))
        assert "".join(segment(text)) == text


def test_without_jieba_the_install_command_is_said() -> None:
    script = (
        "import sys; sys.modules['jieba'] = None\n"
        "from velox_eval.errors import ConfigError\nfrom velox_eval.metrics import longbench\n"
        "try: longbench.qa_f1_zh('桥', '桥')\nexcept ConfigError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "pip install 'velox-eval[longbench]'" in done.stdout
    assert done.stdout.count("\n") == 1
    assert ConfigError.__mro__[1].__name__ == "VeloxEvalError"


NESTED = ["location", "Other", "Other location"]


@pytest.mark.parametrize(
    ("prediction", "answer", "classes", "official", "intended"),
    [
        ("Other location", "Other location", NESTED, 1 / 2, 1),  # THUDM/LongBench #36: "Other" is passed over
        ("It is an Other location.", "Other location", ["Other location", *NESTED[:2]], 1 / 2, 1),
        ("Other location", "Other", NESTED, 1 / 3, 1 / 3),  # a class that contains the right one stays
        ("location", "Other location", NESTED, 0, 0),
        ("Date and Food", "Date", ["Food", "Date"], 1 / 2, 1 / 2),
        ("date", "Date", ["Food", "Date"], 0, 0),  # case counts
        ("", "Date", ["Food", "Date"], 0, 0),
        ("Dates", "Date", ["Food", "Date"], 1, 1),
        ("Foot", "Food", ["Food", "Date"], 0, 0),  # the original's fallback to the most similar class never runs
        ("number of years", "number of years", ["number", "years", "of", "number of years"], 1 / 2, 1),
        ("体育、文化", "文化", ["体育", "文化"], 1 / 2, 1 / 2),
    ],
)
def test_classification(prediction: str, answer: str, classes: list[str], official: float, intended: float) -> None:
    assert metric.classification(prediction, answer, classes) == pytest.approx(official, abs=EXACT)
    assert metric.classification(prediction, answer, classes, official=True) == pytest.approx(official, abs=EXACT)
    assert metric.classification(prediction, answer, classes, official=False) == pytest.approx(intended, abs=EXACT)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(["a", "b", "ab", "abc", "c", "bc", "d"]), unique=True, min_size=1), st.data())
def test_classification_takes_names_out_while_walking_along(classes: list[str], data: st.DataObject) -> None:
    answer = data.draw(st.sampled_from(classes))
    prediction = data.draw(st.text(alphabet="abcd ", max_size=8))
    named = [name for name in classes if name in prediction]
    for name in named:
        if name in answer and name != answer:
            named.remove(name)
    expected = 1.0 / len(named) if answer in named else 0.0
    assert metric.classification(prediction, answer, classes) == pytest.approx(expected, abs=EXACT)


@pytest.mark.parametrize(
    ("prediction", "answer", "value"),
    [
        ("Paragraph 7", "Paragraph 7", 1),
        ("Paragraph 7 or paragraph 17", "Paragraph 7", 1 / 2),
        ("3, 7, 7 and 9", "Paragraph 7", 2 / 4),  # out of order, repeated
        ("Paragraph 07", "Paragraph 7", 0),  # as text
        ("Seven", "Paragraph 7", 0),
        ("17", "Paragraph 7 (not 17)", 0),
    ],
)
def test_retrieval(prediction: str, answer: str, value: float) -> None:
    assert metric.retrieval(prediction, answer) == pytest.approx(value, abs=EXACT)
    chinese = answer.replace("Paragraph ", "段落")
    assert metric.retrieval_zh(prediction.replace("Paragraph ", "段落"), chinese) == pytest.approx(value, abs=EXACT)


def test_retrieval_needs_an_answer_that_names_a_paragraph() -> None:
    with pytest.raises(ValueError, match="names no paragraph"):
        metric.retrieval("7", "7")


@pytest.mark.parametrize(
    ("prediction", "answer", "value"),
    [
        ("12", "12", 1),
        ("1, 2, ..., 12", "12", 1 / 3),
        ("12 of 12, not 13", "12", 2 / 3),
        ("none", "0", 0),
        ("", "3", 0),
    ],
)
def test_count(prediction: str, answer: str, value: float) -> None:
    assert metric.count(prediction, answer) == pytest.approx(value, abs=EXACT)


@pytest.mark.parametrize(
    ("prediction", "answer", "value"),
    [
        ("    return x\n    y = 2", "    return x", 1),
        ("\n\n    return x", "    return x", 1),
        ("```python\n# adds\n// adds\nreturn x", "return x", 1),  # fences and comments are passed over
        ("# only a comment", "return x", 0),
        ("x = 1  # one\nx = 1", "x = 1", 1),  # a line with a comment at its end is passed over too
        ("# only a comment", "", 1),  # nothing left equals nothing
        ("abcd", "abed", 0.75),  # 2 * 3 / 8
        ("ab", "bca", 0.4),  # 2 * 1 / 5
        ("abc", "ab", 0.8),  # 2 * 2 / 5
        ("\r\nreturn x", "return x", 0),  # the line is a carriage return
    ],
)
def test_code_sim(prediction: str, answer: str, value: float) -> None:
    assert metric.code_sim(prediction, answer) == pytest.approx(value, abs=EXACT)


@settings(max_examples=200, deadline=None)
@given(*[st.text(alphabet="abc=() ", max_size=20)] * 2)
def test_code_sim_is_in_whole_hundredths(prediction: str, answer: str) -> None:
    line = prediction.lstrip("\n").split("\n")[0]
    if line == answer:
        expected = 100
    elif not line or not answer:
        expected = 0
    else:
        expected = int(round(100 * SequenceMatcher(None, line, answer).ratio()))  # noqa: RUF046
    assert metric.code_sim(prediction, answer) == expected / 100


def test_code_sim_of_long_lines_has_difflibs_heuristic() -> None:
    """From 200 characters on difflib ignores characters that are over 1% of the text, and so does the original."""
    line, answer = "abcdefghij" * 25, "x" + "abcdefghij" * 25
    assert SequenceMatcher(None, line, answer).ratio() < SequenceMatcher(None, line, answer, autojunk=False).ratio()
    assert metric.code_sim(line, answer) == round(100 * SequenceMatcher(None, line, answer).ratio()) / 100


@pytest.mark.parametrize(
    ("prediction", "line"), [("\n\na b\nc", "a b"), ("a", "a"), ("", ""), ("\n", ""), (" \na", " "), ("a\r\nb", "a\r")]
)
def test_first_line(prediction: str, line: str) -> None:
    assert metric.first_line(prediction) == line


def test_best_is_the_largest_over_the_answers() -> None:
    assert metric.best("qa_f1", "fifty five", ["55", "fifty five", "x"]) == 1
    assert metric.best("qa_f1", "fifty five", []) == 0
    assert metric.best("classification", "Date", ["Food", "Date"], ["Food", "Date"]) == 1
    with pytest.raises(KeyError):
        metric.best("bleu", "a", ["a"])


@pytest.mark.parametrize(
    ("length", "bucket"),
    [(0, "0-4k"), (3999, "0-4k"), (4000, "4-8k"), (5000, "4-8k"), (7999, "4-8k"), (8000, "8k+"), (10**6, "8k+")],
)
def test_length_buckets_are_half_open(length: int, bucket: str) -> None:
    assert metric.length_bucket(length) == bucket


@pytest.mark.parametrize(
    ("response", "letter"),
    [
        ("The correct answer is (B)", "B"),
        ("The correct answer is B", "B"),
        ("**The correct answer is (C).**", "C"),
        ("The correct answer is **(D)**", "D"),
        ("The correct answer is A. No: The correct answer is (B)", "B"),  # brackets first, wherever they are
        ("The correct answer is (A) or (B)", "A"),
        ("The correct answer is (E)", None),
        ("the correct answer is (A)", None),
        ("B", None),
        ("(B)", None),
        ("The correct answer is Apples", "A"),  # the original reads any capital
        ("", None),
    ],
)
def test_choice(response: str, letter: str | None) -> None:
    assert metric.choice(response) == letter
