"""Model files from a Hugging Face hub, or from a URL: found, downloaded, kept in the hub's cache.

In: a repository and a quantization, a file's name, or a URL. Out: the path of a local GGUF file,
beside the other parts of a split model.

    names.py     repositories, quantizations, split models: which files a name means
    client.py    what a hub has and what the cache holds; its errors as ours
    transfer.py  one file over HTTP, which goes on where it was cut
    fetch.py     the model of a repository, or of a URL, as a local path

Needs the package huggingface_hub (`pip install 'ggmlpy[hub]'`), which is imported when a file is
asked for.
"""
