"""Small adventures away from home."""

from dataclasses import replace

from training.corpus.stage import Stage
from training.corpus.world import WATER_ANIMALS


def treasure(t: Stage) -> None:
    t.hero()
    t.friend()
    t.word("hint", "an old map", "a note in a bottle", "a piece of paper with a red cross")
    t.word("spot", "the old oak tree", "the big gray rock", "the broken bridge", "the old well")
    t.open_pair(
        "{day} {a} found {hint} [in the sand|in an old box|under a stone].",
        "{day} {a} and {b} found {hint}.",
    )
    t.says(
        "a",
        "There is a treasure! We must find it!",
        "Look, {b.call}! It shows a treasure at {spot}!",
        mood="happy",
    )
    t.tell(
        "They walked [over the hill and through the woods|along the river and across a field]. "
        "It was a long way.",
        "They went ten steps to the left and twenty steps to the right, just as it said.",
    )
    t.maybe(
        0.6,
        "On the way, they had to cross a cold stream. {b} was afraid, so {a} held "
        "{b.his} " + ("paw." if t.character("b").is_animal else "hand."),
        "{b} was tired and wanted to go back, but {a} said that they were almost there.",
    )
    t.tell(
        "At last, they came to {spot}. They began to dig.",
        "There was {spot}! They dug a deep hole.",
    )
    t.paragraph()
    t.tell(
        "Clonk! There was a [wooden|small|rusty] box. They opened it slowly.",
        "Soon they hit something hard. It was a box!",
    )
    way = t.pick(("toys", "letter", "coins", "seeds"))
    if way == "letter":
        t.tell("Inside was only a letter.", "There was no gold in it, just a letter.")
        t.tell(
            'It said, "The real treasure is the friend who came with you."',
            'They read, "You have had an adventure. That is the treasure."',
        )
        t.tell("{a} and {b} looked at each other and laughed.")
    elif way == "coins":
        t.tell("It was full of [shiny|old] coins!", "Inside there were ten shiny coins.")
        t.says("b", "What shall we do with them?", "We are rich!", mood="happy")
        t.tell(
            "They bought [a big cake for all their friends|new books for the school|a swing for "
            "everyone]."
        )
    elif way == "seeds":
        t.tell("It was full of seeds!", "Inside was a bag of seeds.")
        t.says("b", "That is not a treasure.", "Only seeds?", mood="sad")
        t.says(
            "a",
            "Wait and see. Let us plant them.",
            "Let us put them in the ground.",
            mood="thinking",
        )
        t.tell("In the summer, there were hundreds of flowers. It was a treasure after all.")
    else:
        t.tell("It was full of old toys: marbles, a top and a little [horse|bear|ship] of wood.")
        t.says(
            "b",
            "Some child hid them here long ago.",
            "They are so old and so pretty!",
            mood="thinking",
        )
        t.tell(
            "They played with them all afternoon. Then they put in a toy of their own and hid "
            "the box again."
        )
    t.end(moral=t.pick(("friend", "", "share" if way == "coins" else "friend")), pair=True)


def drifting_boat(t: Stage) -> None:
    t.hero(avoid=WATER_ANIMALS)
    t.friend(avoid=WATER_ANIMALS)
    t.thing("o", ("boat", "raft"), "small", "red", "old", "wooden")
    t.open_pair(
        "{day} {a} and {b} found {o.a} by the [lake|pond|river] and climbed in.",
        "{day} {a} and {b} built {o.a} and put it on the water.",
    )
    t.tell(
        "The {o.n} began to move. Soon they were far from the shore.",
        "At first it was fun. But then the wind pushed the {o.n} far out.",
    )
    t.says("b", "We are too far out! I want to go home!", "How do we get back?", mood="scared")
    t.says("a", "Stay calm. Let us think.", "Don't be afraid. We will find a way.", mood="thinking")
    if t.chance(0.5):
        t.tell(
            "{a} used {a.his} hat to push the water, and {b} used a flat piece of wood.",
            "They found a long branch in the water and used it to push the {o.n}.",
        )
        t.tell("It was slow and hard, but they came closer and closer.")
    else:
        t.stranger("s", "big fish", "kind duck", "old turtle", "white swan")
        t.tell("Then {s} swam up to them.", "Just then, {s} came by.")
        t.says("s", "Do you need help?", "Throw me the rope, and I will pull you.", mood="kind")
        t.tell("{s} pulled the {o.n} all the way to the shore.")
    t.paragraph(0.6)
    t.tell(
        "At last, they felt the ground under the {o.n}. They jumped out.",
        "When they were back on land, they lay down in the grass.",
    )
    t.says("b", "I love the ground!", "I am so happy to be back!", mood="happy")
    t.says(
        "a",
        "Next time, we will tie the {o.n} to a tree.",
        "Next time, we will ask before we go.",
        mood="thinking",
    )
    t.end(moral="careful", pair=True)


