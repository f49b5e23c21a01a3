"""`prep convert`: ready data sets from one form to another, as streams of bounded memory."""
