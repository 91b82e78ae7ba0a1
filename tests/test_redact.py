"""Secrets never reach the screen or a file, and ordinary words do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproof.redact import MASK, Redactor, is_secret_name

SECRET = "aB3dE6gH9jK2mN5pQ8sT"
SHAPES = [
    "hf_{}",
    "sk-{}",
    "ghp_{}",
    "github_pat_{}",
    "nvapi-{}",
    "Authorization: Bearer {}",
    "authorization: basic {}==",
    "https://user:{}@host/path",
    "redis://:{}@host:6379",
    "HF_TOKEN={}",
    "export HF_TOKEN='{}'",
    '"HF_TOKEN": "{}"',
    "HUGGING_FACE_HUB_TOKEN={}",
    "OPENAI_API_KEY={}",
    "api_key: '{}'",
    "docker run -e HF_TOKEN={} image",
    "vllm serve --api-key {} model",
    "vllm serve --api-key={} model",
    "huggingface-cli login --token {}",
]


@pytest.mark.parametrize("shape", SHAPES)
def test_masks_a_secret_of_a_known_shape(shape: str) -> None:
    text = Redactor({})(f"before {shape.format(SECRET)} after")
    assert SECRET not in text
    assert MASK in text
    assert text.startswith("before ")
    assert text.endswith(" after")


def test_masks_an_access_key_of_aws() -> None:
    assert Redactor({})("key AKIAABCDEFGHIJKLMNOP.") == "key AKIA***."


@pytest.mark.parametrize("name", ["HF_TOKEN", "hf_token", "AWS_SECRET_ACCESS_KEY", "MY_PASSWORD", "X_APIKEY"])
def test_masks_the_value_of_a_secret_variable_wherever_it_is(name: str) -> None:
    redact = Redactor({name: "no-known-shape", "HOME": "/home/someone"})
    assert redact("got no-known-shape from /home/someone") == f"got {MASK} from /home/someone"


def test_masks_this_process_own_hf_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "no-known-shape")
    assert "no-known-shape" not in Redactor()("log: no-known-shape")


PLACES = {"/home/me": "~", "/home/me/cache": "$CACHE"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/home/me", "~"),
        ("/home/me/a /home/me/cache/b", "~/a $CACHE/b"),
        ("at /home/me.", "at ~."),
        ("--dir=/home/me,'/home/me/cache'", "--dir=~,'$CACHE'"),
        ("file:///home/me/x:/home/me", "file://~/x:~"),
        ("/home/merlin /home/me2 /home/me-too /home/me.txt", "/home/merlin /home/me2 /home/me-too /home/me.txt"),
        ("/home/me/cached /home/me/cache.old", "~/cached ~/cache.old"),
        ("/mnt/home/me", "/mnt/home/me"),
        ("../home/me", "../home/me"),
    ],
)
def test_a_place_is_named_only_where_its_whole_path_stands(text: str, shown: str) -> None:
    assert Redactor({}, PLACES)(text) == shown


@pytest.mark.parametrize("folder", ["/", "", ".", "cache", "./cache"])
def test_a_folder_that_is_no_whole_path_renames_nothing(folder: str) -> None:
    assert Redactor({}, {folder: "~"})("/a/b ./cache lmcache-mp") == "/a/b ./cache lmcache-mp"


def test_masks_the_longer_of_two_values_whole() -> None:
    redact = Redactor({"A_TOKEN": "abcdefgh", "B_TOKEN": "abcdefgh-and-more"})
    assert redact("abcdefgh-and-more") == MASK


def test_a_short_value_is_not_searched_for() -> None:
    assert Redactor({"A_TOKEN": "1"})("1 of 11") == "1 of 11"


@pytest.mark.parametrize(
    "name",
    [
        "TOKENIZERS_PARALLELISM",
        "TOKENIZER_MODE",
        "MAX_NUM_BATCHED_TOKENS",
        "NUM_SPECULATIVE_TOKENS",
        "HOME",
        "tokenizers",
        "tokenizer",
        "max-num-batched-tokens",
    ],
)
def test_harmless_names_are_kept(name: str) -> None:
    assert not is_secret_name(name)
    assert Redactor({name: "ordinary"}).tree({name: "ordinary", "text": "ordinary"}) == {
        name: "ordinary",
        "text": "ordinary",
    }


@pytest.mark.parametrize(
    "text",
    [
        "TOKENIZERS_PARALLELISM=false",
        '--max-num-batched-tokens 8192 --kv-transfer-config \'{"kv_connector": "LMCacheMPConnector"}\'',
        "vllm:external_prefix_cache_hits_total 1024.0",
        "http://127.0.0.1:8000/metrics",
        "half_done and a basic test",
    ],
)
def test_ordinary_text_is_kept(text: str) -> None:
    assert Redactor({})(text) == text


def test_masks_in_every_part_of_a_tree() -> None:
    redact = Redactor({"HF_TOKEN": SECRET})
    tree = {
        "environment": {"HF_TOKEN": "short", "PATH": "/bin", "COUNT": 3},
        "lines": [SECRET, ("x", f"--token={SECRET}")],
        "none": None,
    }
    assert redact.tree(tree) == {
        "environment": {"HF_TOKEN": MASK, "PATH": "/bin", "COUNT": 3},
        "lines": [MASK, ["x", f"--token={MASK}"]],
        "none": None,
    }


def test_masks_the_word_after_a_secret_flag_in_an_argv() -> None:
    argv = ["vllm", "serve", "--api-key", SECRET, "--port", "8000"]
    assert Redactor({}).tree(argv) == ["vllm", "serve", "--api-key", MASK, "--port", "8000"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(before=st.text(), after=st.text(), tree=JSON)
def test_a_secret_value_survives_nowhere(before: str, after: str, tree: object) -> None:
    secret = "Zq7-no-known-shape-Zq7"
    redact = Redactor({"HF_TOKEN": secret})
    assert secret not in str(redact.tree({"here": before + secret + after, "tree": [tree, secret]}))


@given(text=st.text("abAB01 =:'\"-_/@", max_size=60))
def test_masking_twice_changes_nothing_more(text: str) -> None:
    redact = Redactor({})
    once = redact(text)
    assert redact(once) == once
