"""Other libraries' interfaces on the engine.

In: calls with another library's names and arguments. Out: that library's results.

    llama_cpp/   llama-cpp-python
"""
