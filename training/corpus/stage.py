"""The stage: casts the characters of a story, opens it and closes it."""

from collections.abc import Sequence
from dataclasses import replace

from training.corpus import world
from training.corpus.teller import Teller
from training.corpus.world import Character, Thing, article

DAYS = (
    "one day,", "one day,", "one day,", "one day,", "one morning,", "one sunny day,",
    "one sunny morning,", "one afternoon,", "one warm afternoon,", "one Saturday,",
    "on a bright morning,", "one fine day,",
)  # fmt: skip
PLAIN_DAYS = ("one day,", "one day,", "one day,", "one morning,", "one afternoon,")

WEATHER = (
    "It was a [sunny|beautiful|warm|bright|lovely] [day|morning|afternoon].",
    "The sun was shining, and the birds were singing.",
    "It was a [quiet|warm] summer day.",
    "The sky was blue, and the air was warm.",
)
STATIC_OPENINGS = (
    "Once upon a time, there was {i}.",
    "Once upon a time, there was {i}.",
    "Once upon a time, there was {i}.",
    "Once upon a time, there lived {i}.",
    "Once upon a time, in a [small town|little village|quiet valley], there lived {i}.",
    "Once there was {i}.",
    "There once was {i}.",
    "Long ago, there was {i}.",
    "[In a small house|In a little house|In a white house] [near the sea|by the river|on a hill|"
    "at the edge of the forest], there lived {i}.",
    "This is a story about {i}.",
    "There was once {i}.",
    "{n} was {d}.",
    "{n} was {d}.",
    "{n} was {d}.",
)
ANIMAL_OPENINGS = (
    "Once upon a time, in a [green|big|quiet|deep] forest, there lived {i}.",
    "Once upon a time, there was {i}. {n} lived in {home}.",
    "[Near a river|At the edge of a forest|On a small farm|Behind the green hill], "
    "there lived {i}.",
    "Deep in the [forest|woods], there lived {i}.",
    "{n} was {d}. {He} lived in {home}.",
)
LOVES = (
    "to draw", "to sing", "to read", "to run", "to dance", "to climb trees", "to tell stories",
    "to look at the stars", "to play outside", "to help others", "to ask questions",
    "to make new friends", "to collect pretty stones", "to paint", "to listen to the birds",
)  # fmt: skip
PAIR_OPENINGS = (
    "{a} and {b} were [best friends|good friends|friends|neighbors].",
    "{a} and {b} were [best friends|good friends]. They did everything together.",
    "Once upon a time, there were two friends named {a} and {b}.",
    "Once upon a time, there were two [good|best] friends. Their names were {a} and {b}.",
    "{a} and {b} played together every day.",
    "{a} had a [good|dear|best] friend named {b}.",
    "Once upon a time, {a} and {b} lived on the same [street|hill|lane].",
)
# How {They} reads is left to the teller: a name or a pronoun.
MORALS: dict[str, tuple[str, ...]] = {
    "share": (
        "{They} had learned that it is more fun to share.",
        "{They} learned that sharing makes everyone happy.",
        "A thing is twice as nice when you share it.",
        "{They} knew now that sharing is a way to show love.",
        "What you share with a friend tastes twice as good.",
    ),
    "honest": (
        "{They} had learned that it is always best to tell the truth.",
        "{They} knew now that the truth is better than a lie.",
        "Telling the truth can be hard, but it makes the heart feel light.",
        "{They} promised to be honest from then on.",
        "It is good to be honest, even when it is hard.",
    ),
    "brave": (
        "{They} learned that being brave means trying even when you are scared.",
        "{They} was not afraid anymore.",
        "Even small ones can be very brave.",
        "{They} felt very brave and very proud.",
        "Everybody is afraid sometimes, and that is all right.",
    ),
    "kind": (
        "{They} learned that a little kindness can make a big difference.",
        "When you are kind to others, they will be kind to you.",
        "It feels good to help someone.",
        "{They} was glad to have helped.",
        "A kind heart is worth more than gold.",
        "{They} knew that it is good to be kind.",
    ),
    "patient": (
        "{They} had learned to be patient.",
        "{They} learned that good things take time.",
        "Some things are worth waiting for.",
        "{They} knew now that it is worth it to wait.",
    ),
    "try": (
        "{They} had learned that you should never give up.",
        "{They} knew that anything is possible if you keep trying.",
        "With practice, hard things become easy.",
        "If you fall, you can always get up again.",
    ),
    "friend": (
        "{They} learned that a good friend is the best treasure of all.",
        "It is good to have a friend.",
        "Friends make everything better.",
        "{They} knew that friends help each other.",
        "Nothing is better than a good friend.",
    ),
    "careful": (
        "{They} had learned to be more careful.",
        "From then on, {a} was always careful.",
        "{They} never forgot that lesson.",
        "{They} promised to be more careful the next time.",
    ),
    "listen": (
        "{They} had learned to listen to good advice.",
        "From that day on, {a} always listened.",
        "{They} promised to listen better from then on.",
    ),
    "self": (
        "{They} learned that everyone is special in a different way.",
        "{They} was happy to be just the way {a.he} was.",
        "You do not have to be like everyone else.",
        "{They} knew now that it is good to be different.",
    ),
}
NIGHT_ENDINGS = (
    "That night, {a} slept [well|very well|soundly] and [had sweet dreams|dreamed happy dreams].",
    "That night, {a} fell asleep with a smile.",
    "When {a} went to bed that night, {a.he} [felt very happy|was smiling|could not stop smiling].",
    "It had been a [wonderful|lovely|very good|long and happy] day.",
    "It was the best day ever.",
    "{a} would never forget that day.",
    "{a} went to bed [tired|early] and happy that night.",
    "{a} could not wait to tell everyone about it.",
)
PAIR_ENDINGS = (
    "{a} and {b} [stayed|were] [good|best] friends forever.",
    "From that day on, {a} and {b} were even better friends.",
    "They lived happily ever after.",
    "They both had a [wonderful|lovely|great] day.",
    "{a} and {b} were [happy|glad] to have each other.",
    "{a} and {b} would [never forget|always remember] that day.",
    "They both smiled. It had been a [good|wonderful|very special] day.",
)


