"""The kernel: everything that writes, identifies, orders or accounts for data. Imports nothing of
ours.
"""
