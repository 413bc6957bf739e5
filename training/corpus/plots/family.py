"""Family and birthdays."""

from training.corpus.stage import Stage
from training.corpus.world import KEEPSAKES


def surprise_party(t: Stage) -> None:
    t.hero()
    t.friend()
    t.thing("o", KEEPSAKES)
    t.open(
        "{day} it was {a.p} birthday, but nobody said a word about it.",
        "It was {a.p} birthday. {a.s} woke up early and was very excited.",
    )
    t.known("b")
    kind = t.character("b")
    t.tell(
        f"{{a.s}} went to {{a.his}} friend {kind.name}. But {kind.name} was busy.",
        f"{{a.s}} met {{a.his}} friend {kind.name} on the way.",
    )
    t.says("b", "I cannot play today. I have a lot to do.", "Sorry, I have no time now.")
    t.tell("{a} walked away with {a.his} head down.", "{a} felt a little sad.")
    t.says("a", "Everybody forgot my birthday.", "Nobody remembers me.", mood="sad")
    t.paragraph()
    t.tell(
        "In the evening, {a} came home. [The house was dark|All was quiet]. {a.s} opened the door.",
        "When {a} came home, {a.he} saw a light under the door. {a.s} went in.",
    )
    t.tell(
        '"Surprise!" {b} jumped out, and all their friends were there.',
        '"Surprise!" Everyone was there: {b} and all of {a.p} friends.',
        '"Happy birthday!" everyone shouted.',
    )
    t.tell(
        "There was a big cake with candles, and there were balloons in every color.",
        "There were [games|songs], balloons and a big cake.",
    )
    t.says(
        "b",
        "We did not forget. We wanted to surprise you!",
        "I was busy because I baked the cake!",
        "Happy birthday, {a.call}! This is for you.",
        mood="happy",
    )
    t.tell("{b} gave {a} {o.a}. {a} loved it.", "{a} got {o.a} from {b}.")
    t.end(
        "{a} laughed and cried at the same time.",
        "They danced and sang until late.",
        "It was the best birthday ever.",
        moral="friend",
        pair=True,
    )


def loose_tooth(t: Stage) -> None:
    t.hero(animal=False)
    t.elder("m")
    t.open(
        "{a.s} had a loose tooth. It wiggled when {a.he} [ate|talked|laughed].",
        "{day} {a.s} felt something strange. One of {a.his} teeth was loose!",
    )
    t.says("a", "Will it hurt when it comes out?", "I don't want to lose my tooth!", mood="scared")
    t.says(
        "m",
        "It will not hurt. A new one will grow.",
        "Every child loses teeth. It means that you are growing.",
        mood="kind",
    )
    t.tell(
        "{a.s} pushed it with {a.his} tongue, but it did not come out.",
        "For three days, {a.s} only ate soup.",
    )
    t.paragraph(0.5)
    t.tell(
        "Then {a.s} bit into an apple. Plop! There was the tooth, [stuck in the apple|white and "
        "small].",
        "One morning, {a.s} laughed at a joke, and the tooth fell out.",
        "Then {a.s} sneezed, and the tooth flew across the room!",
    )
    t.says("a", "It did not hurt at all!", "Look! My tooth came out!", mood="happy")
    t.tell(
        "That night, {a.s} put the tooth under {a.his} pillow. In the morning, there was "
        "[a shiny coin|a little gift|a note with a star on it].",
        "{m} gave {a} a tiny box for the tooth.",
    )
    t.end(
        "{a.s} showed everyone the gap and smiled.",
        "{a.s} felt very grown up.",
        moral=t.pick(("brave", "")),
        night=False,
    )


def sick_friend(t: Stage) -> None:
    t.hero()
    t.friend()
    t.word(
        "gift",
        "a bowl of hot soup",
        "a jar of honey",
        "a bunch of flowers",
        "a funny picture",
        "a warm blanket",
        "a book with many pictures",
    )
    t.open_pair(
        "{day} {b} did not come out to play. {b.s} was sick in bed.",
        "{day} {a} waited for {b}, but {b} did not come.",
    )
    t.tell("{a} went to {b.p} home and [knocked on the door|looked in at the window].")
    t.says(
        "b",
        "I have a cold. I cannot play with you.",
        "I don't feel well. My head hurts.",
        mood="sad",
    )
    t.says(
        "a",
        "I will make you feel better!",
        "Poor {b.call}! I will be right back.",
        "Stay in bed and rest. I have an idea.",
        mood="kind",
    )
    t.tell(
        "{a} ran home and came back with {gift}.", "Soon {a} came back. {a.s} had {gift} for {b}."
    )
    t.tell(
        "Then {a} sat by the bed and [told a story|sang a song|told jokes].",
        "{a} stayed all afternoon and [read to {b}|kept {b} company].",
    )
    t.paragraph()
    t.says(
        "b",
        "You are a good friend, {a.call}.",
        "I feel better already.",
        "Thank you for coming to see me.",
        mood="happy",
    )
    t.tell("[A few days later|The next week|Two days later], {b} was well again.")
    if t.chance(0.5):
        t.tell(
            "But now {a} had a cold! So {b} came with {gift}.",
            "But then {a} began to sneeze. Now it was {b} who took care of {a}.",
        )
        t.says("b", "Now it is my turn to take care of you.", mood="happy")
    else:
        t.tell("{b} ran out to find {a}, and they played together again.")
    t.end(moral=t.pick(("friend", "kind")), pair=True)


