"""Fables: animals that learn something about themselves."""

from training.corpus.stage import Stage
from training.corpus.world import WATER_ANIMALS


def proud_animal(t: Stage) -> None:
    t.hero(animal=True, traits=("proud", "young", "pretty", "fine"))
    t.friend()
    t.word(
        "proud",
        "the longest tail",
        "the most beautiful voice",
        "the softest fur",
        "the brightest eyes",
        "the strongest legs",
    )
    if t.character("a").kind not in ("fox", "squirrel", "cat", "dog", "rabbit"):
        t.word("proud", "the most beautiful voice", "the brightest eyes")
    t.open(
        "{a.s} was very proud. {a.s} thought that {a.he} had {proud} in the whole forest.",
        "Everyone knew that {a.s} had {proud} of all. {a.s} talked about it all day long.",
        sunny=False,
    )
    t.tell("{day} {a} met {b}.", "One morning, {b} came by and wanted to play.")
    t.says(
        "a",
        "I do not play with plain animals like you.",
        "Look at me! You do not have {proud} like I do.",
        verb="said",
    )
    t.tell("{b} was hurt and went away.", "{b} said nothing and walked on, sad and quiet.")
    t.paragraph(0.6)
    t.tell(
        "That afternoon, {a} fell into a deep hole and could not get out.",
        "Later, {a} got stuck in a thorn bush. The more {a.he} pulled, the tighter it got.",
        "Then {a} stepped into the mud and got stuck. It was deep and cold.",
    )
    t.says("a", "Help! Please help me!", "Is anybody there? I am stuck!", verb="cried")
    t.tell(
        "Many animals heard it, but they did not come. Only {b} came.",
        "It was {b} who heard it and came running.",
    )
    t.tell(
        "{b} found a long branch and held it out, and {a} came free.",
        "{b} pulled and pulled until {a} was free.",
    )
    t.says(
        "a",
        "I was so mean to you, and you still helped me. I am sorry.",
        "Thank you, {b.call}. You have the kindest heart of all.",
        mood="sad",
    )
    t.says(
        "b", "That is all right. Let us be friends.", "Everybody needs help sometimes.", mood="kind"
    )
    t.end(
        "After that, {a} did not brag anymore.",
        "From then on, {a} was kind to everyone.",
        moral=t.pick(("kind", "self")),
        pair=True,
    )


def greedy(t: Stage) -> None:
    a = t.hero(animal=True, traits=("hungry", "greedy", "little", "young"))
    t.friend()
    t.word("food", "berries", "apples", "nuts", "plums", "pears", "cherries")
    t.open(
        "{day} {a.s} found [a big basket|a bag|a box] full of sweet {food}.",
        "{day} {a.s} came to a place with hundreds of ripe {food}.",
    )
    t.tell("{b} came by and looked at the {food}.", "Just then, {b} walked past.")
    t.says("b", "May I have some, too?", "Those look good! Can you share?")
    t.says("a", "No! They are all mine!", "I found them, so I will eat them all.", mood="angry")
    t.tell(
        "{a} ate and ate. {a.s} ate until {a.his} belly was as round as a ball.",
        "{a} ate one after another, faster and faster, until there were no more.",
    )
    t.paragraph(0.6)
    t.tell(
        "But then {a.p} belly began to hurt. It hurt so much that {a.he} could not walk.",
        "Soon {a} felt very sick and had to lie down.",
    )
    t.says("a", "Oh, my poor belly!", "I ate too much. I feel awful.", mood="sad")
    t.tell(
        "{b} heard it and came back. {b.s} made some warm tea for {a}.",
        "{b} was not angry. {b.s} sat down and rubbed {a.p} belly.",
    )
    t.says(
        "a",
        "You are so good to me, but I did not share with you.",
        "I am sorry that I was so greedy.",
        mood="sad",
    )
    t.says(
        "b",
        "Next time we will share, and your belly will not hurt.",
        "It is all right. Just remember it next time.",
        mood="kind",
    )
    t.end(
        "The next time {a} found {food}, {a.he} called all {a.his} friends.",
        f"From then on, the {a.kind} always gave half to {{b}}.",
        moral="share",
    )


def different(t: Stage) -> None:
    a = t.hero(animal=True)
    t.word(
        "odd",
        "big ears",
        "very small feet",
        "a crooked tail",
        "a loud laugh",
        "a white spot",
        "a very long nose",
    )
    if a.kind in WATER_ANIMALS:
        t.word("odd", "very small feet", "a loud laugh", "a white spot")
    t.friend()
    t.words["kinds"] = {"fox": "foxes", "mouse": "mice"}.get(a.kind, a.kind + "s")
    t.open(
        "{a.s} had {odd}. The other {kinds} laughed at {a.him}.",
        "{a.s} was not like the other {kinds}, because {a.he} had {odd}.",
    )
    t.says("a", "I wish I looked like the others.", "Why am I so different?", mood="sad")
    t.tell("{a} wanted to hide from everyone.", "So {a} often stayed alone.")
    t.paragraph(0.5)
    help_ = {
        "big ears": "With those big ears, {a} could hear a quiet cry that nobody else heard",
        "very small feet": "With those small feet, {a} could walk through a narrow gap where "
        "nobody else could go",
        "a crooked tail": "With that crooked tail, {a} could hold on to a branch and reach down",
        "a loud laugh": "That laugh was so loud that it could be heard far away",
        "a white spot": "The white spot could be seen even in the dark",
        "a very long nose": "With that long nose, {a} could smell the right way",
    }
    t.words["help"] = help_[t.words["odd"]]
    t.tell(
        "One evening, {b} did not come home. Everyone was worried and looked for {b.him}.",
        "Then there was a thick fog, and {b} got lost. Nobody could find {b.him}.",
    )
    t.tell("But {a} could help! {help}.", "Now {a} had an idea. {help}.")
    t.tell(
        "And so {a} found {b} and brought {b.him} home."
        if t.words["odd"] not in ("a loud laugh", "a white spot")
        else "{b} followed it and came back to the others.",
        "And so {b} was saved.",
    )
    t.says(
        "b",
        "Thank you, {a.call}! You are wonderful just as you are.",
        "I am so glad that you are not like the others!",
        mood="happy",
    )
    t.tell(
        "The others were sorry that they had laughed.",
        "Now all the {kinds} wanted to be {a.p} friends.",
    )
    t.end("{a} was proud to be a little different.", moral="self")
