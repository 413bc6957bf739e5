"""Which files a name of a repository means: llama.cpp's rules."""

from __future__ import annotations

import pytest

from ggmlpy.errors import ArgumentError, MissingFile
from ggmlpy.hub.names import Repo, choose, match, quant_of

SPLIT = [f"big/m-Q8_0-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
FILES = [
    ".gitattributes", "README.md", *SPLIT, "m-F16.gguf", "m-Q4_K_M.gguf", "m-Q4_K_S.gguf",
    "m-imatrix.gguf", "mmproj-m-Q4_0.gguf",
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "id", "quant"),
    [("a/b", "a/b", None), ("a/b:q8_0", "a/b", "q8_0"), ("a-1/b.c_D", "a-1/b.c_D", None)],
)
def test_a_repository_and_its_quantization(text: str, id: str, quant: str | None) -> None:
    assert Repo.parse(text) == Repo(id, quant)


@pytest.mark.parametrize("text", ["", "a", "a/b/c", "a/b:", ":q", "https://x/a", "a /b", "../b"])
def test_what_is_no_repository(text: str) -> None:
    with pytest.raises(ArgumentError, match=r"is no repository: it must be user/repo"):
        Repo.parse(text)


@pytest.mark.parametrize(
    ("quant", "files", "found"),
    [
        (None, FILES, ["m-Q4_K_M.gguf"]),
        ("q4_k_s", FILES, ["m-Q4_K_S.gguf"]),
        ("Q8_0", FILES, SPLIT),
        (None, ["m-F16.gguf", "x.Q8_0.gguf"], ["x.Q8_0.gguf"]),
        (None, ["mmproj-F16.gguf", "m-BF16.gguf", "m-F16.gguf"], ["m-BF16.gguf"]),
        (None, SPLIT, SPLIT),
        ("f16", ["m-BF16.gguf", "m-F16.gguf"], ["m-BF16.gguf"]),  # found within, as llama.cpp does
    ],
)
def test_the_model_of_a_quantization(quant: str | None, files: list[str], found: list[str]) -> None:
    assert choose(Repo("a/b", quant), files) == found


def test_a_quantization_that_is_not_there_names_those_that_are() -> None:
    with pytest.raises(MissingFile, match=r'"Q9_Z", there are Q8_0, F16, Q4_K_M, Q4_K_S$'):
        choose(Repo("a/b", "Q9_Z"), FILES)


@pytest.mark.parametrize("files", [[], ["README.md"], ["mmproj-x.gguf"]])
def test_no_model_at_all(files: list[str]) -> None:
    with pytest.raises(MissingFile, match=r"a/b: the repository has no GGUF model"):
        choose(Repo("a/b"), files)


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("m-F16.gguf", ["m-F16.gguf"]),
        ("*F16*", ["m-F16.gguf"]),
        ("*Q8_0*", SPLIT),
        (SPLIT[1], SPLIT),
        ("README.md", ["README.md"]),
    ],
)
def test_a_file_by_its_name_or_a_glob(pattern: str, found: list[str]) -> None:
    assert match("a/b", pattern, FILES) == found


def test_globs_that_match_none_or_several() -> None:
    with pytest.raises(MissingFile, match=r'no file matches "\*Q9\*"; there are big/'):
        match("a/b", "*Q9*", FILES)
    with pytest.raises(MissingFile, match=r"3 files match .*, it must be one; there are m-Q4_K_M"):
        match("a/b", "*Q4_*", FILES)


def test_a_split_model_that_lacks_a_part() -> None:
    with pytest.raises(MissingFile, match=r"00002-of-00003.gguf: this part"):
        choose(Repo("a/b"), [SPLIT[0], SPLIT[2]])


@pytest.mark.parametrize(
    ("path", "quant"),
    [
        ("a/m-q4_k_m.gguf", "Q4_K_M"),
        ("m.IQ2_XS.gguf", "IQ2_XS"),
        (SPLIT[2], "Q8_0"),
        ("m.gguf", ""),
    ],
)
def test_the_quantization_in_a_name(path: str, quant: str) -> None:
    assert quant_of(path) == quant
