"""The balancing ledger: each equation that does not hold is named."""

import copy
import json
from collections.abc import Callable

import pytest

from pipeline.core.errors import IntegrityError
from pipeline.core.ledger import Ledger, SourceLedger, SplitLedger, Tally, ledger_from_dict


def balanced() -> Ledger:
    source = SourceLedger(
        records=Tally(10, 1000),
        bad={"bad_json": Tally(1, 60), "surrogate": Tally(1, 40)},
        document_record_bytes=900,
        documents=Tally(8, 800),
        dropped={"too_short": Tally(2, 20)},
        quarantined=Tally(1, 80),
        duplicates=Tally(1, 100),
        kept=Tally(4, 600),
        tokens=130,
    )
    train = SplitLedger(
        documents=3, tokens=100, streams=1, rows=10, mask_sum=99, padding=1, max_sequence_length=10
    )
    return Ledger(
        {"Pile-CC": source},
        {
            "train": train,
            "validation": SplitLedger(
                documents=1,
                tokens=30,
                streams=1,
                rows=3,
                mask_sum=29,
                padding=1,
                max_sequence_length=10,
            ),
        },
        skipped_shards=2,
    )


def test_a_balanced_ledger_passes_and_survives_json() -> None:
    ledger = balanced()
    ledger.check()
    assert ledger_from_dict(json.loads(json.dumps(ledger.as_dict()))) == ledger
    Ledger().check()


Breaker = Callable[[Ledger], None]


def change(path: str, by: int = 1) -> Breaker:
    """Add to a number deep inside."""

    def apply(ledger: Ledger) -> None:
        *parents, last = path.split("/")
        target: object = ledger
        for name in parents:
            target = target[name] if isinstance(target, dict) else getattr(target, name)
        setattr(target, last, getattr(target, last) + by)

    return apply


SOURCE, TRAIN = "sources/Pile-CC", "splits/train"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("records/documents", "source 'Pile-CC': records: 11 in, 10 accounted for"),
        ("bad/bad_json/documents", "source 'Pile-CC': records: 10 in, 11 accounted for"),
        ("records/bytes", "source 'Pile-CC': record bytes: 1,001 in, 1,000 accounted for"),
        ("bad/surrogate/bytes", "source 'Pile-CC': record bytes: 1,000 in, 1,001 accounted for"),
        ("document_record_bytes", "source 'Pile-CC': record bytes: 1,000 in, 1,001"),
        ("dropped/too_short/documents", "source 'Pile-CC': documents: 8 in, 9 accounted for"),
        ("quarantined/documents", "source 'Pile-CC': documents: 8 in, 9 accounted for"),
        ("duplicates/documents", "source 'Pile-CC': documents: 8 in, 9 accounted for"),
        ("documents/bytes", "source 'Pile-CC': document bytes: 801 in, 800 accounted for"),
        ("kept/bytes", "source 'Pile-CC': document bytes: 800 in, 801 accounted for"),
        ("kept/documents", "kept documents differ from the documents of the splits"),
        ("tokens", "tokens of the sources differ from the tokens of the splits"),
    ],
)
def test_a_broken_source_equation_is_named(path: str, message: str) -> None:
    ledger = balanced()
    change(f"{SOURCE}/{path}")(ledger)
    with pytest.raises(IntegrityError) as caught:
        ledger.check()
    assert message in str(caught.value)
    assert caught.value.exit_code == 4


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("rows", "split 'train': rows: 11, expected 10"),
        ("rows", "split 'train': padding: 1, expected 11"),
        ("mask_sum", "split 'train': loss mask: 100, expected 99"),
        ("padding", "split 'train': padding: 2, expected 1"),
        ("streams", "split 'train': loss mask: 99, expected 98"),
        ("tokens", "split 'train': loss mask: 99, expected 100"),
        ("documents", "kept documents differ"),
        ("max_sequence_length", "split 'train': rows: 10, expected 9"),
    ],
)
def test_a_broken_split_equation_is_named(field: str, message: str) -> None:
    ledger = balanced()
    change(f"{TRAIN}/{field}")(ledger)
    with pytest.raises(IntegrityError) as caught:
        ledger.check()
    assert message in str(caught.value)


def test_all_problems_stand_in_one_message() -> None:
    ledger = balanced()
    ledger.sources["web"] = copy.deepcopy(ledger.sources["Pile-CC"])
    change("sources/web/records/bytes")(ledger)
    change("splits/validation/padding")(ledger)
    with pytest.raises(IntegrityError) as caught:
        ledger.check()
    for part in ("'web': record bytes", "'validation': padding", "kept documents differ", "tokens"):
        assert part in str(caught.value)


def test_tally_adds() -> None:
    tally = Tally()
    tally.add(2, 30)
    tally.add(1, 0)
    assert tally == Tally(3, 30)
    assert Ledger().source("new") == SourceLedger()
