"""Records: what they refuse, what survives JSON, what the exported schema says."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, ValidationError

from velox_eval.records.schema import RunHeader, RunRow, RunSummary, SampleRecord


def test_round_trip_through_json(header, record):
    assert SampleRecord.model_validate_json(record(3).model_dump_json()) == record(3)
    assert RunHeader.model_validate_json(header().model_dump_json()) == header()


@pytest.mark.parametrize(
    "bad",
    [
        {"unheard_of": 1},
        {"accuracy": float("nan")},
        {"prefill_seconds": float("inf")},
        {"details": {"x": float("nan")}},
        {"details": {"x": object()}},
        {"kept_fraction": 1.5},
        {"finish_reason": "tired"},
        {"status": "error"},  # without saying why
        {"error": "oops"},  # while claiming success
        {"response": None},
    ],
)
def test_a_record_that_cannot_be_true_is_refused(record, bad):
    with pytest.raises(ValidationError):
        record(**bad)


def _fields(schema: dict) -> list[tuple[str, str, dict]]:
    models = [(schema["title"], schema), *schema.get("$defs", {}).items()]
    return [(name, key, field) for name, model in models for key, field in model.get("properties", {}).items()]


@pytest.mark.parametrize("model", [SampleRecord, RunHeader, RunRow])
def test_every_field_is_described(model: type[BaseModel]):
    fields = _fields(model.model_json_schema())
    assert len(fields) > 20
    assert [f"{name}.{key}" for name, key, field in fields if not field.get("description")] == []


def test_a_row_takes_its_numbers_from_the_summary():
    shared = set(RunRow.model_fields) & set(RunSummary.model_fields)
    assert {"n", "n_error", "primary", "accuracy", "repetition_rate", "peak_cache_bytes", "kept_fraction"} <= shared
