"""What bits mean: E2M1, E8M0, E4M3, two's-complement INT4, nibble packing, and the laws of exactness.

Arrays in, arrays out. No file, no tensor name, no policy: those live in the rooms that import this one.
"""
