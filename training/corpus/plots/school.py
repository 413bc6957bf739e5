"""Learning things, alone and together."""

from training.corpus.stage import Stage
from training.corpus.world import WATER_ANIMALS

CHILD_SKILLS = {
    "ride a bike": ("The bike shook, and {a.he} fell into the grass", "look straight ahead"),
    "swim": ("{a.s} got water in {a.his} nose and had to cough", "kick with both legs"),
    "whistle": ("Only air came out", "make a small round mouth"),
    "tie {a.his} shoes": ("The laces came apart at once", "make two loops, like rabbit ears"),
    "fly a kite": ("The kite fell right to the ground", "wait for the wind and then run"),
    "skate": ("{a.his} legs went left and right, and down {a.he} went", "bend your knees"),
    "read": ("The letters looked like little bugs", "take one letter at a time"),
    "play the drum": ("It was just a lot of noise", "count to four, again and again"),
    "juggle": ("All three balls fell on {a.his} head", "start with one ball"),
}
ANIMAL_SKILLS = {
    "jump over the stream": ("Splash! {a.s} fell right into the water", "run first and then jump"),
    "climb the tall tree": (
        "{a.s} slid down and landed on {a.his} tail",
        "take one branch at a time",
    ),
    "catch a ball": ("The ball hit {a.his} nose", "keep your eyes on the ball"),
    "swim": ("{a.s} went under and came up with a wet face", "move your legs slowly"),
    "sing": ("It sounded like an old door", "take a deep breath first"),
    "dance": ("{a.s} fell over {a.his} own feet", "listen to the music"),
    "build a house": ("The walls fell down at once", "put the big stones at the bottom"),
    "skate on the ice": ("{a.s} slid and sat down hard", "take small steps"),
}


def learning(t: Stage) -> None:
    a = t.hero(avoid=WATER_ANIMALS)
    skills = ANIMAL_SKILLS if a.is_animal else CHILD_SKILLS
    skill = t.pick(tuple(skills))
    t.words["skill"] = skill
    t.words["fail"], t.words["hint"] = skills[skill]
    t.elder("m")
    t.open(
        "{a.s} wanted to learn to {skill}. {day} {a.he} tried it for the first time.",
        "All of {a.p} friends could {skill}, but {a.s} could not."
        if "{" not in skill
        else "{a.s} could not {skill} yet.",
        "{a.s} had a dream. {a.s} wanted to {skill}.",
    )
    t.tell("{fail}.", "But it was not easy. {fail}.")
    t.says("a", "I will never learn it!", "This is too hard!", "I can't do it.", mood="sad")
    t.maybe(0.5, "{a.s} sat down and wanted to give up.", "{a.s} was close to tears.")
    t.paragraph(0.6)
    t.says(
        "m",
        "Nobody can do it the first time.",
        "I fell many times, too. Try again.",
        "You can't do it yet. But you will.",
        mood="kind",
    )
    t.says("m", "You have to {hint}.", "Here is a secret: {hint}.", mood="kind")
    t.tell(
        "So {a} tried again. And again. And again.",
        "{a} tried once more. It was a little better.",
        "{a} practiced every day, in the morning and in the evening.",
    )
    t.tell(
        "[After a week|One day|At last], {a.he} did it! {a.s} could really {skill}!",
        "And then, all of a sudden, it worked!",
    )
    t.says(
        "a",
        "Look at me! I can do it!",
        "I did it! I did it!",
        "{m.call}, did you see that?",
        mood="happy",
    )
    t.says("m", "I knew you could do it!", "I am so proud of you!", mood="happy")
    t.end(
        "{a} [laughed|smiled] and did it ten more times.",
        f"{{a.s}} was the happiest {a.kind} in the world.",
        moral="try",
    )


def first_day(t: Stage) -> None:
    t.hero()
    t.elder("m", role=t.pick(("mom", "dad", "grandma")))
    t.friend("b")
    t.open(
        "It was {a.p} first day at school. {a.s} did not want to go.",
        "{a.s} was old enough to go to school. But on the first day, {a.he} felt sick with worry.",
        sunny=False,
    )
    t.says(
        "a",
        "What if nobody likes me?",
        "I want to stay at home with you.",
        "I don't know anybody there.",
        mood="scared",
    )
    t.says(
        "m",
        "You will find a friend. I am sure of it.",
        "It is normal to be a little scared.",
        "Be yourself, and be kind.",
        mood="kind",
    )
    t.tell(
        "{m} gave {a} a kiss and waved goodbye. {a} went in, very slowly.",
        "At the door, {a} took a deep breath and went in.",
    )
    t.paragraph(0.6)
    b = t.character("b")
    same = b.kind == t.character("a").kind
    t.alias(
        "n",
        "b",
        f"the {'other ' if same else ''}{b.kind}",
        f"another {b.kind}" if same else f"a {b.kind}",
    )
    t.tell(
        "In the corner, {n} was crying quietly.", "{n} sat alone at a table and looked scared, too."
    )
    t.tell("{a} forgot {a.his} own fear and went over.")
    t.says(
        "a",
        "Are you scared, too? I am {a.call}.",
        "Hello, I am {a.call}. May I sit with you?",
        mood="kind",
    )
    t.known("b")
    t.says(
        "n",
        "Yes, please. My name is {b.call}.",
        "I am {b.call}. I am glad that you came.",
        mood="happy",
    )
    t.tell(
        "They painted a big picture and [learned a new song|ate their lunch together].",
        "They sat side by side and listened to a story.",
    )
    t.tell("When {m} came to pick {a} up, {a} did not want to leave.")
    t.says("a", "Can I come back tomorrow?", "School is fun! I have a friend!", mood="happy")
    t.end(moral=t.pick(("brave", "friend")), pair=True)


