"""Stages that look at every document and find something: evidence, for the policy or with a
decision of their own, or signals."""
