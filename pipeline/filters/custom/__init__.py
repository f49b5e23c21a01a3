"""Filters of the user's own: functions that `filters.custom` names, found, checked and called."""
