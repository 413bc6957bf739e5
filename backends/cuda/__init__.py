"""The CUDA backend: kernels from this folder, compiled by NVRTC and run through CuPy.

In: steps and places on a device. Out: plans, whose launches a CUDA graph replays. The same kernels
run on the CPU, on an emulated device (`emulated/`).
"""
