"""A line of samples.jsonl: what was asked, what came back, what it cost. Field order is part of the format."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, JsonValue, model_validator

from velox_eval.records.config import Frozen, canonical_json
from velox_eval.records.score import Score


class TeacherForced(Frozen):
    """A method beside the full cache, fed the same tokens; a number a token, from before it was fed."""

    text: str = Field(description="What was fed.")
    tokens: tuple[int, ...] = Field(min_length=1, description="Its tokens.")
    kl: tuple[float, ...] = Field(description="KL(full || method) over the vocabulary, nats.")
    agree: tuple[bool, ...] = Field(description="Whether both rank the same token first.")
    full_logprob: tuple[float, ...] = Field(description="Natural log-probability of the token under the full cache.")
    method_logprob: tuple[float, ...] = Field(description="The same under the method.")

    @model_validator(mode="after")
    def _one_a_token(self) -> TeacherForced:
        for name in ("kl", "agree", "full_logprob", "method_logprob"):
            if len(getattr(self, name)) != len(self.tokens):
                raise ValueError(f"{name} has {len(getattr(self, name))} numbers for {len(self.tokens)} tokens")
        return self


class Likelihoods(Frozen):
    """Log-likelihoods of continuations (the options of a multiple-choice question, a text), a number a continuation."""

    logprobs: tuple[float, ...] = Field(min_length=1, description="Natural log-probability, summed over its tokens.")
    greedy: tuple[bool, ...] = Field(description="Whether each of its tokens was the most likely one.")
    tokens: tuple[int, ...] = Field(description="Tokens scored.")

    @model_validator(mode="after")
    def _one_a_continuation(self) -> Likelihoods:
        if not len(self.logprobs) == len(self.greedy) == len(self.tokens):
            raise ValueError(
                f"{len(self.logprobs)} log-probabilities, {len(self.greedy)} greedy, {len(self.tokens)} token counts"
            )
        return self


class SampleRecord(Frozen):
    """One sample: what was asked, what came back, what it cost. Fields that a failure left unknown are null."""

    sample_id: str = Field(description="The task's id of the sample; unique in a run.")
    index: int = Field(ge=0, description="Place of the sample in the task's order, from 0.")
    stratum: str = Field(description="Type of the sample within the task; comparisons pair within it.")
    status: Literal["ok", "error"] = Field(description="Whether the sample was answered and scored.")
    error: str | None = Field(default=None, description="Why the sample failed, in one line; null when it did not.")
    prompt_sha256: str = Field(description="SHA-256 of the raw prompt, before any chat template.")
    prompt_tokens: int | None = Field(default=None, ge=0, description="Tokens of the prompt as the model saw it.")
    response: str | None = Field(
        default=None, description="The answer, stop string left out; null where nothing was generated."
    )
    response_sha256: str | None = Field(default=None, description="SHA-256 of the answer.")
    generated_tokens: int | None = Field(default=None, ge=0, description="Tokens of the answer.")
    finish_reason: Literal["eos", "stop", "length"] | None = Field(
        default=None, description="What ended the answer: the model (eos), a stop string (stop), a limit (length)."
    )
    truncated: bool | None = Field(default=None, description="Whether a limit ended the answer.")
    beyond_context: bool | None = Field(
        default=None, description="Whether token limit or prompt was cut to fit the model's context."
    )
    cut_tokens: int | None = Field(
        default=None, ge=0, description="Tokens of the prompt that were left out to make it fit."
    )
    scores: dict[str, Score] = Field(
        default_factory=dict,
        description="Scores by name, as numerator and denominator; of a failed sample: everything asked was missed.",
    )
    unscored: dict[str, str] = Field(default_factory=dict, description="Scores that could not be given, with reason.")
    accuracy: float | None = Field(default=None, description="The task's accuracy of this answer; 0 when it failed.")
    repetition_rate: float | None = Field(
        default=None, description="1 - unique / all word 4-grams; null under 4 words."
    )
    repetition_rate_10: float | None = Field(default=None, description="The same over 10-grams.")
    repetition_rate_20: float | None = Field(default=None, description="The same over 20-grams.")
    late_repetition_rate: float | None = Field(default=None, description="repetition_rate of the words' second half.")
    late_repetition_rate_10: float | None = Field(default=None, description="The same over 10-grams.")
    late_repetition_rate_20: float | None = Field(default=None, description="The same over 20-grams.")
    prefill_seconds: float | None = Field(default=None, ge=0, description="Seconds up to the first token.")
    compress_seconds: float | None = Field(
        default=None,
        ge=0,
        description="Of these, what the method did once the prompt was in: its passes and the one cut.",
    )
    decode_seconds: float | None = Field(
        default=None, ge=0, description="Seconds from the first token to the last, in flight."
    )
    tokens_per_second: float | None = Field(
        default=None,
        ge=0,
        description="Decoded tokens a second of the sample's own time in flight; null under two tokens.",
    )
    peak_cache_bytes: int | None = Field(
        default=None, ge=0, description="Key and value bytes held at the largest, rows in transit included, all layers."
    )
    peak_total_bytes: int | None = Field(
        default=None, ge=0, description="peak_cache_bytes with the methods' own arrays."
    )
    end_cache_bytes: int | None = Field(default=None, ge=0, description="Key and value bytes held after the last step.")
    allocated_cache_bytes: int | None = Field(default=None, ge=0, description="Bytes of the buffers at their largest.")
    full_cache_bytes: int | None = Field(default=None, ge=0, description="Bytes the full cache would hold at the end.")
    kept_tokens: tuple[int, ...] | None = Field(
        default=None, description="Rows held at the end, one number an eviction layer."
    )
    evicted_tokens: int | None = Field(default=None, ge=0, description="Rows evicted, summed over eviction layers.")
    kept_fraction: float | None = Field(
        default=None, ge=0, le=1, description="Rows held at the end / tokens seen, mean over eviction layers; measured."
    )
    method_fired: bool | None = Field(default=None, description="Whether anything was evicted.")
    early_share: float | None = Field(
        default=None, ge=0, le=1, description="Share of the kept rows that come from the first tenth of the sequence."
    )
    budget: int | None = Field(
        default=None, ge=1, description="Rows per layer and KV head it ran with; null: no bound."
    )
    reported: dict[str, float] = Field(
        default_factory=dict,
        description="What the installed package's own counters say, all layers; empty for methods of ours.",
    )
    teacher_forced: TeacherForced | None = Field(
        default=None, description="The comparison with the full cache, where that was asked instead of an answer."
    )
    likelihoods: Likelihoods | None = Field(
        default=None, description="The log-likelihoods, where those were asked instead of an answer."
    )
    details: dict[str, JsonValue] = Field(default_factory=dict, description="The task's own notes on the scoring.")

    @model_validator(mode="after")
    def _consistent(self) -> SampleRecord:
        if (self.status == "error") != (self.error is not None):
            raise ValueError(f"sample {self.sample_id!r}: status {self.status!r} with error {self.error!r}")
        if self.status == "ok" and self.answer is None:
            raise ValueError(f"sample {self.sample_id!r}: status 'ok' without a response")
        if sum(found is not None for found in (self.response, self.teacher_forced, self.likelihoods)) > 1:
            raise ValueError(f"sample {self.sample_id!r}: more than one of response, comparison and log-likelihoods")
        canonical_json(self.details)  # raises ValueError for NaN, which JsonValue lets through
        return self

    @property
    def answer(self) -> str | TeacherForced | Likelihoods | None:
        """What scoring works on: response, comparison or log-likelihoods; None when the sample failed before that."""
        return self.response if self.response is not None else self.teacher_forced or self.likelihoods
