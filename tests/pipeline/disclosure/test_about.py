"""about.yaml: what is said, what is missing, and the template."""

import re
from pathlib import Path

import pytest

from pipeline.core.errors import ConfigError
from pipeline.disclosure.about import About, about_template, find_answer, load_about


def test_the_template_loads_and_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "about.yaml").write_text(about_template())
    assert load_about(tmp_path / "about.yaml") == About()


def test_every_key_of_the_template_has_a_comment_before_it() -> None:
    lines = about_template().splitlines()
    keys = [i for i, line in enumerate(lines) if re.match(r" *[a-z_]+:", line)]
    assert len(keys) > 60
    assert [lines[i] for i in keys if not lines[i - 1].lstrip().startswith("# ")] == []


def test_the_example_of_the_manual_loads(tmp_path: Path) -> None:
    manual = (Path(__file__).parents[3] / "docs" / "disclosure.md").read_text("utf-8")
    (block,) = re.findall(r"^```yaml\n(.*?)^```$", manual, re.M | re.S)
    (tmp_path / "about.yaml").write_text(block)
    assert load_about(tmp_path / "about.yaml").sources["Wiki"].kind == "public"


def test_what_is_missing_is_a_todo_that_names_its_key() -> None:
    for key in ("name", "provider.name", "dates.published", "creators", "languages"):
        answer = find_answer(About(), key)
        assert answer.basis == "todo"
        assert re.fullmatch(rf"TODO\({key}: .{{8,}}\)", answer.text)


def test_what_is_said_is_put_in_words(tmp_path: Path) -> None:
    path = tmp_path / "about.yaml"
    path.write_text(
        "creators:\n  - name: One\n  - name: Two\n    kind: person\n"
        "crawlers:\n  used: false\ndates:\n  built: 2026\n  published: 2026-04-01\n"
    )
    about = load_about(path)
    assert find_answer(about, "creators").text == "One, Two"
    assert find_answer(about, "crawlers.used").text == "no"
    assert find_answer(about, "dates.built").text == "2026"
    assert find_answer(about, "dates.published").text == "2026-04-01"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("licnce:\n  expression: MIT\n", r":1: licnce: unknown key; did you mean 'licence'\?"),
        ("name: x\ndates:\n  built: yesterday\n", r":3: dates.built: .* got \"yesterday\""),
        ("languages: [English]\n", r":1: languages.0: .* got \"English\""),
        ("url: javascript:alert(1)\n", r":1: url: "),
        (
            "sources:\n  web:\n    kind: bought\n",
            r":3: sources.web.kind: expected 'public'",
        ),
    ],
)
def test_mistakes_name_file_line_and_key(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "about.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=re.escape(str(path)) + message):
        load_about(path)