def concert(t: Stage) -> None:
    a = t.hero()
    t.friend()
    t.word("tool", "drum", "flute", "trumpet", "guitar", "bell")
    t.open(
        "Everyone in the village was getting ready for the big concert. {a.s} wanted to sing, "
        "but {a.he} was too shy.",
        "{day} there was going to be a concert. {a.s} had a nice "
        "voice, but {a.he} was afraid to sing in front of others.",
    )
    t.known("b")
    name = t.character("b").name
    t.tell(f"{{a.p}} friend {name} played the {{tool}}.", f"{{a.p}} friend {name} had a {{tool}}.")
    t.says(
        "b",
        "Sing with me! I will play, and you will sing.",
        "We can do it together.",
        "You have such a nice voice, {a.call}.",
        mood="kind",
    )
    t.says("a", "But what if I forget the words?", "Everybody will look at me!", mood="scared")
    t.says(
        "b", "Then just look at me.", "Close your eyes and think that we are alone.", mood="kind"
    )
    t.tell("They practiced every day [under the old tree|by the river|in the barn].")
    t.paragraph(0.6)
    t.tell(
        "Then the evening came. {a.p} knees were shaking.",
        "On the big evening, the place was full. {a} wanted to run away.",
    )
    t.tell(
        "{b} began to play the {tool}. {a} closed {a.his} eyes and began to sing, first "
        "quietly, then louder.",
        "{b} nodded and played the first notes. {a} opened {a.his} "
        "mouth, and the song came out, clear and sweet.",
    )
    t.tell("When the song was over, it was quiet. Then everybody clapped and cheered!")
    t.says("b", "You did it, {a.call}!", "They loved your song!", mood="happy")
    t.end(
        f"{{a}} was the proudest {a.kind} in the village.",
        "{a} smiled and took a deep bow.",
        moral="brave",
        pair=True,
    )


def painting(t: Stage) -> None:
    t.hero(animal=False)
    t.friend()
    t.word("what", "a horse", "a house", "the sea", "a tree", "a big ship", "a cat")
    t.open_pair(
        "{day} there was a painting contest at school. {a} and {b} both wanted to win.",
        "{day} {a} and {b} sat side by side and painted. {a} wanted to paint {what}.",
    )
    t.known("a", "b")
    t.tell("{a} worked very hard on a picture of {what}.", "{a} painted {what}, with many colors.")
    t.tell(
        "Then {b} reached for the brush and knocked over the water. It ran all over {a.p} picture!",
        "But when {b} stood up, {b.his} cup of paint fell on {a.p} picture. Now "
        "there was a big blue spot on it.",
    )
    t.says(
        "b", "Oh no! I am so sorry, {a.call}!", "I ruined your picture. I am so sorry.", mood="sad"
    )
    t.tell("{a} looked at the picture and almost cried.", "At first, {a} could not say a word.")
    t.paragraph(0.6)
    t.tell(
        "But then {a} saw something in the wet colors. It looked like [a cloud|a mountain|a "
        "dragon]!",
        "{a} turned the paper around and looked at it again.",
    )
    t.says(
        "a",
        "Wait! I can make something new out of it.",
        "It is not ruined. Look, it is even better!",
        mood="thinking",
    )
    t.tell(
        "{a} took the brush and painted on, and {b} helped.",
        "With a few lines, {a} made it into something that nobody had ever seen before.",
    )
    t.tell(
        "The teacher looked at it for a long time.",
        "Soon everyone stood around the table and looked.",
    )
    t.tell(
        '"This is the most unusual picture of all," the teacher said.',
        '"How wonderful!" said the teacher. "How did you do that?"',
    )
    t.end(
        "{a} and {b} looked at each other and laughed.",
        "They hung it on the wall for everyone to see.",
        pair=True,
    )


def library_book(t: Stage) -> None:
    t.hero(animal=False)
    t.friend()
    t.word("topic", "pirates", "dragons", "the stars", "animals", "a flying ship", "the deep sea")
    t.open(
        "{day} {a.s} found an old book about {topic}. The last page was missing!",
        "{a.s} was reading a book about {topic}. But when {a.he} came to the end, the last page "
        "was not there.",
    )
    t.says("a", "Now I will never know how it ends!", "Where is the last page?", mood="sad")
    t.known("b")
    name = t.character("b").name
    t.tell(
        f"{{a.s}} showed the book to {{a.his}} friend {name}.",
        f"{{a.s}} ran to {{a.his}} friend {name}.",
    )
    t.says(
        "b", "Then we must write the end ourselves!", "Let us think of a good end.", mood="thinking"
    )
    t.tell(
        "They sat down under the window and began to think.",
        "They got paper and pens and sat down.",
    )
    t.says(
        "a",
        "Maybe they find an island made of cake.",
        "Maybe it was all a dream.",
        "Maybe they all go home and have a big dinner.",
        mood="thinking",
    )
    t.says(
        "b",
        "And then they meet a talking whale!",
        "No, there must be a storm first!",
        "And then they live happily ever after!",
        mood="happy",
    )
    t.paragraph(0.6)
    t.tell(
        "{a} wrote the words, and {b} drew the pictures.",
        "They wrote one page, and then another, and then ten more.",
    )
    t.tell(
        "In the evening, they read it out loud, and [everyone in the family|all their friends] "
        "listened.",
        "When it was ready, they put it into the book with some glue.",
    )
    t.says("b", "Our end is better than any other!", "We should write a whole book!", mood="happy")
    t.end(
        "And that is just what they did.",
        "{a} was almost glad that the last page had been lost.",
        pair=True,
    )
