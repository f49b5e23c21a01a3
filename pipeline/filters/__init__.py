"""Filters: rules that documents must pass, each with a reason word of its own; all off by default.

Texts come in as Arrow arrays and are measured where they lie by compiled kernels; what fails which
rule comes out, with the value measured and the limit. One file per family of rules.

Limits: words are separated by white space, so rules on words do not suit languages written without
it; whole documents are judged, no text is changed.
"""
