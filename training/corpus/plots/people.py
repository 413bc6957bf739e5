"""New friends, strangers and a mystery."""

from training.corpus.stage import Stage


def shy_friend(t: Stage) -> None:
    t.hero()
    t.friend()
    b = t.character("b")
    t.words["bkind"] = f"a new {b.kind}"
    t.open(
        "{day} {bkind} came to [the school|the park|the village]. {b.he} was very shy.",
        "{day} {a.s} saw {bkind}, sitting all alone.",
        "{day} {bkind} moved in next door. Nobody knew {b.him} yet.",
    )
    t.known("b")
    t.alias("n", "b", f"the new {b.kind}", f"the new {b.kind}")
    t.known("n")
    t.tell(
        "{n} looked at the ground and said nothing.",
        "The others were playing, but {n} only watched from far away.",
    )
    t.says(
        "a", "Hello! What is your name?", "Hi! I am {a.call}. Do you want to play?", mood="happy"
    )
    t.tell(
        "{n} did not answer and [hid behind a tree|looked away].", "{n} turned red and ran away."
    )
    t.paragraph(0.5)
    t.tell(
        "{a} did not give up. The next day, {a.he} [brought a cookie|brought a ball|made a "
        "funny drawing] and put it down near {n}.",
        "{a} thought about it. Then {a.he} sat down close by and began to [draw|build a "
        "little house|sing] and said nothing.",
    )
    t.tell(
        "After a while, {n} came a little closer. Then {b.he} smiled.",
        "Slowly, {n} came and sat down, too.",
    )
    t.says("n", "My name is {b.call}.", "I am {b.call}. Can I play with you?", mood="scared")
    t.says(
        "a",
        "I am so happy to meet you, {b.call}!",
        "Of course! Let us play together, {b.call}.",
        mood="happy",
    )
    t.tell(
        "They played [all afternoon|until it was dark], and {b} was not shy anymore.",
        "{b} knew many funny games. Soon they were laughing out loud.",
    )
    t.end(
        "Now {b} had a friend, and {a} had one, too.",
        "{a} was glad that {a.he} had been patient.",
        moral="friend",
        pair=True,
    )


def help_stranger(t: Stage) -> None:
    t.hero(animal=False)
    t.stranger("s", "old man", "old woman")
    way = t.pick(("bag", "apples", "lost", "well"))
    t.open(
        "{day} {a.s} was on {a.his} way to [school|the park|the shop] when {a.he} saw {s}.",
        "{day} {a.s} met {s} [on the road|at the corner|near the bridge].",
    )
    if way == "bag":
        t.tell(
            "{s} had a bag that was much too heavy.",
            "{s} was carrying two big bags and walked very slowly.",
        )
        t.says("a", "May I carry your bag, {s.call}?", "Can I help you, {s.call}?", mood="kind")
        t.tell(
            "{a} took the bag and carried it all the way up the hill.",
            "It was very heavy, but {a} carried it to the door.",
        )
    elif way == "apples":
        t.tell(
            "Suddenly, {s} dropped a basket, and the apples rolled away.",
            "{s} carried a basket. It broke, and red apples rolled all over the road.",
        )
        t.says("a", "Wait, I will help you!", "I will pick them up for you!", mood="kind")
        t.tell(
            "{a} ran after every apple and put it back in the basket.",
            "One by one, {a} picked up the apples, even the one in the mud.",
        )
    elif way == "lost":
        t.tell("{s} looked left and right and did not know the way.")
        t.says(
            "s", "Excuse me, where is the train station?", "Can you tell me where the market is?"
        )
        t.says("a", "It is not far. I will walk with you.", "I will show you the way.", mood="kind")
        t.tell("They walked together and talked about [birds|the weather|old times].")
    else:
        t.tell("{s} was looking for something in the grass.")
        t.says(
            "s",
            "I lost my glasses. I cannot see without them.",
            "I dropped my ring, and I cannot find it.",
            mood="sad",
        )
        t.tell(
            "{a} got down on {a.his} knees and looked carefully. Something was shining under a "
            "leaf!",
            "{a} looked for a long time and found it under the bench.",
        )
    t.paragraph()
    t.says(
        "s",
        "Thank you! You have a good heart.",
        "How kind you are! Thank you so much.",
        mood="happy",
    )
    if t.chance(0.6):
        t.tell(
            "{s} gave {a} [a shiny red apple|a little wooden bird|an old silver coin|a bag of "
            "sweets]."
        )
        t.says("a", "Thank you! But I was happy to help.", "That is so nice of you!", mood="happy")
    else:
        t.tell("{a} did not want anything for it. A smile was enough.")
    t.end(
        "{a} walked on and hummed a happy song.",
        "{a} told {a.his} family about it at dinner.",
        "After that, {a} often went to visit {s}.",
        moral="kind",
    )


