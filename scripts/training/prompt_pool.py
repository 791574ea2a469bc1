"""Prompts made from templates, for training. None of them is among the held-out prompts."""

from __future__ import annotations

import random
from collections.abc import Callable

TOPICS = """\
volcanoes|photosynthesis|gravity|the water cycle|black holes|vaccines|inflation|
compound interest|machine learning|the Roman Empire|the French Revolution|plate tectonics|
DNA|evolution|electric cars|solar panels|wind turbines|recycling|the immune system|
the human heart|sleep|dreams|memory|meditation|yoga|running|chess|football|basketball|
tennis|swimming|cooking pasta|baking bread|coffee|tea|chocolate|cheese|wine|gardening|
composting|bees|butterflies|whales|dolphins|elephants|penguins|dinosaurs|cats|dogs|horses|
rainbows|thunderstorms|earthquakes|tsunamis|glaciers|deserts|rainforests|coral reefs|
the Moon|Mars|Jupiter|comets|telescopes|satellites|rockets|airplanes|trains|bicycles|
bridges|skyscrapers|castles|pyramids|museums|libraries|novels|poetry|theatre|opera|jazz|
guitars|pianos|painting|sculpture|photography|film making|video games|computers|
the internet|email|passwords|encryption|databases|operating systems|compilers|
programming languages|robots|3D printing|smartphones|batteries|magnets|light|sound|heat|
atoms|molecules|acids and bases|metals|plastics|paper|glass|concrete|clocks|calendars|maps|
money|banks|taxes|insurance|stocks|budgets|marketing|customer service|leadership|teamwork|
time management|public speaking|job interviews|resumes|negotiation|friendship|parenting|
school|universities|exams|languages|grammar|spelling|handwriting|fractions|percentages|
geometry|algebra|probability|statistics|prime numbers|logic|philosophy|ethics|democracy|
elections|laws|courts|the United Nations|human rights|climate change|pollution|
renewable energy|nuclear power|fossil fuels|water|soil|forests|oceans|rivers|lakes|
mountains|islands|cities|villages|farms|markets|restaurants|hotels|travel|camping|hiking|
skiing|fishing|sailing|diving|weddings|birthdays|holidays|gifts|music festivals|fashion|
shoes|furniture|houses|kitchens|bathrooms|gardens|pets|nutrition|vitamins|protein|sugar|
salt|exercise|stress|anxiety|happiness|creativity|curiosity|habits|goals|success|failure|
courage|kindness|honesty|patience|humour"""

THINGS = """\
apples|books|pencils|oranges|chairs|tickets|cookies|marbles|bottles|boxes|stamps|flowers|
eggs|cups|shirts|cards|coins|balloons|candles|toys|bricks|plates|lamps|bags"""

NAMES = """\
Anna|Ben|Carla|David|Emma|Frank|Grace|Hugo|Ines|Jack|Kate|Liam|Maria|Noah|Olga|Paul|Rita|
Sam|Tina|Victor|Wendy|Yusuf|Zoe|Omar|Leila|Priya|Chen|Akira"""

PLACES = """\
Paris|Tokyo|Cairo|Rome|London|Berlin|Madrid|Lisbon|Vienna|Prague|Oslo|Dublin|Athens|
Istanbul|Mumbai|Bangkok|Sydney|Toronto|Chicago|Boston|Mexico City|Lima|Nairobi|Cape Town|
Seoul|Amsterdam|Iceland|New Zealand|Peru|Morocco|Vietnam|Kenya|Brazil|Canada|Japan|India|
Italy|Greece"""

LANGUAGES = "Python|Python|Python|JavaScript|C|C++|Java|Go|Rust|Ruby|TypeScript|Bash|SQL"

TASKS = """\
reverses a string|checks whether a number is prime|sorts a list of numbers|
finds the largest value in a list|computes the factorial of n|merges two sorted lists|
counts the words in a text|checks whether a string is a palindrome|
computes the greatest common divisor|removes whitespace from a string|
converts Celsius to Fahrenheit|flattens a nested list|finds the most common element|
splits a list into chunks|computes the average of a list|rotates a list by k places|
reads a file line by line|writes a list to a CSV file|parses a date string|
validates an email address|generates a random password|implements a stack|
implements a queue|implements binary search|implements bubble sort|implements quicksort|
implements a linked list|builds a binary tree|traverses a graph breadth first|
finds the shortest path|computes a running total|transposes a matrix|
multiplies two matrices|converts a number to binary|converts a number to Roman numerals|
capitalises each word|finds the second largest number|
checks whether two strings are anagrams|groups a list of records by key|
finds the intersection of two lists|computes a moving average|downloads a web page|
starts a timer|logs messages with a time stamp|retries a function three times|
caches the results of a function|formats a number with commas|computes the sum of digits|
swaps two variables|counts the lines of a file|finds missing numbers in a range|
prints a multiplication table|plays tic-tac-toe|guesses a number|draws a triangle of stars|
computes compound interest|encodes a string with a Caesar cipher"""

