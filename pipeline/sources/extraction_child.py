"""The child of `pipeline.sources.pages`: reads pages, writes their main text. It is run as a
file and imports nothing of ours, so that it starts at once.

To it: the length of a page (uint32) and the page in UTF-8. From it: 0 or, where the extractor
raised an error, 1 (uint8), the length of the text (uint32) and the text in UTF-8.
"""

import os
import resource
import struct
import sys


def main(cpu_seconds: int, memory: int) -> None:
    """Answer until the input ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever else is printed is no answer
    from resiliparse.extract.html2text import extract_plain_text

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    while len(head := sys.stdin.buffer.read(4)) == 4:
        page = sys.stdin.buffer.read(struct.unpack("<I", head)[0])
        used = resource.getrusage(resource.RUSAGE_SELF)
        limit = int(used.ru_utime + used.ru_stime) + 1 + cpu_seconds
        resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))
        try:
            failed, text = 0, extract_plain_text(page.decode(), main_content=True).encode()
        except Exception:  # noqa: BLE001 - whatever it is, the page has no text
            failed, text = 1, b""
        answers.write(struct.pack("<BI", failed, len(text)) + text)
        answers.flush()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
