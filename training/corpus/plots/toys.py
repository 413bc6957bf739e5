"""Toys: lost, broken, fought over, built and found again."""

from training.corpus.stage import Stage
from training.corpus.world import KEEPSAKES, TOYS

PARTS = {
    "toy car": "wheel",
    "robot": "arm",
    "doll": "arm",
    "toy train": "wheel",
    "toy boat": "sail",
    "music box": "lid",
    "wagon": "wheel",
    "toy plane": "wing",
    "toy truck": "door",
}


def lost_toy(t: Stage) -> None:
    t.hero(animal=False)
    t.thing("o", TOYS[2:-1] + KEEPSAKES)
    t.elder("m")
    spot = t.word(
        "spot",
        "under the bed",
        "behind the sofa",
        "under a bush",
        "behind the door",
        "in the tall grass",
        "under the kitchen table",
        "in the laundry basket",
        "behind the apple tree",
        "inside an old box",
    )
    t.open(
        "{a.s} had {o.a}. It was {a.his} favorite thing. {day} {a.s} could not find it.",
        "{a.s} had {o.a} and took it everywhere. But {day} the {o.n} was gone.",
        "{day} {a.s} [woke up and looked|wanted to play and looked] for {a.his} {o}. "
        "It was not there.",
    )
    t.tell(
        "{a.s} looked [in {a.his} room|on the shelf|in the hall], but the {o.n} was not there.",
        "{a.s} searched everywhere, but {a.he} could not find it.",
        "{a.s} felt very sad. {a.s} started to look [for it|all over the house].",
    )
    t.maybe(0.4, "{a.s} [wanted to cry|began to cry|had tears in {a.his} eyes].")
    t.paragraph()
    t.tell("{m.s} [saw|noticed] that {a} was sad.", "{a.s} went to {m}.")
    t.says("m", "What is wrong, {a.call}?", "Why are you so sad, {a.call}?", mood="kind")
    t.says("a", "I lost my {o}.", "I cannot find my {o.n}.", "My {o} is gone!", mood="sad")
    t.says(
        "m",
        "Do not worry. We will look for it together.",
        "Where did you see it last?",
        "Let us think. Where did you play yesterday?",
        mood="kind",
    )
    t.tell(
        "They looked [high and low|everywhere|in every corner].",
        "Together they looked [in every room and in the yard|here and there].",
    )
    if t.chance(0.5):
        t.pet("p")
        t.tell(
            f"Then {{p}} came. {{p.s}} [sniffed and ran|walked slowly] to a place {spot}.",
            f"Just then, {{p}} began to make a noise {spot}.",
        )
    t.tell(
        "At last, {a.s} looked {spot}. There was the {o}!",
        "{a.s} looked {spot} and saw something {o.q}. It was {a.his} {o.n}!",
        "And there, {spot}, was the {o}.",
    )
    t.says(
        "a",
        "I found it! I found my {o.n}!",
        "Here it is! Thank you, {m.call}!",
        "Hooray! My {o} is back!",
        mood="happy",
    )
    t.end(
        "{a.s} hugged the {o.n} and did not let go of it all day.",
        "From that day on, {a.s} always put the {o.n} back in its place.",
        "{a.s} hugged {m} and [was happy again|smiled a big smile].",
        moral=t.pick(("careful", "")),
    )


def quarrel(t: Stage) -> None:
    t.hero()
    t.friend()
    t.thing("o", TOYS)
    t.open_pair(
        "{day} {a} and {b} found {o.a} [in the park|by the path|near the big tree].",
        "{day} {a} brought {o.a} to show to {b}.",
        "{day} {a} and {b} were playing [outside|by the river|in the sun] with {o.a}.",
    )
    t.says("a", "I want to play with it first!", "It is mine!", "Give it to me!", mood="angry")
    t.says("b", "No, I want it!", "No, it is my turn!", "That is not fair!", mood="angry")
    t.tell(
        "They both pulled at the {o.n}. [Suddenly|Then], it fell into the mud.",
        "They pulled and pulled, until {b} fell down.",
        "They [shouted|yelled] at each other. Then {b} turned around and walked away.",
    )
    t.tell(
        "{a} went home [alone|all by {a.himself}], but it was no fun to play without {b}.",
        "Now {a} had the {o} but no friend to play with.",
        "{a} felt bad. {a.s} did not want to lose {a.his} friend over {o.an}.",
    )
    t.paragraph()
    if t.chance(0.5):
        t.elder("m")
        t.tell("{a} told {a.his} [story|troubles] to {m}.", "{m.s} saw that {a} was sad.")
        t.says(
            "m",
            "A friend is worth more than {o.an}.",
            "Why don't you take turns?",
            "Go and tell {b.call} that you are sorry.",
            mood="kind",
        )
    else:
        t.tell("{a} thought about it for a long time.", "{a} sat down and thought.")
    t.tell(
        "So {a} went to look for {b}.",
        "So {a} ran to find {b}.",
        "The next day, {a} went to see {b}.",
    )
    t.says(
        "a",
        "I am sorry, {b.call}. Let us [share the {o.n}|play together].",
        "I am sorry. You can have the first turn.",
        mood="sad",
    )
    t.says(
        "b",
        "I am sorry too.",
        "I am sorry too. I do not want to fight.",
        "Thank you, {a.call}. I missed you.",
        mood="happy",
    )
    t.end(
        "They took turns with the {o} and [had a lot of fun|laughed all day].",
        "Then they played with the {o} together.",
        "{a} and {b} hugged and were friends again.",
        moral="share",
        pair=True,
    )