SENTENCES = """\
the meeting starts at nine and everyone should be on time|i has went to the store yesterday|
she dont like apples but he do|we need to finish the report before friday|
your order will arrive late|the movie was long and boring|
please call me back as soon as you can|there is too many people in this room|
he is more taller than his brother|i am very happy with the new phone|
the food was cold and the waiter was rude|our team win the game last night|
the dog chased the ball across the garden|can you send the file again|
my computer are broken and i need help|the weather is nice so we will go to the beach|
i can not come to work today because i am sick|the price is too high for me|
the train was late because of the snow|they was playing football when it start raining|
this product is bad and i want my money back|me and him went to school together|
the cat sat on the mat and looked at the bird|we are looking forward to meet you"""

CHARACTERS = """\
a young wizard|an old sailor|a lonely dragon|a brave mouse|a lost astronaut|a clever fox|
a shy ghost|a tired detective|a baker|a small cloud|a talking tree|a clock maker|
a girl who can fly|two brothers|a retired pirate|a street musician|a king without a crown|
a blind painter|a time traveller|a curious octopus|a village doctor|a snowman|a librarian|
a gardener"""

SETTINGS = """\
in a forest|on a distant planet|in a small town|under the sea|in a haunted house|on a train|
in the desert|at the end of summer|during a storm|in an old castle|on a rainy night|
in the future|at a market|on an island|in the mountains|in a big city"""

SYSTEMS = (
    "You are a helpful assistant.",
    "You are a careful assistant who answers step by step.",
    "You are a programmer. Answer with code and short comments.",
    "You are a teacher who explains things to children.",
    "You are a concise assistant. Answer in one or two sentences.",
    "You are a creative writer.",
    "You are an expert in mathematics.",
    "You help people write better English.",
)

_TEXT_STARTS = """\
The|In|A|It was|When|Once upon a time|def |import |class |#include <|function |SELECT |
<html>|# Introduction|## |Chapter 1|1. |Question:|The following|According to|This article|
In this lesson|Abstract|Dear |Recipe:|Ingredients:|How to|What is|Why do|Many people|
Scientists|During the|For example|The most important|Students|On Monday|If you|There are|
One of the|We|I|He|She|They|As a|Although|Because|After|Before|While|First,|Let's|To|By|
With|From|At the|Since|History of|The city of|The theory of|The process of|A simple|
An example of|Today|Yesterday|Imagine"""


def _words(text: str) -> list[str]:
    return text.replace("\n", "").split("|")


TEXT_STARTS = tuple(_words(_TEXT_STARTS))