class Stage(Teller):
    """A teller with a cast."""

    # --- casting ---

    def fresh(self, names: Sequence[str]) -> str:
        """A name that nobody in this story has, with an initial of its own if possible."""
        initials = {name[0] for name in self.used_names}
        free = [name for name in names if name not in self.used_names]
        name = str(self.pick([name for name in free if name[0] not in initials] or free))
        self.used_names.add(name)
        return name

    def hero(
        self,
        key: str = "a",
        animal: bool | None = None,
        avoid: Sequence[str] = (),
        traits: Sequence[str] = world.TRAITS,
    ) -> Character:
        """A child or a young animal (none of the kinds to avoid) with a name."""
        if animal is None:
            animal = self.chance(0.4)
        trait = self.pick(traits)
        who = self._animal(trait, avoid) if animal else self._child(trait)
        self.cast[key] = who
        return who

    def friend(self, key: str = "b", of: str = "a", avoid: Sequence[str] = ()) -> Character:
        """Another child, or another kind of animal, to go with the hero."""
        return self.hero(key, animal=self.character(of).is_animal, avoid=avoid)

    def alias(self, key: str, of: str, name: str, intro: str) -> None:
        """Somebody whose name is not known yet: the new girl."""
        self.cast[key] = replace(self.character(of), name=name, intro=intro, is_plain=False)

    def character(self, key: str) -> Character:
        who = self.cast[key]
        assert isinstance(who, Character)
        return who

    def _child(self, trait: str) -> Character:
        he = self.pick(("he", "she"))
        name = self.fresh(world.BOYS if he == "he" else world.GIRLS)
        kind = "boy" if he == "he" else "girl"
        intro = f"{article(trait)} {kind} named {name}"
        return Character(name, kind, he, intro, name, is_plain=True)

    def _animal(self, trait: str, avoid: Sequence[str]) -> Character:
        he = self.pick(("he", "she"))
        human = world.BOYS if he == "he" else world.GIRLS
        name = self.fresh(human if self.chance(0.3) else world.ANIMAL_NAMES[he])
        taken = {c.kind for c in self.cast.values() if isinstance(c, Character)} | set(avoid)
        kind = self.pick([k for k in world.ANIMALS if k not in taken])
        home, food, love = world.ANIMALS[kind]
        intro = f"{article(trait)} {kind} named {name}"
        return Character(name, kind, he, intro, name, True, False, home, food, love)

    def elder(self, key: str = "m", of: str = "a", role: str = "") -> Character:
        """A parent or a grandparent of the hero."""
        child = self.character(of)
        role = role or self.pick(("mom", "mom", "dad", "grandma", "grandpa"))
        he = "he" if role in ("dad", "grandpa") else "she"
        call = self.pick(
            {
                "mom": ("Mom", "Mom", "Mama", "Mommy"),
                "dad": ("Dad", "Dad", "Papa", "Daddy"),
                "grandma": ("Grandma", "Grandma", "Granny"),
                "grandpa": ("Grandpa",),
            }[role]
        )
        if child.is_animal:
            call = {"mom": "Mama", "dad": "Papa", "grandma": "Grandma", "grandpa": "Grandpa"}[role]
        name = f"{call} {child.kind.capitalize()}" if child.is_animal else call
        who = Character(name, role, he, f"{child.his} {call.lower()}", call, child.is_animal)
        self.cast[key] = who
        return who

    def stranger(self, key: str = "s", *kinds: str) -> Character:
        """Somebody without a name: an old woman, a bird; the pronoun goes with the kind."""
        kind = self.pick(kinds or ("old man", "old woman"))
        he = "she" if kind.endswith(("woman", "lady", "hen", "girl")) else "he"
        if not kind.endswith(("man", "woman", "lady", "hen", "girl", "boy")):
            he = self.pick(("he", "she"))
        call = {"old man": "sir", "old woman": "ma'am"}.get(kind, "little one")
        is_animal = not kind.endswith(("man", "woman", "lady", "girl", "boy"))
        who = Character(f"the {kind}", kind, he, article(kind), call, is_animal)
        self.cast[key] = who
        return who

    def pet(self, key: str, *kinds: str) -> Character:
        kind = self.pick(kinds or ("dog", "cat"))
        he = self.pick(("he", "she"))
        name = self.fresh(world.PET_NAMES[he])
        quality = self.pick(("small", "little", "big", "fluffy", "brown", "white", "black"))
        intro = f"{article(quality)} {kind} named {name}"
        self.cast[key] = Character(name, kind, he, intro, name, is_animal=True)
        return self.character(key)

    def thing(self, key: str, nouns: Sequence[str], *qualities: str) -> Thing:
        """An object; its quality is a colour unless others are given."""
        it = Thing(self.pick(nouns), self.pick(qualities or world.COLORS))
        self.cast[key] = it
        return it

    def word(self, key: str, *options: str) -> str:
        """One word or phrase, the same wherever the story uses it."""
        self.words[key] = self.pick(options)
        return self.words[key]

    # --- frames ---

    def open(self, *scenes: str, sunny: bool = True) -> None:
        """Introduce the hero (or not), then set the scene; ``{day}`` there means "one day,"."""
        a = self.character("a")
        introduced = self.chance(0.72)
        if introduced:
            self._introduce(a)
            self.paragraph(0.25)
        self._set_scene(scenes, introduced, sunny)

    def _introduce(self, a: Character) -> None:
        openings = STATIC_OPENINGS + (ANIMAL_OPENINGS * 2 if a.is_animal else ())
        line = str(self.pick(openings))
        described = a.intro.split(" named ")[0]
        for mark, text in (
            ("{i}", a.intro),
            ("{n}", a.name),
            ("{d}", described),
            ("{home}", a.home),
            ("{He}", a.he.capitalize()),
        ):
            line = line.replace(mark, text)
        self.known("a")
        self.paragraphs[-1].append(self.render(line))
        self._last[a.he] = "a"
        love = a.love if a.is_animal and self.chance(0.6) else None
        verb = f"to {love}" if love else self.pick(LOVES[4:] if a.is_animal else LOVES)
        if a.is_animal and verb in ("to paint", "to climb trees"):
            verb = "to play outside"
        self.maybe(
            0.45,
            f"{{a.s}} [loved|liked|loved] {verb}.",
            f"More than anything, {{a.s}} loved {verb}.",
        )

    def open_pair(self, *scenes: str, sunny: bool = True) -> None:
        """As open, for two friends who are already friends."""
        if self.character("a").is_animal:
            a, b = self.character("a"), self.character("b")
            self.known("a", "b")
            self.tell(
                f"{{a}} the {a.kind} and {{b}} the {b.kind} were [best friends|good friends].",
                f"Once upon a time, there were two friends, {a.intro} and {b.intro}.",
                f"Once upon a time, there was {a.intro}. {{a.name}} had a good friend, {b.intro}.",
                f"In [a big|a green|a quiet] forest lived {a.intro} and {b.intro}. "
                "They were [best friends|good friends].",
            )
            introduced = True
        else:
            introduced = self.chance(0.65)
            self.known("a", "b")
            if introduced:
                self.tell(*PAIR_OPENINGS)
        self._last.clear()
        if introduced:
            self.paragraph(0.25)
        self._set_scene(scenes, introduced, sunny)

    def _set_scene(self, scenes: Sequence[str], introduced: bool, sunny: bool) -> None:
        """The first scene, with or without a word on the day."""
        scene = self.pick(scenes)
        self.words["day"] = self.pick(DAYS if sunny else PLAIN_DAYS)
        if not introduced and scene.startswith("{day}") and self.chance(0.4):
            self.words["day"] = ""
            if sunny:
                self.maybe(0.6, *WEATHER)
        self.tell(scene)

    def end(self, *endings: str, moral: str = "", pair: bool = False, night: bool = True) -> None:
        """The last sentences: the plot's own, then perhaps a night, a moral, "The end."."""
        if endings:
            self.tell(*endings)
        if pair and self.chance(0.5):
            self.tell(*PAIR_ENDINGS)
        elif night and self.chance(0.45):
            self.tell(*NIGHT_ENDINGS)
        if moral and self.chance(0.5):
            self.tell(*(line.replace("{They}", "{a.s}") for line in MORALS[moral]))
        self.maybe(0.12, "The end.")
