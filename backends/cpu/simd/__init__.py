"""The vocabulary of CPU kernels: vectors, memory, arithmetic, conversions, int8 products, maths."""
