"""The one error of this package, which never leaves it."""


class UnprovenError(Exception):
    """The installed ftfy is not the one that the argument in `pipeline.cleaning` is about.

    The message says what differs. `clean_texts` then gives every document to ftfy itself.
    """
