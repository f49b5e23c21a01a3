"""What became of a document: found by key, place, work or text, explained, and searched for."""
