"""The words that keywords take: what type checkers are told is what the engine knows."""

import ast
import inspect
import typing

import pytest

import lossfeed as lf
import lossfeed.typing
from lossfeed import _native
from lossfeed._base import literals


@pytest.mark.parametrize(
    "words,known",
    [
        (literals.Policy, [name for name, _, live, _ in _native.cache_policies() if live]),
        (literals.Sampler, [name for name, _ in _native.sampler_options()]),
    ],
    ids=["policy", "sampler"],
)
def test_type_checkers_know_what_the_engine_knows(words, known):
    assert sorted(typing.get_args(words)) == sorted(known)


KEYWORDS = {
    "policy": literals.Policy,
    "sampler": literals.Sampler,
    "cache_form": literals.CacheForm,
    "copy_path": literals.CopyPath,
    "num_workers": literals.Workers,
    "on_error": literals.OnError,
    "ranks": literals.Ranks,
    "score": literals.Score,
    "framework": literals.Framework,
}


@pytest.mark.parametrize("keyword", KEYWORDS)
def test_each_word_is_taken_and_another_is_refused(numbers, keyword):
    def refusal(word):
        # What fits no other setting of this loader is another complaint than one about the word itself.
        try:
            lf.Loader(numbers, 8, cache="1KiB", **{keyword: word})
        except lf.SettingsError as error:
            return str(error)
        return ""

    wrong = refusal("mru")
    assert "mru" in wrong
    for word in typing.get_args(KEYWORDS[keyword]):
        assert refusal(word) != wrong.replace("mru", word)


@pytest.mark.parametrize(
    "keyword,words",
    [("layout", literals.Layout), ("dtype", literals.PixelType), ("augment", literals.Augment), ("retouch", literals.Retouch)],
)
def test_a_transform_takes_each_word_and_no_other(keyword, words):
    for word in typing.get_args(words):
        lf.ImageTransform(**{keyword: word})
    with pytest.raises(lf.SettingsError, match="mru"):
        lf.ImageTransform(**{keyword: "mru"})


def test_users_are_shown_every_word():
    words = {name for name, value in vars(literals).items() if typing.get_origin(value) is typing.Literal}
    assert sorted(words) == lf.typing.__all__
    assert all(getattr(lf.typing, name) is getattr(literals, name) for name in words)


@pytest.mark.parametrize(
    "function,keyword,words",
    [
        (lf.Loader.cross_entropy, "reduction", literals.Reduction),
        (lf.Loader.cross_entropy, "sequence", literals.Sequence),
        (lf.Loader.loss, "kind", literals.LossKind),
        (lf.open, "mode", literals.Mode),
        (lf.ImageTransform, "layout", literals.Layout),
        (lf.ImageTransform, "dtype", literals.PixelType),
        (lf.ImageTransform, "augment", literals.Augment),
        (lf.ImageTransform, "retouch", literals.Retouch),
        (lf.Data.cache_bytes, "form", literals.CacheForm),
        (lf.Loader, "pad", literals.Join),
        (lf.Packed, "place", literals.Place),
        (lf.Packed, "long", literals.Long),
        *((lf.Loader, keyword, words) for keyword, words in KEYWORDS.items()),
    ],
    ids=lambda value: value if isinstance(value, str) else getattr(value, "__name__", ""),
)
def test_signatures_name_their_words(function, keyword, words):
    said = inspect.signature(function).parameters[keyword].annotation
    name = next(name for name, value in vars(literals).items() if value is words)
    assert f"literals.{name}" in [ast.unparse(part) for part in ast.walk(ast.parse(said))]
