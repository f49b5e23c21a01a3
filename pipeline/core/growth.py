"""The training order of a data set that grows by generations (`pack.append`), a pure function of
when each generation joined.

Rows are counted over all generations. Training goes in rounds. The first reads all rows that are
there at the start in file order, each once, for every generation was shuffled by itself; then come
epochs of all of them, each a keyed bijection. Generations that join a run that is underway wait for
the end of its round; the next round reads the rows that joined, in file order, and then come epochs
of all rows. Epochs are numbered from 1 over the whole run: what joins does not begin them again.

So with one generation this is the order of `pipeline.core.order`; and a run that was in its first
round when a generation joined goes on as if it had been there from the start.

    rows [0, a) from the start on, rows [a, b) from sample s on:

    [0, a) | epochs of [0, a) | [a, b) | epochs of [0, b) ...
                              s
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dedup.arrays import I64
from pipeline.core.order import OrderPart
from pipeline.core.rng import invert, key, permute


@dataclass(frozen=True)
class _Phase:
    """From sample `start` on: rows [low, high) once, then epochs of [0, high), numbered from
    `epoch`. Its first round is round `round` of the run."""

    start: int
    low: int
    high: int
    epoch: int
    round: int

    def first_sample(self, number: int) -> int:
        """Where a round of the phase begins."""
        within = number - self.round
        return self.start if within == 0 else self.start + self.added + (within - 1) * self.high

    @property
    def added(self) -> int:
        """Rows of the first round."""
        return self.high - self.low

    def round_of(self, sample: int) -> int:
        """The round that reads a sample of the phase."""
        rest = sample - self.start - self.added
        return self.round if rest < 0 else self.round + 1 + rest // self.high


@dataclass(frozen=True)
class GrownOrder:
    """The endless sequence of rows over generations. `parts`: rows of each; `joins`: the sample
    from which on each is read, ascending, that of the first 0, the others the ends of rounds.
    Raises ValueError for other joins."""

    parts: tuple[OrderPart, ...]
    joins: tuple[int, ...]
    seed: int

    def __post_init__(self) -> None:
        is_ascending = tuple(sorted(self.joins)) == self.joins and self.joins[:1] == (0,)
        if len(self.joins) != len(self.parts) or not is_ascending or not self._phases:
            raise ValueError(f"{self.joins}: not samples at which {len(self.parts)} parts join")

    @cached_property
    def _phases(self) -> tuple[_Phase, ...]:
        phases: list[_Phase] = []
        for start in sorted(set(self.joins)):
            high = sum(p.rows for p, at in zip(self.parts, self.joins, strict=True) if at <= start)
            low, epoch, first = 0, 1, 0
            if phases:
                last = phases[-1]
                number = last.round_of(start)
                if last.first_sample(number) != start or number == last.round:
                    raise ValueError(f"{start}: not the end of a round")
                low, epoch, first = last.high, last.epoch + number - last.round - 1, number
            phases.append(_Phase(start, low, high, epoch, first))
        return tuple(phases)

    @property
    def epoch_samples(self) -> int:
        """Samples of an epoch of all rows."""
        return sum(part.rows for part in self.parts)

    def first_row(self, part: int) -> int:
        """The first row of a generation, counted over all."""
        return sum(before.rows for before in self.parts[:part])

    def end_of_round(self, sample: int) -> int:
        """Where the round ends that is underway once so many samples were read; there, if none is.
        This is where a generation joins."""
        number = self._phase_at(sample).round_of(sample)
        low, _ = self._samples(number)
        return sample if sample == low else self._samples(number)[1]

    def rounds(self, low: int, high: int) -> range:
        """The rounds that samples [low, high) are of."""
        if high <= low:
            return range(0)
        first, last = (self._phase_at(s).round_of(s) for s in (low, high - 1))
        return range(first, last + 1)

    def rows(self, first: int, count: int) -> I64:
        """Rows read by samples [first, first + count), counted over all generations, (count,)."""
        out = [np.zeros(0, np.int64)]
        for number in self.rounds(first, first + count):
            low, high = self._samples(number)
            place = np.arange(max(first, low), min(first + count, high)) - low
            out.append(self._rows(number, place))
        return np.concatenate(out)

    def samples(self, part: int, rows_N: I64, number: int) -> tuple[I64, I64]:
        """Every sample of round `number` that reads one of these rows of a generation: the row's
        place in `rows_N`, and the sample, (M,) each."""
        phase, rows = self._phase_of(number), rows_N + self.first_row(part)
        start, none = phase.first_sample(number), np.zeros(0, np.int64)
        if not len(rows):
            return none, none
        if number == phase.round:
            which = np.flatnonzero((rows >= phase.low) & (rows < phase.high))
            return which, start + rows[which] - phase.low
        which = np.flatnonzero(rows < phase.high)
        place = invert(rows[which], phase.high, self._key(phase, number)).astype(np.int64)
        return which, start + place

    def epochs_to_meet(self, part: int) -> int:
        """After the round underway, within so many rounds every row of any generation is read."""
        return 2

    def times_read(self, part: int, samples: int) -> I64:
        """How often the first so many samples read every row of a generation, (rows,)."""
        first, size = self.first_row(part), self.parts[part].rows
        times = np.zeros(size, np.int64)
        for number in self.rounds(0, samples):
            phase, (low, high) = self._phase_of(number), self._samples(number)
            is_whole = high <= samples
            if is_whole and number != phase.round:
                times += first < phase.high
            elif is_whole:
                times += phase.low <= first < phase.high
            else:
                rows = self._rows(number, np.arange(samples - low)) - first
                np.add.at(times, rows[(rows >= 0) & (rows < size)], 1)
        return times

    def _samples(self, number: int) -> tuple[int, int]:
        """The samples [low, high) of a round."""
        phase = self._phase_of(number)
        size = phase.added if number == phase.round else phase.high
        low = phase.first_sample(number)
        return low, low + size

    def _rows(self, number: int, place_N: I64) -> I64:
        """Rows at places of a round, (N,)."""
        phase = self._phase_of(number)
        if number == phase.round:
            return phase.low + place_N
        return permute(place_N, phase.high, self._key(phase, number)).astype(np.int64)

    def _key(self, phase: _Phase, number: int) -> int:
        return key(self.seed, "training-order", phase.epoch + number - phase.round - 1)

    def _phase_at(self, sample: int) -> _Phase:
        return next(p for p in reversed(self._phases) if p.start <= sample)

    def _phase_of(self, number: int) -> _Phase:
        return next(p for p in reversed(self._phases) if p.round <= number)
