"""Whole stories: pick a plot, play it, check the length."""

import random
from collections.abc import Callable, Iterator

from training.corpus.plots import (
    animals,
    family,
    forest,
    games,
    home,
    journeys,
    outdoors,
    people,
    school,
    toys,
)
from training.corpus.stage import Stage

Plot = Callable[[Stage], None]
# The order matters: a seed picks plots by their place in this table.
PLOTS: tuple[Plot, ...] = (
    toys.lost_toy,
    toys.quarrel,
    games.race,
    games.kite_in_tree,
    toys.broken_toy,
    games.hide_and_seek,
    toys.tower,
    games.tug_of_size,
    home.baking,
    home.storm,
    home.afraid_of_dark,
    home.lie,
    family.surprise_party,
    family.loose_tooth,
    family.sick_friend,
    family.gift_for_mother,
    toys.messy_room,
    family.new_baby,
    outdoors.garden,
    animals.hurt_bird,
    animals.stray_pet,
    outdoors.picnic,
    games.snow_day,
    journeys.treasure,
    outdoors.lost_in_woods,
    journeys.drifting_boat,
    journeys.trip,
    games.puddles,
    animals.hungry_creature,
    school.learning,
    people.shy_friend,
    people.help_stranger,
    school.first_day,
    people.lost_purse,
    people.missing_cookies,
    forest.proud_animal,
    forest.greedy,
    people.star_wish,
    school.concert,
    forest.different,
    journeys.magic,
    animals.birdhouse,
    outdoors.moon,
    journeys.giant,
    school.painting,
    journeys.market,
    animals.lost_egg,
    school.library_book,
    games.autumn,
    home.sleepless,
)
MIN_WORDS, MAX_WORDS = 80, 220


def tell(plot: Plot, rng: random.Random) -> str:
    """One story of this plot, of any length."""
    stage = Stage(rng)
    plot(stage)
    return stage.text()


def stories(n_stories: int, seed: int) -> Iterator[str]:
    """Different stories of 80 to 220 words; the same seed gives the same stories."""
    rng = random.Random(seed)
    seen: set[str] = set()
    while n_stories > 0:
        text = tell(rng.choice(PLOTS), rng)
        if text in seen or not MIN_WORDS <= len(text.split()) <= MAX_WORDS:
            continue
        seen.add(text)
        n_stories -= 1
        yield text
