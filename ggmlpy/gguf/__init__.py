"""The model file: GGUF, memory-mapped and checked.

In: the path of a GGUF file. Out: its metadata and tensors. Arrays and tensor data stay in the file
until they are read.

    part.py      one file, mapped into memory
    cursor.py    steps through its header; nothing is read or counted past the file's end
    strings.py   where the strings of an array begin, found fast
    arrays.py    metadata arrays, decoded on demand
    metadata.py  keys and values, with typed getters
    overrides.py values that take the place of metadata
    tensors.py   the tensor table and the checks on it
    file.py      GGUFFile: header, byte order, split files
"""

from ggmlpy.gguf.arrays import LazyArray
from ggmlpy.gguf.file import GGUFFile
from ggmlpy.gguf.metadata import Metadata, Value
from ggmlpy.gguf.tensors import TensorInfo

__all__ = ["GGUFFile", "LazyArray", "Metadata", "TensorInfo", "Value"]
