"""Under the open sky: gardens, picnics, woods, the moon."""

from training.corpus.stage import Stage


def garden(t: Stage) -> None:
    t.hero()
    t.elder("m", role=t.pick(("grandma", "grandpa", "mom", "dad")))
    t.word(
        "plant",
        "sunflower",
        "pumpkin",
        "tomato plant",
        "rose",
        "bean plant",
        "apple tree",
        "strawberry plant",
    )
    t.word("an", "an" if t.words["plant"][0] == "a" else "a")
    t.open(
        "{day} {a.s} got a tiny seed from {m}.",
        "{day} {a.s} found a small seed [on the ground|in a little bag]. {a.s} showed it to {m}.",
        "{a.s} wanted to have a garden. {day} {a.he} got one little seed from {m}.",
    )
    t.says(
        "m",
        "Put it in the ground and give it water.",
        "If you take care of it, it will grow.",
        mood="kind",
    )
    t.tell(
        "{a.s} dug a hole, put the seed in and covered it with earth.",
        "{a.s} planted the seed in a sunny spot.",
    )
    t.tell(
        "Every day, {a} gave it water. But nothing happened.",
        "{a} watered it and waited. One day went by, then two, then three.",
    )
    t.says(
        "a", "Why does it not grow?", "I think it is broken.", "Nothing is happening!", mood="sad"
    )
    t.says(
        "m",
        "You must be patient. It is growing under the ground.",
        "Give it time. Seeds are slow.",
        mood="kind",
    )
    t.paragraph()
    t.tell(
        "{a} did not give up. [One morning|Then, one day], there was a tiny green leaf!",
        "Then it rained for two days. When the sun came back, {a} saw something green.",
    )
    t.says("a", "It is alive! It is growing!", "Look, {m.call}! A leaf!", mood="happy")
    t.maybe(
        0.5,
        "A hungry [snail|bug] wanted to eat it, but {a} carried it away to the grass.",
        "One night it was cold, so {a} covered the little plant with a cup.",
    )
    t.tell(
        "It grew and grew. By the end of summer, it was a [big|beautiful|fine] {plant}.",
        "Week by week, it got taller, until it was a real {plant}.",
    )
    t.end(
        "{a} was very proud of {a.his} {plant}.",
        "Everyone came to see {a.p} {plant}.",
        "{a.s} saved some new seeds for the next year.",
        moral="patient",
        night=False,
    )


def picnic(t: Stage) -> None:
    t.hero()
    t.friend()
    t.word(
        "food",
        "bread and cheese",
        "apples and cookies",
        "sandwiches and grapes",
        "cake and lemonade",
        "berries and nuts",
    )
    t.word("pl", "the meadow", "the lake", "the big hill", "the park", "the river")
    t.open_pair(
        "{day} {a} and {b} went to {pl} for a picnic. They had a basket with {food}.",
        "{day} {a} and {b} wanted to have a picnic. They packed {food} and walked to {pl}.",
    )
    t.tell(
        "They put a [red|blue|big] blanket on the grass.", "It was a good place, green and quiet."
    )
    way = t.pick(("ants", "rain", "guest"))
    if way == "ants":
        t.tell(
            "But then the ants came. First one, then ten, then a hundred!",
            "They went to pick flowers. When they came back, ants were all over the food!",
        )
        t.says("b", "Oh no! They are eating our lunch!", "Go away, ants!", mood="angry")
        t.says(
            "a",
            "Let us give them a small part. Then they will leave the rest to us.",
            "They are just hungry, like us.",
            mood="thinking",
        )
        t.tell(
            "They put some crumbs far away under a tree. Soon all the ants went there.",
            "{a} made a little line of crumbs, and the ants followed it away.",
        )
    elif way == "rain":
        t.tell(
            "Just as they began to eat, it started to rain.",
            "Then a dark cloud came, and big drops fell on their heads.",
        )
        t.says("b", "Our picnic is ruined!", "What shall we do now?", mood="sad")
        t.says(
            "a",
            "Come! Let us go under the big tree.",
            "I know! We can make a tent with the blanket.",
            mood="happy",
        )
        t.tell(
            "They sat close together, ate and listened to the rain. It was very cozy.",
            "There they stayed dry and told each other funny stories.",
        )
        t.tell("When the rain stopped, a big rainbow stood over {pl}.")
    else:
        t.stranger("s", "little bird", "squirrel", "little hen", "small mouse")
        t.tell(
            "Then {s} came and looked at the food with big eyes.",
            "Then they saw {s}. {s.s} looked very hungry.",
        )
        t.says("a", "Would you like to eat with us?", "Come and sit with us!", mood="kind")
        t.says(
            "s", "Oh yes, please! I am so hungry.", "Thank you! You are very kind.", mood="happy"
        )
        t.tell(
            "They gave {s} a part of everything. Then {s} showed them [where the best berries "
            "grow|a secret path to a little waterfall|a field full of flowers]."
        )
    t.paragraph(0.5)
    t.maybe_says(
        0.6, "b", "This was the best picnic ever!", "We should do this every week.", mood="happy"
    )
    t.end(
        "When the basket was empty, they walked home slowly.",
        "They stayed at {pl} until evening.",
        moral="share" if way != "rain" else "",
        pair=True,
    )


