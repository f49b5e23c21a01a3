"""Links between files."""

import os
from pathlib import Path


def create_symlink(link: str | Path, target: str | Path, target_is_directory: bool = False) -> None:
    """Make `link` point to `target`; an earlier link of that name goes."""
    if os.path.islink(link):
        os.unlink(link)
    os.symlink(target, link, target_is_directory=target_is_directory)
