"""Cleaning at the speed of memory: the same bytes as `ftfy.fix_text(text, normalization="NFC")`.

`clean_array` copies what ftfy leaves alone, makes its simple repairs on the way and asks ftfy for
the few lines where something else may happen. `short_mask` is the low-length filter.

ftfy 6.3 cuts a text after every "\\n" (and after 1,000,000 characters without one), and
repeats a round of fixers over each piece, here called a line, until it no longer changes:
unescape_html, fix_encoding, fix_c1_controls, fix_latin_ligatures, fix_character_width,
uncurl_quotes, fix_line_breaks, fix_surrogates, remove_terminal_escapes, remove_control_chars, NFC.
Let T be a line and T' what the scan writes for it. ftfy(T) = T' under these conditions; a line that
may break one is a suspect (`repair`).

1. *Entities.* `unescape_html` replaces matches of `&#?[0-9A-Za-z]{1,24};` only. None may be in T,
   nor in T', where dropped characters or full-width forms may have made one. From the first line
   with a `<` on (in what came, not in T'), `fix_text` switches the fixer off for the rest of the
   document: no condition then.
2. *Mojibake.* `fix_encoding` returns T unless `BADNESS_RE` matches somewhere (`is_bad`). Every
   alternative of it holds either a C1 control or two adjacent characters from known sets, the first
   not ASCII (`badness`). No such control, and no such pair with fitting neighbours, may be in T or
   in T'. In T' a pair can come about across dropped characters and with the ASCII that replaces a
   character: the scan looks across what it drops, and counts a character that it replaces as both
   its forms. Order among combining marks does not matter, as no set tells them apart (asserted).
3. *C1 controls* (`fix_c1_controls`, and clues for 2) and *ESC* (`remove_terminal_escapes`): none.
   Without ESC that fixer matches nothing.
4. *One-to-few maps.* `fix_latin_ligatures`, `fix_character_width`, `uncurl_quotes` and
   `remove_control_chars` work character by character. Where the whole chain makes ASCII of a
   character and not more bytes than it had, or nothing, the scan writes that. Others (half-width
   kana, U+2028, ...) are suspects. ASCII is left alone by the second round: none of it is in
   a map but what is dropped.
5. *Line breaks.* `fix_line_breaks` makes "\\n" of "\\r\\n" and of other "\\r", before control
   characters are dropped. The scan does the same; the pieces stay as they were cut.
6. *Surrogates* are not in UTF-8.
7. *Normal form.* T' is in NFC if no character of it has NFC_Quick_Check No or Maybe and if the
   combining classes in each run of marks ascend (UAX 15, section 9). Runs that do not are put in
   order, which keeps the text equivalent and so gives its NFC. Maybe counts as Yes where the last
   starter cannot compose with it (`normal_form`). Else it makes a suspect, as No does. The data are
   those of Python's unicodedata, which ftfy uses.

Then the first round gives T', the second finds T' as it is, and ftfy stops.

What this rests on is checked when the tables are built (`known_ftfy`, `derivation`): the sources of
the functions named are those that were read, by digest; the maps and the badness expression may
differ and are read from the installed ftfy. With any other ftfy every text goes through ftfy
itself, with a RuntimeWarning (`slow_because` says why): slow, but never different.

Limits: with other options than ftfy's defaults and NFC, lines that need a repair, and those that
an option touches, are for ftfy itself (`options`). One suspect character sends its whole line, up
to a million characters, to ftfy. The first call on a machine compiles for about 10 s.
"""

from typing import TYPE_CHECKING

from pipeline.core import export_lazily

if TYPE_CHECKING:
    from pipeline.cleaning.clean import clean_array, clean_text, short_mask, slow_because

__all__ = ["clean_array", "clean_text", "short_mask", "slow_because"]

__getattr__, __dir__ = export_lazily(__name__, __all__, {".clean": " ".join(__all__)})
