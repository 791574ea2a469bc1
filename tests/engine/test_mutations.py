"""The faults that scripts/mutate.py plants still have their place in the sources."""

from __future__ import annotations

import mutate
import pytest


@pytest.mark.parametrize("mutation", mutate.MUTATIONS, ids=lambda m: m.name)
def test_a_mutation_changes_its_file(mutation: mutate.Mutation) -> None:
    assert mutate.broken(mutation) != (mutate.ROOT / mutation.file).read_text()
