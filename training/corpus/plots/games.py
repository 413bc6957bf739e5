"""Games and seasons: races, kites, puddles, snow and leaves."""

from dataclasses import replace

from training.corpus.stage import Stage
from training.corpus.world import WATER_ANIMALS


def race(t: Stage) -> None:
    t.hero()
    t.friend()
    if t.chance(0.3):
        prize = t.thing("o", ("cake", "pie"), "big", "sweet", "round")
    else:
        prize = t.thing("o", ("cup", "medal", "ribbon", "star"), "big", "golden", "blue", "red")
    t.open_pair(
        "{day} there was a big race [in the village|in the meadow|around the lake]. "
        "The prize was {o.a}.",
        "{day} {a} and {b} wanted to run a race. The winner would get {o.a}.",
    )
    t.says(
        "a",
        "I am the fastest! I will win!",
        "I will win this race.",
        "I have practiced a lot!",
        mood="happy",
    )
    t.says(
        "b",
        "I will do my best.",
        "I am not so fast, but I will try.",
        "Good luck, {a.call}!",
        mood="kind",
    )
    t.tell("They stood at the line. [One, two, three, go!|Everyone cheered, and the race began.]")
    t.tell(
        "{a} ran [like the wind|very fast] and was soon far ahead.", "At first, {a} was in front."
    )
    t.paragraph(0.5)
    way = t.pick(("fall", "nap", "help"))
    if way == "fall":
        t.tell("But then {a} tripped over a [stone|root|stick] and fell. It hurt a lot.")
        t.tell(
            "{b} saw this and stopped. {b.s} did not run past {a}.",
            "{b} could have won, but {b.s} stopped.",
        )
        t.says("b", "Are you hurt? Take my hand.", "Come, I will help you up.", mood="kind")
        t.tell(
            "{b} helped {a} up, and they [crossed the line together|walked to the end together]."
        )
        t.end(
            "Everyone clapped, and {a} and {b} shared the {o.n}.",
            "They both got a prize, and everyone cheered for them.",
            moral="kind",
            pair=True,
        )
    elif way == "nap":
        t.tell(
            "{a} was so sure of winning that {a.he} stopped to [rest under a tree|take a nap|"
            "pick some flowers]."
        )
        t.tell(
            "But {b} did not stop. {b.s} went on, step by step.",
            "{b} was slow, but {b.he} never stopped.",
        )
        t.tell(
            "When {a} looked up, {b} was already at the end!",
            "When {a} ran on, it was too late. {b} had won!",
        )
        t.says(
            "a",
            "Well done, {b.call}. You won because you did not stop.",
            "You were better today. Good job, {b.call}!",
            mood="kind",
        )
        t.end(
            "{b} got the {o} and shared it with {a}."
            if prize.noun in ("cake", "pie")
            else "{b} got the {o} and was very proud.",
            "{a} was not angry. {a.s} had learned not to be too proud.",
            moral="try",
        )
    else:
        t.stranger("s", "old turtle", "little bird", "tiny ant", "little snail")
        t.tell(
            "On the way, {a} saw {s} lying on its back."
            if "bird" not in t.character("s").kind
            else "On the way, {a} saw {s} with a thorn in its foot."
        )
        t.says("s", "Please help me!", "Can you help me, please?", mood="scared")
        t.tell(
            "{a} wanted to win, but {a.he} stopped and helped {s}.",
            "{a} knew that {a.he} would lose the race. But {a.he} stopped to help.",
        )
        t.tell("{b} won the race and got the {o}.", "So {b} was the first at the end.")
        t.says(
            "b",
            "You are the real winner, {a.call}.",
            "You lost the race to help someone. That was very kind.",
            mood="kind",
        )
        t.end(
            "Then {b} shared the prize with {a}.", "{a} felt warm inside.", moral="kind", pair=True
        )


