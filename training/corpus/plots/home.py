"""At home: baking, storms, the dark, the truth."""

from training.corpus.stage import Stage


def baking(t: Stage) -> None:
    t.hero()
    t.elder("m")
    t.word(
        "cake",
        "apple pie",
        "chocolate cake",
        "carrot cake",
        "batch of cookies",
        "loaf of bread",
        "berry pie",
        "lemon cake",
        "plum cake",
    )
    noun = t.word(
        "n", {"batch of cookies": "cookies"}.get(t.words["cake"], t.words["cake"].split()[-1])
    )
    if t.words["cake"] == "loaf of bread":
        noun = t.word("n", "bread")
    many = noun == "cookies"
    t.word("was", "were" if many else "was")
    t.word("it", "them" if many else "it")
    t.word("an", "an" if t.words["cake"][0] == "a" else "a")
    t.open(
        "{day} {a.s} wanted to bake {an} {cake} with {m}.",
        "{day} {a.s} and {m} were in the kitchen. They wanted to bake {an} {cake}.",
        "It was raining, so {a.s} could not play outside. {m.s} had an idea: they would bake "
        "{an} {cake}.",
    )
    t.says(
        "m",
        "First, wash your hands.",
        "Can you bring me the flour?",
        "Let us get a big bowl.",
        mood="kind",
    )
    t.tell(
        "They mixed [flour, sugar and butter|flour, eggs and milk] in a [big|blue|round] bowl.",
        "{a.s} [stirred and stirred until {a.his} arms were tired|broke the eggs, one by one].",
        "{a.s} put in the flour, and {m} put in the eggs.",
    )
    way = t.pick(("mess", "salt", "burn", "fine"))
    if way == "mess":
        t.tell(
            "Oops! {a.s} dropped the bag, and a cloud of flour went up. Everything was white!",
            "Then {a.s} sneezed, and flour flew all over the kitchen!",
        )
        t.says("a", "I am sorry, {m.call}.", "Oh no! I made a mess.", mood="sad")
        t.tell(
            "But {m} only laughed, because they both looked like ghosts.",
            "{m} looked at {a} and began to laugh.",
        )
        t.says(
            "m",
            "We can clean it up together.",
            "Never mind. A little mess is part of baking.",
            mood="happy",
        )
        t.tell("They cleaned the floor and put the {n} in the oven.")
    elif way == "salt":
        t.tell("{a.s} put in a big spoon of sugar. But it was not sugar. It was salt!")
        t.says("m", "Wait! Let me taste it first.", "Did you take the white jar or the blue jar?")
        t.tell(
            "{m.s} tasted it and made a funny face. Then they both laughed and started again.",
            "They tasted it. It was awful! They giggled and made a new one.",
        )
        t.tell("This time, they [tasted everything first|looked at each jar twice].")
    elif way == "burn":
        t.tell("They put the {n} in the oven and went to play a game. They forgot about the time.")
        t.tell(
            "Then {a.s} smelled smoke. The {n} {was} black!",
            "When they came back, the {n} {was} burnt.",
        )
        t.says("a", "Oh no! We forgot about the {n}!", "Now we have nothing to eat.", mood="sad")
        t.says(
            "m",
            "Let us try again. This time we will wait right here.",
            "That can happen to anyone. We will make new ones."
            if many
            else "That can happen to anyone. We will make a new one.",
            mood="kind",
        )
        t.tell("They baked again, and {a.s} sat in front of the oven and watched.")
    else:
        t.tell("Then {m} put the {n} in the hot oven, and {a.s} waited and waited.")
        t.says(
            "a",
            "Is it ready now?" if not many else "Are they ready now?",
            "How long do we have to wait?",
        )
        t.says("m", "Not yet. Good things take time.", "Just a little longer.", mood="kind")
    t.paragraph()
    t.tell(
        "At last, the {n} {was} ready. The whole house smelled [sweet|so good].",
        "Soon a sweet smell filled the house. The {n} {was} done!",
    )
    if t.chance(0.5):
        t.friend("b")
        t.tell(
            "{a.s} took some to {a.his} friend {b.name}.",
            "{a.s} kept a big piece for {a.his} friend {b.name}."
            if not many
            else "{a.s} kept two of them for {a.his} friend {b.name}.",
        )
        t.known("b")
        t.says(
            "b",
            "This is so good! Thank you, {a.call}!",
            "Yum! Did you make this yourself?",
            mood="happy",
        )
    else:
        t.says("a", "Yum! This is the best {cake} ever!", "I want to bake every day!", mood="happy")
    t.end(
        "They ate until [they were full|nothing was left].",
        "{a.s} was very proud.",
        "It was the best thing {a.s} had ever tasted.",
        moral=t.pick(("patient", "share", "")),
    )


