"""The kernels: `.cu` files, and beside each the module that launches them (`kernel.py`)."""