def trip(t: Stage) -> None:
    a = t.hero(animal=False)
    m = t.elder("m")
    t.cast["m"] = replace(m, intro=f"{a.name}'s {m.kind}")
    way = t.pick(("beach", "farm", "zoo", "city"))
    t.words["pl"] = f"the {way}"
    if t.chance(0.5):
        t.friend()
        t.open_pair(
            "{a} and {b} went to {pl} with {m}.",
            "{day} {a} and {b} went to {pl} with {m}.",
            "{day} {a} and {b} took a trip to {pl} with {m}.",
        )
    else:
        t.friend()
        t.known("b")
        name = t.character("b").name
        t.open(
            f"{{day}} {{a.s}} and {{a.his}} friend {name} went to {{pl}} with {{m}}.",
            f"{{day}} {{a.s}} and {{a.his}} friend {name} took a trip to {{pl}} with {{m}}.",
        )
    t.known("m")
    t.says(
        "m",
        "Stay close to me.",
        "We will have a wonderful day!",
        "Who is ready for an adventure?",
        mood="happy",
    )
    if way == "beach":
        t.tell("The sea was big and blue. They took off their shoes and felt the warm sand.")
        t.tell(
            "{a} built a castle with a deep moat, and {b} looked for shells.",
            "{a} found [a pink shell|a smooth stone|a starfish], and {b} saw a tiny crab.",
        )
        t.tell("Then a big wave came and [took {b.p} bucket|washed everything away].")
        t.says("b", "Oh no! The wave took it!", "The sea is so strong!", mood="sad")
        t.says("a", "We can start again, farther from the water.", "I will help you.", mood="kind")
    elif way == "farm":
        t.tell("There were cows, pigs, chickens and a [big|brown|gray] horse.")
        t.tell(
            "{a} fed the chickens, and {b} milked a cow.",
            "{a} gave an apple to the horse, and {b} held a soft baby rabbit.",
        )
        t.tell("Suddenly, a little pig ran out of its pen! It ran right through the mud.")
        t.says("b", "Catch it! Catch the pig!", "Look, the pig is running away!", mood="happy")
        t.tell(
            "{a} ran after it and fell into the mud. But {a.he} caught the pig and laughed.",
            "{a} held out a carrot. The pig smelled it and came back.",
        )
    elif way == "zoo":
        t.tell("They saw lions, elephants and funny monkeys.")
        t.tell("{a} liked the [elephants|penguins] best, and {b} liked the [giraffe|sleepy bear].")
        t.tell("Then a monkey reached out and took {b.p} hat!")
        t.says("b", "Hey! That is my hat!", "Give me back my hat!", verb="shouted")
        t.tell(
            "{a} held up a banana. The monkey dropped the hat and took the banana instead.",
            "The monkey put it on and danced. Everyone laughed, and then it threw the hat back.",
        )
    else:
        t.tell("They went by train. From the window, they saw fields, rivers and little houses.")
        t.tell("The houses in the city were tall, and the streets were full of people.")
        t.tell(
            "{a} stopped to look at a shop window. When {a.he} turned around, {m} and {b} were "
            "gone!"
        )
        t.says("a", "I must stay right here and wait.", "Where are they?", mood="scared")
        t.tell(
            "A minute later, they came back around the corner. {m} took {a.p} hand and did "
            "not let go."
        )
    t.paragraph(0.6)
    t.tell(
        "At noon, they ate [ice cream|sandwiches|cold melon] in the shade.",
        "They stayed until the sun was low.",
    )
    t.maybe_says(
        0.6, "a", "Can we come back tomorrow?", "This was the best trip ever!", mood="happy"
    )
    t.end(
        "On the way home, they were so tired that they fell asleep.",
        "They talked about it all the way home.",
        pair=True,
    )


def magic(t: Stage) -> None:
    a = t.hero(animal=False)
    t.stranger("s", "tiny old woman", "tiny old man")
    t.thing(
        "o", ("stone", "feather", "lamp", "shell", "coin"), "shiny", "golden", "blue", "strange"
    )
    t.open(
        "{day} {a.s} found {o.a} [by the river|in the attic|on the beach]. When {a.he} touched "
        "it, it began to glow. Out came {s}.",
        "{day} {a.s} picked up {o.a}. Puff! There stood {s}.",
    )
    t.tell("{s.s} bowed and looked at {a}.", "{s.s} was no bigger than a thumb.")
    t.says(
        "s",
        "You may make one wish. Think about it well.",
        "I will give you one wish, but only one.",
    )
    t.tell(
        "{a} thought of [a mountain of candy|a castle|a flying horse]. Then {a.he} thought of "
        "[toys|gold].",
        "{a} had so many wishes! It was hard to choose.",
    )
    t.paragraph(0.6)
    t.word("who", *(("brother",) if a.he == "she" else ("sister",)), "neighbor")
    t.words["him"] = {"brother": "him", "sister": "her"}.get(t.words["who"], t.pick(("him", "her")))
    t.tell("Then {a.he} remembered {a.his} {who}, who was [sick|very sad] that day.")
    t.says(
        "a",
        "I wish that my {who} would feel better.",
        "Please make my {who} happy again.",
        mood="kind",
    )
    t.says(
        "s",
        "That is the best wish I have ever heard.",
        "You did not ask for yourself. That was very kind.",
        mood="happy",
    )
    t.tell(
        "There was a flash of light, and {s} was gone.",
        "The {o} glowed once more, and then it was just {o.an} again.",
    )
    t.tell(
        "When {a} came home, {a.his} {who} was standing at the door, well and happy.",
        "{a} ran home. {a.s} heard {a.his} {who} laughing from far away!",
    )
    t.end(
        "{a} never told anyone, but {a.he} kept the {o.n} forever.",
        "It was the best wish in the world.",
        moral="kind",
    )


