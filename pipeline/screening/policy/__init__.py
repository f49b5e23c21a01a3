"""What follows from evidence: a language of rules, and pure functions from evidence to decisions.

Evidence stays: another policy needs no detection. Rules see what detectors found and nothing else;
a document without evidence is allowed.
"""
