"""The world of the stories: who lives in it, what lies about, where one can go."""

import random
from dataclasses import dataclass
from typing import ClassVar

# Few names on purpose: a model of this size must learn for each of them, one by one, to carry
# it through a story. A name lost half-way spoils a story more than a rare name adorns it.
GIRLS = ("Lily", "Mia", "Anna", "Sue", "Emma", "Lucy", "Rose", "Amy", "Sara", "Molly")
BOYS = ("Tom", "Tim", "Ben", "Sam", "Max", "Jack", "Leo", "Finn", "Oscar", "Peter")
PET_NAMES = {
    "he": ("Toby", "Pip", "Milo", "Rusty"),
    "she": ("Bella", "Daisy", "Luna", "Poppy"),
}
ANIMAL_NAMES = {
    "he": ("Toby", "Pip", "Milo", "Bruno", "Benny"),
    "she": ("Bella", "Daisy", "Luna", "Poppy", "Dot"),
}
# kind: (home, a favourite food, what it loves to do)
ANIMALS = {
    "rabbit": ("a cozy burrow", "carrot", "hop through the tall grass"),
    "fox": ("a warm den", "plum", "chase the falling leaves"),
    "bear": ("a quiet cave", "berry", "roll down the hill"),
    "squirrel": ("a hollow tree", "nut", "jump from branch to branch"),
    "mouse": ("a tiny hole under a big root", "piece of cheese", "collect shiny things"),
    "hedgehog": ("a pile of dry leaves", "apple", "curl up in the sun"),
    "duck": ("a nest by the pond", "piece of bread", "splash in the water"),
    "frog": ("a green pond", "berry", "sing in the evening"),
    "cat": ("a little wooden house", "piece of fish", "nap on the warm stones"),
    "dog": ("a little wooden house", "bone", "run in big circles"),
    "turtle": ("a quiet corner by the lake", "leaf", "look at the clouds"),
    "beaver": ("a house of sticks", "apple", "build things"),
    "pig": ("a small red barn", "apple", "roll in the mud"),
    "lamb": ("a small red barn", "clover leaf", "jump over little stones"),
}
WATER_ANIMALS = ("duck", "frog", "beaver", "turtle")
TRAITS = (
    "little", "little", "little", "small", "kind", "brave", "curious", "cheerful", "clever",
    "gentle", "happy", "young", "quiet", "funny", "friendly",
)  # fmt: skip
COLORS = ("red", "blue", "green", "yellow", "orange", "purple", "pink", "white", "brown")
SIZES = ("big", "small", "tiny", "little")
TOYS = (
    "ball", "kite", "toy car", "toy boat", "toy train", "drum", "doll", "teddy bear", "puzzle",
    "robot", "top", "balloon", "wagon",
)  # fmt: skip
KEEPSAKES = (
    "hat", "scarf", "button", "ribbon", "book", "whistle", "bell", "key", "marble", "necklace",
    "blanket", "mitten", "bag", "cup",
)  # fmt: skip
FOODS = ("apple", "cookie", "sandwich", "pear", "banana", "muffin", "orange", "piece of cake")
VOWELS = "aeiou"


def article(noun: str) -> str:
    """The indefinite article with its noun: an apple, a red apple."""
    return f"{'an' if noun[0] in VOWELS else 'a'} {noun}"


@dataclass(frozen=True, slots=True)
class Character:
    """Somebody in a story."""

    PLAIN_FORMS: ClassVar[frozenset[str | None]] = frozenset(
        ("kind", "home", "food", "love", "call", "himself", "name", "possessive")
    )

    name: str
    kind: str
    he: str  # "he" or "she"
    intro: str  # how the story names this character for the first time
    call: str  # how others call the character in speech
    is_animal: bool = False
    is_plain: bool = False  # a first mention may be the bare name
    home: str = ""
    food: str = ""
    love: str = ""

    @property
    def his(self) -> str:
        return "his" if self.he == "he" else "her"

    def form(self, form: str | None) -> str:
        """The character's name, a pronoun, or one of the plain forms."""
        match form:
            case None | "s" | "o" | "name":
                return self.name
            case "possessive" | "p":
                return f"{self.name}'s"
            case "he":
                return self.he
            case "him":
                return "him" if self.he == "he" else "her"
            case "his":
                return self.his
            case "himself":
                return "himself" if self.he == "he" else "herself"
            case "kind" | "home" | "food" | "love" | "call":
                return str(getattr(self, form))
        raise KeyError(form)


@dataclass(frozen=True, slots=True)
class Thing:
    """An object with one property: a red ball."""

    noun: str
    quality: str = ""

    def form(self, form: str | None, rng: random.Random) -> str:
        full = f"{self.quality} {self.noun}".strip()
        match form:
            case None | "full":
                return full
            case "a":
                return article(full)
            case "the":
                return f"the {self.noun if rng.random() < 0.4 else full}"
            case "n":
                return self.noun
            case "an":
                return article(self.noun)
            case "q":
                return self.quality
        raise KeyError(form)
