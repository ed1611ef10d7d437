"""What the benchmarks ask: five kinds of work that differ in how much of the answer can be guessed.

``chat``, ``code`` and ``story`` leave the answer open. ``summary`` holds a text to be put shortly, ``edit`` a text or
code to be given back with small changes, so that most of its answer stands in the prompt. All are short enough for
small models: prompt and answer together are some hundred tokens.
"""

from textwrap import dedent


def _text(text: str) -> str:
    return dedent(text).strip()


def _prose(text: str) -> str:
    """Join the lines of each paragraph, as people write them."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in _text(text).split("\n\n"))


CHAT = (
    "Why is the sky blue? Explain it to a child.",
    "I sleep badly before exams. Give me five tips for a calm evening, each with one sentence of explanation.",
    "What is the difference between a virus and a bacterium, and why do antibiotics help against only one of them?",
    _prose("""
        My neighbour's dog barks every morning at six. We have always got on well and I do not want a quarrel.
        How do I bring it up? Suggest what I could say, word for word, and what I should avoid.
    """),
)

CODE = (
    "Write a Python function that removes duplicates from a list and keeps the order. Add a docstring and an example.",
    "Write a Python class Stack with push, pop, peek and is_empty. Raise IndexError where nothing can be returned.",
    "Write a JavaScript function that counts how often each word occurs in a string, and explain how it works.",
    _text("""
        Complete this Python function:

        def merge_sorted(left: list[int], right: list[int]) -> list[int]:
            \"\"\"Return one sorted list of all elements of two sorted lists.\"\"\"
    """),
)

SUMMARY = (
    _prose("""
        Summarise the following text in two sentences.

        Bees live in colonies of many thousands. Most of them are workers, which collect nectar and pollen, feed the
        young, guard the entrance and build the combs. A colony has one queen, who lays all of the eggs, and in
        summer some hundreds of drones. In autumn the workers drive the drones out. During the winter the colony
        forms a tight ball to keep warm, and lives on the honey it has stored.
    """),
    _prose("""
        Summarise these minutes in a short list of decisions and open questions.

        The meeting began ten minutes late because the room was locked. Ms Okafor reported that the new bicycle
        racks had been delivered, but two were damaged; she will ask for replacements by Friday. Mr Lindqvist asked
        whether the library could stay open until nine in May. The board agreed to try it for one month and to count
        the visitors. The repair of the roof was discussed at length. Three offers have come in, the cheapest at
        14,200 euros. No decision was made, because the insurance has not yet said what it will pay.
    """),
    _prose("""
        Give the main points of this text as three bullet points.

        The tide is the regular rise and fall of the sea. It is caused mostly by the pull of the Moon, and to a
        smaller part by that of the Sun. Where Sun and Moon pull in the same line, at new moon and at full moon, the
        high water is very high and the low water very low: the spring tide. When they pull at right angles the
        difference is small: the neap tide. Most coasts have two high waters a day, about twelve hours and
        twenty-five minutes apart.
    """),
    _prose("""
        Summarise this e-mail in one sentence for my calendar.

        Dear all, the workshop on water pumps will not take place on Tuesday as planned, since our speaker, Dr Amara
        Diallo, is ill. We have found a new date: Thursday the 14th of March at half past two, in the small lecture
        room on the second floor, not in the hall. Please bring your own safety glasses. Whoever cannot come then
        should write to Jonas by Monday evening, so that the places can be given to others. Coffee and cake will be
        there as always.
    """),
)

EDIT = (
    _prose("""
        Correct the spelling mistakes in this text and give the whole text back.

        Last sumer we travelled to the mountains by train. The journey took seven hours, but the view from the
        windows was beautifull. In the evening we reached a small village with a wooden church. Our room was on the
        top floor, and we could hear the river all nigth. On the next morning we climbed to the lake, where we ate
        bread and cheese, and a goat tried to steal my hat.
    """),
    _text("""
        Add a parameter currency with the default "EUR" to this function and use it in place of the fixed "EUR". Give
        back the whole function.

        def invoice_line(name, quantity, price):
            amount = round(quantity * price, 2)
            if quantity < 1:
                raise ValueError("quantity must be at least 1")
            text = f"{quantity} x {name} at {price:.2f} EUR"
            return f"{text} = {amount:.2f} EUR"
    """),
    _text("""
        Rename the variable x to total in this function and change nothing else. Give back the whole function.

        def mean(values):
            x = 0.0
            for value in values:
                x = x + value
            if not values:
                raise ValueError("mean of nothing")
            return x / len(values)
    """),
    _text("""
        Give this recipe back with all amounts in grams: one cup of flour is 120 grams, one cup of sugar is 200 grams.

        Simple cake
        - 2 cups of flour
        - 1 cup of sugar
        - 3 eggs
        - a pinch of salt
        Mix the sugar with the eggs until the mixture is pale. Add the flour and the salt and stir until it is smooth.
        Pour the dough into a buttered pan and bake it for forty minutes.
    """),
)

STORY = (
    "Write a short story about a lighthouse keeper who finds a letter in a bottle.",
    "Tell a bedtime story about a hedgehog who is afraid of the dark.",
    "Write the opening of a detective story. It is raining, and the detective has lost her umbrella.",
    "Continue this story: Once upon a time, in a village by a river, lived a clockmaker whose clocks were all late.",
)

# kind: its prompts
PROMPTS = {"chat": CHAT, "code": CODE, "summary": SUMMARY, "edit": EDIT, "story": STORY}