def storm(t: Stage) -> None:
    t.hero()
    t.elder("m")
    t.open(
        "{day} dark clouds came over the [hills|forest|sea]. {a.s} looked [up|out] and felt "
        "uneasy.",
        "One night, {a.s} woke up. There was a loud noise outside.",
        "One evening, the sky turned black, and the wind began to blow. {a.s} was at home.",
        sunny=False,
    )
    t.tell(
        "Boom! The thunder was so loud that the [walls|trees] shook.",
        "There was a bright flash, and then a loud boom.",
        "The rain came down hard, and the thunder went boom, boom, boom!",
    )
    t.tell(
        "{a.s} hid under a blanket and [shook with fear|did not dare to look out].",
        "{a.s} ran to {m} as fast as {a.he} could.",
        "{a.s} covered {a.his} ears.",
    )
    t.says("a", "I am scared!", "I don't like the thunder.", "When will it stop?", mood="scared")
    t.paragraph(0.5)
    t.says(
        "m",
        "It is only a storm. It cannot hurt us in here.",
        "Come here. We are safe and dry.",
        "I am with you. Let us wait together.",
        mood="kind",
    )
    way = t.pick(("song", "count", "story", "shelter"))
    if way == "song":
        t.tell(
            "{m.s} began to sing a soft song. After a while, {a} sang along.",
            "Then they sang songs together, louder than the rain.",
        )
    elif way == "count":
        t.says(
            "m", "When you see the light, start to count.", "Let us count until the thunder comes."
        )
        t.tell(
            "One, two, three, four, boom! {a.s} counted every time, and the numbers got bigger.",
            "They counted together. Each time, the thunder was farther away.",
        )
    elif way == "story":
        t.tell(
            "{m.s} told a funny story about a [cloud that was afraid of the sun|giant who "
            "played the drums in the sky|cow that wanted to fly]."
        )
        t.tell(
            "{a.s} laughed so much that {a.he} forgot the storm.",
            "{a.s} listened and slowly stopped shaking.",
        )
    else:
        t.stranger("s", "wet little bird", "wet little mouse", "wet little kitten")
        t.tell(
            "Then they heard a knock. At the door sat {s}, cold and afraid.",
            "Something moved at the window. It was {s}, all alone in the rain.",
        )
        t.says(
            "a", "You poor thing! Come in!", "Don't be scared. You can stay with us.", mood="kind"
        )
        t.tell(
            "{a} dried the little guest with a warm [towel|cloth] and forgot to be afraid.",
            "{a} took care of the little guest. Now {a.he} had no time to be scared.",
        )
    t.paragraph(0.6)
    t.tell(
        "[Soon|At last|After a while], the storm was over. The [sun|moon] came out.",
        "In the end, the rain stopped, and everything was quiet.",
    )
    t.maybe_says(
        0.6, "a", "Look, it is over!", "I was brave, wasn't I?", "It was not so bad.", mood="happy"
    )
    t.end(
        "{a.s} smiled and hugged {m}.",
        "{a.s} was not so afraid of storms anymore.",
        moral=t.pick(("brave", "")),
    )


def afraid_of_dark(t: Stage) -> None:
    t.hero()
    t.elder("m")
    t.open(
        "{a.s} was afraid of the dark. Every night, {a.he} [saw shapes|heard sounds] in the "
        "corner.",
        "There was only one thing that {a.s} did not like: the dark.",
        "{day} the sun went down, and it was time to sleep. But {a.s} was afraid of the dark.",
        sunny=False,
    )
    t.tell(
        "One night, {a.s} heard a strange sound. Scratch, scratch!",
        "One night, {a.s} saw a big shadow on the wall. It moved!",
        "One night, something went tap, tap, tap at the window.",
    )
    t.says(
        "a",
        "Help! There is a monster!",
        "{m.call}! Something is in here!",
        verb=t.pick(("cried", "called", "shouted")),
    )
    t.tell("{m.s} came with a [small lamp|candle|little light].", "{m.s} came at once.")
    t.says(
        "m",
        "Let us look together. Take my hand.",
        "What do you think it is? Let us find out.",
        "Don't worry. I am here.",
        mood="kind",
    )
    t.paragraph(0.5)
    t.tell(
        "They walked slowly to the [window|corner] and looked. It was only "
        "[a branch that moved in the wind|a coat on a hook|a little moth that wanted to come in|"
        "the cat from next door].",
        "{a.s} took a deep breath and looked. There was no monster. "
        "It was only [an old coat|a branch of the tree|a tiny mouse].",
    )
    t.says("a", "Oh! That is not scary at all.", "I was afraid of that? How silly!", mood="happy")
    if t.chance(0.6):
        t.says(
            "m",
            "The dark is just the world with its eyes closed.",
            "Look at the stars. We can only see them in the dark.",
            "Things look different at night, but they are the same.",
            mood="kind",
        )
        t.tell(
            "{a.s} looked up at the stars. They were beautiful.",
            "{a.s} thought about that for a long time.",
        )
    t.end(
        "After that, {a.s} was not afraid of the dark anymore.",
        "{a.s} closed {a.his} eyes and slept until morning.",
        "Then {m} gave {a} a kiss, and soon {a} was asleep.",
        moral="brave",
        night=False,
    )


