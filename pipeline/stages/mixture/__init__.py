"""How often each kept document of train is in the stream: by its source or its group, and by
the size of the cluster of duplicates that it was kept from."""