def giant(t: Stage) -> None:
    t.hero(avoid=("bear",))
    t.stranger("s", "giant bear", "huge dragon", "big wolf", "sad giant")
    t.open(
        "Everyone in the valley was afraid of {s}. But {day} {a.s} went up the mountain alone.",
        "High up in the mountains lived {s}. Nobody dared to go there. But {a.s} "
        "wanted to know more.",
        sunny=False,
    )
    t.tell(
        "Suddenly, the ground shook. There stood {s}!",
        "{a} turned a corner and stopped. Right there sat {s}, crying big tears.",
        "Then there was a loud noise, and {s} came out of a cave.",
    )
    t.tell(
        "{a} wanted to run away, but {a.his} legs would not move.",
        "{a.p} heart was beating fast, but {a.he} did not run away.",
    )
    t.says(
        "a", "Please don't eat me!", "Why are you so sad?", "What is wrong with you?", mood="scared"
    )
    t.says(
        "s",
        "I will not hurt you. I am just lonely.",
        "There is a thorn in my foot, and it hurts so much.",
        "Everybody runs away from me. I only want a friend.",
        mood="sad",
    )
    t.paragraph(0.6)
    t.tell(
        "Now {a} was not afraid anymore. {a.s} sat down and stayed for tea.",
        "{a} looked at the big, sad eyes and took a step closer.",
    )
    t.says(
        "a",
        "I will be your friend.",
        "Come with me. I will tell the others about you.",
        "Don't cry. I will help you.",
        mood="kind",
    )
    t.tell(
        "{a} brought {s} down to the valley. At first, people hid in their houses.",
        "Together they went down to the valley. Everyone screamed and ran.",
    )
    t.says("a", "Stop! There is no need to be afraid!", "Look! This is my friend!", verb="called")
    t.tell(
        "Then {s} [lifted a fallen tree off the road|carried the children around|mended the "
        "broken bridge], and all the people cheered.",
        "Slowly, they came out. {s} smiled shyly and waved.",
    )
    t.end(
        "After that, {s} was never lonely again.",
        "Now {s} had many friends, and {a} was the first.",
        moral=t.pick(("brave", "friend", "kind")),
    )


def market(t: Stage) -> None:
    t.hero(animal=False)
    t.elder("m")
    t.word(
        "three",
        "eggs, milk and honey",
        "apples, bread and cheese",
        "carrots, butter and fish",
        "pears, flour and salt",
    )
    last = t.words["three"].split(" and ")[1]
    t.words["last"] = last
    t.open(
        "{day} {a.s} went to the market for {m}. It was the first time that {a.he} went alone.",
        "{day} {a.s} was sent to the market by {m}.",
    )
    t.known("m")
    t.says("m", "Please bring {three}.", "We need {three}. Can you remember that?")
    t.says("a", "I will not forget it!", "Yes, I can remember it.", mood="happy")
    t.tell(
        "On the way, {a} said it again and again: {three}.",
        "{a} sang a little song about it: {three}!",
    )
    t.tell(
        "At the market there was so much to see! There was [a man with a parrot|a woman who "
        "sold balloons|a boy who walked on his hands].",
        "At the corner, {a} met a funny little dog and played with it for a while.",
    )
    t.tell(
        "When {a} came to the shop, {a.he} had forgotten the last thing!",
        "In the end, {a.he} could only remember two things.",
    )
    t.says("a", "Oh dear. What was it?", "What was the third thing?", mood="thinking")
    t.paragraph(0.6)
    t.tell(
        "{a} closed {a.his} eyes and sang the song from the start. And there it was: {last}!",
        "{a} went back to the door and walked the same way again. Then it came back to {a.him}: "
        "{last}!",
    )
    t.tell("{a} bought everything and carried it home.", "With a full basket, {a} walked home.")
    t.says("m", "You got everything! Well done.", "What a big help you are!", mood="happy")
    t.tell("As a thank you, {a} got [a warm pancake|a sweet bun|a cup of hot chocolate].")
    t.end("{a.s} felt very grown up.", "The next week, {a.s} went to the market again.")
