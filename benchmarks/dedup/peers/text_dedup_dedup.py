"""Near-duplicates by text-dedup's MinHash command, 0.4.0 (options) or 0.4.1 (a TOML file).

    PYTHON peers/text_dedup_dedup.py --out DIR [--threshold 0.7] FILES...

Settings of each release's own documentation, one process: word 5-grams, threshold 0.7, bands and
rows by its own optimiser. 0.4.0: 250 permutations; its default base hash is SHA-1, `--hash xxh3` is
the one it calls faster. 0.4.1: 240 permutations, xxh3, `check_false_positive = true`.
The kept documents are a `datasets` folder, as it writes them.
"""

import argparse
import os
from importlib.metadata import version
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--explain", action="store_true")
    parser.add_argument("--threshold", type=float, default=0.7)
    parser.add_argument("--hash", choices=["sha1", "xxh3"], default="xxh3")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    os.environ["HF_HOME"] = str(options.out / "cache")  # its caches count as scratch
    os.environ["HF_DATASETS_OFFLINE"] = "1"
    release = version("text-dedup")
    dropped, settings = (options_release if release < "0.4.1" else toml_release)(options)

    from datasets import load_from_disk
    from documents import count_lines, print_summary, write_dropped

    kept = load_from_disk(str(options.out / "kept"))
    if options.explain:
        write_dropped(options, dropped)
    total = count_lines(options.files)
    remaining = total - len(dropped) if options.explain else len(kept)
    print_summary(total, remaining, settings, {"text-dedup": release})


def options_release(
    options: argparse.Namespace,
) -> tuple[list[tuple[str, str | None]], dict[str, object]]:
    """0.4.0: its command line, called in this process so that its clusters can be read."""
    from text_dedup import minhash

    arguments = {
        "path": "json",
        "data_files": str(Path(options.files[0]).parent / "*.jsonl"),
        "split": "train",
        "cache_dir": str(options.out / "cache"),
        "output": str(options.out / "kept"),
        "column": "text",
        "num_proc": "1",
        "threshold": str(options.threshold),
        "hash_func": options.hash,
    }
    minhash.main(
        [part for name, value in arguments.items() for part in (f"--{name}", value)],
        standalone_mode=False,
    )
    settings = {"tokens": "word 5-grams", "threshold": options.threshold, "hash": options.hash}
    if not options.explain:
        return [], settings
    from datasets import load_from_disk
    from documents import read

    identifiers = [identifier for identifier, _ in read(sorted(options.files))]
    kept = set(load_from_disk(str(options.out / "kept"))["id"])
    named: list[tuple[str, str | None]] = []
    for row, identifier in enumerate(identifiers):
        if identifier not in kept:
            stays = identifiers[minhash.uf.find(row)]
            named.append((identifier, stays if stays in kept else None))
    return named, settings


def toml_release(
    options: argparse.Namespace,
) -> tuple[list[tuple[str, str | None]], dict[str, object]]:
    """0.4.1: the quick-start file of its README; it reads Parquet, CSV or JSON.

    To name representatives the documents are not filtered but saved with their clusters, and
    its own rule (index equal to cluster stays) is applied here.
    """
    from text_dedup.config.base import load_config_from_toml
    from text_dedup.minhash import main as run

    files = ", ".join(f'"{name}"' for name in sorted(options.files))
    flag = "true" if options.explain else "false"
    settings_file = options.out / "config.toml"
    settings_file.write_text(
        f"""
[input]
input_type = "local_files"
file_type = "json"
[input.read_arguments]
path = "json"
data_files = [{files}]
split = "train"
[algorithm]
algorithm_name = "minhash"
text_column = "text"
seed = 42
batch_size = 10000
num_perm = 240
threshold = {options.threshold}
false_positive_weight = 0.5
false_negative_weight = 0.5
hash_bits = 64
ngram_size = 5
check_false_positive = true
num_proc = 1
[output]
output_dir = "{options.out / "kept"}"
clean_cache = false
save_clusters = true
skip_filtering = {flag}
keep_index_column = {flag}
keep_cluster_column = {flag}
[debug]
enable_profiling = false
""",
        encoding="utf-8",
    )
    run(load_config_from_toml(settings_file))
    settings = {"tokens": "word 5-grams", "threshold": options.threshold, "verified": True}
    if not options.explain:
        return [], settings
    from datasets import load_from_disk
    from documents import read

    rows = load_from_disk(str(options.out / "kept")).select_columns(
        ["id", "__INDEX__", "__CLUSTER__"]
    )
    identifiers = [identifier for identifier, _ in read(sorted(options.files))]
    clusters = {identifiers[row["__INDEX__"]]: row["__CLUSTER__"] for row in rows}
    stays = {
        identifier for row, identifier in enumerate(identifiers) if clusters.get(identifier) == row
    }
    named = [
        (identifier, _representative(identifiers, clusters.get(identifier), stays))
        for identifier in identifiers
        if identifier not in stays
    ]
    return named, settings


def _representative(identifiers: list[str], cluster: int | None, stays: set[str]) -> str | None:
    """The kept document of a cluster; None when the cluster kept none (or for a short one)."""
    if cluster is None or identifiers[cluster] not in stays:
        return None
    return identifiers[cluster]


if __name__ == "__main__":
    main()
