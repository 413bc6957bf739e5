"""Children and animals that need each other."""

from training.corpus.stage import Stage
from training.corpus.world import FOODS


def hurt_bird(t: Stage) -> None:
    t.hero()
    t.elder("m")
    t.stranger("s", "little bird", "small bird", "baby owl", "young duck")
    t.open(
        "{day} {a.s} was walking [in the woods|by the lake|in the garden] when {a.he} heard a "
        "soft cry. There sat {s}.",
        "{day} {a.s} found {s} [in the grass|under a tree].",
    )
    t.tell("One of {s.his} wings was hurt.", "{s.s} could not fly, because one wing was hurt.")
    t.says(
        "a",
        "You poor thing! I will help you.",
        "Don't be afraid. I will not hurt you.",
        mood="kind",
    )
    t.tell("{a} carried {s} home, very carefully.", "{a} picked {s} up and took {s.him} home.")
    t.says(
        "m",
        "The wing needs rest. We will make a soft bed.",
        "You did the right thing. Let us take care of {s.him}.",
        mood="kind",
    )
    t.tell(
        "They put soft [grass|cloth] in a box. {a} gave {s} water and seeds every day.",
        "{m} put a small bandage on the wing, and {a} brought food and water.",
    )
    t.paragraph()
    t.tell(
        "After [two weeks|many days|some time], the wing was strong again.",
        "Day by day, {s} got better.",
    )
    t.tell(
        "{a} took {s} outside and opened {a.his} hands."
        if not t.character("a").is_animal
        else "{a} took {s} outside into the sun.",
        "Then it was time to say goodbye.",
    )
    t.tell("{s} flew up into the blue sky.", "{s} spread both wings and flew away.")
    t.says("a", "Goodbye, little friend!", "Fly well! Come back and visit me!", verb="called")
    t.maybe(
        0.6,
        "The next [spring|morning], {a} heard a song at the window. It was {s}!",
        "Sometimes {s} came back and sang for {a}.",
    )
    t.end(
        "{a} was a little sad, but also very happy.",
        "{a} waved until there was only a small dot in the sky.",
        moral="kind",
    )


def stray_pet(t: Stage) -> None:
    t.hero(animal=False)
    t.elder("m", role=t.pick(("mom", "dad", "grandma")))
    pet = t.stranger("s", "kitten", "puppy", "little cat", "little dog")
    t.word(
        "name",
        *(
            ("Fluffy", "Mittens", "Tiger", "Socks")
            if "t" in pet.kind[-4:]
            else ("Spot", "Lucky", "Buddy", "Brownie")
        ),
    )
    t.open(
        "{day} {a.s} heard a sad little sound [under the steps|behind the fence|in the street].",
        "{day} {a.s} was walking home in the rain when {a.he} heard something.",
        sunny=False,
    )
    t.tell(
        "It was {s}, wet and cold and all alone.", "There sat {s}. {s.s} looked thin and hungry."
    )
    t.says("a", "Where is your home, little one?", "You look hungry. Come with me!", mood="kind")
    t.tell(
        "{a} gave {s} some milk and [a bit of fish|a piece of meat].",
        "{a} carried {s} home and dried {s.him} with a towel.",
    )
    t.says("a", "Can we keep {s.him}? Please!", "{m.call}, can {s.he} stay with us?")
    t.says(
        "m",
        "First we must ask if somebody is looking for {s.him}.",
        "Maybe somebody misses {s.him}. We have to ask.",
        mood="thinking",
    )
    t.paragraph()
    t.tell(
        "They asked all the neighbors and put up a [sign|picture]. [Nobody came.|No one knew {s}.]",
        "They asked in every house on the street, but nobody knew {s}.",
    )
    t.says(
        "m",
        "Then {s.he} can stay. But you must take care of {s.him}.",
        "Well, now {s.he} has a home with us.",
        mood="happy",
    )
    t.says(
        "a",
        "Hooray! I will call {s.him} {name}.",
        "Thank you! Let us call {s.him} {name}.",
        mood="happy",
    )
    t.end(
        "{name} slept at the end of {a.p} bed every night.",
        "From then on, {a} and {name} were always together.",
        "{a} fed {name} every morning and played with {s.him} every evening.",
        moral=t.pick(("kind", "")),
        night=False,
    )


