"""What is done once on a machine, in one process, before workers would all do it: kernels compiled,
tokenizer engines checked.
"""

from collections.abc import Callable
from pathlib import Path

from dedup import compiled
from pipeline.config.prep import Config
from pipeline.filters.rules import has_rules
from pipeline.stories.selection import choose_preset
from pipeline.tokenizers.definition import TokenizerDefinition
from pipeline.tokenizers.engine import choose_engine
from pipeline.tokenizers.engines import REFERENCE

Note = Callable[[str], None]


def compile_kernels(config: Config, note: Note, screens: bool) -> None:
    """Compile what this config needs and nothing has compiled yet; say so. `screens`: documents are
    screened."""
    from pipeline import cleaning

    if config.clean.fix_text and compiled.first_use(Path(cleaning.__file__).parent):
        note("compiling the cleaning kernels for this machine, once")
        cleaning.clean_array(["schÃ¶n"])
    if screens:
        compile_detectors(note)
        if config.screen.registry:
            from pipeline.screening.fingerprints.find import compile_fingerprint_kernels

            compile_fingerprint_kernels(note)
    if has_rules(config.filters):
        from pipeline.filters.rules import compile_filter_kernels

        compile_filter_kernels(note)
    compiling = config.decontaminate.sets or config.lines.unit != "none"
    if (choose_preset(config.dedup) is not None or compiling) and compiled.first_use():
        from dedup.find import warm_up

        note("compiling the dedup kernels for this machine, once")
        warm_up()


def compile_detectors(note: Note) -> None:
    """Run each kernel of the detectors once, and say so, where none is compiled yet."""
    from pipeline.screening.detectors import titles
    from pipeline.screening.fingerprints import literals

    packages = (Path(literals.__file__).parent, Path(titles.__file__).parent)
    if any(compiled.first_use(package) for package in packages):
        note("compiling the kernels for screening on this machine, once")
        literals.warm_up_literals()
        titles.warm_up_titles()


def check_engines(tokenizer: TokenizerDefinition, note: Note) -> None:
    """Let engines prove themselves on this tokenizer; say so where only the slow one may work."""
    engine, reason = choose_engine(tokenizer)
    if engine == REFERENCE:
        note(f"tokenizing is slow: {reason}")
