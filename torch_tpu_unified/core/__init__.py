"""Shared by both halves: operator look-up, the op table, schema facts, errors, graph reports.

Imports the standard library and torch only. Neither half imports the other; both import this.
"""
