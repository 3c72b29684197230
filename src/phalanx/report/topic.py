"""Findings: sentences about one question, and the rule they were made by."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Sentence:
    label: str  # of the workload; empty when it is about the whole study
    text: str


@dataclass(frozen=True, kw_only=True)
class Topic:
    """Sentences about one question, usually one a model, and the rule they were made by."""

    title: str
    rule: str
    sentences: tuple[Sentence, ...]