def kite_in_tree(t: Stage) -> None:
    t.hero(animal=False)
    t.thing("o", ("kite", "kite", "balloon", "paper plane"))
    t.open(
        "{day} {a.s} was playing with {a.his} {o} [in the park|on the hill|in the yard].",
        "{a.s} got {o.a} for {a.his} birthday. {day} {a.he} took it to the park.",
        "It was a windy day. {a.s} went out with {a.his} new {o}.",
    )
    t.tell(
        "[Suddenly|Then], a strong wind came and blew the {o.n} up into a tall tree.",
        "It flew up and up, and then it got stuck in a tall tree.",
    )
    t.tell(
        "{a.s} jumped and jumped, but the branch was too high.",
        "{a.s} tried to reach it with a stick, but the stick was too short.",
        "{a.s} shook the tree, but the {o.n} did not fall.",
    )
    t.says("a", "Oh no! How will I get it back?", "My {o.n}! It is too high!", mood="sad")
    t.paragraph()
    if t.chance(0.5):
        t.stranger("s", "tall man", "old man", "kind woman", "tall boy")
        t.tell("{s} came by and saw {a} under the tree.", "Just then, {s} walked by.")
        t.says("s", "Do not be sad. I have a ladder.", "Let me help you.", mood="kind")
        t.tell(
            "{s.s} climbed up and [took the {o.n} down|got the {o}].",
            "{s.s} reached up high and got the {o.n}.",
        )
        t.says("a", "Thank you so much!", "Thank you! You are very kind!", mood="happy")
        t.end(
            "{a.s} waved goodbye and ran home with {a.his} {o.n}.",
            "{a.s} gave {s} a big smile and went on playing.",
            moral="kind",
        )
    else:
        t.stranger("s", "little bird", "squirrel", "monkey")
        t.tell(
            "{s} was sitting in the tree and saw it all.",
            "High in the tree sat {s}, looking down at {a}.",
        )
        t.says("a", "Little friend, can you help me?", "Please, can you push it down?")
        t.tell(
            "{s} hopped along the branch and pushed. Down came the {o.n}!",
            "{s} pulled at the {o.n} until it was free.",
        )
        t.tell("{a.s} laughed and [gave {s} some bread|shared a cookie with {s}].")
        t.end(
            "After that, {a.s} came to the tree every day to say hello.",
            "And so {a.s} got the {o} back and made a new friend.",
            moral="friend",
        )


def hide_and_seek(t: Stage) -> None:
    t.hero()
    t.friend()
    t.word(
        "spot",
        "inside a hollow log",
        "behind a big rock",
        "under a bush",
        "behind a pile of hay",
        "under an old blanket",
    )
    t.open_pair(
        "{day} {a} and {b} played hide and seek [in the woods|near the barn|outside].",
        "{day} they played hide and seek.",
    )
    t.says("b", "I will count to ten. You go and hide!", "You hide, and I will find you!")
    t.tell(
        "{a} ran and hid {spot}. It was [dark|warm|soft] and quiet there.",
        "{a} found a good place {spot} and kept very still.",
    )
    t.says("b", "Ready or not, here I come!", verb="called")
    t.tell(
        "{b} looked [behind every tree|here and there|up and down], but {b.he} could not find {a}.",
        "{b} looked and looked. Where was {a}?",
    )
    t.paragraph()
    if t.chance(0.5):
        t.tell("It was so cozy in there that {a} [fell asleep|closed {a.his} eyes and slept].")
        t.tell(
            "{b} called and called, but there was no answer. {b.s} was worried.",
            "The sun went down, and {b} began to worry.",
        )
        t.tell(
            "Then {b} heard a funny sound. Somebody was snoring {spot}!",
            "At last, {b} looked {spot}. There was {a}, fast asleep!",
        )
        t.says(
            "b",
            "Wake up, sleepyhead! I found you!",
            "There you are! You were asleep!",
            mood="happy",
        )
        t.says("a", "Oh! Did I win?", "It was such a good place to sleep!", mood="happy")
    else:
        t.tell("Then {a} had to sneeze. Achoo!", "Then {a} began to giggle.")
        t.says("b", "I heard you! I know where you are!", "Aha! I found you!", mood="happy")
        t.tell("{a} came out with leaves on {a.his} head.", "{a} laughed and came out.")
        t.says(
            "a", "Now it is your turn to hide!", "You found me! Let us play again.", mood="happy"
        )
    t.end(
        "They both laughed until [their bellies hurt|they could not stand].",
        "They played until it was time for dinner.",
        pair=True,
    )


