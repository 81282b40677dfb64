"""Short English chats: greetings, small facts, definitions, opposites, lists, spelling; brief and detailed answers."""

from .about import style_of
from .common import asked, assistant, held, mode_of, styled, vary

OPPOSITE = dict(
    p.split("/")
    for p in [
        "big/small",
        "hot/cold",
        "up/down",
        "left/right",
        "day/night",
        "good/bad",
        "fast/slow",
        "old/young",
        "rich/poor",
        "happy/sad",
        "light/dark",
        "hard/soft",
        "wet/dry",
        "open/closed",
        "full/empty",
        "high/low",
        "long/short",
        "early/late",
        "loud/quiet",
        "strong/weak",
        "thick/thin",
        "clean/dirty",
        "near/far",
        "true/false",
        "black/white",
        "wide/narrow",
        "sweet/bitter",
        "deep/shallow",
        "easy/difficult",
        "cheap/expensive",
        "first/last",
        "inside/outside",
        "summer/winter",
        "love/hate",
        "win/lose",
        "begin/end",
        "buy/sell",
        "push/pull",
        "north/south",
        "east/west",
        "man/woman",
    ]
)
OPPOSITE |= {b: a for a, b in OPPOSITE.items()}
CAPITAL = dict(
    p.split("/")
    for p in [
        "France/Paris",
        "Italy/Rome",
        "Spain/Madrid",
        "Germany/Berlin",
        "England/London",
        "Portugal/Lisbon",
        "Greece/Athens",
        "Austria/Vienna",
        "Poland/Warsaw",
        "Norway/Oslo",
        "Sweden/Stockholm",
        "Finland/Helsinki",
        "Denmark/Copenhagen",
        "Ireland/Dublin",
        "Belgium/Brussels",
        "Hungary/Budapest",
        "Russia/Moscow",
        "Turkey/Ankara",
        "Egypt/Cairo",
        "Kenya/Nairobi",
        "Japan/Tokyo",
        "China/Beijing",
        "India/Delhi",
        "Canada/Ottawa",
        "Peru/Lima",
        "Chile/Santiago",
        "Cuba/Havana",
        "Australia/Canberra",
        "Iceland/Reykjavik",
        "Iran/Tehran",
        "Iraq/Baghdad",
        "Thailand/Bangkok",
        "Vietnam/Hanoi",
        "Brazil/Brasilia",
    ]
)
COLOUR = dict(
    p.split("/")
    for p in "the sky/blue grass/green snow/white a banana/yellow coal/black blood/red an orange/orange a lemon/yellow "
    "a strawberry/red milk/white the sea/blue a leaf/green the sun/yellow a tomato/red chocolate/brown an elephant/grey "
    "a carrot/orange a cucumber/green salt/white gold/yellow wood/brown a pig/pink a raven/black a plum/purple".replace(
        " a", "|a"
    )
    .replace(" the", "|the")
    .replace(" grass", "|grass")
    .replace(" snow", "|snow")
    .replace(" coal", "|coal")
    .replace(" blood", "|blood")
    .replace(" milk", "|milk")
    .replace(" chocolate", "|chocolate")
    .replace(" salt", "|salt")
    .replace(" gold", "|gold")
    .replace(" wood", "|wood")
    .split("|")
)
SOUND = dict(
    p.split("/")
    for p in [
        "cat/meow",
        "dog/woof",
        "cow/moo",
        "sheep/baa",
        "duck/quack",
        "pig/oink",
        "frog/croak",
        "lion/roar",
        "horse/neigh",
        "bee/buzz",
        "owl/hoot",
        "snake/hiss",
    ]
)
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]
LISTS = {
    "fruits": "apples, pears and bananas", "colours": "red, green and blue", "animals": "a dog, a cat and a horse",
    "vegetables": "carrots, peas and onions", "planets": "Mercury, Venus and Earth", "metals": "iron, copper and gold",
    "countries": "France, Italy and Spain", "seasons": "spring, summer and autumn", "drinks": "water, tea and coffee",
    "sports": "football, tennis and swimming", "birds": "a robin, an owl and a duck", "trees": "an oak, a pine and a birch",
    "tools": "a hammer, a saw and a drill", "oceans": "the Atlantic, the Pacific and the Indian Ocean",
    "instruments": "a piano, a guitar and a violin", "numbers": "one, two and three", "shapes": "a circle, a square and a triangle",
    "languages": "English, French and Chinese", "insects": "an ant, a bee and a fly", "flowers": "a rose, a tulip and a lily",
}  # fmt: skip
DEFINE = {  # word: (kind, feature, more)
    "a cat": ("a small animal", "It lives with people and catches mice.", "It has soft fur and sharp claws."),
    "a dog": ("an animal", "It lives with people and guards the house.", "It can learn many commands."),
    "a horse": ("a large animal", "People ride on it.", "It eats grass and runs fast."),
    "a tree": ("a large plant", "It has a trunk, branches and leaves.", "Many trees live for hundreds of years."),
    "a river": ("a stream of water", "It flows to the sea.", "It begins at a spring, often in the mountains."),
    "a mountain": ("a very high hill", "Its top is often covered with snow.", "The highest one is Mount Everest."),
    "an island": ("land with water all around", "You reach it by boat or by plane.", "Some islands are very small."),
    "the sun": ("a star", "It gives us light and heat.", "The Earth moves around it once a year."),
    "the moon": ("a body that moves around the Earth", "It shines at night.", "One round takes about a month."),
    "a computer": ("a machine that works with data", "It follows the steps of a program.", "It has a processor and memory."),
    "a program": ("a list of steps for a computer", "It is written in a language such as Python.", "The computer follows it step by step."),
    "a token": ("a small piece of text", "A language model reads and writes tokens.", "A token can be a word or a part of a word."),
    "a language model": ("a program that writes text", "It predicts the next token.", "It learns from many examples."),
    "Python": ("a programming language", "It is easy to read.", "Many people use it for science and for the web."),
    "a book": ("many pages of text", "You read it to learn or for fun.", "Books are kept in a library."),
    "a school": ("a place where children learn", "Teachers work there.", "Most children go there for many years."),
    "water": ("a clear liquid", "All living things need it.", "It freezes at zero degrees."),
    "ice": ("frozen water", "It is cold and hard.", "It melts when it gets warm."),
    "fire": ("burning material", "It gives heat and light.", "It needs air and something to burn."),
    "rain": ("water that falls from the clouds", "Plants need it.", "When it is very cold, it falls as snow."),
    "a clock": ("a device that shows the time", "It has two hands or some digits.", "It counts hours and minutes."),
    "a map": ("a drawing of the land", "It helps you to find your way.", "It shows roads, rivers and towns."),
    "a doctor": ("a person who helps sick people", "A doctor often works in a hospital.", "It takes many years to become one."),
    "a teacher": ("a person who helps others to learn", "A teacher works in a school.", "Good teachers are patient."),
    "music": ("sound made to please", "People sing or play instruments.", "It can make us happy or sad."),
    "gravity": ("the force that pulls things down", "It keeps us on the ground.", "It also keeps the moon near the Earth."),
    "a car": ("a machine with four wheels", "It takes people from one place to another.", "It has a motor."),
    "a bicycle": ("a vehicle with two wheels", "You move it with your feet.", "It needs no fuel."),
    "bread": ("a food made of flour", "It is baked in an oven.", "People have eaten it for thousands of years."),
    "a star": ("a huge ball of hot gas", "It shines by itself.", "You see many of them at night."),
}  # fmt: skip
WORDS = [
    "cat",
    "dog",
    "sun",
    "moon",
    "tree",
    "book",
    "fish",
    "bird",
    "star",
    "rain",
    "snow",
    "wind",
    "fire",
    "lamp",
    "desk",
    "door",
    "milk",
    "cake",
    "road",
    "ship",
    "blue",
    "green",
    "red",
    "house",
    "apple",
    "bread",
    "chair",
    "table",
    "water",
    "plant",
    "cloud",
    "stone",
    "river",
    "horse",
    "mouse",
    "tiger",
    "music",
    "paper",
    "pencil",
    "window",
    "garden",
    "winter",
    "summer",
    "orange",
    "yellow",
    "purple",
    "happy",
    "small",
    "large",
    "quick",
    "brown",
    "train",
    "plane",
    "money",
    "letter",
    "number",
    "little",
    "friend",
    "family",
    "school",
]
GREET = {
    "greet": (["Hi", "Hello", "Hi!", "Hello!", "Hey", "Hey there", "Good morning", "Good evening", "Good morning!", "hi", "hello",
               "Hi there!", "Good day!", "Hello there"], "Hello!", "Hello! How can I help you?"),
    "how": (["How are you?", "How are you today?", "How do you do?", "How is it going?", "How are things?", "Are you well?"],
            "I am fine.", "I am fine, thank you. How can I help you?"),
    "thanks": (["Thanks!", "Thank you!", "Thank you very much.", "Thanks a lot.", "thanks", "Great, thank you.", "Thanks for your help!"],
               "You are welcome!", "You are welcome! Ask me anything else if you like."),
    "bye": (["Bye!", "Goodbye.", "See you later.", "Good night.", "bye", "See you tomorrow!", "I have to go."], "Goodbye!",
            "Goodbye! Have a nice day."),
    "nice": (["You are great!", "Well done!", "Good job.", "Nice!", "You are clever."], "Thank you!", "Thank you! That is kind of you."),
    "sorry": (["You are wrong.", "That is wrong.", "This is not correct."], "I am sorry.",
              "I am sorry. I am only a small demo model and make mistakes."),
    "joke": (["Tell me a joke.", "Do you know a joke?", "Make me laugh.", "A joke please."],
             "Why did the token cross the window? To get to the other side.",
             "Here is one: why did the token cross the window? To get to the other side."),
}  # fmt: skip
MORE = " I am a small model, so please check this yourself."
CLOSING = {
    "greet": " I am ds4-tiny, a small model, and I like to talk. You can ask me for sums, for facts, or about ds4.",
    "define": " This is a short explanation in simple words. There is much more to know, and a good book will tell you more.",
    "list": " If you need more of them, look into a book or ask a bigger model.",
    "number": " You can check this with pencil and paper. If you have more numbers for me, I am happy to go on.",
    "word": " This is a word of the English language, and many people use it every day. If you have more words for me, I am happy to go on.",
    "fact": " This is a simple fact that many people learn at school. If you want to know more, please ask me another question.",
}


