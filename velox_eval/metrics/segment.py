"""Chinese text in words, by jieba's own dictionary (extra `longbench`)."""

from __future__ import annotations

import functools
import logging
import tempfile
import warnings
from typing import Any

from velox_eval.extras import required


def segment(text: str) -> list[str]:
    """Returns the words of `text` as `jieba.cut` gives them; joined they are the text. Raises as `segmenter`."""
    return list(segmenter().cut(text))


@functools.cache
def segmenter() -> Any:
    """Returns jieba's tokeniser, its dictionary loaded (a second, once a process).

    Raises ConfigError with the install command when jieba is missing.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # old escape sequences in its source
        jieba = required("jieba", "longbench", "a score of Chinese text")
        jieba.setLogLevel(logging.WARNING)
        tokenizer = jieba.Tokenizer()
        # By default it reads a dump in the shared temporary directory, which anybody may have put there.
        with tempfile.TemporaryDirectory(prefix="velox-eval-") as private:
            tokenizer.tmp_dir = private
            tokenizer.initialize()
    return tokenizer
