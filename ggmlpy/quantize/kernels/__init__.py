"""Compiled quantisers, `entry(src, dst, n_rows, n, importance, scratch)`: rows of f32 to blocks.

Lanes of vectors are sub-blocks, so that every sum runs over one sub-block from its first element to
its last, as in ggml's scalar code, and the bytes are the same.

    layout.py   the scratch memory; sub-blocks side by side
    search.py   scales and codes of 16 sub-blocks with the least error
    scales.py   the scales themselves as small integers
    k_16.py     q2_K, q3_K, q6_K: sub-blocks of 16
    k_32.py     q4_K, q5_K: sub-blocks of 32
    blocks.py   q4_0 … q8_0, iq4_nl, iq4_xs
"""
