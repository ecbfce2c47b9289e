"""Tests: `core`, `cloud`, `litert` and `cli` mirror the packages; `op_cases` serves both halves."""