def spelled(w):
    return "-".join(w)


def one(rng, style):
    """(question, reasoning, answer, words that the answer contains)"""
    kind, q, why, answer, words = of_kind(rng, style)
    if style == "detail":
        answer += CLOSING[GROUP.get(kind, "fact")]
    return q, why, answer, words


GROUP = dict(
    greet="greet",
    define="define",
    list="list",
    count="number",
    bigger="number",
    opposite="word",
    spell="word",
    reverse="word",
)


def question(rng):
    return one(rng, "plain")[0]


def of_kind(rng, style):
    kind = rng.choices(
        [
            "greet",
            "opposite",
            "capital",
            "colour",
            "sound",
            "day",
            "month",
            "list",
            "define",
            "spell",
            "reverse",
            "count",
            "bigger",
        ],
        [12, 9, 9, 7, 4, 6, 6, 8, 16, 7, 5, 4, 4],
    )[0]
    brief, detail = style == "brief", style == "detail"
    if kind == "greet":
        name = rng.choice(list(GREET))
        qs, short, long = GREET[name]
        return (
            kind,
            rng.choice(qs),
            "The user is just talking.",
            short if brief else long,
            [short.rstrip("!.")],
        )
    if kind == "opposite":
        w = rng.choice(list(OPPOSITE))
        q = rng.choice(["What is the opposite of {}?", "Opposite of {}?", "What is the contrary of {}?", "Give me the opposite of {}.",
                        "Which word is the opposite of {}?", "Tell me the opposite of {}."]).format(w)  # fmt: skip
        r = OPPOSITE[w]
        a = r if brief else f"The opposite of {w} is {r}."
        if detail:
            a += f" For example, if a thing is not {w}, you can say that it is {r}. The two words are a pair of opposites."
        return kind, q, f"The opposite of {w} is {r}.", a, [r]
    if kind == "capital":
        w = rng.choice(list(CAPITAL))
        q = rng.choice(["What is the capital of {}?", "Capital of {}?", "Which city is the capital of {}?", "Name the capital of {}.",
                        "Tell me the capital of {}.", "What is {}'s capital?"]).format(w)  # fmt: skip
        r = CAPITAL[w]
        a = r if brief else f"The capital of {w} is {r}."
        if detail:
            a += f" {r} is a well known city of {w}. The government of the country is there, and many people visit it."
        return kind, q, f"{w}: the capital is {r}.", a, [r]
    if kind == "colour":
        w = rng.choice(list(COLOUR))
        q = rng.choice(
            ["What colour is {}?", "What color is {}?", "Which colour has {}?", "Tell me the colour of {}."]
        ).format(w)
        r = COLOUR[w]
        big = w[0].upper() + w[1:]
        a = r if brief else f"{big} is {r}."
        if detail:
            a += f" When you look at it in the light of day, you see that the colour is {r}. In the dark it may look different."
        return kind, q, f"The colour is {r}.", a, [r]
    if kind == "sound":
        w = rng.choice(list(SOUND))
        q = rng.choice(
            ["What does a {} say?", "Which sound does a {} make?", "What sound does a {} make?"]
        ).format(w)
        r = SOUND[w]
        a = r if brief else f"A {w} says {r}."
        if detail:
            a += f" You hear this sound when the {w} is awake. Children like to say {r} when they play."
        return kind, q, f"It says {r}.", a, [r]
    if kind in ("day", "month"):
        names = DAYS if kind == "day" else MONTHS
        i = rng.randrange(len(names))
        step = rng.choice([1, -1])
        r = names[(i + step) % len(names)]
        word = "after" if step > 0 else "before"
        q = rng.choice(["Which {k} comes {s} {n}?", "What {k} is {s} {n}?", "What is the {k} {s} {n}?"])
        a = r if brief else f"The {kind} {word} {names[i]} is {r}."
        if detail:
            a += f" There are {len(names)} of them: {', '.join(names)}."
        return kind, q.format(k=kind, s=word, n=names[i]), f"{word} {names[i]} comes {r}.", a, [r]
    if kind == "list":
        w = rng.choice(list(LISTS))
        q = rng.choice(["Name three {}.", "Tell me three {}.", "List three {}.", "Give me three {}.", "Can you name three {}?",
                        "Which {} do you know?"]).format(w)  # fmt: skip
        r = LISTS[w]
        a = r[0].upper() + r[1:] + "." if brief else f"Three {w} are {r}."
        if detail:
            a += f" These are well known {w}, and there are many more of them. I chose them because most people know them."
        return kind, q, f"I need three {w}.", a, [r[3:]]
    if kind == "define":
        w = rng.choice(list(DEFINE))
        k, f, more = DEFINE[w]
        q = rng.choice(["What is {}?", "What is {}?", "Explain {}.", "Define {}.", "Tell me about {}.", "What do you know about {}?",
                        "Can you explain what {} is?", "Describe {}."]).format(w)  # fmt: skip
        big = w[0].upper() + w[1:]
        a = f"{big} is {k}." + ("" if brief else " " + f) + (" " + more + MORE if detail else "")
        return kind, q, f"I explain {w}.", a, [k]
    if kind in ("spell", "reverse"):
        w = rng.choice(WORDS)
        if kind == "spell":
            q = rng.choice(
                ["Spell {}.", "How do you spell {}?", "Spell the word {}.", "Can you spell {}?"]
            ).format(w)
            r = spelled(w)
            a = r if brief else f"The word {w} is spelled {r}."
            if detail:
                a += f" It has {len(w)} letters. The first letter is {w[0]} and the last letter is {w[-1]}."
            return kind, q, spelled(w), a, [r]
        q = rng.choice(
            ["Reverse the word {}.", "Write {} backwards.", "What is {} backwards?", "Reverse {}."]
        ).format(w)
        r = w[::-1]
        a = spelled(r) if brief else f"{w} backwards is {spelled(r)}."
        if detail:
            a += f" The word has {len(w)} letters. The last letter {w[-1]} comes first and the first letter {w[0]} comes last."
        return kind, q, f"{spelled(w)}, backwards {spelled(r)}", a, [spelled(r)]
    if kind == "count":
        n = rng.randint(2, 12)
        q = rng.choice(
            ["Count to {}.", "Please count to {}.", "Can you count to {}?", "Count from 1 to {}."]
        ).format(n)
        r = ", ".join(str(i) for i in range(1, n + 1))
        a = r if brief else f"{r}."
        if detail:
            a = f"I count from 1 to {n} in steps of one: {r}. These are {n} numbers."
        return kind, q, f"I count from 1 to {n}.", a, [r]
    x, y = rng.sample(range(1, 100), 2)
    m = max(x, y)
    q = rng.choice(
        ["Which is bigger, {} or {}?", "Which number is larger, {} or {}?", "What is more, {} or {}?"]
    ).format(x, y)
    a = str(m) if brief else f"{m} is bigger."
    if detail:
        a = f"{m} is bigger than {min(x, y)}. On the number line {m} comes after {min(x, y)}, so it is the larger one of the two."
    return kind, q, f"{m} is more than {min(x, y)}.", a, [str(m)]


def draw(rng, style, train):
    while True:
        q, why, answer, words = one(rng, style)
        q = vary(rng, q)
        key = f"chat {style} {q}"
        if train is None or held(key, 12) != train:
            return key, q, why, answer, words


def make(rng, train, mode=None):
    mode = mode_of(rng, mode)
    style = style_of(rng)
    messages = styled(rng, style)
    if not train:
        key, q, why, answer, words = draw(rng, style, False)
        messages.append(asked(rng, style, messages, q))
        target = assistant(answer, why)
        return dict(messages=messages, mode=mode, key=key, expected=words, style=style, target=target)
    wish = messages[:1]
    for _ in range(rng.choice([1, 1, 2, 3, 4])):
        _, q, why, answer, _ = draw(rng, style, True)
        messages += [asked(rng, style, wish, q), assistant(answer, why)]
    if mode == "chat":
        for m in messages:
            m.pop("reasoning_content", None)
    return dict(messages=messages, mode=mode)
