"""What an engine answered, read with care: a value knows where it stood, so that what is wrong with it can be told."""

import math
from dataclasses import dataclass
from typing import Any

from jaxsearchrl.errors import InfrastructureError
from jaxsearchrl.text import well_formed

MAX_ID_CHARS = 2048


@dataclass(frozen=True)
class Part:
    """A JSON value of an answer. `where`: the address that gave it, and the way from there to the value.

    All methods raise InfrastructureError, which says where and what was wrong, for a value of another kind.
    """

    value: Any
    where: str

    def get(self, key: str) -> "Part | None":
        """The value of an object's key; None where it is absent or null."""
        if not isinstance(self.value, dict):
            raise self.fault("an object")
        value = self.value.get(key)
        return None if value is None else Part(value, f"{self.where} {key}")

    def __getitem__(self, key: str) -> "Part":
        part = self.get(key)
        if part is None:
            raise InfrastructureError(f"{self.where}: has no {key!r}")
        return part

    def items(self, most: int) -> list["Part"]:
        """A list's values."""
        if not isinstance(self.value, list):
            raise self.fault("a list")
        if len(self.value) > most:
            raise InfrastructureError(f"{self.where}: has {len(self.value)} items, where at most {most} were asked for")
        return [Part(value, f"{self.where}[{number}]") for number, value in enumerate(self.value)]

    def text(self) -> str:
        """A string, as valid Unicode."""
        if not isinstance(self.value, str):
            raise self.fault("a string")
        return well_formed(self.value)

    def id(self) -> str:
        """A document's id: a string that is not empty, of at most MAX_ID_CHARS; a whole number is one, too."""
        if isinstance(self.value, int) and not isinstance(self.value, bool):
            return str(self.value)
        text = self.text()
        if not 0 < len(text) <= MAX_ID_CHARS:
            raise InfrastructureError(f"{self.where}: an id of {len(text)} characters; 1 to {MAX_ID_CHARS} are wanted")
        return text

    def number(self) -> float:
        """A finite number."""
        if isinstance(self.value, bool) or not isinstance(self.value, int | float):
            raise self.fault("a number")
        try:
            number = float(self.value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise self.fault("a finite number")
        return number

    def fault(self, wanted: str) -> InfrastructureError:
        """That another kind of value was wanted here."""
        kinds = {dict: "an object", list: "a list", str: "a string", bool: "true or false"}
        found = kinds.get(type(self.value), "null" if self.value is None else "a number")
        return InfrastructureError(f"{self.where}: {wanted} is wanted, found {found}")