class _Templates:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def one(self, words: str) -> str:
        return self.random.choice(_words(words))

    def number(self, low: int, high: int) -> int:
        return self.random.randint(low, high)

    def explain(self) -> str:
        topic = self.one(TOPICS)
        return self.random.choice(
            (
                f"Explain {topic} in simple terms.",
                f"What is the most important thing to know about {topic}?",
                f"Can you tell me about {topic}?",
                f"Give me a short introduction to {topic}.",
                f"Explain {topic} to a child.",
                f"What are the main facts about {topic}?",
                f"Why does {topic} matter?",
                f"Describe the history of {topic}.",
                f"What are common misconceptions about {topic}?",
                f"How does {topic} relate to {self.one(TOPICS)}?",
                f"Compare {topic} and {self.one(TOPICS)}.",
                f"Write a paragraph about {topic}.",
            )
        )

    def listing(self) -> str:
        n, topic = self.number(3, 10), self.one(TOPICS)
        return self.random.choice(
            (
                f"List {n} facts about {topic}.",
                f"Give me {n} tips for {topic}.",
                f"Name {n} things related to {topic}.",
                f"What are {n} good questions about {topic}?",
                f"Make a list of {n} ideas for a blog about {topic}.",
                f"List {n} things to do in {self.one(PLACES)}.",
                f"Give {n} reasons to learn about {topic}.",
                f"List the pros and cons of {topic}.",
                f"Make a {n}-day plan for a trip to {self.one(PLACES)}.",
                f"Write {n} short quiz questions about {topic} with answers.",
            )
        )

    def table(self) -> str:
        n, topic = self.number(3, 6), self.one(TOPICS)
        return self.random.choice(
            (
                f"Make a table with {n} rows about {topic}.",
                f"Write a JSON object that describes {topic} with {n} keys.",
                f"Give me a JSON list of {n} people with name, age and city.",
                f"Write a YAML file with settings for a program about {topic}.",
                f"Write an HTML page about {topic}.",
                f"Make a CSV with {n} rows of {self.one(THINGS)}, price and quantity.",
                f"Write a Markdown document with headings about {topic}.",
            )
        )

    def maths(self) -> str:
        a, b, c = self.number(2, 99), self.number(2, 40), self.number(2, 12)
        name, thing = self.one(NAMES), self.one(THINGS)
        return self.random.choice(
            (
                f"What is {a} plus {b}?",
                f"Compute {a} * {b}. Show your steps.",
                f"What is {a} minus {b}? Explain.",
                f"{name} has {a} {thing} and buys {b} more. How many are there now?",
                f"{name} has {a * c} {thing} and shares them among {c} friends. How many each?",
                f"Solve for x: {c}x + {b} = {c * a + b}.",
                f"What is {c * 5} percent of {a * 10}?",
                f"A car travels {a * c} km in {c} hours. What is its speed?",
                f"What is the area of a rectangle of {a} by {b} metres?",
                f"If one box holds {b} {thing}, how many {thing}"
                f" are in {c} boxes? Show your steps.",
                f"{name} earns {a} dollars an hour and works {b} hours. How much is that?",
                f"Find the average of {a}, {b} and {c}.",
                f"What comes next: {c}, {c + b}, {c + 2 * b}, {c + 3 * b}?",
            )
        )

    def code(self) -> str:
        language, task = self.one(LANGUAGES), self.one(TASKS)
        return self.random.choice(
            (
                f"Write a {language} function that {task}.",
                f"Write a {language} program that {task}.",
                f"How do I write {language} code that {task}?",
                f"Write {language} code that {task}, with comments.",
                f"Write a {language} function that {task}, and a test for it.",
                f"Show an example in {language} that {task}.",
                f"Write a {language} class that {task}.",
            )
        )

    def rewrite(self) -> str:
        a, b = self.one(SENTENCES), self.one(SENTENCES)
        return self.random.choice(
            (
                f"Fix the grammar: {a}.",
                f"Rewrite this more formally: {a}.",
                f"Rewrite in a friendly tone: {a}. {b.capitalize()}.",
                f"Summarize: {a}. {b.capitalize()}.",
                f"Make this longer: {a}.",
                f"Translate to Spanish: {a}.",
                f"Translate to French: {a}.",
                f"Translate to German: {a}.",
                f"Turn this into a question: {a}.",
                f"Repeat this text exactly: {a}. {b.capitalize()}.",
                f"Paraphrase in three ways: {a}.",
            )
        )

    def story(self) -> str:
        who, where = self.one(CHARACTERS), self.one(SETTINGS)
        return self.random.choice(
            (
                f"Write a short story about {who} {where}.",
                f"Tell me a tale of {who} {where}.",
                f"Write a poem about {who}.",
                f"Write a haiku about {self.one(TOPICS)}.",
                f"Write a dialogue between {who} and {self.one(CHARACTERS)}.",
                f"Write the first paragraph of a novel about {who} {where}.",
                f"Write a bedtime story about {who}.",
                f"Write a song about {self.one(TOPICS)}.",
            )
        )

    def letter(self) -> str:
        name, topic = self.one(NAMES), self.one(TOPICS)
        return self.random.choice(
            (
                f"Write an email to {name} about {topic}.",
                f"Write a thank-you note to {name}.",
                f"Write a product review about {self.one(THINGS)}.",
                f"Write an invitation to a party in {self.one(PLACES)} for {name}.",
                f"Write a short speech about {topic}.",
                f"Write a social media post about {topic}.",
                f"What should I say to {name}, who is worried about {topic}?",
                f"I want to learn about {topic}. Where do I begin?",
                f"Hello! My name is {name}. Can you help me with {topic}?",
                f"What is your opinion on {topic}?",
                f"Write a letter of complaint about {self.one(THINGS)}.",
            )
        )


def make_prompts(n: int, held_out: set[str], seed: int) -> list[str]:
    """n different prompts, or as many as there are."""
    templates = _Templates(seed)
    makers: tuple[Callable[[], str], ...] = (
        *(templates.explain, templates.explain, templates.listing, templates.table),
        *(templates.maths, templates.code, templates.code, templates.rewrite),
        *(templates.story, templates.letter),
    )
    prompts: dict[str, None] = {}
    for _ in range(4 * n):
        prompt = templates.random.choice(makers)()
        if prompt not in held_out:
            prompts[prompt] = None
        if len(prompts) == n:
            break
    return list(prompts)
