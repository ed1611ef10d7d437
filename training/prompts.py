"""Prompts of many kinds without data files: templates for the fit, and others, never fitted on, to measure with."""

import random

TOPICS = (
    "the water cycle",
    "a lighthouse keeper",
    "how bread rises",
    "the French Revolution",
    "binary search",
    "a shy dragon",
    "solar panels",
    "the human heart",
    "learning the piano",
    "black holes",
    "a village market",
    "healthy breakfasts",
    "compound interest",
    "the Roman Empire",
    "machine learning",
    "an old clockmaker",
    "coral reefs",
    "time zones",
    "a lost letter",
    "photosynthesis",
    "remote work",
    "the printing press",
    "electric cars",
    "two brothers at sea",
    "vaccines",
    "garden tomatoes",
    "prime numbers",
    "a robot who paints",
    "job interviews",
    "the moon's phases",
    "recycling plastic",
    "a haunted library",
    "sleep and memory",
    "the stock market",
    "chess openings",
    "migrating birds",
    "a winter journey",
    "email etiquette",
    "earthquakes",
    "a talented young cook",
)

PROGRAMS = (
    "reverses a string",
    "counts the words in a text",
    "checks whether a number is prime",
    "merges two sorted lists",
    "reads a CSV file and prints its rows",
    "finds the largest number in a list",
    "computes a factorial",
    "removes duplicates from a list",
    "converts Celsius to Fahrenheit",
    "sorts a list of dictionaries by a key",
    "draws a triangle of stars",
    "finds the longest word in a sentence",
    "validates an email address",
    "computes the Fibonacci numbers",
    "downloads a web page",
    "implements a stack",
    "walks through a binary tree",
    "generates a random password",
    "parses a date",
    "groups names by their first letter",
)

TEXTS = (
    "The town council met on Tuesday to discuss the new bridge. Several residents spoke against the plan because it "
    "would close the market for a year. The mayor said that the old bridge was no longer safe. A vote is expected in "
    "May.",
    "Bees do more than make honey. They carry pollen from flower to flower, and a third of what people eat depends "
    "on them. In the last twenty years their number has fallen, and scientists blame pesticides, mites and the loss "
    "of meadows.",
    "Our team has finished the first version of the app. Customers can now order, pay and follow their parcels. The "
    "search is still slow, and the French translation is missing. We plan to fix both before the end of the month.",
    "Maria grew up in a small fishing village. At sixteen she left for the city, where she worked in a bakery by day "
    "and studied at night. Ten years later she opened her own school, and today it has three hundred pupils.",
    "Regular exercise lowers blood pressure, strengthens the heart and improves mood. Doctors recommend thirty minutes "
    "of walking on most days. Those who sit at work should stand up every hour and stretch their backs.",
    "the meeting are moved to friday becuase the room was not free on thursday, please tells your colleagues and bring "
    "the reports that we has discussed last weak. if you cant come write me a email before wednesday",
    "The expedition reached the valley in early spring. Snow still lay on the passes, and two of the mules had gone "
    "lame. They camped by the river for nine days, mapped its course, and found the ruins that the shepherds had "
    "described.",
    "Prices of coffee rose by a tenth this year after a drought in Brazil. Roasters have started to buy more beans "
    "from Vietnam and Ethiopia. Analysts expect that prices will stay high until the next harvest.",
)

TEMPLATES = (
    # chat
    "What is {topic}?",
    "Explain {topic} to a ten-year-old.",
    "Tell me three surprising facts about {topic}.",
    "Give me a short plan to learn more about {topic}.",
    "What should everybody know about {topic}?",
    "Write an email to a friend about {topic}.",
    "List five questions that a journalist would ask about {topic}.",
    "Write a paragraph about {topic}.",
    # stories
    "Write a short story about {topic}.",
    "Write a poem about {topic}.",
    "Write a dialogue between two people about {topic}.",
    # code
    "Write a Python function that {program}.",
    "Write a JavaScript function that {program}.",
    "How do I write a program that {program}?",
    "Explain step by step how a function {program}, with code.",
    # summaries and edits
    "Summarize this text in two sentences:\n\n{text}",
    "What are the main points of the following text?\n\n{text}",
    "Rewrite this text in a friendly tone:\n\n{text}",
    "Correct the grammar and spelling of this text:\n\n{text}",
    "Make this text shorter:\n\n{text}",
)

# By kind; nothing of it may enter a fit.
HELD_OUT = {
    "chat": (
        "How can I stop procrastinating before exams?",
        "What are the differences between alligators and crocodiles?",
        "I have a job offer in another city. How should I decide?",
        "Why do leaves change colour in autumn?",
        "Can you recommend a weekend itinerary for Lisbon?",
        "How does a microwave oven heat food?",
        "What is the best way to apologise to a colleague?",
        "Describe the rules of tennis briefly.",
    ),
    "code": (
        "Write a Python class for a bank account with deposit and withdraw methods.",
        "Show me an SQL query that lists the ten customers with the most orders.",
        "Write a bash script that renames all .jpeg files to .jpg.",
        "In Python, how do I count how often each character occurs in a string?",
        "Write a C program that adds two matrices.",
        "Write an HTML form with a name field and a submit button.",
    ),
    "summary": (
        "Give a one-sentence summary: Octopuses have three hearts and blue blood. Two hearts pump blood to the "
        "gills, the third to the rest of the body. When an octopus swims, that third heart stops, which is why it "
        "prefers to crawl.",
        "Sum up the key message of this announcement: From next Monday the library opens at eight instead of nine. "
        "Books can be returned at the machine by the door at any time. The reading room on the second floor stays "
        "closed until the heating has been repaired.",
        "Condense into bullet points: The company sold more bicycles than ever, but earned less. Steel became "
        "dearer, a warehouse burnt down in March, and the new model was delayed until autumn. The board expects a "
        "better year.",
        "TL;DR of this: I bought a used laptop, and after two days the screen went black. The seller says that it "
        "worked when he sent it. I have photos of the parcel, which arrived with a dent, and I would like to have my "
        "money back.",
    ),
    "edit": (
        "Fix the mistakes: Yesterday we goes to the museum and seen many picture, it were very interesting for my "
        "childs.",
        "Make this sound more formal: hey, just checking if you got my note about the invoice, kinda need it soon, "
        "thanks!",
        "Change this to the past tense: She opens the window, looks at the rain and decides to stay at home.",
        "Replace the variable x by total in this code:\n\nx = 0\nfor price in prices:\n    x = x + price\nprint(x)",
    ),
    "story": (
        "Begin a mystery novel that is set on a night train.",
        "Tell a bedtime story in which a fox learns to share.",
        "Write a limerick on a man who loved cheese.",
        "Describe an alien's first day at a human school.",
        "Write the diary entry of an astronaut who is alone on Mars.",
        "Invent a legend that explains why the sea is salty.",
    ),
}


def built_in_prompts(count: int, seed: int) -> list[str]:
    """Return count prompts of many kinds, every template as often as any other; none is in HELD_OUT."""
    draw = random.Random(seed)
    fillings = {"topic": TOPICS, "program": PROGRAMS, "text": TEXTS}
    return [
        TEMPLATES[index % len(TEMPLATES)].format(**{name: draw.choice(values) for name, values in fillings.items()})
        for index in range(count)
    ]
