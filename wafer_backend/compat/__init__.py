"""Which cstorch and appliance names a checkout needs and this package lacks.

    python -m wafer_backend.compat CHECKOUT

reads the Python files of a checkout by their syntax tree and runs nothing of it.
"""