def tug_of_size(t: Stage) -> None:
    t.hero(animal=True)
    t.friend()
    t.thing("o", ("log", "pumpkin", "stone", "turnip"), "big", "heavy", "round")
    t.open_pair(
        "{day} {a} found {o.a}. {a.s} wanted to take it home.",
        "{day} {a} saw {o.a} [by the path|in the field] and wanted to bring it home.",
    )
    t.tell(
        "{a.s} pushed and pulled, but the {o.n} did not move.",
        "It was much too heavy for {a}. {a.s} pulled until {a.he} was tired.",
    )
    t.says("a", "I am too small. I cannot do it.", "It is too heavy for me.", mood="sad")
    t.tell("{b} came by and saw {a}.", "Then {b} came along.")
    t.says("b", "Let me help you.", "Two are stronger than one. Let us try together!", mood="kind")
    t.tell(
        "They pulled together. The {o.n} moved a little, but not enough.",
        "They both pushed hard. It moved, but only a bit.",
    )
    t.paragraph(0.5)
    t.hero("c", animal=True)
    t.tell(
        "They called {c}. [Now there were three of them.|{c} came at once.]",
        "{c} heard them and wanted to help, too.",
    )
    t.says("c", "One, two, three, pull!", "All together now! Pull!", verb="shouted")
    t.tell(
        "And the {o.n} began to roll! It rolled all the way to {a.p} home.",
        "They pulled with all their might, and at last it moved!",
    )
    t.says(
        "a",
        "Thank you! I could not have done it without you.",
        "We did it! Thank you, my friends!",
        mood="happy",
    )
    t.end(
        "That evening, the three friends ate a warm soup together.",
        "The three friends sat down, tired but happy.",
        moral="friend",
        night=False,
    )


def snow_day(t: Stage) -> None:
    t.hero()
    t.friend()
    t.thing("o", ("hat", "scarf"))
    t.open_pair(
        "One morning, {a} looked out and saw that everything was white. It had snowed!",
        "It was winter. One morning, {a} and {b} ran out into the new snow.",
        sunny=False,
    )
    t.says(
        "a", "Let us build a snowman!", "Come out, {b.call}! There is so much snow!", mood="happy"
    )
    t.tell(
        "They made a big ball of snow, and then a smaller one, and put it on top.",
        "They rolled and rolled the snow until it was a huge ball.",
    )
    t.tell(
        "They used two stones for the eyes and a carrot for the nose.",
        "{b} found a carrot for the nose, and {a} found two black stones for the eyes.",
    )
    t.tell(
        "But something was missing.", "{b} looked at the snowman and thought that he looked cold."
    )
    t.says("b", "He needs {o.a}.", "Our snowman is cold. He should have {o.a}.", mood="thinking")
    t.tell(
        "{a} took off {a.his} own {o} and gave it to the snowman.",
        "{a} ran home and came back with {o.a} for the snowman.",
    )
    t.paragraph(0.6)
    if t.chance(0.5):
        t.tell(
            "Then they [threw snowballs|slid down the hill] until their noses were red.",
            "They danced around him and made angels in the snow.",
        )
    else:
        t.tell(
            "The next day, the sun was warm, and the snowman got smaller and smaller.",
            "After a week, the sun came out, and the snowman began to melt.",
        )
        t.says("b", "He is going away!", "Our poor snowman!", mood="sad")
        t.says(
            "a",
            "Do not be sad. We will build him again next winter.",
            "He will come back with the next snow.",
            mood="kind",
        )
        t.tell("All that was left was the {o}, the carrot and two stones.")
    t.end(
        "Then they went inside and drank hot [milk|chocolate].",
        "They were cold, but they were very happy.",
        pair=True,
    )


