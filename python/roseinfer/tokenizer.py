"""The tokenizer of an open model, in the names of transformers."""
from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Union

from . import _native as n
from ._engine import Engine
from .params import Message

Text = Union[str, Sequence[str]]


class BatchEncoding(Dict[str, Any]):
    """A dict whose members are attributes, too: `tokenizer(text).input_ids`."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class Tokenizer:
    """What LLM.get_tokenizer gives; valid until the engine is closed.

    It has the part of a transformers tokenizer that the library knows: texts to ids and back, chat templates, and special
    tokens. `transformers.AutoTokenizer.from_pretrained` of the model's folder has the rest."""

    def __init__(self, engine: Engine, model: str, owner: Any) -> None:
        self._engine, self._owner = engine, owner  # an LLM that is dropped would close the engine
        self.name_or_path = model

    def encode(self, text: str, add_special_tokens: bool = True) -> List[int]:
        """The ids of a text. add_special_tokens: the tokenizer adds its BOS token or the like."""
        return self._engine.tokenize(text, bool(add_special_tokens))

    def decode(self, token_ids: Union[int, Sequence[int]], skip_special_tokens: bool = False) -> str:
        with n.checked("token_ids"):
            ids = [token_ids] if isinstance(token_ids, int) else list(token_ids)
        return self._engine.detokenize(ids, bool(skip_special_tokens))

    def batch_decode(self, sequences: Sequence[Sequence[int]], skip_special_tokens: bool = False) -> List[str]:
        return [self.decode(s, skip_special_tokens) for s in sequences]

    def __call__(self, text: Text, add_special_tokens: bool = True) -> BatchEncoding:
        """`input_ids` and `attention_mask` of a text, or lists of both for a list of texts. Nothing is padded or cut."""
        if isinstance(text, str):
            ids = self.encode(text, add_special_tokens)
            return BatchEncoding(input_ids=ids, attention_mask=[1] * len(ids))
        with n.checked("text"):
            lists = [self.encode(t, add_special_tokens) for t in text]
        return BatchEncoding(input_ids=lists, attention_mask=[[1] * len(ids) for ids in lists])

    def apply_chat_template(self, conversation: Sequence[Message], tools: Optional[List[Dict[str, Any]]] = None,
                            documents: Optional[List[Dict[str, Any]]] = None, chat_template: Optional[str] = None,
                            add_generation_prompt: bool = False, continue_final_message: bool = False,
                            tokenize: bool = True, **kwargs: Any) -> Union[str, List[int]]:
        """The ids of a conversation, or with tokenize=False its text, by chat_template or the model's own template. kwargs:
        further variables of the template."""
        options = {"tools": tools, "documents": documents, "chat_template": chat_template,
                   "add_generation_prompt": bool(add_generation_prompt),
                   "continue_final_message": bool(continue_final_message), "chat_template_kwargs": kwargs or None}
        return self._engine.tokenize_chat(conversation, options) if tokenize else self._engine.chat_text(conversation, options)

    @property
    def chat_template(self) -> Optional[str]:
        return self._engine.chat_template()

    @property
    def vocab_size(self) -> int:
        return self._engine.fact("vocab_size")

    def __len__(self) -> int:
        return self.vocab_size

    @property
    def model_max_length(self) -> int:
        """The longest context of the engine in tokens."""
        return self._engine.fact("max_model_len")

    @property
    def bos_token(self) -> Optional[str]:
        return self._engine.special_token("bos_token")[0]

    @property
    def bos_token_id(self) -> Optional[int]:
        return self._engine.special_token("bos_token")[1]

    @property
    def eos_token(self) -> Optional[str]:
        return self._engine.special_token("eos_token")[0]

    @property
    def eos_token_id(self) -> Optional[int]:
        """The id of the tokenizer's eos_token; LLM.eos_token_ids are all ids that end a text."""
        return self._engine.special_token("eos_token")[1]

    @property
    def pad_token(self) -> Optional[str]:
        return self._engine.special_token("pad_token")[0]

    @property
    def pad_token_id(self) -> Optional[int]:
        return self._engine.special_token("pad_token")[1]

    @property
    def unk_token(self) -> Optional[str]:
        return self._engine.special_token("unk_token")[0]

    @property
    def unk_token_id(self) -> Optional[int]:
        return self._engine.special_token("unk_token")[1]

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the tokenizer of an LLM has no {name}; transformers.AutoTokenizer.from_pretrained("
                             f"{self.__dict__.get('name_or_path')!r}) has more")