def lost_purse(t: Stage) -> None:
    t.hero(animal=False)
    t.stranger("s", "old woman", "old man", "young woman")
    t.thing("o", ("purse", "bag", "wallet"), "red", "brown", "black", "small")
    t.word("wish", "a new bike", "a big box of paints", "a pair of skates", "a toy train")
    t.open(
        "{a.s} wanted {wish}, but it cost too much. {day} {a.he} found {o.a} on the street.",
        "{day} {a.s} saw something on the ground. It was {o.a}, full of money!",
    )
    t.tell(
        "{a.s} looked around. Nobody was there.",
        "{a.s} opened it. There was a lot of money inside.",
    )
    t.says("a", "Now I can buy {wish}!", "I could keep it. Nobody would know.", mood="thinking")
    t.tell(
        "But then {a.he} thought about the one who had lost it. Somebody must be very sad now.",
        "But it did not feel right. The money was not {a.p}.",
    )
    t.paragraph(0.6)
    t.tell(
        "{a} took the {o.n} to the police station. There stood {s}, looking very worried.",
        "{a} asked in every shop. In the last one was {s}, close to tears.",
    )
    t.says(
        "s",
        "That is my {o.n}! Where did you find it?",
        "My {o}! I was so afraid that it was gone!",
        mood="happy",
    )
    t.says(
        "a",
        "It was on the street. Here, it is yours.",
        "I found it, and I wanted to bring it back.",
        mood="kind",
    )
    t.says("s", "What an honest child you are!", "Thank you. You are very honest.", mood="happy")
    t.tell(
        "{s} wanted to give {a} a reward. {a} got {wish} after all!",
        "{s} gave {a} a big hug. {a} did not have {wish}, but {a.his} heart felt light.",
        "{s} gave {a} a coin. It was the first coin for {wish}.",
    )
    t.end(
        "{a} walked home with a light heart.",
        "It feels good to be honest.",
        "{a} was glad to have done the right thing.",
    )


def missing_cookies(t: Stage) -> None:
    t.hero()
    t.elder("m", role=t.pick(("mom", "grandma", "dad")))
    thief = t.pet("p", "dog", "cat") if not t.character("a").is_animal else t.friend("p")
    t.word("food", "cookies", "muffins", "pancakes", "sandwiches")
    t.open(
        "{day} {a.s} helped {m} to make a plate of {food}. A little later, the {food} were gone!",
        "{day} {a.s} came into the kitchen. There had been a plate of {food} on the table. {m} "
        "had made them. Now the plate was empty.",
    )
    t.known("m")
    t.says("m", "Who ate all the {food}?", "Did you eat the {food}, {a.call}?")
    t.says(
        "a",
        "It was not me! But I will find out who did it.",
        "No, I did not. Let me look for clues!",
    )
    t.tell(
        "{a} looked at the floor. There were crumbs, and they went out of the door.",
        "{a} saw a line of crumbs on the floor.",
        "{a} found small footprints next to the table.",
    )
    t.paragraph(0.6)
    t.tell(
        "{a} followed them through the hall, down the steps and into the garden.",
        "{a} followed them, step by step, very quietly.",
    )
    if thief.is_animal and not t.character("a").is_animal:
        t.tell(
            f"There, behind a bush, sat {thief.intro} with crumbs all over {thief.his} nose.",
            f"And there was {thief.intro}, fast asleep and with a very round belly.",
        )
        t.known("p")
        t.says("a", "So it was you, {p.call}!", "I found the thief! It was {p.call}!", mood="happy")
        t.tell(
            "{p} looked up with big, sorry eyes.",
            "{p} wagged {p.his} tail."
            if thief.kind == "dog"
            else "{p} said meow and licked a paw.",
        )
        t.tell("{m} had to laugh. Then they made new {food} and put them up high.")
    else:
        t.tell(f"There sat {thief.intro}, with crumbs all over {thief.his} face.")
        t.known("p")
        t.says("p", "I am sorry. I was so hungry.", "They smelled so good! I am sorry.", mood="sad")
        t.says(
            "a",
            "You should have asked. We would have shared.",
            "Next time, just ask us!",
            mood="kind",
        )
        t.tell("{p} helped {m} to make new {food}, and they all ate together.")
    t.end(
        "{a} was proud to have solved the mystery.", "And this time, everyone got some.", moral=""
    )


def star_wish(t: Stage) -> None:
    t.hero()
    t.friend()
    t.word("star", "a falling star", "a very bright star", "a little blue star")
    t.open(
        "One night, {a.s} could not sleep and looked at the sky. {a.s} saw {star}.",
        "One clear night, {a.s} sat outside and saw {star}.",
        sunny=False,
    )
    t.says(
        "a",
        "I wish I had a friend.",
        "Dear star, I wish for a friend to play with.",
        "Please, star, send me a friend.",
        mood="sad",
    )
    t.tell(
        "The star twinkled, as if it had heard.",
        "Nothing happened, and at last {a.he} fell asleep.",
    )
    t.paragraph()
    b = t.character("b")
    t.alias("n", "b", f"the {b.kind}", f"a {b.kind}")
    t.tell(
        "The next morning, there was a knock at the door. There stood {n}.",
        "In the morning, {a} went for a walk. On the path, {a.he} met {n}.",
    )
    t.known("b")
    t.says(
        "n",
        "Hello, I am {b.call}. I am new here.",
        "Good morning! My name is {b.call}. Do you want to play?",
        mood="happy",
    )
    t.tell("{a} could hardly believe it.", "{a.p} heart jumped for joy.")
    t.says(
        "a", "I am {a.call}. Come in, come in!", "Yes! I would love to play with you!", mood="happy"
    )
    t.tell(
        "They [climbed the hill|built a den|picked flowers] and told each other everything.",
        "They found out that they both liked [stories|songs|honey] and rainy days.",
    )
    t.end(
        "That night, {a} looked up and whispered thank you to the star.",
        "In the evening, they sat side by side and looked at the stars.",
        moral="friend",
        night=False,
    )