def broken_toy(t: Stage) -> None:
    t.hero(animal=False)
    toy = t.thing("o", tuple(PARTS))
    t.elder("m")
    t.word("part", PARTS[toy.noun])
    t.open(
        "{a.s} had {o.a}. {day} {a.he} was playing with it [on the floor|on the stairs].",
        "{day} {a.s} was playing with {a.his} {o}.",
        "{a.s} loved {a.his} {o} more than any other toy. {day} something bad happened.",
    )
    t.tell(
        "Crack! The {part} broke off.",
        "The {o.n} fell down, and the {part} came off.",
        "It fell on the hard floor. Now the {part} was broken.",
    )
    t.tell(
        "{a.s} picked up the pieces and started to cry.",
        "{a.s} held the broken {o.n} in {a.his} hands. A tear ran down {a.his} face.",
    )
    t.paragraph()
    t.tell("{a.s} took it to {m}.", "{m.s} heard {a} and came to look.")
    t.says(
        "a",
        "My {o.n} is broken!",
        "Can you fix it, {m.call}?",
        "Look, the {part} came off.",
        mood="sad",
    )
    t.says(
        "m",
        "Let me see. I think we can fix it.",
        "Don't cry. We can mend it together.",
        "I have some glue. Will you help me?",
        mood="kind",
    )
    t.tell(
        "They sat down at the table. {m.s} held the {part}, and {a} put on the glue.",
        "{m} got a box with many tools. {a} watched and helped.",
        "They worked slowly and carefully. {a} held the {o.n}, and {m} put the {part} back on.",
    )
    t.tell(
        "Then they waited [until the glue was dry|for a while].",
        "It took [a long time|all afternoon], but it was fun to work together.",
    )
    t.says(
        "a", "It is as good as new!", "You did it, {m.call}!", "It works! It works!", mood="happy"
    )
    t.end(
        "{a.s} loved the {o.n} even more now, because they had fixed it together.",
        "{a.s} hugged {m} and ran off to play.",
        "From then on, {a.s} was gentle with {a.his} toys.",
        moral=t.pick(("careful", "patient")),
    )


def tower(t: Stage) -> None:
    t.hero(animal=False)
    t.friend()
    t.word("w1", "tower", "castle", "house", "bridge")
    t.word("w2", "blocks", "sand", "boxes", "stones")
    t.open_pair(
        "{day} {a} was building a {w1} of {w2}. It was almost done.",
        "{day} {a} made a tall {w1} of {w2} all by {a.himself}.",
    )
    t.tell(
        "Then {b} came running and did not look. Crash! The {w1} fell down.",
        "{b} wanted to look at it and came too close. Crash! Down went the {w1}.",
    )
    t.says("a", "Look what you did!", "Oh no! My {w1}!", "You broke it!", mood="angry")
    t.says(
        "b",
        "I am so sorry. I did not mean to do it.",
        "It was an accident. I am sorry.",
        mood="sad",
    )
    t.paragraph()
    t.tell(
        "{a} was very angry at first. But then {a.he} saw how sad {b} was.",
        "{a} wanted to shout. But {b} looked so sad that {a} stopped.",
    )
    t.says(
        "b", "I will help you to build a new one.", "Can we build it again together?", mood="kind"
    )
    t.tell(
        "{a} nodded. {b} carried the {w2}, and {a} put them in place."
        if t.words["w2"] != "sand"
        else "{a} nodded. {b} brought water, and {a} shaped the wet sand.",
        "So they started again. This time, they worked as a team.",
    )
    t.tell(
        "Soon the new {w1} was [bigger and better|even taller] than the old one.",
        "The new {w1} was so big that they could hardly believe it.",
    )
    t.maybe_says(0.6, "a", "It is better than before!", "We make a good team!", mood="happy")
    t.end(
        "They put a little flag on top and [clapped|danced around it].",
        "{a} was glad that {a.he} had not stayed angry.",
        moral="friend",
        pair=True,
    )


def messy_room(t: Stage) -> None:
    t.hero(animal=False)
    t.elder("m", role=t.pick(("mom", "dad")))
    t.thing("o", KEEPSAKES)
    t.open(
        "{a.p} room was a big mess. There were toys and clothes all over the floor.",
        "{a.s} never cleaned {a.his} room. {day} {a.he} could not even see the floor.",
    )
    t.says("m", "Please clean your room, {a.call}.", "It is time to tidy up.", mood="kind")
    t.says("a", "I will do it later.", "But it is so much!", "I don't want to.", mood="sad")
    t.tell(
        "Then {a} wanted to take {a.his} {o} to the park, but {a.he} could not find it.",
        "Just then, {a} looked for {a.his} {o}. It was nowhere to be seen.",
    )
    t.paragraph(0.5)
    t.tell(
        "So {a.he} began to clean up. First {a.he} put away the books, then the blocks.",
        "So {a.he} picked up one thing, and then another, and another.",
    )
    t.tell(
        "{m} put on some music, and it was almost like a game.",
        "Under the bed, {a.he} found [an old apple|three socks|a coin] and a puzzle piece.",
        "It took a long time, but the floor came back, bit by bit.",
    )
    t.tell(
        "And there, under the last pile, was the {o}!",
        "At the very end, {a.he} lifted a pillow and found the {o}.",
    )
    t.says("a", "Here it is! It was here all the time!", "I found my {o.n}!", mood="happy")
    t.says(
        "m", "Your room looks wonderful.", "Well done! Now you can find everything.", mood="happy"
    )
    t.end(
        "After that, {a} cleaned {a.his} room every week.",
        "{a} took the {o.n} and ran to the park.",
        moral=t.pick(("careful", "")),
    )
