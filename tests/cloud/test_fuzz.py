"""A short run of the differential fuzzer, always the same programs; `make fuzz` is the long one."""

from tests.fuzz.draw import KINDS
from tests.fuzz.search import Search


def test_the_same_programs_agree_with_the_cpu():
    search = Search()
    search.examples(60, seed=None, shrink=True)
    assert search.programs >= 60
    assert len(search.steps) > len(KINDS) / 2
