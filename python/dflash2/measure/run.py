"""A measurement: traffic in, records and their summary out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from dflash2.measure.recorder import Job, Recorder, Refusal, Settings
from dflash2.measure.store import Record, Store
from dflash2.measure.summary import Summary, summarize
from dflash2.measure.traffic import TrafficError, read_traffic

Measurer = Callable[[Settings, Iterable[Job]], Iterator[Record | Refusal]]


def measure_here(settings: Settings, jobs: Iterable[Job]) -> Iterator[Record | Refusal]:
    """One after the other in this process."""
    yield from map(Recorder(settings).record, jobs)


class Run:
    """Goes on where an earlier run with the same traffic, settings and store ended.

    Args:
        labels: the user's fields to split by.
        skip_bad: count lines that cannot be measured instead of failing.

    Raises:
        OSError: a file cannot be read.
        TrafficError: a line is bad, unless skip_bad; no line is good, or none has a label. The
            whole file is read for this.
    """

    def __init__(
        self,
        traffic: Path,
        settings: Settings,
        store: Store,
        *,
        labels: Sequence[str] = (),
        skip_bad: bool = False,
    ) -> None:
        self._traffic = traffic
        self._settings = settings
        self._store = store
        self._skip_bad = skip_bad
        self._digest = settings.digest()
        self._labels = labels
        self._n_bad = 0
        self._keys = []
        found: set[str] = set()
        for key, line in self._jobs():
            self._keys.append(key)
            found.update(line.labels)
        if not self._keys:
            raise TrafficError(f"{traffic}: expected at least one request, found none")
        if missing := [name for name in labels if name not in found]:
            has = ", ".join(sorted(found)) or "no labels"
            raise TrafficError(f"{traffic}: no line has the label {missing[0]}; found {has}")

    def __len__(self) -> int:
        """Requests that are to be measured; equal lines are measured once."""
        return len({key for key in self._keys if key not in self._store})

    def measure(self, measurer: Measurer = measure_here) -> Iterator[Record | Refusal]:
        """Adds to the store what it yields. Refused lines are tried again by the next run.

        Raises:
            TrafficError: a request cannot be measured, unless skip_bad.
            DFlash2Error, OSError, MemoryError: of the models.
        """
        if not len(self):
            return
        for found in measurer(self._settings, self._pending()):
            if isinstance(found, Record):
                self._store.add(found)
            elif not self._skip_bad:
                raise TrafficError(f"{self._traffic}:{found.line}: {found.reason}")
            yield found

    def summary(self) -> Summary:
        """Of all that was measured. A run that was broken off and went on gives the same one.

        Raises:
            DFlash2Error: scipy is not installed.
        """
        measured = [key for key in self._keys if key in self._store]
        n_refused = len(self._keys) - len(measured)
        records = (self._store[key] for key in measured)
        return summarize(records, self._labels, n_skipped=self._n_bad + n_refused)

    def _pending(self) -> Iterator[Job]:
        given = set()
        for key, line in self._jobs():
            if key not in self._store and key not in given:
                given.add(key)
                yield key, line

    def _jobs(self) -> Iterator[Job]:
        self._n_bad = 0
        for line in read_traffic(self._traffic, skip_bad=self._skip_bad):
            if isinstance(line, TrafficError):
                self._n_bad += 1
            else:
                yield line.digest + self._digest, line