def puddles(t: Stage) -> None:
    t.hero(avoid=WATER_ANIMALS)
    t.friend(avoid=WATER_ANIMALS)
    t.word(
        "o",
        *(
            f"{kind} {color} {noun}"
            for color in ("red", "yellow", "green", "blue")
            for kind, noun in (("a pair of", "boots"), ("a long", "coat"))
        ),
    )
    t.open_pair(
        "It rained all morning, and {a} was bored. Then the rain stopped.",
        "{day} it rained and rained. {a} sat inside and looked at the gray sky.",
        sunny=False,
    )
    t.tell("{a} put on {o} and went out.", "{a} had {o}, so {a.he} went out anyway.")
    t.tell(
        "There were puddles everywhere. Splash! {a} jumped into the biggest one.",
        "{a} saw a big puddle and jumped right in. Splash!",
    )
    t.says("a", "{b.call}, come out! It is fun!", "Look at me, {b.call}!", verb="called")
    t.says("b", "But I will get wet.", "I don't like the rain.", mood="sad")
    t.says("a", "You will get dry again!", "It is only water. Try it!", mood="happy")
    t.tell(
        "{b} put one foot into the water, then the other. Then {b.he} jumped, too.",
        "{b} came out slowly. {b.s} made a small jump, and then a big one.",
    )
    t.paragraph(0.6)
    t.tell(
        "They jumped and splashed until they were wet from head to toe.",
        "They made little boats out of leaves and watched them sail away.",
    )
    t.tell(
        "Then the sun came out, and there was a rainbow with all its colors.",
        "Suddenly, {b} pointed up. A rainbow stood over the [hills|fields].",
    )
    t.says("b", "I am so glad that I came out.", "The rain is not so bad after all.", mood="happy")
    t.end(
        "They went home and dried their feet by the fire.",
        "They watched the rainbow until it was gone.",
        pair=True,
    )


def autumn(t: Stage) -> None:
    a = t.hero()
    t.friend()
    m = t.elder("m")
    t.cast["m"] = replace(m, intro=f"{a.name}'s {m.kind}")
    t.open_pair(
        "It was autumn, and the leaves were red and gold. {a} and {b} had to sweep the yard.",
        "{day} the wind blew all the leaves from the trees. {a} and {b} wanted "
        "to help {m} and sweep them up.",
        sunny=False,
    )
    t.tell(
        "They worked until there was one huge pile of leaves.",
        "It took all morning. At last, there was a pile as high as a fence.",
    )
    t.says("a", "Shall we jump into it?", "That looks so soft!", mood="thinking")
    t.says("b", "But then we have to start again!", "Only one jump!", mood="thinking")
    t.tell(
        "They looked at each other. One, two, three! They jumped, and leaves flew everywhere.",
        "{a} ran and jumped first, and {b} jumped right after.",
    )
    t.tell(
        "They threw leaves in the air, and it rained red and gold.",
        "They rolled around until they had leaves in their ears.",
    )
    t.paragraph(0.6)
    t.tell(
        "Then {m} came out. The yard was full of leaves again!",
        "When {m} saw this, they stopped at once.",
    )
    t.says(
        "a", "We are sorry. We will clean it up.", "It was just too much fun to jump.", mood="sad"
    )
    t.tell(
        "But {m} smiled, took three big steps and jumped into the leaves, too!",
        "{m} began to laugh and threw a big armful of leaves at them.",
    )
    t.says(
        "m",
        "I have not done that for many years!",
        "First we play, and then we clean up together!",
        mood="happy",
    )
    t.end(
        "In the evening, the yard was clean, and all three were tired and happy.",
        "They played until it got dark. Then they swept up the leaves together.",
        pair=True,
    )
