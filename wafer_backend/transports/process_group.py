"""A cluster of processes: every rank runs the same program and hosts some of the roles.

Rank r of W hosts wafers r, r + W, ... and MemoryX shards r, r + W, ...; rank 0 the coordinator. A
thread on each rank serves its shards; the main threads go through the same steps together, and
nobody fetches for the next step before everybody has updated. A weight of another rank comes once a
pass, whole, into this rank's module, and wafers take their copies from there.
"""

import itertools
import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from wafer_backend.cluster.memoryx import MASK, MemoryX
from wafer_backend.errors import TransportError
from wafer_backend.streaming.weights import map_tensors, tensors_in
from wafer_backend.transports.messages import COORDINATOR, Address, Kind, Message
from wafer_backend.transports.ranks import Ranks
from wafer_backend.transports.shard import MemoryXShard, MessageTransport


class ProcessGroupTransport(MessageTransport):
    """This rank's part of the cluster."""

    def __init__(self, memoryx: MemoryX, ranks: Ranks) -> None:
        super().__init__(memoryx, Address("wafer", ranks.rank))
        self._ranks = ranks
        mine = range(ranks.rank, memoryx.server_count, ranks.size)
        self._shards = {index: MemoryXShard(index, memoryx) for index in mine}
        self._mine = [name for index in mine for name in memoryx.owned(index)]
        self._others = sorted(set(memoryx.parameters) - set(self._mine))
        self._outdated = set(self._others)
        memoryx.serve(self._mine)
        self._changed = threading.Condition()
        self._reduced: dict[int, tuple[float, int]] = {}
        self._lost: TransportError | None = None
        if ranks.size > 1:
            threading.Thread(target=self._serve, name="MemoryX", daemon=True).start()

    # The wafers' side.

    def fetch_weight(self, name: str) -> torch.Tensor:
        """A copy of a weight; the first time in a pass it comes from the rank that owns it."""
        self._refresh(name)
        weight = self._memoryx.weight(name)
        self.traffic.weight_bytes += weight.nbytes
        return weight

    def _send_to_shard(self, message: Message) -> None:
        rank = message.receiver.index % self._ranks.size
        if rank == self._ranks.rank:
            self._take(message)
        else:
            self._ranks.send(message, rank, "up")

    # The coordinator's side, the same on every rank.

    def order(self, spans: list[range], *, by_leaf: bool) -> Iterator[tuple[int, int]]:
        """(system, leaf) of this rank's wafers, when every rank has come so far.

        So nobody fetches a weight that is still being updated, or sends to a round that another
        rank has not begun.
        """
        self._meet()
        self._outdated.update(self._others)
        for system, span in enumerate(spans):
            if system % self._ranks.size == self._ranks.rank:
                self._wafer = Address("wafer", system)
                for leaf in span:
                    yield system, leaf

    def sums(self) -> tuple[float, int]:
        """(loss sum, counted labels) over all leaves."""
        if self._sums is None:
            self._sums = self._agree_on_sums()
        return self._sums

    def _agree_on_sums(self) -> tuple[float, int]:
        """Wait for this rank's shards; rank 0 then sends their sums to the others."""
        with self._changed:
            while len(self._reduced) < len(self._shards):
                if self._lost is not None:
                    raise self._lost
                self._changed.wait(timeout=1.0)
        if self._ranks.rank:
            numbers = self._ranks.receive(0, "side").numbers
            return numbers["loss_sum"], int(numbers["n_counted"])
        loss_sum, n_counted = self._reduced[0]
        numbers = {"loss_sum": loss_sum, "n_counted": float(n_counted)}
        self._send_aside(self._ranks.others, numbers=numbers)
        return loss_sum, n_counted

    def update(self, learning_rate: float, factor: torch.Tensor | None) -> None:
        """Clip by a factor, and one optimizer step on this rank's shards."""
        super().update(learning_rate, factor)
        self._outdated.update(self._others)
        self._memoryx.forget_state(self._others)

    def gather(self, outputs: Mapping[int, Any]) -> list[Any]:
        """What the module returned for every leaf, on every rank."""
        own = {
            f"{leaf}.{place}": tensor
            for leaf, output in outputs.items()
            for place, tensor in enumerate(tensors_in(output))
        }
        tensors = self._shared(own)
        like = next(iter(outputs.values()))
        leaves = sorted({int(label.partition(".")[0]) for label in tensors})
        return [outputs[leaf] if leaf in outputs else _like(like, leaf, tensors) for leaf in leaves]

    @property
    def processes(self) -> int:
        """One a rank."""
        return self._ranks.size

    @property
    def rank(self) -> int:
        """The number of this rank."""
        return self._ranks.rank

    def agreed(self, number: int) -> int:
        """What rank 0 gave; all ranks call it."""
        if self._ranks.rank:
            return int(self._ranks.receive(0, "side").numbers["agreed"])
        self._send_aside(self._ranks.others, numbers={"agreed": float(number)})
        return number

    def bring_home(self) -> None:
        """Weights, masks and optimizer state of all shards are in rank 0's MemoryX after it.

        All ranks call it. The next update lets what other ranks own go again.
        """
        states = self._memoryx.optimizer_state()
        fields = {field for name in self._mine for field in states.get(name, {})}
        self._ranks.know([MASK, *self._union(fields)])
        if self._ranks.rank == 0:
            for name in self._others:
                self._refresh(name)
                self._memoryx.put_beside(name, self._fetch(Kind.BESIDE, name))
        self._meet()

    def _refresh(self, name: str) -> None:
        """A weight of another rank is as it is there after it, and so may be others."""
        if name in self._outdated:
            weights = self._fetch(Kind.MASTER, name)
            for each, weight in weights.items():
                self._memoryx.parameters[each].data.copy_(weight)
            self._outdated.difference_update(weights)

    def _union(self, words: set[str]) -> list[str]:
        """The words of all ranks, sorted."""
        packed = torch.tensor(list(json.dumps(sorted(words)).encode()), dtype=torch.uint8)
        parts = self._shared({str(self._ranks.rank): packed})
        return sorted(
            {word for part in parts.values() for word in json.loads(bytes(part.tolist()))}
        )

    # Messages.

    def _fetch(self, kind: Kind, name: str) -> dict[str, torch.Tensor]:
        """The tensors that the owner of a weight answers with; another rank's."""
        shard = self._memoryx.servers[name]
        rank = shard % self._ranks.size
        self._ranks.send(self._message(kind, shard, name=name), rank, "up")
        return self._ranks.receive(rank, "down").tensors

    def _ask(
        self, kind: Kind, *, everywhere: bool = False, **content: Any
    ) -> dict[str, torch.Tensor]:
        """Ask this rank's shards; the tensors of their answers, or of those of all ranks."""
        tensors: dict[str, torch.Tensor] = {}
        with self._changed:
            if kind is Kind.BEGIN:
                self._reduced.clear()
            for index, shard in self._shards.items():
                message = replace(self._message(kind, index, **content), sender=COORDINATOR)
                for answer in shard.handle(message):
                    tensors.update(answer.tensors)
        return self._shared(tensors) if everywhere else tensors

    def _take(self, message: Message) -> None:
        """Hand a PARTIAL to a shard of this rank."""
        with self._changed:
            for answer in self._shards[message.receiver.index].handle(message):
                numbers = answer.numbers
                sums = numbers["loss_sum"], int(numbers["n_counted"])
                self._reduced[message.receiver.index] = sums
                self._changed.notify_all()

    def _serve(self) -> None:
        """Answer other ranks until they end (a daemon thread)."""
        try:
            while True:
                message = self._ranks.receive(None, "up")
                if message.kind == Kind.PARTIAL:
                    self._take(message)
                    continue
                for answer in self._shards[message.receiver.index].handle(message):
                    self._ranks.send(answer, message.sender.index % self._ranks.size, "down")
        except TransportError as error:
            with self._changed:
                self._lost = error
                self._changed.notify_all()

    def _send_aside(self, to: list[int], **content: Any) -> None:
        me = Address("rank", self._ranks.rank)
        for rank in to:
            message = Message(
                kind=Kind.DONE,
                sender=me,
                receiver=Address("rank", rank),
                round=self._round,
                **content,
            )
            self._ranks.send(message, rank, "side")

    def _shared(self, own: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The tensors of all ranks: through rank 0, so that nobody waits in a circle."""
        if self._ranks.rank:
            self._send_aside([0], tensors=own)
            return self._ranks.receive(0, "side").tensors
        tensors = dict(own)
        for rank in self._ranks.others:
            tensors.update(self._ranks.receive(rank, "side").tensors)
        self._send_aside(self._ranks.others, tensors=tensors)
        return tensors

    def _meet(self) -> None:
        """Go on when all ranks are here."""
        self._shared({})


def _like(output: Any, leaf: int, tensors: Mapping[str, torch.Tensor]) -> Any:
    """The output of another leaf in the structure of one that ran here."""
    places = itertools.count()
    return map_tensors(lambda tensor: tensors[f"{leaf}.{next(places)}"], output)