def gift_for_mother(t: Stage) -> None:
    t.hero()
    t.elder("m", role=t.pick(("mom", "grandma")))
    t.word(
        "made",
        "a necklace of small shells",
        "a card with a red heart",
        "a crown of flowers",
        "a picture of the family",
        "a little clay cup",
        "a basket of twigs",
    )
    t.open(
        "{day} {a.s} wanted to give something special to {m}, because it was {m.his} birthday.",
        "{a.s} wanted to find a gift for {m}. {m.his} birthday was only one day away.",
    )
    t.known("m")
    t.says(
        "a",
        "What can I give to {m.call}? I have no money.",
        "I want to find the best gift in the world.",
        mood="thinking",
    )
    t.tell(
        "{a} looked [in the garden|by the river|under the trees], but {a.he} found nothing.",
        "{a} looked at the things in the shop. They cost too much.",
    )
    t.tell(
        "Then {a} had an idea. {a.s} would make something!",
        "Then {a} thought of something. A gift does not have to be bought!",
    )
    t.paragraph(0.5)
    t.tell(
        "{a} worked all [day|morning] in secret. {a.s} made {made}.",
        "{a} sat down and made {made}. It was hard work.",
    )
    t.maybe(
        0.5,
        "It was not perfect, and {a.he} was a little worried.",
        "The first one was not good, so {a.he} tried again.",
    )
    t.says(
        "a",
        "Happy birthday, {m.call}! I made this for you.",
        "This is for you. I made it myself.",
        mood="happy",
    )
    t.tell(
        "{m} looked at it for a long time. Then {m.he} had tears in {m.his} eyes.",
        "{m} smiled the biggest smile.",
    )
    t.says(
        "m",
        "It is the most beautiful gift I ever got.",
        "Why, {a.call}, this is wonderful!",
        "You made it with love. That is the best gift.",
        mood="happy",
    )
    t.end(
        "{m} kept it for many, many years.",
        "They ate cake and were happy together.",
        "{a} was so happy that {a.he} danced.",
        moral=t.pick(("kind", "")),
    )


def new_baby(t: Stage) -> None:
    t.hero()
    t.elder("m", role="mom")
    t.word("baby", "brother", "sister")
    t.words["sibling"] = "brother" if t.character("a").he == "he" else "sister"
    him = "him" if t.words["baby"] == "brother" else "her"
    he = "he" if him == "him" else "she"
    t.open(
        "{day} {a.s} got a baby {baby}. The baby was very small.",
        "There was a new baby at home. {a.s} was a big {sibling} now.",
    )
    t.tell(
        "But the baby cried all day and all night. {m} had no time to play.",
        "Everybody looked at the baby. Nobody looked at {a}.",
    )
    t.says(
        "a",
        "I don't like the baby.",
        "When will the baby go away?",
        "Nobody plays with me anymore.",
        mood="sad",
    )
    t.says(
        "m",
        "I love you just as much as before.",
        "You were a baby once, too. You cried even louder!",
        mood="kind",
    )
    t.paragraph(0.6)
    t.tell(
        "Then the baby began to cry again. {m} was [cooking|busy], so {a} went to look.",
        "One afternoon, {m} was very tired. The baby cried and cried.",
    )
    t.tell(
        f"{{a}} made a funny face. The baby stopped crying and looked. Then {he} laughed!",
        "{a} sang a little song. The baby looked at {a} and smiled.",
        f"{{a}} gave {him} a finger, and the tiny hand held it tight.",
    )
    t.says("a", "The baby likes me!", "{m.call}, look! I made the baby smile!", mood="happy")
    t.says("m", "You are very good at this.", "You are a wonderful helper.", mood="happy")
    t.end(
        "From that day on, {a} loved the little {baby} very much.",
        f"Every day, {{a}} sang to the baby and told {him} stories.",
        "Now {a} could not wait until they could play together.",
    )
