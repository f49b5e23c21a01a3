"""What a run would be and would cost, before it is started."""