def lost_in_woods(t: Stage) -> None:
    t.hero()
    t.elder("m", role=t.pick(("mom", "dad")))
    t.open(
        "{day} {a.s} went into the woods with {m} to [pick berries|look for mushrooms|pick "
        "flowers].",
        "{day} {a.s} saw a pretty butterfly and followed it into the woods.",
    )
    t.tell(
        "{a.s} went deeper and deeper and did not look back.",
        "{a.s} ran from one tree to the next and forgot the time.",
    )
    t.tell(
        "Then {a} stopped and looked around. All the trees looked the same!",
        "When {a} looked up, {a.he} did not know where {a.he} was.",
    )
    t.says(
        "a", "Oh no! I am lost!", "Where is the path?", "Hello? Can anybody hear me?", mood="scared"
    )
    t.paragraph(0.6)
    way = t.pick(("stay", "animal", "stream"))
    if way == "stay":
        t.tell(
            "{a} remembered what {m} always told {a.him}: if you are lost, stay where you are.",
            "{a} wanted to run, but {a.he} knew it was better to stay in one place.",
        )
        t.tell(
            "So {a.he} sat down on a log and sang a song, as loud as {a.he} could.",
            "So {a.he} sat down under a tree and called every few minutes.",
        )
        t.tell("Soon {m} heard {a.him} and came running.")
    elif way == "animal":
        t.stranger("s", "old owl", "deer", "wise old badger", "little bird")
        t.tell(
            "{s} looked down from a branch."
            if "owl" in t.character("s").kind or "bird" in t.character("s").kind
            else "{s} came out from behind the bushes."
        )
        t.says("s", "Why are you crying?", "Are you lost?", mood="kind")
        t.says("a", "I cannot find my way home.", "Yes. Can you help me?", mood="sad")
        t.says(
            "s", "Follow me. I know the way.", "I know every tree here. Come with me.", mood="kind"
        )
        t.tell("{a} followed {s} to the edge of the woods. There was {m}!")
    else:
        t.tell("Then {a} heard the sound of water. It was the stream that ran past {a.p} home!")
        t.tell("{a} walked along the stream, step by step, until {a.he} saw {m} in the distance.")
    t.says("m", "There you are! I was so worried!", "I am so glad that you are safe!", verb="cried")
    t.tell("They hugged for a long time.", "{a} ran into {m.p} arms.")
    t.end(
        "After that, {a} never ran off alone again.",
        "They walked home together, and {a} held on tight.",
        moral=t.pick(("careful", "listen")),
    )


def moon(t: Stage) -> None:
    t.hero()
    t.elder("m")
    t.open(
        "One night, {a.s} looked up and saw the big, round moon. It was so beautiful that "
        "{a.he} wanted to have it.",
        "Every night, {a.s} looked at the moon. {a.s} wanted to touch it.",
        sunny=False,
    )
    t.says("a", "I want to bring the moon home.", "How can I get up to the moon?", mood="thinking")
    t.tell(
        "So {a.he} climbed the highest hill and stretched out {a.his} arms. But the moon was "
        "still far away.",
        "First {a.he} stood on a chair, then on a wall, then on a hill. The "
        "moon was always too high.",
    )
    t.tell(
        "{a.s} jumped as high as {a.he} could, but it was no use.",
        "Then {a.he} saw the moon in the pond! But when {a.he} touched it, it broke into a "
        "thousand pieces.",
    )
    t.says("a", "I will never reach it.", "It is too far away.", mood="sad")
    t.paragraph(0.6)
    t.tell("{m.s} came and sat down next to {a}.", "When {m} heard this, {m.he} smiled.")
    t.says(
        "m",
        "The moon belongs to everyone.",
        "If you took the moon, the night would be dark.",
        "You do not have to hold a thing to love it.",
        mood="kind",
    )
    t.tell(
        "{a} thought of all the [owls|moths|foxes] that needed the light.",
        "{a} thought about it and nodded.",
    )
    t.says(
        "a",
        "Then it should stay up there.",
        "Good night, moon. You can stay in the sky.",
        mood="happy",
    )
    t.end(
        "They sat there for a long time and looked up together.",
        "From then on, {a.s} said good night to the moon every evening.",
        "And it seemed to {a} that the moon was smiling.",
        night=False,
    )