def hungry_creature(t: Stage) -> None:
    t.hero()
    food = t.thing("o", FOODS, "big", "sweet", "tasty")
    t.stranger("s", "little bird", "squirrel", "thin cat", "old dog", "tiny mouse")
    t.open(
        "{day} {a.s} had {o.a} for lunch. {a.s} sat down [under a tree|by the pond|on a big "
        "stone] to eat it.",
        "{day} {a.s} was [on the way home|walking through the park] with {o.a}.",
    )
    t.tell(
        "Then {a.he} saw {s}. {s.s} looked at the {o.n} with hungry eyes.",
        "Just then, {s} came closer and looked at the {o.n}.",
    )
    t.tell(
        "{a} was hungry, too. There was only one {o.n}."
        if " " not in food.noun
        else "{a} was hungry, too.",
        "{a} did not want to give it away at first.",
    )
    t.says("a", "Are you hungry, little friend?", "You look hungry. Do you want some?", mood="kind")
    t.tell("{a} broke it in two and gave one half to {s}.", "So {a} shared the {o.n} with {s}.")
    t.tell("{s} ate every crumb and looked very happy.", "{s} ate it up in no time.")
    t.paragraph()
    t.tell(
        "The next day, {a} lost {a.his} [key|hat|mitten] in the tall grass. {a.s} looked and "
        "looked, but could not find it.",
        "A few days later, {a} dropped {a.his} [coin|ring|"
        "whistle] near the old bridge and could not find it.",
    )
    t.tell("Then {s} came and brought it to {a}!", "Suddenly, {s} was there and helped to find it.")
    t.says("a", "You found it! Thank you!", "You remembered me!", mood="happy")
    t.end(
        "From then on, they [shared their lunch|met at the same place] every day.",
        "{a} knew that {a.he} had made a new friend.",
        moral=t.pick(("share", "kind")),
    )


def birdhouse(t: Stage) -> None:
    t.hero(animal=False)
    t.elder("m", role=t.pick(("grandpa", "dad", "grandma")))
    t.word("color", "red", "blue", "yellow", "green", "white")
    t.open(
        "{day} {a.s} saw that the birds had no place to stay in the cold winter.",
        "While {a.s} was looking out of the window, a small bird sat down on the fence. "
        "It was cold and wet.",
        "{day} {a.s} and {m} found some old boards behind the house.",
    )
    t.says(
        "a",
        "Can we build a house for the birds?",
        "I have an idea. Let us build a birdhouse!",
        mood="happy",
    )
    t.says(
        "m", "That is a lovely idea.", "Of course. Bring me the hammer and some nails.", mood="kind"
    )
    t.tell(
        "{m} cut the wood, and {a} held it still.",
        "First they cut the wood. Then {a} hit the nails with the hammer, very carefully.",
    )
    t.maybe(
        0.5,
        "Ouch! {a} hit {a.his} thumb, but {a.he} did not stop.",
        "The roof was not straight, so they had to start over.",
    )
    t.tell(
        "When it was done, {a} painted it {color}.",
        "{a} painted the walls {color} and the door white."
        if t.words["color"] != "white"
        else "{a} painted the walls white.",
    )
    t.paragraph()
    t.tell(
        "They hung it in the old apple tree and waited. [But no bird came.|For a week, it stayed "
        "empty.]",
        "They put it high up in a tree, where no cat could reach it.",
    )
    t.says("a", "Why don't they come?", "Maybe the birds don't like it.", mood="sad")
    t.says("m", "They need time. Birds are shy.", "Wait and see.", mood="kind")
    t.tell(
        "Then, one bright morning, {a} heard singing. A family of birds had moved in!",
        "A few days later, a little head looked out of the {color} birdhouse.",
    )
    t.end(
        "{a.s} counted three tiny birds.",
        "Every morning, the birds sang for {a}.",
        moral=t.pick(("patient", "kind")),
    )


def lost_egg(t: Stage) -> None:
    t.hero(animal=True, avoid=("duck",))
    t.friend()
    t.open(
        "{day} {a.s} found a [white|blue|spotted] egg in the grass. It was all alone.",
        "{day} {a.s} was walking along the path when {a.he} saw an egg.",
    )
    t.says("a", "Who lost this egg?", "You poor egg! Where is your mother?", mood="thinking")
    t.tell("{a} asked {b}, but {b} did not know.", "{a} showed it to {b}.")
    t.says(
        "b",
        "It is not mine. Keep it warm, or it will not hatch.",
        "I have never seen an egg like that. You must keep it warm.",
        mood="thinking",
    )
    t.tell(
        "So {a} wrapped it in soft leaves and held it close.",
        "So {a} made a nest of moss and lay down around the egg.",
    )
    t.tell(
        "It rained, and the wind blew, but {a} did not leave.",
        "All night long, {a} stayed awake and kept the egg warm.",
    )
    t.paragraph()
    t.tell(
        "In the morning, there was a small sound. Crack! The egg broke open.",
        "Then the egg began to move. Crack, crack!",
    )
    t.tell("Out came a tiny [duck|bird|goose], wet and yellow. It looked at {a}.")
    t.tell('"Peep!" it said.', '"Mama?" it asked.')
    t.says(
        "a",
        "I am not your mother, but I will help you to find her.",
        "Hello, little one! Let us look for your family.",
        mood="kind",
    )
    t.tell(
        "They walked down to the water. There, a mother bird was looking for her egg.",
        "They had not gone far when a big white bird came flying. It was the mother!",
    )
    t.tell(
        '"Thank you for taking care of my baby," she said.',
        '"You kept my little one warm!" she cried. "How can I ever thank you?"',
    )
    t.end(
        "From then on, the little bird came to visit {a} every day.",
        "{a} waved goodbye with a happy heart.",
        moral="kind",
    )
