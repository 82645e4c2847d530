"""How many tokens a prompt has, as verl counts them when it drops prompts that are too long.

verl renders a prompt by the chat template, with the beginning of an answer, and tokenizes that without another
special token (``maybe_filter_out_long_prompts`` in verl/utils/dataset/rl_dataset.py, 0.6.1 and 0.9.1). It counts
a prompt that the template refuses as too long, and drops it in silence: that is an error of the row here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from data_prep.errors import DataError, FieldError

_SHOWN_CHARS = 200
_INSTALL = "pip install transformers, or leave out --tokenizer"
# Words outside of a vocabulary are all the same; a model may know one script only.
_DIFFERENT = (("The apple is red", "Some house was old"), ("1 2", "3 4"), ("漢字", "仮名"))

Prompt = Sequence[Mapping[str, Any]]


class PromptLengths:
    """The tokenizer and the chat template of a model folder.

    transformers is loaded here (seconds), and reads the folder alone: nothing is downloaded, and no code that the
    folder may hold is run. Can be pickled; the other process loads the tokenizer again.
    """

    def __init__(self, folder: Path) -> None:
        """Load the tokenizer.

        Raises:
            DataError: no transformers, no folder, no usable tokenizer in it, or one without a chat template.
        """
        self.folder = folder
        self._tokenizer = _load(folder)

    def __reduce__(self) -> tuple[type[PromptLengths], tuple[Path]]:
        return PromptLengths, (self.folder,)

    def count(self, prompt: Prompt) -> int:
        """Tokens of one prompt.

        Raises:
            FieldError: the chat template or the tokenizer refuses it.
        """
        return self._counts([self._rendered(prompt)])[0]

    def count_many(self, prompts: Sequence[Prompt]) -> list[int | FieldError]:
        """Tokens of each prompt, faster than one by one; a FieldError in the place of one that is refused."""
        rendered: list[str | FieldError] = []
        for prompt in prompts:
            try:
                rendered.append(self._rendered(prompt))
            except FieldError as error:
                rendered.append(error)
        texts = [text for text in rendered if isinstance(text, str)]
        counts: Iterator[int | FieldError]
        try:
            counts = iter(self._counts(texts))
        except FieldError:  # one of them, and only one by one tells which
            counts = self._one_by_one(texts)
        return [next(counts) if isinstance(text, str) else text for text in rendered]

    def tokens(self, text: str) -> int:
        """Tokens of a text by itself, such as an answer.

        Raises:
            FieldError: the tokenizer refuses it.
        """
        return self._counts([text])[0]

    def tokens_many(self, texts: Sequence[str]) -> list[int]:
        """:meth:`tokens` of each text.

        Raises:
            FieldError: the tokenizer refuses one of them.
        """
        return self._counts(texts)

    def _rendered(self, prompt: Prompt) -> str:
        try:
            text = self._tokenizer.apply_chat_template(list(prompt), add_generation_prompt=True, tokenize=False)
        except Exception as error:  # whatever a template raises, and what verl catches
            raise FieldError(
                "prompt",
                f"the chat template of {self.folder} refuses it: {_told(error)}; verl drops such a row in silence",
            ) from error
        return str(text)

    def _counts(self, texts: Sequence[str]) -> list[int]:
        """As ``apply_chat_template(tokenize=True)`` goes on: no special token, nothing cut."""
        if not texts:
            return []
        try:
            ids = self._tokenizer(
                list(texts),
                add_special_tokens=False,
                truncation=False,
                padding=False,
                return_attention_mask=False,
                return_token_type_ids=False,
                verbose=False,
            )["input_ids"]
        except Exception as error:  # tokenizers raises nothing more special
            raise FieldError("prompt", f"the tokenizer of {self.folder} refuses it: {_told(error)}") from error
        return [len(one) for one in ids]

    def _one_by_one(self, texts: Sequence[str]) -> Iterator[int | FieldError]:
        for text in texts:
            try:
                yield from self._counts([text])
            except FieldError as error:
                yield error


def _told(error: BaseException) -> str:
    """An error in one printable line; a template may say anything."""
    text = ascii(" ".join(str(error).split()) or type(error).__name__)[1:-1]
    return text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "..."


def _load(folder: Path) -> Any:
    if not folder.is_dir():
        raise DataError(
            f"--tokenizer {folder}: no such folder; give the folder of a model, with its tokenizer.json"
        )
    # transformers says with a warning that there is no PyTorch, which a tokenizer does without.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise DataError(
            f"--tokenizer {folder}: there is no transformers in this Python ({error}); {_INSTALL}"
        ) from error
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # tokenizers raises nothing more special for a file it cannot read
        raise DataError(
            f"--tokenizer {folder}: transformers cannot load its tokenizer: {_told(error)}; give the whole "
            "folder of the model that is trained, of a kind that needs no code of its own"
        ) from error
    if not _knows_words(tokenizer):
        raise DataError(
            f"--tokenizer {folder}: its tokenizer knows no words: transformers makes such a one where "
            "tokenizer.json is missing; copy the tokenizer's files of the model there"
        )
    if not getattr(tokenizer, "chat_template", None):
        raise DataError(
            f"--tokenizer {folder}: its tokenizer has no chat template, which verl writes prompts by; copy the "
            "chat_template.jinja of the chat model of the same family there"
        )
    return tokenizer


def _knows_words(tokenizer: Any) -> bool:
    return any(
        tokenizer(one, add_special_tokens=False)["input_ids"]
        != tokenizer(other, add_special_tokens=False)["input_ids"]
        for one, other in _DIFFERENT
    )