def lie(t: Stage) -> None:
    t.hero()
    t.elder("m", role=t.pick(("mom", "grandma", "dad")))
    t.thing("o", ("vase", "cup", "plate", "window", "bowl", "pot", "lamp"))
    t.open(
        "{day} {a.s} was [running|jumping|playing with a ball] in the house. Crash! "
        "{a.s} broke {o.a}.",
        "There was {o.a} in the house. {day} {a.s} played too close to it and broke it.",
        "{day} {a.s} broke {o.a} by accident.",
    )
    t.tell(
        "{a.s} was afraid to tell the truth.",
        "{a.s} did not know what to do.",
        "{a.s} looked around. Nobody had seen it.",
    )
    t.says("m", "What happened to the {o.n}?", "Who broke my {o}?", "Do you know who did this?")
    way = t.pick(("wind", "know") if t.character("a").is_animal else ("wind", "cat", "know"))
    t.words["lie"] = {"wind": "It was the wind", "cat": "The cat did it", "know": "I do not know"}[
        way
    ]
    t.says("a", "{lie}.", "{lie}. It was not me.", mood="sad")
    t.tell(
        "It was a lie, and {a.s} felt a knot in {a.his} belly.",
        "But it was not true. {a.s} felt very bad.",
    )
    t.paragraph()
    if way == "cat":
        t.tell(
            "{m.s} put the cat outside. The cat looked sad at the window.",
            "So the cat got no milk that evening. The poor cat did not know why.",
        )
    else:
        t.tell(
            "All day long, {a} could not play and could not eat.", "At dinner, {a} was not hungry."
        )
    t.tell(
        "At last, {a.s} could not keep it in any longer.",
        "In the evening, {a.s} went to {m} with tears in {a.his} eyes.",
    )
    t.says(
        "a",
        "I broke the {o.n}. I am sorry that I lied.",
        "It was me. I told a lie, and I am sorry.",
        "I did it. Please don't be angry.",
        mood="sad",
    )
    t.says(
        "m",
        "Thank you for telling me the truth.",
        "I am glad that you told me. That was brave.",
        "A broken {o.n} is not so bad. A lie is worse.",
        mood="kind",
    )
    t.end(
        "{m} hugged {a}, and they cleaned up together.",
        "Then they [fixed the {o.n} with glue|picked up the pieces together].",
        "{a.s} felt light again, like a bird.",
        moral="honest",
    )


def sleepless(t: Stage) -> None:
    t.hero()
    t.elder("m")
    t.open(
        "It was late, but {a.s} could not fall asleep.",
        "One night, {a.s} lay in bed with open eyes. {a.s} was not tired at all.",
        sunny=False,
    )
    t.tell(
        "{a.s} turned to the left and then to the right.",
        "{a.s} counted sheep, but the sheep would not stay still.",
        "The bed was too warm, and the pillow was too flat.",
    )
    t.says("a", "{m.call}, I can't sleep.", "I am not sleepy.", verb="called")
    t.tell("{m.s} came and brought a cup of warm milk.", "{m.s} came and sat down on the bed.")
    t.says(
        "m",
        "Let us think of something nice.",
        "Shall I tell you a story?",
        "Close your eyes and listen to the wind.",
        mood="kind",
    )
    t.paragraph(0.5)
    t.tell(
        "{m} told a story about a [little boat|small cloud|sleepy bear] that went on a long "
        "journey.",
        "{m} sang a song about the sea and the stars.",
    )
    t.tell(
        "It went over the mountains, over the fields and over the sea, slower and slower.",
        "In it, everyone was going to bed: first the birds, then the flowers, then the sun.",
    )
    t.says("a", "And then what happened?", "Don't stop, please.", mood="kind")
    t.tell(
        "But {m} had closed {m.his} eyes. {m.s} was asleep!",
        "But then there was a quiet snore. {m} had fallen asleep in the chair!",
    )
    t.tell(
        "{a} laughed softly and put a blanket over {m}.",
        "{a} smiled and gave {m} half of the blanket.",
    )
    t.end(
        "Then {a.he} yawned, and a minute later, they were both asleep.",
        "And soon {a.he} was dreaming, too.",
        night=False,
    )
