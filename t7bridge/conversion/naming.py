"""New names for the keys of state dicts, by rules of the user: `--strip` and `--rename`.

A rule has two sides, `OLD=NEW`:

| rule | a key | becomes |
| --- | --- | --- |
| `features=backbone.body` | `features.0.weight` | `backbone.body.0.weight` |
| `fc.weight=head.weight` | `fc.weight` | `head.weight` |
| `module=` | `module.fc.bias` | `fc.bias` |
| `=net` | `fc.bias` | `net.fc.bias` |
| `layers.{}.ln_{}=blocks.{}.norm{}` | `layers.3.ln_1.weight` | `blocks.3.norm1.weight` |
| `{}.gamma={}.weight` | `stem.bn.gamma` | `stem.bn.weight` |

Without `{}` the old side is a key, or the steps before others: `layer1` is not the beginning of `layer10.weight`. `{}`
is any text of one character or more, the shortest that fits, from the left; such a rule describes whole keys. Rules
apply one after the other, each to what the ones before have made of a key.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from ..data import define, field
from ..errors import ModelError, OptionError
from ..text import listed

_Item = TypeVar("_Item")
_WILDCARD = "{}"
_MOST_LISTED = 5
"""Keys that a message lists."""

Renames = Mapping[str, str] | Iterable[str | Sequence[str]]
"""Rules as users pass them: `{"old": "new"}`, `["old=new"]`, or pairs."""


@define(eq=False)
class Rule:
    """One rule for the keys of a state dict, `OLD=NEW`.

    Attributes:
        old: a pattern with `{}` for whole keys; or a key, or the steps before others; empty for every key.
        new: what takes their place; empty to leave the steps out.
        option: the option that has it: `rename` or `strip`.
        count: the number of keys that it has renamed.
    """

    old: str
    new: str
    option: str = "rename"
    count: int = field(default=0, init=False)

    def __str__(self) -> str:
        return self.old if self.option == "strip" else f"{self.old}={self.new}"

    @classmethod
    def parse(cls, text: str) -> Rule:
        """Return the rule that a text states.

        Raises:
            ModelError: the text has no `=` or several, or the two sides do not have the same number of `{}`.
        """
        old, equals, new = text.partition("=")
        if "=" in new:
            raise ModelError(
                f"{text!r} is several rules for names in one",
                expected="one OLD=NEW",
                hint="Repeat --rename for each rule; in Python pass a mapping, or pairs where a name has a =.",
            )
        if not equals:
            raise ModelError(
                f"{text!r} is not a rule for names", expected="OLD=NEW, such as features=backbone.features"
            )
        return cls.of(old, new)

    @classmethod
    def of(cls, old: str, new: str, option: str = "rename") -> Rule:
        """Return a rule with these two sides.

        Args:
            old: steps at the beginning of keys, or a pattern with `{}` for any text; empty for every key.
            new: what takes their place; empty to leave them out.
            option: the option that states the rule, for messages.

        Raises:
            ModelError: they do not have the same number of `{}`.
        """
        if old.count(_WILDCARD) != new.count(_WILDCARD):
            raise ModelError(
                f"the two sides of {old}={new} do not have the same number of {{}}",
                expected=f"{old.count(_WILDCARD)} of them after the =, for the same texts in the same order",
                found=str(new.count(_WILDCARD)),
            )
        if _WILDCARD not in old:  # the steps before others, as users write them: `features.=backbone.`
            old = old.removesuffix(".")
            new = new.removesuffix(".")
        return cls(old, new, option)

    def apply(self, key: str) -> str | None:
        """Return what a key becomes; `None` if the rule is not about it."""
        if _WILDCARD in self.old:
            texts = _texts_between(self.old.split(_WILDCARD), key)
            return None if texts is None else _joined(self.new.split(_WILDCARD), texts)
        if not self.old:  # a prefix to add to every key
            return f"{self.new}.{key}" if self.new else None
        if key == self.old:
            return self.new or None  # a key cannot be empty
        steps_before = f"{self.old}."
        if not key.startswith(steps_before):
            return None
        rest = key.removeprefix(steps_before)
        return f"{self.new}.{rest}" if self.new else rest


def _texts_between(parts: list[str], key: str) -> list[str] | None:
    """Return the texts between the parts of a pattern in a key; `None` if the pattern is not that of the key.

    Each text has at least one character, and is the shortest that fits, from the left.
    """
    first, *middle, last = parts
    if not key.startswith(first):
        return None
    texts: list[str] = []
    start = len(first)
    for part in middle:
        end = key.find(part, start + 1)  # a text has one character at least
        if end < 0:
            return None
        texts.append(key[start:end])
        start = end + len(part)
    end = len(key) - len(last)
    if end <= start or not key.endswith(last):
        return None
    texts.append(key[start:end])
    return texts


def _joined(parts: list[str], texts: list[str]) -> str:
    """Return the parts of a pattern with texts between them."""
    result = parts[0]
    for text, part in zip(texts, parts[1:]):
        result += text + part
    return result


class Naming:
    """All rules for the keys of a state dict.

    Args:
        renames: rules.
        strip: prefixes to leave out, before the rules apply: those that `DataParallel` (`module`) and others add.

    Attributes:
        rules: in the order in which they apply, those for prefixes first.

    Raises:
        ModelError: a rule is not valid.
    """

    def __init__(self, renames: Renames = (), strip: Iterable[str] = ()) -> None:
        self.rules = [*_rules_for_prefixes(strip), *_rules_of(renames)]

    def __bool__(self) -> bool:
        return bool(self.rules)

    def name(self, key: str, count: bool = True) -> str:
        """Return the new name of a key, by all rules, one after the other.

        Args:
            key: the key.
            count: whether the rules count it as a key that they have renamed.
        """
        for rule in self.rules:
            renamed = rule.apply(key)
            if renamed is not None:
                key = renamed
                rule.count += count
        return key

    def renamed(self, state: Mapping[str, _Item]) -> OrderedDict[str, _Item]:
        """Return a state dict under new names, in the same order, with PyTorch's `_metadata` under the new ones too.

        Raises:
            ModelError: two keys get one name; the message names them.
        """
        result: OrderedDict[str, _Item] = OrderedDict()
        old_keys: dict[str, str] = {}  # by new key
        for key, value in state.items():
            name = self.name(key) if isinstance(key, str) else key
            if name in result:
                raise ModelError(
                    "two keys get one name",
                    expected="rules that keep keys apart",
                    found=f"{old_keys[name]} and {key} both become {name}",
                )
            old_keys[name] = key
            result[name] = value
        if hasattr(state, "__dict__"):  # attributes of an OrderedDict, such as `_metadata`; a dict has none
            vars(result).update(vars(state))
        metadata = getattr(state, "_metadata", None)
        if isinstance(metadata, dict):
            result._metadata = self._metadata(metadata, old_keys)  # type: ignore[attr-defined]
        return result

    def _metadata(self, metadata: dict[Any, Any], old_keys: dict[str, str]) -> OrderedDict[Any, Any]:
        """Return PyTorch's `_metadata`, by names of modules, under new names.

        Args:
            metadata: that of the state dict before: for each module its version.
            old_keys: the old key of each new one.
        """
        new_modules = _new_names_of_modules(old_keys)
        result: OrderedDict[Any, Any] = OrderedDict()
        for module, facts in metadata.items():
            if not isinstance(module, str):
                result[module] = facts
            elif module in new_modules:
                result[new_modules[module]] = facts
            else:  # without tensors of its own: what the rules say about keys inside it
                new_module = self.name(f"{module}.", count=False).removesuffix(".")
                result.setdefault(new_module, facts)  # does not replace those of a module with tensors
        return result

    def problems(self, keys: Iterable[str] | None = None) -> tuple[tuple[str, str], ...]:
        """Return the rules that have renamed nothing: the option of each, and the rest of a sentence.

        Args:
            keys: the keys that there were, which the sentence has if they are given.
        """
        shown = "" if keys is None else f"; the keys are {listed(list(keys), _MOST_LISTED)}"
        return tuple((rule.option, f"{rule} renames nothing{shown}") for rule in self.rules if not rule.count)

    def check_used(self, keys: Iterable[str], file: str = "") -> None:
        """Refuse rules that have renamed nothing: one with a typing error would leave the keys as they are.

        Args:
            keys: the keys that there were.
            file: the path of the file, for the error.

        Raises:
            OptionError: there are some.
        """
        problems = self.problems(keys)
        if problems:
            raise OptionError(problems=problems, file=file)


def _new_names_of_modules(old_keys: Mapping[str, str]) -> dict[str, str]:
    """Return the new name of each module, by its old one, that has a tensor with the same name in it as before.

    Args:
        old_keys: the old key of each new one; a key that is no text stays as it is.
    """
    new_modules: dict[str, str] = {}
    for new_key, old_key in old_keys.items():
        if not isinstance(old_key, str):
            continue
        old_module, _, old_tensor = old_key.rpartition(".")
        new_module, _, new_tensor = new_key.rpartition(".")
        if new_tensor == old_tensor:
            new_modules[old_module] = new_module
    return new_modules


def _rules_for_prefixes(strip: Iterable[str]) -> list[Rule]:
    """Return the rules that leave out prefixes, which users pass as one text or several.

    Raises:
        ModelError: a prefix is not a text.
    """
    prefixes = strip if isinstance(strip, Iterable) and not isinstance(strip, (str, bytes)) else (strip,)
    rules = []
    for prefix in prefixes:
        if not isinstance(prefix, str):
            raise ModelError("is not a prefix of keys", expected="text", found=repr(prefix)[:80])
        rules.append(Rule.of(prefix, "", "strip"))
    return rules


def _rules_of(renames: Renames) -> list[Rule]:
    """Return the rules that users pass as one text, as a mapping from old to new, or as texts and pairs.

    Raises:
        ModelError: a rule is neither a text nor a pair of texts, or its text is not a rule.
    """
    if isinstance(renames, str):
        return [Rule.parse(renames)]
    if not isinstance(renames, Iterable):
        raise ModelError("is not a rule for names", expected="OLD=NEW, or a pair", found=repr(renames)[:80])
    rules = []
    for item in renames.items() if isinstance(renames, Mapping) else renames:
        if isinstance(item, str):
            rules.append(Rule.parse(item))
            continue
        is_pair = isinstance(item, Sequence) and len(item) == 2 and all(isinstance(side, str) for side in item)
        if not is_pair:
            raise ModelError("is not a rule for names", expected="OLD=NEW, or a pair", found=repr(item)[:80])
        rules.append(Rule.of(*item))
    return rules
