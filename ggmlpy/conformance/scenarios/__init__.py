"""Tests that are not one case: plans, indices, batches, queues."""

from __future__ import annotations

from ggmlpy.conformance.scenarios import indices, invariance, plans, queues
from ggmlpy.conformance.suite import ConformanceTest

SCENARIOS: list[ConformanceTest] = [*plans.TESTS, *indices.TESTS, *invariance.TESTS, *queues.TESTS]
