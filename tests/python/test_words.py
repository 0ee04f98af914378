"""The words that keywords take: what type checkers are told is what the engine knows."""

import ast
import inspect
import typing

import pytest

import lossfeed as lf
import lossfeed.typing
from lossfeed import _native, _words


@pytest.mark.parametrize(
    "words,known",
    [
        (_words.Policy, [name for name, *_ in _native.cache_policies()]),
        (_words.Sampler, [name for name, _ in _native.sampler_options()]),
    ],
    ids=["policy", "sampler"],
)
def test_type_checkers_know_what_the_engine_knows(words, known):
    assert sorted(typing.get_args(words)) == sorted(known)


KEYWORDS = {
    "policy": _words.Policy,
    "sampler": _words.Sampler,
    "cache_form": _words.CacheForm,
    "copy_path": _words.CopyPath,
    "num_workers": _words.Workers,
    "on_error": _words.OnError,
    "ranks": _words.Ranks,
    "score": _words.Score,
    "framework": _words.Framework,
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
    [("layout", _words.Layout), ("dtype", _words.PixelType), ("augment", _words.Augment), ("retouch", _words.Retouch)],
)
def test_a_transform_takes_each_word_and_no_other(keyword, words):
    for word in typing.get_args(words):
        lf.ImageTransform(**{keyword: word})
    with pytest.raises(lf.SettingsError, match="mru"):
        lf.ImageTransform(**{keyword: "mru"})


def test_users_are_shown_every_word():
    words = {name for name, value in vars(_words).items() if typing.get_origin(value) is typing.Literal}
    assert sorted(words) == lf.typing.__all__
    assert all(getattr(lf.typing, name) is getattr(_words, name) for name in words)


@pytest.mark.parametrize(
    "function,keyword,words",
    [
        (lf.Loader.cross_entropy, "reduction", _words.Reduction),
        (lf.Loader.cross_entropy, "sequence", _words.Sequence),
        (lf.Loader.loss, "kind", _words.LossKind),
        (lf.open, "mode", _words.Mode),
        (lf.ImageTransform, "layout", _words.Layout),
        (lf.ImageTransform, "dtype", _words.PixelType),
        (lf.ImageTransform, "augment", _words.Augment),
        (lf.ImageTransform, "retouch", _words.Retouch),
        (lf.Data.cache_bytes, "form", _words.CacheForm),
        (lf.Loader, "pad", _words.Join),
        (lf.Packed, "place", _words.Place),
        (lf.Packed, "long", _words.Long),
        *((lf.Loader, keyword, words) for keyword, words in KEYWORDS.items()),
    ],
    ids=lambda value: value if isinstance(value, str) else getattr(value, "__name__", ""),
)
def test_signatures_name_their_words(function, keyword, words):
    said = inspect.signature(function).parameters[keyword].annotation
    name = next(name for name, value in vars(_words).items() if value is words)
    assert f"_words.{name}" in [ast.unparse(part) for part in ast.walk(ast.parse(said))]
